import type { State } from "../api/types";
import type { Tone } from "../format/events";

const LOOK: Record<State, { tone: Tone; shape: string }> = {
  // Drawn in a box of 16; each has a shape of its own, so that colour is never all there is.
  ready: { tone: "good", shape: "M3 8.5 6.5 12 13 4.5" },
  starting: { tone: "busy", shape: "M8 13V3M4 7l4-4 4 4" },
  waking: { tone: "busy", shape: "M8 13V3M4 7l4-4 4 4" },
  draining: { tone: "busy", shape: "M8 3v10M4 9l4 4 4-4" },
  suspending: { tone: "busy", shape: "M8 3v10M4 9l4 4 4-4" },
  stopping: { tone: "busy", shape: "M8 3v10M4 9l4 4 4-4" },
  sleeping: { tone: "calm", shape: "M12.5 10A5.5 5.5 0 1 1 7 3a4.5 4.5 0 0 0 5.5 7z" },
  stopped: { tone: "calm", shape: "M4.5 4.5h7v7h-7z" },
  backoff: { tone: "bad", shape: "M13 8a5 5 0 1 1-1.6-3.7M13 2v3h-3" },
  failed: { tone: "bad", shape: "M4 4l8 8M12 4l-8 8" },
};

/** A state as text with its sign. */
export function StateMark({ state, wanted }: { state: State; wanted: boolean }) {
  const { tone, shape } = LOOK[state];
  return (
    <span className={`state ${tone}`}>
      <svg viewBox="0 0 16 16" aria-hidden="true">
        <path d={shape} />
      </svg>
      {state}
      {wanted && ", wanted"}
    </span>
  );
}
