// The build holds other people's code: their licences go with it, into one file of its own.
//
//   node scripts/licences.mjs        (`npm run build` does it)
import { existsSync, readFileSync, writeFileSync } from "node:fs";

const { dependencies } = JSON.parse(readFileSync("package.json", "utf8"));
const kinds = ["LICENSE", "NOTICE", "swagger-ui-es-bundle.js.LICENSE.txt"];
const texts = Object.keys(dependencies).map((name) => {
  const files = kinds.map((kind) => `node_modules/${name}/${kind}`).filter(existsSync);
  if (files.length === 0) throw new Error(`${name} has no licence file`);
  return [name, ...files.map((file) => readFileSync(file, "utf8").trim())].join("\n\n");
});
writeFileSync("../backend/vllm_mm/static/licences.txt", texts.join("\n\n----\n\n") + "\n");
