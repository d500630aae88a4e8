import { useMemo } from "react";
import { Link } from "wouter";
import type { Running } from "../api/types";
import { bytes, duration } from "../format/quantities";
import { stagesSoFar } from "../format/stages";
import { modelPage } from "../frame/address";
import { DataTable, type Column } from "./data-table";
import { Dialog } from "./dialog";
import { Facts } from "./facts";
import { asked } from "./request";
import { StageBar, Waterfall } from "./waterfall";

/** How far a request is, in words. */
export function stageOf(row: Running): string {
  if (row.ending) return "is being ended";
  if (row.frozen) return "stands still";
  switch (row.stage) {
    case "arrives":
      return "arrives";
    case "waits":
      return "waits";
    case "prompt":
      return "prompt";
    case "answers":
      return "answers";
  }
}

function sentenceOf(row: Running): string {
  if (row.ending) return "It is being ended";
  if (row.frozen) return "It stands still: another model has the memory";
  switch (row.stage) {
    case "arrives":
      return "It arrives";
    case "waits":
      return "It waits for its model";
    case "prompt":
      return "Its engine reads the prompt";
    case "answers":
      return "Its answer is on the way";
  }
}

/** Requests that have their engine: each with what its time went into so far, and a way to end it. */
export function RunningTable(props: { rows: readonly Running[]; onShow: (id: string) => void; onCancel: (row: Running) => void }) {
  const { onShow, onCancel } = props;
  const columns = useMemo<readonly Column<Running>[]>(
    () => [
      {
        id: "id",
        title: "Request",
        head: true,
        width: "11rem",
        cell: (row) => (
          <button type="button" className="plain id" onClick={() => onShow(row.id)}>
            {row.id}
          </button>
        ),
      },
      { id: "model", title: "Model", sort: (row) => row.model, cell: (row) => (row.model === null ? <span className="note">{row.asked ?? "not known yet"}</span> : <Link href={modelPage(row.model)}>{row.model}</Link>) },
      { id: "stage", title: "Now", width: "8rem", sort: stageOf, cell: (row) => <span className={row.ending ? "bad" : row.frozen ? "busy" : undefined}>{stageOf(row)}</span> },
      { id: "ttft", title: "TTFT", number: true, width: "5.5rem", sort: (row) => row.ttft_s, cell: (row) => (row.ttft_s === null ? "–" : duration(row.ttft_s)) },
      { id: "since", title: "For", number: true, width: "5.5rem", sort: (row) => row.total_s, cell: (row) => duration(row.total_s) },
      { id: "sent", title: "Sent", number: true, width: "6rem", sort: (row) => row.bytes_out, cell: (row) => bytes(row.bytes_out) },
      { id: "stages", title: "(Stages)", width: "14%", cell: (row) => <StageBar stages={stagesSoFar(row)} whole={row.total_s} /> },
      {
        id: "acts",
        title: "(Acts)",
        width: "6rem",
        cell: (row) => (
          <button type="button" disabled={row.ending} aria-label={`Cancel ${row.id}`} onClick={() => onCancel(row)}>
            Cancel
          </button>
        ),
      },
    ],
    [onShow, onCancel],
  );
  return <DataTable label="Running requests" rows={props.rows} columns={columns} id={(row) => row.id} empty="No request runs." setting="running" />;
}

/** One request that is under way. */
export function RunningDetails(props: { row: Running; onCancel: (row: Running) => void; onClose: () => void }) {
  const { row } = props;
  return (
    <Dialog title={`Request ${row.id}`} onClose={props.onClose} className="wide-dialog">
      <p className={row.ending ? "bad" : row.frozen ? "busy" : "good"}>
        {sentenceOf(row)}; it came {duration(row.total_s)} ago.
      </p>
      <Waterfall stages={stagesSoFar(row)} whole={row.total_s} />
      <Facts
        facts={[
          ...asked(row),
          ["Stood still", row.frozen_s > 0 ? duration(row.frozen_s) : null],
          ["Bytes", `${bytes(row.bytes_in)} in, ${bytes(row.bytes_out)} out so far`],
          ["Sent again", row.retried ? "yes, after its engine had failed" : null],
        ]}
      />
      <div className="buttons">
        <button type="button" className="danger" disabled={row.ending} onClick={() => props.onCancel(row)}>
          Cancel it
        </button>
        <button type="button" onClick={props.onClose} autoFocus>
          Close
        </button>
      </div>
    </Dialog>
  );
}
