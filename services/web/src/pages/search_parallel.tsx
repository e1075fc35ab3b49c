// Parameters of trials side by side: one axis each, one line for each trial, ranges to choose by.

import { useEffect, useRef, useState } from "preact/hooks";

import type { Schemas } from "../api";
import { count, many } from "../format";
import { Card, Empty } from "../parts/basics";
import { figure, sayParam } from "../parts/params";
import { query, setQuery } from "../router";
import { ranked } from "./search_curves";

type Search = Schemas["SearchDetail"];
type Trial = Schemas["TrialRow"];

/** An axis: where a trial is on it (0 to 1; null: it has no value), and what a place means. */
export interface Axis {
  name: string;
  place: (row: Trial) => number | null;
  tell: (place: number) => string;
  ticks: [number, string][];
}

const HEIGHT = 300;
const TOP = 34;
const BOTTOM = 16;
/** The least distance of two axes: names and values fit between them. */
const APART = 104;
/** Of more lines each is paler, so that where many run is seen. */
const FEW = 100;
const BEST = 3;
const STEPS = 100;
/** A parameter whose largest value is so many times its smallest is drawn by magnitudes. */
const MAGNITUDES = 50;

/** Return an axis for each parameter that differs, and one for the metric. */
export function axesOf(search: Search): Axis[] {
  const names = [...new Set(search.rows.flatMap((row) => Object.keys(row.params)))];
  const space = (search.spec as { space?: Record<string, object> }).space ?? {};
  const axes = names.map((name) => {
    const drawn = space[name];
    return axis(name, search.rows, (row) => row.params[name], drawn && "log" in drawn);
  });
  return [...axes, axis(search.metric, search.rows, (row) => row.best, false)];
}

/** `magnitudes`: whether it is drawn by them; undefined: nobody said, so its values tell. */
function axis(
  name: string,
  rows: Trial[],
  of: (row: Trial) => unknown,
  magnitudes: boolean | undefined,
): Axis {
  const values = rows.map(of).filter((value) => value !== null && value !== undefined);
  if (values.length > 0 && values.every((value) => typeof value === "number")) {
    const numberOf = of as (row: Trial) => number | null | undefined;
    return numbers(name, values as number[], numberOf, magnitudes);
  }
  const words = [...new Set(values.map(sayParam))].sort();
  const at = (word: string) => (words.length > 1 ? words.indexOf(word) / (words.length - 1) : 0.5);
  const nearest = (place: number) => words[Math.round(place * (words.length - 1))] ?? "";
  return {
    name,
    tell: nearest,
    place: (row) => {
      const value = of(row);
      return value === null || value === undefined ? null : at(sayParam(value));
    },
    ticks: words.slice(0, 8).map((word) => [at(word), word]),
  };
}

function numbers(
  name: string,
  values: number[],
  of: (row: Trial) => number | null | undefined,
  asked: boolean | undefined,
): Axis {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const magnitudes = low > 0 && (asked ?? high / low >= MAGNITUDES);
  const [from, to] = magnitudes ? [Math.log(low), Math.log(high)] : [low, high];
  const at = (value: number) =>
    to > from ? ((magnitudes ? Math.log(value) : value) - from) / (to - from) : 0.5;
  const value = (place: number) => {
    const told = from + place * (to - from);
    return magnitudes ? Math.exp(told) : told;
  };
  return {
    name,
    tell: (place) => figure(value(place)),
    place: (row) => {
      const told = of(row);
      return told === null || told === undefined ? null : at(told);
    },
    ticks: ticksOf(values, low, high).map((each) => [at(each), figure(each)]),
  };
}

/** Return what is written beside an axis: its ends, or each of a few whole numbers. */
function ticksOf(values: number[], low: number, high: number): number[] {
  if (low === high) return [low];
  if (values.every(Number.isInteger) && high - low <= 8) {
    return Array.from({ length: high - low + 1 }, (_, step) => low + step);
  }
  return [low, high];
}

const keyOf = (axis: Axis) => `on.${axis.name}`;

/** Return what is chosen of an axis, in hundredths of it. */
export function rangeOf(axis: Axis, asked: URLSearchParams): [number, number] {
  const [, low, high] = /^(\d{1,3})-(\d{1,3})$/.exec(asked.get(keyOf(axis)) ?? "") ?? [];
  return [Math.min(STEPS, Number(low ?? 0)), Math.min(STEPS, Number(high ?? STEPS))];
}

/** Return whether a trial lies within what is chosen of all axes. */
export function brushed(row: Trial, axes: Axis[], asked: URLSearchParams): boolean {
  return axes.every((axis) => {
    const [low, high] = rangeOf(axis, asked);
    if (low === 0 && high === STEPS) return true;
    const place = axis.place(row);
    return place !== null && place >= (low - 0.5) / STEPS && place <= (high + 0.5) / STEPS;
  });
}

