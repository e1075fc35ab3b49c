// The command palette: every page, job, node and virtual cluster by a few letters (Ctrl K).

import { signal } from "@preact/signals";
import { useEffect, useMemo, useState } from "preact/hooks";

import { jobs, nodes, vcs } from "./live";
import { pages } from "./pages";
import { Dialog } from "./parts/basics";
import { go } from "./router";

/** Whether the palette is shown. */
export const paletteOpen = signal(false);

interface Goal {
  text: string;
  kind: string;
  href: string;
}

const MOST = 30;

addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    paletteOpen.value = !paletteOpen.value;
  }
});

/** The palette, if it is open. */
export function Palette() {
  return paletteOpen.value ? <Opened /> : null;
}

function Opened() {
  const [typed, setTyped] = useState("");
  const [at, setAt] = useState(0);
  const found = useMemo(() => goals(typed), [typed]);
  useEffect(() => setAt(0), [typed]);
  const take = (goal: Goal | undefined) => {
    if (!goal) return;
    paletteOpen.value = false;
    go(goal.href);
  };
  const onKey = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown") setAt(Math.min(at + 1, found.length - 1));
    else if (event.key === "ArrowUp") setAt(Math.max(at - 1, 0));
    else if (event.key === "Enter") take(found[at]);
    else return;
    event.preventDefault();
  };
  return (
    <Dialog title="Go to" class="palette" onClose={() => (paletteOpen.value = false)}>
      <input
        autofocus
        role="combobox"
        aria-label="Go to a page, a job, a node or a virtual cluster"
        aria-expanded="true"
        aria-controls="goals"
        aria-activedescendant={`goal-${at}`}
        placeholder="A page, a job, a node, a virtual cluster …"
        value={typed}
        onInput={(event) => setTyped(event.currentTarget.value)}
        onKeyDown={onKey}
      />
      <ul id="goals" role="listbox" aria-label="Found">
        {found.map((goal, place) => (
          <li
            key={goal.href}
            id={`goal-${place}`}
            role="option"
            aria-selected={place === at}
            onClick={() => take(goal)}
            onPointerMove={() => setAt(place)}
          >
            <span>{goal.text}</span>
            <span class="dim">{goal.kind}</span>
          </li>
        ))}
        {!found.length && (
          <li role="option" aria-selected="false">
            Nothing is called so.
          </li>
        )}
      </ul>
    </Dialog>
  );
}

function goals(typed: string): Goal[] {
  const wanted = typed.trim().toLowerCase();
  const found: Goal[] = [];
  const offer = (text: string, kind: string, href: string): boolean => {
    if (!wanted || text.toLowerCase().includes(wanted)) found.push({ text, kind, href });
    return found.length >= MOST;
  };
  for (const page of pages) {
    if (page.inNavigation && page.offered() && offer(page.name, "page", page.path)) return found;
  }
  for (const vc of vcs.rows.keys())
    if (offer(vc, "virtual cluster", `/jobs?vc=${vc}`)) return found;
  for (const node of nodes.rows.keys()) {
    if (offer(node, "node", `/cluster?node=${encodeURIComponent(node)}`)) return found;
  }
  if (!wanted) return found;
  for (const row of jobs.rows.values()) {
    const text = row.name && row.name !== row.job ? `${row.job} ${row.name}` : row.job;
    if (offer(text, row.state, `/jobs/${encodeURIComponent(row.job)}`)) return found;
  }
  return found;
}
