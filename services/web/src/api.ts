// The gateway's API, typed from its OpenAPI document.

import createClient, { type Middleware } from "openapi-fetch";

import type { components, paths } from "./api.gen";
import { logOut, token } from "./session";

export type Schemas = components["schemas"];

/** A request that was refused, in the gateway's own words. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly reason: string,
    text: string,
  ) {
    super(text);
  }
}

const AWAY = "The gateway does not answer. Try again when it is back.";

const withToken: Middleware = {
  onRequest({ request }) {
    if (token.value) request.headers.set("Authorization", `Bearer ${token.value}`);
    return request;
  },
  onResponse({ response }) {
    // Without a token it is a login that was refused, which says why itself.
    if (response.status === 401 && token.value)
      logOut("That token is not accepted here, or has expired.");
  },
};

/** One method for each path: `api.GET("/v1/jobs/{job}", { params: { path: { job } } })`. */
export const api = createClient<paths>({ baseUrl: location.origin });
api.use(withToken);

/** Return what was answered.
 *
 * Throws: Refused, with the gateway's sentence; or with one of ours if the gateway is away.
 */
export async function answered<T>(
  asking: Promise<{ data?: T; error?: unknown; response: Response }>,
): Promise<T> {
  let told;
  try {
    told = await asking;
  } catch {
    throw new Refused(0, "away", AWAY);
  }
  if (told.response.ok) return told.data as T;
  throw refused(told.response.status, told.error);
}

/** Ask for what is not JSON, or goes on: logs and streams. Throws: Refused, as `answered`. */
export async function open(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  headers.set("Authorization", `Bearer ${token.value}`);
  let response;
  try {
    response = await fetch(path, { ...init, headers });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new Refused(0, "away", AWAY);
  }
  if (response.status === 401) logOut("That token is not accepted here, or has expired.");
  if (!response.ok) throw refused(response.status, await response.json().catch(() => null));
  return response;
}

function refused(status: number, body: unknown): Refused {
  const told = (body as Partial<Schemas["ErrorAnswer"]> | null)?.error;
  if (!told) return new Refused(status, "unknown", `The gateway answered ${status}.`);
  const problems = (told.problems ?? []).map((one) =>
    [one.path, one.text, one.suggestion].filter(Boolean).join(": "),
  );
  // The first problem is mostly what the refusal says, with its place.
  const said = problems.some((text) => text.includes(told.text));
  return new Refused(status, told.reason, [...(said ? [] : [told.text]), ...problems].join("\n"));
}
