// Specs of jobs as they are shown and edited.

import type { Schemas } from "../api";

export type Spec = Record<string, unknown>;

/** What the cluster writes into a spec, or what was waited for then: a new job has none of it. */
const LEFT_OUT = ["after", "begin", "hold", "promise", "search", "task", "mounts", "version"];

/** Return a spec without what says nothing: null, and what is empty. */
export function shortened(spec: Spec): Spec {
  return Object.fromEntries(Object.entries(spec).filter(([, value]) => !isEmpty(value)));
}

const isEmpty = (value: unknown): boolean =>
  value === null || value === "" || (typeof value === "object" && !Object.keys(value).length);

/** Return a job's spec as it is submitted again. */
export function again(spec: Spec): Spec {
  const kept = Object.entries(shortened(spec)).filter(([name]) => !LEFT_OUT.includes(name));
  return Object.fromEntries(kept);
}

/** What the gateway says of a job. (Lists of three become lists of any length on their way.) */
export type Detail = Omit<Schemas["JobDetail"], "pledged"> & {
  pledged: Omit<Schemas["Pledged"], "helps"> | null;
};
