// A node in full: its GPUs, the jobs on them, its windows, and what an operator can do to it.

import { useState } from "preact/hooks";

import { answered, api } from "../api";
import { windowsOf } from "../cells";
import { bytes, count, many } from "../format";
import { gpusByNode, useOfGpu } from "../gpus";
import { At, Dialog, State } from "../parts/basics";
import { Confirm, type Confirmed } from "../parts/confirm";
import { VcName } from "../parts/vcs";
import { setQuery } from "../router";
import type { Gpu, Node, Window } from "../rows";
import { may } from "../session";
import { WindowDialog, WindowLine } from "./cluster_windows";

interface Props {
  node: Node;
  windows: Window[];
  onChange: () => void;
}

/** The dialog. What an action means is asked before it is done. */
export function NodeDialog({ node, windows, onChange }: Props) {
  const [ask, setAsk] = useState<Confirmed | null>(null);
  const [reserving, setReserving] = useState(false);
  const own = gpusByNode.value.get(node.node) ?? [];
  const close = () => setQuery({ node: "" });
  if (ask) return <Confirm ask={ask} onClose={() => setAsk(null)} />;
  if (reserving) {
    return (
      <WindowDialog nodes={[node.node]} onClose={() => setReserving(false)} onDone={onChange} />
    );
  }
  const booked = windowsOf(windows, node.node);
  return (
    <Dialog title={node.node} onClose={close} class="broad">
      <dl class="facts">
        <dt>State</dt>
        <dd>
          <State state={node.state} />
          {node.heard_at && (
            <>
              {" "}
              heard <At at={node.heard_at} distance />
            </>
          )}
        </dd>
        <dt>Address</dt>
        <dd>{node.address}</dd>
        <dt>GPUs</dt>
        <dd>
          {count(node.gpus)} {node.gpu_type}, {node.free} free
        </dd>
        <dt>CPUs, memory</dt>
        <dd>
          {node.cpus}, {bytes(node.memory)}
        </dd>
        {booked.length > 0 && (
          <>
            <dt>Reserved</dt>
            <dd>
              {booked.map((one) => (
                <WindowLine key={one.name} window={one} />
              ))}
            </dd>
          </>
        )}
      </dl>
      <div class="wide">
        <table class="plain">
          <thead>
            <tr>
              <th>GPU</th>
              <th>State</th>
              <th>Job</th>
              <th>Virtual cluster</th>
              <th class="right">In use</th>
              <th>
                <span class="hidden">Actions</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {own.map((gpu) => (
              <tr key={gpu.gpu}>
                <td>{gpu.index}</td>
                <td>
                  <State state={gpu.state} />
                  {gpu.borrowed && <span class="chip">borrowed</span>}
                </td>
                <td>
                  {gpu.job && <a href={`/jobs/${encodeURIComponent(gpu.job)}`}>{gpu.job}</a>}
                  {gpu.beside.length > 0 && <span class="dim"> with {gpu.beside.join(", ")}</span>}
                </td>
                <td>{(gpu.vc || gpu.state === "held") && <VcName vc={gpu.vc ?? ""} />}</td>
                <td class="right">{percentOf(gpu)}</td>
                <td>
                  {may("manage-nodes") && (
                    <button
                      type="button"
                      class="quiet"
                      onClick={() => setAsk(quarantine(node, gpu))}
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
      <div class="buttons">
        <a class="button" href={`/cluster?tab=cells&find=${encodeURIComponent(node.node)}`}>
          Among the cells
        </a>
        <button type="button" onClick={close}>
          Close
        </button>
        {may("maintain") && (
          <button type="button" onClick={() => setReserving(true)}>
            Reserve
          </button>
        )}
        {may("manage-nodes") && (
          <button
            type="button"
            class={node.drained ? "strong" : "danger"}
            onClick={() => setAsk(draining(node))}
          >
            {node.drained ? "Undrain" : "Drain"}
          </button>
        )}
      </div>
    </Dialog>
  );
}

function percentOf(gpu: Gpu): string {
  const use = useOfGpu(gpu);
  return use === null ? "–" : `${Math.round(use / 10)} %`;
}

function draining(node: Node): Confirmed {
  const drain = !node.drained;
  const verb = drain ? "Drain" : "Undrain";
  return {
    title: `${verb} ${node.node}`,
    verb,
    danger: drain,
    line: `skep node ${verb.toLowerCase()} ${node.node}`,
    text: drain ? (
      <>
        <p>
          No job starts on it any more;{" "}
          {node.jobs.length ? (
            <>
              {many(node.jobs.length, "job")} on it {node.jobs.length === 1 ? "goes" : "go"} on
              until {node.jobs.length === 1 ? "it ends" : "they end"}, unless moved:{" "}
            </>
          ) : (
            "no job that you see is on it."
          )}
          {node.jobs.map(([job]) => (
            <a key={job} href={`/jobs/${encodeURIComponent(job)}`}>
              {job}{" "}
            </a>
          ))}
        </p>
        <p>
          Its cells count as bad: a virtual cluster whose cells cannot be had elsewhere bears them.
        </p>
      </>
    ) : (
      <p>Jobs may start on it again, and its cells count as good.</p>
    ),
    run: () => answered(api.POST("/v1/admin/drain", { body: { node: node.node, drain } })),
  };
}

/** Return what takes a GPU out of use, or back. */
export function quarantine(node: Node, gpu: Gpu): Confirmed {
  const away = gpu.state !== "bad";
  return {
    title: `${away ? "Quarantine" : "Take back"} GPU ${gpu.index} of ${node.node}`,
    verb: away ? "Quarantine" : "It is good again",
    danger: away,
    line: `skep gpu quarantine ${node.node} ${gpu.index}${away ? "" : " --undo"}`,
    text: away ? (
      <p>
        It counts as bad: no job starts on it.{" "}
        {gpu.job ? (
          <>{gpu.job} goes on there; cancel or migrate it if it should not.</>
        ) : (
          "No job is on it."
        )}
      </p>
    ) : (
      <p>Jobs may start on it again.</p>
    ),
    run: () =>
      answered(
        api.POST("/v1/admin/quarantine", {
          body: { node: node.node, device: gpu.index, quarantine: away },
        }),
      ),
  };
}
