import { expect, it } from "vitest";
import type { Series } from "../api/types";
import { asked, inUnit, linesOf, localMoment, markText, stackOf, summary } from "./series";

function series(lines: [metric: string, model: string | null, device: string | null, values: (number | null)[]][]): Series {
  return {
    since: 0, step: 10, at: [0, 10, 20], marks: [], marks_left_out: false,
    lines: lines.map(([metric, model, device, values]) => ({ metric, model, device, values, unit: "" })) as Series["lines"],
  };
}

it("asks for a range by its name, and for two moments as they are", () => {
  expect(asked("6h", "", "")).toEqual({ from: "6h", every: 60 });
  expect(asked("nonsense", "", "")).toEqual({ from: "1h", every: 10 });
  expect(asked("custom", localMoment(600), localMoment(1200))).toEqual({ from: "600", to: "1200" });
  expect(asked("custom", localMoment(1200), localMoment(600))).toBeNull();
  expect(asked("custom", "", "x")).toBeNull();
});

it("gives each model a colour, and leaves those with the least out where there are too many", () => {
  const many = series([..."abcdefgh"].map((name, n) => ["tokens", name, null, [n, null, 1]]));
  const { lines, left } = linesOf(many, { tokens: "" });
  expect(lines.map(({ name }) => name).join("")).toBe("cdefgh");
  expect(left).toBe(2);
  expect(new Set(lines.map(({ colour }) => colour)).size).toBe(6);
  const two = linesOf(series([["ttft_p50", "a", null, [1]], ["ttft_p95", "a", null, [2]]]), { ttft_p95: "p95", ttft_p50: "p50" });
  expect(two.lines.map(({ name, dashed, colour }) => [name, dashed, colour])).toEqual([["a, p50", true, "c0"], ["a, p95", false, "c0"]]);
});

it("stacks a device's memory: who is not there holds nothing, and what is not known is a gap", () => {
  const found = stackOf(
    series([
      ["memory", "b", "0", [5, null, null]],
      ["memory", "a", "0", [null, null, 3]],
      ["memory", "a", "1", [9, 9, 9]],
      ["free", null, "0", [1, null, 1]],
      ["foreign", null, "0", [2, null, 0]],
    ]),
    "0",
  );
  expect(found.map(({ name, values }) => [name, values])).toEqual([
    ["a", [0, null, 3]],
    ["b", [5, null, 0]],
    ["other programs", [2, null, 0]],
  ]);
  const many = stackOf(series([..."abcdefg"].map((name) => ["memory", name, "0", [1, null, 2]])), "0");
  expect(many.at(-1)).toMatchObject({ name: "2 more models", values: [2, null, 4] });
});

it("says a line in numbers", () => {
  expect(summary([1, null, 5, 3])).toEqual({ last: 3, mean: 3, most: 5 });
  expect(summary([1, null, null])).toEqual({ last: 1, mean: 1, most: 1 });
  expect(summary([1, null, null, null, null])).toEqual({ last: null, mean: 1, most: 1 });
  expect(summary([null])).toEqual({ last: null, mean: null, most: null });
  expect([inUnit(0.0123, "s"), inUnit(2.345, "s"), inUnit(0.5, "share"), inUnit(2 ** 30, "bytes"), inUnit(0, "tokens/s"), inUnit(123.4, "x")]).toEqual([
    "12 ms", "2.3 s", "50 %", "1.0 GiB", "0", "123",
  ]);
});

it("tells marks without codes", () => {
  expect(markText({ at: 1, kind: "load", model: "a", reason: "cold: it waits", victims: ["b", "c"] })).toBe("it waits; b, c made room");
});
