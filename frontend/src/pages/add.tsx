import { useEffect, useState } from "react";
import { useLocation } from "wouter";
import { useSession } from "../api/overview";
import type { DryRun, Fit } from "../api/types";
import { parsed } from "../format/declaration";
import { repositoryOf } from "../format/pulls";
import { bytes } from "../format/quantities";
import { modelPage, useSetting } from "../frame/address";
import { useShared, useTitle } from "../frame/shared";
import { Download } from "../parts/download";
import { Failed } from "../parts/failed";
import { Memory } from "../parts/model/about";
import { Prose } from "../parts/prose";
import { Section } from "../parts/section";

const SETTLES = 500; // ms without typing, before the server is asked
const ENGINES = ["", "vllm", "sim", "command"] as const;
const TASKS = ["", "generate", "embed", "score", "classify", "transcribe"] as const;

/** A new model: what it would take is shown before it is made. */
export default function AddPage() {
  useTitle("Add a model");
  const session = useSession();
  const { onAct } = useShared();
  const [, navigate] = useLocation();
  const [source, setSource] = useSetting("model");
  const [name, setName] = useSetting("id");
  const [engine, setEngine] = useSetting("engine");
  const [task, setTask] = useSetting("task");
  const [more, setMore] = useSetting("more");
  const [outcome, setOutcome] = useState<DryRun | null>(null);
  const [error, setError] = useState<Error | string | null>(null);
  const [busy, setBusy] = useState(false);
  const id = name.trim() !== "" ? name.trim() : nameFor(source);
  const ready = id !== "";
  const repository = engine === "" || engine === "vllm" ? repositoryOf(source) : null;
  const extra = more.trim() === "" ? { value: {} } : parsed(more);
  const problem = "problem" in extra ? extra.problem : null;
  const body = JSON.stringify({
    id,
    ...(source.trim() === "" ? {} : { model: source.trim() }),
    ...(engine === "" ? {} : { engine }),
    ...(task === "" ? {} : { task }),
    ...("value" in extra ? extra.value : {}),
  });
  useEffect(() => {
    setOutcome(null);
    setError(problem);
    if (!ready || problem !== null) return;
    let over = false;
    const timer = setTimeout(() => {
      session.post<DryRun>("api/models?dry_run=1", JSON.parse(body)).then(
        (would) => !over && setOutcome(would),
        (failure: Error) => !over && setError(failure),
      );
    }, SETTLES);
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, [session, body, ready, problem]);
  const add = async (start: boolean) => {
    setBusy(true);
    try {
      await session.post("api/models", JSON.parse(body));
      navigate(modelPage(id));
      if (start) onAct(id, "start"); // which asks first, where others would feel it
    } catch (failure) {
      setError(failure as Error);
      setBusy(false);
    }
  };
  return (
    <>
      <div className="page-head">
        <h1>Add a model</h1>
      </div>
      <div className="pair">
        <Section title="What to load">
          <form
            className="form"
            onSubmit={(event) => {
              event.preventDefault();
              if (outcome !== null && !busy) void add(true);
            }}
          >
            <label>
              Hugging Face id, or a folder on the server
              <input value={source} autoFocus spellCheck={false} placeholder="Qwen/Qwen2.5-7B-Instruct" onChange={(event) => setSource(event.target.value)} />
            </label>
            <label>
              Name that clients use
              <input value={name} spellCheck={false} maxLength={200} placeholder={nameFor(source) || "my-model"} onChange={(event) => setName(event.target.value)} />
            </label>
            <div className="grid-2">
              <label>
                Engine
                <select value={engine} onChange={(event) => setEngine(event.target.value)}>
                  {ENGINES.map((kind) => (
                    <option key={kind} value={kind}>
                      {kind === "" ? "as the configuration says" : kind}
                    </option>
                  ))}
                </select>
              </label>
              <label>
                Task
                <select value={task} onChange={(event) => setTask(event.target.value)}>
                  {TASKS.map((kind) => (
                    <option key={kind} value={kind}>
                      {kind === "" ? "generate text" : kind}
                    </option>
                  ))}
                </select>
              </label>
            </div>
            <label>
              More, as in the configuration file (JSON)
              <textarea className="code" rows={5} spellCheck={false} value={more} placeholder='{"args": {"max-model-len": 8192}, "aliases": ["gpt-4o"]}' onChange={(event) => setMore(event.target.value)} />
            </label>
            <div className="buttons">
              <button type="button" disabled={outcome === null || busy} onClick={() => void add(false)}>
                Add
              </button>
              <button type="submit" className="primary" disabled={outcome === null || busy}>
                Add and start
              </button>
            </div>
          </form>
        </Section>
        <Section title="What it would take">
          <Failed error={error} />
          {outcome === null ? (
            error === null && <p className="empty">{ready ? "Asking the server…" : "Name a model, and the server says how much memory it needs and where it fits."}</p>
          ) : (
            <>
              {outcome.footprint !== null && (
                <>
                  <Memory footprint={outcome.footprint} devices={1} />
                  <h3>Where it fits</h3>
                  <ul className="rows">
                    {outcome.fits.map((fit) => (
                      <FitView key={fit.device} fit={fit} />
                    ))}
                  </ul>
                </>
              )}
              {outcome.notes.map((note) => (
                <p key={note} className="note">
                  <Prose text={note} />
                </p>
              ))}
            </>
          )}
          {repository !== null && <Download repository={repository} />}
        </Section>
      </div>
    </>
  );
}

/** The last part of an id or a path, as a name. */
export function nameFor(source: string): string {
  return (source.trim().replace(/\/+$/, "").split("/").at(-1) ?? "").toLowerCase();
}

const FITS: Record<Fit["fits"], readonly [tone: string, text: string]> = {
  now: ["good", "fits now"],
  room: ["busy", "fits when others make room"],
  held: ["busy", "has no room now"],
  never: ["bad", "does not fit"],
  out: ["bad", "out of use"],
};

function FitView({ fit }: { fit: Fit }) {
  const [tone, text] = FITS[fit.fits];
  return (
    <li>
      <span className="grow">
        <b>{fit.device}</b>
        <span className="under">
          {bytes(fit.free)} free of {bytes(fit.capacity)}
        </span>
        {(fit.victims.length > 0 || (fit.fits === "held" && fit.reason !== "")) && <span className="under">{fit.victims.length > 0 ? `${fit.victims.join(", ")} would go` : fit.reason}</span>}
      </span>
      <span className={tone}>{text}</span>
    </li>
  );
}
