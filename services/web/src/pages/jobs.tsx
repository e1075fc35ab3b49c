// The jobs: filtered, sorted, chosen, and changed many at a time. All of it is in the address.

import { useMemo, useState } from "preact/hooks";

import { ActionButtons, AskDialog, type Ask, asksFor } from "../parts/actions";
import { At, Bar, Command, Empty, State } from "../parts/basics";
import { Choices, ListTitle, SearchBox, VcChoice, wordsOf } from "../parts/listing";
import { type Column, Rows, sorted } from "../parts/rows";
import { count, length, many, now, NS, rate } from "../format";
import { jobs, standing } from "../live";
import { query, setQuery } from "../router";
import type { Job } from "../rows";
import { me } from "../session";
import { forget, keep, views } from "../views";
import { COMPARED_MAX } from "./compare";

const ACTIVE = ["submitted", "queued", "bound", "running", "suspended", "stopping"];
const STATES = [
  "active",
  "running",
  "queued",
  "suspended",
  "succeeded",
  "failed",
  "cancelled",
  "all",
];

/** The columns, in the order in which a narrow window keeps them. */
export const COLUMNS: Column<Job>[] = [
  {
    key: "job",
    title: "Job",
    width: "minmax(64px, .7fr)",
    cell: (row) => row.task || row.job,
    by: (row) => Number(row.job.slice(1)) || 0,
  },
  {
    key: "name",
    title: "Name",
    width: "minmax(90px, 3fr)",
    cell: (row) => <span title={row.name}>{row.name}</span>,
    by: (row) => row.name,
  },
  {
    key: "state",
    title: "State",
    width: "102px",
    cell: (row) => <JobState row={row} />,
    by: (row) => row.state,
  },
  {
    key: "vc",
    title: "VC",
    width: "minmax(60px, .8fr)",
    cell: (row) => row.vc,
    by: (row) => row.vc,
    from: 640,
  },
  {
    key: "owner",
    title: "Owner",
    width: "minmax(60px, .8fr)",
    cell: (row) => row.owner,
    by: (row) => row.owner,
    from: 1000,
  },
  {
    key: "gpus",
    title: "GPUs",
    width: "48px",
    right: true,
    cell: (row) => row.gpu_share ?? row.gpus,
    by: (row) => row.gpus,
    from: 420,
  },
  {
    key: "place",
    title: "Where",
    width: "minmax(80px, 1.1fr)",
    cell: (row) => <span title={row.place}>{row.place}</span>,
    by: (row) => row.place,
    from: 1300,
  },
  {
    key: "progress",
    title: "Progress",
    width: "84px",
    cell: (row) => <Progress row={row} />,
    by: (row) => row.progress ?? -1,
    from: 800,
  },
  {
    key: "rate",
    title: "Rate",
    width: "72px",
    right: true,
    // One that stands still, or begins, has a rate of before or none.
    cell: (row) => (row.state === "running" && row.rate_milli ? rate(row.rate_milli) : ""),
    by: (row) => row.rate_milli ?? -1,
    from: 1200,
  },
  {
    key: "ends",
    title: "Ends",
    width: "82px",
    right: true,
    cell: (row) => <Ends row={row} />,
    by: (row) => row.ended_at ?? row.end?.[1] ?? Infinity,
    from: 720,
  },
  {
    key: "age",
    title: "Age",
    width: "62px",
    right: true,
    cell: (row) => (row.submitted_at ? length(Math.max(NS, now.value - row.submitted_at)) : ""),
    by: (row) => row.submitted_at ?? 0,
    from: 1100,
  },
  {
    key: "why",
    title: "Why",
    width: "minmax(120px, 3fr)",
    cell: (row) => <Why row={row} />,
    by: (row) => row.why ?? "",
    from: 1000,
  },
];

function JobState({ row }: { row: Job }) {
  if (row.stalled_since)
    return <State state="stalled" title={`${row.state}; it makes no mini-batches`} />;
  return (
    <State
      state={row.state}
      {...(row.changing && { title: `${row.changing.goal} is under way` })}
    />
  );
}

function Progress({ row }: { row: Job }) {
  if (row.tasks) {
    const { total, succeeded, failed, running } = row.tasks;
    const text = `${many(total, "task")}: ${running} run, ${succeeded} succeeded, ${failed} failed`;
    return (
      <Bar
        label={text}
        parts={[
          ["good", succeeded / total],
          ["bad", failed / total],
          ["", running / total],
        ]}
      />
    );
  }
  if (!row.started_at) return null;
  if (row.progress === null || !row.total_steps) return row.steps ? <>{count(row.steps)}</> : null;
  const text = `${count(row.steps)} of ${count(row.total_steps)} mini-batches`;
  return <Bar label={text} parts={[["", row.progress / 1000]]} />;
}

function Ends({ row }: { row: Job }) {
  if (row.ended_at) return <At at={row.ended_at} distance />;
  if (!row.end) return null;
  const [p10, p50, p90] = row.end;
  return (
    <span title={`eight times in ten within ${length(p90 - p10)}`}>
      ~<At at={p50} distance />
    </span>
  );
}

function Why({ row }: { row: Job }) {
  const text = row.state === "running" && !row.stalled_since ? "" : row.text;
  return (
    <span class="dim" title={text}>
      {text}
    </span>
  );
}

/** Return the rows that a query asks for. */
export function chosenRows(all: Job[], asked: URLSearchParams, person: string): Job[] {
  const state = asked.get("state") ?? "active";
  const words = wordsOf(asked);
  const vc = asked.get("vc");
  const owner = asked.get("mine") ? person : asked.get("owner");
  return all.filter((row) => {
    if (state === "active" ? !ACTIVE.includes(row.state) : state !== "all" && row.state !== state)
      return false;
    if (vc && row.vc !== vc) return false;
    if (owner && row.owner !== owner) return false;
    if (!words.length) return true;
    const text = textOf(row);
    return words.every((word) => text.includes(word));
  });
}

