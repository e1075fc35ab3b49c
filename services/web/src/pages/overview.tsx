// The overview: how the cluster is, what needs somebody, who waits and why.

import { useEffect, useState } from "preact/hooks";

import { answered, api } from "../api";
import { count, length, many, NS, percent } from "../format";
import { alerts, jobs, standing, totals } from "../live";
import { At, Card, Empty, Said, State } from "../parts/basics";
import { Chart } from "../parts/chart";
import type { Alert, Job } from "../rows";

const WAITING_SHOWN = 12;
/** Kinds of alerts that are shown, and how many more of each kind are named. */
const GROUPS_MAX = 20;
const ALIKE_MAX = 100;

/** The first page. */
export function OverviewPage() {
  return (
    <>
      <div class="title">
        <h1>Overview</h1>
      </div>
      <Tiles />
      <Alerts />
      <div class="columns">
        <Waiting />
        <div>
          <LastDay />
        </div>
      </div>
    </>
  );
}

function Tiles() {
  const total = totals.get("all");
  if (!total) return <div class="tiles" />;
  const { jobs: byState, gpus } = total;
  const all = Object.values(gpus).reduce((sum, one) => sum + one, 0);
  const waiting = (byState["queued"] ?? 0) + (byState["submitted"] ?? 0);
  const away = (gpus["bad"] ?? 0) + (gpus["lost"] ?? 0) + (gpus["drained"] ?? 0);
  return (
    <div class="tiles">
      <a class="tile" href="/jobs?state=running">
        <b>{count(byState["running"] ?? 0)}</b>
        <span>jobs run</span>
      </a>
      <a class="tile" href="/jobs?state=queued">
        <b>{count(waiting)}</b>
        <span>jobs wait</span>
      </a>
      <a class="tile" href="/cluster">
        <b>{count(gpus["held"] ?? 0)}</b>
        <span>
          of {count(all)} GPUs held, {percent(gpus["held"] ?? 0, all)}
        </span>
      </a>
      <a class="tile" href="/cluster">
        <b>{count(gpus["free"] ?? 0)}</b>
        <span>GPUs free{away ? `, ${count(away)} not to be had` : ""}</span>
      </a>
      <div class="tile">
        <b>{total.useful === null ? "–" : `${Math.round(total.useful / 10)} %`}</b>
        <span>of held GPU time was useful, last day</span>
      </div>
      <div class="tile">
        <b>{total.waited_p50_s === null ? "–" : length(total.waited_p50_s * NS)}</b>
        <span>
          median wait, last hour
          {total.waited_p90_s === null ? "" : `; nine in ten: ${length(total.waited_p90_s * NS)}`}
        </span>
      </div>
    </div>
  );
}

const RANKS = { critical: 0, warning: 1, info: 2 };

/** Alerts of one kind: of one node, or wherever there is no node. */
interface Group {
  key: string;
  all: Alert[];
}

function grouped(all: Alert[]): Group[] {
  const found = new Map<string, Group>();
  for (const one of all) {
    const node = one.kind === "gpu" ? (one.about.split("/")[0] ?? "") : "";
    const key = `${one.code} ${node}`;
    const group = found.get(key);
    if (group) group.all.push(one);
    else found.set(key, { key, all: [one] });
  }
  return [...found.values()].sort(
    (a, b) => RANKS[a.all[0]?.severity ?? "info"] - RANKS[b.all[0]?.severity ?? "info"],
  );
}

function Alerts() {
  const all = alerts.all.value;
  if (!all.length) return null;
  const groups = grouped(all);
  return (
    <Card title={many(all.length, "alert")}>
      <ul class="list scrolled" tabIndex={0} aria-label="Alerts">
        {groups.slice(0, GROUPS_MAX).map(({ key, all: [first, ...more] }) => (
          <li key={key}>
            {first && <AlertLine alert={first} />}
            {more.length > 0 && (
              <details>
                <summary>{many(more.length, "more like it", "more like it")}</summary>
                <div>
                  {more.slice(0, ALIKE_MAX).map((one) => (
                    <AlertAbout key={one.alert} alert={one} />
                  ))}
                  {more.length > ALIKE_MAX && <> and {count(more.length - ALIKE_MAX)} more</>}
                </div>
              </details>
            )}
          </li>
        ))}
      </ul>
      {groups.length > GROUPS_MAX && (
        <Empty>{count(groups.length - GROUPS_MAX)} further kinds are not shown.</Empty>
      )}
    </Card>
  );
}

