import { useCallback, useState } from "react";
import { useLook } from "../api/look";
import { useOverview, useSession } from "../api/overview";
import type { Running, UnderWay as Listing } from "../api/types";
import { cancelQuestion } from "../format/acts";
import { bytes } from "../format/quantities";
import { Confirm } from "./confirm";
import { Failed } from "./failed";
import { Queue } from "./queue";
import { RunningDetails, RunningTable } from "./running";
import { Section } from "./section";

/** Who runs, and who waits, each with a way to end it. `shown`: the request whose details are open. */
export function UnderWay({ shown, onShow }: { shown: string; onShow: (id: string) => void }) {
  const { data } = useOverview();
  const session = useSession();
  const { data: listing, error, refetch } = useLook<Listing>("api/requests/running", 1);
  const [asked, setAsked] = useState<Running | null>(null);
  const [trouble, setTrouble] = useState<Error | null>(null);
  const cancel = useCallback(
    async (id: string) => {
      try {
        await session.post(`api/requests/${encodeURIComponent(id)}/cancel`);
        setTrouble(null);
      } catch (failure) {
        setTrouble(failure as Error);
      }
      void refetch();
    },
    [session, refetch],
  );
  const end = useCallback((id: string) => void cancel(id), [cancel]);
  const ask = useCallback((row: Running) => (row.bytes_out > 0 ? setAsked(row) : end(row.id)), [end]);
  const rows = listing?.requests ?? [];
  const running = rows.filter((row) => row.stage !== "waits");
  const details = rows.find((row) => row.id === shown || row.request_id === shown);
  const beyond = (listing?.total ?? 0) - rows.length;
  return (
    <>
      <Failed error={trouble ?? error} />
      <Section title="Running" note={listing === undefined ? undefined : `${running.length}${beyond > 0 ? `, and ${beyond} younger ones under way` : ""}`}>
        <RunningTable rows={running} onShow={onShow} onCancel={ask} />
      </Section>
      {data !== undefined && data.queue.length > 0 && <Queue queue={data.queue} onShow={onShow} onCancel={end} />}
      {details !== undefined && asked === null && <RunningDetails row={details} onCancel={ask} onClose={() => onShow("")} />}
      {asked !== null && (
        <Confirm
          question={cancelQuestion(asked.id, bytes(rows.find((row) => row.id === asked.id)?.bytes_out ?? asked.bytes_out))}
          cut={0}
          onYes={() => {
            end(asked.id);
            setAsked(null);
          }}
          onNo={() => setAsked(null)}
        />
      )}
    </>
  );
}
