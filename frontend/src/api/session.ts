/** Every call to the server, and how it knows who calls: by a cookie that the server set when somebody signed in, which no script
 *  can read. Requests to models are not made with it but with a key, which is kept in this tab's memory only. */

import type { Who } from "./types";

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
const MARK = "X-VLLM-MM-Session"; // no other site's page can send it

export interface Access {
  /** Goes up whenever somebody signs in or out. */
  readonly round: number;
  /** Why somebody has to sign in now, in the server's words; null when nobody has to. */
  readonly wanted: string | null;
  /** For requests to models; null when none was entered in this tab. */
  readonly key: string | null;
}

export class Session {
  #access: Access = { round: 0, wanted: null, key: null };
  readonly #listeners = new Set<() => void>();

  constructor(private readonly base: string) {}

  readonly access = (): Access => this.#access;

  readonly subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  /** Throws Refused when the key is not good. */
  async signIn(key: string): Promise<void> {
    await this.#json<Who>("api/session", "POST", undefined, { headers: { "Content-Type": "application/json" }, body: JSON.stringify({ key }) });
    this.#change({ round: this.#access.round + 1, wanted: null, key });
  }

  async signOut(): Promise<void> {
    await this.send("DELETE", "api/session");
    this.#change({ round: this.#access.round + 1, wanted: null, key: null });
  }

  /** The key for requests to models, for as long as the tab is open. */
  useKey(key: string | null): void {
    this.#change({ ...this.#access, key });
  }

  /** `path` is relative to the dashboard, such as `api/status`. Throws Refused, Unreachable, or the signal's reason. */
  async fetch(path: string, init: RequestInit = {}): Promise<Response> {
    const { round, key } = this.#access;
    const headers = new Headers(init.headers);
    const admin = path.startsWith("api/");
    if (admin) headers.set(MARK, "1");
    else if (key !== null) headers.set("Authorization", `Bearer ${key}`);
    // A request that is sent again goes to a model too, as whoever asks for it.
    if (admin && key !== null && path.endsWith("/replay")) headers.set("Authorization", `Bearer ${key}`);
    let answer: Response;
    try {
      answer = await fetch(new URL(path, this.base), { ...init, headers, cache: "no-store" });
    } catch (error) {
      if (init.signal?.aborted) throw error;
      throw new Unreachable("The server does not answer.", { cause: error });
    }
    if (answer.ok) return answer;
    const refusal = new Refused(answer.status, await messageOf(answer));
    // A late answer to who was here before says nothing about who is here now; and who may not ask a model may be signed in.
    const signing = path === "api/session" && init.method === "POST";
    if (answer.status === 401 && admin && !signing && round === this.#access.round) this.#change({ ...this.#access, wanted: refusal.message });
    throw refusal;
  }

  async get<T>(path: string, signal?: AbortSignal): Promise<T> {
    return this.#json<T>(path, "GET", signal);
  }

  async post<T>(path: string, body?: unknown): Promise<T> {
    return this.send<T>("POST", path, body);
  }

  /** `body` goes as JSON. */
  async send<T>(method: string, path: string, body?: unknown, headers: Record<string, string> = {}): Promise<T> {
    if (body === undefined) return this.#json<T>(path, method, undefined, { headers });
    return this.#json<T>(path, method, undefined, { headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify(body) });
  }

  async #json<T>(path: string, method: string, signal?: AbortSignal, more: RequestInit = {}): Promise<T> {
    const late = AbortSignal.timeout(DEADLINE);
    try {
      const answer = await this.fetch(path, { ...more, method, signal: signal ? AbortSignal.any([signal, late]) : late });
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
    const body = (await answer.json()) as { error?: { message?: unknown } | string };
    if (typeof body.error === "object" && typeof body.error.message === "string") return body.error.message;
  } catch {
    // Not ours: a proxy in between.
  }
  return `The server answered ${answer.status} ${answer.statusText}`.trim() + ".";
}
