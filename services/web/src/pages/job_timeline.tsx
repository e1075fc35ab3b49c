// When a job waited, ran and was suspended, by its attempts, drawn along one axis of time.

import type { Schemas } from "../api";
import { clock, length, many, now } from "../format";
import { Card, Empty } from "../parts/basics";

type Detail = Pick<Schemas["JobDetail"], "submitted_at" | "ended_at" | "attempts">;

interface Piece {
  from: number;
  to: number;
  kind: string;
  text: string;
}

/** Return what a job did from its submission to its end (or now). */
export function pieces(detail: Detail, present: number): Piece[] {
  const found: Piece[] = [];
  let last = detail.submitted_at ?? null;
  const add = (from: number | null, to: number | null, kind: string, text: string) => {
    if (from !== null && to !== null && to > from) found.push({ from, to, kind, text });
  };
  for (const one of detail.attempts ?? []) {
    const bound = one.bound_at ?? null;
    const started = one.started_at ?? null;
    const first = one.first_step_at ?? null;
    const end = one.ended_at ?? (detail.ended_at ?? present);
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
  const drawn = pieces(detail, present);
  const from = detail.submitted_at ?? present;
  const to = detail.ended_at ?? present;
  const attempts = detail.attempts ?? [];
  if (!drawn.length) return null;
  const place = (at: number) => `${(100 * (at - from)) / Math.max(1, to - from)}%`;
  return (
    <Card title="Timeline" aside={<span class="dim">{clock(from)} to {detail.ended_at ? clock(to) : "now"}, {length(to - from)}</span>}>
      <div class="inside">
        <div class="timeline" role="img" aria-label={drawn.map((one) => `${one.text} ${length(one.to - one.from)}`).join("; ")}>
          {drawn.map((one) => (
            <i
              key={`${one.kind}${one.from}`} class={one.kind}
              style={{ left: place(one.from), width: place(from + one.to - one.from) }}
              title={`${clock(one.from)}: ${one.text}, ${length(one.to - one.from)}`}
            />
          ))}
        </div>
        <p class="legend dim">
          <span><i class="wait" />waits</span><span><i class="begin" />starts</span>
          <span><i class="run" />trains</span><span><i class="still" />suspended</span>
        </p>
      </div>
      {attempts.length > 0 ? (
        <details class="inside">
          <summary>{many(attempts.length, "attempt")}</summary>
          <div class="wide">
            <table class="plain">
              <thead><tr><th>#</th><th>Where</th><th>Started</th><th>Ran</th><th>Suspended</th><th>Mini-batches</th><th>End</th></tr></thead>
              <tbody>
                {attempts.map((one) => (
                  <tr key={one.attempt}>
                    <td>{one.attempt}</td>
                    <td>{one.place}</td>
                    <td>{one.started_at ? clock(one.started_at) : "–"}</td>
                    <td>{one.started_at ? length((one.ended_at ?? present) - one.started_at) : "–"}</td>
                    <td>{one.suspended_ns ? length(one.suspended_ns) : "–"}</td>
                    <td>{one.steps}</td>
                    <td>{[one.outcome, one.ended_why, one.detail].filter(Boolean).join(": ") || "–"}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </details>
      ) : <Empty>It has not been placed yet.</Empty>}
    </Card>
  );
}
