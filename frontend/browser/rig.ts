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
export async function visit(path: string, work: (visit: Visit) => Promise<void>, more: { url?: string; width?: number; expected?: RegExp; dark?: boolean } = {}): Promise<void> {
  if (browser === null) throw new Error("useBrowser() was not called");
  const url = more.url ?? OPEN;
  const context = await browser.newContext({
    viewport: { width: more.width ?? 1280, height: 900 },
    reducedMotion: "reduce",
    colorScheme: more.dark ? "dark" : "light",
    permissions: ["clipboard-read", "clipboard-write"],
  });
  const complaints: string[] = [];
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type()) && !more.expected?.test(message.text())) complaints.push(message.text());
  });
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("request", (request) => {
    if (!request.url().startsWith(url) && !request.url().startsWith("blob:")) complaints.push(`asked ${request.url()}`);
  });
  try {
    await page.goto(`${url}/ui/${path}`);
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

export async function api<T>(path: string, init: RequestInit = {}): Promise<T> {
  const answer = await fetch(`${OPEN}/${path}`, { ...init, headers: { "Content-Type": "application/json", ...init.headers } });
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
  return (await answer.json()) as T;
}
