import { describe, expect, it } from "vitest";
import type { Instance, Plan } from "../api/types";
import { canStop, loadQuestion, mainAct, question } from "./acts";

const instance = (change: Partial<Instance> = {}): Instance => ({
  id: "a#1",
  model: "a",
  state: "ready",
  progress: { phase: "", percent: null, elapsed_s: 0, eta_s: null },
  reason: "",
  devices: [],
  pid: 1,
  in_flight: 0,
  frozen: 0,
  queued: 0,
  since: 0,
  failures: 0,
  memory: { reserved: {}, used: 0 },
  generation: 1,
  pinned: false,
  launcher: "",
  pending: false,
  idle_s: null,
  ...change,
});

const plan = (change: Partial<Plan> = {}): Plan => ({
  model: "b",
  act: "start",
  code: "fits",
  reason: "fits",
  state: "stopped",
  devices: {},
  bytes: 0,
  victims: [],
  stopped: [],
  footprint: {
    per_device: 0,
    source: "declared",
    spread: 0,
    weights: 0,
    kv_cache: 0,
    overhead: 0,
    kv_tokens: null,
    kv_token_bytes: null,
    samples: 0,
    learned_at: null,
    notes: [],
  },
  room_s: 0,
  load_s: 12,
  eta_s: 12,
  at_latest_s: 20,
  again_in_s: null,
  ...change,
});

const victim = (in_flight: number) => ({ model: "a", state: "ready" as const, in_flight, device_bytes: {}, bytes: 0, goal: "stop" as const, why: "", on_timeout: "cut" as const, drain_s: 0, go_s: 1, return_s: 12, cache_s: 0 });

describe("what a row offers", () => {
  it("starts what is down, wakes what sleeps, and waits for what is under way", () => {
    expect(mainAct(null)).toBe("start");
    expect(mainAct(instance({ state: "failed" }))).toBe("start");
    expect(mainAct(instance({ state: "sleeping" }))).toBe("wake");
    expect(mainAct(instance())).toBe("sleep");
    expect(mainAct(instance({ state: "stopped", pending: true }))).toBeNull();
  });

  it("stops what lives or is about to", () => {
    expect(canStop(null)).toBe(false);
    expect(canStop(instance({ state: "stopped" }))).toBe(false);
    expect(canStop(instance({ state: "stopped", pending: true }))).toBe(true);
    expect(canStop(instance({ state: "starting", pending: true }))).toBe(true);
    expect(canStop(instance({ state: "stopping", pending: true }))).toBe(false);
  });
});

describe("what is said before", () => {
  it("names the requests in flight and those that wait", () => {
    const said = question("stop", "a", instance({ in_flight: 3, queued: 1 }));
    expect(said.points[0]).toContain("3 requests are in flight");
    expect(said.points[1]).toBe("1 request waits in the queue for it.");
    expect(question("sleep", "a", instance({ in_flight: 1 })).points[0]).toContain("1 request is in flight");
    expect(question("stop", "a", instance()).points[0]).toBe("No request is in flight.");
  });

  it("calls off a load, and says who waits for it", () => {
    const said = question("stop", "a", instance({ state: "starting", pending: true, queued: 2 }));
    expect(said.title).toBe("Call off the load of a?");
    expect(said.points).toEqual(["2 requests wait for this load and will be told that it was called off."]);
  });

  it("asks before a load only when it hurts or cannot be", () => {
    expect(loadQuestion("start", plan())).toBeNull();
    expect(loadQuestion("start", plan({ victims: [victim(2)] }))?.points[0]).toBe("a has to make room. 2 requests are in flight there.");
    expect(loadQuestion("wake", plan({ victims: [victim(0)] }))?.points[0]).toBe("a has to make room. No request is in flight there.");
    const sleeper = { model: "s", sleeps_for: "a", host_bytes: 1, asleep_s: 9, return_s: 30, late: false };
    expect(loadQuestion("start", plan({ victims: [victim(0)], stopped: [sleeper] }))?.points[1]).toBe(
      "s, which sleeps, is stopped: the sleep of a needs its host memory.",
    );
    const own = { ...sleeper, model: plan().model, late: true };
    expect(loadQuestion("wake", plan({ victims: [victim(1)], stopped: [own] }))?.points[1]).toBe(
      `${own.model}, which sleeps, is stopped, and started anew if requests of a outlast its drain: the sleep of a needs its host memory.`,
    );
    expect(loadQuestion("start", plan({ act: "wait", reason: "room: a is pinned", again_in_s: 4 }))?.points[0]).toBe(
      "It has to wait (at the soonest in 4 s): room: a is pinned",
    );
    expect(loadQuestion("start", plan({ act: "refuse", reason: "too large", eta_s: null }))?.points).toEqual(["It cannot be loaded: too large"]);
  });
});
