// One job: what it does, why it is where it is, how it trains, what was decided about it.

import { Fragment } from "preact";
import { useState } from "preact/hooks";

import { answered, api, type Schemas } from "../api";
import { useAsked } from "../asking";
import { count, length, many, now, percent, rate } from "../format";
import { jobs } from "../live";
import { ActionButtons, type Ask, AskDialog, asksFor } from "../parts/actions";
import { At, Card, Command, Empty, Problem, Said, State, Tabs, Wide } from "../parts/basics";
import type { Detail, Spec } from "../parts/spec";
import { nameIn, path, query } from "../router";
import type { Job } from "../rows";
import { may } from "../session";
import { Blame } from "./job_blame";
import { Curves } from "./job_curves";
import { Events } from "./job_events";
import { Files } from "./job_files";
import { Logs } from "./job_logs";
import { TerminalTab } from "./job_terminal";
import { Timeline } from "./job_timeline";
import { Trace } from "./job_trace";
import { Trials } from "./job_trials";
import { Why } from "./job_why";

/** The page. */
export function JobPage() {
  const name = nameIn(path.value, "/jobs");
  const live = jobs.get(name);
  // The row changes with the job: what is not in it is asked for again then.
  const key = JSON.stringify([
    live?.state,
    live?.attempt,
    live?.changing,
    live?.place,
    live?.why,
    live?.priority,
    live?.standing,
  ]);
  const { value: detail, problem } = useAsked(
    () => answered(api.GET("/v1/jobs/{job}", { params: { path: { job: name } } })),
    [name, key],
  );
  if (!detail) {
    return problem ? (
      <>
        <h1>{name}</h1>
        <Problem text={problem} />
        <p>
          <a href="/jobs?state=all">All jobs</a>
        </p>
      </>
    ) : (
      <Empty>Loading {name} …</Empty>
    );
  }
  return <Shown detail={detail} row={live ?? rowOf(detail)} />;
}

/** Return a row as `/v1/state` would have it, for a job that is not among its rows any more. */
function rowOf(detail: Detail): Job {
  const { estimate, pledged } = detail;
  const times = (one: Schemas["Times"] | null | undefined): Job["end"] =>
    one ? [one.p10, one.p50, one.p90] : null;
  const after = Object.values((detail.spec as Spec | null)?.["after"] ?? {});
  return {
    ...detail,
    gpu_share: detail.gpu_share ?? null,
    owner: detail.owner ?? "",
    beside: detail.beside ?? [],
    labels: detail.labels ?? {},
    task: detail.task ?? "",
    tasks: detail.tasks ?? null,
    after: after.flatMap((one) => (Array.isArray(one) ? one : [])) as string[],
    search: String((detail.spec as Spec | null)?.["search"] ?? ""),
    nodes: [],
    utilisation: null,
    progress: detail.total_steps ? Math.round((1000 * detail.steps) / detail.total_steps) : null,
    start: times(estimate?.start),
    end: times(estimate?.end),
    due: pledged?.due || null,
    promise: pledged?.answer ?? null,
    standing: pledged?.outcome || null,
    changing: detail.changing ?? null,
    stalled_since: detail.stalled_since ?? null,
    text: detail.detail ?? "",
    why: detail.why ?? null,
  };
}

const tabsOf = (row: Job): [string, string][] => {
  const seen = may("read-logs", row.vc, row.owner) && !row.tasks;
  const tabs: [string, string, boolean][] = [
    ["", "Overview", true],
    ["why", row.state === "running" ? "Why here" : "Why", true],
    ["curves", "Curves", !row.tasks],
    ["logs", "Logs", seen],
    ["events", "Events", true],
    ["blame", "Where time went", !row.tasks],
    ["files", "Files", seen],
    ["terminal", "Terminal", !row.tasks && !row.ended_at && may("enter", row.vc, row.owner)],
    ["trace", "Trace", true],
    ["spec", "Spec", true],
  ];
  return tabs.flatMap(([tab, text, shown]) => (shown ? [[tab, text] as [string, string]] : []));
};

