// One person: what it is known by, its roles and its tokens. `/me` is the one that is logged in.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

import { answered, api } from "../api";
import { useAsked } from "../asking";
import { vcs } from "../live";
import { At, Card, Command, Empty, Problem, Wide } from "../parts/basics";
import { Confirm, type Confirmed } from "../parts/confirm";
import { quoted } from "../parts/line";
import { grant, revoke, type Role, RoleChoice } from "../parts/roles";
import { Tokens } from "../parts/tokens";
import { VcName } from "../parts/vcs";
import { Word } from "../parts/word";
import { go, nameIn, path } from "../router";
import { may, me } from "../session";
import type { Person } from "./people";

/** The page of any person. */
export function PersonPage() {
  return <Shown name={nameIn(path.value, "/people")} />;
}

/** The page of the one that is logged in. */
export function MePage() {
  const who = me.value;
  if (who?.person) return <Shown name={who.person} />;
  return (
    <>
      <div class="title">
        <h1>{who?.name}</h1>
        <span class="more">
          <Command line="skep whoami" />
        </span>
      </div>
      <Card title="Not a person">
        <Empty>
          This token is {who?.vc ? `the one of ${who.vc}` : "the operator's"} in the file of the
          gateway: it is changed there, and the audit log has no person for it. People have tokens
          of their own, which can be revoked one by one
          {may("manage-people") ? (
            <>
              : <a href="/people">add people</a>, or start the cluster with{" "}
              <Command line="skep up --people" />
            </>
          ) : (
            ": ask an operator for an account."
          )}
        </Empty>
      </Card>
    </>
  );
}

function Shown({ name }: { name: string }) {
  const own = name === me.value?.person;
  const [asks, setAsks] = useState(0);
  const [ask, setAsk] = useState<Confirmed | null>(null);
  const { value, problem } = useAsked(() => answered(api.GET("/v1/people")), [name, asks]);
  const person = value?.people.find((one) => one.person === name);
  const again = () => setAsks((n) => n + 1);
  if (!person) {
    return (
      <>
        <h1>{name}</h1>
        <Problem text={problem} />
        {value && (
          <Empty>
            There is no such person, or none that you may know of. <a href="/people">All people</a>
          </Empty>
        )}
      </>
    );
  }
  return (
    <>
      <div class="title">
        <h1>{person.full_name || person.person}</h1>
        {person.disabled ? (
          <Word as="refused" text="disabled" />
        ) : (
          <Word as="succeeded" text="active" />
        )}
        {own && <span class="chip">you</span>}
        <span class="more">
          {may("manage-people") && <Actions person={person} onAsk={setAsk} done={again} />}
        </span>
      </div>
      <Facts person={person} own={own} />
      <Roles person={person} onAsk={setAsk} done={again} />
      {(own || may("manage-people")) && <Tokens person={name} />}
      {ask && <Confirm ask={ask} onClose={() => setAsk(null)} />}
    </>
  );
}

function Facts({ person, own }: { person: Person; own: boolean }) {
  const jobs = own ? "/jobs?mine=1" : `/jobs?owner=${encodeURIComponent(person.person)}`;
  return (
    <Card title="Account" aside={<Command line={own ? "skep whoami" : "skep user ls"} />}>
      <dl class="facts inside">
        <dt>Name in commands</dt>
        <dd>
          <code>{person.person}</code>
        </dd>
        <dt>Logs in</dt>
        <dd>{person.login === "oidc" ? "at the provider, or by tokens" : "by tokens"}</dd>
        <dt>Added</dt>
        <dd>
          <At at={person.at} />
        </dd>
        <dt>More</dt>
        <dd>
          <a href={jobs}>{own ? "your jobs" : "its jobs"}</a>
          {(may("see-audit") || may("see-vc-audit")) && (
            <>
              ,{" "}
              <a href={`/audit?actor=${encodeURIComponent(person.person)}`}>
                {own ? "what you did" : "what it did"}
              </a>
            </>
          )}
        </dd>
      </dl>
    </Card>
  );
}

interface Asks {
  person: Person;
  onAsk: (ask: Confirmed) => void;
  done: () => void;
}

function Actions({ person, onAsk, done }: Asks) {
  const name = person.person;
  return (
    <>
      {person.login === "oidc" && <Bind person={person} onAsk={onAsk} done={done} />}
      <button type="button" onClick={() => onAsk(operate(person, done))}>
        {person.operator ? "No operator any more" : "Make operator"}
      </button>
      {person.disabled ? (
        <button
          type="button"
          onClick={() =>
            onAsk(change(name, "enable", "Enable", <p>Its tokens count again, at once.</p>, done))
          }
        >
          Enable
        </button>
      ) : (
        <button
          type="button"
          class="danger"
          onClick={() =>
            onAsk(
              change(
                name,
                "disable",
                "Disable",
                <p>All that {name} asks for is refused, at once. Its jobs go on.</p>,
                done,
              ),
            )
          }
        >
          Disable
        </button>
      )}
      <button
        type="button"
        class="danger"
        onClick={() =>
          onAsk(
            change(
              name,
              "remove",
              "Remove",
              <p>
                Its roles, tokens and keys are gone for good. Jobs and secrets stay with the name,
                so that no other person ever gets it.
              </p>,
              () => go("/people"),
            ),
          )
        }
      >
        Remove
      </button>
    </>
  );
}

