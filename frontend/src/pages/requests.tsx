import { useInfiniteQuery } from "@tanstack/react-query";
import { useEffect, useMemo } from "react";
import { Link } from "wouter";
import { query } from "../api/look";
import { useAccess, useOverview, useSession } from "../api/overview";
import type { Outcome, RequestRow, Requests } from "../api/types";
import { duration } from "../format/quantities";
import { stages } from "../format/stages";
import { modelPage, useSetting } from "../frame/address";
import { useTitle } from "../frame/shared";
import { DataTable, type Column } from "../parts/data-table";
import { Failed } from "../parts/failed";
import { Moment } from "../parts/moment";
import { RequestDetails } from "../parts/request";
import { UnderWay } from "../parts/under-way";
import { StageBar } from "../parts/waterfall";

const PAGE = 200;
const LOOK = 1000; // ms; oftener, a busy server's rows would take the page's time
const OUTCOMES: readonly Outcome[] = [
  "ok", "upstream_error", "bad_request", "refused", "queue_full", "wait_expired", "start_failed", "torn_down", "client_gone", "upstream_died", "cut", "timeout", "shutdown", "internal",
];

/** What runs and waits, and the ledger of what is over. */
export default function RequestsPage() {
  useTitle("Requests");
  const session = useSession();
  const { wanted } = useAccess();
  const { data: overview } = useOverview();
  const [model, setModel] = useSetting("model");
  const [outcome, setOutcome] = useSetting("outcome");
  const [key] = useSetting("key");
  const [search, setSearch] = useSetting("q");
  const [shown, setShown] = useSetting("request");
  const pages = useInfiniteQuery({
    queryKey: ["requests", model, outcome, key],
    enabled: wanted === null,
    initialPageParam: null as number | null,
    queryFn: ({ pageParam, signal }) => session.get<Requests>(`api/requests${query({ limit: PAGE, before: pageParam, model, outcome, key })}`, signal),
    getNextPageParam: (page) => page.next,
  });
  const { refetch, isFetching } = pages;
  // The ledger grows when a request ends. While somebody reads further back it stays as it is.
  const far = (pages.data?.pages.length ?? 0) > 1;
  useEffect(() => {
    if (far) return;
    const timer = setInterval(() => void refetch(), LOOK);
    return () => clearInterval(timer);
  }, [far, refetch]);

  const columns = useMemo<readonly Column<RequestRow>[]>(
    () => [
      { id: "at", title: "Came", width: "8.5rem", sort: (row) => row.at, cell: (row) => <Moment at={row.at} /> },
      {
        id: "id",
        title: "Request",
        head: true,
        width: "11rem",
        cell: (row) => (
          <button type="button" className="plain id" onClick={() => setShown(row.id)}>
            {row.id}
          </button>
        ),
      },
      { id: "model", title: "Model", sort: (row) => row.model, cell: (row) => (row.model === null ? <span className="note">{row.asked ?? "none"}</span> : <Link href={modelPage(row.model)}>{row.model}</Link>) },
      { id: "outcome", title: "Outcome", width: "8rem", sort: (row) => row.outcome, cell: (row) => <OutcomeMark row={row} /> },
      { id: "tokens", title: "Tokens", number: true, width: "7rem", sort: (row) => (row.prompt_tokens ?? 0) + (row.completion_tokens ?? 0), cell: (row) => `${row.prompt_tokens ?? "–"} → ${row.completion_tokens ?? "–"}` },
      { id: "ttft", title: "TTFT", number: true, width: "5.5rem", sort: (row) => row.ttft_s, cell: (row) => (row.ttft_s === null ? "–" : duration(row.ttft_s)) },
      { id: "took", title: "Took", number: true, width: "5.5rem", sort: (row) => row.total_s, cell: (row) => duration(row.total_s) },
      { id: "stages", title: "(Stages)", width: "14%", cell: (row) => <StageBar stages={stages(row)} whole={row.total_s} /> },
    ],
    [setShown],
  );
  const all = useMemo(() => pages.data?.pages.flatMap((page) => page.requests) ?? [], [pages.data]);
  const rows = useMemo(() => {
    const words = search.toLowerCase().split(/\s+/);
    return all.filter((row) => {
      const text = [row.id, row.request_id, row.model, row.asked, row.key, row.route, row.error, row.outcome].join(" ").toLowerCase();
      return words.every((word) => text.includes(word));
    });
  }, [all, search]);
  const found = all.find((row) => row.id === shown);
  return (
    <>
      <div className="page-head">
        <h1>Requests</h1>
        <input type="search" aria-label="Search requests" placeholder="Search: id, key, route, error…" value={search} onChange={(event) => setSearch(event.target.value)} />
        <select aria-label="Model" value={model} onChange={(event) => setModel(event.target.value)}>
          <option value="">all models</option>
          {(overview?.models ?? []).map(({ id }) => (
            <option key={id}>{id}</option>
          ))}
        </select>
        <select aria-label="Outcome" value={outcome} onChange={(event) => setOutcome(event.target.value)}>
          <option value="">all outcomes</option>
          {OUTCOMES.map((name) => (
            <option key={name} value={name}>
              {name.replace(/_/g, " ")}
            </option>
          ))}
        </select>
      </div>
      <UnderWay shown={shown} onShow={setShown} />
      <Failed error={pages.error} />
      <section aria-label="The ledger">
        <DataTable
          label="Requests that are over"
          rows={rows}
          columns={columns}
          id={(row) => row.id}
          empty={pages.data === undefined ? "Asking the server…" : all.length > 0 || model !== "" || outcome !== "" ? "No request fits." : <>No request is over yet. Send one in the <Link href="/playground">playground</Link>.</>}
        />
        <p className="table-foot note">
          <span className="legend">
            <Swatch look="c1 hatched" name="waited" /> <Swatch look="c1" name="load" /> <Swatch look="c0" name="prompt" /> <Swatch look="c2" name="tokens, or the answer" />
          </span>
          {pages.hasNextPage && (
            <button type="button" disabled={isFetching} onClick={() => void pages.fetchNextPage()}>
              Older ones
            </button>
          )}
        </p>
      </section>
      {found !== undefined && <RequestDetails row={found} onClose={() => setShown("")} />}
    </>
  );
}

function Swatch({ look, name }: { look: string; name: string }) {
  return (
    <span>
      <span className={`swatch ${look}`} aria-hidden="true" />
      {name}
    </span>
  );
}

function OutcomeMark({ row }: { row: RequestRow }) {
  const tone = row.outcome === "ok" ? "good" : row.outcome === "client_gone" || row.outcome === "bad_request" || row.outcome === "refused" ? "busy" : "bad";
  return (
    <span className={tone} title={row.error ?? undefined}>
      {row.outcome.replace(/_/g, " ")} <span className="note">{row.status}</span>
    </span>
  );
}
