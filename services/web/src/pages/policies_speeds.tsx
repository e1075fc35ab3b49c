// What mini-batches of models take: where, on how many GPUs, and by how many jobs it is known.

import { useMemo } from "preact/hooks";

import { answered, api, type Schemas } from "../api";
import { useAsked } from "../asking";
import { count, length } from "../format";
import { totals } from "../live";
import { Card, Command, Empty, Problem } from "../parts/basics";
import { type Column, Rows, sorted } from "../parts/rows";
import { query, setQuery } from "../router";

type Model = Schemas["ModelRow"];
type Measured = Schemas["MeasuredAt"];
type Line = Measured & { model: string; type: string; parameters: number | null };

const COLUMNS: Column<Line>[] = [
  {
    key: "model",
    title: "Family",
    width: "minmax(90px, 1.6fr)",
    cell: (row) => <span title={row.model}>{row.model}</span>,
    by: (row) => row.model,
  },
  {
    key: "type",
    title: "GPU type",
    width: "minmax(60px, .8fr)",
    cell: (row) => row.type,
    by: (row) => row.type,
    from: 480,
  },
  {
    key: "gpus",
    title: "GPUs",
    width: "52px",
    right: true,
    cell: (row) => row.gpus,
    by: (row) => row.gpus,
  },
  {
    key: "nodes",
    title: "Nodes",
    width: "56px",
    right: true,
    cell: (row) => row.nodes,
    by: (row) => row.nodes,
    from: 620,
  },
  {
    key: "batch",
    title: "Batch",
    width: "60px",
    right: true,
    cell: (row) => row.batch || "–",
    by: (row) => row.batch,
    from: 720,
  },
  {
    key: "shared",
    title: "Beside others",
    width: "100px",
    cell: (row) => (row.shared ? "yes" : "no"),
    by: (row) => Number(row.shared),
    from: 860,
  },
  {
    key: "step",
    title: "Mini-batch",
    width: "86px",
    right: true,
    cell: (row) => length(row.p50_ns),
    by: (row) => row.p50_ns,
  },
  {
    key: "span",
    title: "Eight in ten",
    width: "minmax(130px, 1fr)",
    right: true,
    cell: (row) => `${length(row.p10_ns)} to ${length(row.p90_ns)}`,
    from: 560,
  },
  {
    key: "jobs",
    title: "Jobs",
    width: "52px",
    right: true,
    cell: (row) => count(row.jobs),
    by: (row) => row.jobs,
    from: 420,
  },
  {
    key: "parameters",
    title: "Parameters",
    width: "100px",
    right: true,
    cell: (row) => (row.parameters === null ? "–" : count(row.parameters)),
    by: (row) => row.parameters ?? -1,
    from: 960,
  },
];

/** The table. */
export function Speeds() {
  const sort = query.value.get("sort") || "model";
  const { value, problem } = useAsked(
    () => answered(api.GET("/v1/models")),
    [totals.get("all")?.jobs["running"]],
  );
  const rows = useMemo(
    () => sorted(linesOf((value?.models ?? []) as Model[]), COLUMNS, sort),
    [value, sort],
  );
  if (!value) return problem ? <Problem text={problem} /> : <Empty>Loading …</Empty>;
  return (
    <>
      <Problem text={problem} />
      <Card title="Measured speeds" class="sized" aside={<Command line="skep speeds --measured" />}>
        <Rows
          label="Measured speeds"
          columns={COLUMNS}
          rows={rows}
          sort={sort}
          keyOf={(row) =>
            JSON.stringify([row.model, row.type, row.gpus, row.nodes, row.batch, row.shared])
          }
          onSort={(next) => setQuery({ sort: next })}
          empty={
            <Empty>Nothing was measured yet: a job is once it has made some mini-batches.</Empty>
          }
        />
      </Card>
    </>
  );
}

function linesOf(models: Model[]): Line[] {
  return models.flatMap((one) =>
    one.measured.map((place) => {
      const told: unknown =
        one.fingerprint && (one.fingerprint as Record<string, unknown>)["parameters"];
      return {
        ...place,
        model: one.model,
        type: one.gpu_type,
        parameters: typeof told === "number" ? told : null,
      };
    }),
  );
}
