// The rungs of a search: what trials had when they came there, and which of them went on.

import type { Schemas } from "../api";
import { count, many } from "../format";
import { Card } from "../parts/basics";
import { figure } from "../parts/params";
import { Wide } from "../parts/wide";

type Search = Schemas["SearchDetail"];

interface Came {
  trial: number;
  value: number;
  on: boolean;
}

interface Rung {
  bracket: number;
  place: number;
  step: number;
  last: boolean;
  came: Came[];
}

/** Return the rungs of all brackets. A trial went on if it may run to a later rung. */
export function rungsOf(search: Pick<Search, "rows">): Rung[] {
  const found = new Map<string, Rung>();
  for (const row of search.rows) {
    row.rungs.forEach((step, place) => {
      const key = `${row.bracket}:${place}`;
      const rung = found.get(key) ?? {
        bracket: row.bracket,
        place,
        step,
        last: place === row.rungs.length - 1,
        came: [],
      };
      found.set(key, rung);
      const value = row.reached[place];
      if (value !== undefined) rung.came.push({ trial: row.trial, value, on: row.rung > place });
    });
  }
  return [...found.values()].sort((a, b) => a.bracket - b.bracket || a.place - b.place);
}

/** The rungs as rows of marks, the better the further to the right; nothing without rungs. */
export function Rungs({ search }: { search: Search }) {
  const rungs = rungsOf(search);
  if (!rungs.length) return null;
  const values = rungs.flatMap((rung) => rung.came.map((one) => one.value));
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const up = search.direction === "maximize";
  const place = (value: number) => {
    const part = high > low ? (value - low) / (high - low) : 0.5;
    return `${2 + 96 * (up ? part : 1 - part)}%`;
  };
  const brackets = new Set(rungs.map((rung) => rung.bracket)).size;
  return (
    <Card
      title="Rungs"
      aside={<span class="dim">the best of those that came to a rung go on</span>}
    >
      <Wide label="Rungs">
        <table class="plain rungs">
          <thead>
            <tr>
              {brackets > 1 && <th>Bracket</th>}
              <th>Rung</th>
              <th class="right">Mini-batch</th>
              <th class="right">Came</th>
              <th class="right">Went on</th>
              <th>
                {search.metric} there
                {values.length > 0 && `, ${figure(up ? low : high)} to ${figure(up ? high : low)}`}
              </th>
            </tr>
          </thead>
          <tbody>
            {rungs.map((rung) => {
              const on = rung.came.filter((one) => one.on).length;
              return (
                <tr key={`${rung.bracket}:${rung.place}`}>
                  {brackets > 1 && <td>{rung.bracket + 1}</td>}
                  <td>{rung.place + 1}</td>
                  <td class="right">{count(rung.step)}</td>
                  <td class="right">{count(rung.came.length)}</td>
                  <td class="right">{rung.last ? "–" : count(on)}</td>
                  <td>
                    <div
                      class="strip"
                      role="img"
                      aria-label={`${many(rung.came.length, "trial")} came to rung ${rung.place + 1}; ${rung.last ? "it is the last one" : `${on} went on`}`}
                    >
                      {rung.came.map((one) => (
                        <i
                          key={one.trial}
                          class={one.on || rung.last ? "on" : "off"}
                          style={{ left: place(one.value) }}
                          title={`trial ${one.trial}: ${figure(one.value)}${one.on ? ", went on" : ""}`}
                        />
                      ))}
                    </div>
                  </td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </Wide>
      <p class="legend inside dim">
        <span>
          <i class="dot on" />
          went on, or came to the last rung
        </span>
        <span>
          <i class="dot off" />
          stands there
        </span>
        <span>further to the right is better</span>
      </p>
    </Card>
  );
}
