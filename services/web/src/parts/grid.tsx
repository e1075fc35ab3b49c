// Any number of boxes of one size: only those in view are in the document.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

interface Props<Item> {
  label: string;
  items: Item[];
  keyOf: (item: Item) => string;
  /** The least width of a box, and the height of each (pixels). */
  width: number;
  height: number;
  box: (item: Item) => ComponentChildren;
}

const GAP = 12;
/** Rows that are drawn beyond both edges of the view, so that scrolling shows no empty place. */
const AROUND = 2;

/** The boxes, as a list. */
export function Grid<Item>(props: Props<Item>) {
  const list = useRef<HTMLUListElement>(null);
  const [view, setView] = useState({ columns: 1, first: 0, last: 12 });
  const pitch = props.height + GAP;
  useEffect(() => {
    const element = list.current;
    if (!element) return;
    const look = () => {
      const columns = Math.max(1, Math.floor((element.clientWidth + GAP) / (props.width + GAP)));
      const above = -element.getBoundingClientRect().top;
      const first = Math.max(0, Math.floor(above / pitch) - AROUND);
      const last = Math.ceil((above + innerHeight) / pitch) + AROUND;
      setView((before) =>
        before.columns === columns && before.first === first && before.last === last
          ? before
          : { columns, first, last },
      );
    };
    look();
    const sizes = new ResizeObserver(look);
    sizes.observe(element);
    addEventListener("scroll", look, { passive: true });
    return () => {
      sizes.disconnect();
      removeEventListener("scroll", look);
    };
  }, [pitch, props.width]);
  const { columns } = view;
  const rows = Math.ceil(props.items.length / columns);
  const from = Math.min(view.first, rows) * columns;
  const to = Math.min(props.items.length, view.last * columns);
  const share = `calc((100% - ${(columns - 1) * GAP}px) / ${columns})`;
  return (
    <ul
      class="grid"
      ref={list}
      aria-label={props.label}
      style={{ height: `${Math.max(0, rows * pitch - GAP)}px` }}
    >
      {props.items.slice(from, to).map((item, place) => {
        const column = (from + place) % columns;
        const row = Math.floor((from + place) / columns);
        return (
          <li
            key={props.keyOf(item)}
            aria-setsize={props.items.length}
            aria-posinset={from + place + 1}
            style={{
              width: share,
              height: `${props.height}px`,
              top: `${row * pitch}px`,
              left: `calc((100% + ${GAP}px) * ${column} / ${columns})`,
            }}
          >
            {props.box(item)}
          </li>
        );
      })}
    </ul>
  );
}
