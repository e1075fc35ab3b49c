// Why a job is where it is, and what would change that, with a button that does it.

import { answered, api } from "../api";
import { useAsked } from "../asking";
import { Card, Command, Empty, Problem } from "../parts/basics";

/** Reasons and, of a job that waits, what would start it. */
export function Why({ job, state }: { job: string; state: string }) {
  const { value, problem } = useAsked(
    () => answered(api.GET("/v1/jobs/{job}/why", { params: { path: { job } } })), [job, state],
  );
  if (!value) return problem ? <Problem text={problem} /> : <Empty>Loading …</Empty>;
  const options = value.what_if?.options ?? [];
  return (
    <>
      <Problem text={problem} />
      <Card title={`Why it is ${value.state}`} aside={<Command line={`skep why ${job}`} />}>
        <ul class="list">
          {value.reasons.map((one) => (
            <li key={one.reason + one.needs}>
              <div class="what"><code class="chip">{one.reason}</code> {one.text}</div>
              {one.needs && <div class="dim">{one.needs}</div>}
            </li>
          ))}
        </ul>
      </Card>
      {value.would_change.length > 0 && (
        <Card title="What would change that">
          <ul class="list">{value.would_change.map((text) => <li key={text}>{text}</li>)}</ul>
        </Card>
      )}
      {options.length > 0 && (
        <Card title="What if" aside={<Command line={`skep why ${job} --what-if`} />}>
          <ul class="list">
            {options.map((one) => <li key={one.text}>{one.text}</li>)}
          </ul>
        </Card>
      )}
      {value.what_if?.problem && <Empty>{value.what_if.problem}</Empty>}
    </>
  );
}
