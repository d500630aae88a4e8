import { useState } from "react";
import type { Question } from "../format/acts";
import { count } from "../format/quantities";
import { Dialog } from "./dialog";
import { Prose } from "./prose";

/** Asks before something that others will feel. `cut`: requests that may be cut instead of waited for. `typed`: what has to be
 *  typed first, because it cannot be undone. */
export function Confirm(props: { question: Question; cut: number; typed?: string; onYes: (force: boolean) => void; onNo: () => void }) {
  const { question, cut } = props;
  const [force, setForce] = useState(false);
  const [typed, setTyped] = useState("");
  const sure = props.typed === undefined || typed === props.typed;
  return (
    <Dialog title={question.title} onClose={props.onNo}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (sure) props.onYes(force && cut > 0);
        }}
      >
        <ul className="points">
          {question.points.map((point) => (
            <li key={point}>
              <Prose text={point} />
            </li>
          ))}
        </ul>
        {cut > 0 && (
          <label className="check">
            <input type="checkbox" checked={force} onChange={(event) => setForce(event.target.checked)} />
            Do not wait: cut {count(cut, "request", "requests")} now
          </label>
        )}
        {props.typed !== undefined && (
          <label>
            Type <code>{props.typed}</code> to confirm
            <input value={typed} autoComplete="off" spellCheck={false} onChange={(event) => setTyped(event.target.value)} />
          </label>
        )}
        <div className="buttons">
          <button type="button" onClick={props.onNo} autoFocus>
            Cancel
          </button>
          <button type="submit" className="primary" disabled={!sure}>
            {question.confirm}
          </button>
        </div>
      </form>
    </Dialog>
  );
}
