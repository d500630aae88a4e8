// Pictures of every page, in both themes and three widths.
//
//   node scripts/screenshots.mjs http://127.0.0.1:8000 FOLDER [PAGE ...]
//
// The server has to be open to all (auth.mode: none), and should have something to show. Debian's chromium takes them, or CHROMIUM=.
import { mkdirSync } from "node:fs";
import { chromium } from "playwright-core";

const [url, folder, ...only] = process.argv.slice(2);
if (url === undefined || folder === undefined) {
  console.error("usage: node scripts/screenshots.mjs URL FOLDER [PAGE ...]");
  process.exit(2);
}
const api = async (path) => (await fetch(new URL(path, url))).json();
const models = await api("/api/models");
const model = models.find((m) => m.instance?.state === "ready") ?? models[0];
const requests = (await api("/api/requests?limit=1")).requests;
const at = (id) => id.split("/").map(encodeURIComponent).join("/");
const PAGES = {
  overview: "",
  models: "models",
  ...(model === undefined ? {} : { model: `models/${at(model.id)}`, log: `models/${at(model.id)}?tab=logs`, starts: `models/${at(model.id)}?tab=history`, declaration: `models/${at(model.id)}?tab=declaration` }),
  playground: "playground",
  requests: "requests",
  ...(requests[0] === undefined ? {} : { request: `requests?request=${requests[0].id}` }),
  events: "events",
  usage: "usage?range=24h",
  keys: "keys",
  "new-key": "keys?new=1",
  settings: "settings",
  add: "add?model=Qwen/Qwen2.5-7B-Instruct&engine=sim",
};
const unknown = only.filter((name) => !(name in PAGES));
if (unknown.length > 0) {
  console.error(`no such page: ${unknown.join(", ")}; there are ${Object.keys(PAGES).join(", ")}`);
  process.exit(2);
}
mkdirSync(folder, { recursive: true });
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
try {
  for (const colorScheme of ["light", "dark"]) {
    for (const width of [375, 1280, 2560]) {
      const context = await browser.newContext({ colorScheme, viewport: { width, height: width < 500 ? 812 : width < 2000 ? 800 : 1440 }, reducedMotion: "reduce" });
      const page = await context.newPage();
      for (const [name, path] of Object.entries(PAGES)) {
        if (only.length > 0 && !only.includes(name)) continue;
        await page.goto(new URL(`/ui/${path}`, url).href);
        await page.getByRole("status").filter({ hasText: "Live" }).waitFor();
        await page.locator("main :is(h1, h2)").first().waitFor({ state: "attached" });
        await page.locator("text=Asking the server").first().waitFor({ state: "detached" });
        await page.screenshot({ path: `${folder}/${name}-${colorScheme}-${width}.png` });
      }
      await context.close();
    }
  }
} finally {
  await browser.close();
}
