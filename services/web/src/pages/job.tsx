// One job: what it does, why it is where it is, how it trains, what was decided about it.

import { useState } from "preact/hooks";

import { answered, api, type Schemas } from "../api";
import { useAsked } from "../asking";
import { count, length, many, now, percent, rate } from "../format";
import { jobs } from "../live";
import { ActionButtons, type Ask, AskDialog, asksFor } from "../parts/actions";
import { At, Card, Command, Empty, Problem, State, Tabs } from "../parts/basics";
import { path, query } from "../router";
import type { Job } from "../rows";
import { may } from "../session";
import { Blame } from "./job_blame";
import { Curves } from "./job_curves";
import { Events } from "./job_events";
import { Logs } from "./job_logs";
import { Timeline } from "./job_timeline";
import { Why } from "./job_why";

/** `pledged` is told by the row: its due time, and how it stands. */
type Detail = Omit<Schemas["JobDetail"], "pledged">;

/** The page. */
export function JobPage() {
  const name = decodeURIComponent(path.value.slice("/jobs/".length));
  const live = jobs.get(name);
  // The row changes with the job: what is not in it is asked for again then.
  const key = JSON.stringify([live?.state, live?.attempt, live?.changing, live?.place, live?.why]);
  const { value: detail, problem } = useAsked(
    () => answered(api.GET("/v1/jobs/{job}", { params: { path: { job: name } } })), [name, key],
  );
  if (!detail) {
    return problem
      ? <><h1>{name}</h1><Problem text={problem} /><p><a href="/jobs?state=all">All jobs</a></p></>
      : <Empty>Loading {name} …</Empty>;
  }
  return <Shown detail={detail} row={live ?? rowOf(detail)} />;
}

/** Return a row as `/v1/state` would have it, for a job that is not among its rows any more. */
function rowOf(detail: Detail): Job {
  return {
    ...detail,
    search: "", after: [], nodes: [], utilisation: null, progress: null,
    start: null, end: null, due: null, promise: null, standing: null, changing: null,
    text: detail.detail ?? "", why: detail.why ?? null,
  } as unknown as Job;
}

const tabsOf = (row: Job): [string, string][] => [
  ["", "Overview"],
  ["why", row.state === "running" ? "Why here" : "Why"],
  ["curves", "Curves"],
  ...(may("read-logs", row.vc, row.owner) ? [["logs", "Logs"] as [string, string]] : []),
  ["events", "Events"],
  ["blame", "Where time went"],
  ["spec", "Spec"],
];

function Shown({ detail, row }: { detail: Detail; row: Job }) {
  const [ask, setAsk] = useState<Ask | null>(null);
  const tab = query.value.get("tab") ?? "";
  return (
    <>
      <div class="title">
        <h1>{row.task || row.job} <span class="dim">{row.name}</span></h1>
        <State state={row.stalled_since ? "stalled" : row.state} />
        {row.changing && (
          <span class="chip">
            {row.changing.goal} since <At at={row.changing.since} />
          </span>
        )}
        <span class="more" role="group" aria-label="Actions">
          <ActionButtons asks={asksFor([row])} onAsk={setAsk} />
        </span>
      </div>
      <Tabs
        tabs={tabsOf(row)} chosen={tab}
        to={(one) => `/jobs/${encodeURIComponent(row.job)}${one ? `?tab=${one}` : ""}`}
      />
      {tab === "" && <Summary detail={detail} row={row} />}
      {tab === "why" && <Why job={row.job} state={row.state} />}
      {tab === "curves" && <Curves job={row.job} attempt={row.attempt} />}
      {tab === "logs" && <Logs job={row.job} ranks={detail.workers ?? 1} attempts={row.attempt} />}
      {tab === "events" && <Events job={row.job} />}
      {tab === "blame" && <Blame job={row.job} state={row.state} />}
      {tab === "spec" && <Spec detail={detail} />}
      {ask && <AskDialog ask={ask} onClose={() => setAsk(null)} />}
    </>
  );
}

