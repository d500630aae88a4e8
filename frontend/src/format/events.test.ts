import { describe, expect, it } from "vitest";
import type { MMEvent } from "../api/types";
import { tell } from "./events";

const event = (kind: string, data: Record<string, unknown> = {}, cause = "", model: string | null = "org/a"): MMEvent => ({
  seq: 1,
  at: 0,
  kind,
  model,
  cause,
  data,
});

describe("tell", () => {
  it("says what happened to an instance, and how long it took", () => {
    expect(tell(event("instance.ready", { took_s: 3.21 }, "probe"))).toEqual({
      what: "org/a is ready after 3.2 s",
      more: "probe",
      tone: "good",
    });
  });

  it("gives cause and reason, once where one holds the other", () => {
    expect(tell(event("instance.backoff", { reason: "exit 1" }, "crash")).more).toBe("crash · exit 1");
    expect(tell(event("instance.draining", { reason: "room for b" }, "room for b")).more).toBe("room for b");
    expect(tell(event("instance.stopping", { reason: "stopped by operator ada" }, "operator ada")).more).toBe("stopped by operator ada");
  });

  it("tells of an engine that takes more than was reserved", () => {
    expect(tell(event("footprint.exceeded", { reserved: { "0": 1 }, used: { "0": 2 } })).what).toContain("more memory than was reserved");
  });

  it("names who makes room", () => {
    expect(tell(event("swap.planned", { victims: ["b", "c"], reason: "idle: evicts b, c" }, "request r")).what).toBe(
      "org/a will be loaded; b, c will make room",
    );
    expect(tell(event("swap.planned", { victims: [], reason: "fits" })).what).toBe("org/a will be loaded");
  });

  it("tells of requests that stand still, and that go on", () => {
    expect(tell(event("lease.frozen", { count: 2 }, "room for b"))).toEqual({
      what: "2 requests to org/a frozen",
      more: "room for b",
      tone: "calm",
    });
    expect(tell(event("lease.thawed", { count: 1, frozen_s: 4.2 }, "awake")).what).toBe("org/a goes on with 1 request after 4.2 s");
  });

  it("says what a failed sleep or wake became", () => {
    expect(tell(event("sleep.failed", { outcome: "lied", reason: "it keeps all" }, "it keeps all"))).toEqual({
      what: "org/a did not sleep and is stopped",
      more: "it keeps all",
      tone: "bad",
    });
    expect(tell(event("wake.failed", { outcome: "refused", reason: "500" }, "500")).what).toBe("org/a did not wake and is started anew");
  });

  it("says what is missing", () => {
    expect(tell(event("lagged", { lost: 1 }, "slow listener", null)).what).toBe("1 event left out here");
    expect(tell(event("lagged", { lost: null }, "retention", null)).what).toBe("older events are gone");
  });

  it("shows what it does not know as it is", () => {
    expect(tell(event("alert.stop_overdue", { reason: "x" }))).toEqual({ what: "alert stop overdue: org/a", more: "x", tone: "bad" });
    expect(tell(event("key.created", { name: "ada" }, "operator root", null))).toEqual({
      what: "key created",
      more: "operator root · ada",
      tone: "calm",
    });
  });
});
