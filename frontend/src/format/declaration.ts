/** A model's declaration as it is shown for changing, and what of it was changed. */

import type { Model } from "../api/types";

/** Keys of a model that can be changed; the others are what became of it. */
const KEYS = [
  "model",
  "engine",
  "task",
  "args",
  "env",
  "command",
  "sim",
  "aliases",
  "memory",
  "kv_cache",
  "pinned",
  "preload",
  "schedule",
  "priority",
  "concurrency",
  "idle",
  "request_defaults",
  "request_overrides",
  "request_limits",
  "lora",
  "price",
] as const;

export type Declared = Record<string, unknown>;

export function declared(model: Model): Declared {
  return Object.fromEntries(KEYS.map((key) => [key, model[key]]));
}

/** The merge patch (RFC 7396) that makes `after` of `before`. */
export function patch(before: Declared, after: Declared): Declared {
  const found: Declared = {};
  for (const key of new Set([...Object.keys(before), ...Object.keys(after)])) {
    const [was, is] = [before[key], after[key]];
    if (JSON.stringify(was) === JSON.stringify(is)) continue;
    if (is === undefined) found[key] = null;
    else found[key] = isObject(was) && isObject(is) ? patch(was, is) : is;
  }
  return found;
}

function isObject(value: unknown): value is Declared {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** What somebody typed, or why it is no JSON object. */
export function parsed(text: string): { value: Declared } | { problem: string } {
  try {
    const value: unknown = JSON.parse(text);
    return isObject(value) ? { value } : { problem: "It has to be an object: { ... }." };
  } catch (error) {
    return { problem: `This is no JSON: ${error instanceof Error ? error.message : String(error)}` };
  }
}
