// Policies and models: which policy orders which virtual cluster, what learned models advise and how
// far they have come, how often estimates held, and what mini-batches of models take.

import { answered, api, type Schemas } from "../api";
import { useAsked } from "../asking";
import { vcs } from "../live";
import { Card, Command, Empty, Problem, Tabs } from "../parts/basics";
import { Wide } from "../parts/wide";
import { Word } from "../parts/word";
import { query } from "../router";
import { may } from "../session";
import { Calibration } from "./policies_calibration";
import { LearnedModels } from "./policies_models";
import { Speeds } from "./policies_speeds";

type Vc = Schemas["VcRow"];
type Policy = Schemas["PolicyTold"];

const TABS: [string, string][] = [
  ["", "Who is ordered how"],
  ["models", "Learned models"],
  ["estimates", "Estimates"],
  ["speeds", "Speeds"],
];

/** The page. */
export function PoliciesPage() {
  const tab = query.value.get("tab") ?? "";
  return (
    <>
      <div class="title">
        <h1>Policies and models</h1>
      </div>
      <Tabs tabs={TABS} chosen={tab} to={(one) => (one ? `/policies?tab=${one}` : "/policies")} />
      {tab === "" && <Ordered />}
      {tab === "models" && <Models />}
      {tab === "estimates" && <Calibration />}
      {tab === "speeds" && <Speeds />}
    </>
  );
}

/** Ask for the virtual clusters, and again when a policy or what waits and runs changes. */
function useVcs() {
  const key = vcs.all.value.map((row) => [row.vc, row.policy, row.running, row.queued]);
  return useAsked(() => answered(api.GET("/v1/vcs")), [JSON.stringify(key)]);
}

function Models() {
  const { value, problem } = useVcs();
  if (!value) return problem ? <Problem text={problem} /> : <Empty>Loading …</Empty>;
  return <LearnedModels vcs={value.vcs as Vc[]} problem={problem} />;
}

function Ordered() {
  const { value, problem } = useVcs();
  const all = useAsked(() => answered(api.GET("/v1/policies")), []);
  if (!value) return problem ? <Problem text={problem} /> : <Empty>Loading …</Empty>;
  const policies = new Map((all.value?.policies ?? []).map((one) => [one.policy, one as Policy]));
  const rows = value.vcs as Vc[];
  return (
    <>
      <Problem text={problem || all.problem} />
      <Card title="Virtual clusters" aside={<Command line="skep vc ls" />}>
        {!rows.length && (
          <Empty>You see no virtual cluster. A manager of one can give you a role in it.</Empty>
        )}
        {rows.length > 0 && (
          <Wide label="Virtual clusters">
            <table class="plain">
              <thead>
                <tr>
                  <th>VC</th>
                  <th>Policy</th>
                  <th class="said">What it does</th>
                  <th>Options</th>
                  <th>Followed now</th>
                </tr>
              </thead>
              <tbody>
                {rows.map((row) => (
                  <VcLine key={row.vc} row={row} policy={policies.get(row.policy)} />
                ))}
              </tbody>
            </table>
          </Wide>
        )}
      </Card>
      <Card title="What there is" aside={<Command line="skep policies" />}>
        <details class="inside" open={rows.length === 0}>
          <summary>{policies.size} policies, with their options and where they are from</summary>
          <Wide label="Policies">
            <table class="plain">
              <thead>
                <tr>
                  <th>Policy</th>
                  <th class="said">What it does</th>
                  <th>Options and defaults</th>
                  <th>Source</th>
                </tr>
              </thead>
              <tbody>
                {[...policies.values()].map((one) => (
                  <tr key={one.policy}>
                    <td>
                      <b>{one.policy}</b>
                    </td>
                    <td>{one.does.replaceAll("`", "")}</td>
                    <td>
                      <Options options={one.options} />
                    </td>
                    <td class="dim">{one.source}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </Wide>
        </details>
      </Card>
      {may("set-vcs") && (
        <p class="dim">
          A policy is part of the cluster's file: <Command line="skep vc apply cluster.yaml" />
        </p>
      )}
    </>
  );
}

function VcLine({ row, policy }: { row: Vc; policy: Policy | undefined }) {
  return (
    <tr>
      <td>
        <a href={`/jobs?vc=${encodeURIComponent(row.vc)}`}>{row.vc}</a>
      </td>
      <td>
        <b>{row.policy}</b>
      </td>
      <td>{policy?.does.replaceAll("`", "")}</td>
      <td>
        <Options options={row.options} />
      </td>
      <td>
        {row.following ? (
          <a href="/policies?tab=models">
            <Word
              as={row.following.follows ? "running" : "drained"}
              title={row.following.text}
              text={row.following.follows ? "its model" : `its rule ${row.following.rule}`}
            />
          </a>
        ) : (
          <span class="dim">the policy</span>
        )}
      </td>
    </tr>
  );
}

function Options({ options }: { options: Record<string, unknown> }) {
  const all = Object.entries(options);
  if (!all.length) return <span class="dim">none</span>;
  return (
    <span class="chips">
      {all.map(([name, value]) => {
        const text =
          typeof value === "string" && value.length > 16
            ? `${value.slice(0, 12)}…`
            : JSON.stringify(value);
        return (
          <code key={name} class="chip" title={JSON.stringify(value)}>
            {name}: {text}
          </code>
        );
      })}
    </span>
  );
}
