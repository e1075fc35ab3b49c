// The audit log: who changed what, from where, and why; and what was refused.

import { useMemo, useState } from "preact/hooks";

import { answered, api, type Schemas } from "../api";
import { useAsked } from "../asking";
import { count, NS } from "../format";
import { At, Card, Command, Empty, Problem } from "../parts/basics";
import { quoted } from "../parts/line";
import { type Column, Rows } from "../parts/rows";
import { Word } from "../parts/word";
import { query, setQuery } from "../router";

type Line = Schemas["AuditLine"];

const FILTERS: [string, string][] = [
  ["actor", "Who"],
  ["action", "What was done"],
  ["target", "To what"],
  ["vc", "In which virtual cluster"],
  ["source", "From where"],
];
/** Since when: the words of `skep audit --since`, and what they come to in seconds. */
const SINCE: Record<string, [string, number]> = {
  "1h": ["the last hour", 3600],
  "24h": ["the last day", 86_400],
  "7d": ["the last week", 7 * 86_400],
  "30d": ["the last 30 days", 30 * 86_400],
};
const MOST = 1000;

const columnsOf = (texts: Record<string, string>): Column<Line>[] => [
  { key: "at", title: "When", width: "106px", cell: (row) => <At at={row.at} /> },
  {
    key: "actor",
    title: "Who",
    width: "minmax(64px, 1fr)",
    cell: (row) => <Choice name="actor" value={row.actor} />,
  },
  {
    key: "action",
    title: "What",
    width: "minmax(84px, 1.2fr)",
    cell: (row) => <Choice name="action" value={row.action} />,
  },
  {
    key: "target",
    title: "To what",
    width: "minmax(70px, 1.2fr)",
    cell: (row) => <Choice name="target" value={row.target} />,
    from: 480,
  },
  {
    key: "vc",
    title: "VC",
    width: "minmax(50px, .7fr)",
    cell: (row) => <Choice name="vc" value={row.vc} />,
    from: 820,
  },
  {
    key: "outcome",
    title: "Outcome",
    width: "96px",
    cell: (row) => <Outcome row={row} />,
    from: 400,
  },
  {
    key: "source",
    title: "From where",
    width: "minmax(90px, 1fr)",
    cell: (row) => <Choice name="source" value={row.source} />,
    from: 960,
  },
  {
    key: "why",
    title: "Why",
    width: "minmax(120px, 2fr)",
    cell: (row) => <Why row={row} texts={texts} />,
    from: 700,
  },
];

/** A value that the table can be narrowed to by a click. */
function Choice({ name, value }: { name: string; value: string | undefined }) {
  if (!value) return <span class="dim">–</span>;
  return (
    <button
      type="button"
      class="quiet value"
      title={`Only ${value}`}
      onClick={() => setQuery({ [name]: value })}
    >
      {value}
    </button>
  );
}

const Outcome = ({ row }: { row: Line }) => (
  <Word as={row.outcome === "refused" ? "refused" : "succeeded"} text={row.outcome} />
);

function Why({ row, texts }: { row: Line; texts: Record<string, string> }) {
  const text = [
    row.why && (texts[row.why] ?? row.why),
    row.reason && `“${row.reason}”`,
    row.missed ? `${row.missed} refusals before it have no line` : "",
  ]
    .filter(Boolean)
    .join("; ");
  return (
    <span class="dim" title={[row.why, text].filter(Boolean).join(": ")}>
      {text || "–"}
    </span>
  );
}

/** The page. */
export function AuditPage() {
  const asked = query.value;
  const of = (name: string) => asked.get(name) ?? "";
  const [again, setAgain] = useState(0);
  const since = SINCE[of("since")];
  const refused = of("outcome") === "refused";
  const { value, problem } = useAsked(
    () =>
      answered(
        api.GET("/v1/audit", {
          params: {
            query: {
              limit: MOST,
              ...Object.fromEntries(
                FILTERS.filter(([name]) => of(name)).map(([name]) => [name, of(name)]),
              ),
              ...(refused && { outcome: "refused" }),
              ...(since && { since: Math.round(Date.now() / 1000 - since[1]) * NS }),
            },
          },
        }),
      ),
    [asked.toString(), again],
  );
  const texts = value?.texts ?? {};
  const columns = useMemo(() => columnsOf(texts), [value]);
  const rows = useMemo(() => ((value?.lines ?? []) as Line[]).toReversed(), [value]);
  return (
    <>
      <div class="title">
        <h1>Audit</h1>
        {value && (
          <span class="dim" role="status">
            {count(rows.length)} shown, the latest first
          </span>
        )}
        <span class="more">
          <Command line={lineOf(asked)} />
        </span>
      </div>
      <Filters />
      <Problem text={problem} />
      {problem && !value && (
        <Empty>
          The log is kept in clusters with people: <Command line="skep up --people" />
        </Empty>
      )}
      {value && (
        <Card
          title="Lines of the log"
          class="sized"
          aside={
            <span>
              {value.left_out > 0 && (
                <span class="dim">{count(value.left_out)} older ones match. </span>
              )}
              {value.older > 0 && (
                <span class="dim">{count(value.older)} are in the log alone. </span>
              )}
              <button type="button" class="quiet" onClick={() => setAgain(again + 1)}>
                load the latest
              </button>
            </span>
          }
        >
          <Rows
            label="Lines of the audit log"
            columns={columns}
            rows={rows}
            keyOf={(row) => JSON.stringify([row.at, row.actor, row.action, row.target])}
            empty={
              <Empty>
                {asked.toString() ? (
                  <>
                    No line matches. <a href="/audit">Show all lines</a>.
                  </>
                ) : (
                  "Nothing was changed yet that the log would have."
                )}
              </Empty>
            }
          />
        </Card>
      )}
    </>
  );
}

function Filters() {
  const asked = query.value;
  return (
    <form
      class="controls"
      onSubmit={(event) => {
        event.preventDefault();
        const given = new FormData(event.currentTarget);
        setQuery(
          Object.fromEntries(FILTERS.map(([name]) => [name, String(given.get(name) ?? "").trim()])),
        );
      }}
    >
      {FILTERS.map(([name, label]) => (
        <label key={`${name} ${asked.get(name) ?? ""}`} class="field small">
          <span>{label}</span>
          <input name={name} size={12} defaultValue={asked.get(name) ?? ""} maxLength={128} />
        </label>
      ))}
      <label class="field small">
        <span>Since</span>
        <select
          value={asked.get("since") ?? ""}
          onChange={(event) => setQuery({ since: event.currentTarget.value })}
        >
          <option value="">the beginning</option>
          {Object.entries(SINCE).map(([word, [text]]) => (
            <option key={word} value={word}>
              {text}
            </option>
          ))}
        </select>
      </label>
      <button type="submit">Show</button>
      <button
        type="button"
        aria-pressed={asked.get("outcome") === "refused"}
        onClick={() => setQuery({ outcome: asked.get("outcome") ? "" : "refused" })}
      >
        Only refused
      </button>
      {asked.toString() && <a href="/audit">all lines</a>}
    </form>
  );
}

function lineOf(asked: URLSearchParams): string {
  const words = FILTERS.map(
    ([name]) => asked.get(name) && `--${name} ${quoted(asked.get(name) ?? "")}`,
  );
  return [
    "skep audit",
    ...words,
    asked.get("outcome") === "refused" && "--refused",
    asked.get("since") && `--since ${asked.get("since")}`,
  ]
    .filter(Boolean)
    .join(" ");
}