function Shown({ detail, row }: { detail: Detail; row: Job }) {
  const [ask, setAsk] = useState<Ask | null>(null);
  const [taken, setTaken] = useState<unknown>(null);
  const tabs = tabsOf(row);
  const asked = query.value.get("tab") ?? "";
  const tab = tabs.some(([one]) => one === asked) ? asked : "";
  const href = `/jobs/${encodeURIComponent(row.job)}`;
  const spec = detail.spec as Spec | null;
  return (
    <>
      <div class="title">
        <h1>
          {row.task || row.job} <span class="dim">{row.name}</span>
        </h1>
        <State state={row.stalled_since ? "stalled" : row.state} />
        {row.changing && (
          <span class="chip">
            {row.changing.goal} since <At at={row.changing.since} />
          </span>
        )}
        <span class="more" role="group" aria-label="Actions">
          <ActionButtons asks={asksFor([row]).filter((one) => able(one, detail))} onAsk={setAsk} />
          {spec && !row.search && may("submit", row.vc) && (
            <a class="button" href={`/submit?from=${encodeURIComponent(row.job)}`}>
              Edit and submit
            </a>
          )}
        </span>
      </div>
      <Tabs tabs={tabs} chosen={tab} to={(one) => (one ? `${href}?tab=${one}` : href)} />
      <CameTo taken={taken} job={row.job} />
      {tab === "" && <Summary detail={detail} row={row} />}
      {tab === "why" && <Why row={row} spec={spec} />}
      {tab === "curves" && <Curves row={row} />}
      {tab === "logs" && <Logs row={row} ranks={row.workers || 1} />}
      {tab === "events" && <Events job={row.job} />}
      {tab === "blame" && <Blame row={row} />}
      {tab === "files" && <Files row={row} />}
      {tab === "terminal" && <TerminalTab row={row} />}
      {tab === "trace" && <Trace row={row} />}
      {tab === "spec" && <SpecTab detail={detail} />}
      {ask && (
        <AskDialog ask={ask} onClose={() => setAsk(null)} onDone={([told]) => setTaken(told)} />
      )}
    </>
  );
}

const ABILITIES = ["checkpoint", "migrate", "resize"];

/** Return whether a job can do what would be asked; what it can is known once it trains. */
const able = (ask: Ask, detail: Detail): boolean =>
  !detail.tier || !ABILITIES.includes(ask.verb) || (detail.can ?? []).includes(ask.verb);

/** What a request came to: the gateway answers once the change is done, or was not made. */
function CameTo({ taken, job }: { taken: unknown; job: string }) {
  const number = (taken as Partial<Schemas["ChangeTaken"]> | null)?.number;
  const { value } = useAsked(async () => {
    if (number === undefined) return null;
    const params = { path: { job }, query: { wait: "asked" as const, number, timeout_s: 60 } };
    const detail = await answered(api.GET("/v1/jobs/{job}", { params }));
    return detail.asks?.find((one) => one.number === number) ?? null;
  }, [job, number]);
  if (number === undefined) return null;
  const own = value?.number === number ? value : null;
  const verb = (taken as Partial<Schemas["ChangeTaken"]>).ask ?? "the change";
  const done = own?.result === "done";
  return (
    <p class={own && !done ? "problem" : "notice"} role="status">
      {own?.result
        ? `${verb}: ${own.result}${done ? "" : `. ${[own.why, own.detail].filter(Boolean).join(": ")}`}`
        : `${verb}: asked for, and under way …`}
    </p>
  );
}

function Summary({ detail, row }: { detail: Detail; row: Job }) {
  return (
    <>
      {row.text && row.state !== "running" && (
        <p>
          <Said text={row.text} />
        </p>
      )}
      {(detail.problems ?? []).length > 0 && (
        <Problem
          text={(detail.problems ?? [])
            .map((one) => [one.path, one.text, one.suggestion].filter(Boolean).join(": "))
            .join("\n")}
        />
      )}
      {(detail.building ?? []).map((one) => (
        <p key={one.node}>
          {one.node} {one.text ? "fetches its image" : "builds its environment"} since{" "}
          <At at={one.since} />
          {one.text && `: ${one.text}`}
        </p>
      ))}
      {(detail.held_up ?? []).map((one) => (
        <p class="notice" key={one.rank}>
          <Said text={one.text} /> ({one.why}, since <At at={one.since} />)
        </p>
      ))}
      <Tiles row={row} />
      <Timeline detail={detail} />
      <div class="columns">
        <What detail={detail} row={row} />
        <When detail={detail} row={row} />
      </div>
      <Requests asks={detail.asks ?? []} />
      <Trials trials={detail.trials ?? []} job={row.job} />
      <p class="commands">
        <Command line={`skep show ${row.job}`} />{" "}
        {may("read-logs", row.vc, row.owner) && !row.tasks && (
          <Command line={`skep logs -f ${row.job}`} />
        )}
      </p>
    </>
  );
}

