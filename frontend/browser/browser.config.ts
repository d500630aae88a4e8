import { defineConfig } from "vitest/config";

// Run by tests/browser, which starts the servers and says where they are.
export default defineConfig({
  root: import.meta.dirname,
  test: {
    include: ["*.spec.ts"],
    environment: "node",
    // One browser, and a server whose models the specs share: one after the other.
    fileParallelism: false,
    testTimeout: 120_000,
    hookTimeout: 120_000,
  },
});
