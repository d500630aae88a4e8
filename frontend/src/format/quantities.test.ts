import { describe, expect, it } from "vitest";
import { about, bytes, count, duration } from "./quantities";

describe("quantities", () => {
  it.each([
    [0, "0 B"],
    [1023, "1023 B"],
    [1024, "1.0 KiB"],
    [270 * 2 ** 20, "270 MiB"],
    [1024 ** 3 - 1, "1.0 GiB"],
    [23.5 * 2 ** 30, "23.5 GiB"],
    [99.96 * 2 ** 30, "100 GiB"],
    [1.5 * 2 ** 40, "1.5 TiB"],
  ])("%d bytes are %s", (value, text) => expect(bytes(value)).toBe(text));

  it.each([
    [-0.01, "0.0 s"],
    [0.44, "0.4 s"],
    [9.96, "10 s"],
    [59.6, "1 min 00 s"],
    [185, "3 min 05 s"],
    [7800, "2 h 10 min"],
    [4 * 86_400 + 3 * 3600 + 59, "4 d 3 h"],
  ])("%d seconds are %s", (value, text) => expect(duration(value)).toBe(text));

  it.each([
    [0.2, "1 s"],
    [89, "89 s"],
    [170, "3 min"],
    [7000, "2 h"],
  ])("an estimate of %d seconds is %s", (value, text) => expect(about(value)).toBe(text));

  it("counts one and many", () => {
    expect([count(1, "request", "requests"), count(0, "request", "requests")]).toEqual(["1 request", "0 requests"]);
  });
});
