import { memo } from "react";
import type { MMEvent } from "../api/types";
import { tell } from "../format/events";
import type { Feed } from "../live/feed";
import { clockTime } from "./clock";
import { Prose } from "./prose";
import { Section } from "./section";

/** The latest events, the newest first. */
export function Timeline({ feed }: { feed: Feed }) {
  return (
    <Section title="Timeline" note={feed.connection.kind === "live" ? "live" : "not live"} className="timeline">
      {!feed.told ? (
        <Skeleton />
      ) : feed.events.length === 0 ? (
        <p className="empty">
          Nothing has happened yet. Start a model above, or type <code>vllm-mm load MODEL</code>
        </p>
      ) : (
        <ol tabIndex={0} aria-label="Events, the newest first">
          {feed.events.map((event) => (
            <Item key={`${event.seq} ${event.kind}`} event={event} />
          ))}
        </ol>
      )}
    </Section>
  );
}

/** In the place of events that are on their way, and as high as they may become. */
function Skeleton() {
  return (
    <div className="skeleton">
      <p className="unseen">Asking the server…</p>
      {Array.from({ length: 12 }, (_, n) => (
        <span key={n} aria-hidden="true" />
      ))}
    </div>
  );
}

/** Drawn once: an event does not change. */
const Item = memo(function Item({ event }: { event: MMEvent }) {
  const { what, more, tone } = tell(event);
  return (
    <li className={tone}>
      {event.at > 0 ? (
        <time dateTime={new Date(event.at * 1000).toISOString()} title={new Date(event.at * 1000).toLocaleString()}>
          {clockTime(event.at * 1000)}
        </time>
      ) : (
        <span />
      )}
      <span className="what">
        {tone === "bad" && <span className="unseen">Trouble: </span>}
        {what}
        {more !== "" && (
          <span className="under" title={more}>
            <Prose text={more} />
          </span>
        )}
      </span>
    </li>
  );
});
