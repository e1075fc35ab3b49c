// One virtual cluster: its cells and who is in them, its people, accounts, promises and settings.

import { answered, api, type Schemas } from "../api";
import { useAnew, useAsked } from "../asking";
import { count, many, percent } from "../format";
import { gpus, vcs } from "../live";
import { Card, Command, Empty, Problem, Tabs } from "../parts/basics";
import { VcName } from "../parts/vcs";
import { nameIn, path, query } from "../router";
import type { Vc } from "../rows";
import { may } from "../session";
import { hrefOf } from "./cluster_cells";
import { Accounts } from "./tenant_accounts";
import { People } from "./tenant_people";
import { Promises } from "./tenant_promises";
import { UseOverTime } from "./tenant_use";
import { lentOf, sayOwned, type Usage } from "./tenants";

/** The page. */
export function TenantPage() {
  const name = nameIn(path.value, "/tenants");
  const row = vcs.get(name);
  const tab = query.value.get("tab") ?? "";
  const { value: usage, problem } = useAnew(
    () => answered(api.GET("/v1/vcs/{vc}/usage", { params: { path: { vc: name } } })),
    vcs.version.value + gpus.version.value,
    [name],
  );
  if (!usage || !row) {
    return problem ? (
      <>
        <h1>{name}</h1>
        <Problem text={problem} />
        <p>
          <a href="/tenants">All virtual clusters</a>
        </p>
      </>
    ) : (
      <Empty>Loading {name} …</Empty>
    );
  }
  const tabs: [string, string][] = [
    ["", "Cells"],
    ["use", "Use over time"],
    ["people", "People"],
    ["accounts", "Accounts"],
    ["promises", "Promises"],
    ["settings", "Policy and templates"],
  ];
  return (
    <>
      <div class="title">
        <h1>{name}</h1>
        <span class="dim">
          <a href="/tenants">Tenants</a>
        </span>
        <span class="more">
          {may("set-vcs") && (
            <a class="button" href="/tenants?tab=file">
              Edit the cluster file
            </a>
          )}
        </span>
      </div>
      <Tiles row={row} usage={usage} />
      <Tabs
        tabs={tabs}
        chosen={tab}
        to={(one) => `/tenants/${encodeURIComponent(name)}${one ? `?tab=${one}` : ""}`}
      />
      {tab === "" && <Cells usage={usage} />}
      {tab === "use" && <UseOverTime row={row} />}
      {tab === "people" && <People vc={name} />}
      {tab === "accounts" && <Accounts vc={name} />}
      {tab === "promises" && <Promises vc={name} made={row.promises_made} />}
      {tab === "settings" && <Settings usage={usage} />}
    </>
  );
}

function Tiles({ row, usage }: { row: Vc; usage: Usage }) {
  return (
    <div class="tiles">
      <div class="tile">
        <b>{sayOwned(row)}</b>
        <span>GPUs in its cells</span>
      </div>
      <div class="tile">
        <b>{count(row.used)}</b>
        <span>of them in use by its jobs, {percent(row.used, row.gpus)}</span>
      </div>
      <div class="tile">
        <b>{count(lentOf(usage))}</b>
        <span>lent to others</span>
      </div>
      <div class="tile">
        <b>{count(row.borrowed)}</b>
        <span>borrowed beyond its cells</span>
      </div>
      <a class="tile" href={`/jobs?vc=${row.vc}&state=running`}>
        <b>{count(row.running)}</b>
        <span>jobs run{row.suspended > 0 && `, ${row.suspended} suspended`}</span>
      </a>
      <a class="tile" href={`/jobs?vc=${row.vc}&state=queued`}>
        <b>{count(row.queued)}</b>
        <span>
          jobs wait
          {row.jobs_max !== null && row.jobs_max < 1_000_000 && `; ${count(row.jobs_max)} at most`}
        </span>
      </a>
    </div>
  );
}

