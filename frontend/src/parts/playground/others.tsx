import { useState, type ReactNode } from "react";
import { useSession } from "../../api/overview";
import { Failed } from "../failed";
import { Code } from "./code";

const SLOW = 600_000; // ms: a model may have to be loaded first

function useAsk<T>(path: string) {
  const session = useSession();
  const [answer, setAnswer] = useState<{ data: T; took: number } | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const [busy, setBusy] = useState(false);
  const ask = async (body: unknown) => {
    setBusy(true);
    setError(null);
    const began = performance.now();
    try {
      const got = await session.fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal: AbortSignal.timeout(SLOW) });
      setAnswer({ data: (await got.json()) as T, took: performance.now() - began });
    } catch (failure) {
      setError(failure as Error);
    } finally {
      setBusy(false);
    }
  };
  return { ask, answer, error, busy };
}

function lines(text: string): string[] {
  return text.split("\n").map((line) => line.trim()).filter((line) => line !== "");
}

function Form(props: { busy: boolean; ready: boolean; onSend: () => void; children: ReactNode }) {
  return (
    <form
      className="composer"
      onSubmit={(event) => {
        event.preventDefault();
        if (props.ready && !props.busy) props.onSend();
      }}
    >
      {props.children}
      <div className="buttons">
        <button type="submit" className="primary" disabled={props.busy || !props.ready}>
          {props.busy ? "Waits…" : "Send"}
        </button>
      </div>
    </form>
  );
}

interface Vectors {
  data: { index: number; embedding: number[] }[];
}

export function cosine(a: readonly number[], b: readonly number[]): number {
  let [dot, left, right] = [0, 0, 0];
  for (const [n, x] of a.entries()) {
    const y = b[n] ?? 0;
    dot += x * y;
    left += x * x;
    right += y * y;
  }
  return left === 0 || right === 0 ? 0 : dot / Math.sqrt(left * right);
}

/** Texts, and how near they are to the first one. */
export function Embeddings({ model }: { model: string }) {
  const [text, setText] = useState("A cat sits on the mat.\nA kitten is on the rug.\nThe stock market fell.");
  const { ask, answer, error, busy } = useAsk<Vectors>("v1/embeddings");
  const body = { model, input: lines(text), encoding_format: "float" };
  const first = answer?.data.data[0]?.embedding;
  return (
    <>
      <Form busy={busy} ready={body.input.length > 0} onSend={() => void ask(body)}>
        <label>
          Texts, one a line
          <textarea rows={5} value={text} onChange={(event) => setText(event.target.value)} />
        </label>
      </Form>
      <Failed error={error} />
      {answer !== null && first !== undefined && (
        <section aria-label="Answer">
          <p className="note">
            {first.length} dimensions, {Math.round(answer.took)} ms. How near each is to the first:
          </p>
          <ol className="scores">
            {answer.data.data.map(({ index, embedding }) => (
              <Score key={index} score={cosine(first, embedding)} text={`${embedding.slice(0, 4).map((x) => x.toFixed(3)).join(", ")}, …`} />
            ))}
          </ol>
        </section>
      )}
      <Code path="v1/embeddings" body={body} />
    </>
  );
}

interface Ranked {
  results: { index: number; relevance_score: number; document?: { text?: string } }[];
}

/** Documents in the order of how well they answer a question. */
export function Rerank({ model }: { model: string }) {
  const [question, setQuestion] = useState("What is the capital of France?");
  const [text, setText] = useState("Paris is the capital of France.\nBerlin is a city in Germany.\nCheese is made of milk.");
  const [sent, setSent] = useState<string[]>([]);
  const { ask, answer, error, busy } = useAsk<Ranked>("v1/rerank");
  const body = { model, query: question, documents: lines(text) };
  const send = () => {
    setSent(body.documents);
    void ask(body);
  };
  return (
    <>
      <Form busy={busy} ready={question.trim() !== "" && body.documents.length > 0} onSend={send}>
        <label>
          Question
          <input value={question} onChange={(event) => setQuestion(event.target.value)} />
        </label>
        <label>
          Documents, one a line
          <textarea rows={5} value={text} onChange={(event) => setText(event.target.value)} />
        </label>
      </Form>
      <Failed error={error} />
      {answer !== null && (
        <section aria-label="Answer">
          <p className="note">{Math.round(answer.took)} ms, the best first</p>
          <ol className="scores">
            {[...answer.data.results]
              .sort((a, b) => b.relevance_score - a.relevance_score)
              .map(({ index, relevance_score: score }) => (
                <Score key={index} score={score} text={sent[index] ?? ""} />
              ))}
          </ol>
        </section>
      )}
      <Code path="v1/rerank" body={body} />
    </>
  );
}

function Score({ score, text }: { score: number; text: string }) {
  return (
    <li>
      <b>{score.toFixed(3)}</b>
      <span className="track" aria-hidden="true">
        <span className="c0" style={{ width: `${100 * Math.min(1, Math.max(0, score))}%` }} />
      </span>
      <span>{text}</span>
    </li>
  );
}

interface Tokenised {
  count: number;
  max_model_len?: number;
  tokens: number[];
  token_strs?: string[] | null;
}

/** A text as the model sees it. */
export function Tokens({ model }: { model: string }) {
  const [text, setText] = useState("The quick brown fox jumps over the lazy dog.");
  const { ask, answer, error, busy } = useAsk<Tokenised>("tokenize");
  const body = { model, prompt: text, return_token_strs: true };
  const shown = answer?.data.token_strs ?? answer?.data.tokens.map(String) ?? [];
  return (
    <>
      <Form busy={busy} ready={text !== ""} onSend={() => void ask(body)}>
        <label>
          Text
          <textarea rows={5} value={text} onChange={(event) => setText(event.target.value)} />
        </label>
      </Form>
      <Failed error={error} />
      {answer !== null && (
        <section aria-label="Answer">
          <p className="note">
            {answer.data.count} tokens{answer.data.max_model_len === undefined ? "" : ` of at most ${answer.data.max_model_len.toLocaleString()}`}
          </p>
          <p className="tokens">
            {shown.map((token, n) => (
              <span key={n} title={String(answer.data.tokens[n] ?? "")}>
                {token}
              </span>
            ))}
          </p>
        </section>
      )}
      <Code path="tokenize" body={body} />
    </>
  );
}
