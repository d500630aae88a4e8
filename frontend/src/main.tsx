import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { Router } from "wouter";
import { OVERVIEW, SessionContext } from "./api/overview";
import { Session } from "./api/session";
import { App } from "./app";
import { applyTheme } from "./frame/theme";
import { coalesced } from "./live/coalesce";
import { LiveFeed } from "./live/feed";
import "./style/index.css";

// Pages are below `ui`, wherever a reverse proxy puts the server; its own address leads there.
const root = new URL("ui", document.baseURI).pathname;
if (location.pathname === new URL(".", document.baseURI).pathname) history.replaceState(null, "", `${root}/${location.search}`);
applyTheme();

const session = new Session(document.baseURI);
const client = new QueryClient();
const live = new LiveFeed(
  session,
  coalesced(() => client.refetchQueries({ queryKey: OVERVIEW })),
);

const place = document.getElementById("root");
if (place === null) throw new Error("index.html has no #root");
createRoot(place).render(
  <StrictMode>
    <SessionContext value={session}>
      <QueryClientProvider client={client}>
        <Router base={root}>
          <App live={live} />
        </Router>
      </QueryClientProvider>
    </SessionContext>
  </StrictMode>,
);