function Cells({ usage }: { usage: Usage }) {
  return (
    <>
      <Card title="Quota" aside={<Command line={`skep vc show ${usage.vc}`} />}>
        {!usage.cells.length && <Empty>It owns no cell: its jobs run on what is idle.</Empty>}
        {usage.cells.length > 0 && (
          <div class="wide" tabIndex={0} role="region" aria-label="Quota">
            <table class="plain">
              <thead>
                <tr>
                  <th>Chain</th>
                  <th>Level</th>
                  <th class="right">GPUs each</th>
                  <th class="right">Owned</th>
                  <th class="right">Bound</th>
                  <th class="right">Free</th>
                  <th class="right">Bad</th>
                </tr>
              </thead>
              <tbody>
                {usage.cells.map((one) => (
                  <tr key={`${one.chain} ${one.level} ${one.pin}`}>
                    <td>
                      <a href={hrefOf(one.chain)}>{one.chain}</a>
                    </td>
                    <td>
                      {one.level}
                      {one.pin && <span class="chip">{one.pin}</span>}
                    </td>
                    <td class="right">{count(one.gpus)}</td>
                    <td class="right">{one.owned}</td>
                    <td class="right">{one.bound}</td>
                    <td class="right">{one.free}</td>
                    <td class="right">{one.bad}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
      </Card>
      <Card title="Where its cells are, and the jobs inside">
        {!usage.bound.length && (
          <Empty>No cell is bound: one is when a job of its own first uses a GPU in it.</Empty>
        )}
        <ul class="list">
          {[...usage.bound]
            .sort((a, b) => b.gpus - a.gpus)
            .slice(0, CELLS_MAX)
            .map((cell) => (
              <BoundCell key={`${cell.chain} ${cell.address}`} cell={cell} vc={usage.vc} />
            ))}
        </ul>
        {usage.bound.length > CELLS_MAX && (
          <Empty>
            {count(usage.bound.length - CELLS_MAX)} smaller ones are not listed:{" "}
            <a href="/cluster?tab=cells">among all cells</a>.
          </Empty>
        )}
      </Card>
      {usage.borrowers.length > 0 && (
        <Card title="What it borrows" aside={<Command line={`skep vc usage ${usage.vc}`} />}>
          <ul class="list">
            {usage.borrowers.map((one) => (
              <li key={one.job} class="within">
                <a href={`/jobs/${encodeURIComponent(one.job)}`}>{one.job}</a> borrows{" "}
                {many(one.gpus, "GPU")} on {one.nodes.join(", ")}
              </li>
            ))}
          </ul>
        </Card>
      )}
    </>
  );
}

/** Cells that are listed, the largest first, and jobs of each: a rack has a thousand. */
const CELLS_MAX = 100;
const JOBS_MAX = 40;

function BoundCell({ cell, vc }: { cell: Schemas["BoundCell"]; vc: string }) {
  return (
    <li>
      <div class="what">
        <a href={hrefOf(cell.chain, cell.address)}>{cell.address}</a>
        <span class="dim">
          {cell.level} of {cell.chain}, {cell.idle} of {many(cell.gpus, "GPU")} idle
          {cell.bad > 0 && `, ${cell.bad} bad`}
          {cell.doomed && ", bad and borne by it"}
        </span>
        {cell.pin && <span class="chip">{cell.pin}</span>}
      </div>
      <div class="many">
        {cell.jobs.slice(0, JOBS_MAX).map((one) => (
          <div key={`${one.job} ${one.borrowed} ${one.reserved}`} class="within">
            {one.job === "?" ? (
              <span class="dim">a job</span>
            ) : (
              <a href={`/jobs/${encodeURIComponent(one.job)}`}>{one.job}</a>
            )}
            {one.vc !== vc && (
              <>
                {" "}
                of <VcName vc={one.vc} />
              </>
            )}
            <span class="dim">
              : {many(one.gpus, "GPU")}
              {one.reserved
                ? ", reserved: it waits for them"
                : one.borrowed
                  ? ", borrowed: it leaves when they are wanted"
                  : ""}
            </span>
          </div>
        ))}
      </div>
      {cell.jobs.length > JOBS_MAX && (
        <div class="dim">and {many(cell.jobs.length - JOBS_MAX, "more job", "more jobs")}</div>
      )}
    </li>
  );
}

function Settings({ usage }: { usage: Usage }) {
  // Those of the cluster file, and those that managers set: no row of the state tells of these.
  const { value, problem } = useAsked(
    () => answered(api.GET("/v1/templates", { params: { query: { vc: usage.vc } } })),
    [usage],
  );
  const templates = value?.templates ?? [];
  return (
    <>
      <Card title="Policy" aside={<Command line="skep policies" />}>
        <dl class="facts inside">
          <dt>Policy</dt>
          <dd>{usage.policy}</dd>
          {Object.entries(usage.options).map(([key, value]) => (
            <>
              <dt>{key}</dt>
              <dd>
                <code>{JSON.stringify(value)}</code>
              </dd>
            </>
          ))}
          <dt>Weight</dt>
          <dd>{usage.weight}, for its share of idle GPUs</dd>
          <dt>Unfinished jobs</dt>
          <dd>{count(usage.jobs_max ?? 0)} at most</dd>
        </dl>
      </Card>
      <Card title="Templates" aside={<Command line={`skep template ls --vc ${usage.vc}`} />}>
        <Problem text={problem} />
        {value && !templates.length && (
          <Empty>
            It has none. An operator sets them in the cluster file, under <code>templates</code>; a
            manager by <Command line={`skep template set NAME template.yaml --vc ${usage.vc}`} />
          </Empty>
        )}
        {templates.map(({ name, about, of, spec, fixed }) => (
          <details key={name} class="inside">
            <summary>
              {name} <span class="chip">of the {of}</span> <span class="dim">{about}</span>
            </summary>
            <pre class="wide" tabIndex={0}>
              {JSON.stringify({ spec, fixed }, null, 2)}
            </pre>
          </details>
        ))}
      </Card>
    </>
  );
}
