import { useMemo, useState } from "react";
import { Link } from "wouter";
import { useLook } from "../api/look";
import { useSession } from "../api/overview";
import type { Key, NewKey } from "../api/types";
import { about } from "../format/quantities";
import { useSetting } from "../frame/address";
import { useTitle } from "../frame/shared";
import { Confirm } from "../parts/confirm";
import { DataTable, type Column } from "../parts/data-table";
import { Failed } from "../parts/failed";
import { KeyForm, LIMITS } from "../parts/key-form";
import { SecretDialog } from "../parts/secret";

/** Who may use the server, for what, and how much. */
export default function KeysPage() {
  useTitle("Keys");
  const session = useSession();
  const { data, error, refetch } = useLook<Key[]>("api/keys", 10);
  const [search, setSearch] = useSetting("q");
  const [all, setAll] = useSetting("all");
  const [makes, setMakes] = useSetting("new");
  const [edited, setEdited] = useState<Key | null>(null);
  const [revoked, setRevoked] = useState<Key | null>(null);
  const [rotated, setRotated] = useState<Key | null>(null);
  const [made, setMade] = useState<NewKey | null>(null);
  const [trouble, setTrouble] = useState<Error | null>(null);

  const columns = useMemo<readonly Column<Key>[]>(
    () => [
      {
        id: "name",
        title: "Name",
        head: true,
        sort: (key) => key.name,
        cell: (key) => (
          <>
            {key.name}
            <span className="under">
              {key.prefix}… · {key.id}
            </span>
          </>
        ),
      },
      { id: "state", title: "State", width: "9rem", sort: (key) => stateOf(key), cell: (key) => <span className={key.active ? "good" : "note"}>{stateOf(key)}</span> },
      { id: "scopes", title: "Scopes", width: "11rem", cell: (key) => key.scopes.join(", ") },
      { id: "models", title: "Models", cell: (key) => (key.models === null ? <span className="note">all</span> : key.models.join(", ")) },
      { id: "limits", title: "Limits", cell: (key) => <LimitsCell of={key} /> },
      { id: "made", title: "Made", width: "8rem", sort: (key) => key.created_at, cell: (key) => new Date(key.created_at * 1000).toLocaleDateString() },
      {
        id: "acts",
        title: "(Acts)",
        width: "15rem",
        cell: (key) =>
          key.revoked_at === null && (
            <span className="buttons" role="group" aria-label={`Acts on ${key.name}`}>
              <button type="button" aria-label={`Change ${key.name}`} onClick={() => setEdited(key)}>
                Change
              </button>
              <button type="button" aria-label={`Rotate ${key.name}`} onClick={() => setRotated(key)}>
                Rotate
              </button>
              <button type="button" className="danger" aria-label={`Revoke ${key.name}`} onClick={() => setRevoked(key)}>
                Revoke
              </button>
            </span>
          ),
      },
    ],
    [],
  );
  const rows = useMemo(() => {
    const words = search.toLowerCase().split(/\s+/);
    return (data ?? []).filter((key) => (all !== "" || key.active) && words.every((word) => `${key.name} ${key.id} ${key.scopes.join(" ")} ${(key.models ?? []).join(" ")}`.toLowerCase().includes(word)));
  }, [data, search, all]);
  const during = async (work: () => Promise<void>) => {
    setTrouble(null);
    try {
      await work();
      void refetch();
    } catch (failure) {
      setTrouble(failure as Error);
    }
  };
  return (
    <>
      <div className="page-head">
        <h1>Keys</h1>
        <input type="search" aria-label="Search keys" placeholder="Search…" value={search} onChange={(event) => setSearch(event.target.value)} />
        <label className="check">
          <input type="checkbox" checked={all !== ""} onChange={(event) => setAll(event.target.checked ? "1" : "")} />
          Also those that ended
        </label>
        <button type="button" className="primary" onClick={() => setMakes("1")}>
          New key
        </button>
      </div>
      <Failed error={error ?? trouble} />
      <section aria-label="Keys">
        <DataTable
          label="All keys"
          rows={rows}
          columns={columns}
          id={(key) => key.id}
          guess={56}
          empty={data === undefined ? (error === null ? "Asking the server…" : "") : data.length === 0 ? <>There are no keys. Make one, or type <code>vllm-mm keys create NAME</code></> : "No key fits."}
        />
        <p className="table-foot note">
          <Link href="/usage?by=key">What keys used</Link>
        </p>
      </section>
      {(makes !== "" || edited !== null) && (
        <KeyForm
          before={edited}
          onClose={() => {
            setMakes("");
            setEdited(null);
          }}
          onDone={(key) => {
            setMakes("");
            setEdited(null);
            if (key !== null) setMade(key);
            void refetch();
          }}
        />
      )}
      {rotated !== null && (
        <Confirm
          question={{ title: `Give ${rotated.name} a new secret?`, points: ["The old one is good for another hour, so that clients can be changed meanwhile."], confirm: "Rotate" }}
          cut={0}
          onNo={() => setRotated(null)}
          onYes={() => {
            setRotated(null);
            void during(async () => setMade(await session.post<NewKey>(`api/keys/${encodeURIComponent(rotated.id)}/rotate`, { overlap: 3600 })));
          }}
        />
      )}
      {revoked !== null && (
        <Confirm
          question={{ title: `Revoke ${revoked.name}?`, points: ["It is refused from now on, and what waits for it too. It cannot be undone."], confirm: "Revoke" }}
          cut={0}
          typed={revoked.name}
          onNo={() => setRevoked(null)}
          onYes={() => {
            setRevoked(null);
            void during(() => session.send("DELETE", `api/keys/${encodeURIComponent(revoked.id)}`));
          }}
        />
      )}
      {made !== null && <SecretDialog made={made} onClose={() => setMade(null)} />}
    </>
  );
}

function stateOf(key: Key): string {
  if (key.revoked_at !== null) return "revoked";
  if (key.expires_at === null) return key.active ? "good" : "ended";
  return key.active ? `good for ${about(key.expires_at - Date.now() / 1000)}` : "ended";
}

function LimitsCell({ of }: { of: Key }) {
  const set = LIMITS.filter(({ name }) => of.limits[name] !== null);
  if (set.length === 0) return <span className="note">none</span>;
  return (
    <ul className="limits">
      {set.map(({ name, short }) => (
        <li key={name}>
          {of.used === null ? "" : `${Math.round(of.used[name]).toLocaleString()} of `}
          {(of.limits[name] ?? 0).toLocaleString()} {short}
        </li>
      ))}
    </ul>
  );
}
