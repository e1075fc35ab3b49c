// What a replay came to: waits and ends as they were, and as they would have been.

import { useMemo } from "preact/hooks";

import type { Schemas } from "../api";
import { count, length, many, NS, percent } from "../format";
import { At, Card, Empty } from "../parts/basics";
import { type Column, Rows, sorted } from "../parts/rows";
import { Wide } from "../parts/wide";
import { query, setQuery } from "../router";

type Told = Schemas["ReplayOutcome"];
type Job = Schemas["ReplayJob"];

/** Return a time; of short ones with a tenth of a second, as they are compared. */
function time(s: number | null | undefined): string {
  if (s === null || s === undefined) return "–";
  return s < 60 ? `${s.toFixed(1)} s` : length(s * NS);
}

/** Return by how much something would have been shorter or longer, in words. */
export function change(before: number | null, after: number | null): string {
  if (before === null || after === null || before <= 0) return "–";
  const part = Math.round((100 * (after - before)) / before);
  return part === 0 ? "the same" : `${Math.abs(part)} % ${part < 0 ? "shorter" : "longer"}`;
}

/** Return a class: a difference that is not larger than the error of the simulation has no colour. */
const looks = (before: number | null, after: number | null, off: number | null): string =>
  before === null || after === null || Math.abs(after - before) <= Math.max(0.01, off ?? 0) * before
    ? ""
    : after < before
      ? "better"
      : "worse";

/** The summary by virtual cluster, and the jobs whose ends differ most. */
export function Outcome({ outcome }: { outcome: Told }) {
  const { was, simulated, changed } = outcome;
  const off =
    was.jct_s && simulated.jct_s !== null
      ? Math.abs(simulated.jct_s - was.jct_s) / was.jct_s
      : null;
  return (
    <>
      <div class="tiles">
        <div class="tile">
          <b class={looks(simulated.queue_s, changed.queue_s, off)}>
            {change(simulated.queue_s, changed.queue_s)}
          </b>
          <span>
            mean wait: {time(changed.queue_s)} instead of {time(simulated.queue_s)}
          </span>
        </div>
        <div class="tile">
          <b class={looks(simulated.jct_s, changed.jct_s, off)}>
            {change(simulated.jct_s, changed.jct_s)}
          </b>
          <span>
            from submission to end: {time(changed.jct_s)} instead of {time(simulated.jct_s)}
          </span>
        </div>
        <div class="tile">
          <b>
            {count(outcome.moved)}
            <small class="dim"> of {count(outcome.jobs_total)}</small>
          </b>
          <span>jobs would have ended at another time</span>
        </div>
        <div class="tile">
          <b>{off === null ? "–" : `${Math.round(100 * off)} %`}</b>
          <span>
            is how far the simulation as it was is from what was: smaller differences say little
          </span>
        </div>
      </div>
      <Card title="By virtual cluster">
        <Wide label="By virtual cluster">
          <table class="plain">
            <thead>
              <tr>
                <th>VC</th>
                <th class="right">Jobs</th>
                <th class="right">Mean wait, was</th>
                <th class="right">simulated</th>
                <th class="right">otherwise</th>
                <th>Change</th>
                <th class="right">To their end, was</th>
                <th class="right">simulated</th>
                <th class="right">otherwise</th>
                <th>Change</th>
              </tr>
            </thead>
            <tbody>
              {[
                ["all", null] as const,
                ...Object.keys(simulated.by_vc)
                  .sort()
                  .map((vc) => [vc, vc] as const),
              ].map(([name, vc]) => (
                <Line
                  key={name}
                  name={name}
                  off={off}
                  runs={[was, simulated, changed].map((run) => (vc ? run.by_vc[vc] : run))}
                />
              ))}
            </tbody>
          </table>
        </Wide>
        <p class="inside dim">
          GPUs were held {percent(simulated.allocated, 1)} of the time, and would have been{" "}
          {percent(changed.allocated, 1)}; {many(simulated.preempted, "preemption")}, and then{" "}
          {count(changed.preempted)}.
        </p>
      </Card>
      <Jobs outcome={outcome} />
      {outcome.left_out.length > 0 && (
        <Card title="What the replay leaves out">
          <ul class="list">
            {outcome.left_out.slice(0, 20).map((text) => (
              <li key={text}>{text}</li>
            ))}
          </ul>
          {outcome.left_out.length > 20 && (
            <Empty>{count(outcome.left_out.length - 20)} more.</Empty>
          )}
        </Card>
      )}
    </>
  );
}

