/** Somebody who has never seen it: adds a model, sees it load, chats with it, swaps to another, and finds out why a request waits. Only
 *  what is on the pages is used, by the words that are there. */

import { afterAll, expect, it } from "vitest";
import { accessibility, api, live, SPARE, stream, useBrowser, visit } from "./rig";

useBrowser();

const profile = (startup: string) => JSON.stringify({ sim: { weights: "15GiB", load_bandwidth: "10GiB/s", startup, kv_cache: "1GiB", tokens_per_second: 40 } });

afterAll(async () => {
  for (const model of ["alpha", "beta"]) await fetch(`${SPARE}/api/models/${model}`, { method: "DELETE" });
});

it("finds the way without documentation", () =>
  visit("../", async ({ page }) => {
    await live(page);

    // Adds a model.
    await page.getByRole("navigation", { name: "Pages" }).getByRole("link", { name: "Models" }).click();
    await page.getByRole("link", { name: "Add a model" }).click();
    const add = async (name: string, startup: string) => {
      await page.getByRole("textbox", { name: "Hugging Face id, or a folder on the server" }).fill(`somebody/${name}`);
      await page.getByRole("combobox", { name: "Engine" }).selectOption("sim");
      await page.getByRole("textbox", { name: /^More/ }).fill(profile(startup));
    };
    await add("Alpha", "3s");
    await page.getByText("fits now").waitFor();
    await page.getByRole("button", { name: "Add and start" }).click();

    // Sees it load.
    await page.getByRole("progressbar", { name: /Load of alpha/ }).first().waitFor();
    await page.getByText("Ready").first().waitFor();

    // Chats with it.
    await page.getByRole("link", { name: "Try it" }).click();
    const message = page.getByRole("textbox", { name: "Message", exact: true });
    await message.fill("Hello");
    await message.press("Enter");
    await page.getByRole("article", { name: "alpha answers" }).getByText(/first token after/).waitFor();

    // Adds another, for which there is no room beside it, and is told what a start does before it is done.
    await page.getByRole("button", { name: "Menu" }).click();
    await page.getByRole("menuitem", { name: "Add a model" }).click();
    await add("Beta", "100ms");
    await page.getByText("fits when others make room").waitFor();
    await page.getByRole("button", { name: "Add and start" }).click();
    const sure = page.getByRole("dialog", { name: "Start beta?" });
    await sure.getByText(/(Evicts alpha|Puts alpha to sleep): no request is in flight/).waitFor();
    await sure.getByText(/ready in about/).waitFor();
    expect(await accessibility(page)).toEqual([]);
    await sure.getByRole("button", { name: "Start" }).click();
    await page.getByRole("button", { name: /^(Sleep|Stop) beta$/, disabled: false }).first().waitFor();
    const { instance } = await api<{ instance: { state: string } }>("api/models/alpha", {}, SPARE);
    expect(instance.state).not.toBe("ready");

    // Finds out why a request waits: beta is busy with somebody's long request.
    const long = stream("beta", SPARE);
    await long.answer;
    const waits = stream("alpha", SPARE);
    await page.getByRole("link", { name: "Overview" }).first().click();
    const entry = page.getByRole("region", { name: "The queue" }).getByRole("row").filter({ hasText: "alpha" });
    await entry.getByText(/beta/).first().waitFor(); // why it waits names who has the memory

    // And ends what it waits for.
    await page.getByRole("link", { name: "Requests" }).first().click();
    const running = page.getByRole("region", { name: "Running requests" });
    await running.getByRole("row").filter({ hasText: "beta" }).getByRole("button", { name: /^Cancel/ }).click();
    await page.getByRole("dialog").getByRole("button", { name: "End it" }).click();
    await page.getByRole("region", { name: "Requests that are over" }).getByText("cut").first().waitFor();
    await waits.answer;
    waits.end();
    long.end();
  }, { url: SPARE }));
