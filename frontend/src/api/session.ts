/** Every call to the server, and who makes it. */

/** The server answered, and the answer is no. The message is the server's and says what to do. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** The server did not answer. */
export class Unreachable extends Error {}

const DEADLINE = 15_000; // ms; nothing that the page asks for takes long
/** No page of another origin can send this: what changes something and comes with a cookie needs it. */
const OURS = "X-VLLM-MM-Session";

export interface Access {
  /** The name of the key with which somebody is signed in; null while nobody is, or while that is not known. */
  readonly name: string | null;
  /** Why somebody has to sign in now, in the server's words; null when nobody has to. */
  readonly wanted: string | null;
}

interface Who {
  name: string;
  by: string;
}

/** Signs in with a key, which is not kept: the server's cookie, which no script can read, stands for it. */
export class Session {
  #access: Access = { name: null, wanted: null };
  #entry = 0;
  readonly #listeners = new Set<() => void>();

  constructor(private readonly base: string) {}

  readonly access = (): Access => this.#access;

  readonly subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  /** Who is signed in already, in this browser. */
  async recall(): Promise<void> {
    try {
      const who = await this.get<Who>("api/session");
      if (who.by === "session") this.#change({ name: who.name, wanted: null });
    } catch {
      // The first look at anything says what is wrong.
    }
  }

  /** Sign in. Throws Refused with the server's words, or Unreachable. */
  async enter(key: string): Promise<void> {
    const body = JSON.stringify({ key });
    const headers = { "Content-Type": "application/json" };
    const answer = await this.#send("api/session", { method: "POST", body, headers, signal: AbortSignal.timeout(DEADLINE) });
    const who = (await answer.json()) as Who;
    this.#entry += 1;
    this.#change({ name: who.name, wanted: null });
  }

  /** Sign out, in this browser. */
  async leave(): Promise<void> {
    await this.#send("api/session", { method: "DELETE", signal: AbortSignal.timeout(DEADLINE) });
    this.#entry += 1;
    this.#change({ name: null, wanted: null });
  }

  /** `path` is relative to the dashboard, such as `api/status`. Throws Refused, Unreachable, or the signal's reason. */
  async fetch(path: string, init: RequestInit = {}): Promise<Response> {
    const entry = this.#entry;
    try {
      return await this.#send(path, init);
    } catch (error) {
      // A late answer to who was signed in before says nothing about who is now.
      const out = error instanceof Refused && error.status === 401 && entry === this.#entry;
      if (out) this.#change({ name: null, wanted: error.message });
      throw error;
    }
  }

  async #send(path: string, init: RequestInit): Promise<Response> {
    const headers = new Headers(init.headers);
    headers.set(OURS, "1");
    let answer: Response;
    try {
      answer = await fetch(new URL(path, this.base), { ...init, headers, cache: "no-store", credentials: "same-origin" });
    } catch (error) {
      if (init.signal?.aborted) throw error;
      throw new Unreachable("The server does not answer.", { cause: error });
    }
    if (answer.ok) return answer;
    throw new Refused(answer.status, await messageOf(answer));
  }

  async get<T>(path: string, signal?: AbortSignal): Promise<T> {
    return this.#json<T>(path, "GET", signal);
  }

  async post<T>(path: string): Promise<T> {
    return this.#json<T>(path, "POST");
  }

  async #json<T>(path: string, method: string, signal?: AbortSignal): Promise<T> {
    const late = AbortSignal.timeout(DEADLINE);
    try {
      const answer = await this.fetch(path, { method, signal: signal ? AbortSignal.any([signal, late]) : late });
      return (await answer.json()) as T;
    } catch (error) {
      if (late.aborted && !signal?.aborted) throw new Unreachable("The server did not answer within 15 s.");
      throw error;
    }
  }

  #change(access: Access): void {
    this.#access = access;
    for (const listener of this.#listeners) listener();
  }
}

async function messageOf(answer: Response): Promise<string> {
  try {
    const body = (await answer.json()) as { error?: { message?: unknown } };
    if (typeof body.error?.message === "string") return body.error.message;
  } catch {
    // Not ours: a proxy in between.
  }
  return `The server answered ${answer.status} ${answer.statusText}`.trim() + ".";
}
