// Some jobs side by side: their curves in one chart for each number, and what differs in their specs.

import { answered, api } from "../api";
import { useAsked, useSettled } from "../asking";
import { count, rate } from "../format";
import { jobs } from "../live";
import { At, Card, Command, Empty, Problem, State, Wide } from "../parts/basics";
import { Chart, type Series } from "../parts/chart";
import { figure } from "../parts/params";
import { type Detail, shortened, type Spec } from "../parts/spec";
import { query } from "../router";

/** As many as there are colours that can be told apart. */
export const COMPARED_MAX = 5;
const COLOURS = ["busy", "good", "honey", "bad", "dim"];
/** Rows of jobs that train change each second; their curves are not asked for each second. */
const AGAIN_MS = 10_000;

interface Compared {
  detail: Detail;
  points: { step: number; values: Record<string, number> }[];
}

/** The page: `?jobs=j1,j3`. */
export function ComparePage() {
  const names = [...new Set((query.value.get("jobs") ?? "").split(",").filter(Boolean))];
  const steps = names.reduce((sum, name) => sum + (jobs.get(name)?.steps ?? 0), 0);
  const changed = useSettled(steps, AGAIN_MS);
  const asked = names.slice(0, COMPARED_MAX).join(",");
  const { value, problem } = useAsked(
    () => Promise.all(asked.split(",").filter(Boolean).map(learn)),
    [asked, changed],
  );
  return (
    <>
      <div class="title">
        <h1>Compare jobs</h1>
        <span class="more">
          <a class="button" href="/jobs?state=all">
            Choose others
          </a>
        </span>
      </div>
      <Problem text={problem} />
      {names.length > COMPARED_MAX && (
        <p class="notice">
          The first {COMPARED_MAX} of {count(names.length)} jobs are compared.
        </p>
      )}
      {names.length < 2 && (
        <Empty>
          Choose two to {COMPARED_MAX} jobs among <a href="/jobs?state=all">all jobs</a>, and then
          Compare.
        </Empty>
      )}
      {names.length >= 2 && value && <Shown all={value} />}
      {names.length >= 2 && !value && !problem && <Empty>Loading …</Empty>}
    </>
  );
}

async function learn(job: string): Promise<Compared> {
  const params = { path: { job } };
  const [detail, curve] = await Promise.all([
    answered(api.GET("/v1/jobs/{job}", { params })),
    answered(api.GET("/v1/jobs/{job}/curve", { params })),
  ]);
  return { detail, points: curve.points };
}

function Shown({ all }: { all: Compared[] }) {
  const names = [
    ...new Set(all.flatMap((one) => one.points.flatMap((point) => Object.keys(point.values)))),
  ].sort();
  return (
    <>
      <Summary all={all} names={names} />
      {!names.length && (
        <Card title="What they report">
          <Empty>
            None of them has reported anything. A script reports by{" "}
            <code>run.report(loss=loss)</code>.
          </Empty>
        </Card>
      )}
      <div class={names.length > 1 ? "columns" : ""}>
        {names.map((name) => (
          <Together key={name} name={name} all={all} />
        ))}
      </div>
      <Differences all={all} />
    </>
  );
}

/** A curve of each job along one axis of mini-batches. */
function Together({ name, all }: { name: string; all: Compared[] }) {
  const along = [
    ...new Set(
      all.flatMap((one) => one.points.flatMap((point) => (name in point.values ? point.step : []))),
    ),
  ].sort((a, b) => a - b);
  const series = all.map(({ detail, points }, place): Series => {
    const at = new Map(points.map((point) => [point.step, point.values[name]]));
    return {
      name: `${detail.job} ${detail.name}`,
      colour: COLOURS[place] ?? "dim",
      joined: true,
      dashed: place % 2 === 1,
      values: along.map((step) => at.get(step) ?? null),
      told: figure,
    };
  });
  const told = all.map((one) => `${one.detail.job} ${figure(latest(one, name))}`).join(", ");
  return (
    <Card
      title={name}
      aside={<Command line={`skep curve ${all[0]?.detail.job ?? "JOB"} --svg curve.svg`} />}
    >
      <Chart
        label={`${name} by mini-batch, latest: ${told}`}
        along={along}
        series={series}
        height={220}
      />
    </Card>
  );
}

const latest = (one: Compared, name: string): number | null =>
  one.points.findLast((point) => name in point.values)?.values[name] ?? null;

function Summary({ all, names }: { all: Compared[]; names: string[] }) {
  return (
    <Card title="Now">
      <Wide label="The jobs now">
        <table class="plain">
          <thead>
            <tr>
              <th>Job</th>
              <th>State</th>
              <th class="right">Mini-batches</th>
              <th class="right">Rate</th>
              {names.map((name) => (
                <th key={name} class="right">
                  {name}, latest
                </th>
              ))}
              <th>Started</th>
              <th>Ended</th>
            </tr>
          </thead>
          <tbody>
            {all.map((one) => (
              <tr key={one.detail.job}>
                <td>
                  <a href={`/jobs/${encodeURIComponent(one.detail.job)}`}>{one.detail.job}</a>{" "}
                  {one.detail.name}
                </td>
                <td>
                  <State state={one.detail.state} />
                </td>
                <td class="right">{count(one.detail.steps)}</td>
                <td class="right">{one.detail.rate_milli ? rate(one.detail.rate_milli) : "–"}</td>
                {names.map((name) => (
                  <td key={name} class="right">
                    {figure(latest(one, name))}
                  </td>
                ))}
                <td>
                  <At at={one.detail.started_at} />
                </td>
                <td>
                  <At at={one.detail.ended_at} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </Wide>
    </Card>
  );
}

/** Return a spec as paths and values: `resources.gpus`, `2`. */
export function flat(spec: Spec, before = ""): Map<string, string> {
  const found = new Map<string, string>();
  for (const [key, value] of Object.entries(shortened(spec))) {
    const path = before ? `${before}.${key}` : key;
    if (typeof value === "object" && !Array.isArray(value)) {
      for (const [inner, text] of flat(value as Spec, path)) found.set(inner, text);
    } else {
      found.set(path, typeof value === "string" ? value : JSON.stringify(value));
    }
  }
  return found;
}

function Differences({ all }: { all: Compared[] }) {
  const specs = all.map((one) => flat((one.detail.spec ?? {}) as Spec));
  const keys = [...new Set(specs.flatMap((one) => [...one.keys()]))]
    .filter((key) => new Set(specs.map((one) => one.get(key))).size > 1)
    .sort();
  return (
    <Card title="What differs in their specs">
      {!keys.length && <Empty>Nothing: they were submitted with the same spec.</Empty>}
      {keys.length > 0 && (
        <Wide label="What differs">
          <table class="plain">
            <thead>
              <tr>
                <th>Key</th>
                {all.map((one) => (
                  <th key={one.detail.job}>{one.detail.job}</th>
                ))}
              </tr>
            </thead>
            <tbody>
              {keys.map((key) => (
                <tr key={key}>
                  <th scope="row" class="mono">
                    {key}
                  </th>
                  {specs.map((one, place) => (
                    <td key={place} class="mono">
                      {one.get(key) ?? "–"}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </Wide>
      )}
    </Card>
  );
}
