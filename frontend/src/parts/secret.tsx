import { useState } from "react";
import type { NewKey } from "../api/types";
import { Copy } from "./copy";
import { Dialog } from "./dialog";

/** The secret of a new key: shown this once. It closes only when somebody says that it was taken. */
export function SecretDialog({ made, onClose }: { made: NewKey; onClose: () => void }) {
  const [taken, setTaken] = useState(false);
  return (
    <Dialog title={`The secret of ${made.name}`} onClose={() => taken && onClose()}>
      <p>It is shown this once. Only its hash is kept.</p>
      <p className="secret">
        <code>{made.secret}</code> <Copy text={made.secret} label="Copy" />
      </p>
      <label className="check">
        <input type="checkbox" checked={taken} onChange={(event) => setTaken(event.target.checked)} />I have it
      </label>
      <div className="buttons">
        <button type="button" className="primary" disabled={!taken} onClick={onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}