type Group = { jobs: number; queue_s: number | null; jct_s: number | null };

function Line({
  name,
  runs,
  off,
}: {
  name: string;
  runs: (Group | undefined)[];
  off: number | null;
}) {
  const [was, before, after] = runs;
  const cells = (key: "queue_s" | "jct_s") => (
    <>
      <td class="right">{time(was?.[key])}</td>
      <td class="right">{time(before?.[key])}</td>
      <td class="right">{time(after?.[key])}</td>
      <td class={looks(before?.[key] ?? null, after?.[key] ?? null, off)}>
        {change(before?.[key] ?? null, after?.[key] ?? null)}
      </td>
    </>
  );
  return (
    <tr>
      <td>
        <b>{name}</b>
      </td>
      <td class="right">{count(before?.jobs ?? 0)}</td>
      {cells("queue_s")}
      {cells("jct_s")}
    </tr>
  );
}

const difference = (row: Job): number => {
  const [, before, after] = row.lasted_s;
  return before === null || before === undefined || after === null || after === undefined
    ? 0
    : after - before;
};

const COLUMNS: Column<Job>[] = [
  {
    key: "job",
    title: "Job",
    width: "minmax(60px, 1fr)",
    cell: (row) => row.job,
    by: (row) => row.job,
  },
  {
    key: "vc",
    title: "VC",
    width: "minmax(60px, 1fr)",
    cell: (row) => row.vc,
    by: (row) => row.vc,
    from: 520,
  },
  {
    key: "gpus",
    title: "GPUs",
    width: "52px",
    right: true,
    cell: (row) => row.gpus,
    by: (row) => row.gpus,
    from: 620,
  },
  {
    key: "at",
    title: "Submitted",
    width: "100px",
    right: true,
    cell: (row) => <At at={row.submitted_at} />,
    by: (row) => row.submitted_at,
    from: 900,
  },
  ...["was", "simulated", "otherwise"].map((run, place): Column<Job> => ({
    key: `wait-${run}`,
    title: place === 0 ? "Waited, was" : run,
    width: "86px",
    right: true,
    cell: (row) => time(row.waited_s[place]),
    by: (row) => row.waited_s[place] ?? -1,
    from: 1000,
  })),
  ...["was", "simulated", "otherwise"].map((run, place): Column<Job> => ({
    key: `end-${run}`,
    title: place === 0 ? "To its end, was" : run,
    width: place === 0 ? "112px" : "86px",
    right: true,
    cell: (row) => time(row.lasted_s[place]),
    by: (row) => row.lasted_s[place] ?? -1,
    from: place === 0 ? 760 : 560,
  })),
  {
    key: "change",
    title: "Ends",
    width: "minmax(100px, 1fr)",
    right: true,
    cell: (row) => <Ends row={row} />,
    by: difference,
  },
];

function Ends({ row }: { row: Job }) {
  const by = difference(row);
  if (Math.abs(by) < 0.05) return <span class="dim">the same</span>;
  return (
    <span class={by < 0 ? "better" : "worse"}>
      {time(Math.abs(by))} {by < 0 ? "earlier" : "later"}
    </span>
  );
}

function Jobs({ outcome }: { outcome: Told }) {
  const sort = query.value.get("sort") ?? "";
  const rows = useMemo(() => sorted(outcome.jobs, COLUMNS, sort), [outcome, sort]);
  const left = outcome.jobs_total - outcome.jobs.length;
  return (
    <Card
      title="Jobs, those with the largest difference first"
      class="sized"
      aside={left > 0 && <span class="dim">{count(left)} more are not shown</span>}
    >
      <Rows
        label="Jobs"
        columns={COLUMNS}
        rows={rows}
        keyOf={(row) => row.job}
        href={(row) => `/jobs/${encodeURIComponent(row.job)}`}
        sort={sort}
        onSort={(next) => setQuery({ sort: next })}
        empty={<Empty>No job was replayed.</Empty>}
      />
    </Card>
  );
}
