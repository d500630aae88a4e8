import { useQueryClient } from "@tanstack/react-query";
import { useCallback, useEffect, useMemo, useState, useSyncExternalStore, type ReactNode } from "react";
import { useActs } from "./acting";
import { OVERVIEW, useAccess, useOverview } from "./api/overview";
import { Refused } from "./api/session";
import { question } from "./format/acts";
import type { LiveFeed } from "./live/feed";
import { Attention } from "./parts/attention";
import { clockTime } from "./parts/clock";
import { Confirm } from "./parts/confirm";
import { Devices } from "./parts/devices";
import { Header } from "./parts/header";
import { KeyDialog } from "./parts/key-dialog";
import { Models } from "./parts/models";
import { Prose } from "./parts/prose";
import { Queue } from "./parts/queue";
import { Timeline } from "./parts/timeline";

export function App({ live }: { live: LiveFeed }) {
  const feed = useSyncExternalStore(live.subscribe, live.snapshot);
  const { name, wanted } = useAccess();
  const [closed, setClosed] = useState(false);
  const client = useQueryClient();
  const refresh = useCallback(() => void client.invalidateQueries({ queryKey: OVERVIEW }), [client]);
  const { data, error, dataUpdatedAt } = useOverview();
  const acts = useActs(refresh);
  const order = useMemo(() => data?.models.map((model) => model.id) ?? [], [data?.models]);

  useEffect(() => {
    setClosed(false);
    if (wanted !== null) return;
    // Another key may show other things.
    void client.resetQueries({ queryKey: OVERVIEW });
    return live.start();
  }, [client, live, name, wanted]);

  const { asked } = acts;
  const instance = data?.models.find((model) => model.id === asked?.model)?.instance ?? null;

  return (
    <>
      <Header status={data?.status} connection={wanted === null ? feed.connection : { kind: "refused", why: wanted }} onKey={() => setClosed(false)} />
      <main>
        <Attention alerts={data?.status.alerts ?? []} own={ownTrouble(error, wanted, dataUpdatedAt, () => setClosed(false))} />
        {data === undefined ? (
          <p className="empty first">{error === null && wanted === null ? "Asking the server…" : ""}</p>
        ) : (
          <div className="columns">
            <div>
              <Devices devices={data.devices} order={order} />
              <Models models={data.models} removed={data.removed} sent={acts.sent} onAct={acts.act} />
              <Queue queue={data.queue} />
            </div>
            <Timeline feed={feed} />
          </div>
        )}
      </main>
      <div className="notice" role="alert">
        {acts.trouble !== null && (
          <>
            <span>
              <Prose text={acts.trouble} />
            </span>
            <button type="button" onClick={acts.dismiss}>
              Close
            </button>
          </>
        )}
      </div>
      {asked !== null && (
        <Confirm
          question={"question" in asked ? asked.question : question(asked.act, asked.model, instance)}
          cut={asked.act === "stop" ? (instance?.in_flight ?? 0) : 0}
          onYes={(force) => acts.answer(true, force)}
          onNo={() => acts.answer(false)}
        />
      )}
      {wanted !== null && !closed && <KeyDialog why={wanted} onClose={() => setClosed(true)} />}
    </>
  );
}

/** What keeps the page itself from showing what is. */
function ownTrouble(error: Error | null, wanted: string | null, seenAt: number, onKey: () => void): ReactNode {
  if (wanted !== null) {
    return (
      <>
        The server wants an API key.{" "}
        <button type="button" className="plain" onClick={onKey}>
          Sign in
        </button>
      </>
    );
  }
  if (error === null) return null;
  return (
    <>
      <Prose text={error.message} />
      {seenAt > 0 && ` What is shown here is of ${clockTime(seenAt)}.`}
      {error instanceof Refused && error.status === 403 && " Sign out, and in again with another key."}
    </>
  );
}
