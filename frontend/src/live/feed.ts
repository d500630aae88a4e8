/** The server's events as they come, over a stream that is opened again whenever it ends. */

import { Refused, type Session } from "../api/session";
import type { MMEvent } from "../api/types";
import { SseParser } from "./sse";

export type Connection =
  | { kind: "connecting" }
  | { kind: "live" }
  | { kind: "waiting"; until: number; why: string }
  | { kind: "refused"; why: string };

export interface Feed {
  connection: Connection;
  /** When the stream was last known to be good, in ms; null before the first time. */
  goodAt: number | null;
  /** The server has told what happened before: without events there were none. */
  told: boolean;
  /** The latest, the newest first. */
  events: readonly MMEvent[];
}

export const KEPT = 200;
const TAIL = 50; // events asked for at the first connection
const SILENCE = 40_000; // ms; the server sends a comment after 15 s without an event
const GATHER = 250; // ms in which events are collected before they are shown
const FIRST_WAIT = 500;
const LONGEST_WAIT = 10_000;

/** ms before attempt number `attempt` (from 0), spread so that many tabs do not come back in one moment. */
export function backoff(attempt: number, random: number): number {
  return Math.min(LONGEST_WAIT, FIRST_WAIT * 2 ** attempt) * (0.5 + random / 2);
}

/** `shown` and what came after it. A number that is not above the last one comes from another database: its story
 *  begins anew. (A `lagged` marker bears the number of the last event that was lost.) */
export function merge(shown: readonly MMEvent[], fresh: readonly MMEvent[]): readonly MMEvent[] {
  let merged = [...shown];
  for (const event of fresh) {
    const last = merged[0];
    if (last !== undefined && event.seq <= last.seq) merged = [];
    merged.unshift(event);
  }
  return merged.slice(0, KEPT);
}

export class LiveFeed {
  #feed: Feed = { connection: { kind: "connecting" }, goodAt: null, told: false, events: [] };
  #last: number | null = null;
  #pending: MMEvent[] = [];
  #timer: ReturnType<typeof setTimeout> | null = null;
  readonly #listeners = new Set<() => void>();

  constructor(
    private readonly session: Session,
    private readonly onEvents: () => void,
  ) {}

  readonly snapshot = (): Feed => this.#feed;

  readonly subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  /** Connect, and stay connected until the function that is returned is called. */
  start(): () => void {
    const stop = new AbortController();
    void this.#run(stop.signal);
    return () => {
      stop.abort();
      if (this.#timer !== null) clearTimeout(this.#timer);
      this.#timer = null;
      this.#flush();
    };
  }

  async #run(stop: AbortSignal): Promise<void> {
    for (let attempt = 0; !stop.aborted; attempt++) {
      this.#show({ connection: { kind: "connecting" } });
      let why = "The server closed the connection.";
      try {
        await this.#follow(stop);
        attempt = -1;
      } catch (error) {
        if (stop.aborted) return;
        if (this.#feed.connection.kind === "live") attempt = -1;
        why = error instanceof Error ? error.message : String(error);
        if (error instanceof Refused && error.status < 500 && error.status !== 429) {
          this.#show({ connection: { kind: "refused", why } });
          return; // until another key is entered, which starts the feed again
        }
      }
      if (stop.aborted) return;
      const wait = backoff(attempt + 1, Math.random());
      this.#show({ connection: { kind: "waiting", until: Date.now() + wait, why } });
      await pause(wait, stop);
    }
  }

  async #follow(stop: AbortSignal): Promise<void> {
    const silent = new AbortController();
    let alarm = setTimeout(() => silent.abort(), SILENCE);
    const signal = AbortSignal.any([stop, silent.signal]);
    // The tail is for the first time, and for a server that has another database by now.
    const path = `api/events?tail=${TAIL}`;
    const headers: HeadersInit = { Accept: "text/event-stream" };
    if (this.#last !== null) headers["Last-Event-ID"] = String(this.#last);
    try {
      const answer = await this.session.fetch(path, { headers, signal });
      if (answer.body === null) return;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      const parser = new SseParser();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(alarm);
        alarm = setTimeout(() => silent.abort(), SILENCE);
        if (this.#feed.connection.kind !== "live") this.#show({ connection: { kind: "live" } });
        for (const sent of parser.push(value)) this.#take(JSON.parse(sent.data) as MMEvent);
        // What there was before is shown at once; only what comes later is gathered.
        if (!this.#feed.told) this.#later(this.#pending.length > 0 ? 0 : GATHER);
      }
    } catch (error) {
      if (silent.signal.aborted) throw new Error("The connection was silent for 40 s.", { cause: error });
      throw error instanceof TypeError ? new Error("The connection broke.", { cause: error }) : error;
    } finally {
      clearTimeout(alarm);
      this.#show({ goodAt: this.#feed.connection.kind === "live" ? Date.now() : this.#feed.goodAt });
    }
  }

  #take(event: MMEvent): void {
    this.#last = event.seq;
    this.#pending.push(event);
    this.#later(GATHER);
  }

  #later(ms: number): void {
    if (this.#timer !== null && ms > 0) return;
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#timer = null;
      this.#flush();
      if (!this.#feed.told) this.#show({ told: true });
    }, ms);
  }

  #flush(): void {
    if (this.#pending.length === 0) return;
    const fresh = this.#pending;
    this.#pending = [];
    this.#show({ told: true, events: merge(this.#feed.events, fresh) });
    this.onEvents();
  }

  #show(change: Partial<Feed>): void {
    this.#feed = { ...this.#feed, ...change };
    for (const listener of this.#listeners) listener();
  }
}

/** Wait `ms`, or less: until `stop`, or until the network or the tab comes back. */
function pause(ms: number, stop: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const over = new AbortController();
    const done = () => {
      clearTimeout(timer);
      over.abort();
      resolve();
    };
    const timer = setTimeout(done, ms);
    stop.addEventListener("abort", done, { signal: over.signal });
    window.addEventListener("online", done, { signal: over.signal });
    document.addEventListener("visibilitychange", () => !document.hidden && done(), { signal: over.signal });
  });
}
