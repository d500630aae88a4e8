import { useMemo } from "react";
import "../style/charts.css";
import { query, useLook } from "../api/look";
import { useOverview } from "../api/overview";
import type { Series, SeriesMark } from "../api/types";
import { asked, inUnit, linesOf, localMoment, MARKS, markText, RANGES, stackOf } from "../format/series";
import { useSetting } from "../frame/address";
import { moment } from "./clock";
import { Failed } from "./failed";
import { LineChart } from "./line-chart";
import { Section } from "./section";

interface Chart {
  title: string;
  unit: string;
  /** Metrics, and what their lines are called beside the model. The first is drawn whole, others dashed. */
  metrics: Readonly<Record<string, string>>;
}

const CHARTS: readonly Chart[] = [
  { title: "Tokens per second", unit: "tokens/s", metrics: { tokens: "" } },
  { title: "Time to the first token", unit: "s", metrics: { ttft_p95: "95 %", ttft_p50: "half" } },
  { title: "Time between tokens", unit: "s", metrics: { itl_p95: "95 %", itl_p50: "half" } },
  { title: "Age of the oldest that waits", unit: "s", metrics: { oldest: "" } },
  { title: "Requests that wait", unit: "requests", metrics: { queued: "" } },
  { title: "Requests in flight", unit: "requests", metrics: { in_flight: "" } },
  { title: "KV cache in use", unit: "share", metrics: { kv: "" } },
];

/** Which time: a range that ends now, or two moments. In the address. */
export function RangePicker() {
  const [range, setRange] = useSetting("range", "1h");
  const [from, setFrom] = useSetting("from");
  const [to, setTo] = useSetting("to");
  const now = Date.now() / 1000;
  return (
    <>
      <select aria-label="Time" value={range} onChange={(event) => setRange(event.target.value)}>
        {RANGES.map(([name, title]) => (
          <option key={name} value={name}>
            the last {title}
          </option>
        ))}
        <option value="custom">from … to …</option>
      </select>
      {range === "custom" && (
        <>
          <input type="datetime-local" aria-label="From" value={from} max={localMoment(now)} onChange={(event) => setFrom(event.target.value)} />
          <input type="datetime-local" aria-label="To" value={to} onChange={(event) => setTo(event.target.value)} />
        </>
      )}
    </>
  );
}

/** The charts of one model, or of all and the devices. `tools`: with the choice of the time. */
export default function Charts({ model, tools = false }: { model?: string; tools?: boolean }) {
  const [range] = useSetting("range", "1h");
  const [from] = useSetting("from");
  const [to] = useSetting("to");
  const wanted = useMemo(() => asked(range, from, to), [range, from, to]);
  return (
    <>
      {tools && (
        <div className="chart-tools">
          <RangePicker />
        </div>
      )}
      {wanted === null ? <p className="empty">Choose a beginning, and an end that comes after it.</p> : <Drawn wanted={wanted} model={model} />}
    </>
  );
}

function Drawn({ wanted: { every, ...times }, model }: { wanted: NonNullable<ReturnType<typeof asked>>; model: string | undefined }) {
  const marked = useLook<Series>(`api/series${query({ metric: "memory,free,foreign", marks: true, model, ...times })}`, every);
  const marks = marked.data?.marks ?? NONE;
  // Two lines for each load would hide the chart: it is ready a moment later.
  const drawn = useMemo(() => marks.filter(({ kind }) => kind !== "ready"), [marks]);
  return (
    <>
      <div className="chart-grid">
        {CHARTS.map((chart) => (
          <OneChart key={chart.title} chart={chart} path={`api/series${query({ metric: Object.keys(chart.metrics).join(","), model, ...times })}`} every={every} marks={drawn} />
        ))}
        {marked.data !== undefined && <Memory series={marked.data} marks={drawn} />}
      </div>
      <Failed error={marked.error} />
      <Swaps marks={marks} more={marked.data?.marks_left_out ?? false} />
    </>
  );
}

const NONE: readonly SeriesMark[] = [];

function OneChart({ chart, path, every, marks }: { chart: Chart; path: string; every: number | undefined; marks: readonly SeriesMark[] }) {
  const { data, error } = useLook<Series>(path, every);
  const { lines, left } = useMemo(() => (data === undefined ? { lines: [], left: 0 } : linesOf(data, chart.metrics)), [data, chart]);
  return (
    <Section title={chart.title} note={left === 0 ? undefined : `the ${lines.length} with the most; ${left} more`}>
      <Failed error={error} />
      {data === undefined ? (
        error === null && <p className="empty chart lines">Asking the server…</p>
      ) : lines.length === 0 ? (
        <p className="empty chart lines">Nothing is known of this time.</p>
      ) : (
        <LineChart label={`${chart.title} over time`} at={data.at} step={data.step} lines={lines} marks={marks} format={(value) => inUnit(value, chart.unit)} {...(chart.unit === "share" ? { most: 0.95 } : {})} />
      )}
    </Section>
  );
}

function Memory({ series, marks }: { series: Series; marks: readonly SeriesMark[] }) {
  const { data } = useOverview();
  const devices = useMemo(() => [...new Set(series.lines.map(({ device }) => device ?? ""))].sort(), [series]);
  return devices.map((device) => (
    <DeviceMemory key={device} device={device} series={series} marks={marks} capacity={data?.devices.find(({ id }) => id === device)?.capacity ?? 0} />
  ));
}

function DeviceMemory({ device, series, marks, capacity }: { device: string; series: Series; marks: readonly SeriesMark[]; capacity: number }) {
  const lines = useMemo(() => stackOf(series, device), [series, device]);
  if (lines.length === 0) return null;
  return (
    <Section title={`Memory of ${device}`} note={capacity === 0 ? undefined : `of ${inUnit(capacity, "bytes")}`}>
      <LineChart label={`Memory of ${device} over time, by model`} at={series.at} step={series.step} lines={lines} marks={marks} format={(value) => inUnit(value, "bytes")} stacked most={capacity / 1.05} />
    </Section>
  );
}

/** Loads, sleeps, stops and failures: what the letters in the charts stand for. */
function Swaps({ marks, more }: { marks: readonly SeriesMark[]; more: boolean }) {
  return (
    <Section title="Loads, sleeps, stops and failures" note={more ? "the latest" : undefined} className="of-charts">
      {marks.length === 0 ? (
        <p className="empty">There were none in this time.</p>
      ) : (
        <div className="scroll swaps" role="group" aria-label="The list" tabIndex={0}>
          <table className="of-chart">
            <thead>
              <tr>
                <th scope="col">When</th>
                <th scope="col">What</th>
                <th scope="col">Model</th>
                <th scope="col">Why</th>
              </tr>
            </thead>
            <tbody>
              {[...marks].reverse().map((mark, n) => (
                <tr key={n}>
                  <td>
                    <time dateTime={new Date(mark.at * 1000).toISOString()}>{moment(mark.at * 1000)}</time>
                  </td>
                  <td>
                    <b>{MARKS[mark.kind]?.letter}</b> {MARKS[mark.kind]?.title ?? mark.kind}
                  </td>
                  <th scope="row">{mark.model}</th>
                  <td>{markText(mark)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Section>
  );
}
