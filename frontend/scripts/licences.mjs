// The build holds other people's code: their licences go with it, into one file of its own.
//
//   node scripts/licences.mjs        (`npm run build` does it)
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";

// Licences that allow everything without their text.
const NO_TEXT = new Set(["Unlicense", "0BSD", "CC0-1.0"]);

const { packages } = JSON.parse(readFileSync("package-lock.json", "utf8"));
// What is not for development alone can be in the build, direct or not. Types leave nothing in it.
const shipped = Object.entries(packages).filter(
  ([path, entry]) => path !== "" && !entry.dev && !entry.devOptional && !path.includes("/@types/") && existsSync(path),
);
const texts = shipped.map(([path, entry]) => {
  const name = path.replace(/^.*node_modules\//, "");
  const files = readdirSync(path).filter((file) => /^(licen[cs]e|notice)|\.license\.txt$/i.test(file) && !/^swagger-ui-(?!es-bundle\.js)/.test(file));
  const described = JSON.parse(readFileSync(`${path}/package.json`, "utf8"));
  if (files.length === 0 && !NO_TEXT.has(described.license) && described.license !== "MIT" && described.license !== "ISC") {
    throw new Error(`${name} has no licence file`);
  }
  const author = typeof described.author === "string" ? described.author : (described.author?.name ?? "");
  const own = files.length === 0 ? [`${described.license}. ${author}`.trim()] : files.map((file) => readFileSync(`${path}/${file}`, "utf8").trim());
  return [`${name} ${entry.version}`, ...own].join("\n\n");
});
writeFileSync("../backend/vllm_mm/static/licences.txt", texts.join("\n\n----\n\n") + "\n");
