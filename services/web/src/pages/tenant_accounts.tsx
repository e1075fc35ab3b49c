// What a virtual cluster used: GPU hours by day, person, project and type, of a month or of all days.

import { answered, api, type Schemas } from "../api";
import { useAsked, useSettled } from "../asking";
import { count, length, NS, now, percent } from "../format";
import { vcs } from "../live";
import { Card, Command, Empty, Problem } from "../parts/basics";
import { Chart } from "../parts/chart";
import { query, setQuery } from "../router";

type Report = Schemas["ReportTable"];
type Line = Schemas["ReportLine"];
type By = "user" | "project" | "gpu-type" | "day";

const BY: [By, string][] = [
  ["user", "person"],
  ["project", "project"],
  ["gpu-type", "type of GPU"],
  ["day", "day"],
];
const MONTHS = 6;
const HOUR = 3600 * NS;
/** Figures move while jobs run: they are asked for anew when jobs come and go, at most so often. */
const ANEW_MS = 10_000;

const isBy = (text: string): text is By => BY.some(([by]) => by === text);

/** The accounts of the days that the address names. */
export function Accounts({ vc }: { vc: string }) {
  const wanted = query.value.get("by") ?? "user";
  const by: By = isBy(wanted) ? wanted : "user";
  const from = query.value.get("from") ?? "";
  const to = query.value.get("to") ?? "";
  const changes = useSettled(vcs.version.value, ANEW_MS);
  const ask = (what: By) =>
    answered(
      api.GET("/v1/report", {
        params: { query: { by: what, vc, ...(from && { from }), ...(to && { to }) } },
      }),
    );
  const { value, problem } = useAsked(() => ask(by), [vc, by, from, to, changes]);
  const days = useAsked(() => ask("day"), [vc, from, to, changes]).value;
  const line = `skep report --by ${by} --vc ${vc}${from && ` --from ${from}`}${to && ` --to ${to}`}`;
  return (
    <>
      <div class="controls">
        <span role="group" aria-label="Months" class="group">
          {months().map(([name, first, last]) => (
            <button
              key={name}
              type="button"
              aria-pressed={from === first && to === last}
              onClick={() => setQuery({ from: first, to: last })}
            >
              {name}
            </button>
          ))}
        </span>
        <label>
          From{" "}
          <input
            type="date"
            value={from}
            onChange={(event) => setQuery({ from: event.currentTarget.value })}
          />
        </label>
        <label>
          to{" "}
          <input
            type="date"
            value={to}
            onChange={(event) => setQuery({ to: event.currentTarget.value })}
          />
        </label>
      </div>
      <Problem text={problem} />
      {days && <Days report={days.report} />}
      <Card title="GPU hours" aside={<Command line={line} />}>
        <div class="controls inside">
          <span role="group" aria-label="One line for each" class="group">
            {BY.map(([one, text]) => (
              <button
                key={one}
                type="button"
                aria-pressed={by === one}
                onClick={() => setQuery({ by: one })}
              >
                {text}
              </button>
            ))}
          </span>
          {value && value.report.lines.length > 0 && (
            <button type="button" class="quiet" onClick={() => download(value.report, vc)}>
              download as CSV
            </button>
          )}
        </div>
        {value && <Lines report={value.report} />}
      </Card>
    </>
  );
}

/** Return the last months: name, first and last day; and all days. */
function months(): [string, string, string][] {
  const today = new Date(now.peek() / 1e6);
  const found: [string, string, string][] = [["all days", "", ""]];
  for (let back = 0; back < MONTHS; back += 1) {
    const first = new Date(Date.UTC(today.getUTCFullYear(), today.getUTCMonth() - back, 1));
    const last = new Date(Date.UTC(today.getUTCFullYear(), today.getUTCMonth() - back + 1, 0));
    const name = first.toLocaleDateString("en-GB", { month: "long", timeZone: "UTC" });
    found.push([name, first.toISOString().slice(0, 10), last.toISOString().slice(0, 10)]);
  }
  return found;
}

