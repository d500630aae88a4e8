import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { Link } from "wouter";
import { query } from "../api/look";
import { useAccess, useOverview, useSession } from "../api/overview";
import type { MMEvent } from "../api/types";
import { tell } from "../format/events";
import { modelPage, useSetting } from "../frame/address";
import { useShared, useTitle } from "../frame/shared";
import { SseParser } from "../live/sse";
import { DataTable, type Column } from "../parts/data-table";
import { Failed } from "../parts/failed";
import { Moment } from "../parts/moment";
import { Prose } from "../parts/prose";

const PAGE = 1000; // the most that the server tells at once
const DEPTHS = ["1000", "10000"];

const COLUMNS: readonly Column<MMEvent>[] = [
  { id: "when", title: "When", width: "8.5rem", sort: (event) => event.seq, cell: (event) => <Moment at={event.at} /> },
  { id: "kind", title: "Kind", width: "13rem", sort: (event) => event.kind, cell: (event) => <code>{event.kind}</code> },
  {
    id: "model",
    title: "Model",
    width: "16%",
    sort: (event) => event.model,
    cell: (event) => event.model !== null && <Link href={modelPage(event.model)}>{event.model}</Link>,
  },
  {
    id: "what",
    title: "What happened",
    head: true,
    cell: (event) => {
      const { what, more, tone } = tell(event);
      return (
        <>
          <span className={tone === "bad" ? "bad" : undefined}>{what}</span>
          {more !== "" && (
            <span className="under">
              <Prose text={more} />
            </span>
          )}
        </>
      );
    },
  },
];

/** What happened, as far back as wanted, and what happens. */
export default function EventsPage() {
  useTitle("Events");
  const { feed } = useShared();
  const session = useSession();
  const { wanted } = useAccess();
  const { data: overview } = useOverview();
  const [model, setModel] = useSetting("model");
  const [search, setSearch] = useSetting("q");
  const [depth, setDepth] = useSetting("depth", "1000");
  const { data: past, error } = useQuery({
    queryKey: ["events", model, depth],
    enabled: wanted === null,
    queryFn: async ({ signal }) => {
      const read = async (more: Record<string, string | number>): Promise<MMEvent[]> => {
        const answer = await session.fetch(`api/events${query({ ...more, follow: 0, model })}`, { headers: { Accept: "text/event-stream" }, signal });
        return new SseParser().push(await answer.text()).map((sent) => JSON.parse(sent.data) as MMEvent);
      };
      const latest = await read({ tail: PAGE });
      const first = latest[0]?.seq;
      if (first === undefined || Number(depth) <= PAGE) return latest;
      // Further back, in pages from where it begins.
      const older: MMEvent[] = [];
      let after = Math.max(0, first - 1 - (Number(depth) - PAGE));
      while (after < first - 1) {
        const page = await read({ after });
        const last = page.at(-1)?.seq;
        if (last === undefined) break;
        older.push(...page.filter((event) => event.seq < first));
        after = last;
      }
      return [...older, ...latest];
    },
  });
  // Those of before are looked through once, not whenever something happens.
  const before = useMemo(() => matching([...(past ?? [])].reverse(), search), [past, search]);
  const rows = useMemo(() => {
    const last = past?.at(-1)?.seq ?? 0;
    return [...matching(feed.events.filter((event) => event.seq > last && (model === "" || event.model === model)), search), ...before];
  }, [past, before, feed.events, model, search]);
  return (
    <>
      <div className="page-head">
        <h1>Events</h1>
        <input type="search" aria-label="Search events" placeholder="Search: kind, model, reason…" value={search} onChange={(event) => setSearch(event.target.value)} />
        <select aria-label="Model" value={model} onChange={(event) => setModel(event.target.value)}>
          <option value="">all models</option>
          {(overview?.models ?? []).map(({ id }) => (
            <option key={id}>{id}</option>
          ))}
        </select>
        <select aria-label="How many" value={depth} onChange={(event) => setDepth(event.target.value)}>
          {DEPTHS.map((many) => (
            <option key={many} value={many}>
              the latest {Number(many).toLocaleString()}
            </option>
          ))}
        </select>
      </div>
      <Failed error={error} />
      <section aria-label="Events">
        <DataTable
          label="All events"
          rows={rows}
          columns={COLUMNS}
          id={(event) => `${event.seq} ${event.kind}`}
          guess={52}
          empty={past === undefined ? (error === null ? "Asking the server…" : "") : search !== "" || model !== "" ? "No event fits." : <>Nothing has happened yet. Start a model, or type <code>vllm-mm load MODEL</code></>}
        />
      </section>
    </>
  );
}

function matching(events: readonly MMEvent[], search: string): readonly MMEvent[] {
  const words = search.toLowerCase().split(/\s+/).filter((word) => word !== "");
  if (words.length === 0) return events;
  return events.filter((event) => {
    const { what, more } = tell(event);
    const all = `${event.kind} ${event.model ?? ""} ${what} ${more}`.toLowerCase();
    return words.every((word) => all.includes(word));
  });
}
