// What the scheduler tried with a job, and whether it was worth it.

import type { Schemas } from "../api";
import { rate } from "../format";
import { At, Card, Command, State, Wide } from "../parts/basics";

const gain = (milli: number | null): string =>
  milli === null ? "–" : `${milli >= 0 ? "+" : "−"}${Math.abs(milli / 10).toFixed(1)} %`;

const VERDICTS: Record<string, string> = { kept: "kept", undone: "undone", void: "void" };

/** The trials that touched a job, the latest first; nothing where there was none. */
export function Trials({ trials, job }: { trials: Schemas["Tried"][]; job: string }) {
  if (!trials.length) return null;
  return (
    <Card title="What was tried with it" aside={<Command line={`skep ledger --job ${job}`} />}>
      <Wide label="Trials">
        <table class="plain">
          <thead>
            <tr>
              <th>#</th>
              <th>What</th>
              <th>With</th>
              <th>Begun</th>
              <th>Verdict</th>
              <th>Gain (8 in 10)</th>
              <th>Rate</th>
              <th>Why</th>
            </tr>
          </thead>
          <tbody>
            {[...trials].reverse().map((one) => (
              <tr key={one.trial}>
                <td>{one.trial}</td>
                <td>
                  {one.kind}
                  {one.grown ? ` ${one.workers} → ${one.grown} workers` : ""}
                </td>
                <td>
                  {one.jobs.filter((other) => other !== job).join(", ") ||
                    one.nodes.join(", ") ||
                    "–"}
                </td>
                <td>
                  <At at={one.begun_at} />
                </td>
                <td>
                  {one.verdict ? <State state={VERDICTS[one.verdict] ?? one.verdict} /> : "open"}
                </td>
                <td>
                  {gain(one.gain_milli)}
                  {one.low_milli !== null && ` (${gain(one.low_milli)} to ${gain(one.high_milli)})`}
                </td>
                <td>{ratesOf(one, job)}</td>
                <td>{[one.why ?? one.begun_why, one.detail].filter(Boolean).join(": ")}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Wide>
    </Card>
  );
}

function ratesOf(one: Schemas["Tried"], job: string): string {
  const before = one.before.find((each) => each.job === job)?.rate_milli;
  const after = one.after.find((each) => each.job === job)?.rate_milli;
  return (
    [before, after]
      .filter((each) => each !== undefined)
      .map(rate)
      .join(" → ") || "–"
  );
}
