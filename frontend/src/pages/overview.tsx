import { useMemo } from "react";
import { useOverview } from "../api/overview";
import { useShared, useTitle } from "../frame/shared";
import { Devices } from "../parts/devices";
import { Models } from "../parts/models";
import { Queue } from "../parts/queue";
import { Timeline } from "../parts/timeline";

/** What is loaded, who waits and why, and what happened. */
export default function OverviewPage() {
  useTitle("");
  const { feed, sent, onAct } = useShared();
  const { data } = useOverview();
  const order = useMemo(() => data?.models.map((model) => model.id) ?? [], [data?.models]);
  if (data === undefined) return <p className="empty first">Asking the server…</p>;
  return (
    <>
      <h1 className="unseen">Overview</h1>
      <div className="columns">
        <div>
          <Devices devices={data.devices} order={order} />
          <Models models={data.models} removed={data.removed} sent={sent} onAct={onAct} />
          <Queue queue={data.queue} />
        </div>
        <Timeline feed={feed} />
      </div>
    </>
  );
}
