// The people of the cluster: who may log in, their roles, and how many tokens they have.

import { useMemo, useState } from "preact/hooks";

import { answered, api, type Schemas } from "../api";
import { useAsked } from "../asking";
import { many } from "../format";
import { At, Card, Command, Empty, Problem } from "../parts/basics";
import { Confirm, type Confirmed } from "../parts/confirm";
import { quoted } from "../parts/line";
import { type Column, Rows, sorted } from "../parts/rows";
import { Word } from "../parts/word";
import { go, query, setQuery } from "../router";
import { may } from "../session";

export type Person = Schemas["PersonTold"];

/** Return the roles of a person, the one for the whole cluster first. */
export const rolesOf = (one: Person): string =>
  [
    ...(one.operator ? ["operator"] : []),
    ...Object.entries(one.roles)
      .sort()
      .map(([vc, role]) => `${role} of ${vc}`),
  ].join(", ");

const COLUMNS: Column<Person>[] = [
  {
    key: "person",
    title: "Person",
    width: "minmax(90px, 1fr)",
    cell: (row) => row.person,
    by: (row) => row.person,
  },
  {
    key: "full_name",
    title: "Full name",
    width: "minmax(90px, 1.2fr)",
    cell: (row) => row.full_name || <span class="dim">–</span>,
    by: (row) => row.full_name,
    from: 700,
  },
  {
    key: "state",
    title: "State",
    width: "100px",
    cell: (row) =>
      row.disabled ? <Word as="refused" text="disabled" /> : <Word as="succeeded" text="active" />,
    by: (row) => Number(row.disabled),
    from: 420,
  },
  {
    key: "roles",
    title: "Roles",
    width: "minmax(110px, 2fr)",
    cell: (row) => (
      <span title={rolesOf(row)}>{rolesOf(row) || <span class="dim">none</span>}</span>
    ),
    by: (row) => rolesOf(row),
  },
  {
    key: "login",
    title: "Logs in",
    width: "110px",
    cell: (row) => (row.login === "oidc" ? "at the provider" : "by tokens"),
    by: (row) => row.login,
    from: 820,
  },
  {
    key: "tokens",
    title: "Tokens",
    width: "64px",
    right: true,
    cell: (row) => row.tokens,
    by: (row) => row.tokens,
    from: 560,
  },
  {
    key: "at",
    title: "Added",
    width: "106px",
    cell: (row) => <At at={row.at} />,
    by: (row) => row.at,
    from: 960,
  },
];

/** The page. */
export function PeoplePage() {
  const [asks, setAsks] = useState(0);
  const { value, problem } = useAsked(() => answered(api.GET("/v1/people")), [asks]);
  const wanted = (query.value.get("q") ?? "").toLowerCase();
  const sort = query.value.get("sort") ?? "person";
  const rows = useMemo(() => {
    const found = (value?.people ?? []).filter((one) =>
      `${one.person} ${one.full_name} ${rolesOf(one)}`.toLowerCase().includes(wanted),
    );
    return sorted(found, COLUMNS, sort);
  }, [value, wanted, sort]);
  return (
    <>
      <div class="title">
        <h1>People</h1>
        {value && (
          <span class="dim" role="status">
            {many(rows.length, "person", "people")}
            {rows.length < value.people.length && ` of ${value.people.length}`}
          </span>
        )}
        <span class="more">
          <Command line="skep user ls" />
        </span>
      </div>
      <Problem text={problem} />
      {problem && !value && (
        <Empty>
          A cluster on one machine has people with <Command line="skep up --people" />
        </Empty>
      )}
      {value && (
        <>
          <div class="controls">
            <input
              type="search"
              aria-label="Search for a person or a role"
              placeholder="A name, a role, a virtual cluster"
              value={query.value.get("q") ?? ""}
              onInput={(event) => setQuery({ q: event.currentTarget.value })}
            />
            <button type="button" onClick={() => setAsks((n) => n + 1)}>
              Load the latest
            </button>
          </div>
          <Card title="People and their roles" class="sized">
            <Rows
              label="People"
              columns={COLUMNS}
              rows={rows}
              keyOf={(row) => row.person}
              href={(row) => `/people/${encodeURIComponent(row.person)}`}
              sort={sort}
              onSort={(next) => setQuery({ sort: next })}
              empty={
                <Empty>
                  {wanted ? (
                    <>
                      Nobody matches. <a href="/people">Show all people</a>.
                    </>
                  ) : may("manage-people") ? (
                    "There are no people yet: add the first one below."
                  ) : (
                    "There are no people that you may know of: a manager sees all of them."
                  )}
                </Empty>
              }
            />
          </Card>
          {may("manage-people") && <Add />}
        </>
      )}
    </>
  );
}

function Add() {
  const [person, setPerson] = useState("");
  const [name, setName] = useState("");
  const [oidc, setOidc] = useState(false);
  const [ask, setAsk] = useState<Confirmed | null>(null);
  const add = (): Confirmed => ({
    title: `Add ${person}`,
    verb: "Add",
    line: [
      `skep user add ${quoted(person)}`,
      name.trim() && `--full-name ${quoted(name.trim())}`,
      oidc && "--oidc",
    ]
      .filter(Boolean)
      .join(" "),
    text: (
      <p>
        {oidc
          ? "The account at the provider is bound at the first login, or by an operator."
          : "Then make a token for the first login, and give roles: both are on the next page."}
      </p>
    ),
    run: () =>
      answered(
        api.POST("/v1/people/{do}", {
          params: { path: { do: "add" } },
          body: { person, full_name: name.trim(), oidc, again: false },
        }),
      ),
    done: () => go(`/people/${encodeURIComponent(person)}`),
  });
  return (
    <Card title="Add a person">
      <form
        class="controls inside bare"
        onSubmit={(event) => {
          event.preventDefault();
          setAsk(add());
        }}
      >
        <input
          required
          maxLength={63}
          pattern="[A-Za-z0-9_\-]+"
          title="Letters, digits, _ and -"
          aria-label="Name of the person, as it is in commands"
          placeholder="Name: letters, digits, _, -"
          value={person}
          onInput={(event) => setPerson(event.currentTarget.value)}
        />
        <input
          maxLength={128}
          aria-label="Full name"
          placeholder="Full name"
          value={name}
          onInput={(event) => setName(event.currentTarget.value)}
        />
        <label class="inline">
          <input
            type="checkbox"
            checked={oidc}
            onChange={(event) => setOidc(event.currentTarget.checked)}
          />{" "}
          logs in at the provider
        </label>
        <button>Add</button>
      </form>
      {ask && <Confirm ask={ask} onClose={() => setAsk(null)} />}
    </Card>
  );
}
