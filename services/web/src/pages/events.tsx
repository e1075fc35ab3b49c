// What happened in the whole cluster, the newest first: the events of all jobs that one may see.

import { answered, api } from "../api";
import { useAsked, useSettled } from "../asking";
import { count } from "../format";
import { jobs, vcs } from "../live";
import { At, Card, Command, Empty, Problem } from "../parts/basics";
import { query, setQuery } from "../router";

const SHOWN = 200;
/** Rows of jobs change more often than anybody reads. */
const AGAIN_MS = 3000;

/** The page. `?vc=nlp` and `?q=suspend` narrow it. */
export function EventsPage() {
  const vc = query.value.get("vc") ?? "";
  const wanted = query.value.get("q") ?? "";
  const changes = useSettled(happened(), AGAIN_MS);
  const { value, problem } = useAsked(
    () =>
      answered(api.GET("/v1/events", { params: { query: { limit: SHOWN, ...(vc && { vc }) } } })),
    [vc, changes],
  );
  const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  const events = [...(value?.events ?? [])].reverse().filter((event) => {
    const text =
      `${event.job} ${event.vc} ${event.kind} ${event.text} ${event.reason} ${event.node} ${event.owner}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const names = vcs.all.value.map((row) => row.vc).sort();
  return (
    <>
      <div class="title">
        <h1>Events</h1>
        <span class="dim" role="status">
          {value ? `${count(events.length)} shown of the latest ${count(value.events.length)}` : ""}
        </span>
        <span class="more">
          <Command line={`skep events -f${vc ? ` --vc ${vc}` : ""}`} />
        </span>
      </div>
      <Problem text={problem} />
      <div class="controls">
        <input
          type="search"
          placeholder="Search jobs, nodes, owners, reasons …"
          aria-label="Search"
          value={wanted}
          onInput={(event) => setQuery({ q: event.currentTarget.value })}
        />
        <label>
          <span class="hidden">Virtual cluster</span>
          <select value={vc} onChange={(event) => setQuery({ vc: event.currentTarget.value })}>
            <option value="">All virtual clusters</option>
            {names.map((name) => (
              <option key={name} value={name}>
                {name}
              </option>
            ))}
          </select>
        </label>
      </div>
      <Card title="The newest first">
        {!value && !problem && <Empty>Loading …</Empty>}
        {value && !events.length && (
          <Empty>
            {words.length
              ? "None of the latest events has these words."
              : "Nothing has happened yet: submit a job."}
          </Empty>
        )}
        <ul class="list">
          {events.map((event) => (
            <li key={event.seq}>
              <div class="what">
                <span class="dim">
                  <At at={event.at} />
                </span>
                {event.job && <a href={`/jobs/${encodeURIComponent(event.job)}`}>{event.job}</a>}
                <span>{event.text}</span>
                {event.reason && <code class="chip">{event.reason}</code>}
                <span class="dim">
                  {[event.vc, event.owner, event.node].filter(Boolean).join(", ")}
                </span>
              </div>
            </li>
          ))}
        </ul>
      </Card>
    </>
  );
}

/** Return a text that changes when something happens to a job, and not when it only trains on. */
function happened(): string {
  let [sum, states] = [0, ""];
  for (const row of jobs.all.value) {
    sum += row.attempt + (row.changing ? 1 : 0) + (row.priority ?? 0);
    states += row.state[0] ?? "";
  }
  return `${sum} ${states}`;
}
