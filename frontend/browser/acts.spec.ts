/** What people do on the pages, against a real server. */

import { beforeAll, expect, it } from "vitest";
import { accessibility, api, inBothThemes, KEY, KEYED, live, stream, useBrowser, visit } from "./rig";

useBrowser();

beforeAll(async () => {
  await api("api/models/org/small/start?wait=60", { method: "POST" });
});

it("stops a model after asking, starts it again, and tells of it as it happens", () =>
  visit("", async ({ page }) => {
    await live(page);
    await page.getByRole("button", { name: "Stop org/small" }).click();
    const dialog = page.getByRole("dialog", { name: "Stop org/small?" });
    await dialog.getByText("No request is in flight.").waitFor();
    expect(await accessibility(page)).toEqual([]);
    await dialog.getByRole("button", { name: "Stop" }).click();
    await page.getByText("org/small has stopped").first().waitFor();
    await page.getByRole("button", { name: "Start org/small" }).click();
    await page.getByRole("button", { name: "Sleep org/small" }).waitFor();
    await page.getByRole("button", { name: "Pin org/small" }).click();
    await page.getByRole("button", { name: "Pin org/small", pressed: true }).click();
    await page.getByRole("button", { name: "Pin org/small", pressed: false }).waitFor();
  }));

it("drains, says which requests finish first, and takes that back while it goes on", () =>
  visit("models", async ({ page }) => {
    await live(page);
    await api("api/models/second/start?wait=60", { method: "POST" });
    const going = stream("second");
    await going.answer;
    await page.getByRole("row").filter({ hasText: "second" }).getByText("1", { exact: true }).first().waitFor();
    await page.getByRole("button", { name: "More acts on second" }).click();
    expect(await inBothThemes(page)).toEqual([]);
    await page.getByRole("menuitem", { name: "Drain" }).click();
    const sure = page.getByRole("dialog", { name: "Drain second?" });
    await sure.getByText(/^1 request finishes first/).waitFor();
    expect(await inBothThemes(page)).toEqual([]);
    await sure.getByRole("button", { name: "Drain" }).click();
    await page.getByRole("button", { name: "Keep second" }).click();
    await page.getByRole("button", { name: "Sleep second" }).waitFor();

    // The request goes on; it is listed, and is ended by hand.
    await page.getByRole("navigation", { name: "Pages" }).getByRole("link", { name: "Requests" }).click();
    const row = page.getByRole("region", { name: "Running requests" }).getByRole("row").filter({ hasText: "second" });
    await row.getByRole("rowheader").getByRole("button").click();
    const details = page.getByRole("dialog");
    await details.getByText(going.id).waitFor();
    await details.getByRole("list", { name: "What the time went into" }).getByText("tokens").waitFor();
    expect(await inBothThemes(page)).toEqual([]);
    await details.getByRole("button", { name: "Cancel it" }).click();
    await page.getByRole("dialog").getByText(/of the answer/).waitFor();
    await page.getByRole("dialog").getByRole("button", { name: "End it" }).click();
    await row.waitFor({ state: "detached" });
    await page.getByRole("searchbox").fill(going.id);
    await page.getByRole("region", { name: "Requests that are over" }).getByText("cut").first().waitFor();
    going.end();
  }));

it("puts to sleep, wakes and restarts, and calls a load off", () =>
  visit("models/second", async ({ page }) => {
    await live(page);
    await page.getByRole("button", { name: "Sleep second" }).click();
    await page.getByRole("dialog", { name: "Put second to sleep?" }).getByRole("button", { name: "Put to sleep" }).click();
    await page.getByRole("button", { name: "Wake second" }).click();
    await page.getByRole("button", { name: "Sleep second" }).waitFor();
    const { instance } = await api<{ instance: { generation: number } }>("api/models/second");
    await page.getByRole("button", { name: "More acts on second" }).click();
    await page.getByRole("menuitem", { name: "Restart" }).click();
    await page.getByRole("dialog", { name: "Restart second?" }).getByRole("button", { name: "Restart" }).click();
    await page.getByText(`number ${instance.generation + 1}`).waitFor();
    await page.goto(page.url().replace("second", "slow"));
    await page.getByRole("button", { name: "Start slow" }).click();
    await page.getByRole("button", { name: "Call off slow" }).click();
    await page.getByRole("dialog", { name: "Call off the load of slow?" }).getByRole("button", { name: "Call off" }).click();
    await page.getByRole("button", { name: "Start slow" }).waitFor();
  }));

