import { expect, it } from "vitest";
import { coalesced } from "./coalesce";

it("runs once more, and only once, for all calls during a run", async () => {
  const ends: (() => void)[] = [];
  const call = coalesced(() => new Promise<void>((resolve) => ends.push(resolve)));
  call();
  call();
  call();
  expect(ends).toHaveLength(1);
  ends[0]?.();
  await new Promise((resolve) => setTimeout(resolve));
  expect(ends).toHaveLength(2);
  ends[1]?.();
  await new Promise((resolve) => setTimeout(resolve));
  expect(ends).toHaveLength(2);
  call();
  expect(ends).toHaveLength(3);
});
