import { useState } from "react";
import { useOverview, useSession } from "../api/overview";
import type { Key, Limits, NewKey, Right, Scope } from "../api/types";
import { Dialog } from "./dialog";
import { Failed } from "./failed";

const SCOPES: readonly [Scope, string][] = [
  ["infer", "send requests to models"],
  ["read", "look at everything but keys"],
  ["operate", "start, stop, sleep and wake models"],
  ["admin", "everything, keys and models too"],
];
const RIGHTS: readonly [Right, string][] = [
  ["load", "its requests may load a model"],
  ["evict", "its requests may have another model make room"],
  ["logs", "read engines' logs"],
  ["capture", "read captured requests"],
];
export const LIMITS: readonly { name: keyof Limits; title: string; short: string }[] = [
  { name: "concurrency", title: "Requests at the same time", short: "at the same time" },
  { name: "requests_per_minute", title: "Requests a minute", short: "requests/min" },
  { name: "tokens_per_minute", title: "Tokens a minute", short: "tokens/min" },
  { name: "tokens_per_day", title: "Tokens a day", short: "tokens/day" },
  { name: "tokens_per_month", title: "Tokens a month", short: "tokens/month" },
  { name: "device_seconds_per_day", title: "Device seconds a day", short: "device s/day" },
  { name: "device_seconds_per_month", title: "Device seconds a month", short: "device s/month" },
];
const EXPIRIES: readonly [string, number | null][] = [
  ["never", null],
  ["in a day", 86_400],
  ["in a week", 7 * 86_400],
  ["in 30 days", 30 * 86_400],
  ["in a year", 365 * 86_400],
];
const KEEP = "as it is";

/** Makes a key, or changes one. */
export function KeyForm({ before, onClose, onDone }: { before: Key | null; onClose: () => void; onDone: (made: NewKey | null) => void }) {
  const session = useSession();
  const { data } = useOverview();
  const [name, setName] = useState(before?.name ?? "");
  const [scopes, setScopes] = useState<readonly Scope[]>(before?.scopes ?? ["infer"]);
  const [acts, setActs] = useState<readonly Right[]>(before?.acts ?? RIGHTS.map(([right]) => right));
  const [models, setModels] = useState((before?.models ?? []).join(", "));
  const [expires, setExpires] = useState(before === null ? "never" : KEEP);
  const [limits, setLimits] = useState<Partial<Record<keyof Limits, string>>>(
    Object.fromEntries(LIMITS.map((limit) => [limit.name, before?.limits[limit.name]?.toString() ?? ""])),
  );
  const [error, setError] = useState<Error | null>(null);
  const save = async () => {
    setError(null);
    const named = models.split(",").map((model) => model.trim()).filter((model) => model !== "");
    const body = {
      name: name.trim(),
      scopes,
      acts,
      models: named.length === 0 ? null : named,
      limits: Object.fromEntries(LIMITS.map((limit) => [limit.name, (limits[limit.name] ?? "") === "" ? null : Number(limits[limit.name])])),
      ...(expires === KEEP ? {} : { expires_in: EXPIRIES.find(([title]) => title === expires)?.[1] ?? null }),
    };
    try {
      if (before === null) onDone(await session.post<NewKey>("api/keys", body));
      else {
        await session.send("PATCH", `api/keys/${encodeURIComponent(before.id)}`, body);
        onDone(null);
      }
    } catch (failure) {
      setError(failure as Error);
    }
  };
  return (
    <Dialog title={before === null ? "New key" : `Change ${before.name}`} onClose={onClose} className="wide-dialog">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void save();
        }}
      >
        <label>
          Name
          <input value={name} required maxLength={200} autoFocus placeholder="whose it is, or what for" onChange={(event) => setName(event.target.value)} />
        </label>
        <Choices legend="It may" all={SCOPES} chosen={scopes} onChange={setScopes} />
        <Choices legend="Besides" all={RIGHTS} chosen={acts} onChange={setActs} />
        <label>
          Models: ids, or patterns such as <code>qwen*</code>, with commas between them; empty for all
          <input value={models} list="models-of-keys" onChange={(event) => setModels(event.target.value)} />
          <datalist id="models-of-keys">
            {(data?.models ?? []).map(({ id }) => (
              <option key={id} value={id} />
            ))}
          </datalist>
        </label>
        <label>
          It ends
          <select value={expires} onChange={(event) => setExpires(event.target.value)}>
            {before !== null && <option>{KEEP}</option>}
            {EXPIRIES.map(([title]) => (
              <option key={title}>{title}</option>
            ))}
          </select>
        </label>
        <fieldset>
          <legend>At most; empty for no limit</legend>
          <div className="grid-2">
            {LIMITS.map((limit) => (
              <label key={limit.name}>
                {limit.title}
                <input type="number" min="1" step="1" value={limits[limit.name] ?? ""} onChange={(event) => setLimits({ ...limits, [limit.name]: event.target.value })} />
              </label>
            ))}
          </div>
        </fieldset>
        <Failed error={error} />
        <div className="buttons">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" className="primary" disabled={name.trim() === "" || scopes.length === 0}>
            {before === null ? "Make it" : "Save"}
          </button>
        </div>
      </form>
    </Dialog>
  );
}

function Choices<T extends string>(props: { legend: string; all: readonly (readonly [T, string])[]; chosen: readonly T[]; onChange: (chosen: T[]) => void }) {
  return (
    <fieldset>
      <legend>{props.legend}</legend>
      {props.all.map(([name, what]) => (
        <label key={name} className="check">
          <input
            type="checkbox"
            checked={props.chosen.includes(name)}
            onChange={(event) => props.onChange(event.target.checked ? [...props.chosen, name] : props.chosen.filter((other) => other !== name))}
          />
          <span>
            <b>{name}</b> <span className="note">{what}</span>
          </span>
        </label>
      ))}
    </fieldset>
  );
}
