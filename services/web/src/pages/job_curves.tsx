// How fast a job goes, what it uses of its GPUs, and what it says about its training.

import { useEffect, useState } from "preact/hooks";

import { answered, api, type Schemas } from "../api";
import { useAsked, useSettled } from "../asking";
import { bytes, clock, count, many, NS, rate } from "../format";
import { Card, Command, Empty, Problem } from "../parts/basics";
import { Chart, type Mark } from "../parts/chart";
import type { Job } from "../rows";

const COLOURS = ["busy", "good", "honey", "bad", "dim"];
/** A row that changes each second is not asked about each second. */
const AGAIN_MS = 10_000;
/** A stretch without a rate that is longer than some windows is a gap, as while it is suspended. */
const GAPS = 4;
const SINCE_MAX = 60;
/** A job begins to make mini-batches within this time, or has much to load. */
const EARLIER_NS = 600 * NS;

/** The rates, and one chart for each value that the job reports. */
export function Curves({ row }: { row: Job }) {
  const steps = useSettled(row.steps, AGAIN_MS);
  return (
    <>
      <Course row={row} steps={steps} />
      <Reported job={row.job} attempt={row.attempt} steps={steps} />
    </>
  );
}

interface Columns {
  at: number[];
  rate: (number | null)[];
  utilisation: (number | null)[];
  memory: (number | null)[];
}

/** Return what was answered as curves with gaps, and with what the row told since. */
function columns(course: Schemas["RateCourse"], since: [number, Job][]): Columns {
  const made: Columns = { at: [], rate: [], utilisation: [], memory: [] };
  const add = (at: number, one: [number | null, number | null, number | null]) => {
    made.at.push(at / NS);
    made.rate.push(one[0]);
    made.utilisation.push(one[1]);
    made.memory.push(one[2]);
  };
  const spaces = course.at.slice(1).map((at, place) => at - (course.at[place] ?? at));
  const usual = spaces.toSorted((a, b) => a - b)[Math.floor(spaces.length / 2)] ?? NS;
  // What it was placed by is shown too if it was shortly before the first rate.
  const [start, end] = [course.at[0] ?? 0, course.at.at(-1) ?? 0];
  const placed = course.marks.findLast((one) => one.at < start)?.at;
  if (placed !== undefined && start - placed < (end - start) / 4) add(placed, [null, null, null]);
  course.at.forEach((at, place) => {
    const before = course.at[place - 1];
    if (before !== undefined && at - before > GAPS * usual) add(before + usual, [null, null, null]);
    add(at, [
      (course.rate_milli[place] ?? 0) / 1000,
      (course.utilisation[place] ?? 0) / 10,
      course.memory[place] ?? null,
    ]);
  });
  const last = course.at.at(-1) ?? 0;
  for (const [at, row] of since) {
    if (at > last && row.rate_milli !== null) {
      add(at, [
        row.rate_milli / 1000,
        row.utilisation === null ? null : row.utilisation / 10,
        null,
      ]);
    }
  }
  return made;
}

