import { describe, expect, it } from "vitest";
import type { Instance, Plan } from "../api/types";
import { cancelQuestion, canStop, label, loadQuestion, mainAct, moreActs, question } from "./acts";

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
  drain_s: 0,
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

const victim = (in_flight: number) => ({ model: "a", state: "ready" as const, in_flight, device_bytes: {}, bytes: 0, goal: "stop" as const, why: "", on_timeout: "cut" as const, drain_s: 6, go_s: 1, return_s: 12, cache_s: 0 });

describe("what a row offers", () => {
  it("starts what is down, wakes what sleeps, and waits for what is under way", () => {
    expect(mainAct(null)).toBe("start");
    expect(mainAct(instance({ state: "failed" }))).toBe("start");
    expect(mainAct(instance({ state: "sleeping" }))).toBe("wake");
    expect(mainAct(instance())).toBe("sleep");
    expect(mainAct(instance({ state: "stopping", pending: true }))).toBeNull();
    expect(mainAct(instance({ state: "suspending", pending: true }))).toBeNull();
  });

  it("calls off a load that is under way or waits for room, and takes a drain back", () => {
    for (const state of ["stopped", "sleeping", "failed", "backoff", "starting", "waking"] as const) {
      const it = instance({ state, pending: true });
      expect([mainAct(it), label("stop", it), canStop(it)]).toEqual(["stop", "Call off", false]);
    }
    const leaves = instance({ state: "draining", pending: true });
    expect([mainAct(leaves), label("undrain", leaves), label("stop", leaves), canStop(leaves)]).toEqual(["undrain", "Keep", "Stop", true]);
    expect(mainAct(instance({ pending: true }))).toBe("sleep");
  });

  it("stops what lives", () => {
    expect(canStop(null)).toBe(false);
    expect(canStop(instance({ state: "stopped" }))).toBe(false);
    expect(canStop(instance())).toBe(true);
    expect(canStop(instance({ state: "sleeping" }))).toBe(true);
    expect(canStop(instance({ state: "stopping", pending: true }))).toBe(false);
  });

  it("has more for what runs, and for what failed", () => {
    expect(moreActs(null)).toEqual([]);
    expect(moreActs(instance())).toEqual(["drain", "restart"]);
    expect(moreActs(instance({ state: "backoff" }))).toEqual(["reset"]);
    expect(moreActs(instance({ state: "starting" }))).toEqual([]);
  });
});

describe("what is said before", () => {
  it("names the requests that finish first, how long that takes, and those that wait", () => {
    const said = question("stop", "a", instance({ in_flight: 3, queued: 1, drain_s: 12 }));
    expect(said.points[0]).toBe("3 requests finish first, about 12 s.");
    expect(said.points).toContain("1 request waits in the queue for it.");
    expect(said.points.join(" ")).toContain("it can be taken back");
    expect(question("sleep", "a", instance({ in_flight: 1 })).points[0]).toBe("1 request finishes first.");
    expect(question("stop", "a", instance()).points).toEqual(["No request is in flight.", "The next request for it starts it again."]);
    expect(question("drain", "a", instance({ in_flight: 1 })).points[1]).toContain("however long they take");
    expect(question("restart", "a", instance()).title).toBe("Restart a?");
    expect(cancelQuestion("req_1", "2 KiB").points[0]).toContain("has had 2 KiB of the answer");
  });

  it("calls off a load, and says who waits for it", () => {
    const said = question("stop", "a", instance({ state: "starting", pending: true, queued: 2 }));
    expect(said.title).toBe("Call off the load of a?");
    expect(said.points).toEqual(["2 requests wait for this load and will be told that it was called off."]);
  });

  it("asks before a load only when it hurts or cannot be", () => {
    expect(loadQuestion("start", plan())).toBeNull();
    expect(loadQuestion("start", plan({ victims: [victim(2)] }))?.points[0]).toBe(
      "Evicts a: 2 requests finish first, about 7 s; those that take longer than its drain may are cut.",
    );
    const asleep = { ...victim(0), goal: "sleep" as const };
    expect(loadQuestion("wake", plan({ victims: [asleep] }))?.points).toEqual([
      "Puts a to sleep: no request is in flight.",
      "It should be ready in about 12 s, and can be called off until then.",
    ]);
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
