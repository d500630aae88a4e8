import { useEffect } from "react";
import { useLook } from "../../api/look";
import { modelPath } from "../../api/paths";
import type { History, Start } from "../../api/types";
import { duration } from "../../format/quantities";
import { DataTable, type Column } from "../data-table";
import { Failed } from "../failed";
import { Moment } from "../moment";
import { Prose } from "../prose";
import { Section } from "../section";

const COLUMNS: readonly Column<Start>[] = [
  { id: "launch", title: "Launch", head: true, width: "5rem", sort: (start) => start.generation, cell: (start) => start.generation },
  { id: "when", title: "Began", width: "8.5rem", sort: (start) => start.started_at, cell: (start) => <Moment at={start.started_at} /> },
  { id: "outcome", title: "Came to", width: "7rem", sort: (start) => start.outcome, cell: (start) => <span className={start.outcome === "failed" ? "bad" : undefined}>{start.outcome}</span> },
  {
    id: "took",
    title: "Took",
    number: true,
    width: "6rem",
    sort: (start) => (start.ready_at === null ? null : start.ready_at - start.started_at),
    cell: (start) => (start.ready_at === null ? "–" : duration(start.ready_at - start.started_at)),
  },
  { id: "phases", title: "Phases", cell: (start) => <Phases phases={start.phases} /> },
  {
    id: "reason",
    title: "Why",
    cell: (start) => (
      <span className="why">
        <Prose text={[start.reason, start.launcher].filter((part) => part !== "").join(" · ")} />
      </span>
    ),
  },
];

/** The launches of a model, each with the times of its phases. */
export function Starts({ model, seen }: { model: string; seen: number | undefined }) {
  const { data, error, refetch } = useLook<History>(modelPath(model, "history"));
  useEffect(() => void refetch(), [seen, refetch]);
  return (
    <Section title="Starts" note="the newest first">
      <Failed error={error} />
      {data !== undefined && (
        <DataTable label={`Starts of ${model}`} rows={data.starts} columns={COLUMNS} id={(start) => `${start.generation} ${start.started_at}`} empty="It was never started." />
      )}
    </Section>
  );
}

function Phases({ phases }: { phases: Start["phases"] }) {
  const found = Object.entries(phases).filter(([, seconds]) => seconds > 0);
  const whole = found.reduce((sum, [, seconds]) => sum + seconds, 0);
  if (found.length === 0) return "–";
  return (
    <div className="phases">
      <div className="bar thin" aria-hidden="true">
        {found.map(([name, seconds], n) => (
          <span key={name} className={`c${n % 6}`} style={{ width: `${(100 * seconds) / whole}%` }} />
        ))}
      </div>
      <ul className="legend">
        {found.map(([name, seconds], n) => (
          <li key={name}>
            <span className={`swatch c${n % 6}`} aria-hidden="true" />
            {name} <b>{duration(seconds)}</b>
          </li>
        ))}
      </ul>
    </div>
  );
}
