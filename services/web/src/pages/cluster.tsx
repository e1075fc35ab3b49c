// The cluster: its nodes, its cells, the windows in which nodes are kept free, and the volumes.

import { useState } from "preact/hooks";

import { answered, api } from "../api";
import { useAsked } from "../asking";
import { many } from "../format";
import { gpus, nodes } from "../live";
import { Command, Tabs } from "../parts/basics";
import { query } from "../router";
import { CellsView } from "./cluster_cells";
import { NodeDialog } from "./cluster_node";
import { NodesView } from "./cluster_nodes";
import { VolumesView } from "./cluster_volumes";
import { WindowsView } from "./cluster_windows";

const TABS: [string, string][] = [
  ["", "Nodes"],
  ["cells", "Cells"],
  ["windows", "Reservations"],
  ["volumes", "Volumes"],
];
const LINES: Record<string, string> = {
  "": "skep gpu ls",
  cells: "skep vc tree --out cells.svg",
  windows: "skep reserve ls",
  volumes: "skep volumes",
};

const IN_FORCE_MS = [200, 1500];

/** The page. */
export function ClusterPage() {
  const tab = query.value.get("tab") ?? "";
  const opened = nodes.get(query.value.get("node") ?? "");
  const [asks, setAsks] = useState(0);
  // A window that begins or ends changes the states of its nodes.
  const states = nodes.all.value.reduce((sum, one) => sum + one.state.length, 0);
  const { value, problem } = useAsked(() => answered(api.GET("/v1/windows")), [asks, states]);
  const windows = value?.windows ?? [];
  const again = () => {
    // What was accepted is in force a moment later, and no row of the state tells.
    for (const wait of IN_FORCE_MS) setTimeout(() => setAsks((n) => n + 1), wait);
  };
  return (
    <>
      <div class="title">
        <h1>Cluster</h1>
        <span class="dim" role="status">
          {many(nodes.all.value.length, "node")}, {many(gpus.all.value.length, "GPU")}
        </span>
        <span class="more">
          <Command line={LINES[tab] ?? "skep gpu ls"} />
        </span>
      </div>
      <Tabs tabs={TABS} chosen={tab} to={(one) => (one ? `/cluster?tab=${one}` : "/cluster")} />
      {tab === "" && <NodesView windows={windows} />}
      {tab === "cells" && <CellsView windows={windows} />}
      {tab === "windows" && <WindowsView windows={windows} problem={problem} onChange={again} />}
      {tab === "volumes" && <VolumesView />}
      {opened && <NodeDialog node={opened} windows={windows} onChange={again} />}
    </>
  );
}
