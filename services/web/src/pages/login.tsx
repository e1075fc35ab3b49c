// The login: a token of this cluster.

import { useState } from "preact/hooks";

import { Command, Problem } from "../parts/basics";
import { logIn, refusal } from "../session";

/** What is shown to somebody without a token. */
export function Login() {
  const [text, setText] = useState("");
  return (
    <main class="card login">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (text.trim()) logIn(text.trim());
        }}
      >
        <h1>
          <img src="/skep.svg" alt="" width="28" height="28" />
          Skep
        </h1>
        <p>Log in with a token of this cluster.</p>
        <label class="field">
          <span>Token</span>
          <input
            type="password"
            autocomplete="current-password"
            autofocus
            required
            value={text}
            onInput={(event) => setText(event.currentTarget.value)}
          />
        </label>
        <Problem text={refusal.value} />
        <p>
          <button class="strong">Log in</button>
        </p>
      </form>
      <p class="dim">
        A person makes one by <Command line="skep token create browser" />. The token of an operator
        is in the file <code>cluster.json</code> of the machine that runs the cluster.
      </p>
    </main>
  );
}
