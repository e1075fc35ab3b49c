// What happened to a job, newest first.

import { answered, api } from "../api";
import { useAsked } from "../asking";
import { jobs } from "../live";
import { At, Card, Command, Empty, Problem } from "../parts/basics";

/** The events of a job. They are asked for again when its row changes. */
export function Events({ job }: { job: string }) {
  const row = jobs.get(job);
  const key = JSON.stringify([row?.state, row?.attempt, row?.changing, row?.place]);
  const { value, problem } = useAsked(
    () => answered(api.GET("/v1/jobs/{job}/events", { params: { path: { job } } })),
    [job, key],
  );
  const events = [...(value?.events ?? [])].reverse();
  return (
    <Card title="Events" aside={<Command line={`skep events ${job} -f`} />}>
      <Problem text={problem} />
      {value && !events.length && <Empty>Nothing has happened to it yet.</Empty>}
      <ul class="list">
        {events.map((event) => (
          <li key={event.seq}>
            <div class="what">
              <span class="dim">
                <At at={event.at} />
              </span>
              <span>{event.text}</span>
              {event.reason && <code class="chip">{event.reason}</code>}
            </div>
          </li>
        ))}
      </ul>
    </Card>
  );
}
