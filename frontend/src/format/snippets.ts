/** A request as one would write it elsewhere. */

export const LANGUAGES = ["curl", "Python", "JavaScript"] as const;
export type Language = (typeof LANGUAGES)[number];

/** `base` ends with a slash; `path` begins without one. The key is left to the environment. */
export function snippet(language: Language, base: string, path: string, body: unknown): string {
  const address = base + path;
  switch (language) {
    case "curl":
      return [
        `curl -N ${quoted(address)} \\`,
        `  -H "Authorization: Bearer $VLLM_MM_KEY" \\`,
        `  -H 'Content-Type: application/json' \\`,
        `  -d ${quoted(JSON.stringify(body))}`,
      ].join("\n");
    case "Python":
      return [
        "import os",
        "import urllib.request",
        "",
        `body = ${JSON.stringify(JSON.stringify(body))}`,
        "request = urllib.request.Request(",
        `    ${JSON.stringify(address)},`,
        "    data=body.encode(),",
        `    headers={"Authorization": "Bearer " + os.environ.get("VLLM_MM_KEY", ""), "Content-Type": "application/json"},`,
        ")",
        "with urllib.request.urlopen(request) as answer:",
        "    for line in answer:",
        "        print(line.decode(), end=\"\")",
      ].join("\n");
    case "JavaScript":
      return [
        `const answer = await fetch(${JSON.stringify(address)}, {`,
        `  method: "POST",`,
        `  headers: { Authorization: \`Bearer \${process.env.VLLM_MM_KEY}\`, "Content-Type": "application/json" },`,
        `  body: JSON.stringify(${JSON.stringify(body, null, 2).replace(/\n/g, "\n  ")}),`,
        "});",
        "for await (const piece of answer.body.pipeThrough(new TextDecoderStream())) process.stdout.write(piece);",
      ].join("\n");
  }
}

/** For a shell, whatever is in it. */
function quoted(text: string): string {
  return `'${text.replace(/'/g, "'\\''")}'`;
}
