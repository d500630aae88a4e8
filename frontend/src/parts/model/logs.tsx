import { useVirtualizer } from "@tanstack/react-virtual";
import { useDeferredValue, useEffect, useRef, useState } from "react";
import { query } from "../../api/look";
import { useSession } from "../../api/overview";
import { modelPath } from "../../api/paths";
import { useSetting } from "../../frame/address";
import { follow, type Line } from "../../live/lines";
import { Failed } from "../failed";
import { Section } from "../section";

const LEVELS = ["", "debug", "info", "warning", "error", "critical"];
const TAIL = 1000;

/** The engine's log, with what comes. It stays at the end unless somebody scrolls up. */
export function Logs({ model }: { model: string }) {
  const session = useSession();
  const [search, setSearch] = useSetting("q");
  const [level, setLevel] = useSetting("level");
  const [follows, setFollows] = useSetting("follow", "1");
  const wanted = useDeferredValue(search);
  const [lines, setLines] = useState<readonly Line[]>([]);
  const [trouble, setTrouble] = useState<string | null>(null);
  useEffect(() => {
    const stop = new AbortController();
    const path = modelPath(model, "logs") + query({ tail: TAIL, follow: follows === "1" ? 1 : "", search: wanted, level });
    void follow(session, path, stop.signal, (shown, why) => {
      setLines(shown);
      setTrouble(why);
    });
    return () => stop.abort();
  }, [session, model, wanted, level, follows]);
  return (
    <Section title="Log" note={`${lines.length} lines`}>
      <div className="filters">
        <input type="search" aria-label="Search the log" placeholder="Search…" value={search} maxLength={200} onChange={(event) => setSearch(event.target.value)} />
        <select aria-label="Level" value={level} onChange={(event) => setLevel(event.target.value)}>
          {LEVELS.map((name) => (
            <option key={name} value={name}>
              {name === "" ? "all levels" : `${name} and above`}
            </option>
          ))}
        </select>
        <label className="check">
          <input type="checkbox" checked={follows === "1"} onChange={(event) => setFollows(event.target.checked ? "1" : "")} />
          Follow
        </label>
      </div>
      <Failed error={trouble} />
      <LineList lines={lines} label={`Log of ${model}`} empty={search !== "" || level !== "" ? "No line fits." : "There is no log yet: it is written when the model starts."} />
    </Section>
  );
}

function LineList({ lines, label, empty }: { lines: readonly Line[]; label: string; empty: string }) {
  const frame = useRef<HTMLDivElement>(null);
  const atEnd = useRef(true);
  const virtual = useVirtualizer({ count: lines.length, getScrollElement: () => frame.current, estimateSize: () => 20, getItemKey: (index) => lines[index]?.n ?? index, overscan: 20 });
  const last = lines.at(-1)?.n;
  useEffect(() => {
    if (atEnd.current && last !== undefined) virtual.scrollToIndex(lines.length - 1, { align: "end" });
  }, [last, lines.length, virtual]);
  return (
    <div
      ref={frame}
      className="log"
      role="log"
      aria-live="off"
      aria-label={label}
      tabIndex={0}
      onScroll={({ currentTarget: box }) => {
        atEnd.current = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
      }}
    >
      {lines.length === 0 && <p className="empty">{empty}</p>}
      <div className="log-lines" style={{ height: virtual.getTotalSize() }}>
        {virtual.getVirtualItems().map((item) => {
          const line = lines[item.index];
          return (
            <div key={item.key} ref={virtual.measureElement} data-index={item.index} className={`log-line ${tone(line?.text ?? "")}`} style={{ transform: `translateY(${item.start}px)` }}>
              {line?.text}
            </div>
          );
        })}
      </div>
    </div>
  );
}

function tone(text: string): string {
  return /\b(ERROR|CRITICAL|Traceback|Error:)/.test(text) ? "bad" : /\bWARNING\b/.test(text) ? "busy" : "";
}
