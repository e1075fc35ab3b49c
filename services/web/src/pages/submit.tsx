// A job to be submitted: a few fields, the whole spec, and what would become of it.

import { useEffect, useState } from "preact/hooks";

import { answered, api, type Schemas } from "../api";
import { useAsked } from "../asking";
import { clock } from "../format";
import { standing, vcs } from "../live";
import { Card, Command, Empty, Problem } from "../parts/basics";
import { saved } from "../parts/download";
import { OutcomeLines } from "../parts/outcome";
import { again, type Detail, type Spec } from "../parts/spec";
import { go, query } from "../router";
import { may } from "../session";

const LINES = 18;

/** The page. `?from=j3` begins with the spec of a job. */
export function SubmitPage() {
  const from = query.value.get("from") ?? "";
  const [text, setText] = useState("");
  const [old, setOld] = useState<Detail | null>(null);
  const [problem, setProblem] = useState("");
  // Which virtual clusters there are is known once the state is listed.
  const listed = standing.value !== "loading";
  useEffect(() => {
    if (!from) {
      if (listed) setText((before) => before || told(first()));
      return;
    }
    answered(api.GET("/v1/jobs/{job}", { params: { path: { job: from } } })).then(
      (detail) => {
        setOld(detail);
        setText(told(again((detail.spec ?? {}) as Spec)));
      },
      (error: Error) => {
        setProblem(error.message);
        setText(told(first()));
      },
    );
  }, [from, from ? true : listed]);
  const hides = old !== null && !may("see-values", old.vc, old.owner);
  return (
    <>
      <div class="title">
        <h1>{from ? `Submit ${from} again, edited` : "Submit a job"}</h1>
      </div>
      <Problem text={problem} />
      {hides && (
        <p class="problem">
          The values of its environment are not shown to you, and are empty here: fill them in.
        </p>
      )}
      {text ? <Form text={text} onDraft={setText} old={old} /> : <Empty>Loading {from} …</Empty>}
    </>
  );
}

const told = (spec: Spec): string => JSON.stringify(spec, null, 2);

function first(): Spec {
  const own = vcs.all.value.map((row) => row.vc).find((vc) => may("submit", vc));
  return { name: "train", vc: own ?? "", command: "python3 train.py", resources: { gpus: 1 } };
}

/** Return the spec in a text, or what is wrong with it. */
function parsed(text: string): Spec | string {
  try {
    const tree: unknown = JSON.parse(text);
    return tree !== null && typeof tree === "object" && !Array.isArray(tree)
      ? (tree as Spec)
      : "A spec is a JSON object: { … }.";
  } catch (error) {
    return `This is no JSON: ${(error as Error).message}`;
  }
}

function Form(props: { text: string; onDraft: (text: string) => void; old: Detail | null }) {
  const { text, onDraft, old } = props;
  const spec = parsed(text);
  const [plan, setPlan] = useState<Schemas["Plan"] | null>(null);
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState("");
  const [instead, setInstead] = useState(false);
  const [key, setKey] = useState(() => crypto.randomUUID());
  const waits = old && !old.ended_at && may("cancel", old.vc, old.owner);
  const change = (next: string) => {
    onDraft(next);
    setPlan(null);
    setProblem("");
    // Another spec is another job; the same one sent twice is not.
    setKey(crypto.randomUUID());
  };
  const attempt = async (what: string, work: (body: Schemas["JobSpec"]) => Promise<void>) => {
    if (typeof spec === "string") return setProblem(spec);
    setBusy(what);
    setProblem("");
    try {
      await work(spec as unknown as Schemas["JobSpec"]);
    } catch (error) {
      setProblem((error as Error).message);
    }
    setBusy("");
  };
  const look = () =>
    attempt("plan", async (body) => {
      setPlan(null);
      setPlan(await answered(api.POST("/v1/plan", { body })));
    });
  const submit = () =>
    attempt("submit", async (body) => {
      const params = { header: { "Idempotency-Key": key } };
      const made = await answered(api.POST("/v1/jobs", { params, body }));
      if (instead && old) {
        await answered(api.DELETE("/v1/jobs/{job}", { params: { path: { job: old.job } } })).catch(
          (error: Error) => {
            throw new Error(
              `${made.job} was submitted, but ${old.job} was not cancelled: ${error.message}`,
            );
          },
        );
      }
      go(`/jobs/${encodeURIComponent(made.job)}`);
    });
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        void submit();
      }}
    >
      <div class="columns">
        <Card title="The usual">
          <div class="inside">
            {typeof spec === "string" ? (
              <Problem text={spec} />
            ) : (
              <Fields spec={spec} onSpec={(next) => change(told(next))} />
            )}
          </div>
        </Card>
        <Card title="The whole spec" aside={<a href="/v1/docs">every key</a>}>
          <div class="inside">
            <textarea
              class="mono spec"
              rows={LINES}
              spellcheck={false}
              aria-label="Spec as JSON"
              value={text}
              onInput={(event) => change(event.currentTarget.value)}
            />
            <p class="commands">
              <button
                type="button"
                onClick={() => void saved(new Response(text), "job.json", () => undefined)}
              >
                Save as job.json
              </button>{" "}
              <Command line="skep submit job.json" /> <Command line="skep plan job.json" />
            </p>
          </div>
        </Card>
      </div>
      <Problem text={problem} />
      {plan && <Planned plan={plan} />}
      {waits && (
        <p>
          <label>
            <input
              type="checkbox"
              checked={instead}
              onChange={(event) => setInstead(event.currentTarget.checked)}
            />{" "}
            Cancel {old.job} once this one is accepted
          </label>
        </p>
      )}
      <div class="controls">
        <button type="button" disabled={busy !== ""} onClick={() => void look()}>
          {busy === "plan" ? "It is tried …" : "What would become of it?"}
        </button>
        <button class="strong" disabled={busy !== ""}>
          Submit
        </button>
      </div>
    </form>
  );
}

