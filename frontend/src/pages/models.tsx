import { useMemo } from "react";
import { Link } from "wouter";
import { useOverview } from "../api/overview";
import type { Model } from "../api/types";
import { modelPage, useSetting } from "../frame/address";
import { useShared, useTitle } from "../frame/shared";
import { DataTable, type Column } from "../parts/data-table";
import { Acts, describe, MemoryCell, reasonOf, StateCell } from "../parts/models";
import { Prose } from "../parts/prose";

/** All models, to be searched and sorted. */
export default function ModelsPage() {
  useTitle("Models");
  const { sent, onAct } = useShared();
  const { data } = useOverview();
  const [search, setSearch] = useSetting("q");
  const columns = useMemo<readonly Column<Model>[]>(
    () => [
      {
        id: "model",
        title: "Model",
        head: true,
        width: "24%",
        sort: (model) => model.id,
        cell: (model) => (
          <>
            <Link href={modelPage(model.id)} className="name">
              {model.id}
            </Link>
            <span className="under">{describe(model)}</span>
          </>
        ),
      },
      {
        id: "state",
        title: "State",
        sort: (model) => model.instance?.state ?? "stopped",
        cell: (model) => (
          <div>
            <StateCell instance={model.instance} />
            {reasonOf(model.instance) !== "" && (
              <span className="under">
                <Prose text={reasonOf(model.instance)} />
              </span>
            )}
          </div>
        ),
      },
      { id: "flight", title: "In flight", number: true, width: "6rem", sort: (model) => model.instance?.in_flight ?? 0, cell: (model) => model.instance?.in_flight ?? 0 },
      { id: "queued", title: "Queued", number: true, width: "6rem", sort: (model) => model.instance?.queued ?? 0, cell: (model) => model.instance?.queued ?? 0 },
      {
        id: "memory",
        title: "Memory",
        width: "12rem",
        sort: (model) => model.footprint.per_device * model.devices.count,
        cell: (model) => <MemoryCell model={model} instance={model.instance} />,
      },
      { id: "acts", title: "(Acts)", width: "18rem", cell: (model) => <Acts model={model} sent={sent} onAct={onAct} /> },
    ],
    [sent, onAct],
  );
  const rows = useMemo(() => (data?.models ?? []).filter((model) => matches(model, search)), [data?.models, search]);
  return (
    <>
      <div className="page-head">
        <h1>Models</h1>
        <input type="search" aria-label="Search models" placeholder="Search: name, alias, state…" value={search} onChange={(event) => setSearch(event.target.value)} />
        <Link href="/add" className="button primary">
          Add a model
        </Link>
      </div>
      <section aria-label="Models">
        <DataTable
          label="All models"
          rows={rows}
          columns={columns}
          id={(model) => model.id}
          guess={64}
          empty={
            data === undefined ? (
              "Asking the server…"
            ) : search !== "" ? (
              <>
                No model fits “{search}”.{" "}
                <button type="button" className="plain" onClick={() => setSearch("")}>
                  Show all
                </button>
              </>
            ) : (
              <>
                No models yet. <Link href="/add">Add one</Link>, or put some into <code>vllm-mm.yaml</code>
              </>
            )
          }
        />
      </section>
    </>
  );
}

function matches(model: Model, search: string): boolean {
  const all = [model.id, ...model.aliases, model.task, model.engine, model.instance?.state ?? "stopped", model.pinned ? "pinned" : ""].join(" ").toLowerCase();
  return search.toLowerCase().split(/\s+/).every((word) => all.includes(word));
}
