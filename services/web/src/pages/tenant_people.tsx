// The people of a virtual cluster: whose jobs come first, what each may have, and their roles.

import { useState } from "preact/hooks";

import { answered, api } from "../api";
import { useAnew, useAsked } from "../asking";
import { count, length, NS } from "../format";
import { vcs } from "../live";
import { Card, Command, Empty, Problem } from "../parts/basics";
import { Confirm, type Confirmed } from "../parts/confirm";
import { grant, revoke, type Role, RoleChoice } from "../parts/roles";
import { may } from "../session";

const LIMITS: Record<string, string> = {
  running: "jobs with GPUs",
  gpus: "GPUs",
  queued: "jobs that wait",
};

/** Fair share, and roles. */
export function People({ vc }: { vc: string }) {
  return (
    <>
      <Fair vc={vc} />
      <Roles vc={vc} />
    </>
  );
}

function Fair({ vc }: { vc: string }) {
  const { value, problem } = useAnew(
    () => answered(api.GET("/v1/fair", { params: { query: { vc } } })),
    vcs.version.value,
    [vc],
  );
  const told = value?.vcs[0];
  const most = Object.entries(told?.limits ?? {}).filter(([, n]) => n !== null);
  return (
    <Card title="Whose jobs come first" aside={<Command line={`skep fair --vc ${vc}`} />}>
      <Problem text={problem} />
      {!value && !problem && <Empty>Loading …</Empty>}
      {value && !told && (
        <Empty>
          It does not share by person: its jobs are ordered by its policy. <code>fair_share</code>{" "}
          in the cluster file changes that.
        </Empty>
      )}
      {told && (
        <p class="inside">
          {told.half_life_s > 0
            ? `The person that used least comes first; use counts half after ${length(told.half_life_s * NS)}.`
            : "People are limited, and not ordered by use."}
          {most.length > 0 &&
            ` Each may have at most: ${most.map(([what, n]) => `${count(Number(n))} ${LIMITS[what] ?? what}`).join(", ")}.`}
        </p>
      )}
      {told && told.people.length > 0 && (
        <div class="wide" tabIndex={0} role="region" aria-label="Fair share">
          <table class="plain">
            <thead>
              <tr>
                <th class="right">Turn</th>
                <th>Person</th>
                <th class="right">Weight</th>
                <th class="right">Used</th>
                <th class="right">Its part</th>
                <th class="right">Has used</th>
                <th class="right">Jobs</th>
                <th class="right">GPUs</th>
                <th class="right">Wait</th>
              </tr>
            </thead>
            <tbody>
              {told.people.map((one) => (
                <tr key={one.person}>
                  <td class="right">{one.order}</td>
                  <td>{one.person || "(whole VC)"}</td>
                  <td class="right">{one.weight}</td>
                  <td class="right">{(one.used_gpu_s / 3600).toFixed(2)} GPU h</td>
                  <td class="right">{Math.round(100 * one.part)} %</td>
                  <td class="right">
                    {one.times === null ? "–" : `${one.times.toFixed(1)} times its part`}
                  </td>
                  <td class="right">{count(one.jobs)}</td>
                  <td class="right">{count(one.gpus)}</td>
                  <td class="right">{count(one.queued)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Card>
  );
}

function Roles({ vc }: { vc: string }) {
  const [ask, setAsk] = useState<Confirmed | null>(null);
  const [asks, setAsks] = useState(0);
  const [person, setPerson] = useState("");
  const [role, setRole] = useState<Role>("submitter");
  const { value, problem } = useAsked(() => answered(api.GET("/v1/people")), [vc, asks]);
  const manages = may("manage-vc-people", vc);
  const people = (value?.people ?? []).filter((one) => one.roles[vc] !== undefined);
  const again = () => setAsks((n) => n + 1);
  return (
    <Card title="Roles" aside={<Command line="skep role ls" />}>
      <Problem text={problem} />
      {!value && !problem && <Empty>Loading …</Empty>}
      {value && !people.length && (
        <Empty>
          {manages
            ? "Nobody has a role here yet: grant one below."
            : "You see your own role only; a manager sees all."}
        </Empty>
      )}
      {people.length > 0 && (
        <div class="wide" tabIndex={0} role="region" aria-label="Roles of people">
          <table class="plain">
            <thead>
              <tr>
                <th>Person</th>
                <th>Role</th>
                <th>Login</th>
                <th>
                  <span class="hidden">Actions</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {people.map((one) => (
                <tr key={one.person}>
                  <td>
                    <a href={`/people/${encodeURIComponent(one.person)}`}>{one.person}</a>{" "}
                    <span class="dim">{one.full_name}</span>
                    {one.disabled && <span class="chip">disabled</span>}
                  </td>
                  <td>
                    {one.roles[vc]}
                    {one.groups[vc] !== undefined && <span class="dim"> (by a group)</span>}
                  </td>
                  <td>{one.login}</td>
                  <td>
                    {manages && (
                      <button
                        type="button"
                        class="quiet"
                        onClick={() => setAsk(revoke(one.person, vc, again))}
                      >
                        revoke
                      </button>
                    )}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {manages && value && (
        <form
          class="controls inside"
          onSubmit={(event) => {
            event.preventDefault();
            setAsk(grant(person.trim(), role, vc, again));
          }}
        >
          <input
            required
            aria-label="Person"
            placeholder="Name of a person"
            list="people"
            value={person}
            onInput={(event) => setPerson(event.currentTarget.value)}
          />
          <datalist id="people">
            {value.people.map((one) => (
              <option key={one.person} value={one.person} />
            ))}
          </datalist>
          <RoleChoice role={role} onRole={setRole} />
          <button>Grant</button>
        </form>
      )}
      {ask && <Confirm ask={ask} onClose={() => setAsk(null)} />}
    </Card>
  );
}
