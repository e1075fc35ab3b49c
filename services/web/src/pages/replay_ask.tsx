// Which span is to be replayed, and under which policies.

import { useState } from "preact/hooks";

import { answered, api, type Schemas } from "../api";
import { useAsked } from "../asking";
import { many, NS } from "../format";
import { vcs } from "../live";
import { Card, Command, Problem } from "../parts/basics";

type Policy = Schemas["PolicyTold"];
type Given = { name: string; options?: Record<string, unknown> };

/** Spans that end now, by their length in seconds. */
const SPANS: [string, number][] = [
  ["the last hour", 3600],
  ["the last day", 86_400],
  ["the last week", 7 * 86_400],
  ["the last 31 days", 31 * 86_400],
];
const OTHER = "other";

/** Return policies in words: `nlp by srtf, vision by gandiva`. */
export const sayPolicies = (policies: Record<string, Given>): string =>
  Object.entries(policies)
    .map(([vc, one]) => `${vc} by ${one.name}`)
    .join(", ");

const utc = (at: number): string => new Date(at / 1e6).toISOString().slice(0, 19);

/** Return the `skep` line that does the same. */
export function lineOf(since: number, until: number, policies: Record<string, Given>): string {
  const words = Object.entries(policies).map(([vc, one]) => {
    const options = Object.entries(one.options ?? {}).map(
      ([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`,
    );
    return `--policy '${vc}=${one.name}${options.length ? `:${options.join(",")}` : ""}'`;
  });
  return ["skep replay", `--since ${utc(since)}`, `--until ${utc(until)}`, ...words].join(" ");
}

/** Return the options that differ from nothing, as JSON where they are. */
function optionsOf(typed: Record<string, string>): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(typed)
      .filter(([, text]) => text.trim())
      .map(([name, text]) => {
        try {
          return [name, JSON.parse(text) as unknown];
        } catch {
          return [name, text.trim()];
        }
      }),
  );
}

/** The form. `busy`: the replay that runs, as one does at a time; empty: none. */
export function AskReplay({ busy, onBegun }: { busy: string; onBegun: (replay: string) => void }) {
  const told = useAsked(() => answered(api.GET("/v1/policies")), []);
  const policies = (told.value?.policies ?? []) as Policy[];
  const [length, setLength] = useState("86400");
  const [from, setFrom] = useState(() => utc((Date.now() - 86_400_000) * 1e6).slice(0, 16));
  const [to, setTo] = useState(() => utc(Date.now() * 1e6).slice(0, 16));
  const [names, setNames] = useState<Record<string, string>>({});
  const [options, setOptions] = useState<Record<string, Record<string, string>>>({});
  const [problem, setProblem] = useState("");
  const rows = [...vcs.all.value].sort((a, b) => a.vc.localeCompare(b.vc));
  const span = (): [number, number] =>
    length === OTHER
      ? [Date.parse(`${from}Z`) * 1e6, Date.parse(`${to}Z`) * 1e6]
      : [(Date.now() - Number(length) * 1000) * 1e6, Date.now() * 1e6 - NS];
  const chosen = Object.fromEntries(
    Object.entries(names)
      .filter(([, name]) => name)
      .map(([vc, name]) => [vc, { name, options: optionsOf(options[vc] ?? {}) }]),
  );
  const any = Object.keys(chosen).length > 0;
  const [since, until] = span();
  const begin = () => {
    const [first, last] = span();
    if (Number.isNaN(first) || Number.isNaN(last)) return setProblem("Both times are needed.");
    answered(
      api.POST("/v1/replays", {
        body: { since: Math.round(first), until: Math.round(last), policies: chosen as never },
      }),
    ).then(
      (replay) => {
        setProblem("");
        onBegun(replay.replay);
      },
      (error: Error) => setProblem(error.message),
    );
  };
  return (
    <Card title="What would it have been?">
      <form
        class="inside"
        onSubmit={(event) => {
          event.preventDefault();
          begin();
        }}
      >
        <div class="controls">
          <label class="field small">
            <span>Jobs that were submitted in</span>
            <select value={length} onChange={(event) => setLength(event.currentTarget.value)}>
              {SPANS.map(([text, s]) => (
                <option key={s} value={String(s)}>
                  {text}
                </option>
              ))}
              <option value={OTHER}>another span</option>
            </select>
          </label>
          {length === OTHER && (
            <>
              <label class="field small">
                <span>from (UTC)</span>
                <input
                  type="datetime-local"
                  required
                  value={from}
                  onInput={(event) => setFrom(event.currentTarget.value)}
                />
              </label>
              <label class="field small">
                <span>to (UTC)</span>
                <input
                  type="datetime-local"
                  required
                  value={to}
                  onInput={(event) => setTo(event.currentTarget.value)}
                />
              </label>
            </>
          )}
        </div>
        <div class="choices">
          {rows.map((row) => (
            <VcChoice
              key={row.vc}
              vc={row.vc}
              policy={row.policy}
              policies={policies}
              name={names[row.vc] ?? ""}
              options={options[row.vc] ?? {}}
              onName={(name) => {
                setNames({ ...names, [row.vc]: name });
                setOptions({ ...options, [row.vc]: {} });
              }}
              onOption={(name, value) =>
                setOptions({
                  ...options,
                  [row.vc]: { ...options[row.vc], [name]: value },
                })
              }
            />
          ))}
        </div>
        <Problem text={problem || told.problem} />
        {any && !Number.isNaN(since) && !Number.isNaN(until) && (
          <p>
            <Command line={lineOf(since, until, chosen)} />
          </p>
        )}
        <div class="controls">
          <button class="strong" disabled={!any || busy !== ""}>
            Replay
          </button>
          {busy ? (
            <span class="dim">{busy} runs: one replay does at a time.</span>
          ) : (
            !any && <span class="dim">Choose another policy for a virtual cluster first.</span>
          )}
        </div>
      </form>
    </Card>
  );
}

function VcChoice(props: {
  vc: string;
  policy: string;
  policies: Policy[];
  name: string;
  options: Record<string, string>;
  onName: (name: string) => void;
  onOption: (name: string, value: string) => void;
}) {
  const { vc, policies, name } = props;
  const chosen = policies.find((one) => one.policy === name);
  const options = Object.entries(chosen?.options ?? {});
  return (
    <fieldset>
      <legend>{vc}</legend>
      <label class="field small">
        <span>Policy of {vc}</span>
        <select value={name} onChange={(event) => props.onName(event.currentTarget.value)}>
          <option value="">as it was ({props.policy} now)</option>
          {policies.map((one) => (
            <option key={one.policy} value={one.policy}>
              {one.policy}
            </option>
          ))}
        </select>
      </label>
      {chosen && <p class="dim">{chosen.does.replaceAll("`", "")}</p>}
      {options.length > 0 && (
        <details>
          <summary>{many(options.length, "option")}</summary>
          {options.map(([option, value]) => (
            <label key={option} class="field small">
              <span>{option}</span>
              <input
                value={props.options[option] ?? ""}
                placeholder={JSON.stringify(value)}
                maxLength={200}
                onInput={(event) => props.onOption(option, event.currentTarget.value)}
              />
            </label>
          ))}
        </details>
      )}
    </fieldset>
  );
}
