// Curves over time or over mini-batches, drawn by uPlot in the colours of the page.

import "uplot/dist/uPlot.min.css";

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";

import { dayOf, timeOf, zone } from "../format";
import { theme } from "../theme";

/** A curve: its name, its values, the CSS variable of its colour, and how values are told. */
export interface Series {
  name: string;
  values: (number | null)[];
  colour: string;
  told?: (value: number) => string;
  dashed?: boolean;
  filled?: boolean;
  /** Draw on where other curves have points and this one has none. */
  joined?: boolean;
  /** One of many: drawn thin, and pale. */
  faint?: boolean;
}

/** Something that happened at one place of the axis: a decision, a move, a pack. */
export interface Mark {
  at: number;
  text: string;
  colour: string;
}

interface Props {
  label: string;
  /** Unix seconds if `times`, else mini-batches. */
  along: number[];
  times?: boolean;
  series: Series[];
  marks?: Mark[];
  height?: number;
  least?: number;
  /** Values are bytes: the axis has powers of two. */
  bytes?: boolean;
  /** Without it, curves are not named below: there are too many. */
  unnamed?: boolean;
}

/** Steps of an axis of bytes. */
const POWERS = Array.from({ length: 50 }, (_, power) => 2 ** power);
/** The height of the names of places along the axis. */
const AXIS_PX = 32;
/** Room for a time with its seconds. */
const TIME_PX = 76;

/** A chart. Its label says in words what it shows, as screen readers cannot see curves. */
export function Chart(props: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const data = [props.along, ...props.series.map((one) => one.values)] as uPlot.AlignedData;
  // Another number of curves or another theme needs another plot; other values do not.
  const kind = [theme.value, zone.value, props.times, ...props.series.map((one) => one.name)].join(
    "|",
  );
  const marks = useRef(props.marks);
  marks.current = props.marks;
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const made = new uPlot(options(element, props, marks), data, element);
    plot.current = made;
    const sizes = new ResizeObserver(() =>
      made.setSize({ width: roomIn(element), height: props.height ?? 180 }),
    );
    sizes.observe(element);
    return () => {
      sizes.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [kind]);
  useEffect(() => plot.current?.setData(data));
  return <div class="chart" ref={box} role="img" aria-label={props.label} />;
}

/** The width of a box without its padding: a wider plot is cut off at its right. */
function roomIn(element: HTMLElement): number {
  const { paddingLeft, paddingRight } = getComputedStyle(element);
  return element.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight);
}

const colour = (name: string): string =>
  getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function options(
  element: HTMLElement,
  props: Props,
  marks: { current: Mark[] | undefined },
): uPlot.Options {
  const axis = {
    stroke: colour("dim"),
    grid: { stroke: colour("line"), width: 1 },
    ticks: { show: false },
    font: "12px system-ui, sans-serif",
  };
  const told = props.series[0]?.told;
  return {
    width: roomIn(element) || 600,
    height: props.height ?? 180,
    // The name of the last place of the axis reaches beyond it.
    padding: [null, 24, null, null],
    scales: {
      x: { time: props.times ?? false },
      y: { range: (_, low, high) => range(low, high, props.least) },
    },
    tzDate: (seconds) =>
      zone.value === "utc"
        ? uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC")
        : new Date(seconds * 1000),
    axes: [
      props.times
        ? {
            ...axis,
            size: AXIS_PX,
            space: room,
            values: (_, ticks, __, ___, step) => ticks.map((at) => time(at, step)),
          }
        : { ...axis, size: AXIS_PX },
      {
        ...axis,
        size: 56,
        ...(told && { values: (_, ticks) => ticks.map(told) }),
        ...(props.bytes && { incrs: POWERS }),
      },
    ],
    series: [
      props.times ? { value: "{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}" } : { label: "mini-batch" },
      ...props.series.map((one): uPlot.Series => ({
        label: one.name,
        stroke: one.faint ? `${colour(one.colour)}77` : colour(one.colour),
        width: one.faint ? 1 : one.joined ? 2.5 : 1.5,
        points: { show: one.values.length < 3 },
        spanGaps: one.joined ?? false,
        ...(one.dashed && { dash: [4, 4] }),
        ...(one.filled && { fill: `${colour(one.colour)}33` }),
        value: (_, value) =>
          value === null ? "–" : one.told ? one.told(value) : value.toPrecision(4),
      })),
    ],
    cursor: { y: false },
    legend: { show: !props.unnamed },
    hooks: { draw: [(plot) => drawMarks(plot, marks.current ?? [])] },
  };
}

/** Return how far apart ticks are (pixels): a day is longer than a time of the day. */
const room = (_: uPlot, __: number, low: number, high: number): number =>
  high - low > 2 * 86_400 ? 90 : TIME_PX;

/** Return a tick of the axis of time: the day, or the time of the day as finely as ticks are. */
function time(at: number, step: number): string {
  const date = new Date(at * 1000);
  if (step >= 86_400) return dayOf(date);
  const told = timeOf(date, step < 60);
  return told === "00:00" ? dayOf(date) : told;
}

function range(low: number | null, high: number | null, least = 0): [number, number] {
  if (low === null || high === null) return [0, Math.max(1, least)];
  const bottom = low >= 0 ? 0 : low;
  const top = Math.max(high, least);
  return [bottom, top > bottom ? top + (top - bottom) * 0.06 : bottom + 1];
}

function drawMarks(plot: uPlot, marks: Mark[]): void {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  for (const mark of marks) {
    const x = plot.valToPos(mark.at, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = ctx.fillStyle = colour(mark.colour);
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    // Near the right edge there is room on the left only.
    const beside = x + 6 * devicePixelRatio + ctx.measureText(mark.text).width;
    const leftwards = beside > bbox.left + bbox.width;
    ctx.textAlign = leftwards ? "right" : "left";
    ctx.fillText(
      mark.text,
      x + (leftwards ? -3 : 3) * devicePixelRatio,
      bbox.top + 11 * devicePixelRatio,
    );
  }
  ctx.restore();
}
