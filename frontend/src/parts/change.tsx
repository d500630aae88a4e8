import type { ModelChange } from "../api/types";

function shown(value: unknown): string {
  return value === null || value === undefined ? "–" : typeof value === "string" ? value : JSON.stringify(value);
}

/** What a change does to a model, and in which keys. */
export function Change({ change }: { change: ModelChange }) {
  return (
    <div className="change">
      <p>
        <b>{change.text}</b>
      </p>
      {change.fields.length > 0 && (
        <ul className="fields">
          {change.fields.map((field) => (
            <li key={field.key}>
              <code>{field.key}</code> <del>{shown(field.before)}</del> <span aria-hidden="true">→</span> <ins>{shown(field.after)}</ins>
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}
