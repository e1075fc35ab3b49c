// The token of this browser tab, what its bearer is, and what it may.

import { computed, signal } from "@preact/signals";

import type { components } from "./api.gen";

export type WhoAmI = components["schemas"]["WhoAmI"];

const KEY = "skep-token";
/** Is kept if this page got the token itself, from a login at the provider. */
const OWN_KEY = "skep-token-own";

/** The token; empty: nobody is logged in. It is kept until the tab is closed. */
export const token = signal(sessionStorage.getItem(KEY) ?? "");
/** What the gateway takes the bearer of the token for; null: not known yet. */
export const me = signal<WhoAmI | null>(null);
/** Why the last token was given up, as one sentence. */
export const refusal = signal("");

/** A name to show for whoever is logged in. */
export const myName = computed(() => {
  const who = me.value;
  return who === null ? "" : who.full_name || who.person || who.name;
});

/** Return whether nobody but this page has the token: it got it itself. */
export const isOwn = (): boolean => sessionStorage.getItem(OWN_KEY) !== null;

/** Use a token from now on; `own`: this page got it itself. */
export function logIn(text: string, own = false): void {
  sessionStorage.setItem(KEY, text);
  if (own) sessionStorage.setItem(OWN_KEY, "1");
  else sessionStorage.removeItem(OWN_KEY);
  refusal.value = "";
  token.value = text;
}

/** Forget the token, and say why if it was not asked for. */
export function logOut(why = ""): void {
  sessionStorage.removeItem(KEY);
  sessionStorage.removeItem(OWN_KEY);
  token.value = "";
  me.value = null;
  refusal.value = why;
}

/** Take a token from the address (`#token=...`, `?token=...`), and take it out of the address. */
export function takeTokenFromAddress(): void {
  const query = new URLSearchParams(location.search);
  const given = new URLSearchParams(location.hash.slice(1)).get("token") ?? query.get("token");
  if (!given) return;
  // A link of another person's making must not replace a session without a word.
  const other = token.value !== "" && token.value !== given;
  if (!other || confirm("Log in with the token of this link, in place of the one that there is?"))
    logIn(given);
  query.delete("token");
  const rest = query.toString();
  history.replaceState(null, "", rest ? `${location.pathname}?${rest}` : location.pathname);
}

/** What is done to a job or with it, as the gateway's table of rights names it. */
export type Action =
  | "see-jobs"
  | "see-values"
  | "read-logs"
  | "ask-what-if"
  | "submit"
  | "cancel"
  | "enter"
  | "change"
  | "prioritise"
  | "search"
  | "steer-search"
  | "see-cluster"
  | "see-reports"
  | "set-vcs"
  | "manage-nodes"
  | "maintain"
  | "manage-people"
  | "manage-vc-people"
  | "see-audit"
  | "see-vc-audit"
  | "reserve";

/** Return whether the caller may do something in a virtual cluster.
 *
 * `owner`: whose job or search it is about; what is one's own may take a lower role.
 */
export function may(action: Action, vc = "", owner = ""): boolean {
  const who = me.value;
  if (who === null) return false;
  const own = owner !== "" && owner === who.person;
  return who.may.some(
    (right) =>
      right.action === action &&
      (right.vc === "" || vc === "" || right.vc === vc) &&
      (own || !right.own_only),
  );
}
