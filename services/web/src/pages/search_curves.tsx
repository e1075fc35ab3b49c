// The learning curves of a search's trials in one chart, with the best of them highlighted.

import { useMemo } from "preact/hooks";

import type { Schemas } from "../api";
import { count, many } from "../format";
import { Card, Command, Empty } from "../parts/basics";
import { Chart, type Mark, type Series } from "../parts/chart";
import { figure } from "../parts/params";

type Search = Schemas["SearchDetail"];
type Trial = Schemas["TrialRow"];

/** More curves than these tell nobody anything, and cost the browser much. */
const DRAWN = 60;
const BEST = ["honey", "good", "busy"];

/** Return trials with a curve, the best first. */
export function ranked(search: Pick<Search, "direction">, trials: Trial[]): Trial[] {
  const sign = search.direction === "maximize" ? -1 : 1;
  return trials
    .filter((row) => row.best !== null && row.points.length > 0)
    .sort((a, b) => sign * ((a.best ?? 0) - (b.best ?? 0)));
}

/** Curves by mini-batch. */
export function SearchCurves({ search, trials }: { search: Search; trials: Trial[] }) {
  const found = useMemo(() => ranked(search, trials), [search, trials]);
  const drawn = found.slice(0, DRAWN);
  const { along, series } = useMemo(() => curvesOf(drawn), [found]);
  const best = found.slice(0, BEST.length);
  const aside = <Command line={`skep search plot ${search.search}`} />;
  if (!drawn.length) {
    return (
      <Card title={`Curves of ${search.metric}`} aside={aside}>
        <Empty>
          No trial has reported a value of {search.metric} yet. A script reports it by{" "}
          <code>run.report({search.metric}=…)</code>.
        </Empty>
      </Card>
    );
  }
  const told = best.map((row) => `trial ${row.trial} came to ${figure(row.best)}`).join(", ");
  return (
    <Card title={`Curves of ${search.metric}`} aside={aside}>
      <Chart
        label={`${search.metric} of ${many(drawn.length, "trial")} by mini-batch. The best: ${told}.`}
        along={along}
        series={series}
        marks={marksOf(search)}
        height={280}
        unnamed
        {...(search.target !== null && { least: search.target })}
      />
      <p class="legend inside dim">
        {best.map((row, place) => (
          <span key={row.trial}>
            <i class={`mark ${BEST[place]}`} />
            trial {row.trial}: {figure(row.best)}
          </span>
        ))}
        <span>
          <i class="mark dim" />
          the others
        </span>
        {found.length > DRAWN && (
          <span>
            {count(DRAWN)} of {count(found.length)} are drawn, the best ones
          </span>
        )}
      </p>
    </Card>
  );
}

/** Return all curves along one axis. The best ones come last, and so lie above the others. */
function curvesOf(trials: Trial[]): { along: number[]; series: Series[] } {
  const along = [...new Set(trials.flatMap((row) => row.points.map(([step]) => step)))].sort(
    (a, b) => a - b,
  );
  const series = trials.map((row, place): Series => {
    const at = new Map(row.points.map(([step, value]) => [step, value]));
    const best = BEST[place];
    return {
      name: `trial ${row.trial}`,
      colour: best ?? "dim",
      joined: true,
      values: along.map((step) => at.get(step) ?? null),
      told: figure,
      ...(!best && { faint: true }),
    };
  });
  return { along, series: series.reverse() };
}

/** Return where trials are compared, in the first bracket. */
function marksOf(search: Search): Mark[] {
  const rungs = search.rows.find((row) => row.rungs.length > 0)?.rungs ?? [];
  return rungs.map((step, place) => ({ at: step, text: `rung ${place + 1}`, colour: "dim" }));
}
