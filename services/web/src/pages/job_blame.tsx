// Where the time of a job went: shares that add up.

import { answered, api } from "../api";
import { useAsked } from "../asking";
import { length } from "../format";
import { Bar, Card, Command, Empty, Problem } from "../parts/basics";

interface Share {
  cause: string;
  text: string;
  ns: number;
}

/** The shares, the largest first. */
export function Blame({ job, state }: { job: string; state: string }) {
  const { value, problem } = useAsked(
    () => answered(api.GET("/v1/jobs/{job}/blame", { params: { path: { job } } })), [job, state],
  );
  if (!value) return problem ? <Problem text={problem} /> : <Empty>Loading …</Empty>;
  const shares = ((value.shares ?? []) as unknown as Share[]).toSorted((a, b) => b.ns - a.ns);
  const all = shares.reduce((sum, one) => sum + one.ns, 0);
  return (
    <Card title="Where its time went" aside={<Command line={`skep blame ${job}`} />}>
      {!shares.length && <Empty>It has not taken any time yet.</Empty>}
      <div class="wide">
        <table class="plain">
          <tbody>
            {shares.map((one) => (
              <tr key={one.cause}>
                <td><code class="chip">{one.cause}</code></td>
                <td>{one.text}</td>
                <td class="right">{length(one.ns)}</td>
                <td><Bar label={`${Math.round((100 * one.ns) / all)} %`} parts={[["", one.ns / all]]} /></td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}
