// Makes src/api/schema.ts from the server's own OpenAPI document; with --check, fails when it is not up to date.
// Needs the Python environment of the checkout (scripts/run makes it), or PYTHON=/path/to/python with vllm-mm in it.
import { execFileSync } from "node:child_process";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import openapiTS, { astToString } from "openapi-typescript";

const at = (path) => fileURLToPath(new URL(path, import.meta.url));
const target = at("../src/api/schema.ts");
const own = at("../../.venv/bin/python");
const python = process.env.PYTHON ?? (existsSync(own) ? own : "python3");

// The document depends on the routes only, so an application without services can give it.
const program = `
import json
from types import SimpleNamespace
from vllm_mm.api.app import create_app
print(json.dumps(create_app(SimpleNamespace(version="0")).openapi()))
`;
const document = JSON.parse(
  execFileSync(python, ["-c", program], {
    env: { ...process.env, PYTHONPATH: at("../../backend") },
    maxBuffer: 64 * 1024 * 1024,
    encoding: "utf8",
  }),
);

const made =
  "// Made by `npm run types` from the server's OpenAPI document. Do not edit.\n\n" +
  astToString(await openapiTS(document));
if (!process.argv.includes("--check")) {
  writeFileSync(target, made);
} else if (!existsSync(target) || readFileSync(target, "utf8") !== made) {
  console.error("src/api/schema.ts is not what the server's API says: run `npm run types` and commit the result.");
  process.exit(1);
}
