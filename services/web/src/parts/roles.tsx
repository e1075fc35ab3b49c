// The roles that people have in virtual clusters: what each means, and how it is given and taken.

import { answered, api } from "../api";
import type { Confirmed } from "./confirm";

export const ROLES = ["viewer", "submitter", "manager"] as const;
export type Role = (typeof ROLES)[number];

/** What a role lets a person do, in short. */
export const MEANS: Record<Role, string> = {
  viewer: "sees jobs and reports",
  submitter: "submits jobs and changes its own",
  manager: "changes every job, and the roles of people",
};

/** Give a person a role in a virtual cluster, in place of the one that it has there. */
export const grant = (person: string, role: Role, vc: string, done: () => void): Confirmed => ({
  title: `Make ${person} ${role} of ${vc}`,
  verb: "Grant",
  line: `skep role grant ${person} ${role} --vc ${vc}`,
  text: (
    <p>
      A {role} {MEANS[role]}.
    </p>
  ),
  done,
  run: () =>
    answered(
      api.POST("/v1/roles/{do}", {
        params: { path: { do: "grant" } },
        body: { person, role, vc },
      }),
    ),
});

/** Take the role that a person was granted in a virtual cluster. */
export const revoke = (person: string, vc: string, done: () => void): Confirmed => ({
  title: `Take the role of ${person} in ${vc} away`,
  verb: "Revoke",
  danger: true,
  done,
  line: `skep role revoke ${person} --vc ${vc}`,
  text: (
    <p>
      Nothing of {vc} is shown to {person} any more, unless a group gives a role. The jobs of{" "}
      {person} go on.
    </p>
  ),
  run: () =>
    answered(
      api.POST("/v1/roles/{do}", {
        params: { path: { do: "revoke" } },
        body: { person, role: "viewer", vc },
      }),
    ),
});

/** A choice between the roles, each with what it means. */
export function RoleChoice(props: { role: Role; onRole: (role: Role) => void }) {
  return (
    <label>
      <span class="hidden">Role</span>
      <select
        value={props.role}
        onChange={(event) => props.onRole(event.currentTarget.value as Role)}
      >
        {ROLES.map((one) => (
          <option key={one} value={one}>
            {one}: {MEANS[one]}
          </option>
        ))}
      </select>
    </label>
  );
}
