import * as Tabs from "@radix-ui/react-tabs";
import { lazy, Suspense, useEffect } from "react";
import { Link } from "wouter";
import { useLook } from "../api/look";
import { modelPath } from "../api/paths";
import type { Model } from "../api/types";
import { useModelId, useSetting } from "../frame/address";
import { useShared, useTitle } from "../frame/shared";
import { Failed } from "../parts/failed";
import { About } from "../parts/model/about";
import { Declaration } from "../parts/model/declaration";
import { Logs } from "../parts/model/logs";
import { Starts } from "../parts/model/starts";
import { Acts, describe, reasonOf, StateCell } from "../parts/models";
import { Prose } from "../parts/prose";

const Charts = lazy(() => import("../parts/charts"));

const TABS = [
  ["about", "About"],
  ["charts", "Charts"],
  ["logs", "Log"],
  ["history", "Starts"],
  ["declaration", "Configuration"],
] as const;

/** One model: what it is, what it does, and how it came to be so. */
export default function ModelPage() {
  const id = useModelId();
  useTitle(id);
  const { feed, sent, onAct } = useShared();
  const { data: model, error, refetch } = useLook<Model>(modelPath(id), 2);
  const [tab, setTab] = useSetting("tab", "about");
  const latest = feed.events[0]?.seq;
  useEffect(() => void refetch(), [latest, refetch]);
  if (model === undefined || model.id !== id) {
    return (
      <>
        <h1>{id}</h1>
        {error === null ? <p className="empty first">Asking the server…</p> : <Failed error={error} />}
        <p>
          <Link href="/models">All models</Link>
        </p>
      </>
    );
  }
  const why = reasonOf(model.instance);
  const trouble = model.instance !== null && ["failed", "backoff"].includes(model.instance.state);
  return (
    <>
      <div className="page-head">
        <div className="grow">
          <h1>{model.id}</h1>
          <span className="under">{describe(model)}</span>
        </div>
        <Link href={`/playground?m=${encodeURIComponent(model.id)}`} className="button">
          Try it
        </Link>
        <Acts model={model} sent={sent} onAct={onAct} />
      </div>
      <Failed error={error} />
      <section aria-label="State" className="now">
        <StateCell instance={model.instance} />
        {why !== "" && (
          <p className={trouble ? "bad" : "note"}>
            <Prose text={why} />{" "}
            {trouble && tab !== "logs" && (
              <button type="button" className="plain" onClick={() => setTab("logs")}>
                Its last lines
              </button>
            )}
          </p>
        )}
      </section>
      <Tabs.Root value={TABS.some(([name]) => name === tab) ? tab : "about"} onValueChange={setTab}>
        <Tabs.List className="tabs" aria-label={`About ${model.id}`}>
          {TABS.map(([name, title]) => (
            <Tabs.Trigger key={name} value={name}>
              {title}
            </Tabs.Trigger>
          ))}
        </Tabs.List>
        <Tabs.Content value="about">
          <About model={model} />
        </Tabs.Content>
        <Tabs.Content value="charts">
          <Suspense fallback={<p className="empty first">Loading the page…</p>}>
            <Charts key={model.id} model={model.id} tools />
          </Suspense>
        </Tabs.Content>
        <Tabs.Content value="logs">
          <Logs model={model.id} />
        </Tabs.Content>
        <Tabs.Content value="history">
          <Starts model={model.id} seen={latest} />
        </Tabs.Content>
        <Tabs.Content value="declaration">
          <Declaration key={model.id} model={model} onSaved={() => void refetch()} />
        </Tabs.Content>
      </Tabs.Root>
    </>
  );
}
