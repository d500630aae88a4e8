import { expect, it } from "vitest";
import { stages } from "./stages";

const row = { queued_s: 3, load_s: 2, ttft_s: 3.5, total_s: 5, frozen_s: 0, stream: true };
const told = (change: Partial<typeof row> | object) => stages({ ...row, ...change }).map(({ name, from, took }) => [name, from, took]);

it("tells a request that waited for a load", () =>
  expect(told({})).toEqual([
    ["waited", 0, 1],
    ["load", 1, 2],
    ["prompt", 3, 0.5],
    ["tokens", 3.5, 1.5],
  ]));

it("leaves out what there was not", () => {
  expect(told({ queued_s: 0, load_s: 0 })).toEqual([
    ["prompt", 0, 3.5],
    ["tokens", 3.5, 1.5],
  ]);
  expect(told({ queued_s: null, load_s: null, ttft_s: null })).toEqual([["answer", 0, 5]]);
  expect(told({ queued_s: 0, load_s: 0, stream: false })).toEqual([["answer", 0, 5]]);
  expect(told({ queued_s: 5, load_s: null, ttft_s: null })).toEqual([["waited", 0, 5]]);
});

it("never goes beyond the end", () => expect(told({ ttft_s: 9 }).at(-1)).toEqual(["prompt", 3, 2]));
