import { useEffect, useMemo, useRef, useState } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { SeriesMark } from "../api/types";
import { MARKS, summary, type Line } from "../format/series";
import { onColours } from "../frame/theme";
import { coloursOf } from "./chart";
import "../style/charts.css";

const HEIGHT = 200;

interface Props {
  label: string;
  at: readonly number[];
  step: number;
  lines: readonly Line[];
  marks: readonly SeriesMark[];
  format: (value: number) => string;
  /** Areas, one on top of the other. */
  stacked?: boolean;
  /** What the axis reaches at least. */
  most?: number;
}

/** Lines over time with gaps where nothing is known. The table below says the same in numbers, and the value under the pointer. */
export function LineChart(props: Props) {
  const { label, lines, at, stacked = false, format } = props;
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const [pointed, setPointed] = useState<number | null>(null);
  const data = useMemo(() => drawn(at, lines, stacked), [at, lines, stacked]);
  const shown = useRef(data);
  shown.current = data;
  // Drawn anew when there are other lines; new values of the same ones only move it.
  const shape = JSON.stringify([stacked, ...lines.map(({ name, colour, dashed }) => [name, colour, dashed])]);
  useEffect(() => {
    const box = place.current;
    if (box === null) return;
    const draw = () => {
      plot.current?.destroy();
      plot.current = new uPlot(options(box, () => latest.current, setPointed), shown.current, box);
    };
    draw();
    const resized = new ResizeObserver(() => plot.current?.setSize({ width: box.clientWidth, height: HEIGHT }));
    resized.observe(box);
    const end = onColours(draw);
    return () => {
      resized.disconnect();
      end();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape]);
  useEffect(() => plot.current?.setData(data), [data]);
  useEffect(() => plot.current?.redraw(false), [props.marks]);
  const time = pointed === null ? undefined : at[pointed];
  return (
    <>
      <div ref={place} className="chart lines" role="img" aria-label={`${label}; the table below says it in numbers`} />
      <table className="of-chart numbers">
        <caption className="unseen">{label}</caption>
        <thead>
          <tr>
            <th scope="col">{time === undefined ? "Line" : new Date(time * 1000).toLocaleString()}</th>
            <th scope="col">{time === undefined ? "latest" : "then"}</th>
            <th scope="col">mean</th>
            <th scope="col">most</th>
          </tr>
        </thead>
        <tbody>
          {lines.map((line) => {
            const { last, mean, most } = summary(line.values);
            const value = pointed === null ? last : (line.values[pointed] ?? null);
            return (
              <tr key={line.name}>
                <th scope="row">
                  <span className={`key ${line.dashed ? "dashed" : ""} ${line.colour === "foreign" ? "c-foreign" : line.colour}`} aria-hidden="true" />
                  {line.name}
                </th>
                {[value, mean, most].map((number, n) => (
                  <td key={n}>{number === null ? "–" : format(number)}</td>
                ))}
              </tr>
            );
          })}
        </tbody>
      </table>
    </>
  );
}

/** uPlot draws the last first, so that in a stack the lower ones, which come first, cover it. */
function drawn(at: readonly number[], lines: readonly Line[], stacked: boolean): uPlot.AlignedData {
  if (!stacked) return [at as number[], ...lines.map(({ values }) => values as (number | null)[])];
  const sums = at.map(() => 0);
  const rows = lines.map(({ values }) => values.map((value, n) => (value === null ? null : (sums[n] = (sums[n] ?? 0) + value))));
  return [at as number[], ...rows.reverse()];
}

function options(box: HTMLElement, latest: () => Props, onPoint: (index: number | null) => void): uPlot.Options {
  const { lines, stacked = false } = latest();
  const font = `12px ${getComputedStyle(box).fontFamily}`;
  const colour = coloursOf(box);
  const axis: uPlot.Axis = { stroke: colour("soft"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 }, font };
  const markColours = Object.fromEntries(Object.entries(MARKS).map(([kind, { colour: name }]) => [kind, colour(name)]));
  const made = lines.map(({ colour: name, dashed }): uPlot.Series => {
    const stroke = colour(name);
    // A point that is known between two gaps would not be seen as a line.
    const points: uPlot.Series.Points = { show: false };
    return stacked ? { stroke, fill: stroke, width: 0, points } : { stroke, width: 1.5, ...(dashed ? { dash: [4, 3] } : {}), points: { size: 4, fill: stroke, filter: alone } };
  });
  return {
    width: box.clientWidth,
    height: HEIGHT,
    cursor: { drag: { x: false, y: false }, y: false, points: { show: !stacked } },
    legend: { show: false },
    scales: {
      x: {
        time: true,
        range: () => {
          const { at, step } = latest();
          return [at[0] ?? 0, (at.at(-1) ?? 1) + step];
        },
      },
      y: { range: (_, __, most) => [0, Math.max(most || 0, latest().most ?? 0, 1e-9) * 1.05] },
    },
    axes: [axis, { ...axis, size: 70, values: (_, ticks) => ticks.map(latest().format) }],
    series: [{}, ...(stacked ? made.reverse() : made)],
    hooks: {
      setCursor: [(plot) => onPoint(plot.cursor.idx ?? null)],
      draw: [
        (plot) => {
          const { ctx, bbox } = plot;
          const scale = devicePixelRatio;
          ctx.save();
          ctx.font = `${10 * scale}px ${getComputedStyle(box).fontFamily}`;
          ctx.textAlign = "center";
          ctx.lineWidth = scale;
          for (const mark of latest().marks) {
            const x = Math.round(plot.valToPos(mark.at, "x", true));
            if (x < bbox.left || x > bbox.left + bbox.width) continue;
            ctx.strokeStyle = ctx.fillStyle = markColours[mark.kind] ?? "";
            ctx.setLineDash([2 * scale, 3 * scale]);
            ctx.beginPath();
            ctx.moveTo(x, bbox.top + 12 * scale);
            ctx.lineTo(x, bbox.top + bbox.height);
            ctx.stroke();
            ctx.fillText(MARKS[mark.kind]?.letter ?? "", x, bbox.top + 9 * scale);
          }
          ctx.restore();
        },
      ],
    },
  };
}

/** Which values stand between two gaps: they are drawn as points, for there is no line to them. */
const alone: uPlot.Series.Points.Filter = (plot, line) => {
  const values = plot.data[line] ?? [];
  return Array.from(values, (value, n) => (value != null && values[n - 1] == null && values[n + 1] == null ? n : -1)).filter((n) => n >= 0);
};
