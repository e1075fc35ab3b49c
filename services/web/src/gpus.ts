// The GPUs by their nodes, and what they are called in words.

import { computed } from "@preact/signals";

import { gpus, jobs } from "./live";
import { nameOf } from "./parts/vcs";
import type { Gpu } from "./rows";

let before = new Map<string, Gpu[]>();

/** The GPUs of each node, in the order of their indices; the same list as before if none of them
 * changed. */
export const gpusByNode = computed(() => {
  const found = new Map<string, Gpu[]>();
  for (const gpu of gpus.all.value) {
    const those = found.get(gpu.node);
    if (those) those.push(gpu);
    else found.set(gpu.node, [gpu]);
  }
  for (const [node, those] of found) {
    if (those.some((gpu, place) => place > 0 && gpu.index < (those[place - 1]?.index ?? 0)))
      those.sort((a, b) => a.index - b.index);
    const known = before.get(node);
    if (known?.length === those.length && known.every((gpu, place) => gpu === those[place]))
      found.set(node, known);
  }
  before = found;
  return found;
});

/** Return how much of a GPU is in use, by what its job measures (thousandths); null: not known. */
export const useOfGpu = (gpu: Gpu): number | null =>
  gpu.job ? (jobs.rows.get(gpu.job)?.utilisation ?? null) : null;

/** Return all about a GPU in one line. */
export function sayGpu(gpu: Gpu): string {
  const use = useOfGpu(gpu);
  return [
    `GPU ${gpu.index} (${gpu.type}): ${gpu.state}`,
    gpu.job
      ? `${gpu.job} of ${nameOf(gpu.vc ?? "")}${gpu.rank === null ? "" : `, rank ${gpu.rank}`}`
      : gpu.state === "held" && "a job of another virtual cluster",
    gpu.beside.length > 0 && `with ${gpu.beside.join(", ")}`,
    gpu.borrowed && "borrowed",
    use !== null && `${Math.round(use / 10)} % in use`,
  ]
    .filter(Boolean)
    .join(", ");
}