it("is reached from the server's own address, and goes by keys, palette and menu", () =>
  visit("../", async ({ page }) => {
    await page.waitForURL("**/ui/");
    await live(page);
    await page.keyboard.press("g");
    await page.keyboard.press("e");
    await page.waitForURL("**/ui/events");
    await page.getByRole("heading", { name: "Events" }).waitFor();
    await page.keyboard.press("/");
    expect(await page.evaluate(() => document.activeElement?.getAttribute("aria-label"))).toBe("Search events");
    await page.keyboard.type("ready");
    await page.waitForURL("**/ui/events?q=ready");
    await page.keyboard.press("Control+k");
    const palette = page.getByRole("dialog", { name: "Find" });
    await palette.getByRole("combobox").fill("org/sm");
    expect(await accessibility(page)).toEqual([]);
    await page.keyboard.press("Enter");
    await page.waitForURL("**/ui/models/org/small");
    await page.goBack();
    await page.waitForURL("**/ui/events?q=ready");
    await page.locator("h1").click();
    await page.keyboard.press("?");
    await page.getByRole("dialog", { name: "Keyboard" }).waitFor();
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "detached" });
    await page.setViewportSize({ width: 375, height: 800 });
    await page.getByRole("button", { name: "Menu" }).click();
    expect(await accessibility(page)).toEqual([]);
    await page.getByRole("menuitem", { name: "Usage" }).click();
    await page.waitForURL("**/ui/usage");
  }));

it("keeps the theme that was chosen", () =>
  visit("", async ({ page }) => {
    const back = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const light = await back();
    await page.getByRole("button", { name: "Menu" }).click();
    await page.getByRole("menuitemradio", { name: "Dark" }).click();
    const dark = await back();
    expect(dark).not.toBe(light);
    await page.reload();
    await live(page);
    expect(await back()).toBe(dark);
  }));

it("chats with two models side by side, says how fast they are, and stops", () =>
  visit("playground?m=org/small,second&max_tokens=8", async ({ page }) => {
    const message = page.getByRole("textbox", { name: "Message", exact: true });
    await message.fill("Hello there");
    await message.press("Enter");
    for (const model of ["org/small", "second"]) {
      const answer = page.getByRole("article", { name: `${model} answers` });
      await answer.getByText(/first token after .* · 8 tokens/).waitFor();
      expect(((await answer.locator(".said").textContent()) ?? "").length).toBeGreaterThan(0);
    }
    await page.getByText("The same as code").click();
    await page.getByText(/v1\/chat\/completions/).waitFor();
    expect(await accessibility(page)).toEqual([]);
    await page.getByText("Parameters", { exact: true }).click();
    await page.getByRole("spinbutton", { name: "Tokens at most" }).fill("4000");
    await message.fill("Go on");
    await message.press("Enter");
    await page.getByRole("button", { name: "Stop" }).click();
    await page.getByText(/stopped/).first().waitFor();
    await page.getByRole("button", { name: "Clear" }).click();
  }));

it("offers tools, and shows what the model calls", () =>
  visit("playground?m=second&max_tokens=20", async ({ page }) => {
    await page.getByText("Parameters", { exact: true }).click();
    const tools = page.getByRole("textbox", { name: /^Tools/ });
    await tools.fill("[");
    await page.getByText(/The tools are not JSON/).waitFor();
    await tools.fill('[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]');
    await page.getByRole("combobox", { name: "Whether it calls one" }).selectOption("weather");
    const message = page.getByRole("textbox", { name: "Message", exact: true });
    await message.fill("How is it in Oslo?");
    await message.press("Enter");
    const answer = page.getByRole("article", { name: "second answers" });
    await answer.getByText(/--tool-call-parser/).waitFor(); // the engine's own words: it got them, and was started without a parser
    const calls = [{ index: 0, function: { name: "weather", arguments: '{"city": "Oslo"}' } }];
    await page.route("**/v1/chat/completions", (route) => route.fulfill({ contentType: "text/event-stream", body: `data: ${JSON.stringify({ choices: [{ delta: { tool_calls: calls } }] })}\n\n` }));
    await message.fill("And now?");
    await message.press("Enter");
    await answer.getByText("weather", { exact: true }).waitFor();
    await answer.getByText('"city": "Oslo"').waitFor();
  }, { expected: /400/ }));

