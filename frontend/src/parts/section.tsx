import { useId, type ReactNode } from "react";

/** A titled part of the page. `note` stands beside the title, for a number or a state. */
export function Section(props: { title: string; note?: ReactNode; className?: string; children: ReactNode }) {
  const id = useId();
  return (
    <section aria-labelledby={id} className={props.className}>
      <div className="section-head">
        <h2 id={id}>{props.title}</h2>
        {props.note !== undefined && <span className="note">{props.note}</span>}
      </div>
      {props.children}
    </section>
  );
}
