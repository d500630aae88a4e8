import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { OVERVIEW, SessionContext } from "./api/overview";
import { Session } from "./api/session";
import { App } from "./app";
import { coalesced } from "./live/coalesce";
import { LiveFeed } from "./live/feed";
import "./style.css";

const session = new Session(document.baseURI);
void session.recall();
const client = new QueryClient();
const live = new LiveFeed(
  session,
  coalesced(() => client.refetchQueries({ queryKey: OVERVIEW })),
);

const root = document.getElementById("root");
if (root === null) throw new Error("index.html has no #root");
createRoot(root).render(
  <StrictMode>
    <SessionContext value={session}>
      <QueryClientProvider client={client}>
        <App live={live} />
      </QueryClientProvider>
    </SessionContext>
  </StrictMode>,
);