it("makes vectors, and splits text into tokens", () =>
  visit("playground?mode=embeddings", async ({ page }) => {
    await page.getByRole("button", { name: "Send" }).click();
    await page.getByText(/\d+ dimensions/).waitFor();
    await page.getByRole("tab", { name: "Tokens" }).click();
    await page.getByRole("button", { name: "Send" }).click();
    await page.getByText(/^\d+ tokens/).waitFor();
    await page.getByRole("tab", { name: "Rerank" }).click();
    await page.getByRole("combobox", { name: "Model" }).selectOption("vectors");
    await page.getByRole("button", { name: "Send" }).click();
    await page.locator(".scores li").nth(1).waitFor();
    expect(await inBothThemes(page)).toEqual([]);
  }));

it("gives the usage as a table of a spreadsheet", () =>
  visit("usage?range=24h", async ({ page }) => {
    const coming = page.waitForEvent("download");
    await page.getByRole("link", { name: /CSV/ }).or(page.getByRole("button", { name: /CSV/ })).first().click();
    const file = await coming;
    expect(file.suggestedFilename()).toMatch(/\.csv$/);
  }));

it("shows a request that is over, with what was captured", () =>
  visit("requests", async ({ page }) => {
    await api("v1/chat/completions", { method: "POST", headers: { "X-Request-Id": "from-the-browser" }, body: JSON.stringify({ model: "org/small", max_tokens: 4, messages: [{ role: "user", content: "a word that is captured" }] }) });
    await page.getByRole("searchbox").fill("from-the-browser");
    await page.getByRole("rowheader").getByRole("button").first().click();
    const dialog = page.getByRole("dialog");
    await dialog.getByText("from-the-browser").waitFor();
    await dialog.getByRole("button", { name: "What was captured" }).click();
    await dialog.getByText(/a word that is captured/).first().waitFor();
    expect(await inBothThemes(page)).toEqual([]);
    await dialog.getByRole("button", { name: "Send it again" }).click();
    await dialog.getByRole("heading", { name: "The new answer" }).waitFor();
    await dialog.getByText(/chat\.completion/).last().waitFor();
    await dialog.getByRole("button", { name: "Close" }).click();
    await page.getByRole("dialog").waitFor({ state: "detached" });
  }));

it("says why a request waits, and cancels it", () =>
  visit("requests", async ({ page }) => {
    await live(page);
    const asked = fetch(`${process.env["MM_URL"]}/v1/chat/completions`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ model: "slow", messages: [{ role: "user", content: "x" }] }) });
    await page.getByRole("button", { name: /^Cancel/ }).first().click();
    expect((await asked).status).toBe(410);
    await page.getByRole("cell").getByText("cut").first().waitFor();
    // Its load would keep those of others from beginning.
    await api("api/models/slow/stop?force=1&wait=60", { method: "POST" });
  }));

it("makes a key, shows its secret once, limits it, and revokes it", () =>
  visit("keys", async ({ page }) => {
    await page.getByRole("button", { name: "New key" }).click();
    const form = page.getByRole("dialog", { name: "New key" });
    await form.getByRole("textbox", { name: "Name" }).fill("browser");
    await form.getByRole("spinbutton", { name: "Requests a minute" }).fill("60");
    await form.getByRole("button", { name: "Make it" }).click();
    const secret = page.getByRole("dialog", { name: "The secret of browser" });
    const text = (await secret.locator("code").textContent()) ?? "";
    expect(text).toMatch(/^mm-/);
    await secret.getByRole("button", { name: "Copy" }).click();
    await secret.getByText("Copied").waitFor();
    expect(await page.evaluate(() => navigator.clipboard.readText())).toBe(text);
    await secret.getByRole("checkbox", { name: "I have it" }).check();
    await secret.getByRole("button", { name: "Close" }).click();
    expect(await page.content()).not.toContain(text);
    await page.getByText("60 requests/min").waitFor();
    await page.getByRole("button", { name: "Rotate browser" }).click();
    expect(await inBothThemes(page)).toEqual([]);
    await page.getByRole("dialog").getByRole("button", { name: /Rotate/ }).click();
    const next = page.getByRole("dialog", { name: "The secret of browser" });
    expect(await next.locator("code").textContent()).not.toBe(text);
    await next.getByRole("checkbox", { name: "I have it" }).check();
    await next.getByRole("button", { name: "Close" }).click();
    await page.getByRole("button", { name: "Revoke browser" }).click();
    const sure = page.getByRole("dialog", { name: "Revoke browser?" });
    expect(await sure.getByRole("button", { name: "Revoke" }).isDisabled()).toBe(true);
    await sure.getByRole("textbox").fill("browser");
    await sure.getByRole("button", { name: "Revoke" }).click();
    await page.getByRole("button", { name: "Revoke browser" }).waitFor({ state: "detached" });
  }));

