import { useQueryClient } from "@tanstack/react-query";
import { Component, lazy, Suspense, useCallback, useEffect, useMemo, useRef, useState, useSyncExternalStore, type ReactNode } from "react";
import { Link, Route, Switch, useLocation } from "wouter";
import { useActs } from "./acting";
import { OVERVIEW, useAccess, useOverview } from "./api/overview";
import { Refused } from "./api/session";
import { question } from "./format/acts";
import { Help } from "./frame/help";
import { useKeyboard } from "./frame/keyboard";
import { MODEL, MORE, PLACES } from "./frame/places";
import { SharedContext, useTitle } from "./frame/shared";
import type { LiveFeed } from "./live/feed";
import { Attention } from "./parts/attention";
import { clockTime } from "./parts/clock";
import { Confirm } from "./parts/confirm";
import { Header } from "./parts/header";
import { Prose } from "./parts/prose";
import { SignIn } from "./parts/sign-in";

const Palette = lazy(() => import("./frame/palette"));

export function App({ live }: { live: LiveFeed }) {
  const feed = useSyncExternalStore(live.subscribe, live.snapshot);
  const { round, wanted } = useAccess();
  const [above, setAbove] = useState<"palette" | "help" | null>(null);
  const [path, navigate] = useLocation();
  const client = useQueryClient();
  const refresh = useCallback(() => void client.invalidateQueries({ queryKey: OVERVIEW }), [client]);
  const { data, error, dataUpdatedAt } = useOverview();
  const { sent, asked, trouble, act, answer, dismiss } = useActs(refresh);

  useEffect(() => {
    if (wanted !== null) return;
    // Who signs in may see other things than who was here before.
    void client.resetQueries();
    return live.start();
  }, [client, live, round, wanted]);

  useKeyboard((wish) => {
    if (wish.kind === "go") {
      const place = [...PLACES, ...MORE].find(({ letter }) => letter === wish.letter);
      if (place !== undefined) navigate(place.path);
      return place !== undefined;
    }
    const search = wish.kind === "search" ? document.querySelector<HTMLInputElement>("input[type=search]") : null;
    if (search !== null) search.focus();
    else setAbove(wish.kind === "help" ? "help" : "palette");
    return true;
  });
  const focus = useFocusOnChange(path);

  const shared = useMemo(() => ({ feed, sent, onAct: act }), [feed, sent, act]);
  const instance = data?.models.find((model) => model.id === asked?.model)?.instance ?? null;
  return (
    <SharedContext value={shared}>
      <Header
        status={data?.status}
        connection={wanted === null ? feed.connection : { kind: "refused", why: wanted }}
        onFind={() => setAbove("palette")}
        onHelp={() => setAbove("help")}
      />
      <main id="main" tabIndex={-1} ref={focus}>
        {wanted !== null ? (
          <SignIn why={wanted} />
        ) : (
          <>
            <Attention alerts={path === "/" ? (data?.status.alerts ?? []) : []} own={ownTrouble(error, dataUpdatedAt)} />
            <Broken key={path}>
              <Suspense fallback={<p className="empty first">Loading the page…</p>}>
                <Switch>
                  {[...PLACES, ...MORE].map((place) => (
                    <Route key={place.path} path={place.path} component={place.page} />
                  ))}
                  <Route path="/models/*" component={MODEL} />
                  <Route component={NotFound} />
                </Switch>
              </Suspense>
            </Broken>
          </>
        )}
      </main>
      <div className="notice" role="alert">
        {trouble !== null && (
          <>
            <span>
              <Prose text={trouble} />
            </span>
            <button type="button" onClick={dismiss}>
              Close
            </button>
          </>
        )}
      </div>
      {asked !== null && (
        <Confirm
          question={"question" in asked ? asked.question : question(asked.act, asked.model, instance)}
          cut={asked.act === "stop" ? (instance?.in_flight ?? 0) : 0}
          onYes={(force) => answer(true, force)}
          onNo={() => answer(false)}
        />
      )}
      {above === "help" && <Help onClose={() => setAbove(null)} />}
      {above === "palette" && (
        <Suspense>
          <Palette models={data?.models ?? []} onAct={act} onClose={() => setAbove(null)} />
        </Suspense>
      )}
    </SharedContext>
  );
}

/** After a change of the page the focus is at its beginning, as it is where a browser loads one. */
function useFocusOnChange(path: string) {
  const main = useRef<HTMLElement>(null);
  const before = useRef(path);
  useEffect(() => {
    if (before.current === path) return;
    before.current = path;
    window.scrollTo(0, 0);
    main.current?.focus({ preventScroll: true });
  }, [path]);
  return main;
}

function NotFound() {
  useTitle("No such page");
  return (
    <section>
      <h1>There is no such page</h1>
      <p>
        <Link href="/">To the overview</Link>
      </p>
    </section>
  );
}

/** A page that cannot be drawn, or be loaded because the server has another build by now, takes no other with it. */
class Broken extends Component<{ children: ReactNode }, { why: string | null }> {
  override state = { why: null };

  static getDerivedStateFromError(error: unknown) {
    return { why: error instanceof Error ? error.message : String(error) };
  }

  override render() {
    if (this.state.why === null) return this.props.children;
    return (
      <section role="alert">
        <h1>This page cannot be shown</h1>
        <p>{this.state.why}</p>
        <p>
          <button type="button" onClick={() => location.reload()}>
            Load it again
          </button>
        </p>
      </section>
    );
  }
}

/** What keeps the page itself from showing what is. */
function ownTrouble(error: Error | null, seenAt: number): ReactNode {
  if (error === null) return null;
  return (
    <>
      <Prose text={error.message} />
      {seenAt > 0 && ` What is shown here is of ${clockTime(seenAt)}.`}
      {error instanceof Refused && error.status === 403 && " Sign out in the menu, and in with another key."}
    </>
  );
}
