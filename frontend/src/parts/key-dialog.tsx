import { useState } from "react";
import { useSession } from "../api/overview";
import { Dialog } from "./dialog";
import { Prose } from "./prose";

export function KeyDialog({ why, onClose }: { why: string; onClose: () => void }) {
  const session = useSession();
  const [key, setKey] = useState("");
  const [refused, setRefused] = useState<string | null>(null);
  const signIn = async () => {
    try {
      await session.enter(key.trim());
    } catch (error) {
      setRefused(error instanceof Error ? error.message : String(error));
    }
  };
  return (
    <Dialog title="Sign in" onClose={onClose}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (key.trim() !== "") void signIn();
        }}
      >
        <p>
          <Prose text={refused ?? why} />
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
          It needs the scope <code>read</code>, and <code>operate</code> to change something. It is not kept: this browser
          stays signed in for some hours. The first start of the server printed an administrator's token; <code>vllm-mm keys create</code> makes more.
        </p>
        <div className="buttons">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" className="primary" disabled={key.trim() === ""}>
            Sign in
          </button>
        </div>
      </form>
    </Dialog>
  );
}
