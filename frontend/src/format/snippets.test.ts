import { execFileSync } from "node:child_process";
import { expect, it } from "vitest";
import { snippet } from "./snippets";

const body = { model: "a", messages: [{ role: "user", content: "it's \"so\" $HOME `x` \\ ü\nnew line" }] };

it("makes a shell send exactly that", () => {
  const text = snippet("curl", "http://x/", "v1/chat/completions", body);
  const sent = execFileSync("sh", ["-c", `curl() { for a; do last=$a; done; printf '%s' "$last"; }\n${text}`], { encoding: "utf8" });
  expect(JSON.parse(sent)).toEqual(body);
  expect(text).toContain("http://x/v1/chat/completions");
});

it("makes JavaScript send exactly that", () => {
  const text = snippet("JavaScript", "http://x/", "v1/a", body);
  const object = text.slice(text.indexOf("JSON.stringify(") + "JSON.stringify(".length, text.indexOf("),\n});"));
  expect(JSON.parse(object)).toEqual(body);
});

it("makes Python read exactly that", () => {
  const line = snippet("Python", "http://x/", "v1/a", body).split("\n").find((l) => l.startsWith("body = "));
  expect(JSON.parse(JSON.parse((line ?? "").replace("body = ", "")) as string)).toEqual(body);
});
