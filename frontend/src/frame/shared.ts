/** What the frame has and pages need: the feed, acts on models, and where trouble is told. */

import { createContext, useContext, useEffect } from "react";
import type { Act } from "../format/acts";
import type { Feed } from "../live/feed";

export interface Shared {
  feed: Feed;
  /** Model and act that were sent and not answered yet. */
  sent: ReadonlySet<string>;
  onAct: (model: string, act: Act) => void;
}

export const SharedContext = createContext<Shared | null>(null);

export function useShared(): Shared {
  const shared = useContext(SharedContext);
  if (shared === null) throw new Error("no frame above");
  return shared;
}

/** The title of the tab, and where a screen reader is after a change of the page. */
export function useTitle(title: string): void {
  useEffect(() => {
    document.title = title === "" ? "vllm-mm" : `${title} · vllm-mm`;
  }, [title]);
}