function Tiles({ row }: { row: Job }) {
  const { tasks } = row;
  return (
    <div class="tiles">
      {!row.ended_at && (
        <div class="tile">
          <b>{row.rate_milli ? rate(row.rate_milli) : "–"}</b>
          <span>mini-batches</span>
        </div>
      )}
      {tasks ? (
        <a class="tile" href={`/jobs?q=${encodeURIComponent(row.job)}&state=all`}>
          <b>
            {count(tasks.succeeded ?? 0)}
            <small class="dim"> of {count(tasks.total ?? 0)}</small>
          </b>
          <span>
            tasks succeeded; {count(tasks.running ?? 0)} run, {count(tasks.failed ?? 0)} failed
          </span>
        </a>
      ) : (
        <div class="tile">
          <b>{row.total_steps ? percent(row.steps, row.total_steps) : count(row.steps)}</b>
          <span>
            {row.total_steps
              ? `${count(row.steps)} of ${count(row.total_steps)} mini-batches`
              : "mini-batches done"}
          </span>
        </div>
      )}
      <div class="tile">
        <b>
          {row.ended_at ? (
            <At at={row.ended_at} />
          ) : row.end ? (
            <>
              ~<At at={row.end[1]} distance />
            </>
          ) : (
            "–"
          )}
        </b>
        <span>
          {row.ended_at ? (
            "ended"
          ) : row.end ? (
            <>
              ends ~<At at={row.end[1]} />; 8 in 10: <At at={row.end[0]} /> to{" "}
              <At at={row.end[2]} />
            </>
          ) : (
            "when it ends is not known yet"
          )}
        </span>
      </div>
      {!row.ended_at && (
        <div class="tile">
          <b>{row.utilisation === null ? "–" : `${Math.round(row.utilisation / 10)} %`}</b>
          <span>
            {row.utilisation === null ? "its use of GPUs is not measured" : "of its GPUs in use"}
          </span>
        </div>
      )}
    </div>
  );
}

function What({ detail, row }: { detail: Detail; row: Job }) {
  return (
    <Card title="What it is">
      <dl class="facts inside">
        <dt>Virtual cluster</dt>
        <dd>
          <a href={`/jobs?vc=${encodeURIComponent(row.vc)}`}>{row.vc}</a>
        </dd>
        {row.owner && (
          <>
            <dt>Owner</dt>
            <dd>{row.owner}</dd>
          </>
        )}
        <dt>Runs</dt>
        <dd class="mono">{commandOf(detail.spec as Spec | null)}</dd>
        <dt>GPUs</dt>
        <dd>
          {row.gpu_share ? `${row.gpu_share} of one` : row.gpus}
          {row.gpu_type && `, ${row.gpu_type}`}
          {row.workers > 1 && `, ${many(row.workers, "worker")}`}
        </dd>
        <dt>Class</dt>
        <dd>
          {row.service_class}
          {row.class_in_force &&
            row.class_in_force !== row.service_class &&
            `, ${row.class_in_force} now`}
        </dd>
        <dt>Priority</dt>
        <dd>{row.priority}</dd>
        <dt>Where</dt>
        <dd>
          {row.place || "–"}
          {row.beside.length > 0 && (
            <>
              , shared with{" "}
              {row.beside.map((one) => (
                <JobLink key={one} job={one} />
              ))}
            </>
          )}
        </dd>
        {row.after.length > 0 && (
          <>
            <dt>After</dt>
            <dd>
              {row.after.map((one) => (
                <JobLink key={one} job={one} />
              ))}
            </dd>
          </>
        )}
        {row.search && (
          <>
            <dt>Search</dt>
            <dd>{row.search}</dd>
          </>
        )}
        {Object.entries(row.labels).map(([name, value]) => (
          <Fragment key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </Fragment>
        ))}
      </dl>
    </Card>
  );
}

