// One action that is asked for again before it is done, with the `skep` line that does the same.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

import { Command, Dialog, Problem } from "./basics";

/** What is to be confirmed. */
export interface Confirmed {
  title: string;
  verb: string;
  line: string;
  danger?: boolean;
  text?: ComponentChildren;
  run: () => Promise<unknown>;
}

/** Asks, does it, and tells why it was refused. */
export function ConfirmDialog(props: { ask: Confirmed; onClose: () => void }) {
  const { ask } = props;
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const confirm = () => {
    setBusy(true);
    ask.run().then(props.onClose, (error: Error) => {
      setBusy(false);
      setProblem(error.message);
    });
  };
  return (
    <Dialog title={ask.title} onClose={props.onClose}>
      {ask.text && <p>{ask.text}</p>}
      <p><Command line={ask.line} /></p>
      <Problem text={problem} />
      <div class="buttons">
        <button type="button" onClick={props.onClose}>Leave it</button>
        <button
          type="button" class={ask.danger ? "danger" : "strong"} disabled={busy} onClick={confirm}
        >
          {ask.verb}
        </button>
      </div>
    </Dialog>
  );
}
