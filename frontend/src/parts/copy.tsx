import { useState } from "react";

/** Puts a text into the clipboard, and says whether that worked: browsers allow it on https and on this machine only. */
export function Copy({ text, label }: { text: string; label: string }) {
  const [said, setSaid] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setSaid("Copied");
    } catch {
      setSaid("This browser does not allow it here: mark the text and copy it");
    }
    setTimeout(() => setSaid(""), 4000);
  };
  return (
    <span className="copy">
      <button type="button" onClick={() => void copy()}>
        {label}
      </button>
      <span className="note" role="status">
        {said}
      </span>
    </span>
  );
}
