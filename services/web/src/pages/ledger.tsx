// The ledger: what was tried on running jobs, what it gained, and whether it was kept.

import { useMemo } from "preact/hooks";

import { answered, api, type Schemas } from "../api";
import { useAsked } from "../asking";
import { count, length, many, NS } from "../format";
import { jobs, vcs } from "../live";
import { At, Bar, Card, Command, Empty, Problem, State } from "../parts/basics";
import { type Column, Rows, sorted } from "../parts/rows";
import { gained, Span, spanText } from "../parts/span";
import { Wide } from "../parts/wide";
import { query, setQuery } from "../router";

type Ledger = Schemas["Trials"];
type Tried = Schemas["Tried"];

/** What is tried, in words. */
const KINDS: Record<string, string> = {
  pack: "two jobs share GPUs",
  migrate: "a job moves",
  grow: "a job trains with more workers",
  defrag: "a job moves so that others fit",
  probe: "another size is measured, then undone",
};
const VERDICTS = ["open", "kept", "undone", "void"];
const MOST = 1000;

/** The page. */
export function LedgerPage() {
  const asked = query.value;
  const of = (name: string) => asked.get(name) ?? "";
  // A trial begins and ends with a change of its job.
  const changing = jobs.all.value
    .filter((row) => row.changing)
    .map((row) => row.job)
    .join();
  const { value, problem } = useAsked(
    () =>
      answered(
        api.GET("/v1/trials", {
          params: {
            query: {
              vc: of("vc"),
              job: of("job"),
              kind: of("kind") as "",
              verdict: of("verdict") as "",
              limit: MOST,
            },
          },
        }),
      ),
    [of("vc"), of("job"), of("kind"), of("verdict"), changing],
  );
  const line = [
    "skep ledger",
    ...["vc", "job", "kind", "verdict"].map((name) => of(name) && `--${name} ${of(name)}`),
  ]
    .filter(Boolean)
    .join(" ");
  return (
    <>
      <div class="title">
        <h1>Ledger</h1>
        {value && (
          <span class="dim" role="status">
            {many(value.total, "trial")}
          </span>
        )}
        <span class="more">
          <Command line={line} />
        </span>
      </div>
      <p class="dim">
        A policy tries a change on running jobs, and keeps it only if their measured rates say that
        it was worth it.
      </p>
      <Filters />
      <Problem text={problem} />
      {!value && !problem && <Empty>Loading …</Empty>}
      {value && <Told ledger={value as unknown as Ledger} />}
    </>
  );
}

function Filters() {
  const asked = query.value;
  const choose = (name: string, label: string, all: string, from: string[]) => (
    <label>
      <span class="hidden">{label}</span>
      <select
        value={asked.get(name) ?? ""}
        onChange={(event) => setQuery({ [name]: event.currentTarget.value })}
      >
        <option value="">{all}</option>
        {from.map((one) => (
          <option key={one} value={one}>
            {one}
          </option>
        ))}
      </select>
    </label>
  );
  return (
    <form
      class="controls"
      onSubmit={(event) => {
        event.preventDefault();
        setQuery({ job: String(new FormData(event.currentTarget).get("job") ?? "").trim() });
      }}
    >
      <input
        type="search"
        name="job"
        key={asked.get("job") ?? ""}
        defaultValue={asked.get("job") ?? ""}
        aria-label="Only trials of this job"
        placeholder="A job, such as j17, then Enter"
      />
      {choose("vc", "Virtual cluster", "All virtual clusters", [...vcs.rows.keys()].sort())}
      {choose("kind", "Kind", "All kinds", Object.keys(KINDS))}
      {choose("verdict", "Verdict", "All verdicts", VERDICTS)}
    </form>
  );
}

