import { describe, expect, it } from "vitest";
import { SseParser, type SentEvent } from "./sse";

const parse = (...pieces: string[]): SentEvent[] => {
  const parser = new SseParser();
  return pieces.flatMap((piece) => parser.push(piece));
};

describe("SseParser", () => {
  it("gives id, kind and data of each event", () => {
    expect(parse('id: 7\nevent: instance.ready\ndata: {"seq":7}\n\nid: 8\nevent: x\ndata: y\n\n')).toEqual([
      { id: "7", kind: "instance.ready", data: '{"seq":7}' },
      { id: "8", kind: "x", data: "y" },
    ]);
  });

  it.each(["\n", "\r\n", "\r"])("is the same wherever the text is cut, with %j as the end of a line", (end) => {
    // The last line is closed by something other than a lone CR, which cannot be told from half a CRLF.
    const text = [": hello", "", "id: 1", "event: a", "data: one", "data: two", "", "id: 2", "data:three", "", ": x", ""].join(end);
    const whole = parse(text);
    expect(whole).toEqual([
      { id: "1", kind: "a", data: "one\ntwo" },
      { id: "2", kind: "message", data: "three" },
    ]);
    for (let cut = 0; cut <= text.length; cut++) expect(parse(text.slice(0, cut), text.slice(cut))).toEqual(whole);
    expect(parse(...text)).toEqual(whole);
  });

  it("leaves out comments, unknown fields and events without data", () => {
    expect(parse(": keep-alive\n\nretry: 5\nevent: a\n\nfoo\n\n")).toEqual([]);
  });

  it("keeps the last id, and takes none with a NUL", () => {
    expect(parse("id: 4\n\ndata: a\n\nid: 5\0\ndata: b\n\nid\ndata: c\n\n").map((e) => e.id)).toEqual(["4", "4", ""]);
  });

  it("takes one space and a byte order mark away, no more", () => {
    expect(parse("\uFEFFdata:  a \n\ndata:b:c\n\n").map((e) => e.data)).toEqual([" a ", "b:c"]);
  });

  it("does not give an event that was cut", () => {
    expect(parse("data: half\n")).toEqual([]);
  });
});
