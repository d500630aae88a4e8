/** A browser, and pages whose complaints are kept. */

import axe from "axe-core";
import { afterAll, beforeAll, expect } from "vitest";
import { chromium, type Browser, type BrowserContext, type Page } from "playwright-core";

function given(name: string): string {
  const value = process.env[name];
  if (value === undefined) throw new Error(`${name} is not set: pytest tests/browser runs these`);
  return value;
}

export const OPEN = given("MM_URL");
export const KEYED = given("MM_KEYED_URL");
export const KEY = given("MM_KEY");
/** A server that specs may stop and start. */
export const SPARE = given("MM_SPARE_URL");
/** What a page may wait for, in ms: a machine with other work takes its time. */
const PATIENCE = 60_000;

let browser: Browser | null = null;

export function useBrowser(): void {
  beforeAll(async () => {
    browser = await chromium.launch({ executablePath: given("CHROMIUM"), args: ["--no-sandbox", "--disable-gpu"] });
  });
  afterAll(async () => {
    await browser?.close();
  });
}

export interface Visit {
  page: Page;
  context: BrowserContext;
  /** What the page's console said beside what it should, and requests to other hosts. */
  complaints: string[];
}

/** Opens `path` below the pages, and calls `work`. At the end nothing may have been complained of; `expected` are refusals that
 *  belong to the test, which Chromium tells in the console. */
export async function visit(path: string, work: (visit: Visit) => Promise<void>, more: { url?: string; width?: number; expected?: RegExp; dark?: boolean; slow?: boolean } = {}): Promise<void> {
  if (browser === null) throw new Error("useBrowser() was not called");
  const url = more.url ?? OPEN;
  const context = await browser.newContext({
    viewport: { width: more.width ?? 1280, height: 900 },
    reducedMotion: "reduce",
    colorScheme: more.dark ? "dark" : "light",
    permissions: ["clipboard-read", "clipboard-write"],
  });
  const complaints: string[] = [];
  context.on("page", (page) => {
    page.setDefaultTimeout(PATIENCE);
    page.on("console", (message) => {
      if (["error", "warning"].includes(message.type()) && !more.expected?.test(message.text())) complaints.push(message.text());
    });
    page.on("pageerror", (error) => complaints.push(String(error)));
    page.on("request", (request) => {
      if (!request.url().startsWith(url) && !request.url().startsWith("blob:")) complaints.push(`asked ${request.url()}`);
    });
  });
  const page = await context.newPage();
  try {
    if (more.slow) {
      const tools = await context.newCDPSession(page);
      await tools.send("Network.enable");
      await tools.send("Network.emulateNetworkConditions", { offline: false, latency: 400, downloadThroughput: 60_000, uploadThroughput: 30_000 });
    }
    await page.goto(`${url}/ui/${path}`, { timeout: PATIENCE });
    await work({ page, context, complaints });
    expect(complaints).toEqual([]);
  } finally {
    await context.close();
  }
}

export async function live(page: Page): Promise<void> {
  await page.getByRole("status").filter({ hasText: "Live" }).waitFor();
}

/** What axe finds, one line each. Its code is brought in by the browser's tools, which the page's policy does not concern. */
export async function accessibility(page: Page): Promise<string[]> {
  await page.evaluate(axe.source);
  return page.evaluate(async () => {
    const found = await (window as unknown as { axe: typeof axe }).axe.run(document, { resultTypes: ["violations"] });
    return found.violations.flatMap((violation) => violation.nodes.map((node) => `${violation.id}: ${node.target.join(" ")}: ${node.any[0]?.message ?? violation.help}`));
  });
}

/** The same in both themes. */
export async function inBothThemes(page: Page): Promise<string[]> {
  const found: string[] = [];
  for (const colorScheme of ["dark", "light"] as const) {
    await page.emulateMedia({ colorScheme });
    found.push(...(await accessibility(page)).map((line) => `${colorScheme}: ${line}`));
  }
  return found;
}

/** A request to a model that goes on for long; `end` closes its connection. */
export function stream(model: string, url = OPEN): { id: string; answer: Promise<Response>; end: () => void } {
  const gone = new AbortController();
  const id = `browser-${Math.random().toString(36).slice(2)}`;
  const answer = fetch(`${url}/v1/chat/completions`, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Request-Id": id },
    body: JSON.stringify({ model, stream: true, max_tokens: 4000, ignore_eos: true, messages: [{ role: "user", content: "Go on for long" }] }),
    signal: gone.signal,
  }).then(async (told) => {
    if (!told.ok) throw new Error(`${model}: ${told.status} ${await told.text()}`);
    return told;
  });
  answer.catch(() => undefined); // whoever wants to know waits for it
  return { id, answer, end: () => gone.abort() };
}

/** Has the spare server do something: `restart`, or `anew`, with another database. */
export async function spare(wish: "stop" | "start" | "anew"): Promise<void> {
  const answer = await fetch(`${given("MM_CONTROL_URL")}/${wish}`, { method: "POST" });
  if (!answer.ok) throw new Error(await answer.text());
}

export async function api<T>(path: string, init: RequestInit = {}, url = OPEN): Promise<T> {
  const answer = await fetch(`${url}/${path}`, { ...init, headers: { "Content-Type": "application/json", ...init.headers } });
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
  return (await answer.json()) as T;
}
