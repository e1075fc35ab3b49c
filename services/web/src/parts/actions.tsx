// What can be done to jobs: which actions are offered, what each asks for, and the `skep` line.

import { useState } from "preact/hooks";

import { api, answered, type Schemas } from "../api";
import { many } from "../format";
import { go } from "../router";
import type { Job } from "../rows";
import { type Action, may } from "../session";
import { Command, Dialog, Problem } from "./basics";

/** A value that an action takes. */
interface Field {
  name: string;
  text: string;
  kind: "text" | "number" | "checkbox";
  value: string;
}

/** An action on some jobs, ready to be confirmed. */
export interface Ask {
  verb: string;
  text: string;
  danger?: boolean;
  jobs: Job[];
  fields: Field[];
  line: (values: Record<string, string>) => string;
  run: (job: Job, values: Record<string, string>) => Promise<unknown>;
}

interface Kind {
  verb: string;
  text: string;
  action: Action;
  states: string[];
  danger?: boolean;
  fields?: (job: Job) => Field[];
  words?: (values: Record<string, string>) => string;
  command?: string;
  /** Whether it is asked of one job at a time only. */
  single?: boolean;
  run: (job: string, values: Record<string, string>) => Promise<unknown>;
}

const WAITING = ["submitted", "queued"];
const PLACED = ["bound", "running", "suspended"];
const ENDED = ["succeeded", "failed", "cancelled"];

const at = (job: string) => ({ path: { job } });

const KINDS: Kind[] = [
  {
    verb: "suspend",
    text: "Suspend",
    action: "change",
    states: ["running"],
    fields: () => [
      {
        name: "release",
        kind: "checkbox",
        value: "",
        text: "give its GPUs to others meanwhile",
      },
    ],
    words: (values) => (values["release"] ? "--release" : ""),
    run: (job, values) =>
      answered(
        api.POST("/v1/jobs/{job}/suspend", {
          params: at(job),
          body: { release: Boolean(values["release"]) },
        }),
      ),
  },
  {
    verb: "resume",
    text: "Resume",
    action: "change",
    states: ["suspended"],
    run: (job) => answered(api.POST("/v1/jobs/{job}/resume", { params: at(job), body: {} })),
  },
  {
    verb: "checkpoint",
    text: "Checkpoint",
    action: "change",
    states: ["running", "suspended"],
    run: (job) => answered(api.POST("/v1/jobs/{job}/checkpoint", { params: at(job), body: {} })),
  },
  {
    verb: "migrate",
    text: "Migrate",
    action: "change",
    states: ["running", "suspended"],
    fields: () => [
      {
        name: "to",
        kind: "text",
        value: "",
        text: "nodes, with commas between (empty: any others)",
      },
    ],
    words: (values) => (values["to"] ? `--to ${values["to"]}` : ""),
    run: (job, values) =>
      answered(
        api.POST("/v1/jobs/{job}/migrate", {
          params: at(job),
          body: { to: values["to"] ?? "" },
        }),
      ),
  },
  {
    verb: "resize",
    text: "Resize",
    action: "change",
    states: ["running"],
    single: true,
    fields: (job) => [
      {
        name: "workers",
        kind: "number",
        value: String(job.workers),
        text: "workers",
      },
    ],
    words: (values) => `-n ${values["workers"]}`,
    run: (job, values) =>
      answered(
        api.POST("/v1/jobs/{job}/resize", {
          params: at(job),
          body: { workers: Number(values["workers"]) },
        }),
      ),
  },
  {
    verb: "priority",
    text: "Priority",
    action: "prioritise",
    states: WAITING,
    command: "set-priority",
    fields: (job) => [
      {
        name: "priority",
        kind: "number",
        value: String(job.priority),
        text: "priority, 0 to 1000",
      },
    ],
    words: (values) => values["priority"] ?? "",
    run: (job, values) =>
      answered(
        api.POST("/v1/jobs/{job}/priority", {
          params: at(job),
          body: { priority: Number(values["priority"]) },
        }),
      ),
  },
  {
    verb: "hold",
    text: "Hold",
    action: "change",
    states: WAITING,
    run: (job) => answered(api.POST("/v1/jobs/{job}/hold", { params: at(job), body: {} })),
  },
  {
    verb: "release",
    text: "Release",
    action: "change",
    states: WAITING,
    run: (job) => answered(api.POST("/v1/jobs/{job}/release", { params: at(job), body: {} })),
  },
  {
    verb: "requeue",
    text: "Submit again",
    action: "submit",
    states: ENDED,
    run: (job) =>
      answered(api.POST("/v1/jobs/{job}/requeue", { params: at(job), body: { hold: false } })),
  },
  {
    verb: "cancel",
    text: "Cancel",
    action: "cancel",
    states: [...WAITING, ...PLACED],
    danger: true,
    run: (job) => answered(api.DELETE("/v1/jobs/{job}", { params: at(job) })),
  },
];

