import { useEffect, useState } from "react";

/** The time in ms, anew every second while `running`. */
export function useNow(running = true): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    if (!running) return;
    setNow(Date.now());
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, [running]);
  return now;
}

/** A moment in the past, as short as it can be: the time alone where that was today. */
export function moment(ms: number, now = Date.now()): string {
  const at = new Date(ms);
  if (at.toDateString() === new Date(now).toDateString()) return clockTime(ms);
  return `${at.toLocaleDateString(undefined, { day: "numeric", month: "short" })}, ${clockTime(ms)}`;
}

export function clockTime(ms: number): string {
  return new Date(ms).toLocaleTimeString(undefined, { hour12: false });
}
