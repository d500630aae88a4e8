import { useEffect, useRef, useState } from "react";
import { useOverview, useSession } from "../../api/overview";
import { about, duration } from "../../format/quantities";
import { useSetting } from "../../frame/address";
import { chat, speed, type Message, type Piece, type Timing } from "../../live/chat";
import { Failed } from "../failed";
import { Prose } from "../prose";
import { Code } from "./code";

interface Turn {
  asked: string;
  /** By model. */
  answers: Record<string, Answer>;
}

interface Answer extends Piece {
  state: "runs" | "done" | "stopped" | "failed";
  why: string;
}

const NONE: Timing = { ttft: null, tokens: 0, prompt: null, span: 0 };

/** One conversation with several models at the same time. */
export function Chat({ models }: { models: readonly string[] }) {
  const session = useSession();
  const [system, setSystem] = useSetting("system");
  const [temperature, setTemperature] = useSetting("temperature", "0.7");
  const [tokens, setTokens] = useSetting("max_tokens", "512");
  const [top, setTop] = useSetting("top_p");
  const [seed, setSeed] = useSetting("seed");
  const [tools, setTools] = useSetting("tools");
  const [choice, setChoice] = useSetting("tool_choice");
  const offered = offers(tools, choice);
  const [text, setText] = useState("");
  const [turns, setTurns] = useState<readonly Turn[]>([]);
  const running = useRef(new Map<string, AbortController>());
  const busy = turns.at(-1) !== undefined && Object.values(turns.at(-1)?.answers ?? {}).some((answer) => answer.state === "runs");

  useEffect(() => {
    const all = running.current;
    return () => {
      for (const stop of all.values()) stop.abort();
    };
  }, []);

  const bodyFor = (model: string, asked: string): Record<string, unknown> => ({
    model,
    messages: conversation(system, turns, model, asked),
    ...number("temperature", temperature),
    ...number("max_tokens", tokens),
    ...number("top_p", top),
    ...number("seed", seed),
    ...("body" in offered ? offered.body : {}),
  });

  const send = () => {
    const asked = text.trim();
    if (asked === "" || busy || "problem" in offered) return;
    const place = turns.length;
    const change = (model: string, made: (before: Answer) => Answer) =>
      setTurns((all) =>
        all.map((turn, n) => {
          const before = turn.answers[model];
          return n !== place || before === undefined ? turn : { ...turn, answers: { ...turn.answers, [model]: made(before) } };
        }),
      );
    const begun: Answer = { text: "", thought: "", calls: [], timing: NONE, state: "runs", why: "" };
    setTurns([...turns, { asked, answers: Object.fromEntries(models.map((model) => [model, begun])) }]);
    setText("");
    for (const model of models) {
      const stop = new AbortController();
      running.current.set(model, stop);
      chat(session, bodyFor(model, asked), stop.signal, (piece) => change(model, (before) => ({ ...before, ...piece })))
        .then((piece) => change(model, (before) => ({ ...before, ...piece, state: "done" })))
        .catch((error: Error) => change(model, (before) => ({ ...before, state: stop.signal.aborted ? "stopped" : "failed", why: stop.signal.aborted ? "" : error.message })))
        .finally(() => running.current.delete(model));
    }
  };
  const stopAll = () => {
    for (const stop of running.current.values()) stop.abort();
  };
  return (
    <>
      <div className="chat">
        {turns.length === 0 && <p className="empty">Type something below. A model that is not loaded is loaded for it.</p>}
        {turns.map((turn, n) => (
          <div key={n} className="turn">
            <p className="asked">
              <span className="unseen">You: </span>
              {turn.asked}
            </p>
            <div className="answers">
              {Object.entries(turn.answers).map(([model, answer]) => (
                <AnswerView key={model} model={model} answer={answer} />
              ))}
            </div>
          </div>
        ))}
      </div>
      <form
        className="composer"
        onSubmit={(event) => {
          event.preventDefault();
          send();
        }}
      >
        <textarea
          aria-label="Message"
          rows={3}
          placeholder="Message; Enter sends it, Shift and Enter begin a new line"
          value={text}
          onChange={(event) => setText(event.target.value)}
          onKeyDown={(event) => {
            if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
            event.preventDefault();
            send();
          }}
        />
        <div className="buttons">
          {busy ? (
            <button type="button" onClick={stopAll}>
              Stop
            </button>
          ) : (
            <button type="button" disabled={turns.length === 0} onClick={() => setTurns([])}>
              Clear
            </button>
          )}
          <button type="submit" className="primary" disabled={busy || text.trim() === "" || "problem" in offered}>
            Send
          </button>
        </div>
      </form>
      {"problem" in offered && <Failed error={offered.problem} />}
      <details className="parameters">
        <summary>Parameters</summary>
        <div className="grid-4">
          <Parameter title="Temperature" value={temperature} onChange={setTemperature} step="0.1" />
          <Parameter title="Tokens at most" value={tokens} onChange={setTokens} step="1" />
          <Parameter title="Top p" value={top} onChange={setTop} step="0.05" />
          <Parameter title="Seed" value={seed} onChange={setSeed} step="1" />
        </div>
        <label>
          System message
          <textarea rows={2} value={system} onChange={(event) => setSystem(event.target.value)} />
        </label>
        <label>
          Tools (a JSON list of functions that the model may call)
          <textarea className="code" rows={3} spellCheck={false} value={tools} placeholder='[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]' onChange={(event) => setTools(event.target.value)} />
        </label>
        {tools.trim() !== "" && (
          <label>
            Whether it calls one
            <select value={choice} onChange={(event) => setChoice(event.target.value)}>
              <option value="">as it decides</option>
              <option value="required">always</option>
              <option value="none">never</option>
              {[...new Set([...named(offered), ...(["", "required", "none"].includes(choice) ? [] : [choice])])].map((name) => (
                <option key={name} value={name}>
                  always {name}
                </option>
              ))}
            </select>
          </label>
        )}
      </details>
      {models[0] !== undefined && <Code path="v1/chat/completions" body={{ ...bodyFor(models[0], text.trim() === "" ? "Hello" : text.trim()), stream: true }} />}
    </>
  );
}

