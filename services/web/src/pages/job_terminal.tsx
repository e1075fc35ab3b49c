// A command in a running job, on a terminal in the page.

import { useEffect, useRef, useState } from "preact/hooks";

import { Card, Command, Empty, Problem } from "../parts/basics";
import type { Over, Session } from "../parts/terminal";
import type { Job } from "../rows";

const SHELL = ["/bin/sh", "-c", "if command -v bash >/dev/null; then exec bash; else exec sh; fi"];

/** Offers a shell beside a rank, and shows it. */
export function TerminalTab({ row }: { row: Job }) {
  const { job } = row;
  const [rank, setRank] = useState(0);
  const [words, setWords] = useState("");
  const [run, setRun] = useState<{ rank: number; argv: string[] } | null>(null);
  const runs = row.state === "running";
  const line = `skep exec ${job}${rank ? ` --rank ${rank}` : ""} -- ${words || "bash"}`;
  return (
    <Card title="Terminal" aside={<Command line={line} />}>
      <div class="inside">
        {!runs && !run && (
          <Empty>
            It is {row.state}: commands run in a job that is running.
            {row.state === "suspended" && (
              <>
                {" "}
                Resume it first: <Command line={`skep resume ${job}`} />
              </>
            )}
          </Empty>
        )}
        {runs && !run && (
          <form
            class="controls"
            onSubmit={(event) => {
              event.preventDefault();
              setRun({ rank, argv: words.trim() ? ["/bin/sh", "-c", words] : SHELL });
            }}
          >
            {row.workers > 1 && (
              <label>
                Rank{" "}
                <select
                  value={rank}
                  onChange={(event) => setRank(Number(event.currentTarget.value))}
                >
                  {Array.from({ length: row.workers }, (_, one) => (
                    <option key={one}>{one}</option>
                  ))}
                </select>
              </label>
            )}
            <input
              type="text"
              class="mono"
              size={42}
              aria-label="Command; empty: a shell"
              placeholder="a shell, or a command such as nvidia-smi"
              value={words}
              onInput={(event) => setWords(event.currentTarget.value)}
            />
            <button class="strong">Open</button>
          </form>
        )}
        {run && <Screen job={job} run={run} onClose={() => setRun(null)} />}
        <p class="dim">
          It runs beside the rank's own process: as its account, in its folder, with its variables
          and GPUs. It ends with the attempt, and when this page is left. Its use is in the audit
          log.
        </p>
      </div>
    </Card>
  );
}

function Screen(props: {
  job: string;
  run: { rank: number; argv: string[] };
  onClose: () => void;
}) {
  const { job, run } = props;
  const box = useRef<HTMLDivElement>(null);
  const [opened, setOpened] = useState(false);
  const [over, setOver] = useState<Over | null>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    let session: Session | null = null;
    let left = false;
    // xterm.js is larger than the rest of the page: it is loaded when a terminal is opened.
    import("../parts/terminal").then(
      ({ openTerminal }) => {
        if (left || !box.current) return;
        const colours = (name: string) =>
          getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
        session = openTerminal(box.current, {
          job,
          rank: run.rank,
          argv: run.argv,
          colours,
          onOver: setOver,
          onOpened: () => {
            setOpened(true);
            session?.focus();
          },
        });
      },
      () => setProblem("The terminal could not be loaded: load the page anew."),
    );
    return () => {
      left = true;
      session?.close();
    };
  }, [job, run]);
  return (
    <>
      <Problem
        text={
          problem ||
          (over && over.code === undefined
            ? `${over.text ?? over.reason ?? "The session is over."}`
            : "")
        }
      />
      <div
        class="terminal-box"
        ref={box}
        role="region"
        aria-label={`Terminal in ${job}, rank ${run.rank}. Ctrl+Shift+Escape leaves it.`}
        onKeyDownCapture={(event) => {
          // Tab belongs to the shell: this is the way out for people without a mouse.
          if (event.key === "Escape" && event.ctrlKey && event.shiftKey) {
            event.preventDefault();
            document.getElementById("end-terminal")?.focus();
          }
        }}
      />
      <p class="controls">
        <span role="status">
          {over
            ? over.code === undefined
              ? "Not running."
              : `It ended with exit code ${over.code}.`
            : opened
              ? "Connected."
              : "Connecting …"}
        </span>
        <button type="button" id="end-terminal" onClick={props.onClose}>
          {over ? "Close" : "End it"}
        </button>
        <span class="dim">Ctrl Shift Escape leaves the terminal by keyboard.</span>
      </p>
    </>
  );
}
