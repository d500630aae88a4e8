/** A table of any length: TanStack Table sorts it, TanStack Virtual draws only what is in sight. */

import { createSortedRowModel, rowSortingFeature, tableFeatures, useTable, type ColumnDef, type SortingState } from "@tanstack/react-table";
import { useVirtualizer } from "@tanstack/react-virtual";
import { memo, useMemo, useRef, type ReactNode } from "react";
import { useSetting } from "../frame/address";

export interface Column<T> {
  id: string;
  /** Of the head; shown before the value where the window is narrow. */
  title: string;
  cell: (row: T) => ReactNode;
  /** What it is sorted by; without it, it is not. Null comes last. */
  sort?: (row: T) => number | string | null;
  /** Stands at the right, as numbers do. */
  number?: boolean;
  /** The name of its row. */
  head?: boolean;
  width?: string;
}

export interface DataTableProps<T> {
  /** For those who do not see it. */
  label: string;
  rows: readonly T[];
  columns: readonly Column<T>[];
  id: (row: T) => string;
  /** Shown in place of the table when it has no rows. */
  empty: ReactNode;
  /** Height of a row in px, as a first guess. */
  guess?: number;
  /** Name in the address under which its order is kept. */
  setting?: string;
  className?: string;
}

const NONE: never[] = [];
const features = tableFeatures({ rowSortingFeature, sortedRowModel: createSortedRowModel() });

/** Numbers before text, each in its order; nothing at all comes last whichever way it is sorted (`sortUndefined`). */
export function compare(a: unknown, b: unknown): number {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a === "number") return -1;
  if (typeof b === "number") return 1;
  return String(a).localeCompare(String(b), undefined, { numeric: true });
}

export function DataTable<T extends object>(props: DataTableProps<T>) {
  const { rows: data, columns, id } = props;
  const [order, setOrder] = useSetting(props.setting ?? "order");
  const sorting = useMemo<SortingState>(() => (order === "" ? [] : [{ id: order.replace(/^-/, ""), desc: order.startsWith("-") }]), [order]);
  const defined = useMemo(
    () =>
      columns.map(
        (column): ColumnDef<typeof features, T> => ({
          id: column.id,
          accessorFn: (row) => column.sort?.(row) ?? undefined,
          enableSorting: column.sort !== undefined,
          sortUndefined: "last",
          sortFn: (a, b, which) => compare(a.getValue(which), b.getValue(which)),
        }),
      ),
    [columns],
  );
  const table = useTable({
    features,
    columns: defined,
    // It makes an object for each row: with 10,000 of them, four times a second, that costs frames.
    data: sorting.length === 0 ? NONE : (data as T[]),
    getRowId: id,
    state: { sorting },
    onSortingChange: (change) => {
      const first = (typeof change === "function" ? change(sorting) : change)[0];
      setOrder(first === undefined ? "" : `${first.desc ? "-" : ""}${first.id}`);
    },
  });
  const sorted = table.getRowModel().rows;
  const rowAt = (index: number): T | undefined => (sorting.length === 0 ? data[index] : sorted[index]?.original);
  const keyAt = (index: number): string | number => {
    const row = rowAt(index);
    return row === undefined ? index : id(row);
  };
  const frame = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({
    count: data.length,
    getScrollElement: () => frame.current,
    estimateSize: () => props.guess ?? 44,
    getItemKey: keyAt,
    overscan: 8,
  });
  if (data.length === 0) return <div className="empty">{props.empty}</div>;
  const shown = virtual.getVirtualItems();
  const before = shown[0]?.start ?? 0;
  const after = virtual.getTotalSize() - (shown.at(-1)?.end ?? 0);
  return (
    <div ref={frame} className="scroll" tabIndex={0} role="region" aria-label={props.label}>
      <table className={`data ${props.className ?? ""}`} aria-rowcount={data.length + 1} aria-label={props.label}>
        <thead>
          <tr aria-rowindex={1}>
            {columns.map((column) => {
              const sorted = sorting[0]?.id === column.id ? (sorting[0].desc ? "descending" : "ascending") : "none";
              return (
                <th
                  key={column.id}
                  scope="col"
                  className={column.number ? "number" : undefined}
                  style={column.width === undefined ? undefined : { width: column.width }}
                  aria-sort={column.sort === undefined ? undefined : sorted}
                >
                  {column.sort === undefined ? (
                    <span className={column.title.startsWith("(") ? "unseen" : undefined}>{column.title.replace(/^\(|\)$/g, "")}</span>
                  ) : (
                    <button type="button" className="sort" onClick={() => table.getColumn(column.id)?.toggleSorting()}>
                      {column.title}
                      <span aria-hidden="true">{sorted === "none" ? "" : sorted === "ascending" ? " ↑" : " ↓"}</span>
                    </button>
                  )}
                </th>
              );
            })}
          </tr>
        </thead>
        <tbody>
          {before > 0 && <tr className="space" aria-hidden="true" style={{ height: before }} />}
          {shown.map((item) => {
            const row = rowAt(item.index);
            if (row === undefined) return null;
            return (
              <tr key={item.key} ref={virtual.measureElement} data-index={item.index} aria-rowindex={item.index + 2}>
                <Cells row={row} columns={columns} />
              </tr>
            );
          })}
          {after > 0 && <tr className="space" aria-hidden="true" style={{ height: after }} />}
        </tbody>
      </table>
    </div>
  );
}

/** Of one row; drawn anew when the row or the columns are others, and not because the table is scrolled. */
const Cells = memo(function Cells<T>({ row, columns }: { row: T; columns: readonly Column<T>[] }) {
  return columns.map((column) =>
    column.head ? (
      <th key={column.id} scope="row">
        {column.cell(row)}
      </th>
    ) : (
      <td key={column.id} data-label={column.title.startsWith("(") ? undefined : column.title} className={column.number ? "number" : undefined}>
        {column.cell(row)}
      </td>
    ),
  );
}) as <T>(props: { row: T; columns: readonly Column<T>[] }) => ReactNode;
