import { useEffect, useMemo, useState } from "react";
import { useLocation } from "wouter";
import { useSession } from "../../api/overview";
import { modelPath } from "../../api/paths";
import type { DryRun, Model } from "../../api/types";
import { declared, parsed, patch } from "../../format/declaration";
import { modelPage } from "../../frame/address";
import { Change } from "../change";
import { Confirm } from "../confirm";
import { Failed } from "../failed";
import { Prose } from "../prose";
import { Section } from "../section";
import { Memory } from "./about";

const SETTLES = 400; // ms without typing, before the server is asked what a change would do

/** The declaration. One that was made over the API can be changed: what that would do is shown before it is done. */
export function Declaration({ model, onSaved }: { model: Model; onSaved: () => void }) {
  return model.source === "api" ? <Editor model={model} onSaved={onSaved} /> : <OfTheFile model={model} />;
}

function OfTheFile({ model }: { model: Model }) {
  const session = useSession();
  const [, navigate] = useLocation();
  const [id, setId] = useState(`${model.id}-copy`);
  const [error, setError] = useState<Error | null>(null);
  const copy = async () => {
    try {
      await session.post(modelPath(model.id, "copy"), { id });
      navigate(modelPage(id, "declaration"));
    } catch (failure) {
      setError(failure as Error);
    }
  };
  return (
    <Section title="Configuration" note="declared in the file; change it there and reload">
      <textarea readOnly className="code" aria-label={`Declaration of ${model.id}`} rows={16} value={JSON.stringify(declared(model), null, 2)} />
      <form
        className="filters"
        onSubmit={(event) => {
          event.preventDefault();
          void copy();
        }}
      >
        <label>
          A copy that can be changed here
          <input value={id} maxLength={200} onChange={(event) => setId(event.target.value)} />
        </label>
        <button type="submit" disabled={id.trim() === "" || id === model.id}>
          Copy
        </button>
      </form>
      <Failed error={error} />
    </Section>
  );
}

function Editor({ model, onSaved }: { model: Model; onSaved: () => void }) {
  const session = useSession();
  const [, navigate] = useLocation();
  // What was seen when the editing began: somebody else's change is not overwritten, the server refuses it by its ETag.
  const [seen, setSeen] = useState<{ declared: Record<string, unknown>; etag: string } | null>(null);
  const [text, setText] = useState("");
  const [outcome, setOutcome] = useState<DryRun | null>(null);
  const [error, setError] = useState<Error | string | null>(null);
  const [removes, setRemoves] = useState(false);
  const path = modelPath(model.id);
  const [round, setRound] = useState(0);

  useEffect(() => {
    const stop = new AbortController();
    void (async () => {
      try {
        const answer = await session.fetch(path, { signal: stop.signal });
        const found = declared((await answer.json()) as Model);
        setSeen({ declared: found, etag: answer.headers.get("ETag") ?? "*" });
        setText(JSON.stringify(found, null, 2));
      } catch (failure) {
        if (!stop.signal.aborted) setError(failure as Error);
      }
    })();
    return () => stop.abort();
  }, [session, path, round]);

  const now = useMemo(() => parsed(text), [text]);
  const changes = useMemo(() => (seen !== null && "value" in now ? patch(seen.declared, now.value) : {}), [seen, now]);
  const changed = Object.keys(changes).length > 0;
  useEffect(() => {
    setOutcome(null);
    setError(text !== "" && "problem" in now ? now.problem : null);
    if (!changed) return;
    let over = false;
    const timer = setTimeout(() => {
      session.send<DryRun>("PATCH", `${path}?dry_run=1`, changes).then(
        (would) => !over && setOutcome(would),
        (failure: Error) => !over && setError(failure),
      );
    }, SETTLES);
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, [session, path, changes, changed, now, text]);

  const save = async () => {
    if (seen === null) return;
    try {
      await session.send("PATCH", path, changes, { "If-Match": seen.etag });
      setRound(round + 1);
      onSaved();
    } catch (failure) {
      setError(failure as Error);
    }
  };
  const remove = async () => {
    setRemoves(false);
    try {
      await session.send("DELETE", path);
      navigate("/models");
    } catch (failure) {
      setError(failure as Error);
    }
  };
  return (
    <div className="pair">
      <Section title="Configuration" note="as in the file; null takes a key away">
        <textarea className="code" aria-label={`Declaration of ${model.id}`} spellCheck={false} rows={22} value={text} onChange={(event) => setText(event.target.value)} />
        <div className="buttons">
          <button type="button" className="danger" onClick={() => setRemoves(true)}>
            Remove…
          </button>
          <span className="grow" />
          <button type="button" disabled={!changed && error === null} onClick={() => setRound(round + 1)}>
            Discard
          </button>
          <button type="button" className="primary" disabled={outcome === null} onClick={() => void save()}>
            Save
          </button>
        </div>
      </Section>
      <Section title="What that would do">
        <Failed error={error} />
        {outcome === null ? (
          error === null && <p className="empty">{changed ? "Asking the server…" : "Nothing is changed yet."}</p>
        ) : (
          <>
            <Change change={outcome.change} />
            {outcome.notes.map((note) => (
              <p key={note} className="note">
                <Prose text={note} />
              </p>
            ))}
            {outcome.footprint !== null && <Memory footprint={outcome.footprint} devices={model.devices.count} />}
          </>
        )}
      </Section>
      {removes && (
        <Confirm
          question={{ title: `Remove ${model.id}?`, points: ["Its engine finishes what runs, and stops.", "Requests that name it are refused from then on."], confirm: "Remove" }}
          cut={0}
          typed={model.id}
          onYes={() => void remove()}
          onNo={() => setRemoves(false)}
        />
      )}
    </div>
  );
}
