// A table of any number of rows: only those in view are in the document.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

/** A column: what it is called, how wide it is (a CSS grid track), and what a row shows in it. */
export interface Column<Row> {
  key: string;
  title: string;
  width: string;
  cell: (row: Row) => ComponentChildren;
  /** What rows are sorted by; without it, the column cannot be sorted by. */
  by?: (row: Row) => number | string;
  right?: boolean;
  /** The least width of the table (pixels) at which the column is shown; 0: always. */
  from?: number;
}

interface Props<Row> {
  label: string;
  columns: Column<Row>[];
  rows: Row[];
  keyOf: (row: Row) => string;
  href?: (row: Row) => string;
  sort?: string;
  onSort?: (sort: string) => void;
  chosen?: ReadonlySet<string>;
  onChoose?: (keys: string[], chosen: boolean) => void;
  empty: ComponentChildren;
}

const ROW_PX = 36;
/** Rows that are drawn beyond the view, and by how many rows it moves before others are drawn. */
const AROUND = 6;
const STEP = 4;

/** Texts as they are sorted, and how many are kept: a table has mostly the same ones again. */
const naturals = new Map<string, string>();
const NATURALS_MAX = 50_000;

/** Return what a text is sorted as: without capitals, and numbers in it by their value. A collator
 * would compare it forty times more slowly, and ten thousand rows are sorted with every change. */
function natural(text: string): string {
  let found = naturals.get(text);
  if (found === undefined) {
    found = text.toLowerCase().replace(/\d+/g, (digits) => digits.padStart(20, "0"));
    if (naturals.size >= NATURALS_MAX) naturals.clear();
    naturals.set(text, found);
  }
  return found;
}

/** Return what a column sorts rows by, as numbers: texts by their place among all there are. */
function keysOf<Row>(rows: Row[], by: (row: Row) => number | string): number[] {
  const found = rows.map(by);
  if (found.every((one) => typeof one === "number")) return found as number[];
  const texts = found.map((one) => natural(String(one)));
  const places = new Map<string, number>();
  for (const one of [...new Set(texts)].sort()) places.set(one, places.size);
  return texts.map((one) => places.get(one) ?? 0);
}

/** Return rows in the order that `sort` names: a column's key, with `-` before it downwards. Rows
 * that are equal there are in the order of the first column. */
export function sorted<Row>(rows: Row[], columns: Column<Row>[], sort: string): Row[] {
  const down = sort.startsWith("-");
  const by = columns.find((column) => column.key === sort.replace(/^-/, ""))?.by;
  if (!by) return rows;
  const keys = keysOf(rows, by);
  const firsts = keysOf(rows, columns[0]?.by ?? by);
  const places = rows.map((_, place) => place);
  const sign = down ? -1 : 1;
  places.sort((a, b) => {
    const [one, other] = [keys[a] ?? 0, keys[b] ?? 0];
    // Without a subtraction: two of them may be infinite.
    if (one !== other) return one < other ? -sign : sign;
    return sign * ((firsts[a] ?? 0) - (firsts[b] ?? 0));
  });
  return places.map((place) => rows[place] as Row);
}

/** The table. Arrow keys move between rows, Space chooses one, Enter opens it. */
export function Rows<Row>(props: Props<Row>) {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({
    from: 0,
    to: 600 / ROW_PX,
    width: Math.min(1000, innerWidth),
  });
  const some = props.rows.length > 0;
  // Without rows there is nothing to scroll: it is looked at anew when there are some.
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const look = () => {
      const { scrollTop: top, clientHeight: height, clientWidth: width } = element;
      const from = Math.floor(top / ROW_PX / STEP) * STEP;
      const to = Math.ceil((top + height) / ROW_PX / STEP) * STEP;
      setView((before) =>
        before.from === from && before.to === to && before.width === width
          ? before
          : { from, to, width },
      );
    };
    look();
    const sizes = new ResizeObserver(look);
    sizes.observe(element);
    element.addEventListener("scroll", look, { passive: true });
    return () => {
      sizes.disconnect();
      element.removeEventListener("scroll", look);
    };
  }, [some]);
  const columns = props.columns.filter((column) => view.width >= (column.from ?? 0));
  const choosing = props.onChoose !== undefined;
  const tracks = (choosing ? ["28px"] : []).concat(columns.map((column) => column.width)).join(" ");
  const first = Math.max(0, view.from - AROUND);
  const last = Math.min(props.rows.length, view.to + AROUND);
  const move = (event: KeyboardEvent) => {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (!step) return;
    const links = [...(box.current?.querySelectorAll<HTMLElement>("a.opens") ?? [])];
    const at = links.indexOf(document.activeElement as HTMLElement);
    if (at < 0) return;
    event.preventDefault();
    links[at + step]?.focus();
  };
  if (!some) return <div class="rows none">{props.empty}</div>;
  const all = choosing && props.rows.every((row) => props.chosen?.has(props.keyOf(row)));
  return (
    <div
      class="rows"
      ref={box}
      onKeyDown={move}
      tabIndex={0}
      role="table"
      aria-label={props.label}
      aria-rowcount={props.rows.length + 1}
      style={{ "--tracks": tracks }}
    >
      <div role="rowgroup" class="heads">
        <div role="row" aria-rowindex={1} class="row">
          {choosing && (
            <span role="columnheader">
              <input
                type="checkbox"
                aria-label="Choose all that are shown"
                checked={all}
                onChange={() => props.onChoose?.(props.rows.map(props.keyOf), !all)}
              />
            </span>
          )}
          {columns.map((column) => (
            <Head key={column.key} column={column} sort={props.sort ?? ""} onSort={props.onSort} />
          ))}
        </div>
      </div>
      <div role="rowgroup" class="body" style={{ height: `${props.rows.length * ROW_PX}px` }}>
        {props.rows.slice(first, last).map((row, place) => {
          const key = props.keyOf(row);
          return (
            <div
              role="row"
              key={key}
              class={props.chosen?.has(key) ? "row chosen" : "row"}
              aria-rowindex={first + place + 2}
              style={{ transform: `translateY(${(first + place) * ROW_PX}px)` }}
            >
              {choosing && (
                <span role="cell">
                  <input
                    type="checkbox"
                    aria-label={`Choose ${key}`}
                    checked={props.chosen?.has(key)}
                    onChange={(event) => props.onChoose?.([key], event.currentTarget.checked)}
                  />
                </span>
              )}
              {columns.map((column, index) => (
                <span role="cell" key={column.key} class={column.right ? "right" : ""}>
                  {index === 0 && props.href ? (
                    <a class="opens" href={props.href(row)}>
                      {column.cell(row)}
                    </a>
                  ) : (
                    column.cell(row)
                  )}
                </span>
              ))}
            </div>
          );
        })}
      </div>
    </div>
  );
}

function Head<Row>(props: {
  column: Column<Row>;
  sort: string;
  onSort: ((sort: string) => void) | undefined;
}) {
  const { column, sort, onSort } = props;
  const up = sort === column.key;
  const down = sort === `-${column.key}`;
  return (
    <span
      role="columnheader"
      class={column.right ? "right" : ""}
      aria-sort={up ? "ascending" : down ? "descending" : undefined}
    >
      {column.by && onSort ? (
        <button type="button" onClick={() => onSort(up ? `-${column.key}` : column.key)}>
          {column.title}
          {up ? " ↑" : down ? " ↓" : ""}
        </button>
      ) : (
        column.title
      )}
    </span>
  );
}
