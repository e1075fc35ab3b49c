// The cluster file: edited, checked by the line, planned against the jobs that run, and put in force.

import { useEffect, useRef, useState } from "preact/hooks";

import { answered, api, type Schemas } from "../api";
import { useAsked, useSettled } from "../asking";
import { count, many } from "../format";
import { vcs } from "../live";
import { Card, Command, Empty, Problem, State } from "../parts/basics";
import { Confirm } from "../parts/confirm";
import { VcName } from "../parts/vcs";

type Checked = Schemas["ClusterFileChecked"];
type Plan = Schemas["CellsPlan"];
type Finding = Schemas["Finding"];

/** What becomes of a job, by the gateway's word for it: as `skep vc plan` says it. */
const FATES: Record<string, string> = {
  kept: "stays guaranteed",
  opportunistic: "stays opportunistic",
  demoted: "goes on as opportunistic",
  released: "gets other cells reserved",
};
const UNCHANGED = ["kept", "opportunistic"];
const NAME = "cluster.yaml";

/** The editor. What is applied is exactly the text that was planned. */
export function ClusterFile() {
  const settled = useSettled(vcs.version.value, 500);
  const { value: current, problem: away } = useAsked(
    () => answered(api.GET("/v1/cluster-file")),
    [settled],
  );
  const [text, setText] = useState<string | null>(null);
  const [base, setBase] = useState("");
  const [checked, setChecked] = useState<Checked | null>(null);
  const [plan, setPlan] = useState<Plan | null>(null);
  const [asked, setAsked] = useState("");
  const [problem, setProblem] = useState("");
  const [applying, setApplying] = useState(false);
  const box = useRef<HTMLTextAreaElement>(null);
  const read = () => {
    if (!current) return;
    setText(current.text);
    setBase(current.digest);
    edit();
  };
  const edit = () => {
    setChecked(null);
    setPlan(null);
    setProblem("");
  };
  useEffect(() => {
    if (text === null) read();
    // What was asked for here is in force: it is what the text is compared with from now on.
    if (asked && current?.digest === asked) setBase(asked);
  }, [current, asked]);
  if (text === null) return away ? <Problem text={away} /> : <Empty>Loading …</Empty>;

  const check = async (): Promise<Checked | null> => {
    edit();
    try {
      const told = await answered(api.POST("/v1/cluster-file/check", { body: { text } }));
      setChecked(told);
      return told;
    } catch (error) {
      setProblem((error as Error).message);
      return null;
    }
  };
  const makePlan = async () => {
    const told = await check();
    if (!told?.asked) return;
    try {
      setPlan(await answered(api.POST("/v1/cells/plan", { body: told.asked as never })));
    } catch (error) {
      setProblem((error as Error).message);
    }
  };
  const show = (line: number) => {
    const element = box.current;
    if (!element || !line) return;
    const lines = text.split("\n");
    const start = lines.slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0);
    element.focus();
    element.setSelectionRange(start, start + (lines[line - 1]?.length ?? 0));
    element.scrollTop = (line - 4) * LINE_PX;
  };
  const changed = current !== null && current.digest !== base;
  return (
    <div class="cells">
      <div>
        <Card
          title="Cluster file"
          aside={
            <span class="group">
              <button type="button" class="quiet" onClick={() => save(text)}>
                download
              </button>
              <button type="button" class="quiet" onClick={read}>
                read it again
              </button>
            </span>
          }
        >
          <div class="inside">
            {changed && !asked && (
              <Problem text="Another cluster file was set since this one was read. Applying this one takes that back: read it again." />
            )}
            <label class="field">
              <span>
                Chains, pins, virtual clusters and volumes. It is the whole: what is left out is
                taken away.
              </span>
              <Lines text={text} findings={checked?.problems ?? []}>
                <textarea
                  ref={box}
                  class="file"
                  spellcheck={false}
                  wrap="off"
                  value={text}
                  aria-describedby="findings"
                  maxLength={256 * 1024}
                  onInput={(event) => {
                    setText(event.currentTarget.value);
                    setAsked("");
                    edit();
                  }}
                />
              </Lines>
            </label>
            <Problem text={problem} />
            <div class="group">
              <button type="button" onClick={() => void check()}>
                Check
              </button>
              <button type="button" class="strong" onClick={() => void makePlan()}>
                Plan
              </button>
              <button
                type="button"
                class="danger"
                disabled={!plan}
                onClick={() => setApplying(true)}
                title={
                  plan ? "" : "Plan it first: what it means for jobs is shown before it is applied."
                }
              >
                Apply
              </button>
            </div>
            <p class="group">
              <Command line={`skep vc check ${NAME}`} /> <Command line={`skep vc plan ${NAME}`} />{" "}
              <Command line={`skep vc apply ${NAME}`} />
            </p>
          </div>
        </Card>
      </div>
      <div id="findings" aria-live="polite">
        {asked && (
          <Card title="Asked for">
            <p class="inside">
              {current?.digest === asked ? (
                <State state="kept" title="in force" />
              ) : (
                <State state="queued" title="not yet" />
              )}
              {current?.digest === asked ? " It is in force." : " It is not in force yet."}{" "}
              <Command line="skep vc ls" />
            </p>
          </Card>
        )}
        {checked && <Findings checked={checked} onShow={show} />}
        {plan && <PlanShown plan={plan} />}
        {!checked && !asked && (
          <Card title="Check, plan, apply">
            <p class="inside">
              <b>Check</b> says what is wrong, by the line. <b>Plan</b> says what it would mean for
              the jobs that run. <b>Apply</b> puts in force what was planned: no job is stopped by
              it.
            </p>
          </Card>
        )}
      </div>
      {applying && checked?.asked && plan && (
        <Confirm
          onClose={() => setApplying(false)}
          ask={{
            title: "Apply the cluster file",
            verb: "Apply",
            danger: true,
            line: `skep vc apply ${NAME}`,
            text: (
              <p>
                {sayPlan(plan)} No job is stopped by it.
                {changed && " It takes back what was set since you read the file."}
              </p>
            ),
            run: () => answered(api.POST("/v1/admin/vcs", { body: checked.asked as never })),
            done: () => {
              setAsked(checked.asked_digest);
              edit();
            },
          }}
        />
      )}
    </div>
  );
}

