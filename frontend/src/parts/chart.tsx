import { useEffect, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { onColours } from "../frame/theme";

export interface Stack {
  name: string;
  /** One for each time; null where nothing is known. */
  values: readonly (number | null)[];
  /** A colour's name in style/theme.css, such as `c0`. */
  colour: string;
}

/** Bars over time, one on top of the other. What they say stands in a table beside it for those who do not see it. */
export function StackedBars(props: { label: string; times: readonly number[]; stacks: readonly Stack[]; format: (value: number) => string; step: number }) {
  const { times, stacks, format, step, label } = props;
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const box = place.current;
    if (box === null) return;
    let plot: uPlot | null = null;
    const draw = () => {
      plot?.destroy();
      plot = new uPlot(options(box, stacks, format, step), summed(times, stacks), box);
    };
    draw();
    const resized = new ResizeObserver(() => plot?.setSize({ width: box.clientWidth, height: HEIGHT }));
    resized.observe(box);
    const end = onColours(draw);
    return () => {
      resized.disconnect();
      end();
      plot?.destroy();
    };
  }, [times, stacks, format, step]);
  return <div ref={place} className="chart" role="img" aria-label={label} />;
}

const HEIGHT = 260;

/** Each series is the sum of its own and those before; uPlot draws the last first, so that the lower ones cover it. */
function summed(times: readonly number[], stacks: readonly Stack[]): uPlot.AlignedData {
  const sums = times.map(() => 0);
  const rows = stacks.map(({ values }) => values.map((value, n) => (value === null ? null : (sums[n] = (sums[n] ?? 0) + value))));
  return [times as number[], ...rows.reverse()];
}

/** The browser's own value of a colour, by its name in style/theme.css and for both themes: a canvas knows no variables. */
export function coloursOf(box: HTMLElement): (name: string) => string {
  return (name) => {
    const probe = document.createElement("span");
    box.append(probe);
    probe.style.color = `var(--${name})`;
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };
}

function options(box: HTMLElement, stacks: readonly Stack[], format: (value: number) => string, step: number): uPlot.Options {
  const style = getComputedStyle(box);
  const colour = coloursOf(box);
  const [soft, line] = [colour("soft"), colour("line")];
  const bars = uPlot.paths.bars?.({ size: [0.8, 40] });
  const axis: uPlot.Axis = { stroke: soft, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: `12px ${style.fontFamily}` };
  const made: uPlot.Options = {
    width: box.clientWidth,
    height: HEIGHT,
    cursor: { drag: { x: false, y: false } },
    legend: { show: false },
    scales: { x: { time: true, range: (_, from, to) => [from - step / 2, to + step / 2] }, y: { range: (_, __, most) => [0, Math.max(most, 1e-9) * 1.05] } },
    axes: [axis, { ...axis, size: 70, values: (_, ticks) => ticks.map(format) }],
    series: [{}, ...stacks.map(({ colour: name }) => ({ fill: colour(name), stroke: colour(name), width: 0, points: { show: false }, ...(bars === undefined ? {} : { paths: bars }) })).reverse()],
  };
  return made;
}
