import react from "@vitejs/plugin-react";
import { gzipSync } from "node:zlib";
import { loadEnv, type Plugin } from "vite";
import { defineConfig } from "vitest/config";

/** Bytes, with gzip, that a browser loads before it shows the first page. */
const FIRST_LOAD = 250 * 1024;

/** What index.html needs at once, and the overview, which it loads next. */
function sized(): Plugin {
  return {
    name: "size-of-the-first-load",
    generateBundle(_options, bundle) {
      const wanted = new Set<string>();
      const want = (name: string) => {
        const chunk = bundle[name];
        if (chunk === undefined || wanted.has(name)) return;
        wanted.add(name);
        if (chunk.type === "chunk") [...chunk.imports, ...(chunk.viteMetadata?.importedCss ?? [])].forEach(want);
      };
      for (const [name, chunk] of Object.entries(bundle)) {
        if (chunk.type !== "chunk") continue;
        if ((chunk.isEntry && chunk.name === "index") || chunk.facadeModuleId?.endsWith("/src/pages/overview.tsx")) want(name);
      }
      if (wanted.size === 0) this.error("no chunk of index.html was found, so the size of the first load is not known");
      const size = [...wanted].reduce((sum, name) => {
        const chunk = bundle[name];
        return sum + (chunk === undefined ? 0 : gzipSync(chunk.type === "chunk" ? chunk.code : chunk.source).length);
      }, 0);
      const kib = (bytes: number) => `${Math.ceil(bytes / 1024)} KiB`;
      if (size > FIRST_LOAD) this.error(`the first load is ${kib(size)} with gzip, and may be ${kib(FIRST_LOAD)}: load more of it when it is needed`);
      this.info(`first load: ${kib(size)} of at most ${kib(FIRST_LOAD)}`);
    },
  };
}

const server = loadEnv("", ".", "VLLM_MM_")["VLLM_MM_URL"] ?? "http://127.0.0.1:8000";

export default defineConfig({
  plugins: [react(), sized()],
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
