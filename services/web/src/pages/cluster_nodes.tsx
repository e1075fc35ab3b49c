// Every node with its GPUs, coloured by state, by virtual cluster or by use.

import { useMemo } from "preact/hooks";

import { windowsOf } from "../cells";
import { clock, now } from "../format";
import { gpusByNode, sayGpu, useOfGpu } from "../gpus";
import { nodes } from "../live";
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
      {!all.length && (
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
        width={280}
        height={HEAD_PX + ROW_PX * Math.ceil(most / IN_ROW)}
        box={(node) => (
          <NodeBox
            node={node}
            own={byNode.get(node.node) ?? []}
            by={by}
            windows={windowsOf(windows, node.node)}
          />
        )}
      />
    </>
  );
}

function Legend({ by }: { by: string }) {
  return (
    <>
      {by === "" && <Mark gpu="held" text="held" />}
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

function NodeBox(props: { node: Node; own: Gpu[]; by: string; windows: Window[] }) {
  const { node, windows } = props;
  const [first] = windows;
  const since =
    first &&
    (first.begins <= now.value ? `until ${clock(first.ends)}` : `from ${clock(first.begins)}`);
  return (
    <div class={`node ${node.state}`}>
      <div class="head">
        <a href={`/cluster?node=${encodeURIComponent(node.node)}`}>{node.node}</a>
        {first && (
          <span class="chip" title={first.reason}>
            {first.maintenance ? "maintenance" : `for ${first.vc}`} {since}
          </span>
        )}
        <State state={node.state} />
      </div>
      <div class="gpus">
        {props.own.map((gpu) => (
          <GpuBox key={gpu.gpu} gpu={gpu} by={props.by} />
        ))}
      </div>
    </div>
  );
}

function GpuBox({ gpu, by }: { gpu: Gpu; by: string }) {
  const [colour, text] = look(gpu, by);
  const said = sayGpu(gpu);
  if (!gpu.job) {
    return (
      <span class={`gpu ${colour}`} title={said}>
        <span aria-hidden="true">{text}</span>
        <span class="hidden">{said}</span>
      </span>
    );
  }
  return (
    <a
      class={`gpu ${colour}${gpu.borrowed ? " borrowed" : ""}`}
      title={said}
      href={`/jobs/${encodeURIComponent(gpu.job)}`}
    >
      {text}
      <span class="hidden">: {said}</span>
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
  return ["held", gpu.job ?? ""];
}
