/** One answer of a chat model, as it comes. */

import type { Session } from "../api/session";
import { SseParser } from "./sse";

export interface Message {
  role: "system" | "user" | "assistant";
  content: string;
}

export interface Timing {
  /** Seconds to the first token; null before it. */
  ttft: number | null;
  /** Tokens of the answer: as the server counted, or pieces that came until it did. */
  tokens: number;
  prompt: number | null;
  /** Seconds from the first token to the last. */
  span: number;
}

/** A function that the model wants called. */
export interface Call {
  name: string;
  /** JSON, as far as it has come. */
  arguments: string;
}

export interface Piece {
  text: string;
  thought: string;
  calls: readonly Call[];
  timing: Timing;
}

interface CallPart {
  index: number;
  function?: { name?: string | null; arguments?: string | null };
}

interface Chunk {
  choices?: { delta?: { content?: string | null; reasoning?: string | null; reasoning_content?: string | null; tool_calls?: readonly CallPart[] | null } }[];
  usage?: { prompt_tokens?: number; completion_tokens?: number } | null;
  error?: { message?: string } | null;
}

/** Calls `show` with all that came so far. Throws Refused, Unreachable, or what the stream says went wrong. */
export async function chat(session: Session, body: Record<string, unknown>, stop: AbortSignal, show: (piece: Piece) => void, now: () => number = () => performance.now()): Promise<Piece> {
  const began = now();
  let first: number | null = null;
  let last = began;
  let piece: Piece = { text: "", thought: "", calls: [], timing: { ttft: null, tokens: 0, prompt: null, span: 0 } };
  const answer = await session.fetch("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal: stop,
  });
  const parser = new SseParser();
  const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
  for (let read = await reader?.read(); read !== undefined && !read.done; read = await reader?.read()) {
    for (const sent of parser.push(read.value)) {
      if (sent.data === "[DONE]") continue;
      const chunk = JSON.parse(sent.data) as Chunk;
      if (chunk.error) throw new Error(chunk.error.message ?? "The server ended the answer.");
      const delta = chunk.choices?.[0]?.delta;
      const text = delta?.content ?? "";
      const thought = delta?.reasoning ?? delta?.reasoning_content ?? "";
      const parts = delta?.tool_calls ?? [];
      let { tokens, prompt } = piece.timing;
      if (text !== "" || thought !== "" || parts.length > 0) {
        last = now();
        first ??= last;
        tokens += 1;
      }
      if (chunk.usage) {
        tokens = chunk.usage.completion_tokens ?? tokens;
        prompt = chunk.usage.prompt_tokens ?? null;
      }
      piece = {
        text: piece.text + text,
        thought: piece.thought + thought,
        calls: parts.reduce(withPart, piece.calls),
        timing: { ttft: first === null ? null : (first - began) / 1000, tokens, prompt, span: first === null ? 0 : (last - first) / 1000 },
      };
    }
    show(piece);
  }
  return piece;
}

function withPart(calls: readonly Call[], { index, function: part }: CallPart): readonly Call[] {
  const before = calls[index] ?? { name: "", arguments: "" };
  const after = { name: before.name + (part?.name ?? ""), arguments: before.arguments + (part?.arguments ?? "") };
  return index < calls.length ? calls.map((call, n) => (n === index ? after : call)) : [...calls, after];
}

/** Tokens a second after the first one; null where there were too few. */
export function speed({ tokens, span }: Timing): number | null {
  return tokens > 1 && span > 0 ? (tokens - 1) / span : null;
}
