import { expect, it } from "vitest";
import { parsed, patch } from "./declaration";

it.each([
  [{ a: 1 }, { a: 1 }, {}],
  [{ a: 1 }, { a: 2 }, { a: 2 }],
  [{ a: 1, b: [1] }, { b: [1, 2] }, { a: null, b: [1, 2] }],
  [{ args: { x: 1, y: 2 } }, { args: { x: 1, z: 3 } }, { args: { y: null, z: 3 } }],
  [{ args: {} }, { args: null }, { args: null }],
  [{}, { env: { A: "1" } }, { env: { A: "1" } }],
])("%o becomes %o by %o", (before, after, expected) => expect(patch(before, after)).toEqual(expected));

it("says what is no declaration", () => {
  expect(parsed("[1]")).toHaveProperty("problem");
  expect(parsed("{")).toHaveProperty("problem");
  expect(parsed('{"a": 1}')).toEqual({ value: { a: 1 } });
});