function change(
  person: string,
  what: "enable" | "disable" | "remove",
  verb: string,
  text: ComponentChildren,
  done: () => void,
): Confirmed {
  return {
    title: `${verb} ${person}`,
    verb,
    danger: what !== "enable",
    line: `skep user ${what} ${person}`,
    text,
    done,
    run: () =>
      answered(
        api.POST("/v1/people/{do}", {
          params: { path: { do: what } },
          body: { person, full_name: "", oidc: false, again: false },
        }),
      ),
  };
}

function operate(one: Person, done: () => void): Confirmed {
  const name = one.person;
  const what = one.operator ? "revoke" : "grant";
  return {
    title: one.operator ? `${name} is no operator any more` : `Make ${name} an operator`,
    verb: one.operator ? "Take it away" : "Make operator",
    danger: true,
    line: one.operator ? `skep role revoke ${name} --operator` : `skep role grant ${name} operator`,
    text: (
      <p>
        {one.operator
          ? "Its roles in virtual clusters stay."
          : "An operator may do everything, everywhere: people, nodes, cells, every job."}
      </p>
    ),
    done,
    run: () =>
      answered(
        api.POST("/v1/roles/{do}", {
          params: { path: { do: what } },
          body: { person: name, role: "operator", vc: "" },
        }),
      ),
  };
}

function Bind({ person, onAsk, done }: Asks) {
  const [subject, setSubject] = useState("");
  const name = person.person;
  return (
    <form
      class="controls bare"
      onSubmit={(event) => {
        event.preventDefault();
        onAsk({
          title: `The account of ${name} at the provider`,
          verb: "Bind",
          line: `skep user bind ${name} ${quoted(subject)}`,
          text: (
            <p>
              Whoever logs in at the provider as {subject} is {name} here.
            </p>
          ),
          done,
          run: () =>
            answered(api.POST("/v1/people/bind", { body: { person: name, subject, issuer: "" } })),
        });
      }}
    >
      <input
        required
        maxLength={128}
        size={14}
        aria-label="Account at the provider (sub)"
        placeholder="Account (sub)"
        value={subject}
        onInput={(event) => setSubject(event.currentTarget.value)}
      />
      <button>Bind</button>
    </form>
  );
}

function Roles({ person, onAsk, done }: Asks) {
  const given = Object.entries(person.roles).sort();
  const managed = [...vcs.all.value]
    .map((one) => one.vc)
    .filter((vc) => may("manage-vc-people", vc));
  return (
    <Card title="Roles" aside={<Command line={`skep role ls ${person.person}`} />}>
      {person.operator && (
        <p class="inside">
          An operator of the whole cluster: it may do everything in every virtual cluster.
        </p>
      )}
      {!given.length && !person.operator && (
        <Empty>
          No role: nothing is shown to it.{" "}
          {managed.length ? "Grant one below." : "A manager of a virtual cluster grants one."}
        </Empty>
      )}
      {given.length > 0 && (
        <Wide label="Roles">
          <table class="plain">
            <thead>
              <tr>
                <th>Virtual cluster</th>
                <th>Role</th>
                <th>
                  <span class="hidden">Actions</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {given.map(([vc, role]) => (
                <tr key={vc}>
                  <td>
                    <VcName vc={vc} />
                  </td>
                  <td>
                    {role}
                    {person.groups[vc] !== undefined && <span class="dim"> (by a group)</span>}
                  </td>
                  <td>
                    {may("manage-vc-people", vc) && (
                      <button
                        type="button"
                        class="quiet"
                        aria-label={`Revoke the role in ${vc}`}
                        onClick={() => onAsk(revoke(person.person, vc, done))}
                      >
                        revoke
                      </button>
                    )}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </Wide>
      )}
      {managed.length > 0 && <Grant person={person} vcs={managed} onAsk={onAsk} done={done} />}
    </Card>
  );
}

function Grant(props: Asks & { vcs: string[] }) {
  const [role, setRole] = useState<Role>("submitter");
  const [chosen, setChosen] = useState("");
  const vc = chosen || (props.vcs[0] ?? "");
  return (
    <form
      class="controls inside"
      onSubmit={(event) => {
        event.preventDefault();
        props.onAsk(grant(props.person.person, role, vc, props.done));
      }}
    >
      <label>
        <span class="hidden">Virtual cluster</span>
        <select value={vc} onChange={(event) => setChosen(event.currentTarget.value)}>
          {props.vcs.map((one) => (
            <option key={one}>{one}</option>
          ))}
        </select>
      </label>
      <RoleChoice role={role} onRole={setRole} />
      <button>Grant</button>
    </form>
  );
}
