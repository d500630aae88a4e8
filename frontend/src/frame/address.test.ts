import { expect, it } from "vitest";
import { modelIn, modelPage } from "./address";

it.each(["a", "Qwen/Qwen2.5-7B", "odd? #%/ü", "100%"])("the page of %s names it, also below a prefix", (id) => {
  for (const base of ["/ui", "/llm/ui"]) {
    const { pathname } = new URL(base + modelPage(id), "http://x");
    expect(modelIn(pathname, base)).toBe(id);
  }
});

it("takes a stray % as it is", () => expect(modelIn("/ui/models/50%25/50%", "/ui")).toBe("50%/50%"));

it("names the tab", () => expect(modelPage("a", "logs")).toBe("/models/a?tab=logs"));
