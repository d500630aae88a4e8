import { useState } from "react";
import { useSession } from "../api/overview";
import { Dialog } from "./dialog";
import { Prose } from "./prose";

export function KeyDialog({ why, onClose }: { why: string; onClose: () => void }) {
  const session = useSession();
  const [key, setKey] = useState("");
  return (
    <Dialog title="API key" onClose={onClose}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (key.trim() !== "") session.enter(key.trim());
        }}
      >
        <p>
          <Prose text={why} />
        </p>
        <label>
          Key
          <input
            type="password"
            name="key"
            value={key}
            onChange={(event) => setKey(event.target.value)}
            autoComplete="off"
            spellCheck={false}
            placeholder="mm-…"
            autoFocus
          />
        </label>
        <p className="hint">
          It needs the scope <code>read</code>, and <code>operate</code> to change something. It is kept in this tab only. The first start of the
          server printed an administrator's token; <code>vllm-mm keys create</code> makes more.
        </p>
        <div className="buttons">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" className="primary" disabled={key.trim() === ""}>
            Use this key
          </button>
        </div>
      </form>
    </Dialog>
  );
}
