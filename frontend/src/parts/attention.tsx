import type { ReactNode } from "react";
import { Prose } from "./prose";
import { Section } from "./section";

/** What an operator should look at, each with what mends it. Nothing while all is well. */
export function Attention({ alerts, own }: { alerts: readonly string[]; own: ReactNode }) {
  if (alerts.length === 0 && own === null) return null;
  return (
    <Section title="Needs attention" className="attention">
      <ul>
        {own !== null && <li>{own}</li>}
        {alerts.map((alert) => (
          <li key={alert}>
            <Prose text={alert} />
          </li>
        ))}
      </ul>
    </Section>
  );
}
