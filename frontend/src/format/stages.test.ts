import { expect, it } from "vitest";
import type { Running } from "../api/types";
import { stages, stagesSoFar } from "./stages";

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

it("tells one that is not over up to now, stage by stage", () => {
  const running = (change: Partial<Running>): Running => ({
    id: "r", request_id: "r", at: 0, route: "", model: "a", asked: "a", key: null, generation: 1, bytes_in: 0, bytes_out: 0,
    frozen: false, retried: false, ending: false, ...row, stage: "answers", ...change,
  });
  const so = (change: Partial<Running>) => stagesSoFar(running(change)).map(({ name, from, took }) => [name, from, took]);
  expect(so({ stage: "arrives", queued_s: null, load_s: null, ttft_s: null })).toEqual([["arrives", 0, 5]]);
  expect(so({ stage: "waits", queued_s: null, load_s: null, ttft_s: null })).toEqual([["waits", 0, 5]]);
  expect(so({ stage: "prompt", ttft_s: null, stream: false })).toEqual([
    ["waited", 0, 1],
    ["load", 1, 2],
    ["prompt", 3, 2],
  ]);
  expect(so({}).at(-1)).toEqual(["tokens", 3.5, 1.5]);
  expect(so({ stream: false }).at(-1)).toEqual(["answer", 3, 2]);
});
