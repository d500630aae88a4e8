import { expect, it } from "vitest";
import type { Pull, Weights } from "../api/types";
import { percent, repositoryOf, stored, told } from "./pulls";

const pull = (change: Partial<Pull> = {}): Pull => ({
  id: "pull_1",
  repo: "org/tiny",
  revision: "main",
  state: "downloading",
  file: "model.safetensors",
  files: 3,
  total: 2048,
  done: 512,
  rate: 256,
  eta_s: 6,
  reason: "",
  path: "",
  by: "operator ada",
  asked_at: 1,
  ended_at: null,
  ...change,
});

it("knows an id of a hub from a folder", () => {
  expect(repositoryOf(" Qwen/Qwen2.5-7B-Instruct ")).toBe("Qwen/Qwen2.5-7B-Instruct");
  for (const other of ["/models/qwen", "./here", "qwen", "a/b/c", "", "~/x"]) expect(repositoryOf(other)).toBeNull();
});

it("tells how far a download is", () => {
  expect(told(pull())).toBe("512 B of 2.0 KiB · 256 B/s · about 6 s left");
  expect(percent(pull())).toBe(25);
  expect(told(pull({ total: null, rate: null, eta_s: null }))).toBe("512 B");
  expect(percent(pull({ total: null }))).toBeNull();
  expect(told(pull({ done: 2048, ended_at: 9, state: "done" }))).toBe("2.0 KiB of 2.0 KiB");
});

it("finds what is on the disk, whatever the case of its letters", () => {
  const weights: Weights = { caches: [], repositories: [{ repo: "Org/Tiny", cache: "/c", size: 9, partial: 4, changed_at: 0, used_by: [], downloading: false }] };
  expect(stored(weights, "org/tiny")).toEqual({ size: 9, partial: 4 });
  expect(stored(weights, "org/other")).toBeNull();
});