const LINE_PX = 20;

/** The text with the numbers of its lines beside it; those with problems are marked. */
function Lines(props: { text: string; findings: Finding[]; children: preact.ComponentChildren }) {
  const wrong = new Set(props.findings.map((one) => one.line));
  const lines = props.text.split("\n").length;
  const gutter = useRef<HTMLDivElement>(null);
  return (
    <div
      class="lined"
      onScrollCapture={(event) => {
        if (gutter.current) gutter.current.scrollTop = (event.target as HTMLElement).scrollTop;
      }}
    >
      <div class="gutter" ref={gutter} aria-hidden="true">
        {Array.from({ length: lines }, (_, place) => (
          <div key={place} class={wrong.has(place + 1) ? "wrong" : ""}>
            {place + 1}
          </div>
        ))}
      </div>
      {props.children}
    </div>
  );
}

function Findings({ checked, onShow }: { checked: Checked; onShow: (line: number) => void }) {
  const { problems, warnings } = checked;
  const short = checked.owned - checked.joined;
  return (
    <Card
      title={problems.length ? many(problems.length, "problem") : "No mistake"}
      aside={
        !problems.length && (
          <span class="dim">
            {count(checked.owned)} of {many(checked.joined, "GPU")} owned
          </span>
        )
      }
    >
      {short > 0 && !problems.length && (
        <p class="inside">
          The virtual clusters own {many(short, "GPU")} more than have joined: those count as bad
          until nodes join. Take some away, or add nodes.
        </p>
      )}
      <ul class="list">
        {[...problems, ...warnings].map((one, place) => (
          <li key={`${one.line} ${one.path} ${one.text}`}>
            <div class="what">
              <State state={place < problems.length ? "bad" : "note"} title={one.reason} />
              {one.line > 0 && (
                <button type="button" class="quiet" onClick={() => onShow(one.line)}>
                  line {one.line}
                </button>
              )}
              <code>{one.path}</code>
            </div>
            <div>
              {one.text}
              {one.suggestion && <span class="dim"> – {one.suggestion}</span>}
            </div>
          </li>
        ))}
      </ul>
    </Card>
  );
}

