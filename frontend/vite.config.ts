import react from "@vitejs/plugin-react";
import { loadEnv } from "vite";
import { defineConfig } from "vitest/config";

const server = loadEnv("", ".", "VLLM_MM_")["VLLM_MM_URL"] ?? "http://127.0.0.1:8000";

export default defineConfig({
  plugins: [react()],
  // Relative, so that the page works wherever a reverse proxy puts it; the server adds a matching <base>.
  base: "./",
  build: {
    outDir: "../backend/vllm_mm/static",
    emptyOutDir: true,
    target: "es2022",
    rolldownOptions: { input: { index: "index.html", docs: "docs.html" } },
    // Swagger UI is one large file, and loaded by one page only.
    chunkSizeWarningLimit: 2000,
  },
  // `npm run dev` is the page alone; the API is that of a running server.
  server: { proxy: { "/api": server, "/docs": server, "/openapi.json": server } },
  test: { include: ["src/**/*.test.ts"], environment: "node" },
});
