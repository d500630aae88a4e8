import { expect, it } from "vitest";
import type { UsageRow } from "../api/types";
import { shares } from "./shares";

const row = (model: string, day: string, requests: number): UsageRow => ({
  model, day, requests, hour: null, key: null, key_name: null, outcomes: {}, prompt_tokens: 0, cached_tokens: 0, completion_tokens: 0, reasoning_tokens: 0, total_s: 0, queued_s: 0, load_s: 0, device_s: 0, energy_j: null, cost: null,
});
const DAY = 86_400;

it("puts days without use at nothing, and the largest first", () => {
  const { times, shares: found } = shares([row("a", "2026-01-01", 1), row("b", "2026-01-03", 5)], "model", "requests", DAY, 6);
  expect(times).toHaveLength(3);
  expect(found).toEqual([
    { name: "b", values: [0, 0, 5], total: 5 },
    { name: "a", values: [1, 0, 0], total: 1 },
  ]);
});

it("gathers the small ones, and loses none", () => {
  const { shares: found } = shares(["a", "b", "c", "d"].map((name, n) => row(name, "2026-01-01", 4 - n)), "model", "requests", DAY, 3);
  expect(found.map(({ name, total }) => [name, total])).toEqual([["a", 4], ["b", 3], ["2 others", 3]]);
});

it("begins and ends with the time that is looked at", () => {
  const { times, shares: found } = shares([row("a", "2026-01-02", 1)], "model", "requests", DAY, 6, [Date.parse("2026-01-01T10:00Z") / 1000, Date.parse("2026-01-03T10:00Z") / 1000]);
  expect(times.map((at) => new Date(at * 1000).toISOString().slice(0, 10))).toEqual(["2026-01-01", "2026-01-02", "2026-01-03"]);
  expect(found[0]?.values).toEqual([0, 1, 0]);
});

it("is empty without rows", () => expect(shares([], "key", "tokens", DAY, 6)).toEqual({ times: [], shares: [] }));
