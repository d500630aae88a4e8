/** Time series as charts show them: ranges of time, and lines without what nobody knows. */

import type { Series, SeriesMark } from "../api/types";
import { bytes } from "./quantities";

export const RANGES: readonly (readonly [name: string, title: string])[] = [
  ["15m", "15 minutes"],
  ["1h", "hour"],
  ["6h", "6 hours"],
  ["24h", "24 hours"],
  ["7d", "7 days"],
];
const MINUTE = 60;

/** What is asked of the server for a range of the address, and how often: the end of one that was chosen by hand stands still. */
export function asked(range: string, from: string, to: string): { from?: string; to?: string; every?: number } | null {
  if (range !== "custom") {
    const known = RANGES.some(([name]) => name === range) ? range : "1h";
    return { from: known, every: known === "15m" || known === "1h" ? 10 : MINUTE };
  }
  const [begin, end] = [moment(from), moment(to)];
  if (begin === null || end === null || begin >= end) return null;
  return { from: String(begin), to: String(end) };
}

/** Unix seconds of what a field for date and time holds. */
function moment(text: string): number | null {
  const time = new Date(text).getTime();
  return Number.isNaN(time) ? null : Math.floor(time / 1000);
}

/** For such a field, in the time of this browser. */
export function localMoment(seconds: number): string {
  const date = new Date(seconds * 1000);
  return new Date(seconds * 1000 - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

export interface Line {
  name: string;
  values: readonly (number | null)[];
  colour: string;
  dashed?: boolean;
}

export const COLOURS = ["c0", "c1", "c2", "c3", "c4", "c5"] as const;

/** Lines of some metrics, a colour for each model; where there are more models than colours, those with the most. `left` are the others. */
export function linesOf(series: Series, metrics: Readonly<Record<string, string>>): { lines: Line[]; left: number } {
  const found = series.lines.filter(({ metric }) => metric in metrics);
  const most = new Map<string, number>();
  for (const { model, values } of found) most.set(model ?? "", Math.max(most.get(model ?? "") ?? 0, ...values.map((value) => value ?? 0)));
  const models = [...most.keys()].sort((a, b) => (most.get(b) ?? 0) - (most.get(a) ?? 0)).slice(0, COLOURS.length).sort();
  const lines = found
    .filter(({ model }) => models.includes(model ?? ""))
    .map(({ model, metric, values }) => {
      const first = Object.keys(metrics)[0] === metric;
      return { name: [model, metrics[metric]].filter((word) => word).join(", "), values, colour: COLOURS[models.indexOf(model ?? "")] ?? "c0", dashed: !first };
    })
    .sort((a, b) => (a.name < b.name ? -1 : 1));
  return { lines, left: most.size - models.length };
}

/** The memory of one device: models, those with the most first and the rest as one, then what others use. */
export function stackOf(series: Series, device: string): Line[] {
  const here = series.lines.filter((line) => line.device === device);
  const models = here.filter(({ metric }) => metric === "memory").map(({ model, values }) => ({ name: model ?? "", values }));
  const size = (values: readonly (number | null)[]) => values.reduce((sum: number, value) => sum + (value ?? 0), 0);
  models.sort((a, b) => size(b.values) - size(a.values));
  const [shown, rest] = [models.slice(0, COLOURS.length - 1), models.slice(COLOURS.length - 1)];
  const lines: Line[] = shown.sort((a, b) => (a.name < b.name ? -1 : 1)).map((line, n) => ({ ...line, colour: COLOURS[n] ?? "c0" }));
  if (rest.length > 0) lines.push({ name: `${rest.length} more models`, values: series.at.map((_, n) => sum(rest.map(({ values }) => values[n] ?? null))), colour: "c5" });
  const foreign = here.find(({ metric }) => metric === "foreign");
  if (foreign !== undefined && size(foreign.values) > 0) lines.push({ name: "other programs", values: foreign.values, colour: "foreign" });
  // What is known of the device at all: a model that is not there holds nothing, and that is no gap.
  const known = here.find(({ metric }) => metric === "free")?.values ?? [];
  return lines.map((line) => ({ ...line, values: line.values.map((value, n) => value ?? (known[n] == null ? null : 0)) }));
}

function sum(values: readonly (number | null)[]): number | null {
  return values.every((value) => value === null) ? null : values.reduce((total: number, value) => total + (value ?? 0), 0);
}

const RECENT = 4;

/** What a line says in three numbers. The samples of this moment come a few points later. */
export function summary(values: readonly (number | null)[]): { last: number | null; mean: number | null; most: number | null } {
  const known = values.filter((value) => value !== null);
  if (known.length === 0) return { last: null, mean: null, most: null };
  return { last: values.slice(-RECENT).findLast((value) => value !== null) ?? null, mean: known.reduce((a, b) => a + b, 0) / known.length, most: Math.max(...known) };
}

/** A value for people, by its unit. */
export function inUnit(value: number, unit: string): string {
  if (unit === "bytes") return bytes(value);
  if (unit === "share") return `${Math.round(value * 100)} %`;
  if (unit === "s") return value < 1 ? `${figures(value * 1000)} ms` : `${figures(value)} s`;
  return figures(value);
}

function figures(value: number): string {
  if (value >= 10_000) return new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 }).format(value);
  return value >= 100 || Number.isInteger(value) ? String(Math.round(value)) : String(Number(value.toPrecision(2)));
}

/** Letters for what was done, which stand above a chart: colour alone tells nothing. */
export const MARKS: Record<string, { letter: string; title: string; colour: string }> = {
  load: { letter: "L", title: "load", colour: "accent" },
  ready: { letter: "R", title: "ready", colour: "good" },
  sleep: { letter: "Z", title: "sleep", colour: "soft" },
  stop: { letter: "S", title: "stop", colour: "soft" },
  failed: { letter: "F", title: "failed", colour: "bad" },
};

/** What a mark says, without the scheduler's code. */
export function markText(mark: SeriesMark): string {
  const reason = mark.reason.replace(/^[a-z_]+: /, "");
  const going = mark.victims.length === 0 ? "" : `; ${mark.victims.join(", ")} made room`;
  return `${reason}${going}`;
}
