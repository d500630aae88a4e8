/** Server-sent events from text that comes in any pieces (https://html.spec.whatwg.org/multipage/server-sent-events.html). */

export interface SentEvent {
  /** The last id that was sent, with this event or before it; "" when there was none. */
  id: string;
  kind: string;
  data: string;
}

export class SseParser {
  #rest = "";
  #first = true;
  #id = "";
  #kind = "";
  #data: string[] = [];

  /** The events that `text` completes. */
  push(text: string): SentEvent[] {
    if (this.#first && text !== "") {
      this.#first = false;
      text = text.replace(/^\uFEFF/, "");
    }
    const found: SentEvent[] = [];
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?!$)/);
    // A CR at the very end may be half of a CRLF: it is left for the next piece.
    this.#rest = lines.pop() ?? "";
    for (const line of lines) {
      const event = this.#line(line);
      if (event !== null) found.push(event);
    }
    return found;
  }

  #line(line: string): SentEvent | null {
    if (line === "") return this.#dispatch();
    const colon = line.indexOf(":");
    if (colon === 0) return null; // a comment
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "data") this.#data.push(value);
    else if (field === "event") this.#kind = value;
    else if (field === "id" && !value.includes("\0")) this.#id = value;
    return null;
  }

  #dispatch(): SentEvent | null {
    const event = { id: this.#id, kind: this.#kind || "message", data: this.#data.join("\n") };
    const empty = this.#data.length === 0;
    this.#kind = "";
    this.#data = [];
    return empty ? null : event;
  }
}
