/** Charts: what was sampled is drawn and told in numbers, for the time and the model that the address says. */

import { expect, it } from "vitest";
import { api, live, useBrowser, visit } from "./rig";

useBrowser();

it("draws what models did, tells it in numbers, and why they were loaded", async () => {
  await api("api/models/org/small/start?wait=60", { method: "POST" });
  for (;;) {
    const { lines } = await api<{ lines: { model: string | null; values: (number | null)[] }[] }>("api/series?metric=requests&from=15m");
    if (lines.some(({ model, values }) => model === "org/small" && values.some((value) => value !== null))) break;
    await api("v1/chat/completions", { method: "POST", body: JSON.stringify({ model: "org/small", max_tokens: 4, messages: [{ role: "user", content: "Hello" }] }) });
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
  await visit("charts?range=15m", async ({ page }) => {
    await live(page);
    const tokens = page.getByRole("region", { name: "Tokens per second" });
    await tokens.getByRole("img", { name: /Tokens per second over time/ }).locator("canvas").waitFor();
    await tokens.getByRole("rowheader", { name: "org/small" }).waitFor();
    await page.getByRole("region", { name: /^Memory of/ }).first().getByRole("rowheader", { name: "org/small" }).waitFor();
    const swaps = page.getByRole("region", { name: "Loads, sleeps, stops and failures" });
    await swaps.getByRole("row").filter({ hasText: "org/small" }).first().waitFor();
    await page.getByRole("combobox", { name: "Model" }).selectOption("second");
    await page.waitForURL("**/ui/charts?range=15m&m=second");
    await tokens.getByRole("rowheader", { name: "org/small" }).waitFor({ state: "detached" });
    await page.getByRole("combobox", { name: "Time" }).selectOption("custom");
    await page.getByText("Choose a beginning, and an end that comes after it.").waitFor();
    await page.getByLabel("From").fill("2020-01-01T00:00");
    await page.getByLabel("To").fill("2020-01-02T00:00");
    await tokens.getByText("Nothing is known of this time.").waitFor();
    expect(new URL(page.url()).searchParams.get("from")).toBe("2020-01-01T00:00");
  });
});
