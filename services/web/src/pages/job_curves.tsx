// What a job says about its training, along its mini-batches.

import { answered, api } from "../api";
import { useAsked } from "../asking";
import { many } from "../format";
import { Card, Command, Empty, Problem } from "../parts/basics";
import { Chart } from "../parts/chart";

const COLOURS = ["busy", "good", "honey", "bad", "dim"];

/** One chart for each value that the job reports. */
export function Curves({ job, attempt }: { job: string; attempt: number }) {
  const { value, problem } = useAsked(
    () => answered(api.GET("/v1/jobs/{job}/curve", { params: { path: { job } } })), [job, attempt],
  );
  if (!value) return problem ? <Problem text={problem} /> : <Empty>Loading …</Empty>;
  const names = [...new Set(value.points.flatMap((point) => Object.keys(point.values)))].sort();
  if (!names.length) {
    return (
      <Card title="Curves">
        <Empty>
          It has reported nothing. A script reports by <code>run.report(loss=loss)</code>; losses of
          the Trainers of common libraries are found without.
        </Empty>
      </Card>
    );
  }
  const along = value.points.map((point) => point.step);
  return (
    <>
      <Problem text={problem} />
      {names.map((name, place) => (
        <Card key={name} title={name} aside={<Command line={`skep curve ${job}`} />}>
          <Chart
            label={`${name} of ${job} over ${many(value.points.length, "point")}`} along={along}
            series={[{
              name, colour: COLOURS[place % COLOURS.length] ?? "busy",
              values: value.points.map((point) => point.values[name] ?? null),
            }]}
          />
        </Card>
      ))}
    </>
  );
}