const JobLink = ({ job }: { job: string }) => (
  <a href={`/jobs/${encodeURIComponent(job)}`}>{job} </a>
);

function commandOf(spec: Spec | null): string {
  const words = (one: unknown): string =>
    Array.isArray(one) ? one.map(String).join(" ") : String(one ?? "");
  return spec?.["script"]
    ? `${String(spec["script"])} ${words(spec["args"])}`.trim()
    : words(spec?.["command"]) || "–";
}

function When({ detail, row }: { detail: Detail; row: Job }) {
  const { pledged } = detail;
  return (
    <Card title="When">
      <dl class="facts inside">
        <dt>Submitted</dt>
        <dd>
          <At at={row.submitted_at} />
        </dd>
        <dt>Started</dt>
        <dd>
          {row.started_at || !row.start ? (
            <At at={row.started_at} />
          ) : (
            <>
              about <At at={row.start[1]} />
            </>
          )}
        </dd>
        <dt>Ended</dt>
        <dd>
          <At at={row.ended_at} />
        </dd>
        {row.started_at && (
          <>
            <dt>Ran</dt>
            <dd>{length((row.ended_at ?? now.value) - row.started_at)}</dd>
          </>
        )}
        {pledged?.due ? (
          <>
            <dt>Deadline</dt>
            <dd>
              <At at={pledged.due} />: {pledged.answer}
              {pledged.outcome && (
                <>
                  {" "}
                  <State state={pledged.outcome} />
                </>
              )}
              <div class="dim">
                {[pledged.text, pledged.cause, pledged.detail].filter(Boolean).join("; ")}
              </div>
            </dd>
          </>
        ) : null}
        <dt>Attempts</dt>
        <dd>{row.attempt}</dd>
        {detail.tier && (
          <>
            <dt>It can</dt>
            <dd>
              {(detail.can ?? []).join(", ") || "start and stop"}{" "}
              <span class="dim">({detail.tier})</span>
            </dd>
          </>
        )}
        {detail.estimate?.basis && !row.ended_at && (
          <>
            <dt>Estimated by</dt>
            <dd>
              <code class="chip">{detail.estimate.basis}</code>
            </dd>
          </>
        )}
        {(detail.repeated_by ?? []).length > 0 && (
          <>
            <dt>Submitted again</dt>
            <dd>
              {(detail.repeated_by ?? []).map((one) => (
                <JobLink key={one} job={one} />
              ))}
            </dd>
          </>
        )}
      </dl>
    </Card>
  );
}

const ASKS_SHOWN = 20;

/** What people asked of the job, the latest first. */
function Requests({ asks }: { asks: Schemas["Asked"][] }) {
  if (!asks.length) return null;
  return (
    <Card title="What was asked of it">
      <Wide label="Requests">
        <table class="plain">
          <thead>
            <tr>
              <th>What</th>
              <th>Asked</th>
              <th>Result</th>
              <th>Why</th>
            </tr>
          </thead>
          <tbody>
            {asks
              .slice(-ASKS_SHOWN)
              .reverse()
              .map((one) => (
                <tr key={one.number}>
                  <td>{one.ask}</td>
                  <td>
                    <At at={one.asked_at} />
                  </td>
                  <td>{one.result ?? "under way"}</td>
                  <td>{[one.why, one.detail].filter(Boolean).join(": ") || "–"}</td>
                </tr>
              ))}
          </tbody>
        </table>
      </Wide>
    </Card>
  );
}

function SpecTab({ detail }: { detail: Detail }) {
  return (
    <Card title="As it was admitted" aside={<Command line={`skep show ${detail.job} --json`} />}>
      <pre class="inside wide" tabIndex={0}>
        {JSON.stringify(detail.spec, null, 2)}
      </pre>
    </Card>
  );
}