function Course({ row, steps }: { row: Job; steps: number }) {
  const { job } = row;
  const [since, setSince] = useState<[number, Job][]>([]);
  const { value, problem } = useAsked(async () => {
    const course = await answered(api.GET("/v1/jobs/{job}/rates", { params: { path: { job } } }));
    setSince([]);
    return course;
  }, [job, row.state, row.attempt, row.changing?.goal, steps]);
  // Between two answers the row itself says how fast the job goes.
  useEffect(() => {
    if (row.state === "running")
      setSince((before) => [...before.slice(-SINCE_MAX), [Date.now() * 1e6, row]]);
  }, [row]);
  if (!value) return problem ? <Problem text={problem} /> : <Empty>Loading …</Empty>;
  if (!value.at.length) {
    return (
      <Card title="Mini-batches per second">
        <Problem text={problem} />
        <Empty>
          {row.ended_at || row.started_at
            ? "The gateway has heard no rate of it: it makes no mini-batches that are seen, or it ran before the gateway was started."
            : "It has not started yet."}
        </Empty>
      </Card>
    );
  }
  const shown = columns(value, since);
  const start = value.at[0] ?? 0;
  const marks: Mark[] = value.marks.map((one, place) => ({
    at: one.at / NS,
    text: String(place + 1),
    colour: colourOf(one),
  }));
  const used = shown.utilisation.some((one) => one !== null && one > 0);
  const held = shown.memory.some((one) => one !== null && one > 0);
  const highest = Math.max(...shown.rate.map((one) => one ?? 0));
  return (
    <>
      <Problem text={problem} />
      <Card title="Mini-batches per second" aside={<Command line={`skep show ${job}`} />}>
        <Chart
          label={`Rate of ${job} from ${clock(value.at[0] ?? 0)}: at most ${rate(1000 * highest)}, latest ${rate(
            1000 * (shown.rate.at(-1) ?? 0),
          )}`}
          along={shown.at}
          times
          marks={marks}
          series={[{ name: "mini-batches/s", colour: "good", filled: true, values: shown.rate }]}
        />
        {row.started_at && start - row.started_at > EARLIER_NS && (
          <p class="inside dim">
            The gateway keeps rates from {clock(start)} on: it has been started, or has kept those
            of other jobs, since this one began.
          </p>
        )}
        <Marks marks={value.marks} />
      </Card>
      {(used || held) && (
        <div class={used && held ? "columns" : ""}>
          {used && (
            <Card title="GPUs in use">
              <Chart
                label={`GPUs in use of ${job}, in percent: latest ${shown.utilisation.findLast((one) => one !== null)}`}
                along={shown.at}
                times
                marks={marks}
                least={100}
                series={[
                  {
                    name: "in use",
                    colour: "busy",
                    filled: true,
                    values: shown.utilisation,
                    told: (one) => `${Math.round(one)} %`,
                  },
                ]}
              />
            </Card>
          )}
          {held && (
            <Card title="Memory">
              <Chart
                label={`Memory of ${job}: latest ${bytes(shown.memory.findLast((one) => one !== null) ?? 0)}`}
                along={shown.at}
                times
                bytes
                marks={marks}
                series={[
                  {
                    name: "of its largest rank",
                    colour: "honey",
                    values: shown.memory,
                    told: bytes,
                  },
                ]}
              />
            </Card>
          )}
        </div>
      )}
    </>
  );
}

/** Decisions are blue; what was only seen is amber. */
const colourOf = (mark: Schemas["RateMark"]): string =>
  ["phase-changed", "stalled"].includes(mark.kind) ? "honey" : "busy";

function Marks({ marks }: { marks: Schemas["RateMark"][] }) {
  if (!marks.length) return null;
  return (
    <details class="inside" open={marks.length <= 4}>
      <summary>{many(marks.length, "mark")}: what was decided, and what was seen</summary>
      <ol class="plainly numbered">
        {marks.map((one, place) => (
          <li key={place}>
            <span class="dim">{clock(one.at)}</span> {one.text}
            {one.reason && (
              <>
                {" "}
                <code class="chip">{one.reason}</code>
              </>
            )}
          </li>
        ))}
      </ol>
    </details>
  );
}

function Reported({ job, attempt, steps }: { job: string; attempt: number; steps: number }) {
  const { value, problem } = useAsked(
    () => answered(api.GET("/v1/jobs/{job}/curve", { params: { path: { job } } })),
    [job, attempt, steps],
  );
  if (!value) return problem ? <Problem text={problem} /> : <Empty>Loading …</Empty>;
  const names = [...new Set(value.points.flatMap((point) => Object.keys(point.values)))].sort();
  if (!names.length) {
    return (
      <Card title="What it reports">
        <Problem text={problem} />
        <Empty>
          It has reported nothing. A script reports by <code>run.report(loss=loss)</code>; losses of
          the Trainers of common libraries are found without.
        </Empty>
      </Card>
    );
  }
  const along = value.points.map((point) => point.step);
  return (
    <>
      <Problem text={problem} />
      <div class="columns">
        {names.map((name, place) => {
          const values = value.points.map((point) => point.values[name] ?? null);
          const latest = values.findLast((one) => one !== null);
          return (
            <Card key={name} title={name} aside={<Command line={`skep curve ${job}`} />}>
              <Chart
                label={`${name} of ${job} up to mini-batch ${count(along.at(-1) ?? 0)}: latest ${latest?.toPrecision(4) ?? "none"}`}
                along={along}
                marks={attempts(value.points)}
                series={[{ name, colour: COLOURS[place % COLOURS.length] ?? "busy", values }]}
              />
            </Card>
          );
        })}
      </div>
    </>
  );
}

/** Return where another attempt went on. */
function attempts(points: Schemas["CurvePoint"][]): Mark[] {
  return points.flatMap((point, place) => {
    const before = points[place - 1];
    return before && before.attempt !== point.attempt
      ? [{ at: point.step, text: `attempt ${point.attempt}`, colour: "busy" }]
      : [];
  });
}
