import { useState } from "react";
import { useSession } from "../api/overview";
import { Refused } from "../api/session";
import type { Capture, RequestRow } from "../api/types";
import { bytes, duration } from "../format/quantities";
import { stages } from "../format/stages";
import { Dialog } from "./dialog";
import { Facts } from "./facts";
import { Failed } from "./failed";
import { Waterfall } from "./waterfall";

/** What is told of a request whether it is over or not: when it came, and what it asked for. */
export function asked(row: Pick<RequestRow, "id" | "at" | "request_id" | "route" | "stream" | "model" | "asked" | "key">): [string, string | null][] {
  return [
    ["Came", new Date(row.at * 1000).toLocaleString()],
    ["Its X-Request-Id", row.request_id === row.id ? null : row.request_id],
    ["Route", `${row.route}${row.stream ? ", as a stream" : ""}`],
    ["Model", row.model === null ? null : `${row.model}${row.asked !== null && row.asked !== row.model ? ` (asked for ${row.asked})` : ""}`],
    ["Key", row.key],
  ];
}

/** One request that is over: its times, and what was captured of it. */
export function RequestDetails({ row, onClose }: { row: RequestRow; onClose: () => void }) {
  const seconds = (value: number | null) => (value === null ? null : duration(value));
  return (
    <Dialog title={`Request ${row.id}`} onClose={onClose} className="wide-dialog">
      <p className={row.outcome === "ok" ? "good" : "bad"}>
        {row.outcome.replace(/_/g, " ")} ({row.status}){row.error !== null && `: ${row.error}`}
      </p>
      <Waterfall stages={stages(row)} whole={row.total_s} />
      <Facts
        facts={[
          ...asked(row),
          ["Prompt tokens", row.prompt_tokens === null ? null : `${row.prompt_tokens}${row.cached_tokens ? `, ${row.cached_tokens} from the cache` : ""}`],
          ["Answer tokens", row.completion_tokens === null ? null : `${row.completion_tokens}${row.reasoning_tokens ? `, ${row.reasoning_tokens} of them reasoning` : ""}`],
          ["Between tokens", row.itl_p50_s === null ? null : `${Math.round(row.itl_p50_s * 1000)} ms; 99 of 100 within ${Math.round((row.itl_p99_s ?? 0) * 1000)} ms`],
          ["Stood still", row.frozen_s > 0 ? seconds(row.frozen_s) : null],
          ["On the device", seconds(row.device_s)],
          ["Bytes", `${bytes(row.bytes_in)} in, ${bytes(row.bytes_out)} out`],
          ["Sent again", row.retried ? "yes, after its engine had failed" : null],
          ["Cost", row.cost],
        ]}
      />
      <CaptureView id={row.id} />
      <div className="buttons">
        <button type="button" onClick={onClose} autoFocus>
          Close
        </button>
      </div>
    </Dialog>
  );
}

function CaptureView({ id }: { id: string }) {
  const session = useSession();
  const [capture, setCapture] = useState<Capture | null>(null);
  const [error, setError] = useState<Error | string | null>(null);
  const [replayed, setReplayed] = useState<string | null>(null);
  const show = async () => {
    try {
      setCapture(await session.get<Capture>(`api/requests/${encodeURIComponent(id)}/capture`));
    } catch (failure) {
      const none = failure instanceof Refused && failure.status === 404;
      setError(none ? `${failure.message} Requests are captured where \`captures\` in the configuration says so.` : (failure as Error));
    }
  };
  const replay = async () => {
    setError(null);
    setReplayed("");
    try {
      const answer = await session.fetch(`api/requests/${encodeURIComponent(id)}/replay`, { method: "POST" });
      const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
      for (let read = await reader?.read(); read !== undefined && !read.done; read = await reader?.read()) {
        const { value } = read;
        setReplayed((before) => ((before ?? "") + value).slice(-SHOWN));
      }
    } catch (failure) {
      setError(failure as Error);
    }
  };
  if (capture === null) {
    return (
      <>
        <Failed error={error} />
        <p>
          <button type="button" onClick={() => void show()}>
            What was captured
          </button>
        </p>
      </>
    );
  }
  return (
    <>
      <Bodies title="Request" value={capture.request} />
      <Bodies title="Answer" value={capture.answer} />
      <Failed error={error} />
      <p>
        <button type="button" onClick={() => void replay()}>
          Send it again
        </button>
      </p>
      {replayed !== null && <Bodies title="The new answer" value={replayed} />}
    </>
  );
}

const SHOWN = 100_000; // characters

function Bodies({ title, value }: { title: string; value: unknown }) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  return (
    <>
      <h3>{title}</h3>
      <pre tabIndex={0} aria-label={title}>
        {text.slice(0, SHOWN)}
        {text.length > SHOWN && "…"}
      </pre>
    </>
  );
}
