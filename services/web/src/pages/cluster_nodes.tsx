// Every node with its GPUs, coloured by state, by virtual cluster or by use.

import { useMemo } from "preact/hooks";

import { clock, now } from "../format";
import { gpusByNode, sayGpu, useOfGpu } from "../gpus";
import { nodes, standing } from "../live";
import { Command, Empty, State } from "../parts/basics";
import { Grid } from "../parts/grid";
import { SearchBox } from "../parts/listing";
import { colourOf, Mark, shortOf, VcLegend } from "../parts/vcs";
import { query, setQuery } from "../router";
import type { Gpu, Node, Window } from "../rows";

const COLOURINGS: [string, string][] = [
  ["", "state"],
  ["vc", "virtual cluster"],
  ["use", "use"],
];
const HEAD_PX = 54;
const ROW_PX = 27;
const IN_ROW = 8;
const order = new Intl.Collator("en", { numeric: true });

/** The nodes that match the search. */
export function NodesView({ windows }: { windows: Window[] }) {
  const wanted = (query.value.get("q") ?? "").toLowerCase();
  const by = query.value.get("by") ?? "";
  const all = nodes.all.value;
  const byNode = gpusByNode.value;
  const names = useMemo(
    () => [...nodes.rows.keys()].sort(order.compare),
    [nodes.rows.size, nodes.rows.keys().next().value],
  );
  const shown = names
    .map((name) => nodes.rows.get(name))
    .filter(
      (node): node is Node =>
        node !== undefined && matches(node, byNode.get(node.node) ?? [], wanted),
    );
  const firstOf = useMemo(() => firstWindows(windows), [windows]);
  let most = 1;
  for (const those of byNode.values()) most = Math.max(most, those.length);
  return (
    <>
      <div class="controls">
        <SearchBox
          label="Search nodes"
          hint="Search nodes, types, states, jobs, virtual clusters …"
        />
        <span role="group" aria-label="Colours" class="group">
          {COLOURINGS.map(([value, text]) => (
            <button
              key={value}
              type="button"
              aria-pressed={by === value}
              onClick={() => setQuery({ by: value })}
            >
              {text}
            </button>
          ))}
        </span>
      </div>
      <p class="legend dim">
        <Legend by={by} />
      </p>
      {!all.length && standing.value === "loading" && <Empty>Loading …</Empty>}
      {!all.length && standing.value !== "loading" && (
        <Empty>
          No node has joined. <Command line="skep node token" />
        </Empty>
      )}
      {all.length > 0 && !shown.length && (
        <Empty>
          No node matches. <a href="/cluster">Show all nodes</a>.
        </Empty>
      )}
      <Grid
        label="Nodes"
        items={shown}
        keyOf={(node) => node.node}
        width={310}
        height={HEAD_PX + ROW_PX * Math.ceil(most / IN_ROW)}
        box={(node) => (
          <NodeBox
            node={node}
            own={byNode.get(node.node) ?? []}
            by={by}
            window={firstOf.get(node.node)}
          />
        )}
      />
    </>
  );
}

/** Return the first window of each node that is in one. */
function firstWindows(windows: Window[]): Map<string, Window> {
  const found = new Map<string, Window>();
  for (const window of windows)
    for (const node of window.nodes) if (!found.has(node)) found.set(node, window);
  return found;
}

function Legend({ by }: { by: string }) {
  return (
    <>
      {by === "" && <Mark gpu="held" text="held, with the number of the job" />}
      {by === "vc" && <VcLegend />}
      {by === "use" && <Mark gpu="use-high" text="in use, in percent" />}
      {by !== "use" && <Mark gpu="held borrowed" text="borrowed" />}
      <Mark gpu="free" text="free" />
      <Mark gpu="bad" text="bad" />
      <Mark gpu="drained" text="drained or lost" />
    </>
  );
}

function matches(node: Node, own: Gpu[], wanted: string): boolean {
  if (!wanted) return true;
  const text = [
    node.node,
    node.state,
    node.gpu_type,
    ...own.map((gpu) => `${gpu.job ?? ""} ${gpu.vc ?? ""} ${gpu.state}`),
  ]
    .join(" ")
    .toLowerCase();
  return wanted.split(/\s+/).every((word) => text.includes(word));
}

/** So many GPUs of a node are drawn wider, as there is room. */
const FEW = 4;

interface BoxProps {
  node: Node;
  own: Gpu[];
  by: string;
  window: Window | undefined;
}

function NodeBox({ node, own, by, window }: BoxProps) {
  const since =
    window &&
    (window.begins <= now.value ? `until ${clock(window.ends)}` : `from ${clock(window.begins)}`);
  // Use is in the rows of jobs: there all is drawn anew.
  const fresh = by === "use" ? {} : null;
  return useMemo(
    () => (
      <div class={`node ${node.state}`}>
        <div class="head">
          <a href={`/cluster?node=${encodeURIComponent(node.node)}`}>{node.node}</a>
          {window && (
            <span class="chip" title={`${windowText(window)} ${since}: ${window.reason}`}>
              {windowText(window)} {since}
            </span>
          )}
          <State state={node.state} />
        </div>
        <div class={own.length <= FEW ? "gpus few" : "gpus"}>
          {own.map((gpu) => gpuBox(gpu, by))}
        </div>
      </div>
    ),
    [node, own, by, window, since, fresh],
  );
}

const windowText = (window: Window): string =>
  window.maintenance ? "maintenance" : `for ${window.vc}`;

/** A GPU, as few elements as possible: there are hundreds in view. */
function gpuBox(gpu: Gpu, by: string) {
  const [colour, text] = look(gpu, by);
  const said = sayGpu(gpu);
  if (!gpu.job) {
    return (
      <span key={gpu.gpu} class={`gpu ${colour}`} title={said} role="img" aria-label={said}>
        {text}
      </span>
    );
  }
  return (
    <a
      key={gpu.gpu}
      class={`gpu ${colour}${gpu.borrowed ? " borrowed" : ""}`}
      title={said}
      aria-label={said}
      href={`/jobs/${encodeURIComponent(gpu.job)}`}
    >
      {text}
    </a>
  );
}

/** Return the class and the text of a GPU. What is not to be had looks the same in every colouring. */
function look(gpu: Gpu, by: string): [string, string] {
  if (gpu.state !== "held") return [gpu.state, String(gpu.index)];
  if (by === "vc") return [`tinted ${colourOf(gpu.vc ?? "")}`, shortOf(gpu.vc ?? "")];
  if (by === "use") {
    const use = useOfGpu(gpu);
    if (use === null) return ["use-unknown", "–"];
    return [
      use >= 700 ? "use-high" : use >= 300 ? "use-some" : "use-low",
      String(Math.round(use / 10)),
    ];
  }
  // There is room for five figures, and none for the letter before them.
  const number = (gpu.job ?? "").replace(/^j/, "");
  return [number.length > 4 ? "held long" : "held", number];
}