function Planned({ plan }: { plan: Schemas["Plan"] }) {
  const { estimate } = plan;
  return (
    <Card title="What would become of it">
      <div class="inside" role="status">
        <OutcomeLines outcome={plan.outcome} ends={!estimate?.end} />
        {estimate?.end && (
          <p>
            It ends about {clock(estimate.end.p50)}; eight times in ten from{" "}
            {clock(estimate.end.p10)} to {clock(estimate.end.p90)} ({estimate.basis}).
          </p>
        )}
        <p class="dim">Nothing was submitted, and the next moment may be another.</p>
      </div>
    </Card>
  );
}

function Fields({ spec, onSpec }: { spec: Spec; onSpec: (spec: Spec) => void }) {
  const resources = (spec["resources"] ?? {}) as Spec;
  const names = vcs.all.value
    .map((row) => row.vc)
    .filter((vc) => may("submit", vc))
    .sort();
  const set = (name: string, value: unknown) => onSpec({ ...spec, [name]: value });
  const setResource = (name: string, value: unknown) =>
    set("resources", { ...resources, [name]: value });
  const vc = String(spec["vc"] ?? "");
  const command = spec["command"];
  return (
    <>
      <TextField
        name="Name"
        value={String(spec["name"] ?? "")}
        onValue={(value) => set("name", value)}
      />
      <label class="field">
        <span>Virtual cluster</span>
        <select value={vc} onChange={(event) => set("vc", event.currentTarget.value)}>
          {(names.includes(vc) ? names : [vc, ...names]).map((name) => (
            <option key={name} value={name}>
              {name || "choose one"}
            </option>
          ))}
        </select>
      </label>
      <TemplateField
        vc={vc}
        chosen={String(spec["template"] ?? "")}
        onValue={(value) => set("template", value || undefined)}
      />
      {spec["script"] ? (
        <>
          <TextField
            name="Script"
            value={String(spec["script"])}
            onValue={(value) => set("script", value)}
          />
          <TextField
            name="Its arguments, with spaces between"
            value={((spec["args"] ?? []) as unknown[]).join(" ")}
            onValue={(value) => set("args", value.split(" ").filter(Boolean))}
          />
        </>
      ) : Array.isArray(command) ? (
        <p class="dim">Its command is a list of words: edit it in the spec.</p>
      ) : (
        <TextField
          name="Command"
          value={String(command ?? "")}
          onValue={(value) => set("command", value)}
        />
      )}
      <div class="numbers">
        <NumberField
          name="Workers"
          value={resources["workers"] ?? 1}
          least={1}
          onValue={(value) => setResource("workers", value)}
        />
        <NumberField
          name="GPUs of each"
          value={resources["gpus"] ?? 1}
          least={1}
          onValue={(value) => setResource("gpus", value)}
        />
        <NumberField
          name="Priority"
          value={spec["priority"] ?? 0}
          least={0}
          onValue={(value) => set("priority", value)}
        />
      </div>
      <label class="field">
        <span>Class</span>
        <select
          value={String(spec["service_class"] ?? "guaranteed")}
          onChange={(event) => set("service_class", event.currentTarget.value)}
        >
          <option value="guaranteed">guaranteed: on the cells of its virtual cluster</option>
          <option value="opportunistic">opportunistic: on what is idle, and it yields</option>
        </select>
      </label>
    </>
  );
}

/** The templates of a virtual cluster, where it has some: a job has what its template says. */
function TemplateField(props: { vc: string; chosen: string; onValue: (name: string) => void }) {
  const { value } = useAsked(() => answered(api.GET("/v1/templates")), []);
  const own = (value?.templates ?? []).filter((one) => one.vc === props.vc);
  const names = own.map((one) => one.name);
  if (!own.length && !props.chosen) return null;
  const found = own.find((one) => one.name === props.chosen);
  return (
    <>
      <label class="field">
        <span>Template</span>
        <select value={props.chosen} onChange={(event) => props.onValue(event.currentTarget.value)}>
          <option value="">none</option>
          {(names.includes(props.chosen) || !props.chosen ? names : [props.chosen, ...names]).map(
            (name) => (
              <option key={name} value={name}>
                {name}
              </option>
            ),
          )}
        </select>
      </label>
      {found && (
        <details>
          <summary>
            {found.about || "What it says"}; what the spec says goes before it
            {found.fixed.length > 0 && `, but for ${found.fixed.join(", ")}`}
          </summary>
          <pre class="wide" tabIndex={0}>
            {JSON.stringify(found.spec, null, 2)}
          </pre>
        </details>
      )}
    </>
  );
}

function TextField(props: { name: string; value: string; onValue: (value: string) => void }) {
  return (
    <label class="field">
      <span>{props.name}</span>
      <input
        type="text"
        value={props.value}
        onInput={(event) => props.onValue(event.currentTarget.value)}
      />
    </label>
  );
}

function NumberField(props: {
  name: string;
  value: unknown;
  least: number;
  onValue: (value: number) => void;
}) {
  return (
    <label class="field">
      <span>{props.name}</span>
      <input
        type="number"
        min={props.least}
        step="any"
        value={Number(props.value)}
        onInput={(event) => props.onValue(event.currentTarget.valueAsNumber || 0)}
      />
    </label>
  );
}
