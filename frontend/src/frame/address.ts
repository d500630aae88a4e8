/** What the address says: the page, the model, and what is set on the page. */

import { useCallback } from "react";
import { useLocation, useRouter, useSearchParams } from "wouter";

/** `/models/ID` in the dashboard; ids may hold slashes and any other character. */
export function modelPage(id: string, tab?: string): string {
  const path = `/models/${id.split("/").map(encodeURIComponent).join("/")}`;
  return tab === undefined ? path : `${path}?tab=${tab}`;
}

/** The model's id in the path of an address as the browser has it, `base` being the root of the pages. */
export function modelIn(pathname: string, base: string): string {
  const rest = pathname.slice(`${base}/models/`.length).replace(/\/$/, "");
  return rest.split("/").map(decoded).join("/");
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // typed by hand, with a stray %
  }
}

export function useModelId(): string {
  const { base } = useRouter();
  useLocation(); // drawn anew when it changes
  return modelIn(location.pathname, base);
}

/** One value of the address' query. The fallback is not written there. */
export function useSetting(name: string, fallback = ""): [string, (value: string) => void] {
  const [all, change] = useSearchParams();
  const set = useCallback(
    (value: string) =>
      change(
        (before) => {
          const after = new URLSearchParams(before);
          if (value === fallback) after.delete(name);
          else after.set(name, value);
          return after;
        },
        { replace: true },
      ),
    [change, fallback, name],
  );
  return [all.get(name) ?? fallback, set];
}
