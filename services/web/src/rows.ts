// The rows of the tables of `/v1/state`, by their columns. Instants are Unix nanoseconds; estimated
// ones are [p10, p50, p90]: one, five and nine times in ten it is earlier. Null: it has not
// happened, or is not known.

import type { Schemas } from "./api";

export type Times = [number, number, number];

/** A job or an array. `utilisation` and `progress` are thousandths. */
export interface Job {
  job: string;
  name: string;
  vc: string;
  owner: string;
  state: string;
  gpus: number;
  gpu_share: number | null;
  gpu_type: string | null;
  workers: number;
  priority: number;
  service_class: string;
  class_in_force: string;
  labels: Record<string, string>;
  task: string;
  tasks: Schemas["TaskCounts"] | null;
  search: string;
  after: string[];
  place: string;
  nodes: string[];
  beside: string[];
  attempt: number;
  submitted_at: number | null;
  bound_at: number | null;
  started_at: number | null;
  ended_at: number | null;
  rate_milli: number | null;
  utilisation: number | null;
  steps: number;
  total_steps: number | null;
  progress: number | null;
  start: Times | null;
  end: Times | null;
  due: number | null;
  promise: string | null;
  standing: string | null;
  changing: { goal: string; why: string; since: number } | null;
  stalled_since: number | null;
  why: string | null;
  text: string;
  needs: string;
}

export interface Node {
  node: string;
  state: string;
  address: string;
  gpu_type: string;
  gpus: number;
  free: number;
  held: number;
  bad: number;
  bad_gpus: number[];
  drained: boolean;
  cpus: number;
  memory: number;
  heard_at: number | null;
  jobs: [string, string][];
}

export interface Gpu {
  gpu: string;
  node: string;
  index: number;
  type: string;
  state: "free" | "held" | "bad" | "drained" | "lost";
  job: string | null;
  vc: string | null;
  owner: string | null;
  job_state: string | null;
  rank: number | null;
  borrowed: boolean;
  beside: string[];
}

export interface Vc {
  vc: string;
  gpus: number;
  asked: number;
  used: number;
  borrowed: number;
  running: number;
  suspended: number;
  queued: number;
  policy: string;
  weight: number;
  jobs_max: number | null;
  promises_made: number;
  promises_kept: number;
  promises_broken: number;
}

export interface Search {
  search: string;
  name: string;
  vc: string;
  owner: string;
  state: string;
  why: string | null;
  method: string;
  metric: string;
  direction: string;
  target: number | null;
  began_at: number;
  ended_at: number | null;
  trials: number;
  trials_max: number;
  stands: Record<string, number>;
  gpu_ns: number;
  gpu_time_s: number | string | null;
  best: Schemas["BestTrial"] | null;
}

export interface Totals {
  total: string;
  jobs: Record<string, number>;
  gpus: Record<string, number>;
  waited_p50_s: number | null;
  waited_p90_s: number | null;
  started: number;
  useful: number | null;
}

export interface Alert {
  alert: string;
  code: string;
  severity: "critical" | "warning" | "info";
  kind: "job" | "node" | "gpu" | "vc" | "cell" | "limit";
  about: string;
  vc: string;
  since: number | null;
  text: string;
  todo: string;
}

/** Nodes that are kept free for a time: for maintenance, or for the jobs of a virtual cluster. */
export type Window = Schemas["WindowRow"];
