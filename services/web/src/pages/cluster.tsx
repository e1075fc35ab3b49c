// The cluster: every node with its GPUs, whose jobs hold them, and which are not to be had.

import { useMemo, useState } from "preact/hooks";

import { answered, api } from "../api";
import { bytes, count, many } from "../format";
import { gpus, nodes } from "../live";
import { At, Command, Dialog, Empty, Problem, State } from "../parts/basics";
import { query, setQuery } from "../router";
import type { Gpu, Node } from "../rows";
import { may } from "../session";

/** The page. */
export function ClusterPage() {
  const wanted = (query.value.get("q") ?? "").toLowerCase();
  const all = nodes.all.value;
  const byNode = useMemo(() => {
    const found = new Map<string, Gpu[]>();
    for (const gpu of gpus.all.value) {
      const those = found.get(gpu.node);
      if (those) those.push(gpu);
      else found.set(gpu.node, [gpu]);
    }
    return found;
  }, [gpus.all.value]);
  const shown = all
    .filter((node) => matches(node, byNode.get(node.node) ?? [], wanted))
    .sort((a, b) => a.node.localeCompare(b.node, "en", { numeric: true }));
  const opened = query.value.get("node") ?? "";
  const node = all.find((one) => one.node === opened);
  return (
    <>
      <div class="title">
        <h1>Cluster</h1>
        <span class="dim" role="status">{many(all.length, "node")}, {many(gpus.all.value.length, "GPU")}</span>
        <span class="more"><Command line="skep gpu ls" /></span>
      </div>
      <div class="controls">
        <input
          type="search" aria-label="Search nodes" placeholder="Search nodes, types, states, jobs, virtual clusters …"
          value={query.value.get("q") ?? ""}
          onInput={(event) => setQuery({ q: event.currentTarget.value })}
        />
      </div>
      <p class="legend dim">
        <span><i class="gpu free" />free</span><span><i class="gpu held" />held</span>
        <span><i class="gpu held borrowed" />borrowed</span><span><i class="gpu bad" />bad</span>
        <span><i class="gpu drained" />drained or lost</span>
      </p>
      {!all.length && <Empty>No node has joined. <Command line="skep node join" /></Empty>}
      <div class="racks">
        {shown.map((one) => <NodeBox key={one.node} node={one} gpus={byNode.get(one.node) ?? []} />)}
      </div>
      {node && <NodeDialog node={node} gpus={byNode.get(node.node) ?? []} />}
    </>
  );
}

function matches(node: Node, held: Gpu[], wanted: string): boolean {
  if (!wanted) return true;
  const text = [
    node.node, node.state, node.gpu_type, ...held.map((gpu) => `${gpu.job ?? ""} ${gpu.vc ?? ""} ${gpu.state}`),
  ].join(" ").toLowerCase();
  return wanted.split(/\s+/).every((word) => text.includes(word));
}

const sayGpu = (gpu: Gpu): string => [
  `GPU ${gpu.index} (${gpu.type}): ${gpu.state}`,
  gpu.job && `${gpu.job} of ${gpu.vc}${gpu.rank === null ? "" : `, rank ${gpu.rank}`}`,
  gpu.beside.length > 0 && `with ${gpu.beside.join(", ")}`,
  gpu.borrowed && "borrowed",
].filter(Boolean).join(", ");

function NodeBox({ node, gpus: own }: { node: Node; gpus: Gpu[] }) {
  return (
    <div class={`node ${node.state}`}>
      <div class="head">
        <a href={`/cluster?node=${encodeURIComponent(node.node)}`}>{node.node}</a>
        <State state={node.state} />
      </div>
      <div class="gpus">
        {own.map((gpu) => gpu.job
          ? (
            <a
              key={gpu.gpu} class={`gpu ${gpu.state}${gpu.borrowed ? " borrowed" : ""}`}
              href={`/jobs/${encodeURIComponent(gpu.job)}`} title={sayGpu(gpu)} aria-label={sayGpu(gpu)}
            >
              {gpu.job}
            </a>
          )
          : (
            <span key={gpu.gpu} class={`gpu ${gpu.state}`} title={sayGpu(gpu)}>
              <span aria-hidden="true">{gpu.index}</span><span class="hidden">{sayGpu(gpu)}</span>
            </span>
          ))}
      </div>
    </div>
  );
}

function NodeDialog({ node, gpus: own }: { node: Node; gpus: Gpu[] }) {
  const [problem, setProblem] = useState("");
  const ask = (asking: Promise<unknown>) =>
    void asking.then(() => setProblem(""), (error: Error) => setProblem(error.message));
  const drain = !node.drained;
  return (
    <Dialog title={node.node} onClose={() => setQuery({ node: "" })}>
      <dl class="facts">
        <dt>State</dt><dd><State state={node.state} />{node.heard_at && <> heard <At at={node.heard_at} distance /></>}</dd>
        <dt>Address</dt><dd>{node.address}</dd>
        <dt>GPUs</dt><dd>{count(node.gpus)} {node.gpu_type}, {node.free} free</dd>
        <dt>CPUs, memory</dt><dd>{node.cpus}, {bytes(node.memory)}</dd>
      </dl>
      <Problem text={problem} />
      <div class="wide">
        <table class="plain">
          <thead><tr><th>GPU</th><th>State</th><th>Job</th><th>VC</th><th><span class="hidden">Actions</span></th></tr></thead>
          <tbody>
            {own.map((gpu) => (
              <tr key={gpu.gpu}>
                <td>{gpu.index}</td>
                <td><State state={gpu.state} /></td>
                <td>{gpu.job && <a href={`/jobs/${encodeURIComponent(gpu.job)}`}>{gpu.job}</a>}</td>
                <td>{gpu.vc}</td>
                <td>
                  {may("manage-nodes") && (
                    <button
                      type="button" class="quiet"
                      onClick={() => ask(answered(api.POST("/v1/admin/quarantine", {
                        body: { node: node.node, device: gpu.index, quarantine: gpu.state !== "bad" },
                      })))}
                    >
                      {gpu.state === "bad" ? "it is good again" : "quarantine"}
                    </button>
                  )}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {may("manage-nodes") && (
        <p><Command line={`skep node ${drain ? "drain" : "undrain"} ${node.node}`} /></p>
      )}
      <div class="buttons">
        <button type="button" onClick={() => setQuery({ node: "" })}>Close</button>
        {may("manage-nodes") && (
          <button
            type="button" class={drain ? "danger" : "strong"}
            onClick={() => ask(answered(api.POST("/v1/admin/drain", { body: { node: node.node, drain } })))}
          >
            {drain ? "Drain" : "Undrain"}
          </button>
        )}
      </div>
    </Dialog>
  );
}
