// The spans of a job as a waterfall: what each service did about it, and when.

import { answered, api, type Schemas } from "../api";
import { useAsked } from "../asking";
import { clock, length, many } from "../format";
import { Card, Command, Empty, Problem, Wide } from "../parts/basics";
import { query, setQuery } from "../router";
import type { Job } from "../rows";

type Span = Schemas["Spanned"];

const SPANS_SHOWN = 400;
/** On a logarithmic axis the first hundredth is about this long. */
const UNIT_NS = 100_000;
const SERVICES = ["gateway", "admission", "allocator", "advisor", "agent", "job"];

/** The waterfall. */
export function Trace({ row }: { row: Job }) {
  const { job } = row;
  const { value, problem } = useAsked(
    () => answered(api.GET("/v1/jobs/{job}/trace", { params: { path: { job } } })),
    [job, row.state, row.attempt, row.changing?.goal],
  );
  if (!value) return problem ? <Problem text={problem} /> : <Empty>Loading …</Empty>;
  const spans = value.spans;
  if (!spans.length) {
    return (
      <Card title="Trace">
        <Empty>No service has told a span of it yet (trace {value.trace_id || "–"}).</Empty>
      </Card>
    );
  }
  const from = Math.min(...spans.map((one) => one.start_ns));
  const to = Math.max(...spans.map((one) => one.end_ns));
  const linear = query.value.get("scale") === "linear";
  const place = placeOf(from, to, linear);
  const shown = spans.slice(0, SPANS_SHOWN);
  return (
    <Card title="Trace" aside={<Command line={`skep trace ${job}`} />}>
      <Problem text={problem} />
      <div class="inside">
        <div class="controls">
          <span class="dim">
            {many(spans.length, "span")} in {length(to - from)} from {clock(from)}; trace{" "}
            <code>{value.trace_id}</code>
          </span>
          <button
            type="button"
            aria-pressed={!linear}
            onClick={() => setQuery({ scale: linear ? "" : "linear" })}
          >
            Logarithmic time
          </button>
        </div>
        <Wide label="Spans">
          <table class="plain waterfall">
            <thead>
              <tr>
                <th>Span</th>
                <th class="right optional">After</th>
                <th class="right">Took</th>
                <th class="when">When</th>
              </tr>
            </thead>
            <tbody>
              {shown.map((one) => (
                <Row key={one.span_id} span={one} from={from} place={place} />
              ))}
            </tbody>
          </table>
        </Wide>
        {spans.length > shown.length && (
          <p class="dim">{many(spans.length - shown.length, "later span")} are not shown.</p>
        )}
      </div>
    </Card>
  );
}

function Row({ span, from, place }: { span: Span; from: number; place: (at: number) => number }) {
  const begin = Math.min(99.4, place(span.start_ns));
  const width = Math.max(0.4, place(span.end_ns) - begin);
  const colour = SERVICES.indexOf(span.service);
  const told = Object.entries(span.attributes)
    .map(([name, one]) => `${name}=${String(one)}`)
    .join(" ");
  return (
    <tr>
      <td title={told}>
        <span class="dim">{span.service}</span> {span.name.replace(`${span.service} `, "")}
      </td>
      <td class="right optional">{length(span.start_ns - from)}</td>
      <td class="right">{took(span.end_ns - span.start_ns)}</td>
      <td class="when">
        <span class="bar" aria-hidden="true">
          <i
            class={`span-${colour < 0 ? "other" : colour}`}
            style={{ marginLeft: `${begin}%`, width: `${Math.min(width, 100 - begin)}%` }}
          />
        </span>
      </td>
    </tr>
  );
}

/** Work of a service is often less than a millisecond. */
const took = (ns: number): string => (ns < 10e6 ? `${(ns / 1e6).toFixed(2)} ms` : length(ns));

/** Return where instants are along the axis, in percent. */
function placeOf(from: number, to: number, linear: boolean): (at: number) => number {
  const all = Math.max(1, to - from);
  if (linear) return (at) => (100 * (at - from)) / all;
  const most = Math.log1p(all / UNIT_NS);
  return (at) => (100 * Math.log1p((at - from) / UNIT_NS)) / most;
}
