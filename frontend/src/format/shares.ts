/** Usage over time, split by who or what. */

import type { UsageRow } from "../api/types";

export type By = "model" | "key";
export const MEASURES = ["tokens", "requests", "device", "cost"] as const;
export type Measure = (typeof MEASURES)[number];

export function measured(row: UsageRow, measure: Measure): number {
  switch (measure) {
    case "tokens":
      return row.prompt_tokens + row.completion_tokens;
    case "requests":
      return row.requests;
    case "device":
      return row.device_s;
    case "cost":
      return row.cost ?? 0;
  }
}

export function nameOf(row: UsageRow, by: By): string {
  if (by === "model") return row.model ?? "no model";
  return row.key_name ?? row.key ?? "no key";
}

/** Unix seconds of the beginning of the row's day or hour. */
export function timeOf(row: UsageRow): number {
  return Date.parse(row.hour ?? `${row.day ?? ""}T00:00Z`) / 1000;
}

export interface Shares {
  times: number[];
  /** The largest first; beyond `most`, the last one is all the others. */
  shares: { name: string; values: number[]; total: number }[];
}

/** Times without a row count 0: the server leaves out hours in which nothing was asked. `span`: from and to, in Unix seconds, which
 *  are shown at least. */
export function shares(rows: readonly UsageRow[], by: By, measure: Measure, step: number, most: number, span?: readonly [number, number]): Shares {
  const found = rows.map((row) => ({ name: nameOf(row, by), at: timeOf(row), value: measured(row, measure) }));
  if (found.length === 0) return { times: [], shares: [] };
  const moments = [...found.map((f) => f.at), ...(span ?? []).map((at) => Math.floor(at / step) * step)];
  const [first, last] = [Math.min(...moments), Math.max(...moments)];
  const times = Array.from({ length: Math.round((last - first) / step) + 1 }, (_, n) => first + n * step);
  const totals = new Map<string, number>();
  for (const { name, value } of found) totals.set(name, (totals.get(name) ?? 0) + value);
  const order = [...totals].sort((a, b) => b[1] - a[1]).map(([name]) => name);
  const own = new Map(order.map((name, n) => [name, order.length > most && n >= most - 1 ? most - 1 : n]));
  const made = Array.from({ length: Math.min(order.length, most) }, (_, n) => ({
    name: order.length > most && n === most - 1 ? `${order.length - most + 1} others` : (order[n] ?? ""),
    values: times.map(() => 0),
    total: 0,
  }));
  for (const { name, at, value } of found) {
    const share = made[own.get(name) ?? 0];
    const place = Math.round((at - first) / step);
    if (share === undefined) continue;
    share.values[place] = (share.values[place] ?? 0) + value;
    share.total += value;
  }
  return { times, shares: made };
}
