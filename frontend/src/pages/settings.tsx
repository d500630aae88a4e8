import { useMemo, useState } from "react";
import { useLook } from "../api/look";
import { useSession } from "../api/overview";
import type { Profiles, Reload, Setting, Settings } from "../api/types";
import { useSetting } from "../frame/address";
import { useTitle } from "../frame/shared";
import { Change } from "../parts/change";
import { DataTable, type Column } from "../parts/data-table";
import { Dialog } from "../parts/dialog";
import { Failed } from "../parts/failed";
import { Prose } from "../parts/prose";
import { Section } from "../parts/section";

const COLUMNS: readonly Column<Setting>[] = [
  { id: "key", title: "Setting", head: true, width: "26%", sort: (setting) => setting.key, cell: (setting) => <code>{setting.key}</code> },
  { id: "value", title: "Value", cell: (setting) => <code className="value">{shown(setting.value)}</code> },
  { id: "source", title: "From", width: "8rem", sort: (setting) => setting.source, cell: (setting) => setting.source },
  { id: "where", title: "Where", width: "24%", cell: (setting) => <span className="note">{setting.where}</span> },
  { id: "live", title: "A change", width: "9rem", sort: (setting) => (setting.live ? 1 : 0), cell: (setting) => (setting.live ? "at a reload" : "at a restart") },
];

function shown(value: unknown): string {
  return value === null ? "–" : typeof value === "string" ? value : JSON.stringify(value);
}

/** What is in force and where it comes from; reload, and profiles. */
export default function SettingsPage() {
  useTitle("Settings");
  const session = useSession();
  const { data, error, refetch } = useLook<Settings>("api/settings", 10);
  const [search, setSearch] = useSetting("q");
  const [written, setWritten] = useSetting("written");
  const [would, setWould] = useState<Reload | null>(null);
  const [trouble, setTrouble] = useState<Error | null>(null);
  const [done, setDone] = useState("");
  const rows = useMemo(() => {
    const words = search.toLowerCase().split(/\s+/);
    return (data?.settings ?? []).filter((setting) => {
      const text = `${setting.key} ${shown(setting.value)} ${setting.where}`.toLowerCase();
      return (written === "" || setting.source !== "default") && words.every((word) => text.includes(word));
    });
  }, [data, search, written]);
  const reload = async (dry: boolean) => {
    setTrouble(null);
    setDone("");
    setWould(null);
    try {
      const told = await session.post<Reload>(`api/config/reload${dry ? "?dry_run=1" : ""}`);
      if (dry) setWould(told);
      else {
        setDone(told.changes.length === 0 ? "It was read again. No model has changed." : `It was read again. Changed: ${told.changes.map((change) => change.model).join(", ")}.`);
        void refetch();
      }
    } catch (failure) {
      setTrouble(failure as Error);
    }
  };
  return (
    <>
      <div className="page-head">
        <h1>Settings</h1>
        <input type="search" aria-label="Search settings" placeholder="Search…" value={search} onChange={(event) => setSearch(event.target.value)} />
        <label className="check">
          <input type="checkbox" checked={written !== ""} onChange={(event) => setWritten(event.target.checked ? "1" : "")} />
          Only what is written somewhere
        </label>
        <button type="button" disabled={data === undefined} onClick={() => void reload(true)}>
          Reload…
        </button>
      </div>
      <Failed error={error ?? trouble} />
      {data?.problem !== null && data !== undefined && <Failed error={`The last reload was refused: ${data.problem}`} />}
      <p className="note" role="status">
        {done}
      </p>
      {data !== undefined && data.at_restart.length > 0 && (
        <p className="failed">
          Changed, and not in force before the server is started again: {data.at_restart.join(", ")}
        </p>
      )}
      <Section title="In force" note={data === undefined ? undefined : (data.file ?? "no configuration file")}>
        <DataTable label="Settings" rows={rows} columns={COLUMNS} id={(setting) => setting.key} empty={data === undefined ? "Asking the server…" : "No setting fits."} guess={38} />
      </Section>
      <ProfileList />
      {would !== null && (
        <Dialog title="Read the configuration again?" onClose={() => setWould(null)}>
          {would.changes.length === 0 ? <p>No model changes.</p> : would.changes.map((change) => (
            <div key={change.model}>
              <h3>{change.model}</h3>
              <Change change={change} />
            </div>
          ))}
          {would.at_restart.length > 0 && <p>At the next start of the server: {would.at_restart.join(", ")}</p>}
          {would.warnings.map((warning) => (
            <p key={warning} className="busy">
              <Prose text={warning} />
            </p>
          ))}
          <div className="buttons">
            <button type="button" onClick={() => setWould(null)} autoFocus>
              Cancel
            </button>
            <button type="button" className="primary" onClick={() => void reload(false)}>
              Reload
            </button>
          </div>
        </Dialog>
      )}
    </>
  );
}

function ProfileList() {
  const session = useSession();
  const { data, refetch } = useLook<Profiles>("api/profiles", 10);
  const [error, setError] = useState<Error | null>(null);
  if (data === undefined || data.profiles.length === 0) return null;
  const act = async (path: string) => {
    try {
      await session.post(path);
      setError(null);
      void refetch();
    } catch (failure) {
      setError(failure as Error);
    }
  };
  return (
    <Section title="Profiles" note={data.active === null ? "none is active" : `${data.active}, by ${data.by}`}>
      <Failed error={error} />
      <ul className="rows">
        {data.profiles.map((profile) => (
          <li key={profile.name}>
            <span className="grow">
              <b>{profile.name}</b>
              <span className="under">
                {[
                  profile.pins === null ? "" : `pins ${profile.pins.join(", ") || "nothing"}`,
                  profile.preloads === null ? "" : `loads ${profile.preloads.join(", ") || "nothing"}`,
                  ...Object.entries(profile.aliases).map(([name, model]) => `${name} is ${model}`),
                ].filter((part) => part !== "").join(" · ")}
              </span>
            </span>
            <button type="button" aria-pressed={profile.active} onClick={() => void act(profile.active ? "api/profiles/deactivate" : `api/profiles/${encodeURIComponent(profile.name)}/activate`)}>
              {profile.active ? "Active" : "Activate"}
            </button>
          </li>
        ))}
      </ul>
    </Section>
  );
}
