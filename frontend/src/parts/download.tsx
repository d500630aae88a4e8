import { useEffect, useState } from "react";
import { useLook } from "../api/look";
import { useSession } from "../api/overview";
import type { Pull, Weights } from "../api/types";
import { over, percent, stored, told } from "../format/pulls";
import { bytes } from "../format/quantities";
import { useShared } from "../frame/shared";
import { Failed } from "./failed";
import { Prose } from "./prose";

const MOVES = 1; // seconds between two looks at a download that is under way

/** Whether the weights of a repository are on the server, and a way to get them there. */
export function Download({ repository }: { repository: string }) {
  const session = useSession();
  const { feed } = useShared();
  const [moving, setMoving] = useState(false);
  const { data: weights, refetch: lookAgain, error: unseen } = useLook<Weights>("api/weights");
  const { data: pulls, refetch } = useLook<Pull[]>("api/pulls", moving ? MOVES : undefined);
  const [error, setError] = useState<Error | null>(null);
  const [asked, setAsked] = useState(false);
  const latest = feed.events.find((event) => event.kind.startsWith("pull.") || event.kind.startsWith("weights."))?.seq;
  // Somebody else may begin, end or remove one.
  useEffect(() => {
    void refetch();
    void lookAgain();
  }, [latest, refetch, lookAgain]);
  const pull = pulls?.find(({ repo }) => repo.toLowerCase() === repository.toLowerCase());
  const under = pull !== undefined && !over(pull);
  useEffect(() => setMoving(under), [under]);
  const send = async (work: () => Promise<unknown>) => {
    setAsked(true);
    setError(null);
    try {
      await work();
    } catch (failure) {
      setError(failure as Error);
    }
    setAsked(false);
    void refetch();
  };
  const there = weights === undefined ? null : stored(weights, repository);
  const whole = there !== null && there.partial === 0;
  return (
    <div className="download">
      <h3>Its weights</h3>
      {under ? (
        <Progress pull={pull} />
      ) : weights === undefined ? (
        unseen === null && <p className="empty">Asking the server…</p>
      ) : whole ? (
        <p>
          On this server: <b>{bytes(there.size)}</b>.
        </p>
      ) : (
        <p>
          {there === null ? "Not on this server yet" : `A part of them is here, ${bytes(there.size)}`}. The engine fetches them when it starts; downloaded before, a start takes no longer than the load.
        </p>
      )}
      {pull !== undefined && !under && pull.state !== "done" && !whole && (
        <p className="note">
          The last download {pull.state}: <Prose text={pull.reason} />
        </p>
      )}
      <Failed error={error ?? unseen} />
      <p className="buttons">
        {under ? (
          <button type="button" disabled={asked} onClick={() => void send(() => session.send("DELETE", `api/pulls/${encodeURIComponent(pull.id)}`))}>
            Cancel the download
          </button>
        ) : (
          !whole &&
          weights !== undefined && (
            <button type="button" disabled={asked} onClick={() => void send(() => session.post("api/pulls", { model: repository }))}>
              {asked ? "Asking the hub…" : there === null ? "Download now" : "Go on with the download"}
            </button>
          )
        )}
      </p>
    </div>
  );
}

function Progress({ pull }: { pull: Pull }) {
  const done = percent(pull);
  const label = `Download of ${pull.repo}`;
  return (
    <>
      <p>
        {pull.state === "waiting" ? "Waits for another download" : pull.state === "looking" ? "Asks the hub what there is" : `Downloads ${pull.file === "" ? pull.repo : pull.file}`}: {told(pull)}
      </p>
      {done === null ? <progress aria-label={label} /> : <progress aria-label={label} max={100} value={done} />}
    </>
  );
}
