/** What people see of the connection: it is lost and comes back, the server is another one, the network is slow, a proxy is before it. */

import { beforeAll, it } from "vitest";
import { Front } from "./front";
import { api, live, SPARE, spare, useBrowser, visit } from "./rig";

useBrowser();

const lost = /ERR_CONNECTION|ERR_EMPTY_RESPONSE|ERR_INCOMPLETE_CHUNKED|ERR_NETWORK|ERR_SOCKET/;

beforeAll(async () => {
  await api("api/models/first/start?wait=60", { method: "POST" }, SPARE);
});

it("says that the connection is lost, and catches up when it is back", async () => {
  const front = await Front.of(SPARE);
  try {
    await visit("", async ({ page }) => {
      await live(page);
      await page.getByRole("button", { name: "Sleep first" }).or(page.getByRole("button", { name: "Start first" })).first().waitFor();
      await front.unplug();
      await page.getByRole("status").filter({ hasText: "Not connected" }).waitFor();
      await page.getByText(/What is shown here is of/).first().waitFor();
      // Meanwhile, without the page.
      await api("api/models/first/pin", { method: "POST" }, SPARE);
      await api("api/models/first/stop?force=1&wait=60", { method: "POST" }, SPARE);
      await front.plug();
      await live(page);
      await page.getByText("first has stopped").first().waitFor();
      await page.getByRole("button", { name: "Pin first", pressed: true }).waitFor();
      await page.getByText(/What is shown here is of/).waitFor({ state: "detached" });
      await api("api/models/first/unpin", { method: "POST" }, SPARE);
    }, { url: front.url, expected: lost });
  } finally {
    await front.unplug();
  }
});

it("goes on after a restart of the server, and begins anew where that has another database", () =>
  visit("", async ({ page }) => {
    await live(page);
    await spare("stop");
    await page.getByRole("status").filter({ hasText: "Not connected" }).waitFor();
    await spare("start");
    await live(page);
    await page.getByText("first has stopped").first().waitFor(); // of before: nothing is forgotten
    await api("api/models/first/start?wait=60", { method: "POST" }, SPARE);
    await page.getByText("first is ready").first().waitFor();
    await spare("stop");
    await spare("anew");
    await live(page);
    await api("api/models/second/start?wait=60", { method: "POST" }, SPARE);
    await page.getByText("second is ready").first().waitFor();
    await page.getByText("first has stopped").waitFor({ state: "detached" }); // of another life
  }, { url: SPARE, expected: lost }));

it("shows in one tab what is done in another", () =>
  visit("models", async ({ page, context }) => {
    await live(page);
    const other = await context.newPage();
    await other.goto(`${SPARE}/ui/`);
    await live(other);
    const pin = page.getByRole("button", { name: "Pin first" });
    await pin.click();
    await other.getByRole("button", { name: "Pin first", pressed: true }).click();
    await page.getByRole("button", { name: "Pin first", pressed: false }).waitFor();
  }, { url: SPARE }));

it("works over a slow network, and says meanwhile what it waits for", () =>
  visit("", async ({ page }) => {
    await live(page);
    await page.getByRole("heading", { name: "Devices" }).waitFor();
    await page.getByRole("button", { name: "Pin second" }).click();
    await page.getByRole("button", { name: "Pin second", pressed: true }).click();
    await page.getByRole("button", { name: "Pin second", pressed: false }).waitFor();
  }, { url: SPARE, slow: true }));

it("works below a prefix of a reverse proxy", async () => {
  const front = await Front.of(SPARE, "/llm");
  try {
    await visit("", async ({ page }) => {
      await live(page);
      await page.getByRole("link", { name: "second", exact: true }).first().click();
      await page.waitForURL("**/llm/ui/models/second");
      await page.getByRole("heading", { name: "second", exact: true }).waitFor();
      await page.reload();
      await live(page);
      await page.goto(`${front.url}/ui/playground?mode=tokens&m=second`);
      await page.getByRole("button", { name: "Send" }).click();
      await page.getByText(/^\d+ tokens/).waitFor();
      await page.goto(front.url);
      await page.waitForURL("**/llm/ui/");
      await page.getByRole("heading", { name: "Devices" }).waitFor();
    }, { url: front.url });
  } finally {
    await front.unplug();
  }
});
