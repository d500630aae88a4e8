/** Which acts a model's row offers, and what is said before one is confirmed. What is allowed is the server's to say. */

import type { Instance, Plan, State } from "../api/types";
import { about, count } from "./quantities";

export type Act = "start" | "stop" | "sleep" | "wake" | "drain" | "undrain" | "restart" | "reset" | "pin" | "unpin";

export const LABELS: Record<Act, string> = {
  start: "Start",
  stop: "Stop",
  sleep: "Sleep",
  wake: "Wake",
  drain: "Drain",
  undrain: "Keep",
  restart: "Restart",
  reset: "Forget failures",
  pin: "Pin",
  unpin: "Unpin",
};

/** Acts that are asked about before they are done, with what they would do. */
export type Asking = "stop" | "sleep" | "drain" | "restart";
export const ASKING: ReadonlySet<Act> = new Set<Act>(["stop", "sleep", "drain", "restart"]);

const MAIN: Record<State, Act | null> = {
  stopped: "start",
  failed: "start",
  backoff: "start",
  sleeping: "wake",
  ready: "sleep",
  starting: null,
  waking: null,
  draining: "undrain",
  suspending: null,
  stopping: null,
};

const LIVE: ReadonlySet<State> = new Set(["ready", "sleeping", "draining", "suspending", "starting", "waking"]);
const LOADING: ReadonlySet<State> = new Set(["starting", "waking"]);
const LEAVING: ReadonlySet<State> = new Set(["draining", "suspending", "stopping"]);

/** A load is under way, or waits for room: that can be called off. */
export function loading(instance: Instance | null): boolean {
  return instance !== null && (LOADING.has(instance.state) || (instance.pending && instance.state !== "ready" && !LEAVING.has(instance.state)));
}

/** What the first button of the row does; a load that is under way is called off (`stop`), a drain taken back (`undrain`). Null while
 *  there is nothing to do but wait. */
export function mainAct(instance: Instance | null): Act | null {
  if (instance === null) return "start";
  return loading(instance) ? "stop" : MAIN[instance.state];
}

export function label(act: Act, instance: Instance | null): string {
  return act === "stop" && loading(instance) ? "Call off" : LABELS[act];
}

export function canStop(instance: Instance | null): boolean {
  return instance !== null && LIVE.has(instance.state) && !loading(instance);
}

/** What is done more rarely. */
export function moreActs(instance: Instance | null): Act[] {
  if (instance === null) return [];
  const acts: Act[] = [];
  if (instance.state === "ready" || instance.state === "sleeping") acts.push("drain", "restart");
  if (instance.state === "failed" || instance.state === "backoff") acts.push("reset");
  return acts;
}

export interface Question {
  title: string;
  points: string[];
  confirm: string;
}

/** `3 requests finish first, about 12 s`. */
function first(n: number, seconds: number): string {
  if (n === 0) return "no request is in flight";
  return `${count(n, "request finishes", "requests finish")} first${seconds > 0 ? `, about ${about(seconds)}` : ""}`;
}

function sentence(text: string): string {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}

/** What has to be known before `act` is done to a model that has, or had, this instance. */
export function question(act: Asking, model: string, instance: Instance | null): Question {
  const running = instance?.in_flight ?? 0;
  const waiting = instance?.queued ?? 0;
  const points: string[] = [];
  if (act === "stop" && loading(instance)) {
    if (waiting > 0) points.push(`${count(waiting, "request waits", "requests wait")} for this load and will be told that it was called off.`);
    else points.push("No request waits for this load.");
    return { title: `Call off the load of ${model}?`, points, confirm: "Call off" };
  }
  points.push(sentence(first(running, instance?.drain_s ?? 0)));
  if (running > 0) {
    if (act === "drain") points.push("It waits for them however long they take, and takes no new ones.");
    else points.push("What is not finished after `swap.drain_timeout` goes as `swap.on_drain_timeout` says.");
  }
  if (waiting > 0) points.push(`${count(waiting, "request waits", "requests wait")} in the queue for it.`);
  if (running > 0 && act !== "restart") points.push("Until then it can be taken back: the button becomes `Keep`.");
  if (act === "sleep") {
    points.push("Its weights move to the host's memory, and the next request wakes it.");
    return { title: `Put ${model} to sleep?`, points, confirm: "Put to sleep" };
  }
  if (act === "restart") {
    points.push("Then it is started again; requests that come meanwhile wait for it.");
    return { title: `Restart ${model}?`, points, confirm: "Restart" };
  }
  points.push("The next request for it starts it again.");
  return act === "drain" ? { title: `Drain ${model}?`, points, confirm: "Drain" } : { title: `Stop ${model}?`, points, confirm: "Stop" };
}

const LATE: Record<Plan["victims"][number]["on_timeout"], string> = {
  cut: "those that take longer than its drain may are cut",
  wait: "those that take longer are waited for",
  freeze: "those that take longer are frozen, and go on when it wakes",
  keep: "those that take longer are frozen, and go on later",
};

/** The same for a load, from the server's plan; null when it hurts nobody. */
export function loadQuestion(act: "start" | "wake", plan: Plan): Question | null {
  const { model } = plan;
  const verb = act === "wake" ? "Wake" : "Start";
  const points = plan.victims.map((v) => {
    const how = v.goal === "sleep" ? "puts" : "evicts";
    const late = v.in_flight > 0 ? `; ${LATE[v.on_timeout]}` : "";
    return sentence(`${how} ${v.model}${v.goal === "sleep" ? " to sleep" : ""}: ${first(v.in_flight, v.drain_s + v.go_s)}${late}`);
  });
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
  if (plan.eta_s !== null) points.push(`It should be ready in about ${about(plan.eta_s)}, and can be called off until then.`);
  return { title: `${verb} ${model}?`, points, confirm: verb };
}

/** Before a request is ended that has begun to answer. */
export function cancelQuestion(id: string, sent: string): Question {
  return {
    title: `Cancel ${id}?`,
    points: [`Its client has had ${sent} of the answer, and is told that an operator ended it.`, "What was made so far is not taken back."],
    confirm: "End it",
  };
}

