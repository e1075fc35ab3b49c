// The tenants: what each virtual cluster owns, uses, borrows and lends, and how that is divided.

import { answered, api, type Schemas } from "../api";
import { useAnew } from "../asking";
import { count, many, percent } from "../format";
import { vcs } from "../live";
import { Bar, Card, Command, Empty, Problem, Tabs } from "../parts/basics";
import { VcName } from "../parts/vcs";
import { query } from "../router";
import type { Vc } from "../rows";
import { may } from "../session";
import { UseOfAll } from "./tenant_use";
import { ClusterFile } from "./tenants_file";

export type Usage = Schemas["VcUsage"];

/** The page of all virtual clusters. */
export function TenantsPage() {
  const wanted = query.value.get("tab") ?? "";
  const tab = wanted === "file" && !may("set-vcs") ? "" : wanted;
  return (
    <>
      <div class="title">
        <h1>Tenants</h1>
        <span class="dim" role="status">
          {many(vcs.all.value.length, "virtual cluster")}
        </span>
        <span class="more">{tab === "" && <Command line="skep vc ls" />}</span>
      </div>
      <Tabs
        tabs={[
          ["", "Virtual clusters"],
          ["use", "Use over time"],
          ...(may("set-vcs") ? ([["file", "Cluster file"]] as [string, string][]) : []),
        ]}
        chosen={tab}
        to={(one) => (one ? `/tenants?tab=${one}` : "/tenants")}
      />
      {tab === "file" ? <ClusterFile /> : tab === "use" ? <UseOfAll /> : <List />}
    </>
  );
}

function List() {
  const { value, problem } = useAnew(() => answered(api.GET("/v1/usage")), vcs.version.value, []);
  const rows = [...vcs.all.value].sort((a, b) => a.vc.localeCompare(b.vc));
  const usage = new Map((value?.vcs ?? []).map((one) => [one.vc, one]));
  if (!rows.length) {
    return (
      <Empty>
        There is no virtual cluster
        {may("set-vcs") ? (
          <>
            : <a href="/tenants?tab=file">write a cluster file</a>, or{" "}
            <Command line="skep vc apply cluster.yaml" />
          </>
        ) : (
          " that you have a role in: ask an operator for one."
        )}
      </Empty>
    );
  }
  return (
    <>
      <Problem text={problem} />
      {(value?.alarms ?? []).map((one) => (
        <Problem key={`${one.rule} ${one.where}`} text={`${one.where}: ${one.text}`} />
      ))}
      <Card title="What each owns and uses">
        <div class="wide" tabIndex={0} role="region" aria-label="Virtual clusters">
          <table class="plain">
            <thead>
              <tr>
                <th>Virtual cluster</th>
                <th class="right">Owns</th>
                <th class="right">Uses of it</th>
                <th>
                  <span class="hidden">Part in use</span>
                </th>
                <th class="right" title="GPUs of its bound cells that jobs of others borrow">
                  Lends
                </th>
                <th class="right">Borrows</th>
                <th class="right">Run</th>
                <th class="right">Wait</th>
                <th>Policy</th>
                <th class="right">Weight</th>
                <th class="right">Promises kept</th>
              </tr>
            </thead>
            <tbody>
              {rows.map((row) => (
                <Line key={row.vc} row={row} usage={usage.get(row.vc)} />
              ))}
            </tbody>
          </table>
        </div>
      </Card>
    </>
  );
}

function Line({ row, usage }: { row: Vc; usage: Usage | undefined }) {
  const lent = usage ? lentOf(usage) : 0;
  return (
    <tr>
      <td>
        <VcName vc={row.vc} />
      </td>
      <td class="right">{sayOwned(row)}</td>
      <td class="right">{count(row.used)}</td>
      <td>
        <Bar
          label={`${row.vc} uses ${row.used} of its ${row.gpus} GPUs and lends ${lent}`}
          parts={[
            ["", row.used / Math.max(1, row.gpus)],
            ["honey", lent / Math.max(1, row.gpus)],
          ]}
        />
      </td>
      <td class="right">{count(lent)}</td>
      <td class="right">{count(row.borrowed)}</td>
      <td class="right">
        <a href={`/jobs?vc=${row.vc}&state=running`}>{count(row.running)}</a>
      </td>
      <td class="right">
        <a href={`/jobs?vc=${row.vc}&state=queued`}>{count(row.queued)}</a>
      </td>
      <td>{row.policy}</td>
      <td class="right">{row.weight}</td>
      <td class="right">{percent(row.promises_kept, row.promises_kept + row.promises_broken)}</td>
    </tr>
  );
}

/** Return the GPUs that a virtual cluster owns, and of how many where nodes have yet to join. */
export const sayOwned = (row: { gpus: number; asked: number }): string =>
  row.gpus >= row.asked ? count(row.gpus) : `${count(row.gpus)} of ${count(row.asked)}`;

/** Return how many GPUs of its cells jobs of other virtual clusters borrow. */
export const lentOf = (usage: Usage): number =>
  usage.bound
    .flatMap((cell) => cell.jobs)
    .filter((job) => job.borrowed && job.vc !== usage.vc)
    .reduce((sum, job) => sum + job.gpus, 0);