function Told({ ledger }: { ledger: Ledger }) {
  return (
    <>
      {ledger.totals.length > 0 && (
        <Card title="What came of which kind">
          <Wide label="What came of which kind">
            <table class="plain">
              <thead>
                <tr>
                  <th>Kind</th>
                  <th class="said">What is tried</th>
                  {VERDICTS.map((verdict) => (
                    <th key={verdict} class="right">
                      {verdict}
                    </th>
                  ))}
                  <th class="right">Mean gain of those kept</th>
                </tr>
              </thead>
              <tbody>
                {ledger.totals.map((row) => (
                  <tr key={row.kind}>
                    <td>
                      <b>{row.kind}</b>
                    </td>
                    <td class="dim">{KINDS[row.kind]}</td>
                    <td class="right">{count(row.open)}</td>
                    <td class="right">{count(row.kept)}</td>
                    <td class="right">{count(row.undone)}</td>
                    <td class="right">{count(row.void)}</td>
                    <td class="right">
                      {row.kept_gain_milli === null ? "–" : gained(row.kept_gain_milli)}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </Wide>
        </Card>
      )}
      {ledger.probes.length > 0 && <Probes probes={ledger.probes} />}
      <TrialRows ledger={ledger} />
    </>
  );
}

function Probes({ probes }: { probes: Ledger["probes"] }) {
  return (
    <Card title="What probes took in the last day">
      <ul class="list">
        {probes.map((one) => (
          <li key={one.vc}>
            <div class="what">
              <b>{one.vc}</b> {many(one.probes, "probe")}: {length(one.used_s * NS)} of GPU time of{" "}
              {length(one.most_s * NS)} {one.why && <code class="chip">{one.why}</code>}
            </div>
            <Bar
              label={`${one.used_s} of ${one.most_s} s`}
              parts={[[one.why ? "honey" : "", one.used_s / Math.max(1, one.most_s)]]}
            />
          </li>
        ))}
      </ul>
    </Card>
  );
}

/** Return the ends of the axis on which gains are drawn: round figures around most of them. */
export function axisOf(trials: Tried[]): [number, number] {
  const ends = trials
    .flatMap((row) =>
      row.gain_milli === null || row.gain_milli === undefined
        ? []
        : [Math.abs(row.low_milli ?? 0), Math.abs(row.high_milli ?? 0)],
    )
    .sort((a, b) => a - b);
  const most = ends[Math.ceil(0.95 * (ends.length - 1))] ?? 100;
  const round = Math.max(50, Math.ceil(most / 50) * 50);
  return [-round, round];
}

function columnsOf(ledger: Ledger, [from, to]: [number, number]): Column<Tried>[] {
  return [
    {
      key: "trial",
      title: "Trial",
      width: "54px",
      cell: (row) => row.trial,
      by: (row) => row.trial,
      from: 440,
    },
    {
      key: "kind",
      title: "Kind",
      width: "76px",
      cell: (row) => <span title={KINDS[row.kind]}>{row.kind}</span>,
      by: (row) => row.kind,
      from: 440,
    },
    {
      key: "jobs",
      title: "Jobs",
      width: "minmax(60px, 1fr)",
      cell: (row) => <JobLinks row={row} />,
      by: (row) => row.jobs[0] ?? "",
    },
    {
      key: "vc",
      title: "VC",
      width: "minmax(50px, .7fr)",
      cell: (row) => row.vc,
      by: (row) => row.vc,
      from: 760,
    },
    {
      key: "verdict",
      title: "Verdict",
      width: "88px",
      cell: (row) => <Verdict row={row} />,
      by: (row) => row.verdict ?? "open",
    },
    {
      key: "gain",
      title: `Gain, ${gained(from)} to ${gained(to)}`,
      width: "minmax(112px, 196px)",
      cell: (row) => <Gain row={row} from={from} to={to} />,
      by: (row) => row.gain_milli ?? -Infinity,
    },
    {
      key: "figure",
      title: "Interval",
      width: "232px",
      cell: (row) => <span title={sayGain(row)}>{sayGain(row)}</span>,
      from: 1080,
    },
    {
      key: "expected",
      title: "Expected",
      width: "80px",
      right: true,
      cell: (row) => (expected(row) === null ? "–" : gained(expected(row) ?? 0)),
      by: (row) => expected(row) ?? -Infinity,
      from: 1240,
    },
    {
      key: "begun",
      title: "Began",
      width: "96px",
      right: true,
      cell: (row) => <At at={row.begun_at} />,
      by: (row) => row.begun_at,
      from: 700,
    },
    {
      key: "why",
      title: "Why",
      width: "minmax(120px, 2fr)",
      cell: (row) => <Why row={row} texts={ledger.texts ?? {}} />,
      from: 860,
    },
  ];
}

/** Return the gain that the policy expects over what is needed, in thousandths; null: it does not say. */
const expected = (row: Tried): number | null =>
  row.expected_milli > 0 && row.needed_milli > 0
    ? Math.round((1000 * row.expected_milli) / row.needed_milli) - 1000
    : null;

function JobLinks({ row }: { row: Tried }) {
  return (
    <>
      {row.jobs.map((job, place) => (
        <>
          {place > 0 && ", "}
          <a key={job} href={`/jobs/${encodeURIComponent(job)}`}>
            {job}
          </a>
        </>
      ))}
    </>
  );
}

const Verdict = ({ row }: { row: Tried }) => <State state={row.verdict ?? "open"} />;

const sayGain = (row: Tried): string =>
  row.gain_milli === null || row.gain_milli === undefined
    ? "–"
    : spanText(row.gain_milli, row.low_milli ?? row.gain_milli, row.high_milli ?? row.gain_milli);

function Gain({ row, from, to }: { row: Tried; from: number; to: number }) {
  const gain = row.gain_milli;
  if (gain === null || gain === undefined) return <span class="dim">not measured</span>;
  return (
    <Span
      value={gain}
      low={row.low_milli ?? gain}
      high={row.high_milli ?? gain}
      from={from}
      to={to}
      good={row.verdict === "kept"}
    />
  );
}

function Why({ row, texts }: { row: Tried; texts: Record<string, string> }) {
  const code = row.why ?? row.begun_why;
  const text = [texts[code] ?? code, row.detail].filter(Boolean).join("; ");
  return (
    <span class="dim" title={`${code}: ${text}`}>
      {text}
    </span>
  );
}

function TrialRows({ ledger }: { ledger: Ledger }) {
  const sort = query.value.get("sort") || "-begun";
  const columns = useMemo(() => columnsOf(ledger, axisOf(ledger.trials)), [ledger]);
  const rows = useMemo(() => sorted(ledger.trials, columns, sort), [ledger, sort]);
  const left = ledger.total - ledger.trials.length;
  return (
    <Card
      title="Trials"
      class="sized"
      aside={
        (left > 0 || ledger.forgotten > 0) && (
          <span class="dim">
            {left > 0 && `${count(left)} older ones match and are not shown. `}
            {ledger.forgotten > 0 && `${count(ledger.forgotten)} are in the log alone.`}
          </span>
        )
      }
    >
      <Rows
        label="Trials"
        columns={columns}
        rows={rows}
        keyOf={(row) => String(row.trial)}
        sort={sort}
        onSort={(next) => setQuery({ sort: next })}
        empty={<Nothing />}
      />
    </Card>
  );
}

function Nothing() {
  if ([...query.value.keys()].some((name) => name !== "sort")) {
    return (
      <Empty>
        No trial matches. <a href="/ledger">Show all trials</a>.
      </Empty>
    );
  }
  return (
    <Empty>
      Nothing was tried. Policies such as <code>gandiva</code> and <code>pollux</code> try changes
      of running jobs: <a href="/policies">which policy orders which virtual cluster</a>.
    </Empty>
  );
}
