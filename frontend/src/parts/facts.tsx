import type { ReactNode } from "react";

/** Names and what they are. Facts that are null are left out. */
export function Facts({ facts }: { facts: readonly (readonly [string, ReactNode])[] }) {
  return (
    <dl className="facts-list">
      {facts
        .filter(([, value]) => value !== null && value !== "" && value !== undefined)
        .map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
    </dl>
  );
}
