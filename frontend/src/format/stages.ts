/** What the time of a request went into, one after the other. */

import type { RequestRow, Running } from "../api/types";

export interface Stage {
  name: string;
  /** Seconds after it arrived. */
  from: number;
  took: number;
  look: string;
}

type Timed = Pick<RequestRow, "queued_s" | "load_s" | "ttft_s" | "total_s" | "frozen_s" | "stream">;

/** Of one that is not over: the last stage is the one that it is in, and ends now. */
export function stagesSoFar(row: Running): Stage[] {
  const { stage, total_s } = row;
  if (stage === "arrives" || stage === "waits") return [{ name: stage === "waits" ? "waits" : "arrives", from: 0, took: total_s, look: "c1 hatched" }];
  // Without a first token all that is behind the lease is the prompt's.
  return stages(stage === "prompt" ? { ...row, stream: true, ttft_s: total_s } : row);
}

export function stages(row: Timed): Stage[] {
  const found: Stage[] = [];
  let at = 0;
  const add = (name: string, until: number, look: string) => {
    const end = Math.min(Math.max(until, at), row.total_s);
    if (end > at) found.push({ name, from: at, took: end - at, look });
    at = Math.max(at, end);
  };
  const queued = row.queued_s ?? 0;
  // A load is a part of the time in the queue.
  add("waited", queued - Math.min(row.load_s ?? 0, queued), "c1 hatched");
  add("load", queued, "c1");
  // `ttft_s` is reckoned from the arrival.
  // Of an answer in one piece nobody knows when its first token was made.
  const streamed = row.stream && row.ttft_s !== null;
  if (streamed) add("prompt", row.ttft_s ?? 0, "c0");
  add(streamed ? "tokens" : "answer", row.total_s, "c2");
  return found;
}
