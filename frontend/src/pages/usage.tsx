import { useCallback, useMemo, useState } from "react";
import { query, useLook } from "../api/look";
import { useSession } from "../api/overview";
import type { Usage, UsageRow } from "../api/types";
import { duration } from "../format/quantities";
import { measured, MEASURES, nameOf, shares, type By, type Measure } from "../format/shares";
import { useSetting } from "../frame/address";
import { useTitle } from "../frame/shared";
import { StackedBars } from "../parts/chart";
import { DataTable, type Column } from "../parts/data-table";
import { Failed } from "../parts/failed";
import { Section } from "../parts/section";

const HOUR = 3600;
const DAY = 24 * HOUR;
const RANGES: Record<string, { title: string; span: number; step: number }> = {
  "24h": { title: "24 hours", span: DAY, step: HOUR },
  "7d": { title: "7 days", span: 7 * DAY, step: HOUR },
  "30d": { title: "30 days", span: 30 * DAY, step: DAY },
  "90d": { title: "90 days", span: 90 * DAY, step: DAY },
};
const TITLES: Record<Measure, string> = { tokens: "Tokens", requests: "Requests", device: "Device time", cost: "Cost" };
const COLOURS = ["c0", "c1", "c2", "c3", "c4", "foreign"];

/** Who used what, and how much. */
export default function UsagePage() {
  useTitle("Usage");
  const session = useSession();
  const [range, setRange] = useSetting("range", "7d");
  const [by, setBy] = useSetting("by", "model");
  const [measure, setMeasure] = useSetting("of", "tokens");
  const [error, setError] = useState<Error | null>(null);
  const { span, step } = RANGES[range] ?? { span: 7 * DAY, step: HOUR };
  const group: By = by === "key" ? "key" : "model";
  const of: Measure = MEASURES.find((name) => name === measure) ?? "tokens";
  // By the hour, so that the address of the answer stays the same for as long.
  const from = Math.floor((Date.now() / 1000 - span) / HOUR) * HOUR;
  const timed = useLook<Usage>(`api/usage${query({ group_by: `${group},${step === HOUR ? "hour" : "day"}`, from })}`, 30);
  const summed = useLook<Usage>(`api/usage${query({ group_by: group, from })}`, 30);
  const format = useCallback((value: number) => told(value, of), [of]);
  const drawn = useMemo(() => {
    const rows = (timed.data?.group_by ?? []).includes(group) ? (timed.data?.rows ?? []) : [];
    const { times, shares: found } = shares(rows, group, of, step, COLOURS.length, [from, from + span]);
    return { times, stacks: found.map((share, n) => ({ ...share, colour: COLOURS[n] ?? "foreign" })) };
  }, [timed.data, group, of, step, from, span]);
  const columns = useMemo(() => tableColumns(group), [group]);
  const save = async () => {
    try {
      const answer = await session.fetch(`api/usage${query({ group_by: "key,model,day", from, format: "csv" })}`);
      const address = URL.createObjectURL(await answer.blob());
      const link = document.createElement("a");
      link.href = address;
      link.download = "vllm-mm-usage.csv";
      link.click();
      URL.revokeObjectURL(address);
      setError(null);
    } catch (failure) {
      setError(failure as Error);
    }
  };
  const total = summed.data?.total;
  return (
    <>
      <div className="page-head">
        <h1>Usage</h1>
        <select aria-label="Time" value={range} onChange={(event) => setRange(event.target.value)}>
          {Object.entries(RANGES).map(([name, { title }]) => (
            <option key={name} value={name}>
              the last {title}
            </option>
          ))}
        </select>
        <select aria-label="Split by" value={group} onChange={(event) => setBy(event.target.value)}>
          <option value="model">by model</option>
          <option value="key">by key</option>
        </select>
        <select aria-label="What is counted" value={of} onChange={(event) => setMeasure(event.target.value)}>
          {MEASURES.map((name) => (
            <option key={name} value={name}>
              {TITLES[name]}
            </option>
          ))}
        </select>
        <button type="button" onClick={() => void save()}>
          CSV
        </button>
      </div>
      <Failed error={error ?? timed.error ?? summed.error} />
      <Section title={TITLES[of]} note={total === undefined ? undefined : `${told(measured(total, of), of)} in all, ${total.requests.toLocaleString()} requests`}>
        {drawn.times.length === 0 ? (
          <p className="empty chart">{timed.data === undefined ? "Asking the server…" : "Nothing was asked in this time."}</p>
        ) : (
          <>
            <StackedBars label={`${TITLES[of]} over time, by ${group}`} times={drawn.times} stacks={drawn.stacks} format={format} step={step} />
            <ul className="legend">
              {drawn.stacks.map((stack) => (
                <li key={stack.name}>
                  <span className={`swatch ${stack.colour === "foreign" ? "c-foreign" : stack.colour}`} aria-hidden="true" />
                  {stack.name} <b>{told(stack.total, of)}</b>
                </li>
              ))}
            </ul>
          </>
        )}
      </Section>
      <section aria-label={`By ${group}`}>
        <DataTable label={`Usage by ${group}`} rows={summed.data?.rows ?? []} columns={columns} id={(row) => `${row.key} ${row.model}`} empty="Nothing was asked in this time." />
      </section>
    </>
  );
}

function told(value: number, measure: Measure): string {
  if (measure === "device") return duration(value);
  if (measure === "cost") return value.toLocaleString(undefined, { maximumFractionDigits: value < 10 ? 4 : 2 });
  return value < 10_000 ? Math.round(value * 100) / 100 + "" : new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 }).format(value);
}

function tableColumns(by: By): readonly Column<UsageRow>[] {
  const number = (id: string, title: string, value: (row: UsageRow) => number | null, text: (value: number) => string = (n) => n.toLocaleString()): Column<UsageRow> => ({
    id, title, number: true, sort: value,
    cell: (row) => {
      const found = value(row);
      return found === null ? "–" : text(found);
    },
  });
  return [
    { id: "name", title: by === "model" ? "Model" : "Key", head: true, width: "24%", sort: (row) => nameOf(row, by), cell: (row) => nameOf(row, by) },
    number("requests", "Requests", (row) => row.requests),
    number("failed", "Not good", (row) => row.requests - (row.outcomes["ok"] ?? 0)),
    number("prompt", "Prompt tokens", (row) => row.prompt_tokens),
    number("cached", "Cached", (row) => row.cached_tokens),
    number("completion", "Answer tokens", (row) => row.completion_tokens),
    number("wait", "Mean wait", (row) => (row.requests === 0 ? null : row.queued_s / row.requests), duration),
    number("device", "Device time", (row) => row.device_s, duration),
    number("cost", "Cost", (row) => row.cost, (value) => told(value, "cost")),
  ];
}
