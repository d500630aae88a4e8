/** What an event says, in a sentence. */

import type { MMEvent } from "../api/types";
import { count, duration } from "./quantities";

export type Tone = "good" | "busy" | "calm" | "bad";

export interface Told {
  what: string;
  /** What led to it or follows from it; may be empty. */
  more: string;
  tone: Tone;
}

const INSTANCE: Record<string, [string, Tone]> = {
  "instance.starting": ["starts", "busy"],
  "instance.ready": ["is ready", "good"],
  "instance.draining": ["takes no new requests", "busy"],
  "instance.suspending": ["falls asleep", "busy"],
  "instance.sleeping": ["sleeps", "calm"],
  "instance.waking": ["wakes", "busy"],
  "instance.stopping": ["is being stopped", "busy"],
  "instance.stopped": ["has stopped", "calm"],
  "instance.backoff": ["failed and will be tried again", "bad"],
  "instance.failed": ["has failed", "bad"],
};

export function tell(event: MMEvent): Told {
  const { kind, cause, data } = event;
  const model = event.model ?? "";
  const known = INSTANCE[kind];
  if (known !== undefined) {
    const [what, tone] = known;
    const took = typeof data["took_s"] === "number" ? ` after ${duration(data["took_s"])}` : "";
    return { what: `${model} ${what}${took}`, more: joined(cause, data["reason"]), tone };
  }
  switch (kind) {
    case "swap.planned": {
      const victims = list(data["victims"]);
      const room = victims.length > 0 ? `; ${victims.join(", ")} will make room` : "";
      return { what: `${model} will be loaded${room}`, more: joined(cause, data["reason"]), tone: "busy" };
    }
    case "swap.done": {
      const took = typeof data["took_s"] === "number" ? ` ${duration(data["took_s"])} after that was decided` : "";
      return { what: `${model} was loaded${took}`, more: joined(cause, data["reason"]), tone: "good" };
    }
    case "sleep.failed":
      return { what: `${model} did not sleep and is stopped`, more: joined(cause, data["reason"]), tone: "bad" };
    case "wake.failed":
      return { what: `${model} did not wake and is started anew`, more: joined(cause, data["reason"]), tone: "bad" };
    case "swap.refused":
      return { what: `${model} cannot be loaded`, more: cause, tone: "bad" };
    case "swap.withdrawn":
      return { what: `${model} is not wanted any more, and is not loaded`, more: cause, tone: "calm" };
    case "swap.given_up":
      return { what: `the load of ${model} was given up`, more: cause, tone: "bad" };
    case "footprint.exceeded":
      return { what: `${model} uses more memory than was reserved; the reservation follows`, more: "", tone: "calm" };
    case "lease.revoked": {
      const cut = typeof data["count"] === "number" ? data["count"] : 0;
      return { what: `${count(cut, "request", "requests")} to ${model} cut`, more: joined(cause, data["reason"]), tone: "bad" };
    }
    case "lease.frozen":
    case "lease.thawed": {
      const many = count(typeof data["count"] === "number" ? data["count"] : 0, "request", "requests");
      const still = typeof data["frozen_s"] === "number" ? ` after ${duration(data["frozen_s"])}` : "";
      return { what: kind === "lease.frozen" ? `${many} to ${model} frozen` : `${model} goes on with ${many}${still}`, more: cause, tone: "calm" };
    }
    case "orphan.swept":
      return { what: `process ${text(data["pid"])} (${text(data["name"])}) of ${model} was left over and is ended`, more: cause, tone: "bad" };
    case "lagged": {
      const lost = data["lost"];
      const what = typeof lost === "number" ? `${count(lost, "event", "events")} left out here` : "older events are gone";
      return { what, more: cause, tone: "calm" };
    }
    default: {
      const what = `${kind.replace(/[._]/g, " ")}${model === "" ? "" : `: ${model}`}`;
      return { what, more: joined(cause, data["reason"] ?? data["name"]), tone: kind.startsWith("alert.") ? "bad" : "calm" };
    }
  }
}

function joined(cause: string, reason: unknown): string {
  const why = text(reason);
  // The reason often repeats the cause in more words.
  return why === "" || cause.includes(why) ? cause : cause === "" || why.includes(cause) ? why : `${cause} · ${why}`;
}

function text(value: unknown): string {
  return typeof value === "string" || typeof value === "number" ? String(value) : "";
}

function list(value: unknown): string[] {
  return Array.isArray(value) ? value.map(text) : [];
}
