import { expect, it } from "vitest";
import { Strokes, type Stroke } from "./keyboard";

const press = (key: string, more: Partial<Stroke> = {}): Stroke => ({ key, command: false, alt: false, typing: false, ...more });

it("goes with g and a letter, soon after one another", () => {
  const strokes = new Strokes();
  expect(strokes.push(press("g"), 0)).toBeNull();
  expect(strokes.push(press("m"), 500)).toEqual({ kind: "go", letter: "m" });
  expect(strokes.push(press("m"), 600)).toBeNull();
  strokes.push(press("g"), 1000);
  expect(strokes.push(press("m"), 3000)).toBeNull();
});

it("does nothing to what is typed into a field, but for Ctrl-K", () => {
  const strokes = new Strokes();
  for (const key of ["/", "?", "g", "m"]) expect(strokes.push(press(key, { typing: true }), 0)).toBeNull();
  expect(strokes.push(press("k", { typing: true, command: true }), 0)).toEqual({ kind: "palette" });
  expect(strokes.push(press("k"), 0)).toBeNull();
});

it("leaves the browser's own keys alone", () => {
  const strokes = new Strokes();
  expect(strokes.push(press("/", { command: true }), 0)).toBeNull();
  expect(strokes.push(press("?", { alt: true }), 0)).toBeNull();
  expect(strokes.push(press("/"), 0)).toEqual({ kind: "search" });
  expect(strokes.push(press("?"), 0)).toEqual({ kind: "help" });
});
