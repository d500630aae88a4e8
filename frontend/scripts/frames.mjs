// How long the page keeps its thread busy at a time, while a large server is told live: 50 models, 8 devices, 500 queued requests and
// 10,000 events, with 20 events a second and tables that are scrolled.
//
//   npm run build && node scripts/frames.mjs [SECONDS]
//
// The page is the build; the server is this script. Chromium traces its own tasks: one that takes the processor for more than 16 ms
// costs a frame of 60 a second. (What other processes take of the machine meanwhile does not count.) Debian's chromium is used, or CHROMIUM=. It fails when a page keeps its thread for
// longer than that after it has been drawn.
import { createReadStream, existsSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join } from "node:path";
import { chromium } from "playwright-core";

const SECONDS = Number(process.argv[2] ?? 8);
const FRAME = 16;
const STATIC = join(import.meta.dirname, "../../backend/vllm_mm/static");
const TYPES = { ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html" };
const GIB = 2 ** 30;
const began = Date.now() / 1000;
const now = () => Date.now() / 1000;
const model = (n) => `team-${n % 7}/model-${String(n).padStart(2, "0")}`;
const all = (count, make) => Array.from({ length: count }, (_, n) => make(n));
let seq = 10_000;

const footprint = { per_device: 9 * GIB, source: "learned", spread: 2 ** 20, weights: 6 * GIB, kv_cache: 2 * GIB, overhead: GIB, kv_tokens: 90_000, kv_token_bytes: null, samples: 4, learned_at: began, notes: [] };
const instance = (n) => {
  const state = n < 32 ? "ready" : n < 36 ? "starting" : n < 42 ? "sleeping" : n === 42 ? "failed" : "stopped";
  const starts = state === "starting";
  return {
    id: `${model(n)}#1`, model: model(n), state, progress: { phase: starts ? "weights" : "", percent: starts ? (seq * 7) % 100 : null, elapsed_s: now() - began, eta_s: starts ? 12 : null },
    reason: state === "failed" ? "exited: the engine ended with code 1" : "", devices: [`gpu${n % 8}`], pid: 1000 + n, in_flight: state === "ready" ? (seq + n) % 9 : 0, frozen: 0, queued: n >= 32 && n < 36 ? 125 : 0,
    since: began, failures: 0, memory: { reserved: state === "ready" || starts ? { [`gpu${n % 8}`]: 9 * GIB } : {}, used: GIB }, generation: 1, launcher: "warm", pinned: n % 11 === 0, pending: starts, drain_s: 2, idle_s: n % 3 === 0 ? now() - began : null,
  };
};
const models = () => all(50, (n) => ({
  id: model(n), source: "file", engine: "vllm", model: `org/${n}`, executable: null, launcher: null, args: {}, env: {}, command: [], sim: {}, task: "generate", aliases: [`alias-${n}`], devices: { count: 1, ids: [] }, memory: null, kv_cache: null,
  pinned: n % 11 === 0, preload: false, schedule: [], schedule_now: null, priority: 0, concurrency: 32, progress: false, stream_usage: true, idle: { sleep_after: 600, stop_after: null }, start: {}, retry: {}, sleep: { mode: "auto", level: 1, keeps: null, why_not: "" },
  request_defaults: {}, request_overrides: {}, request_limits: {}, request_rules: [], lora: {}, price: null, fingerprint: "", footprint, instance: n < 45 ? instance(n) : null,
}));
const devices = () => all(8, (d) => {
  const reservations = all(50, (n) => n).filter((n) => n % 8 === d && n < 36).map((n) => ({ model: model(n), bytes: 9 * GIB, in_use: n < 32, leaving: false, sleeping: false }));
  return { id: `gpu${d}`, kind: "cuda", name: "A GPU", capacity: 80 * GIB, headroom: GIB, foreign: GIB, free: 78 * GIB - reservations.length * 9 * GIB, problem: "", foreign_processes: [], reservations };
});
const queue = () => ({ length: 500, max_size: 1000, oldest_s: now() - began, entries: all(500, (n) => ({ ticket: `req_0123456789ab_${n}`, model: model(32 + (n % 4)), key: "key_1", waited_s: now() - began + n / 10, position: Math.floor(n / 4) + 1, deadline_in_s: 300, eta_s: 12 + n / 20, at_latest_s: 30, reason: "loading", why: `\`${model(32 + (n % 4))}\` is being loaded` })) });
const status = () => ({ version: "0.1.0", started_at: began, uptime_s: now() - began, models: 50, states: { ready: 32, starting: 4, sleeping: 6, failed: 1, stopped: 7 }, in_flight: 120, queue: { length: 500, oldest_s: now() - began }, forecasts: {}, host_memory: { capacity: null, budget: 0, asleep: 0, free: null }, alerts: [`${model(42)} has failed: exited`] });
const event = (n) => ({ seq: n, at: began - (10_000 - n), kind: ["instance.ready", "instance.starting", "swap.planned", "instance.stopped"][n % 4], model: model(n % 50), cause: "operator ada", data: { took_s: n % 40, victims: n % 8 === 2 ? [model((n + 3) % 50)] : [] } });
const running = () => ({ total: 120, requests: all(120, (n) => ({ id: `req_run_${n}`, request_id: `req_run_${n}`, at: began, route: "/v1/chat/completions", model: model(n % 32), asked: model(n % 32), key: "key_1", stream: true, stage: n % 5 === 0 ? "prompt" : "answers", queued_s: 1, load_s: 0, ttft_s: n % 5 === 0 ? null : 1.4, total_s: now() - began + n / 7, frozen_s: 0, frozen: false, bytes_in: 400, bytes_out: 4000 + seq * 10, generation: 1, retried: false, ending: false })) });
const over = () => ({ next: 1, requests: all(200, (n) => ({ id: `req_${seq - n}`, request_id: `req_${seq - n}`, at: now() - n, route: "/v1/chat/completions", model: model(n % 32), asked: model(n % 32), key: "key_1", stream: true, outcome: n % 30 === 0 ? "cut" : "ok", status: 200, error: null, queued_s: 0.5, load_s: 0, ttft_s: 0.8, total_s: 4, bytes_in: 300, bytes_out: 9000, prompt_tokens: 100, completion_tokens: 200, cached_tokens: 0, reasoning_tokens: null, generation: 1, frozen_s: 0, reason: null, retried: false, itl_p50_s: 0.01, itl_p95_s: 0.02, itl_p99_s: 0.03, device_s: 3, cost: null })) });

function answers(path, query) {
  switch (path) {
    case "/api/status": return status();
    case "/api/models": return models();
    case "/api/instances": return all(45, instance);
    case "/api/devices": return devices();
    case "/api/queue": return queue();
    case "/api/requests": return over();
    case "/api/requests/running": return running();
    case "/api/session": return { by: "none", name: "everybody", scopes: ["admin"], acts: [], expires_at: null };
    default: return null;
  }
}

const sse = (one) => `id: ${one.seq}\nevent: ${one.kind}\ndata: ${JSON.stringify(one)}\n\n`;
const listeners = new Set();
const server = createServer((question, answer) => {
  const url = new URL(question.url, "http://here");
  if (url.pathname === "/api/events") {
    answer.writeHead(200, { "Content-Type": "text/event-stream" });
    const tail = Number(url.searchParams.get("tail") ?? 0);
    // The page of events looks back in steps of a thousand.
    const after = Number(url.searchParams.get("after") ?? (tail > 0 ? seq - tail : seq));
    const until = url.searchParams.get("follow") === "false" || url.searchParams.get("follow") === "0" ? Math.min(seq, after + 1000) : seq;
    for (let n = Math.max(1, after + 1); n <= until; n++) answer.write(sse(event(n)));
    if (until !== seq || url.searchParams.has("follow")) return void answer.end();
    listeners.add(answer);
    answer.on("close", () => listeners.delete(answer));
    return;
  }
  const told = answers(url.pathname, url.searchParams);
  if (told !== null) {
    answer.writeHead(200, { "Content-Type": "application/json" });
    return void answer.end(JSON.stringify(told));
  }
  if (url.pathname.startsWith("/api/")) return void answer.writeHead(404, { "Content-Type": "application/json" }).end('{"error": {"message": "not here"}}');
  const file = join(STATIC, url.pathname);
  const found = extname(file) !== "" && existsSync(file) ? file : join(STATIC, "index.html");
  answer.writeHead(200, { "Content-Type": TYPES[extname(found)] ?? "application/octet-stream" });
  if (found.endsWith("index.html")) answer.write('<!doctype html><base href="/">');
  createReadStream(found).pipe(answer);
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const root = `http://127.0.0.1:${server.address().port}`;
const telling = setInterval(() => {
  const text = sse(event(++seq));
  for (const listener of listeners) listener.write(text);
}, 50);

const PAGES = { overview: "", models: "models", requests: "requests", events: "events?depth=10000" };
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
let slow = 0;
console.log(`| page | tasks | 50 of 100 within | 99 of 100 | longest | over ${FRAME} ms | frames a second |`);
console.log("|---|---|---|---|---|---|---|");
for (const [name, path] of Object.entries(PAGES)) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 } });
  const page = await context.newPage();
  await page.goto(`${root}/ui/${path}`);
  await page.getByRole("status").filter({ hasText: "Live" }).waitFor();
  await page.locator("text=Asking the server").first().waitFor({ state: "detached" });
  await page.waitForTimeout(1500);
  const tools = await browser.newBrowserCDPSession();
  const events = [];
  tools.on("Tracing.dataCollected", ({ value }) => events.push(...value));
  await tools.send("Tracing.start", { traceConfig: { includedCategories: ["toplevel", "devtools.timeline", "__metadata"] }, transferMode: "ReportEvents" });
  const frames = await page.evaluate(async (ms) => {
    const places = [...document.querySelectorAll(".scroll, .timeline ol")].filter((it) => it.scrollHeight > it.clientHeight);
    const until = performance.now() + ms;
    let count = 0;
    await new Promise((resolve) => {
      const step = () => {
        count += 1;
        // As fast as a hand turns a wheel, up and down.
        for (const place of places) place.scrollTop += Math.sin(performance.now() / 700) * 40;
        window.scrollBy(0, Math.sin(performance.now() / 900) * 15);
        if (performance.now() < until) requestAnimationFrame(step);
        else resolve();
      };
      requestAnimationFrame(step);
    });
    return (1000 * count) / ms;
  }, SECONDS * 1000);
  const done = new Promise((resolve) => tools.once("Tracing.tracingComplete", resolve));
  await tools.send("Tracing.end");
  await done;
  await tools.detach();
  const threads = new Set(events.filter((e) => e.name === "thread_name" && e.args.name === "CrRendererMain").map((e) => `${e.pid} ${e.tid}`));
  const tasks = events.filter((e) => e.ph === "X" && /RunTask$/.test(e.name) && threads.has(`${e.pid} ${e.tid}`)).map((e) => (e.tdur ?? e.dur) / 1000);
  // Tasks inside of tasks are counted once: by the outermost name.
  const took = tasks.sort((a, b) => a - b);
  const at = (share) => took[Math.min(took.length - 1, Math.floor(took.length * share))] ?? 0;
  const late = took.filter((ms) => ms > FRAME).length;
  slow += late;
  console.log(`| ${name} | ${took.length} | ${at(0.5).toFixed(2)} ms | ${at(0.99).toFixed(1)} ms | ${(took.at(-1) ?? 0).toFixed(1)} ms | ${late} | ${frames.toFixed(0)} |`);
  await context.close();
}
clearInterval(telling);
await browser.close();
server.closeAllConnections();
server.close();
process.exit(slow > 0 ? 1 : 0);
