import type { Queue as QueueState } from "../api/types";
import { about, duration } from "../format/quantities";
import { Prose } from "./prose";
import { Section } from "./section";

const SHOWN = 50;

/** Who waits for what, and why. */
export function Queue({ queue }: { queue: QueueState }) {
  const entries = queue.entries.slice(0, SHOWN);
  const note = queue.length === 0 ? undefined : `${queue.length} of at most ${queue.max_size}, the oldest for ${duration(queue.oldest_s)}`;
  return (
    <Section title="Queue" note={note}>
      {entries.length === 0 ? (
        <p className="empty">Nobody waits.</p>
      ) : (
        <table className="queue">
          <thead>
            <tr>
              <th scope="col">Model</th>
              <th scope="col">Position</th>
              <th scope="col">Request</th>
              <th scope="col">Waits</th>
              <th scope="col">ETA</th>
              <th scope="col">Why</th>
            </tr>
          </thead>
          <tbody>
            {entries.map((entry) => (
              <tr key={entry.ticket}>
                <th scope="row" className="name">
                  {entry.model}
                </th>
                <td data-label="Position">{entry.position}</td>
                <td data-label="Request" className="id">
                  {entry.ticket}
                </td>
                <td data-label="Waits">
                  <span>
                    {duration(entry.waited_s)} <span className="note">of {about(entry.waited_s + entry.deadline_in_s)}</span>
                  </span>
                </td>
                <td data-label="ETA">{entry.eta_s === null ? "not known" : about(entry.eta_s)}</td>
                <td data-label="Why">
                  <span>
                    <Prose text={entry.why} />
                  </span>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {queue.entries.length > SHOWN && <p className="note">and {queue.entries.length - SHOWN} more: vllm-mm queue</p>}
    </Section>
  );
}
