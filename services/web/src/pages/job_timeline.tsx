// When a job waited, ran and was suspended, and what was decided about it, along one axis of time.

import { answered, api, type Schemas } from "../api";
import { useAsked } from "../asking";
import { clock, length, many, now } from "../format";
import { Card, Wide } from "../parts/basics";

type Detail = Pick<
  Schemas["JobDetail"],
  "job" | "state" | "submitted_at" | "ended_at" | "attempts" | "tasks"
>;

interface Piece {
  from: number;
  to: number;
  kind: string;
  text: string;
}

/** How a stretch is drawn, by the cause that it is blamed on; all others are waiting. */
export const KINDS: Record<string, string> = {
  running: "run",
  "slowed-by-packing": "run slow",
  "slowed-by-placement": "run slow",
  "slowed-by-size": "run slow",
  "slowed-by-node": "run slow",
  starting: "begin",
  changing: "begin",
  stopping: "begin",
  suspended: "still",
  preempted: "bad",
  "work-lost": "bad",
};
const LEGEND: [string, string][] = [
  ["wait", "waits"],
  ["begin", "starts or changes"],
  ["run", "trains"],
  ["run slow", "trains slower"],
  ["still", "suspended"],
  ["bad", "preempted or lost"],
];

/** What the colours of the kinds that are drawn mean. */
export function Legend({ kinds }: { kinds: string[] }) {
  return (
    <p class="legend dim">
      {LEGEND.filter(([kind]) => kinds.includes(kind)).map(([kind, text]) => (
        <span key={kind}>
          <i class={kind} />
          {text}
        </span>
      ))}
    </p>
  );
}

/** Return what a job did, by its blame: every suspension and change is in it. */
function blamed(blame: Schemas["Blame"], present: number): Piece[] {
  const texts = new Map(blame.shares.map((one) => [one.cause, one.text]));
  return blame.spans.map((one, place) => ({
    from: one.begin,
    to: !blame.end && place === blame.spans.length - 1 ? Math.max(one.end, present) : one.end,
    kind: KINDS[one.cause] ?? "wait",
    text: texts.get(one.cause) ?? one.cause,
  }));
}

/** Return what a job did by its attempts, for one whose blame is not known (any more). */
function pieces(detail: Detail, present: number): Piece[] {
  const found: Piece[] = [];
  let last = detail.submitted_at ?? null;
  const add = (from: number | null, to: number | null, kind: string, text: string) => {
    if (from !== null && to !== null && to > from) found.push({ from, to, kind, text });
  };
  for (const one of detail.attempts ?? []) {
    const bound = one.bound_at ?? null;
    const started = one.started_at ?? null;
    const first = one.first_step_at ?? null;
    const end = one.ended_at ?? detail.ended_at ?? present;
    add(last, bound, "wait", "waits");
    add(bound, started ?? end, "begin", `attempt ${one.attempt} is placed on ${one.place}`);
    add(started, first ?? end, "begin", `attempt ${one.attempt} starts`);
    add(first, one.suspended_at ?? end, "run", `attempt ${one.attempt} trains on ${one.place}`);
    add(one.suspended_at ?? null, end, "still", "is suspended");
    last = end;
  }
  if (!detail.ended_at && !(detail.attempts ?? []).some((one) => !one.ended_at)) {
    add(last, present, "wait", "waits");
  }
  return found;
}

