// Why a job is where it is, and what would change that, with a button that does it.

import { useState } from "preact/hooks";

import { answered, api, type Schemas } from "../api";
import { useAsked } from "../asking";
import { many } from "../format";
import { Card, Command, Dialog, Empty, Problem, Said } from "../parts/basics";
import { saved } from "../parts/download";
import { OutcomeLines, startText, waits } from "../parts/outcome";
import { shortened, type Spec } from "../parts/spec";
import { go } from "../router";
import type { Job } from "../rows";
import { may } from "../session";
import { Trials } from "./job_trials";

type Option = Schemas["WhatIfOption"];

const WAITS = ["queued", "submitted"];

/** Reasons and, of a job that waits, what would start it. */
export function Why({ row, spec }: { row: Job; spec: Spec | null }) {
  const { job } = row;
  const asking = WAITS.includes(row.state) && !row.tasks && may("ask-what-if", row.vc, row.owner);
  const [chosen, setChosen] = useState<Option | null>(null);
  const { value, problem } = useAsked(
    () => answered(api.GET("/v1/jobs/{job}/why", { params: { path: { job } } })),
    [job, row.state, row.why, row.needs],
  );
  const tried = useAsked(
    async () =>
      asking
        ? (
            await answered(
              api.GET("/v1/jobs/{job}/why", {
                params: { path: { job }, query: { what_if: 1 } },
              }),
            )
          ).what_if
        : null,
    [job, asking, row.state, row.priority],
  );
  if (!value) return problem ? <Problem text={problem} /> : <Empty>Loading …</Empty>;
  const what = tried.value;
  const starts = what?.outcome && ["now", "after"].includes(what.outcome.start);
  return (
    <>
      <Problem text={problem} />
      <Card title={`Why it is ${value.state}`} aside={<Command line={`skep why ${job}`} />}>
        <ul class="list">
          {value.reasons.map((one) => (
            <li key={one.reason + one.needs}>
              <div class="what">
                <span>
                  <Said text={one.text} />
                </span>{" "}
                <code class="chip">{one.reason}</code>
              </div>
              {one.needs && <div class="dim">{one.needs}</div>}
            </li>
          ))}
        </ul>
        {!value.reasons.length && <Empty>There is no reason on record.</Empty>}
      </Card>
      {value.would_change.length > 0 && (
        <Card title={row.ended_at ? "What would help" : "What would change that"}>
          <ul class="list">
            {value.would_change.map((text) => (
              <li key={text}>
                <Said text={text} />
              </li>
            ))}
          </ul>
        </Card>
      )}
      {asking && (
        <Card title="What would start it" aside={<Command line={`skep why ${job} --what-if`} />}>
          <Problem text={tried.problem || what?.problem || ""} />
          {!what && !tried.problem && <Empty>It is tried on a copy of the cluster …</Empty>}
          {starts && what?.outcome && <p class="inside">{startText(what.outcome)}</p>}
          {what && !starts && !what.problem && (
            <Options options={what.options} vain={what.in_vain} row={row} onChoose={setChosen} />
          )}
        </Card>
      )}
      <Trials trials={value.trials ?? []} job={job} />
      {chosen && <Instead row={row} spec={spec} option={chosen} onClose={() => setChosen(null)} />}
    </>
  );
}

function Options(props: {
  options: Option[];
  vain: Option[];
  row: Job;
  onChoose: (one: Option) => void;
}) {
  const { options, vain, row } = props;
  return (
    <>
      {!options.length && <Empty>Nothing that was tried starts it now.</Empty>}
      <ul class="list">
        {options.map((one) => (
          <li key={one.reason + one.value} class="option">
            <div>
              <b>
                {one.text}
                {one.value && `: ${one.value}`}
              </b>{" "}
              <code class="chip">{one.reason}</code>
              <OutcomeLines outcome={one.outcome} />
            </div>
            <Does option={one} row={row} onChoose={props.onChoose} />
          </li>
        ))}
      </ul>
      {vain.length > 0 && (
        <details class="inside">
          <summary>{many(vain.length, "change")} would not start it</summary>
          <ul class="plainly">
            {vain.map((one) => (
              <li key={one.reason + one.value}>
                {one.text}: {one.value}. {waits(one.outcome)}
              </li>
            ))}
          </ul>
        </details>
      )}
    </>
  );
}