it("adds a model with what it would take, changes it with what that would do, and removes it", () =>
  visit("add", async ({ page }) => {
    await page.getByRole("textbox", { name: /Hugging Face id/ }).fill("someone/Tiny-1B");
    await page.getByRole("combobox", { name: "Engine" }).selectOption("sim");
    await page.getByRole("textbox", { name: /^More/ }).fill('{"sim": {"weights": "1GiB", "load_bandwidth": "10GiB/s", "startup": "10ms", "kv_cache": "1GiB"}}');
    await page.getByText("fits now").first().waitFor();
    await page.getByRole("button", { name: "Add and start" }).click();
    await page.waitForURL("**/ui/models/tiny-1b");
    await page.getByRole("button", { name: "Sleep tiny-1b" }).waitFor();
    await page.getByRole("tab", { name: "Configuration" }).click();
    const declaration = page.getByRole("textbox", { name: "Declaration of tiny-1b" });
    await declaration.and(page.locator(":not(:empty)")).waitFor();
    const before = JSON.parse(await declaration.inputValue()) as Record<string, unknown>;
    await declaration.fill(JSON.stringify({ ...before, priority: 3 }));
    await page.locator(".fields").getByText("priority").waitFor();
    expect(await accessibility(page)).toEqual([]);
    await page.getByRole("button", { name: "Save" }).click();
    await page.getByText("Nothing is changed yet.").waitFor();
    expect((await api<{ priority: number }>("api/models/tiny-1b")).priority).toBe(3);
    await declaration.fill('{"nonsense": 1}');
    await page.getByRole("alert").filter({ hasText: "nonsense" }).waitFor();
    await page.getByRole("button", { name: "Remove…" }).click();
    await page.getByRole("dialog").getByRole("textbox").fill("tiny-1b");
    await page.getByRole("dialog").getByRole("button", { name: "Remove" }).click();
    await page.waitForURL("**/ui/models");
  }, { expected: /422/ }));

it("tells what a reload would change before it is done", () =>
  visit("settings", async ({ page }) => {
    await page.getByRole("searchbox").fill("server.port");
    await page.getByRole("rowheader", { name: "server.port" }).waitFor();
    await page.getByRole("button", { name: "Reload…" }).click();
    await page.getByRole("dialog").getByText("No model changes.").waitFor();
    await page.getByRole("dialog").getByRole("button", { name: "Reload" }).click();
    await page.getByText("It was read again. No model has changed.").waitFor();
  }));

it("lets nobody in without a key, tells a wrong one, and lets in who has one until they sign out", () =>
  visit("models", async ({ page }) => {
    const field = page.getByLabel("API key");
    await field.fill("mm-wrong");
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.getByRole("alert").filter({ hasText: /key/ }).first().waitFor();
    expect(await accessibility(page)).toEqual([]);
    await field.fill(KEY);
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.getByRole("heading", { name: "Models" }).waitFor();
    await live(page);
    await page.reload();
    await live(page);
    expect(await page.evaluate(() => JSON.stringify({ ...sessionStorage, ...localStorage }) + document.cookie)).not.toContain("mm-");
    await page.getByRole("button", { name: "Menu" }).click();
    await page.getByRole("menuitem", { name: "Sign out" }).click();
    await page.getByRole("heading", { name: "Sign in" }).waitFor();
  }, { url: KEYED, expected: /401/ }));
