// How often estimates of starts and ends held, as a picture of what was expected against what was seen.

import { answered, api, type Schemas } from "../api";
import { useAsked } from "../asking";
import { count, percent } from "../format";
import { totals } from "../live";
import { Bar, Card, Command, Empty, Problem } from "../parts/basics";
import { VcChoice } from "../parts/listing";
import { Wide } from "../parts/wide";
import { query } from "../router";

type Held = Schemas["EstimatesHeld"];

const SIDE = 260;
const EDGE = 42;
const NOMINAL = 0.8;
/** Fewer outcomes than these say little. */
const FEW = 10;
const COLOURS = ["busy", "good", "honey", "bad", "dim"];
const DASHES = ["", "6 3", "2 3", "9 3 2 3", "1 4"];

/** Return which part of outcomes lies in the middle fifth, two fifths, and so on. */
export function observed(ranks: number[]): number[] {
  const all = ranks.reduce((sum, one) => sum + one, 0);
  const half = ranks.length / 2;
  return Array.from({ length: half }, (_, place) => {
    const middle = ranks.slice(half - place - 1, half + place + 1);
    return all ? middle.reduce((sum, one) => sum + one, 0) / all : 0;
  });
}

/** The picture, and every figure of it in a table. */
export function Calibration() {
  const vc = query.value.get("vc") ?? "";
  // Estimates are judged when jobs start and end.
  const ended = totals.get("all")?.jobs;
  const { value, problem } = useAsked(
    () => answered(api.GET("/v1/calibration", { params: { query: { vc } } })),
    [vc, ended?.["running"], ended?.["succeeded"]],
  );
  if (!value) return problem ? <Problem text={problem} /> : <Empty>Loading …</Empty>;
  const rows = value.estimates as Held[];
  const whole = rows.filter((row) => row.family === null && row.outcomes > 0);
  const line = `skep calibration${vc ? ` --vc ${vc}` : ""}`;
  return (
    <>
      <Problem text={problem} />
      <div class="controls">
        <VcChoice />
        <span class="dim">
          Eight of ten outcomes should lie between P10 and P90 of their estimate: as early as one in
          ten, as late as nine in ten.
        </span>
      </div>
      {!rows.length && (
        <Card title="How often estimates held" aside={<Command line={line} />}>
          <Empty>No estimate was judged yet: that happens when jobs start and end.</Empty>
        </Card>
      )}
      {whole.length > 0 && (
        <Card title="Expected and seen" aside={<Command line={`${line} --svg estimates.svg`} />}>
          <div class="inside reliable">
            <Reliability rows={whole.slice(0, COLOURS.length)} />
            <div>
              <ul class="list plainly">
                {whole.slice(0, COLOURS.length).map((row, place) => (
                  <li key={row.vc + row.what}>
                    <svg class="dash" viewBox="0 0 34 8" aria-hidden="true">
                      <line
                        class={COLOURS[place]}
                        x1="1"
                        x2="33"
                        y1="4"
                        y2="4"
                        stroke-dasharray={DASHES[place]}
                      />
                    </svg>{" "}
                    {row.vc}, {sayWhat(row.what)}: {percent(row.held, row.outcomes)} held
                  </li>
                ))}
              </ul>
              <p class="dim">
                On the diagonal, estimates are as sure as they say. Below it they are too sure,
                above it more careful than they need be.
                {whole.length > COLOURS.length &&
                  ` ${whole.length - COLOURS.length} more are in the table.`}
              </p>
            </div>
          </div>
        </Card>
      )}
      {rows.length > 0 && (
        <Card
          title="All that was judged"
          aside={
            value.left_out > 0 && (
              <span class="dim">
                {count(value.left_out)} more rows are left out: choose a virtual cluster
              </span>
            )
          }
        >
          <Wide label="All that was judged">
            <table class="plain">
              <thead>
                <tr>
                  <th>VC</th>
                  <th>Family</th>
                  <th>Estimated by</th>
                  <th class="right">Judged</th>
                  <th>Held, of which 80 % should</th>
                  <th class="right">Median error</th>
                  <th class="right">Widened</th>
                </tr>
              </thead>
              <tbody>
                {rows.map((row) => (
                  <tr key={`${row.vc} ${row.family} ${row.what}`}>
                    <td>{row.vc}</td>
                    <td>{row.family ?? <span class="dim">all</span>}</td>
                    <td>{sayWhat(row.what)}</td>
                    <td class="right">{count(row.outcomes)}</td>
                    <td>
                      <Bar
                        label={percent(row.held, row.outcomes)}
                        parts={[[standing(row), row.covered ?? 0]]}
                      />
                      {percent(row.held, row.outcomes)}
                      {row.outcomes < FEW && <span class="dim">, too few to tell</span>}
                    </td>
                    <td class="right">{Math.round(100 * row.error)} %</td>
                    <td class="right">{row.widened.toFixed(2)} ×</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </Wide>
        </Card>
      )}
    </>
  );
}

const sayWhat = (what: string): string => what.replaceAll("-", " ");

const standing = (row: Held): string =>
  row.outcomes < FEW ? "dim" : (row.covered ?? 0) >= NOMINAL - 0.1 ? "good" : "bad";

function Reliability({ rows }: { rows: Held[] }) {
  const x = (part: number) => EDGE + SIDE * part;
  const y = (part: number) => 12 + SIDE * (1 - part);
  const label = rows
    .map(
      (row) =>
        `${row.vc}, ${sayWhat(row.what)}: of an expected 80 % ${Math.round(
          100 * (observed(row.ranks)[3] ?? 0),
        )} % were seen`,
    )
    .join("; ");
  return (
    <svg
      class="reliability"
      viewBox={`0 0 ${SIDE + EDGE + 14} ${SIDE + 58}`}
      role="img"
      aria-label={label}
    >
      {[0, 0.2, 0.4, 0.6, 0.8, 1].map((part) => (
        <g key={part}>
          <line class="grid" x1={x(part)} x2={x(part)} y1={y(0)} y2={y(1)} />
          <line class="grid" x1={x(0)} x2={x(1)} y1={y(part)} y2={y(part)} />
          <text x={x(part)} y={y(0) + 17} text-anchor="middle">
            {Math.round(100 * part)}
          </text>
          <text x={x(0) - 7} y={y(part) + 4} text-anchor="end">
            {Math.round(100 * part)}
          </text>
        </g>
      ))}
      <text x={x(0.5)} y={y(0) + 38} text-anchor="middle">
        expected, %
      </text>
      <text x={12} y={y(0.5)} text-anchor="middle" transform={`rotate(-90 12 ${y(0.5)})`}>
        seen, %
      </text>
      <line class="diagonal" x1={x(0)} y1={y(0)} x2={x(1)} y2={y(1)} />
      {rows.map((row, place) => {
        const points: [number, number][] = [
          [0, 0],
          ...observed(row.ranks).map((seen, at): [number, number] => [
            (2 * (at + 1)) / row.ranks.length,
            seen,
          ]),
        ];
        return (
          <g key={row.vc + row.what} class={COLOURS[place]}>
            <polyline
              points={points.map(([a, b]) => `${x(a)},${y(b)}`).join(" ")}
              stroke-dasharray={DASHES[place]}
            />
            {points.slice(1).map(([a, b]) => (
              <circle key={a} cx={x(a)} cy={y(b)} r="3" />
            ))}
          </g>
        );
      })}
    </svg>
  );
}