function Does(props: { option: Option; row: Job; onChoose: (one: Option) => void }) {
  const { option, row } = props;
  if (
    isPriority(option)
      ? !may("prioritise", row.vc, row.owner)
      : !option.spec ||
        !may("submit", String((option.spec as Spec)["vc"] ?? row.vc)) ||
        !may("cancel", row.vc, row.owner) ||
        !may("see-values", row.vc, row.owner)
  )
    return null;
  return (
    <button type="button" onClick={() => props.onChoose(option)}>
      Do it …
    </button>
  );
}

/** A priority can be changed where the job waits; all other changes need another job. */
const isPriority = (option: Option): boolean => option.reason === "with-a-priority";

/** Confirms a change of a waiting job, shows its effect, and makes it. */
function Instead(props: { row: Job; spec: Spec | null; option: Option; onClose: () => void }) {
  const { row, option } = props;
  const { job } = row;
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  // The same key: pressed twice, it is still one job.
  const [key] = useState(() => crypto.randomUUID());
  const params = { path: { job } };
  const make = async () => {
    setBusy(true);
    setProblem("");
    try {
      if (isPriority(option)) {
        await answered(
          api.POST("/v1/jobs/{job}/priority", {
            params,
            body: { priority: Number(option.value) },
          }),
        );
        props.onClose();
        return;
      }
      const made = await answered(
        api.POST("/v1/jobs", {
          params: { header: { "Idempotency-Key": key } },
          body: option.spec as unknown as Schemas["JobSpec"],
        }),
      );
      try {
        await answered(api.DELETE("/v1/jobs/{job}", { params }));
      } catch (error) {
        throw new Error(
          `${made.job} was submitted, but ${job} was not cancelled: ${(error as Error).message}`,
        );
      }
      go(`/jobs/${encodeURIComponent(made.job)}`);
    } catch (error) {
      setProblem((error as Error).message);
      setBusy(false);
    }
  };
  return (
    <Dialog title={`${job}: ${option.text}`} onClose={props.onClose}>
      <OutcomeLines outcome={option.outcome} />
      {isPriority(option) ? (
        <p>Its priority becomes {option.value}. It keeps its place among those of that priority.</p>
      ) : (
        <>
          <p>It is submitted anew so, and {job} is cancelled. What changes in its spec:</p>
          <pre class="differences">{differences(props.spec ?? {}, option.spec ?? {})}</pre>
        </>
      )}
      <p>
        <Command
          line={
            isPriority(option)
              ? `skep set-priority ${job} ${option.value}`
              : `skep submit new.json && skep cancel ${job}`
          }
        />{" "}
        {!isPriority(option) && (
          <button
            type="button"
            class="quiet"
            onClick={() =>
              void saved(
                new Response(JSON.stringify(option.spec, null, 2)),
                "new.json",
                () => undefined,
              )
            }
          >
            save new.json
          </button>
        )}
      </p>
      <Problem text={problem} />
      <div class="buttons">
        <button type="button" onClick={props.onClose}>
          Leave it
        </button>
        <button type="button" class="strong" disabled={busy} onClick={() => void make()}>
          {isPriority(option) ? "Set the priority" : "Submit it so, and cancel the old one"}
        </button>
      </div>
    </Dialog>
  );
}

/** Return the lines in which two specs differ, with `-` and `+` before them. */
function differences(before: Spec, after: Spec): string {
  const [old, next] = [lines(shortened(before)), lines(shortened(after))];
  const found = [
    ...[...old]
      .filter(([path, text]) => next.get(path) !== text)
      .map(([path, text]) => `- ${path}: ${text}`),
    ...[...next]
      .filter(([path, text]) => old.get(path) !== text)
      .map(([path, text]) => `+ ${path}: ${text}`),
  ];
  return found.join("\n") || "nothing";
}

function lines(tree: unknown, path = ""): Map<string, string> {
  if (tree === null || typeof tree !== "object" || Array.isArray(tree)) {
    return new Map([[path, JSON.stringify(tree)]]);
  }
  return new Map(
    Object.entries(tree).flatMap(([name, value]) => [
      ...lines(value, path ? `${path}.${name}` : name),
    ]),
  );
}
