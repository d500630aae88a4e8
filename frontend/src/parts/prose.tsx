import type { ReactNode } from "react";

/** The server's sentences: what stands in backticks is something to type. */
export function Prose({ text }: { text: string }): ReactNode {
  return text.split("`").map((part, n) => (n % 2 === 1 ? <code key={n}>{part}</code> : part));
}
