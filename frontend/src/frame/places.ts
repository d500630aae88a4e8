/** The pages, and how each is reached: by its link, by the palette, and by `g` and a letter. */

import { lazy, type ComponentType, type LazyExoticComponent } from "react";

export interface Place {
  /** Below the root of the pages (`/ui`). */
  path: string;
  title: string;
  /** Typed after `g`. */
  letter: string;
  page: LazyExoticComponent<ComponentType>;
  /** What else somebody may type into the palette to find it. */
  words: string;
}

const page = (load: () => Promise<{ default: ComponentType }>) => lazy(load);

export const PLACES: readonly Place[] = [
  { path: "/", title: "Overview", letter: "o", page: page(() => import("../pages/overview")), words: "home devices memory alerts" },
  { path: "/models", title: "Models", letter: "m", page: page(() => import("../pages/models")), words: "list table" },
  { path: "/playground", title: "Playground", letter: "p", page: page(() => import("../pages/playground")), words: "chat try embeddings rerank tokenise" },
  { path: "/requests", title: "Requests", letter: "r", page: page(() => import("../pages/requests")), words: "ledger queue cancel capture" },
  { path: "/events", title: "Events", letter: "e", page: page(() => import("../pages/events")), words: "timeline history log" },
  { path: "/charts", title: "Charts", letter: "c", page: page(() => import("../pages/charts")), words: "time series graphs latency tokens memory swaps kv" },
  { path: "/usage", title: "Usage", letter: "u", page: page(() => import("../pages/usage")), words: "tokens cost charts csv" },
  { path: "/keys", title: "Keys", letter: "k", page: page(() => import("../pages/keys")), words: "access limits secrets" },
  { path: "/settings", title: "Settings", letter: "s", page: page(() => import("../pages/settings")), words: "configuration reload" },
];

/** Reached from other pages, not from the navigation. */
export const MORE: readonly Place[] = [
  { path: "/add", title: "Add a model", letter: "a", page: page(() => import("../pages/add")), words: "new hugging face folder" },
];

export const MODEL = page(() => import("../pages/model"));

/** The place that `path` belongs to; of a model's own page it is Models. */
export function placeOf(path: string): Place | undefined {
  return [...PLACES, ...MORE].find((place) => (place.path === "/" ? path === "/" : path === place.path || path.startsWith(`${place.path}/`)));
}
