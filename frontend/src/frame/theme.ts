/** Light, dark, or as the system has it. Kept in this browser. */

import { useSyncExternalStore } from "react";

export const THEMES = ["system", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

const STORED = "vllm-mm.theme";
const listeners = new Set<() => void>();

function stored(): Theme {
  try {
    const found = localStorage.getItem(STORED);
    return THEMES.find((theme) => theme === found) ?? "system";
  } catch {
    return "system"; // a browser that keeps nothing
  }
}

let current = stored();

/** Has to be called once before anything is drawn. */
export function applyTheme(): void {
  if (current === "system") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.dataset["theme"] = current;
}

export function setTheme(theme: Theme): void {
  current = theme;
  try {
    if (theme === "system") localStorage.removeItem(STORED);
    else localStorage.setItem(STORED, theme);
  } catch {
    // It holds for as long as the page is open.
  }
  applyTheme();
  for (const listener of listeners) listener();
}

export function useTheme(): Theme {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => current,
  );
}

/** Called when the colours change, by choice or by the system. Returns what ends it. */
export function onColours(listener: () => void): () => void {
  const system = matchMedia("(prefers-color-scheme: dark)");
  listeners.add(listener);
  system.addEventListener("change", listener);
  return () => {
    listeners.delete(listener);
    system.removeEventListener("change", listener);
  };
}