/** Only what a model said itself is told to it. */
export function conversation(system: string, turns: readonly Turn[], model: string, asked: string): Message[] {
  const told: Message[] = system === "" ? [] : [{ role: "system", content: system }];
  for (const turn of turns) {
    const answer = turn.answers[model];
    if (answer === undefined || answer.text === "") continue;
    told.push({ role: "user", content: turn.asked }, { role: "assistant", content: answer.text });
  }
  return [...told, { role: "user", content: asked }];
}

/** The part of a request that offers tools, from what was typed. */
export function offers(tools: string, choice: string): { body: Record<string, unknown> } | { problem: string } {
  if (tools.trim() === "") return { body: {} };
  try {
    const list: unknown = JSON.parse(tools);
    if (!Array.isArray(list) || list.length === 0) return { problem: 'Tools are a JSON list such as [{"type": "function", "function": {"name": "weather"}}].' };
    const chosen = ["required", "none"].includes(choice) ? choice : { type: "function", function: { name: choice } };
    return { body: { tools: list, ...(choice === "" ? {} : { tool_choice: chosen }) } };
  } catch (error) {
    return { problem: `The tools are not JSON: ${(error as Error).message}` };
  }
}

/** The names of the functions that are offered. */
function named(offered: ReturnType<typeof offers>): string[] {
  const list = "body" in offered ? (offered.body["tools"] as { function?: { name?: unknown } | null }[] | undefined) : undefined;
  return (list ?? []).map((tool) => tool?.function?.name).filter((name) => typeof name === "string");
}

/** JSON for people, as soon as it is whole. */
function indented(json: string): string {
  try {
    return JSON.stringify(JSON.parse(json), null, 1);
  } catch {
    return json;
  }
}

function number(name: string, text: string): Record<string, number> {
  return text === "" || Number.isNaN(Number(text)) ? {} : { [name]: Number(text) };
}

function AnswerView({ model, answer }: { model: string; answer: Answer }) {
  const { timing, state } = answer;
  const fast = speed(timing);
  return (
    <article className="answer" aria-label={`${model} answers`} aria-busy={state === "runs"}>
      <h2>{model}</h2>
      {answer.thought !== "" && (
        <details>
          <summary>What it thought</summary>
          <p className="said note">{answer.thought}</p>
        </details>
      )}
      <p className="said">{answer.text}</p>
      {answer.calls.map((call, n) => (
        <div key={n} className="note">
          It calls <b>{call.name}</b> with
          <p className="said">
            <code>{indented(call.arguments)}</code>
          </p>
        </div>
      ))}
      {state === "runs" && answer.text === "" && answer.calls.length === 0 && <Waiting model={model} />}
      {state === "failed" && <Failed error={answer.why} />}
      <p className="note timing">
        {[
          timing.ttft === null ? "" : `first token after ${duration(timing.ttft)}`,
          fast === null ? "" : `${fast.toFixed(1)} tokens/s`,
          timing.tokens === 0 ? "" : `${timing.tokens} tokens`,
          state === "stopped" ? "stopped" : "",
        ]
          .filter((part) => part !== "")
          .join(" · ")}
      </p>
    </article>
  );
}

/** Why there is nothing yet, as the server tells it. */
function Waiting({ model }: { model: string }) {
  const { data } = useOverview();
  const entry = data?.queue.entries.find((waiting) => waiting.model === model);
  const instance = data?.models.find(({ id }) => id === model)?.instance;
  if (entry !== undefined) {
    return (
      <p className="note">
        Waits: <Prose text={entry.why} /> {entry.eta_s !== null && `About ${about(entry.eta_s)}.`}
      </p>
    );
  }
  return <p className="note">{instance?.state === "ready" ? "Thinks…" : "Waits for the model…"}</p>;
}

function Parameter(props: { title: string; value: string; step: string; onChange: (value: string) => void }) {
  return (
    <label>
      {props.title}
      <input type="number" min="0" step={props.step} placeholder="the model's" value={props.value} onChange={(event) => props.onChange(event.target.value)} />
    </label>
  );
}
