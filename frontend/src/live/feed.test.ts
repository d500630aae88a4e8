import { describe, expect, it } from "vitest";
import type { MMEvent } from "../api/types";
import { backoff, KEPT, merge } from "./feed";

const event = (seq: number): MMEvent => ({ seq, at: 0, kind: "instance.ready", model: "a", cause: "", data: {} });
const numbers = (events: readonly MMEvent[]) => events.map((e) => e.seq);

describe("merge", () => {
  it("puts the newest first", () => {
    expect(numbers(merge([event(2), event(1)], [event(3), event(5)]))).toEqual([5, 3, 2, 1]);
  });

  it("keeps a bounded number", () => {
    const many = Array.from({ length: KEPT + 5 }, (_, n) => event(n + 1));
    expect(numbers(merge([], many))).toHaveLength(KEPT);
    expect(merge([], many)[0]?.seq).toBe(KEPT + 5);
  });

  it("begins anew when the numbers do", () => {
    expect(numbers(merge([event(90)], [event(1), event(2)]))).toEqual([2, 1]);
  });
});

describe("backoff", () => {
  it("grows to ten seconds, spread over its upper half", () => {
    expect([0, 1, 2, 20].map((n) => backoff(n, 1))).toEqual([500, 1000, 2000, 10_000]);
    expect(backoff(0, 0)).toBe(250);
  });
});
