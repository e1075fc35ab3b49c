// The login: at the organisation's provider where there is one, or by a token of this cluster.

import { useState } from "preact/hooks";

import { answered, api, type Schemas } from "../api";
import { useAsked } from "../asking";
import { begin, busy, isOffered } from "../login";
import { Command, Problem } from "../parts/basics";
import { logIn, refusal } from "../session";

/** What is shown to somebody without a token. */
export function Login() {
  const { value: ways } = useAsked(() => answered(api.GET("/v1/login")), []);
  const oidc = ways?.oidc ?? null;
  const offered = isOffered(oidc);
  return (
    <main class="card login">
      <h1>
        <img src="/skep.svg" alt="" width="28" height="28" />
        Skep
      </h1>
      <Problem text={refusal.value} />
      {offered && oidc && (
        <>
          <p>
            <button
              type="button"
              class="strong"
              autofocus
              disabled={busy.value}
              onClick={() => void begin()}
            >
              {busy.value ? "Logging in …" : `Log in at ${new URL(oidc.issuer).host}`}
            </button>
          </p>
          <details>
            <summary>Log in with a token instead</summary>
            <ByToken />
          </details>
        </>
      )}
      {!offered && <ByToken focused />}
      {ways && <Hint people={ways.people} oidc={oidc} />}
    </main>
  );
}

function ByToken({ focused = false }: { focused?: boolean }) {
  const [text, setText] = useState("");
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        if (text.trim()) logIn(text.trim());
      }}
    >
      <label class="field">
        <span>Token of this cluster</span>
        <input
          type="password"
          autocomplete="current-password"
          autofocus={focused}
          required
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
        />
      </label>
      <p>
        <button class={focused ? "strong" : ""}>Log in with it</button>
      </p>
    </form>
  );
}

/** How one comes to a token here. */
function Hint({ people, oidc }: { people: boolean; oidc: Schemas["LoginProvider"] | null }) {
  if (!people) {
    return (
      <p class="dim">
        This cluster has no people: its tokens are in the file <code>cluster.json</code> of the
        machine that runs it, the operator's and one of each virtual cluster.
      </p>
    );
  }
  const make = <Command line="skep token create browser" />;
  if (!oidc) {
    return (
      <p class="dim">
        No provider is set up here, so people have tokens. Make one by {make}, where you are logged
        in; an operator makes the first one.
      </p>
    );
  }
  if (!isOffered(oidc)) {
    return (
      <p class="dim">
        {new URL(oidc.issuer).host} vouches for people here, but does not send them back to{" "}
        {location.origin}: an operator adds it to <code>pages</code> in the file of{" "}
        <code>SKEP_OIDC</code>. Until then <Command line={`skep login ${location.origin}`} />, and{" "}
        {make}.
      </p>
    );
  }
  return <p class="dim">A token is made by {make}, where you are logged in.</p>;
}
