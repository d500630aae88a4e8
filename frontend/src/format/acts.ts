/** Which acts a model's row offers, and what is said before one is confirmed. What is allowed is the server's to say. */

import type { Instance, Plan, State } from "../api/types";
import { about, count } from "./quantities";

export type Act = "start" | "stop" | "sleep" | "wake" | "pin" | "unpin";

export const LABELS: Record<Act, string> = {
  start: "Start",
  stop: "Stop",
  sleep: "Sleep",
  wake: "Wake",
  pin: "Pin",
  unpin: "Unpin",
};

const MAIN: Record<State, Act | null> = {
  stopped: "start",
  failed: "start",
  backoff: "start",
  sleeping: "wake",
  ready: "sleep",
  starting: null,
  waking: null,
  draining: null,
  suspending: null,
  stopping: null,
};

const LIVE: ReadonlySet<State> = new Set(["ready", "sleeping", "draining", "suspending", "starting", "waking"]);

/** What the first button of the row does; null while there is nothing to do but wait or stop. */
export function mainAct(instance: Instance | null): Act | null {
  if (instance === null) return "start";
  return instance.pending ? null : MAIN[instance.state];
}

export function canStop(instance: Instance | null): boolean {
  if (instance === null) return false;
  return instance.pending ? instance.state !== "stopping" : LIVE.has(instance.state);
}

function loading(instance: Instance): boolean {
  return instance.state === "starting" || instance.state === "waking" || (instance.pending && instance.state === "stopped");
}

export interface Question {
  title: string;
  points: string[];
  confirm: string;
}

const flying = (n: number): string => (n === 0 ? "No request is in flight" : `${count(n, "request is", "requests are")} in flight`);

/** What has to be known before `act` is done to a model that has, or had, this instance. */
export function question(act: "stop" | "sleep", model: string, instance: Instance | null): Question {
  const running = instance?.in_flight ?? 0;
  const waiting = instance?.queued ?? 0;
  const points: string[] = [];
  if (instance !== null && loading(instance)) {
    if (waiting > 0) points.push(`${count(waiting, "request waits", "requests wait")} for this load and will be told that it was called off.`);
    else points.push("No request waits for this load.");
    return { title: `Call off the load of ${model}?`, points, confirm: "Call off" };
  }
  points.push(running === 0 ? `${flying(0)}.` : `${flying(running)}. What is not finished after \`swap.drain_timeout\` goes as \`swap.on_drain_timeout\` says.`);
  if (waiting > 0) points.push(`${count(waiting, "request waits", "requests wait")} in the queue for it.`);
  if (act === "sleep") {
    points.push("Its weights move to the host's memory, and the next request wakes it.");
    return { title: `Put ${model} to sleep?`, points, confirm: "Put to sleep" };
  }
  points.push("The next request for it starts it again.");
  return { title: `Stop ${model}?`, points, confirm: "Stop" };
}

/** The same for a load, from the server's plan; null when it hurts nobody. */
export function loadQuestion(act: "start" | "wake", plan: Plan): Question | null {
  const { model } = plan;
  const verb = act === "wake" ? "Wake" : "Start";
  const points = plan.victims.map((v) => `${v.model} has to make room. ${flying(v.in_flight)} there.`);
  for (const s of plan.stopped) {
    const late = s.late ? ` if requests of ${s.sleeps_for} outlast its drain` : "";
    const anew = s.model === model ? ", and started anew" : "";
    points.push(`${s.model}, which sleeps, is stopped${anew}${late}: the sleep of ${s.sleeps_for} needs its host memory.`);
  }
  if (plan.act === "refuse") points.unshift(`It cannot be loaded: ${plan.reason}`);
  else if (plan.act === "wait") {
    const again = plan.again_in_s === null ? "" : ` (at the soonest in ${about(plan.again_in_s)})`;
    points.unshift(`It has to wait${again}: ${plan.reason}`);
  } else if (points.length === 0) return null;
  if (plan.eta_s !== null) points.push(`It should be ready in about ${about(plan.eta_s)}.`);
  return { title: `${verb} ${model}?`, points, confirm: verb };
}
