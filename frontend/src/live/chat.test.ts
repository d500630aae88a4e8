import { expect, it } from "vitest";
import type { Session } from "../api/session";
import { chat, speed, type Piece } from "./chat";

function answering(...chunks: string[]): Session {
  const body = new ReadableStream<Uint8Array>({
    start(stream) {
      for (const chunk of chunks) stream.enqueue(new TextEncoder().encode(chunk));
      stream.close();
    },
  });
  return { fetch: async () => new Response(body) } as unknown as Session;
}
const said = (content: string) => `data: ${JSON.stringify({ choices: [{ delta: { content } }] })}\n\n`;
const run = (session: Session, shown: Piece[] = []) => {
  let at = 0;
  return chat(session, { model: "a" }, new AbortController().signal, (piece) => shown.push(piece), () => (at += 500));
};

it("gathers what comes, with the server's own counts and the times", async () => {
  const shown: Piece[] = [];
  const usage = `data: ${JSON.stringify({ choices: [], usage: { prompt_tokens: 7, completion_tokens: 3 } })}\n\n`;
  const end = await run(answering(": waits\n\n", said("He"), said("llo"), usage, "data: [DONE]\n\n"), shown);
  expect(end).toEqual({ text: "Hello", thought: "", calls: [], timing: { ttft: 0.5, tokens: 3, prompt: 7, span: 0.5 } });
  expect(shown.map((piece) => piece.text)).toEqual(["", "He", "Hello", "Hello", "Hello"]);
  expect(speed(end.timing)).toBe(4);
});

it("tells what the stream says went wrong", async () => {
  const session = answering(said("He"), `data: ${JSON.stringify({ error: { message: "The engine died." } })}\n\n`);
  await expect(run(session)).rejects.toThrow("The engine died.");
});

it("knows no speed of one token", () => expect(speed({ ttft: 1, tokens: 1, prompt: null, span: 0 })).toBeNull());

it("puts the calls of functions together from their pieces", async () => {
  const part = (...tool_calls: object[]) => `data: ${JSON.stringify({ choices: [{ delta: { tool_calls } }] })}\n\n`;
  const first = part({ index: 0, id: "1", type: "function", function: { name: "weather", arguments: "" } });
  const { calls, timing } = await run(
    answering(first, part({ index: 0, function: { arguments: '{"in":' } }), part({ index: 0, function: { arguments: '"Oslo"}' } }, { index: 1, function: { name: "time" } })),
  );
  expect(calls).toEqual([{ name: "weather", arguments: '{"in":"Oslo"}' }, { name: "time", arguments: "" }]);
  expect(timing.tokens).toBe(3);
});