/** What is searched of rows: made once, as a row that changes is another one. */
const searched = new WeakMap<Job, string>();

function textOf(row: Job): string {
  let text = searched.get(row);
  if (text === undefined) {
    const labels = Object.entries(row.labels)
      .map(([name, value]) => `${name}=${value}`)
      .join(" ");
    text =
      `${row.job} ${row.task} ${row.name} ${row.vc} ${row.owner} ${row.place} ${row.text} ${labels}`.toLowerCase();
    searched.set(row, text);
  }
  return text;
}

/** Return the columns in which some job has something: owners and progress are not everywhere. */
function shownColumns(all: Job[]): Column<Job>[] {
  const owners = all.some((row) => row.owner);
  const steps = all.some((row) => row.steps || row.tasks);
  const rates = all.some((row) => row.rate_milli !== null);
  const left: Record<string, boolean> = { owner: !owners, progress: !steps, rate: !rates };
  return COLUMNS.filter((column) => !left[column.key]);
}

/** The page. */
export function JobsPage() {
  const asked = query.value;
  const sort = asked.get("sort") ?? "-age";
  const person = me.value?.person ?? "";
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const [ask, setAsk] = useState<Ask | null>(null);
  const all = jobs.all.value;
  const rows = useMemo(
    () => sorted(chosenRows(all, asked, person), COLUMNS, sort),
    [all, asked, sort, person],
  );
  const columns = useMemo(() => shownColumns(all), [all]);
  const taken = rows.filter((row) => chosen.has(row.job));
  const choose = (keys: string[], on: boolean) => {
    const next = new Set(chosen);
    for (const key of keys)
      if (on) next.add(key);
      else next.delete(key);
    setChosen(next);
  };
  return (
    <>
      <ListTitle title="Jobs" shown={rows.length} line={lineOf(asked)} />
      <Filters asked={asked} person={person} />
      {taken.length > 0 && (
        <div class="controls" role="group" aria-label="What to do with the chosen jobs">
          <b>{many(taken.length, "job")} chosen</b>
          <ActionButtons asks={asksFor(taken)} onAsk={setAsk} />
          {taken.length > 1 && taken.length <= COMPARED_MAX && (
            <a class="button" href={`/compare?jobs=${taken.map((row) => row.job).join(",")}`}>
              Compare
            </a>
          )}
          <button type="button" class="quiet" onClick={() => setChosen(new Set())}>
            choose none
          </button>
        </div>
      )}
      <div class="card">
        <Rows
          label="Jobs"
          columns={columns}
          rows={rows}
          keyOf={(row) => row.job}
          href={(row) => `/jobs/${encodeURIComponent(row.job)}`}
          sort={sort}
          onSort={(next) => setQuery({ sort: next })}
          chosen={chosen}
          onChoose={choose}
          empty={<Nothing asked={asked} />}
        />
      </div>
      {ask && (
        <AskDialog ask={ask} onClose={() => setAsk(null)} onDone={() => setChosen(new Set())} />
      )}
    </>
  );
}

function Filters({ asked, person }: { asked: URLSearchParams; person: string }) {
  const [saving, setSaving] = useState("");
  return (
    <>
      <div class="controls">
        <SearchBox label="Search" hint="Search names, labels (team=vision), nodes, reasons …" />
        <VcChoice />
        {person && (
          <button
            type="button"
            aria-pressed={Boolean(asked.get("mine"))}
            onClick={() => setQuery({ mine: asked.get("mine") ? "" : "1" })}
          >
            Mine
          </button>
        )}
      </div>
      <div class="controls" role="group" aria-label="States">
        <Choices name="state" choices={STATES} usual="active" />
        {views.value.map((view) => (
          <span key={view.name} class="chip">
            <a href={`/jobs?${view.query}`}>{view.name}</a>
            <button
              type="button"
              class="quiet"
              aria-label={`Forget the view ${view.name}`}
              onClick={() => forget(view.name)}
            >
              ×
            </button>
          </span>
        ))}
        <form
          onSubmit={(event) => {
            event.preventDefault();
            keep(saving, asked.toString());
            setSaving("");
          }}
        >
          <input
            aria-label="Name of this view"
            placeholder="Keep this view as …"
            size={18}
            maxLength={40}
            value={saving}
            onInput={(event) => setSaving(event.currentTarget.value)}
          />
        </form>
      </div>
    </>
  );
}

function Nothing({ asked }: { asked: URLSearchParams }) {
  if (standing.value === "loading") return <Empty>Loading …</Empty>;
  if (jobs.rows.size && [...asked.keys()].length) {
    return (
      <Empty>
        No job matches. <a href="/jobs?state=all">Show all jobs</a>.
      </Empty>
    );
  }
  return (
    <Empty>
      No job waits or runs. Submit one: <Command line="skep run --gpus 1 -- python train.py" /> or
      look at <a href="/jobs?state=all">those that ended</a>.
    </Empty>
  );
}

/** Return the `skep` line that lists the same jobs. */
export function lineOf(asked: URLSearchParams): string {
  const words = ["skep ps"];
  const state = asked.get("state") ?? "active";
  if (state === "all") words.push("--all");
  else if (state !== "active") words.push(`--state ${state}`);
  if (asked.get("vc")) words.push(`--vc ${asked.get("vc")}`);
  if (asked.get("mine")) words.push("--mine");
  return words.join(" ");
}