const hours = (ns: number): string =>
  ns === 0 ? "0" : ns < 10 * HOUR ? (ns / HOUR).toFixed(2) : count(Math.round(ns / HOUR));

function Days({ report }: { report: Report }) {
  if (report.lines.length < 2) return null;
  const of = (take: (line: Line) => number) => report.lines.map((line) => take(line) / HOUR);
  const told = (value: number) => count(Number(value.toPrecision(4)));
  return (
    <Card title="GPU hours by day">
      <Chart
        label={`GPU hours held and useful by day, ${report.first_day} to ${report.last_day}`}
        times
        height={160}
        along={report.lines.map((line) => Date.parse(line.name) / 1000)}
        series={[
          {
            name: "held",
            values: of((line) => line.held_gpu_ns),
            colour: "busy",
            told,
            filled: true,
          },
          { name: "useful", values: of((line) => line.useful_gpu_ns), colour: "good", told },
        ]}
      />
    </Card>
  );
}

function Lines({ report }: { report: Report }) {
  if (!report.lines.length) {
    return (
      <Empty>
        Nothing was used in these days (UTC). Jobs that hold GPUs show here within seconds.
      </Empty>
    );
  }
  return (
    <>
      <div class="wide" tabIndex={0} role="region" aria-label="GPU hours">
        <table class="plain">
          <thead>
            <tr>
              <th>
                <span class="hidden">What</span>
              </th>
              <th class="right">Held</th>
              <th class="right">Useful</th>
              <th class="right">Useful part</th>
              <th class="right">Lost</th>
              <th class="right">Cancelled</th>
              <th class="right">Idle</th>
              <th class="right">Submitted</th>
              <th class="right">Completed</th>
              <th class="right">Failed</th>
              <th class="right">Mean wait</th>
            </tr>
          </thead>
          <tbody>
            {report.lines.map((line) => (
              <LineRow key={`${line.vc} ${line.name}`} line={line} />
            ))}
            <LineRow line={report.total} />
          </tbody>
        </table>
      </div>
      <p class="inside dim">
        GPU hours, {report.first_day} to {report.last_day} (UTC). Useful ones made mini-batches that
        survive; in idle ones nothing trained.
      </p>
    </>
  );
}

function LineRow({ line }: { line: Line }) {
  return (
    <tr>
      <td>{line.name || "(no name)"}</td>
      <td class="right">{hours(line.held_gpu_ns)}</td>
      <td class="right">{hours(line.useful_gpu_ns)}</td>
      <td class="right">{percent(line.useful_gpu_ns, line.held_gpu_ns)}</td>
      <td class="right">{hours(line.lost_gpu_ns)}</td>
      <td class="right">{hours(line.cancelled_gpu_ns)}</td>
      <td class="right">{hours(line.idle_gpu_ns)}</td>
      <td class="right">{count(line.submitted)}</td>
      <td class="right">{count(line.completed)}</td>
      <td class="right">{count(line.failed)}</td>
      <td class="right">{line.started ? length(line.start_wait_ns / line.started) : "–"}</td>
    </tr>
  );
}

const COLUMNS = [
  "name",
  "submitted",
  "started",
  "completed",
  "failed",
  "cancelled",
  "held_gpu_ns",
  "useful_gpu_ns",
  "lost_gpu_ns",
  "cancelled_gpu_ns",
  "idle_gpu_ns",
  "start_wait_ns",
] as const;

/** Save a report as CSV. A name that a spreadsheet would take for a formula is written as text. */
function download(report: Report, vc: string): void {
  const cell = (value: string | number): string => {
    const text = typeof value === "number" ? String(value) : value.replace(/^[=+\-@\t\r]/, "'$&");
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const lines = [
    COLUMNS.join(","),
    ...report.lines.map((line) => COLUMNS.map((key) => cell(line[key])).join(",")),
  ];
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([`${lines.join("\n")}\n`], { type: "text/csv" }));
  link.download = `${vc}-${report.by}-${report.first_day}-${report.last_day}.csv`;
  link.click();
  URL.revokeObjectURL(link.href);
}
