import { useMemo } from "react";
import { Link } from "wouter";
import type { Queue as QueueState } from "../api/types";
import { about, duration } from "../format/quantities";
import { modelPage } from "../frame/address";
import { DataTable, type Column } from "./data-table";
import { Prose } from "./prose";
import { Section } from "./section";

type Entry = QueueState["entries"][number];

const COLUMNS: readonly Column<Entry>[] = [
  {
    id: "model",
    title: "Model",
    head: true,
    width: "18%",
    sort: (entry) => entry.model,
    cell: (entry) => (
      <Link href={modelPage(entry.model)} className="name">
        {entry.model}
      </Link>
    ),
  },
  { id: "position", title: "Position", number: true, width: "5rem", sort: (entry) => entry.position, cell: (entry) => entry.position },
  { id: "request", title: "Request", width: "11rem", cell: (entry) => <span className="id">{entry.ticket}</span> },
  {
    id: "waits",
    title: "Waits",
    width: "8.5rem",
    sort: (entry) => entry.waited_s,
    cell: (entry) => (
      <span>
        {duration(entry.waited_s)} <span className="note">of {about(entry.waited_s + entry.deadline_in_s)}</span>
      </span>
    ),
  },
  { id: "eta", title: "ETA", width: "5.5rem", sort: (entry) => entry.eta_s, cell: (entry) => (entry.eta_s === null ? "not known" : about(entry.eta_s)) },
  {
    id: "why",
    title: "Why",
    cell: (entry) => (
      <span className="why">
        <Prose text={entry.why} />
      </span>
    ),
  },
];

/** Who waits for what, and why. */
export function Queue({ queue, onShow, onCancel }: { queue: QueueState; onShow?: (ticket: string) => void; onCancel?: (ticket: string) => void }) {
  const columns = useMemo<readonly Column<Entry>[]>(
    () =>
      onCancel === undefined
        ? COLUMNS
        : [
            ...COLUMNS.map((column): Column<Entry> => (column.id === "request" && onShow !== undefined ? { ...column, cell: (entry) => <ShowButton ticket={entry.ticket} onShow={onShow} /> } : column)),
            {
              id: "acts",
              title: "(Acts)",
              width: "6rem",
              cell: (entry) => (
                <button type="button" aria-label={`Cancel ${entry.ticket}`} onClick={() => onCancel(entry.ticket)}>
                  Cancel
                </button>
              ),
            },
          ],
    [onShow, onCancel],
  );
  const note = queue.length === 0 ? undefined : `${queue.length} of at most ${queue.max_size}, the oldest for ${duration(queue.oldest_s)}`;
  return (
    <Section title="Queue" note={note} className="queue">
      <DataTable label="The queue" rows={queue.entries} columns={columns} id={(entry) => entry.ticket} empty="Nobody waits." setting="queue" guess={48} />
    </Section>
  );
}

function ShowButton({ ticket, onShow }: { ticket: string; onShow: (ticket: string) => void }) {
  return (
    <button type="button" className="plain id" onClick={() => onShow(ticket)}>
      {ticket}
    </button>
  );
}
