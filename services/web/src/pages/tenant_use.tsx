// The GPUs that the jobs of a virtual cluster held over time, against its quota.

import { answered, api } from "../api";
import { useAsked, useSettled } from "../asking";
import { count, NS, now, percent } from "../format";
import { vcs } from "../live";
import { Card, Command, Empty, Problem, Wide } from "../parts/basics";
import { Chart, type Series } from "../parts/chart";
import { VcName } from "../parts/vcs";
import { query, setQuery } from "../router";
import type { Vc } from "../rows";

type Range = "day" | "week" | "month";

const RANGES: Record<Range, { text: string; hours: number; part: string; part_s: number }> = {
  day: { text: "the last day", hours: 24, part: "Hour", part_s: 3600 },
  week: { text: "the last week", hours: 168, part: "Day", part_s: 86_400 },
  month: { text: "the last 30 days", hours: 720, part: "Day", part_s: 86_400 },
};
const DAY_S = 86_400;
/** A new point comes every five minutes: more often there is nothing new to ask for. */
const ANEW_MS = 60_000;
/** Charts on one page: each is a question to the gateway. */
const MOST = 12;

/** Use over time: mean GPUs from each instant (Unix seconds) until the next one. */
interface Use {
  along: number[];
  held: (number | null)[];
  /** Of them, those on which jobs trained and did not lose it; null: it is not known so finely. */
  useful: (number | null)[];
  step_s: number;
}

const isRange = (text: string): text is Range => Object.hasOwn(RANGES, text);

function chosen(): Range {
  const wanted = query.value.get("range") ?? "";
  return isRange(wanted) ? wanted : "day";
}

/** The buttons that choose how far back it goes. */
function Ranges() {
  const range = chosen();
  return (
    <div class="controls">
      <span role="group" aria-label="How far back" class="group">
        {(Object.keys(RANGES) as Range[]).map((one) => (
          <button
            key={one}
            type="button"
            aria-pressed={range === one}
            onClick={() => setQuery({ range: one === "day" ? "" : one })}
          >
            {RANGES[one].text}
          </button>
        ))}
      </span>
    </div>
  );
}

/** The use of one virtual cluster, as a chart and as a table. */
export function UseOverTime({ row }: { row: Vc }) {
  return (
    <>
      <Ranges />
      <One row={row} range={chosen()} table />
    </>
  );
}

/** The use of all virtual clusters, those with the most GPUs first. */
export function UseOfAll() {
  const all = [...vcs.all.value].sort((a, b) => b.gpus - a.gpus || a.vc.localeCompare(b.vc));
  return (
    <>
      <Ranges />
      {!all.length && <Empty>There is no virtual cluster whose use you may see.</Empty>}
      <div class="columns">
        {all.slice(0, MOST).map((row) => (
          <One key={row.vc} row={row} range={chosen()} />
        ))}
      </div>
      {all.length > MOST && (
        <p class="dim">
          The {MOST} with the most GPUs are shown. {count(all.length - MOST)} more: open one in{" "}
          <a href="/tenants">the list</a>.
        </p>
      )}
    </>
  );
}

function One({ row, range, table = false }: { row: Vc; range: Range; table?: boolean }) {
  const changes = useSettled(vcs.version.value, ANEW_MS);
  const { value, problem } = useAsked(() => asked(row.vc, range), [row.vc, range, changes]);
  const line =
    range === "month"
      ? `skep report --by day --vc ${row.vc} --from ${firstDay()}`
      : `skep history --vc ${row.vc} --hours ${RANGES[range].hours}`;
  return (
    <Card
      title={
        table ? (
          "GPUs held by its jobs"
        ) : (
          <>
            <VcName vc={row.vc} /> <span class="dim">GPUs held by its jobs</span>
          </>
        )
      }
      aside={table && <Command line={line} />}
    >
      <Problem text={problem} />
      {!value && !problem && <Empty>Loading …</Empty>}
      {value && <Drawn use={value} row={row} range={range} table={table} />}
    </Card>
  );
}

