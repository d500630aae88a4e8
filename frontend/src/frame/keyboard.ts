/** Keys that work wherever nothing is typed: `/`, `?`, Ctrl-K, and `g` with a letter. */

import { useEffect, useRef } from "react";

export interface Stroke {
  key: string;
  /** Ctrl, or Command on a Mac. */
  command: boolean;
  alt: boolean;
  /** Something is typed into a field just now. */
  typing: boolean;
}

export type Wish = { kind: "palette" } | { kind: "search" } | { kind: "help" } | { kind: "go"; letter: string };

const TOGETHER = 1200; // ms between `g` and its letter

/** Finds wishes in what is typed. */
export class Strokes {
  #wentAt: number | null = null;

  push(stroke: Stroke, now: number): Wish | null {
    const went = this.#wentAt !== null && now - this.#wentAt <= TOGETHER;
    this.#wentAt = null;
    if (stroke.alt) return null;
    if (stroke.command) return stroke.key.toLowerCase() === "k" ? { kind: "palette" } : null;
    if (stroke.typing) return null;
    if (went && /^[a-z]$/.test(stroke.key)) return { kind: "go", letter: stroke.key };
    if (stroke.key === "g") this.#wentAt = now;
    if (stroke.key === "/") return { kind: "search" };
    return stroke.key === "?" ? { kind: "help" } : null;
  }
}

function typing(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && target.closest("input, textarea, select, [contenteditable], [role=menu], dialog") !== null;
}

/** `act` says whether it did something; then the browser does nothing. */
export function useKeyboard(act: (wish: Wish) => boolean): void {
  const latest = useRef(act);
  useEffect(() => {
    latest.current = act;
  });
  useEffect(() => {
    const strokes = new Strokes();
    const listen = (event: KeyboardEvent) => {
      const wish = strokes.push(
        { key: event.key, command: event.ctrlKey || event.metaKey, alt: event.altKey, typing: typing(event.target) },
        event.timeStamp,
      );
      if (wish !== null && latest.current(wish)) event.preventDefault();
    };
    window.addEventListener("keydown", listen);
    return () => window.removeEventListener("keydown", listen);
  }, []);
}
