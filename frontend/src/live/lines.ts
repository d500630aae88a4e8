/** The lines of an engine's log as they come. */

import { Refused, type Session } from "../api/session";
import { SseParser } from "./sse";

export interface Line {
  n: number;
  text: string;
}

/** How many are kept; the oldest go first. */
export const LINES = 5000;
const GATHER = 100; // ms
const AGAIN = 2000; // ms until a stream that ended is opened again

/** Calls `show` with all lines, at most ten times a second, until `stop`. */
export async function follow(session: Session, path: string, stop: AbortSignal, show: (lines: readonly Line[], trouble: string | null) => void): Promise<void> {
  let lines: Line[] = [];
  let n = 0;
  let timer: ReturnType<typeof setTimeout> | null = null;
  const later = () => {
    timer ??= setTimeout(() => {
      timer = null;
      if (!stop.aborted) show(lines, null);
    }, GATHER);
  };
  while (!stop.aborted) {
    try {
      const answer = await session.fetch(path, { headers: { Accept: "text/event-stream" }, signal: stop });
      // What comes again after a broken connection is what was there: the story begins anew.
      lines = [];
      show(lines, null);
      const parser = new SseParser();
      const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
      for (let read = await reader?.read(); read !== undefined && !read.done; read = await reader?.read()) {
        const fresh = parser.push(read.value).map((sent) => ({
          n: n++,
          text: sent.kind === "dropped" ? `… ${sent.data} lines left out here …` : (JSON.parse(sent.data) as string),
        }));
        if (fresh.length === 0) continue;
        lines = [...lines, ...fresh].slice(-LINES);
        later();
      }
      if (!path.includes("follow=1")) return;
    } catch (error) {
      if (stop.aborted) return;
      show(lines, error instanceof Error ? error.message : String(error));
      if (error instanceof Refused && error.status < 500) return;
    }
    await new Promise((resolve) => setTimeout(resolve, AGAIN));
  }
}