function AlertAbout({ alert }: { alert: Alert }) {
  const href =
    alert.kind === "job"
      ? `/jobs/${encodeURIComponent(alert.about)}`
      : alert.kind === "node" || alert.kind === "gpu"
        ? `/cluster?node=${encodeURIComponent(alert.about.split("/")[0] ?? "")}`
        : "";
  return href ? <a href={href}>{alert.about} </a> : <b>{alert.about} </b>;
}

function AlertLine({ alert }: { alert: Alert }) {
  return (
    <>
      <div class="what">
        <State state={alert.severity === "info" ? "info" : "bad"} title={alert.code} />
        <AlertAbout alert={alert} />
        <span>{alert.text}</span>
        <span class="dim">
          <At at={alert.since} distance />
        </span>
      </div>
      <div class="dim">
        <Said text={alert.todo} />
      </div>
    </>
  );
}

/** Return the jobs that wait, the one that waits longest first. */
function waiting(all: Job[]): Job[] {
  return all
    .filter((row) => row.state === "queued" || row.state === "submitted")
    .sort((a, b) => (a.submitted_at ?? 0) - (b.submitted_at ?? 0));
}

function Waiting() {
  const all = waiting(jobs.all.value);
  return (
    <Card
      title="Who waits, and why"
      aside={all.length > 0 && <a href="/jobs?state=queued">all {count(all.length)}</a>}
    >
      {!all.length && (
        <Empty>
          {standing.value === "loading"
            ? "Loading …"
            : "No job waits: the next one starts as soon as it is submitted."}
        </Empty>
      )}
      <ul class="list">
        {all.slice(0, WAITING_SHOWN).map((row) => (
          <li key={row.job}>
            <div class="what">
              <a href={`/jobs/${encodeURIComponent(row.job)}?tab=why`}>{row.job}</a>
              <span>{row.name}</span>
              <span class="dim">
                {row.vc}, {many(row.gpus, "GPU")}, waits since <At at={row.submitted_at} />
                {row.start && (
                  <>
                    , starts about <At at={row.start[1]} />
                  </>
                )}
              </span>
            </div>
            <div>
              <Said text={row.text || "It was not looked at yet."} />
            </div>
          </li>
        ))}
      </ul>
    </Card>
  );
}

interface HistoryRow {
  at: number;
  [column: string]: number | null;
}

function LastDay() {
  const [rows, setRows] = useState<HistoryRow[] | null>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    const load = () =>
      void answered(api.GET("/v1/history", { params: { query: { hours: 24 } } }))
        .then((told) => {
          setRows(
            told.rows.map(
              (cells) =>
                Object.fromEntries(
                  told.columns.map((column, place) => [column, cells[place] ?? null]),
                ) as HistoryRow,
            ),
          );
          setProblem("");
        })
        .catch((error: Error) => setProblem(error.message));
    load();
    // A new point comes every five minutes.
    const timer = setInterval(load, 300_000);
    return () => clearInterval(timer);
  }, []);
  if (!rows)
    return (
      <Card title="The last day">
        <Empty>{problem || "Loading …"}</Empty>
      </Card>
    );
  if (rows.length < 2) {
    return (
      <Card title="The last day">
        <Empty>There is a point for every five minutes: the first ones come soon.</Empty>
      </Card>
    );
  }
  const along = rows.map((row) => row.at / NS);
  const of = (column: string) => rows.map((row) => row[column] ?? null);
  const whole = (value: number) => String(Math.round(value));
  return (
    <>
      <Card title="GPUs over the last day">
        <Chart
          label="GPUs held, training and out of use over the last day"
          times
          along={along}
          series={[
            { name: "held", values: of("held"), colour: "busy", told: whole, filled: true },
            { name: "training", values: of("training"), colour: "good", told: whole },
            { name: "free", values: of("free"), colour: "dim", told: whole },
            { name: "bad", values: of("bad"), colour: "bad", told: whole },
          ]}
        />
      </Card>
      <Card title="Waiting">
        <Chart
          label="Jobs that wait over the last day"
          times
          along={along}
          height={150}
          series={[
            {
              name: "jobs that wait",
              values: of("waiting"),
              colour: "honey",
              told: whole,
              filled: true,
            },
          ]}
        />
      </Card>
    </>
  );
}