function sayPlan(plan: Plan): string {
  const jobs = plan.jobs.filter((one) => !UNCHANGED.includes(one.fate) || one.astray.length);
  const changed = plan.vcs.filter((one) => one.changes);
  return [
    changed.length
      ? `${many(changed.length, "virtual cluster")} would change.`
      : "No virtual cluster would change.",
    jobs.length
      ? `${many(jobs.length, "job")} would have another right to its GPUs.`
      : "Every job keeps its place and its right.",
  ].join(" ");
}

function PlanShown({ plan }: { plan: Plan }) {
  const jobs = plan.jobs.filter((one) => !UNCHANGED.includes(one.fate) || one.astray.length);
  const changed = plan.vcs.filter((one) => one.changes);
  return (
    <Card title="What it would mean">
      <p class="inside">{sayPlan(plan)}</p>
      {jobs.length > 0 && (
        <div class="wide scrolled" tabIndex={0} role="region" aria-label="Jobs that it changes">
          <table class="plain">
            <thead>
              <tr>
                <th>Job</th>
                <th>Virtual cluster</th>
                <th class="right">GPUs</th>
                <th>It</th>
              </tr>
            </thead>
            <tbody>
              {jobs.map((one) => (
                <tr key={one.job}>
                  <td>
                    <a href={`/jobs/${encodeURIComponent(one.job)}`}>{one.job}</a>
                  </td>
                  <td>
                    <VcName vc={one.vc} />
                  </td>
                  <td class="right">{one.gpus}</td>
                  <td>
                    {FATES[one.fate] ?? one.fate}
                    {one.astray.length > 0 && (
                      <span class="dim"> (in no cell: {one.astray.join(", ")})</span>
                    )}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {changed.length > 0 && (
        <div class="wide" tabIndex={0} role="region" aria-label="Virtual clusters that it changes">
          <table class="plain">
            <thead>
              <tr>
                <th>Virtual cluster</th>
                <th>What changes</th>
              </tr>
            </thead>
            <tbody>
              {changed.map((one) => (
                <tr key={one.vc}>
                  <td>{one.vc}</td>
                  <td>{sayChange(one)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {plan.missing.length > 0 && (
        <p class="inside">
          {many(plan.missing.length, "node")} of it {plan.missing.length === 1 ? "has" : "have"} not
          joined and {plan.missing.length === 1 ? "counts" : "count"} as bad until then:{" "}
          {plan.missing.slice(0, 20).join(", ")}
        </p>
      )}
    </Card>
  );
}

function sayChange(one: Schemas["VcChange"]): string {
  const { before, after } = one;
  if (!after) return `goes away, with ${many(before?.gpus ?? 0, "GPU")}`;
  if (!before)
    return `is new, with ${many(after.gpus, "GPU")}${one.asked > after.gpus ? ` of ${one.asked}` : ""}`;
  const told = [before.gpus !== after.gpus && `${before.gpus} → ${after.gpus} GPUs`];
  for (const key of [
    "cells",
    "pinned",
    "weight",
    "jobs_max",
    "policy",
    "options",
    "priorities",
  ] as const) {
    const [a, b] = [JSON.stringify(before[key]), JSON.stringify(after[key])];
    if (a !== b) told.push(`${key}: ${a} → ${b}`);
  }
  return told.filter(Boolean).join("; ") || "changes";
}

function save(text: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/yaml" }));
  link.download = NAME;
  link.click();
  URL.revokeObjectURL(link.href);
}
