import { duration } from "../format/quantities";
import type { Stage } from "../format/stages";

/** Where a request's time went, as a bar. What it says is said in figures elsewhere. */
export function StageBar({ stages, whole }: { stages: readonly Stage[]; whole: number }) {
  return (
    <div className="bar thin" aria-hidden="true">
      {stages.map((stage) => (
        <span key={stage.name} className={stage.look} style={{ width: `${(100 * stage.took) / Math.max(whole, 1e-6)}%` }} title={`${stage.name}: ${duration(stage.took)}`} />
      ))}
    </div>
  );
}

/** The same with names and figures, each stage below the one before it. */
export function Waterfall({ stages, whole }: { stages: readonly Stage[]; whole: number }) {
  const share = (seconds: number) => `${(100 * seconds) / Math.max(whole, 1e-6)}%`;
  return (
    <ol className="waterfall" aria-label="What the time went into">
      {stages.map((stage) => (
        <li key={stage.name}>
          <span>{stage.name}</span>
          <span className="track" aria-hidden="true">
            <span className={stage.look} style={{ marginLeft: share(stage.from), width: share(stage.took) }} />
          </span>
          <b>{duration(stage.took)}</b>
        </li>
      ))}
    </ol>
  );
}