/** Return what may be done to these jobs: each action with the jobs of them that it fits. */
export function asksFor(rows: Job[]): Ask[] {
  return KINDS.flatMap((kind): Ask[] => {
    const jobs = rows.filter((row) => fits(kind, row));
    const [first] = jobs;
    if (!first || (kind.single && rows.length > 1)) return [];
    return [
      {
        verb: kind.verb,
        text: kind.text,
        jobs,
        fields: kind.fields?.(first) ?? [],
        ...(kind.danger && { danger: true }),
        line: (values) =>
          [
            "skep",
            kind.command ?? kind.verb,
            ...jobs.map((job) => job.job),
            kind.words?.(values) ?? "",
          ]
            .filter(Boolean)
            .join(" "),
        run: (job, values) => kind.run(job.job, values),
      },
    ];
  });
}

function fits(kind: Kind, row: Job): boolean {
  if (!kind.states.includes(row.state) || !may(kind.action, row.vc, row.owner)) return false;
  // One of the two makes sense, as the job is held or not.
  if (kind.verb === "release") return row.why === "held";
  if (kind.verb === "hold") return row.why !== "held";
  return true;
}

/** A button for each action. */
export function ActionButtons(props: { asks: Ask[]; onAsk: (ask: Ask) => void }) {
  return (
    <>
      {props.asks.map((ask) => (
        <button
          key={ask.verb}
          type="button"
          class={ask.danger ? "danger" : ""}
          onClick={() => props.onAsk(ask)}
        >
          {ask.text}
        </button>
      ))}
    </>
  );
}

/** Asks for what an action takes, shows the line that does the same, and does it. */
export function AskDialog(props: {
  ask: Ask;
  onClose: () => void;
  onDone?: (told: unknown[]) => void;
}) {
  const { ask } = props;
  const [values, setValues] = useState<Record<string, string>>(
    Object.fromEntries(ask.fields.map((field) => [field.name, field.value])),
  );
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const confirm = async () => {
    setBusy(true);
    const told = await Promise.allSettled(ask.jobs.map((job) => ask.run(job, values)));
    setBusy(false);
    const refused = told.flatMap((one, place) =>
      one.status === "rejected"
        ? [`${ask.jobs[place]?.job}: ${(one.reason as Error).message}`]
        : [],
    );
    if (refused.length) return setProblem(refused.join("\n"));
    props.onDone?.(told.flatMap((one) => (one.status === "fulfilled" ? [one.value] : [])));
    props.onClose();
    const [first] = told;
    if (ask.verb === "requeue" && ask.jobs.length === 1 && first?.status === "fulfilled") {
      go(`/jobs/${encodeURIComponent((first.value as Schemas["Requeued"]).job)}`);
    }
  };
  const whom =
    ask.jobs.length === 1
      ? `${ask.jobs[0]?.job} ${ask.jobs[0]?.name ?? ""}`
      : many(ask.jobs.length, "job");
  return (
    <Dialog title={`${ask.text}: ${whom}`} onClose={props.onClose}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void confirm();
        }}
      >
        {ask.fields.map((field) => (
          <label key={field.name} class="field">
            <span>{field.text}</span>
            <FieldInput
              field={field}
              value={values[field.name] ?? ""}
              onValue={(value) => setValues({ ...values, [field.name]: value })}
            />
          </label>
        ))}
        <p>
          <Command line={ask.line(values)} />
        </p>
        <Problem text={problem} />
        <div class="buttons">
          <button type="button" onClick={props.onClose}>
            Leave it
          </button>
          <button class={ask.danger ? "danger" : "strong"} disabled={busy}>
            {ask.text}
          </button>
        </div>
      </form>
    </Dialog>
  );
}

function FieldInput(props: { field: Field; value: string; onValue: (value: string) => void }) {
  const { field, value, onValue } = props;
  if (field.kind === "checkbox") {
    return (
      <input
        type="checkbox"
        checked={Boolean(value)}
        onChange={(event) => onValue(event.currentTarget.checked ? "1" : "")}
      />
    );
  }
  const take = (event: { currentTarget: HTMLInputElement }) => onValue(event.currentTarget.value);
  return field.kind === "number" ? (
    <input type="number" min={0} required value={value} onInput={take} />
  ) : (
    <input type="text" value={value} onInput={take} />
  );
}
