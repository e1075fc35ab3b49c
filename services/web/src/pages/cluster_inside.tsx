// What is in a cell: its owner, the jobs inside and by which right, and who would have to leave.

import type { Cell, Chain, Inside as Holder, Leaf } from "../cells";
import { count, many } from "../format";
import { jobs, nodes } from "../live";
import { Card, Empty, State } from "../parts/basics";
import { HIDDEN, nameOf, VcName } from "../parts/vcs";
import type { Window } from "../rows";
import { WindowLine } from "./cluster_windows";

/** Jobs that are listed of a cell: a whole chain has thousands. */
const LISTED_MAX = 50;

interface Props {
  chain: Chain;
  /** Null: the whole chain. */
  cell: Cell | null;
  owner: string;
  leaves: Leaf[];
  jobs: Holder[];
  /** The node that it is, or is in; empty: it is larger. */
  node: string;
  windows: Window[];
}

/** The card beside the picture. */
export function Inside(props: Props) {
  const { chain, cell, owner, node } = props;
  const live = nodes.get(node);
  const reserved = [
    ...new Set(props.leaves.flatMap(({ cell: one }) => (one.reserved && one.for ? [one.for] : []))),
  ];
  const bad = props.leaves.filter(({ cell: one }) => one.bad).length;
  return (
    <Card
      title={cell ? cell.address : `Chain ${chain.chain}`}
      aside={
        <span class="dim">
          {cell ? cell.level : "chain"}, {many(props.leaves.length, "GPU")} {chain.gpu}
        </span>
      }
    >
      <dl class="facts inside">
        {cell && (
          <>
            <dt>Owner</dt>
            <dd>
              {owner ? <VcName vc={owner} /> : "no virtual cluster now"}
              {cell.pin && <span class="chip">pinned as {cell.pin}</span>}
              {cell.doomed && <span class="chip">bad, and borne by its owner</span>}
            </dd>
          </>
        )}
        {live && (
          <>
            <dt>Node</dt>
            <dd>
              <a href={`/cluster?tab=cells&node=${encodeURIComponent(node)}`}>{node}</a>{" "}
              <State state={live.state} />
            </dd>
          </>
        )}
        <dt>Health</dt>
        <dd>
          {bad ? <State state="bad" title="counted as bad" /> : "good"}
          {bad > 1 && `: ${bad} GPUs`}
        </dd>
        {reserved.length > 0 && (
          <>
            <dt>Reserved for</dt>
            <dd>
              {reserved.map((job) => (
                <JobLink key={job} job={job} />
              ))}
            </dd>
          </>
        )}
        {props.windows.length > 0 && (
          <>
            <dt>Windows</dt>
            <dd>
              {props.windows.map((one) => (
                <WindowLine key={one.name} window={one} />
              ))}
            </dd>
          </>
        )}
      </dl>
      <Holders jobs={props.jobs} />
      <Leaving {...props} />
    </Card>
  );
}

function JobLink({ job }: { job: string }) {
  if (job === HIDDEN) return <span class="dim">a job of another one</span>;
  return (
    <>
      <a href={`/jobs/${encodeURIComponent(job)}`}>{job}</a>{" "}
    </>
  );
}

function Holders({ jobs: all }: { jobs: Holder[] }) {
  if (!all.length) return <Empty>No job is in it.</Empty>;
  return (
    <div class="wide scrolled" tabIndex={0} role="region" aria-label="Jobs inside">
      <table class="plain">
        <thead>
          <tr>
            <th>Job</th>
            <th>Virtual cluster</th>
            <th class="right">GPUs here</th>
            <th>Right</th>
          </tr>
        </thead>
        <tbody>
          {all.slice(0, LISTED_MAX).map((one) => (
            <tr key={`${one.job} ${one.vc} ${one.borrowed}`}>
              <td>
                <JobLink job={one.job} />
              </td>
              <td>
                <VcName vc={one.vc} />
              </td>
              <td class="right">{one.gpus}</td>
              <td>{one.borrowed ? "borrowed" : "own cell"}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {all.length > LISTED_MAX && (
        <Empty>{count(all.length - LISTED_MAX)} more: they are in the cells inside.</Empty>
      )}
    </div>
  );
}

/** Who would have to leave if the owner wanted the GPUs: those that borrow, whole jobs. */
function Leaving({ cell, owner, jobs: all, leaves }: Props) {
  const victims = all.filter((one) => one.borrowed);
  const single = leaves.length === 1;
  return (
    <div class="inside">
      <h3>
        {!cell
          ? "If owners want their cells back"
          : owner
            ? `If ${nameOf(owner)} wants ${single ? "it" : "all of it"} back`
            : "If a virtual cluster gets it"}
      </h3>
      {!victims.length && <p>{whyNobody(all, cell, single)}</p>}
      {victims.length > 0 && (
        <>
          <ul class="within">
            {victims.slice(0, LISTED_MAX).map((one) => (
              <li key={`${one.job} ${one.vc}`}>
                <JobLink job={one.job} /> of <VcName vc={one.vc} /> would leave{wholeOf(one)}
              </li>
            ))}
          </ul>
          {victims.length > LISTED_MAX && (
            <p class="dim">and {many(victims.length - LISTED_MAX, "more job", "more jobs")}.</p>
          )}
          <p class="dim">
            {cell &&
              !owner &&
              "No virtual cluster has this as a whole now: one that is owed cells of this kind may get it, if no idle ones serve. "}
            Who leaves is stored and queued again if it can be, else suspended without its GPUs; it
            keeps its place in the order. Idle GPUs are taken first.
          </p>
        </>
      )}
    </div>
  );
}

function wholeOf(one: Holder): string {
  const row = jobs.rows.get(one.job);
  if (!row) return "";
  const more = row.gpus > one.gpus ? `, with all of its ${many(row.gpus, "GPU")}` : "";
  return (
    more +
    (one.from.length > 0
      ? ` (${one.from.map(nameOf).join(", ")} ${one.from.length === 1 ? "owns" : "own"} what it borrows here)`
      : "")
  );
}

function whyNobody(all: Holder[], cell: Cell | null, single: boolean): string {
  if (cell?.bad && single) return "It is bad: nobody gets it before it is good again.";
  if (!all.length) return "No job has to leave: it is idle.";
  return "No job has to leave: those inside are in cells of their own virtual clusters, and nothing is borrowed.";
}
