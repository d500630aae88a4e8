import * as Menu from "@radix-ui/react-dropdown-menu";
import { Link, useLocation } from "wouter";
import { useLook } from "../api/look";
import { useSession } from "../api/overview";
import type { Status, Who } from "../api/types";
import { duration } from "../format/quantities";
import { PLACES, placeOf } from "../frame/places";
import { setTheme, THEMES, useTheme, type Theme } from "../frame/theme";
import type { Connection } from "../live/feed";
import { useNow } from "./clock";

export interface HeaderProps {
  status: Status | undefined;
  connection: Connection;
  onFind: () => void;
  onHelp: () => void;
}

export function Header({ status, connection, onFind, onHelp }: HeaderProps) {
  const [path] = useLocation();
  const here = placeOf(path);
  return (
    <header>
      <a className="skip" href="#main" onClick={toMain}>
        To the content
      </a>
      <Link href="/" className="brand" title={status === undefined ? undefined : `${status.version}, up ${duration(status.uptime_s)}`}>
        <img src="./icon.svg" alt="" width="22" height="22" />
        vllm-mm
      </Link>
      <nav aria-label="Pages">
        {PLACES.map((place) => (
          <Link key={place.path} href={place.path} aria-current={place === here ? "page" : undefined}>
            {place.title}
          </Link>
        ))}
      </nav>
      <ConnectionState connection={connection} />
      <button type="button" className="find" onClick={onFind} title="Find a page, a model or an act" aria-keyshortcuts="Control+K">
        <svg viewBox="0 0 16 16" aria-hidden="true">
          <path d="M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10zM10.8 10.8 14 14" />
        </svg>
        <span className="wide">
          Find <kbd>Ctrl K</kbd>
        </span>
      </button>
      <MainMenu onHelp={onHelp} here={here?.path} status={status} />
    </header>
  );
}

/** A link to `#main` would be one to the root of the dashboard, because of the page's <base>. */
function toMain(event: { preventDefault: () => void }) {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

function MainMenu(props: { onHelp: () => void; here: string | undefined; status: Status | undefined }) {
  const session = useSession();
  const { data: who } = useLook<Who>("api/session");
  const theme = useTheme();
  const [, navigate] = useLocation();
  return (
    <Menu.Root modal={false}>
      <Menu.Trigger className="menu-button" aria-label="Menu">
        <svg viewBox="0 0 16 16" aria-hidden="true">
          <path d="M2.5 4h11M2.5 8h11M2.5 12h11" />
        </svg>
      </Menu.Trigger>
      {/* Not in a portal: it belongs to the head, also for those who go by landmarks. */}
      <Menu.Content className="menu" align="end" sideOffset={6} collisionPadding={8}>
        <Menu.Group className="narrow">
          {PLACES.map((place) => (
            <Menu.Item key={place.path} className={place.path === props.here ? "current" : undefined} onSelect={() => navigate(place.path)}>
              {place.title}
            </Menu.Item>
          ))}
          <Menu.Separator />
        </Menu.Group>
        <Menu.Item onSelect={() => navigate("/add")}>Add a model</Menu.Item>
        <Menu.Item asChild>
          <a href="docs">API documentation</a>
        </Menu.Item>
        <Menu.Item onSelect={props.onHelp}>
          Keyboard <kbd>?</kbd>
        </Menu.Item>
        <Menu.Separator />
        <Menu.Label>Theme</Menu.Label>
        <Menu.RadioGroup value={theme} onValueChange={(value) => setTheme(value as Theme)}>
          {THEMES.map((name) => (
            <Menu.RadioItem key={name} value={name}>
              {name[0]?.toUpperCase() + name.slice(1)}
              <Menu.ItemIndicator aria-hidden="true">✓</Menu.ItemIndicator>
            </Menu.RadioItem>
          ))}
        </Menu.RadioGroup>
        {who?.by === "session" && (
          <>
            <Menu.Separator />
            <Menu.Label>
              {who.name}: {who.scopes.join(", ")}
            </Menu.Label>
            <Menu.Item onSelect={() => void session.signOut()}>Sign out</Menu.Item>
          </>
        )}
        {props.status !== undefined && (
          <Menu.Label>
            {props.status.version} · up {duration(props.status.uptime_s)}
          </Menu.Label>
        )}
      </Menu.Content>
    </Menu.Root>
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
