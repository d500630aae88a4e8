import { useAccess, useSession } from "../api/overview";
import type { Status } from "../api/types";
import { duration } from "../format/quantities";
import type { Connection } from "../live/feed";
import { useNow } from "./clock";

export function Header({ status, connection, onKey }: { status: Status | undefined; connection: Connection; onKey: () => void }) {
  const session = useSession();
  const { name } = useAccess();
  return (
    <header>
      <h1>
        vllm-mm <span className="version">{status?.version ?? ""}</span>
      </h1>
      <span className="facts">{status !== undefined && `up ${duration(status.uptime_s)}`}</span>
      <ConnectionState connection={connection} />
      <nav aria-label="Server">
        <a href="docs">API docs</a>
        {name !== null ? (
          <button type="button" className="plain" title={`Signed in with the key ${name}`} onClick={() => void session.leave()}>
            Sign out
          </button>
        ) : (
          connection.kind === "refused" && (
            <button type="button" className="plain" onClick={onKey}>
              Sign in
            </button>
          )
        )}
      </nav>
    </header>
  );
}

function ConnectionState({ connection }: { connection: Connection }) {
  return (
    <span className={`connection ${connection.kind}`} role="status" title={"why" in connection ? connection.why : undefined}>
      <span className="dot" aria-hidden="true" />
      {connection.kind === "live" && "Live"}
      {connection.kind === "connecting" && "Connecting…"}
      {connection.kind === "refused" && "No access"}
      {connection.kind === "waiting" && <Countdown until={connection.until} />}
    </span>
  );
}

function Countdown({ until }: { until: number }) {
  const seconds = Math.ceil((until - useNow()) / 1000);
  // Read out once, not every second.
  return (
    <span>
      Not connected<span aria-hidden="true">{seconds > 0 ? `, again in ${seconds} s` : ""}</span>
    </span>
  );
}
