// Where the time of a job went: shares that come to its elapsed time.

import { answered, api, type Schemas } from "../api";
import { useAsked } from "../asking";
import { clock, length, NS, percent } from "../format";
import { Bar, Card, Command, Empty, Problem, Wide } from "../parts/basics";
import type { Job } from "../rows";
import { KINDS, Legend } from "./job_timeline";

type Party = Schemas["BlamedParty"];

const SPANS_SHOWN = 200;
/** The shares, the largest first, and the stretches. */
export function Blame({ row }: { row: Job }) {
  const { job } = row;
  const { value, problem } = useAsked(
    () => answered(api.GET("/v1/jobs/{job}/blame", { params: { path: { job } } })),
    [job, row.state, row.attempt, row.changing?.goal],
  );
  if (!value) return problem ? <Problem text={problem} /> : <Empty>Loading …</Empty>;
  return (
    <>
      <Problem text={problem} />
      <Card title="Where its time went" aside={<Command line={`skep blame ${job}`} />}>
        <p class="inside">
          {value.end || "Not over"}: {length(value.elapsed_ns)} since its submission.
          {value.held_gpu_ns > 0 &&
            ` It held ${hours(value.held_gpu_ns)} GPU hours, of which ${percent(
              value.useful_gpu_ns,
              value.held_gpu_ns,
            )} made mini-batches that survive.`}
          {value.slowed_gpu_ns > 0 &&
            ` A faster place would have saved ${hours(value.slowed_gpu_ns)} GPU hours.`}
          {value.lost_gpu_ns > 0 && ` ${hours(value.lost_gpu_ns)} GPU hours were lost.`}
        </p>
        <Shares value={value} />
      </Card>
      {value.spans.length > 0 && <Stretches value={value} />}
    </>
  );
}

const hours = (ns: number): string => (ns / NS / 3600).toPrecision(2);

function Shares({ value }: { value: Schemas["Blame"] }) {
  const shares = value.shares.toSorted((a, b) => b.ns - a.ns);
  return (
    <Wide label="Causes">
      <table class="plain">
        <thead>
          <tr>
            <th class="said">Cause</th>
            <th class="right">Time</th>
            <th class="right">Share</th>
            <th class="right">GPU hours</th>
            <th>Behind it</th>
          </tr>
        </thead>
        <tbody>
          {shares.map((one) => (
            <tr key={one.cause}>
              <td>
                <code class="chip">{one.cause}</code> {one.text}
              </td>
              <td class="right">{length(one.ns)}</td>
              <td class="right">
                {percent(one.ns, value.elapsed_ns)}
                <Bar
                  label={percent(one.ns, value.elapsed_ns)}
                  parts={[["", one.ns / Math.max(1, value.elapsed_ns)]]}
                />
              </td>
              <td class="right">{one.gpu_ns ? hours(one.gpu_ns) : "–"}</td>
              <td>
                <Parties parties={one.parties} all={one.ns} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </Wide>
  );
}

function Parties({ parties, all }: { parties: Party[]; all: number }) {
  if (!parties.length) return <>–</>;
  return (
    <>
      {parties.map((one, place) => (
        <span key={one.kind + one.name}>
          {place > 0 && ", "}
          {one.kind === "job" && one.name ? (
            <a href={`/jobs/${encodeURIComponent(one.name)}`}>{one.name}</a>
          ) : (
            one.name || one.kind.replaceAll("-", " ")
          )}{" "}
          {percent(one.ns, all)}
        </span>
      ))}
    </>
  );
}

function Stretches({ value }: { value: Schemas["Blame"] }) {
  const { submitted_at: from, until } = value;
  const place = (at: number) => `${(100 * (at - from)) / Math.max(1, until - from)}%`;
  const texts = value.spans.map((one) => `${one.cause} ${length(one.end - one.begin)}`);
  return (
    <Card title="Stretch by stretch" aside={<Command line={`skep blame ${value.job} --spans`} />}>
      <div class="inside">
        <div
          class="timeline"
          role="img"
          aria-label={`Stretches of its time: ${texts.slice(0, 40).join(", ")}`}
        >
          {value.spans.map((one) => (
            <i
              key={one.begin}
              class={KINDS[one.cause] ?? "wait"}
              style={{ left: place(one.begin), width: place(from + one.end - one.begin) }}
              title={`${clock(one.begin)}: ${one.cause}, ${length(one.end - one.begin)}`}
            />
          ))}
        </div>
        <Legend kinds={[...new Set(value.spans.map((one) => KINDS[one.cause] ?? "wait"))]} />
        <details>
          <summary>As a table</summary>
          <Wide label="Stretches">
            <table class="plain">
              <thead>
                <tr>
                  <th>From</th>
                  <th class="right">Time</th>
                  <th>Cause</th>
                  <th>Behind it</th>
                </tr>
              </thead>
              <tbody>
                {value.earlier_ns > 0 && (
                  <tr>
                    <td>before</td>
                    <td class="right">{length(value.earlier_ns)}</td>
                    <td>only summed up</td>
                    <td />
                  </tr>
                )}
                {value.spans.slice(-SPANS_SHOWN).map((one) => (
                  <tr key={one.begin}>
                    <td>{clock(one.begin)}</td>
                    <td class="right">{length(one.end - one.begin)}</td>
                    <td>{one.cause}</td>
                    <td>
                      <Parties parties={one.parties} all={one.end - one.begin} />
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </Wide>
        </details>
      </div>
    </Card>
  );
}