function Drawn({ use, row, range, table }: { use: Use; row: Vc; range: Range; table: boolean }) {
  const known = use.held.filter((one) => one !== null);
  if (known.length < 2) {
    return (
      <Empty>
        Nothing is known of {RANGES[range].text} yet: there is a point for every{" "}
        {range === "month" ? "day" : "five minutes"}.
      </Empty>
    );
  }
  const mean = known.reduce((sum, one) => sum + one, 0) / known.length;
  const told = (value: number) => value.toFixed(1);
  const series: Series[] = [
    { name: "held", values: use.held, colour: "busy", told, filled: true },
    { name: "useful", values: use.useful, colour: "good", told },
    {
      name: "quota now",
      values: use.along.map(() => row.gpus),
      colour: "honey",
      told: (value) => String(Math.round(value)),
      dashed: true,
    },
  ];
  return (
    <>
      <Chart
        label={`GPUs that jobs of ${row.vc} held over ${RANGES[range].text}, against its ${row.gpus}`}
        times
        height={table ? 220 : 140}
        along={use.along}
        series={series}
      />
      <p class="inside">
        On average {told(mean)} of {count(row.gpus)} GPUs, {percent(mean, row.gpus)} of its quota
        {mean > row.gpus && ": it borrowed the rest"}.
        {table && " The quota is that of now; earlier ones are not kept."}
      </p>
      {table && <Numbers use={use} row={row} range={range} />}
    </>
  );
}

function Numbers({ use, row, range }: { use: Use; row: Vc; range: Range }) {
  const parts = new Map<number, { held_s: number; known_s: number }>();
  const { part, part_s } = RANGES[range];
  use.along.forEach((at, place) => {
    const held = use.held[place];
    if (held === null || held === undefined) return;
    const key = Math.floor(at / part_s) * part_s;
    const sum = parts.get(key) ?? { held_s: 0, known_s: 0 };
    parts.set(key, {
      held_s: sum.held_s + held * use.step_s,
      known_s: sum.known_s + use.step_s,
    });
  });
  return (
    <details class="inside">
      <summary>The same as numbers, by {part.toLowerCase()} (UTC)</summary>
      <Wide label="Use as numbers">
        <table class="plain">
          <thead>
            <tr>
              <th>{part}</th>
              <th class="right">GPUs held, mean</th>
              <th class="right">Of its quota now</th>
              <th class="right">GPU hours</th>
            </tr>
          </thead>
          <tbody>
            {[...parts].map(([at, sum]) => {
              const mean = sum.held_s / sum.known_s;
              return (
                <tr key={at}>
                  <td>{named(at, part_s)}</td>
                  <td class="right">{mean.toFixed(1)}</td>
                  <td class="right">{percent(mean, row.gpus)}</td>
                  <td class="right">{(sum.held_s / 3600).toFixed(1)}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </Wide>
    </details>
  );
}

const named = (at: number, part_s: number): string => {
  const text = new Date(at * 1000).toISOString();
  return part_s >= DAY_S ? text.slice(0, 10) : `${text.slice(0, 10)} ${text.slice(11, 16)}`;
};

const firstDay = (): string =>
  new Date(now.peek() / 1e6 - 29 * DAY_S * 1000).toISOString().slice(0, 10);

const asked = (vc: string, range: Range): Promise<Use> =>
  range === "month" ? ofDays(vc) : ofHours(vc, RANGES[range].hours);

/** Return the use of the last hours, in steps of five minutes. */
async function ofHours(vc: string, hours: number): Promise<Use> {
  const told = await answered(api.GET("/v1/history", { params: { query: { vc, hours } } }));
  const column = (name: string) => {
    const place = told.columns.indexOf(name);
    return told.rows.map((cells) => (cells[place] ?? null) as number | null);
  };
  const held = column("used");
  const useful = column("useful").map((milli, place) =>
    milli === null ? null : ((held[place] ?? 0) * milli) / 1000,
  );
  return { along: column("at").map((at) => (at ?? 0) / NS), held, useful, step_s: told.step_s };
}

/** Return the use of the last 30 days, a day a step. Days are UTC, and today is not over. */
async function ofDays(vc: string): Promise<Use> {
  const from = firstDay();
  const { at, report } = await answered(
    api.GET("/v1/report", { params: { query: { by: "day", vc, from } } }),
  );
  const lines = new Map(report.lines.map((one) => [one.name, one]));
  const first = Date.parse(from) / 1000;
  const along = Array.from({ length: 30 }, (_, day) => first + day * DAY_S);
  // A day without a line had no job; before the first line nothing is known of the cluster.
  const begins = along.findIndex((start) => lines.has(named(start, DAY_S)));
  const of = (take: "held_gpu_ns" | "useful_gpu_ns") =>
    along.map((start, day) => {
      if (begins < 0 || day < begins) return null;
      const ns = lines.get(named(start, DAY_S))?.[take] ?? 0;
      return ns / NS / Math.min(DAY_S, at / NS - start);
    });
  return { along, held: of("held_gpu_ns"), useful: of("useful_gpu_ns"), step_s: DAY_S };
}
