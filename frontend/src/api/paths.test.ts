import { expect, it } from "vitest";
import { modelPath } from "./paths";

it.each([
  ["a", "start", "api/models/a/start"],
  ["Qwen/Qwen2.5-7B", "stop", "api/models/Qwen/Qwen2.5-7B/stop"],
  ["odd? #%/ü", "pin", "api/models/odd%3F%20%23%25/%C3%BC/pin"],
  ["a", undefined, "api/models/a"],
])("the path of %s, %s", (id, act, path) => expect(modelPath(id, act)).toBe(path));
