// A dialog that says what an action means, shows the `skep` line that does the same, and does it.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

import { Command, Dialog, Problem } from "./basics";

/** An action that is ready to be confirmed. */
export interface Confirmed {
  title: string;
  /** What it means for jobs. */
  text?: ComponentChildren;
  verb: string;
  danger?: boolean;
  line: string;
  run: () => Promise<unknown>;
  /** What to do when it was taken. */
  done?: () => void;
}

/** The dialog. It stays open while the action is refused, with the reason. */
export function Confirm({ ask, onClose }: { ask: Confirmed; onClose: () => void }) {
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const confirm = async () => {
    setBusy(true);
    try {
      await ask.run();
    } catch (error) {
      setProblem((error as Error).message);
      return;
    } finally {
      setBusy(false);
    }
    ask.done?.();
    onClose();
  };
  return (
    <Dialog title={ask.title} onClose={onClose}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void confirm();
        }}
      >
        {ask.text && <div>{ask.text}</div>}
        <p>
          <Command line={ask.line} />
        </p>
        <Problem text={problem} />
        <div class="buttons">
          <button type="button" onClick={onClose}>
            Leave it
          </button>
          <button class={ask.danger ? "danger" : "strong"} disabled={busy}>
            {ask.verb}
          </button>
        </div>
      </form>
    </Dialog>
  );
}
