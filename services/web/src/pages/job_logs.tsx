// What the ranks of a job print: followed, searched, and downloaded.

import { useEffect, useRef, useState } from "preact/hooks";

import { open } from "../api";
import { Card, Command, Problem } from "../parts/basics";

const TAIL_LINES = 1000;
const KEPT_CHARACTERS = 2_000_000;

/** The output of one rank. */
export function Logs({ job, ranks, attempts }: { job: string; ranks: number; attempts: number }) {
  const [rank, setRank] = useState(0);
  const [attempt, setAttempt] = useState("latest");
  const [wanted, setWanted] = useState("");
  const [text, setText] = useState("");
  const [problem, setProblem] = useState("");
  const box = useRef<HTMLPreElement>(null);
  const atEnd = useRef(true);
  useEffect(() => {
    const stop = new AbortController();
    setText("");
    setProblem("");
    const path = `/v1/jobs/${encodeURIComponent(job)}/logs?rank=${rank}&attempt=${attempt}`
      + `&tail=${TAIL_LINES}&follow=1`;
    void read(path, stop.signal, (more) =>
      setText((before) => (before + more).slice(-KEPT_CHARACTERS)))
      .catch((error: Error) => stop.signal.aborted || setProblem(error.message));
    return () => stop.abort();
  }, [job, rank, attempt]);
  useEffect(() => {
    const element = box.current;
    if (element && atEnd.current) element.scrollTop = element.scrollHeight;
  }, [text, wanted]);
  const shown = wanted
    ? text.split("\n").filter((line) => line.toLowerCase().includes(wanted.toLowerCase())).join("\n")
    : text;
  const download = () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
    link.download = `${job}-rank${rank}.log`;
    link.click();
    URL.revokeObjectURL(link.href);
  };
  return (
    <Card title="Logs" aside={<Command line={`skep logs -f ${job}${rank ? ` --rank ${rank}` : ""}`} />}>
      <div class="inside">
        <div class="controls">
          <label>
            Rank{" "}
            <select value={rank} onChange={(event) => setRank(Number(event.currentTarget.value))}>
              {Array.from({ length: Math.max(1, ranks) }, (_, one) => <option key={one}>{one}</option>)}
            </select>
          </label>
          <label>
            Attempt{" "}
            <select value={attempt} onChange={(event) => setAttempt(event.currentTarget.value)}>
              <option value="latest">latest</option>
              {Array.from({ length: attempts }, (_, one) => <option key={one}>{one + 1}</option>)}
            </select>
          </label>
          <input
            type="search" aria-label="Show only lines with" placeholder="Show only lines with …"
            value={wanted} onInput={(event) => setWanted(event.currentTarget.value)}
          />
          <button type="button" onClick={download}>Download</button>
        </div>
        <Problem text={problem} />
        <pre
          class="log" ref={box} tabIndex={0} aria-label={`Output of rank ${rank}`}
          onScroll={(event) => {
            const element = event.currentTarget;
            atEnd.current = element.scrollTop + element.clientHeight > element.scrollHeight - 40;
          }}
        >
          {shown || (problem ? "" : "It has printed nothing yet.")}
        </pre>
      </div>
    </Card>
  );
}

async function read(path: string, signal: AbortSignal, take: (text: string) => void): Promise<void> {
  const response = await open(path, { signal });
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const piece = await reader?.read();
    if (!piece || piece.done) return;
    take(piece.value);
  }
}
