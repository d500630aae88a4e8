import { useState } from "react";
import { LANGUAGES, snippet, type Language } from "../../format/snippets";
import { Copy } from "../copy";

/** Where the server is, as this browser reaches it. The frame's <base> leads there. */
export const base = (): string => new URL(".", document.baseURI).href;

/** The request that the page sends, for elsewhere. */
export function Code({ path, body }: { path: string; body: unknown }) {
  const [language, setLanguage] = useState<Language>("curl");
  const text = snippet(language, base(), path, body);
  return (
    <details className="code-for">
      <summary>The same as code</summary>
      <div className="filters">
        <select aria-label="Language" value={language} onChange={(event) => setLanguage(event.target.value as Language)}>
          {LANGUAGES.map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
        <Copy text={text} label="Copy" />
      </div>
      <pre tabIndex={0} aria-label={`${language} code`}>
        {text}
      </pre>
    </details>
  );
}
