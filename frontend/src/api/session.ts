/** Every call to the server, and the key that is sent with it. */

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

const STORED = "vllm-mm.key";
const DEADLINE = 15_000; // ms; nothing that the page asks for takes long

export interface Access {
  readonly key: string | null;
  /** Why a key has to be entered now, in the server's words; null when none has to. */
  readonly wanted: string | null;
}

/** Holds the key for as long as the tab lives (sessionStorage), and knows when another one is needed. */
export class Session {
  #access: Access;
  readonly #listeners = new Set<() => void>();

  constructor(
    private readonly storage: Storage,
    private readonly base: string,
  ) {
    this.#access = { key: storage.getItem(STORED), wanted: null };
  }

  readonly access = (): Access => this.#access;

  readonly subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  enter(key: string): void {
    this.storage.setItem(STORED, key);
    this.#change({ key, wanted: null });
  }

  forget(): void {
    this.storage.removeItem(STORED);
    this.#change({ key: null, wanted: null });
  }

  /** `path` is relative to the dashboard, such as `api/status`. Throws Refused, Unreachable, or the signal's reason. */
  async fetch(path: string, init: RequestInit = {}): Promise<Response> {
    const { key } = this.#access;
    const headers = new Headers(init.headers);
    if (key !== null) headers.set("Authorization", `Bearer ${key}`);
    let answer: Response;
    try {
      answer = await fetch(new URL(path, this.base), { ...init, headers, cache: "no-store" });
    } catch (error) {
      if (init.signal?.aborted) throw error;
      throw new Unreachable("The server does not answer.", { cause: error });
    }
    if (answer.ok) return answer;
    const refusal = new Refused(answer.status, await messageOf(answer));
    // A late answer to a key that was replaced meanwhile says nothing about the new one.
    if (answer.status === 401 && key === this.#access.key) this.#change({ key, wanted: refusal.message });
    throw refusal;
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