/** The picture, and two sliders for each axis. */
export function Parallel({
  search,
  axes,
  taken,
}: {
  search: Search;
  axes: Axis[];
  taken: Trial[];
}) {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(800);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const sizes = new ResizeObserver(
      ([seen]) => seen && setWidth(Math.floor(seen.contentRect.width)),
    );
    sizes.observe(element);
    return () => sizes.disconnect();
  }, []);
  const chosen = axes.filter((one) => query.value.has(keyOf(one)));
  const wide = Math.max(width, APART * axes.length);
  const x = (place: number) => (wide * (place + 0.5)) / axes.length;
  const y = (place: number) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - place);
  const line = (row: Trial) =>
    axes
      .map((one, place) => [x(place), one.place(row)] as const)
      .filter((point): point is readonly [number, number] => point[1] !== null)
      .map(([at, value]) => `${at.toFixed(1)},${y(value).toFixed(1)}`)
      .join(" ");
  const within = new Set(taken.map((row) => row.trial));
  const best = ranked(search, taken).slice(0, BEST);
  const first = new Set(best.map((row) => row.trial));
  const others = search.rows.filter((row) => !within.has(row.trial));
  const label = `Parameters of ${many(taken.length, "trial")}. ${best
    .map((row) => `Trial ${row.trial} came to ${figure(row.best)}`)
    .join(". ")}`;
  return (
    <Card
      title="Parameters and what they came to"
      aside={
        chosen.length > 0 && (
          <button
            type="button"
            class="quiet"
            onClick={() => setQuery(Object.fromEntries(chosen.map((one) => [keyOf(one), ""])))}
          >
            choose all again
          </button>
        )
      }
    >
      <div ref={box} class="wide inside parallel" tabIndex={0} role="group" aria-label="Parameters">
        {!search.rows.length && <Empty>There is no trial yet.</Empty>}
        {search.rows.length > 0 && (
          <>
            <svg width={wide} height={HEIGHT} role="img" aria-label={label}>
              {others.map((row) => (
                <polyline key={row.trial} class="out" points={line(row)} />
              ))}
              {taken
                .filter((row) => !first.has(row.trial))
                .map((row) => (
                  <polyline
                    key={row.trial}
                    class={taken.length > FEW ? "in crowd" : "in"}
                    points={line(row)}
                  >
                    <title>trial {row.trial}</title>
                  </polyline>
                ))}
              {best.toReversed().map((row) => (
                <polyline key={row.trial} class="best" points={line(row)}>
                  <title>
                    trial {row.trial}: {figure(row.best)}
                  </title>
                </polyline>
              ))}
              {axes.map((one, place) => (
                <g key={one.name} transform={`translate(${x(place)} 0)`}>
                  <text class="name" y="14" text-anchor="middle">
                    {one.name}
                  </text>
                  <line y1={TOP} y2={HEIGHT - BOTTOM} />
                  <Chosen range={rangeOf(one, query.value)} y={y} />
                  {one.ticks.map(([at, text]) => (
                    <text key={text} x="7" y={y(at) + 4}>
                      {text}
                    </text>
                  ))}
                </g>
              ))}
            </svg>
            <div class="sliders" style={{ width: `${wide}px` }}>
              {axes.map((one) => (
                <Sliders key={one.name} axis={one} />
              ))}
            </div>
          </>
        )}
      </div>
      <p class="legend inside dim">
        <span>
          <i class="mark honey" />
          the best {count(best.length)} of those that are chosen
        </span>
        <span>
          <i class="mark busy" />
          chosen
        </span>
        <span>
          <i class="mark free" />
          not chosen
        </span>
      </p>
    </Card>
  );
}

function Chosen({ range, y }: { range: [number, number]; y: (place: number) => number }) {
  const [low, high] = range;
  if (low === 0 && high === STEPS) return null;
  const top = y(high / STEPS);
  return (
    <rect class="chosen" x="-4" width="8" y={top} height={Math.max(2, y(low / STEPS) - top)} />
  );
}

function Sliders({ axis }: { axis: Axis }) {
  const [low, high] = rangeOf(axis, query.value);
  const set = (from: number, to: number) =>
    setQuery({
      [keyOf(axis)]: from === 0 && to === STEPS ? "" : `${from}-${to}`,
    });
  return (
    <fieldset>
      <legend>{axis.name}</legend>
      <label>
        <span class="dim">from {axis.tell(low / STEPS)}</span>
        <input
          type="range"
          min={0}
          max={STEPS}
          value={low}
          aria-label={`${axis.name} from`}
          aria-valuetext={axis.tell(low / STEPS)}
          onInput={(event) => set(Math.min(Number(event.currentTarget.value), high), high)}
        />
      </label>
      <label>
        <span class="dim">to {axis.tell(high / STEPS)}</span>
        <input
          type="range"
          min={0}
          max={STEPS}
          value={high}
          aria-label={`${axis.name} to`}
          aria-valuetext={axis.tell(high / STEPS)}
          onInput={(event) => set(low, Math.max(Number(event.currentTarget.value), low))}
        />
      </label>
    </fieldset>
  );
}