/** The picture, and the same as a table. */
export function Timeline({ detail }: { detail: Detail }) {
  const present = now.value;
  const attempts = detail.attempts ?? [];
  const params = { path: { job: detail.job } };
  const needs = [detail];
  // An array runs as its tasks do: it has no time of its own.
  const blame = useAsked(
    async () => (detail.tasks ? null : answered(api.GET("/v1/jobs/{job}/blame", { params }))),
    needs,
  ).value;
  const course = useAsked(
    async () => (detail.tasks ? null : answered(api.GET("/v1/jobs/{job}/rates", { params }))),
    needs,
  ).value;
  const drawn = blame && !blame.earlier_ns ? blamed(blame, present) : pieces(detail, present);
  const marks = (course?.marks ?? []).filter((one) => DECISIONS.has(one.kind));
  const from = detail.submitted_at ?? present;
  const to = detail.ended_at ?? present;
  if (!drawn.length || detail.tasks) return null;
  const place = (at: number) => `${Math.min(100, (100 * (at - from)) / Math.max(1, to - from))}%`;
  const told = drawn.map((one) => `${one.text}, ${length(one.to - one.from)}`);
  return (
    <Card
      title="Timeline"
      aside={
        <span class="dim">
          {clock(from)} to {detail.ended_at ? clock(to) : "now"}, {length(to - from)}
        </span>
      }
    >
      <div class="inside">
        <div
          class="timeline"
          role="img"
          aria-label={`What it did: ${told.slice(0, 40).join("; ")}`}
        >
          {drawn.map((one) => (
            <i
              key={`${one.kind}${one.from}`}
              class={one.kind}
              style={{ left: place(one.from), width: place(from + one.to - one.from) }}
              title={`${clock(one.from)}: ${one.text}, ${length(one.to - one.from)}`}
            />
          ))}
        </div>
        {marks.length > 0 && (
          <div class="ticks" aria-hidden="true">
            {marks.map((one, number) => (
              <span
                key={number}
                style={{ left: place(one.at) }}
                title={`${clock(one.at)}: ${one.text}`}
              />
            ))}
          </div>
        )}
        <Legend kinds={[...new Set(drawn.map((one) => one.kind))]} />
        {marks.length > 0 && (
          <details open={marks.length < 4}>
            <summary>{many(marks.length, "decision")}: moves, suspensions, sizes, packs</summary>
            <ul class="plainly numbered">
              {marks.map((one, number) => (
                <li key={number}>
                  <span class="dim">{clock(one.at)}</span> {one.text}
                  {one.reason && (
                    <>
                      {" "}
                      <code class="chip">{one.reason}</code>
                    </>
                  )}
                </li>
              ))}
            </ul>
          </details>
        )}
        {attempts.length > 0 ? (
          <Attempts attempts={attempts} present={present} />
        ) : (
          <p class="dim">It has not been placed yet.</p>
        )}
      </div>
    </Card>
  );
}

/** Where it was placed is told by the attempts. */
const DECISIONS = new Set([
  "job-requeued",
  "job-stopping",
  "job-demoted",
  "job-promoted",
  "job-changed",
  "gpus-regained",
  "job-moved",
  "gang-widened",
  "gang-narrowed",
  "gpus-shared",
  "trial-begun",
  "trial-over",
]);

function Attempts({ attempts, present }: { attempts: Schemas["Attempt"][]; present: number }) {
  return (
    <details>
      <summary>{many(attempts.length, "attempt")}</summary>
      <Wide label="Attempts">
        <table class="plain">
          <thead>
            <tr>
              <th>#</th>
              <th>Where</th>
              <th>Why there</th>
              <th>Started</th>
              <th class="right">Ran</th>
              <th class="right">Suspended</th>
              <th class="right">Mini-batches</th>
              <th>End</th>
            </tr>
          </thead>
          <tbody>
            {attempts.map((one) => (
              <tr key={one.attempt}>
                <td>{one.attempt}</td>
                <td>{one.place}</td>
                <td>{one.why && <code class="chip">{one.why}</code>}</td>
                <td>{one.started_at ? clock(one.started_at) : "–"}</td>
                <td class="right">
                  {one.started_at ? length((one.ended_at ?? present) - one.started_at) : "–"}
                </td>
                <td class="right">{one.suspended_ns ? length(one.suspended_ns) : "–"}</td>
                <td class="right">{one.steps || "–"}</td>
                <td>
                  {[one.outcome, one.ended_why, one.detail].filter(Boolean).join(": ") || "–"}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </Wide>
    </details>
  );
}