function Summary({ detail, row }: { detail: Detail; row: Job }) {
  const active = !row.ended_at;
  return (
    <>
      {row.text && row.state !== "running" && <p>{row.text}</p>}
      <div class="tiles">
        <div class="tile">
          <b>{row.rate_milli === null ? "–" : rate(row.rate_milli)}</b><span>mini-batches</span>
        </div>
        <div class="tile">
          <b>{row.total_steps ? percent(row.steps, row.total_steps) : count(row.steps)}</b>
          <span>{row.total_steps
            ? `${count(row.steps)} of ${count(row.total_steps)} mini-batches` : "mini-batches done"}
          </span>
        </div>
        <div class="tile">
          <b>{row.ended_at ? <At at={row.ended_at} /> : row.end ? <>~<At at={row.end[1]} /></> : "–"}</b>
          <span>{row.ended_at ? "ended" : row.end
            ? <>ends; 8 in 10: <At at={row.end[0]} /> to <At at={row.end[2]} /></>
            : "when it ends is not known yet"}
          </span>
        </div>
        <div class="tile">
          <b>{row.utilisation === null ? "–" : `${Math.round(row.utilisation / 10)} %`}</b>
          <span>of its GPUs in use</span>
        </div>
      </div>
      <Timeline detail={detail} />
      <div class="columns">
        <Card title="What it is">
          <dl class="facts inside">
            <dt>Virtual cluster</dt><dd><a href={`/jobs?vc=${row.vc}`}>{row.vc}</a></dd>
            {row.owner && <><dt>Owner</dt><dd>{row.owner}</dd></>}
            <dt>GPUs</dt>
            <dd>
              {row.gpu_share ? `${row.gpu_share} of one` : row.gpus}{row.gpu_type && `, ${row.gpu_type}`}
              {row.workers > 1 && `, ${many(row.workers, "worker")}`}
            </dd>
            <dt>Class</dt>
            <dd>
              {row.service_class}
              {row.class_in_force && row.class_in_force !== row.service_class
                && `, ${row.class_in_force} now`}
            </dd>
            <dt>Priority</dt><dd>{row.priority}</dd>
            <dt>Where</dt><dd>{row.place || "–"}{row.beside.length > 0 && `, with ${row.beside.join(", ")}`}</dd>
            {row.after.length > 0 && (
              <>
                <dt>After</dt>
                <dd>{row.after.map((job) => <a key={job} href={`/jobs/${encodeURIComponent(job)}`}>{job} </a>)}</dd>
              </>
            )}
            {row.search && <><dt>Search</dt><dd>{row.search}</dd></>}
            {Object.entries(row.labels).map(([name, value]) => (
              <><dt>{name}</dt><dd>{value}</dd></>
            ))}
          </dl>
        </Card>
        <Card title="When">
          <dl class="facts inside">
            <dt>Submitted</dt><dd><At at={row.submitted_at} /></dd>
            <dt>Started</dt>
            <dd>{row.started_at || !row.start ? <At at={row.started_at} /> : <>about <At at={row.start[1]} /></>}</dd>
            <dt>Ended</dt><dd><At at={row.ended_at} /></dd>
            {row.started_at && (
              <><dt>Ran</dt><dd>{length((row.ended_at ?? now.value) - row.started_at)}</dd></>
            )}
            {row.due && (
              <>
                <dt>Deadline</dt>
                <dd>
                  <At at={row.due} /> <State state={row.standing ?? "open"} />
                  {row.promise && ` (${row.promise})`}
                </dd>
              </>
            )}
            <dt>Attempts</dt><dd>{row.attempt}</dd>
            {active && detail.can?.length ? <><dt>It can</dt><dd>{detail.can.join(", ")}</dd></> : null}
          </dl>
        </Card>
      </div>
      <p>
        <Command line={`skep show ${row.job}`} />{" "}
        <Command line={`skep logs -f ${row.job}`} />
      </p>
    </>
  );
}

function Spec({ detail }: { detail: Detail }) {
  return (
    <Card title="As it was admitted" aside={<Command line={`skep show ${detail.job} --json`} />}>
      <pre class="inside wide">{JSON.stringify(detail.spec, null, 2)}</pre>
    </Card>
  );
}
