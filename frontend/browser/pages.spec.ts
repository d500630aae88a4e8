/** Every page loads without a complaint, axe finds nothing in either theme, and nothing is wider than a narrow window. */

import { beforeAll, expect, it } from "vitest";
import { accessibility, api, live, useBrowser, visit } from "./rig";

useBrowser();

const PAGES: [string, string, string | RegExp][] = [
  ["overview", "", "Devices"],
  ["models", "models", "Models"],
  ["a model", "models/org/small", "org/small"],
  ["its log", "models/org/small?tab=logs", "Log"],
  ["its starts", "models/org/small?tab=history", "Starts"],
  ["its declaration", "models/org/small?tab=declaration", "Configuration"],
  ["playground", "playground", "Playground"],
  ["requests", "requests", "Requests"],
  ["events", "events", "Events"],
  ["charts", "charts?range=15m", "Tokens per second"],
  ["its charts", "models/org/small?tab=charts", "Tokens per second"],
  ["usage", "usage?range=24h", "Usage"],
  ["keys", "keys", "Keys"],
  ["new key", "keys?new=1", "New key"],
  ["settings", "settings", "Settings"],
  ["add", "add?model=Qwen/Qwen2.5-7B-Instruct&engine=sim", "Add a model"],
  ["no such page", "nothing", "There is no such page"],
];

beforeAll(async () => {
  await api("api/models/org/small/start?wait=60", { method: "POST" });
  await api("v1/chat/completions", { method: "POST", body: JSON.stringify({ model: "org/small", max_tokens: 4, messages: [{ role: "user", content: "Hello" }] }) });
  for (;;) {
    const { rows } = await api<{ rows: unknown[] }>("api/usage?group_by=model,hour");
    if (rows.length > 0) break;
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
});

it.each(PAGES)("%s", async (_, path, heading) => {
  await visit(path, async ({ page }) => {
    await page.getByRole("heading", { name: heading, exact: true }).first().waitFor();
    await live(page);
    await page.getByText("Asking the server…").first().waitFor({ state: "detached" });
    expect(await accessibility(page)).toEqual([]);
    await page.emulateMedia({ colorScheme: "dark" });
    expect(await accessibility(page)).toEqual([]);
    await page.setViewportSize({ width: 375, height: 800 });
    await page.waitForFunction(() => document.documentElement.scrollWidth <= 375); // charts are drawn anew a moment later
    expect(await accessibility(page)).toEqual([]);
  });
});
