// Logging in at the organisation's provider, and logging out.
//
// The code flow with PKCE: the verifier and the state stay in this tab while the browser is at the
// provider. What comes back in the address is a code, which is of use only with the verifier; the
// token comes as the answer to a POST. What did not begin in this tab is refused (ADR 0309).

import { signal } from "@preact/signals";

import { answered, api, Refused, type Schemas } from "./api";
import { go } from "./router";
import { isOwn, logIn, logOut, refusal, token } from "./session";

/** Where the provider sends the browser back to. */
const BACK = "/login";
const KEY = "skep-login";
const ELSEWHERE = "This login did not begin in this tab. Begin it here.";
const SAID_MOST = 200;

/** A login that has begun: where the person was, and what proves that it is the one that ends. */
interface Begun {
  state: string;
  verifier: string;
  from: string;
}

/** Whether a login is about to end, or to begin. */
export const busy = signal(false);
// A browser that goes back from the provider may show the page as it was left.
addEventListener("pageshow", (event) => {
  if (event.persisted) busy.value = false;
});

/** Return whether the provider sends browsers back to this address. */
export const isOffered = (oidc: Schemas["LoginProvider"] | null): boolean =>
  oidc !== null && (oidc.pages?.includes(location.origin) ?? false);

/** Go to the provider. */
export async function begin(): Promise<void> {
  busy.value = true;
  refusal.value = "";
  try {
    const verifier = base64url(crypto.getRandomValues(new Uint8Array(48)));
    const bytes = new TextEncoder().encode(verifier);
    const challenge = base64url(new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)));
    const begun = await answered(
      api.POST("/v1/login/begin", { body: { page: location.origin, challenge } }),
    );
    const from = location.pathname === BACK ? "/" : location.pathname + location.search;
    const kept: Begun = { state: begun.state, verifier, from };
    sessionStorage.setItem(KEY, JSON.stringify(kept));
    const to = new URL(begun.url);
    if (!["https:", "http:"].includes(to.protocol)) throw new Error("The provider has no address.");
    location.assign(to.href);
  } catch (error) {
    refusal.value = (error as Error).message;
    busy.value = false;
  }
}

/** Take what the provider sent back out of the address, and end the login with it. */
export function takeLoginFromAddress(): void {
  if (location.pathname !== BACK) return;
  const told = new URLSearchParams(location.search);
  const begun = taken();
  // First of all: a code does not stay in the address, nor in the history of the browser.
  go("/", true);
  if (!told.has("state") && !told.has("code") && !told.has("error")) return;
  if (begun === null || told.get("state") !== begun.state) {
    // A link that somebody else made must not end the session that there is.
    if (!token.value) refusal.value = ELSEWHERE;
    return;
  }
  void end(told, begun);
}

async function end(told: URLSearchParams, begun: Begun): Promise<void> {
  const code = told.get("code");
  if (!code) {
    const why = told.get("error_description") || told.get("error") || "it gave no code";
    refusal.value = `The provider refuses: ${why.slice(0, SAID_MOST)}`;
    return;
  }
  busy.value = true;
  try {
    const made = await answered(
      api.POST("/v1/login/end", {
        body: {
          page: location.origin,
          code,
          state: begun.state,
          code_verifier: begun.verifier,
          issuer: told.get("iss"),
        },
      }),
    );
    go(inside(begun.from), true);
    logIn(made.text, true);
  } catch (error) {
    refusal.value = (error as Error).message;
  } finally {
    busy.value = false;
  }
}

/** Log out. A token that this page got is revoked; one that was pasted may be used elsewhere, and
 * is revoked if `revoked` says so. */
export async function leave(revoked = isOwn()): Promise<void> {
  let why = "";
  if (revoked) {
    try {
      await answered(api.POST("/v1/logout"));
    } catch (error) {
      if (!(error instanceof Refused && error.status === 401)) {
        why = `You are logged out, but the token could not be revoked: ${(error as Error).message}`;
      }
    }
  }
  logOut(why);
}

/** Return the login that began in this tab, once. */
function taken(): Begun | null {
  const text = sessionStorage.getItem(KEY);
  sessionStorage.removeItem(KEY);
  try {
    const told = JSON.parse(text ?? "null") as Partial<Begun> | null;
    const { state, verifier, from } = told ?? {};
    return state && verifier && from ? { state, verifier, from } : null;
  } catch {
    return null;
  }
}

/** Return a path of this page; anything that a browser takes for another address is none. */
function inside(path: string): string {
  const to = new URL(path, location.origin);
  return to.origin === location.origin && !/^[/\\]{2}/.test(path) ? to.pathname + to.search : "/";
}

const base64url = (bytes: Uint8Array): string =>
  btoa(String.fromCharCode(...bytes))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replace(/=+$/, "");
