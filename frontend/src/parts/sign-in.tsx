import { useState } from "react";
import { useSession } from "../api/overview";
import { useTitle } from "../frame/shared";
import { Failed } from "./failed";
import { Prose } from "./prose";

/** Stands in place of the page while nobody is signed in. */
export function SignIn({ why }: { why: string }) {
  useTitle("Sign in");
  const session = useSession();
  const [key, setKey] = useState("");
  const [error, setError] = useState<Error | null>(null);
  const [busy, setBusy] = useState(false);
  const enter = async () => {
    setBusy(true);
    setError(null);
    try {
      await session.signIn(key.trim());
    } catch (failure) {
      setError(failure as Error);
    } finally {
      setBusy(false);
    }
  };
  return (
    <section className="sign-in" aria-labelledby="sign-in">
      <h1 id="sign-in">Sign in</h1>
      <p className="note">
        <Prose text={why} />
      </p>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (key.trim() !== "" && !busy) void enter();
        }}
      >
        <label>
          API key
          <input type="password" name="key" value={key} onChange={(event) => setKey(event.target.value)} autoComplete="current-password" spellCheck={false} placeholder="mm-…" autoFocus />
        </label>
        <Failed error={error} />
        <div className="buttons">
          <button type="submit" className="primary" disabled={key.trim() === "" || busy}>
            Sign in
          </button>
        </div>
      </form>
      <p className="hint">
        The scope <code>read</code> shows everything, <code>operate</code> changes what runs, and <code>admin</code> also models and keys. The first start of
        the server printed an administrator's key; <code>vllm-mm keys create</code> makes more. The key is not kept by this page: the server sets a cookie that
        no script can read.
      </p>
    </section>
  );
}
