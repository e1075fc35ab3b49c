// The deadlines of a virtual cluster's jobs: which were promised, kept or broken, and why.

import { answered, api, type Schemas } from "../api";
import { useAsked, useSettled } from "../asking";
import { count, percent } from "../format";
import { vcs } from "../live";
import { At, Card, Command, Empty, Problem, State } from "../parts/basics";
import { query, setQuery } from "../router";

type Promised = Omit<Schemas["PromiseRow"], "helps">;
type Outcome = "" | "open" | "kept" | "broken";

const OUTCOMES: Outcome[] = ["", "open", "kept", "broken"];
const SHOWN = 200;
const ANEW_MS = 2000;

/** The promises, the latest first. */
export function Promises({ vc, made }: { vc: string; made: number }) {
  const wanted = query.value.get("outcome") ?? "";
  const outcome = OUTCOMES.find((one) => one === wanted) ?? "";
  const changes = useSettled(vcs.version.value, ANEW_MS);
  const { value, problem } = useAsked(
    () =>
      answered(
        api.GET("/v1/promises", {
          params: { query: { vc, outcome, order: "newest", limit: SHOWN } },
        }),
      ),
    [vc, outcome, made, changes],
  );
  const totals = value?.totals[vc];
  const causes = new Map<string, number>();
  for (const one of value?.promises ?? []) {
    if (one.cause) causes.set(one.cause, (causes.get(one.cause) ?? 0) + 1);
  }
  return (
    <Card
      title="Promises"
      aside={<Command line={`skep promises --vc ${vc}${outcome && ` --outcome ${outcome}`}`} />}
    >
      <div class="controls inside" role="group" aria-label="What became of them">
        {OUTCOMES.map((one) => (
          <button
            key={one}
            type="button"
            aria-pressed={outcome === one}
            onClick={() => setQuery({ outcome: one })}
          >
            {one || "all"}
          </button>
        ))}
      </div>
      <Problem text={problem} />
      {totals && (
        <p class="inside">
          {count(totals["made"] ?? 0)} made, {count(totals["kept"] ?? 0)} kept,{" "}
          {count(totals["broken"] ?? 0)} broken:{" "}
          {percent(totals["kept"] ?? 0, (totals["kept"] ?? 0) + (totals["broken"] ?? 0))} of those
          that are decided were kept.
          {causes.size > 0 &&
            ` Broken by: ${[...causes].map(([cause, n]) => `${cause} (${n})`).join(", ")}.`}
        </p>
      )}
      {value && !value.promises.length && (
        <Empty>
          {outcome ? (
            `No promise is ${outcome}.`
          ) : (
            <>
              No job has a deadline. A spec asks for one by <code>finish_by</code>; a virtual
              cluster with the policy <code>deadline</code> promises.{" "}
              <Command line="skep plan job.yaml" />
            </>
          )}
        </Empty>
      )}
      {value && value.promises.length > 0 && (
        <div class="wide" tabIndex={0} role="region" aria-label="Promises">
          <table class="plain">
            <thead>
              <tr>
                <th>Job</th>
                <th>Deadline</th>
                <th>Answer</th>
                <th>Became</th>
                <th>Why</th>
              </tr>
            </thead>
            <tbody>
              {value.promises.map((one) => (
                <Row key={one.job} one={one} />
              ))}
            </tbody>
          </table>
        </div>
      )}
      {value && value.total > value.promises.length && (
        <Empty>{count(value.total - value.promises.length)} more are not shown.</Empty>
      )}
    </Card>
  );
}

function Row({ one }: { one: Promised }) {
  return (
    <tr>
      <td>
        <a href={`/jobs/${encodeURIComponent(one.job)}`}>{one.job}</a>{" "}
        <span class="dim">{one.name}</span>
      </td>
      <td>
        <At at={one.due} />
      </td>
      <td>{one.answer}</td>
      <td>{one.outcome ? <State state={one.outcome} /> : "–"}</td>
      <td>
        {one.cause ? (
          <>
            <code class="chip">{one.cause}</code> {one.detail}
          </>
        ) : (
          one.text
        )}
      </td>
    </tr>
  );
}
