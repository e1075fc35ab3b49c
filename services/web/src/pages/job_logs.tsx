// What the ranks of a job print: followed, searched where it lies, and downloaded.

import { useEffect, useRef, useState } from "preact/hooks";

import { open } from "../api";
import { bytes, many } from "../format";
import { returns } from "../live";
import { type Pen, type Piece, pieces, PLAIN, SHOWN_CHARACTERS } from "../parts/ansi";
import { Card, Command, Problem } from "../parts/basics";
import { saved } from "../parts/download";
import { query, setQuery } from "../router";
import type { Job } from "../rows";

const TAIL_LINES = 1000;
/** Lines in the page at once; the download has all. */
const LINES_MAX = 5000;
/** Ranks that "all" follows; a tenant may follow so many logs at once. */
const RANKS_MAX = 16;

interface Line {
  key: number;
  rank: number;
  shown: Piece[];
  more: number;
}

/** The output of one rank, or of all of them. */
export function Logs({ row, ranks }: { row: Job; ranks: number }) {
  const { job } = row;
  const asked = query.value;
  const rank = asked.get("rank") ?? "0";
  const attempt = asked.get("attempt") ?? "latest";
  const text = asked.get("grep") ?? "";
  const [wanted, setWanted] = useState(text);
  const [lines, setLines] = useState<Line[]>([]);
  const [dropped, setDropped] = useState(0);
  const [problem, setProblem] = useState("");
  const [over, setOver] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  const atEnd = useRef(true);
  const several = rank === "all" && ranks > 1;
  const chosen = several
    ? Array.from({ length: Math.min(ranks, RANKS_MAX) }, (_, one) => one)
    : [Number(rank) || 0];
  useEffect(() => {
    const stop = new AbortController();
    const taken = new Taken((next, gone) => {
      setLines(next);
      setDropped(gone);
    });
    setLines([]);
    setProblem("");
    setOver(false);
    atEnd.current = true;
    const readings = chosen.map((one) => {
      const path = pathOf(job, one, {
        attempt,
        tail: String(TAIL_LINES),
        ...(text ? { grep: text, any_case: "1" } : { follow: "1" }),
      });
      return text
        ? found(path, stop.signal, (more) => taken.take(one, more)).finally(() => taken.end(one))
        : read(path, stop.signal, (more) => taken.take(one, more)).finally(() => taken.end(one));
    });
    void Promise.allSettled(readings).then((told) => {
      if (stop.signal.aborted) return;
      setOver(true);
      setProblem(
        [
          ...new Set(
            told.flatMap((one) =>
              one.status === "rejected" ? [(one.reason as Error).message] : [],
            ),
          ),
        ].join("\n"),
      );
    });
    return () => stop.abort();
  }, [job, rank, attempt, text, returns.value]);
  useEffect(() => {
    const element = box.current;
    if (element && atEnd.current) element.scrollTop = element.scrollHeight;
  }, [lines]);
  return (
    <Card title="Logs" aside={<Command line={lineOf(job, rank, attempt, text)} />}>
      <div class="inside">
        <div class="controls">
          {ranks > 1 && (
            <label>
              Rank{" "}
              <select
                value={rank}
                onChange={(event) => setQuery({ rank: event.currentTarget.value })}
              >
                <option value="all">all</option>
                {Array.from({ length: ranks }, (_, one) => (
                  <option key={one}>{one}</option>
                ))}
              </select>
            </label>
          )}
          <label>
            Attempt{" "}
            <select
              value={attempt}
              onChange={(event) => setQuery({ attempt: event.currentTarget.value })}
            >
              <option value="latest">latest, and those after it</option>
              {Array.from({ length: row.attempt }, (_, one) => (
                <option key={one}>{one + 1}</option>
              ))}
            </select>
          </label>
          <form
            class="searching"
            role="search"
            onSubmit={(event) => {
              event.preventDefault();
              setQuery({ grep: wanted.trim() });
            }}
          >
            <input
              type="search"
              aria-label="Lines with a text, in the whole log"
              placeholder="Lines with …"
              maxLength={256}
              value={wanted}
              onInput={(event) => setWanted(event.currentTarget.value)}
            />
            <button>Search</button>
            {text && (
              <button
                type="button"
                onClick={() => {
                  setWanted("");
                  setQuery({ grep: "" });
                }}
              >
                Show all
              </button>
            )}
          </form>
          <Download job={job} ranks={chosen} attempt={attempt} onProblem={setProblem} />
        </div>
        {several && ranks > RANKS_MAX && (
          <p class="dim">Ranks 0 to {RANKS_MAX - 1} are shown: so many can be followed at once.</p>
        )}
        <Problem text={problem} />
        {dropped > 0 && (
          <p class="dim">The last {many(lines.length, "line")} are shown; the download has all.</p>
        )}
        <div
          class="log mono"
          ref={box}
          tabIndex={0}
          role="log"
          aria-live="off"
          aria-label={
            several ? `Output of all ranks of ${job}` : `Output of rank ${rank} of ${job}`
          }
          onScroll={(event) => {
            const element = event.currentTarget;
            atEnd.current = element.scrollTop + element.clientHeight > element.scrollHeight - 40;
          }}
        >
          {lines.map((line) => (
            <Shown key={line.key} line={line} several={several} />
          ))}
          {!lines.length && !problem && (
            <span class="dim">
              {text
                ? over
                  ? "No line has this text."
                  : "The log is searched …"
                : "It has printed nothing yet."}
            </span>
          )}
        </div>
        <p class="dim" role="status">
          {text
            ? `${many(lines.length, "line")} with “${text}”${over ? "" : " so far"}`
            : over
              ? sayOver(row, problem)
              : "New lines show as they are printed."}
        </p>
      </div>
    </Card>
  );
}

function sayOver(row: Job, problem: string): string {
  if (problem) return "Nothing more comes for now.";
  return `The ${row.ended_at ? "job" : "attempt"} is over: nothing more comes.`;
}

function Shown({ line, several }: { line: Line; several: boolean }) {
  return (
    <div class="line">
      {several && (
        <span class="rank" title={`rank ${line.rank}`}>
          {line.rank}
        </span>
      )}
      {line.shown.map((one, place) =>
        one.style ? (
          <span key={place} class={one.style}>
            {one.text}
          </span>
        ) : (
          one.text
        ),
      )}
      {line.more > 0 && <span class="dim"> … {many(line.more, "character")} more</span>}
      {!line.shown.length && "\u200b"}
    </div>
  );
}

/** Lines of all ranks in the order in which they came, told once a frame. */
class Taken {
  private lines: Line[] = [];
  private gone = 0;
  private count = 0;
  private readonly rests = new Map<number, string>();
  private readonly pens = new Map<number, Pen>();
  private due = false;

  constructor(private readonly tell: (lines: Line[], gone: number) => void) {}

  take(rank: number, text: string): void {
    const parts = ((this.rests.get(rank) ?? "") + text).split("\n");
    let rest = parts.pop() ?? "";
    // A line without an end is shown once it is as long as is shown of any.
    if (rest.length > 16 * SHOWN_CHARACTERS) {
      parts.push(rest);
      rest = "";
    }
    this.rests.set(rank, rest);
    for (const part of parts) this.add(rank, part);
    this.soon();
  }

  end(rank: number): void {
    const rest = this.rests.get(rank);
    this.rests.delete(rank);
    if (rest) this.add(rank, rest);
    this.soon();
  }

  private add(rank: number, text: string): void {
    const { shown, pen, more } = pieces(text, this.pens.get(rank) ?? PLAIN);
    this.pens.set(rank, pen);
    this.lines.push({ key: this.count++, rank, shown, more });
  }

  private soon(): void {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => {
      this.due = false;
      const over = this.lines.length - LINES_MAX;
      if (over > 0) {
        this.lines = this.lines.slice(over);
        this.gone += over;
      }
      this.tell([...this.lines], this.gone);
    });
  }
}

const pathOf = (job: string, rank: number, more: Record<string, string>): string =>
  `/v1/jobs/${encodeURIComponent(job)}/logs?${new URLSearchParams({ rank: String(rank), ...more })}`;

function lineOf(job: string, rank: string, attempt: string, text: string): string {
  return [
    "skep logs",
    text ? `--grep '${text.replaceAll("'", "'\\''")}' -i` : "-f",
    rank !== "0" && `--rank ${rank}`,
    attempt !== "latest" && `--attempt ${attempt}`,
    job,
  ]
    .filter(Boolean)
    .join(" ");
}

/** Saves the whole output of each chosen rank. */
function Download(props: {
  job: string;
  ranks: number[];
  attempt: string;
  onProblem: (text: string) => void;
}) {
  const [got, setGot] = useState<number | null>(null);
  const download = async () => {
    props.onProblem("");
    try {
      for (const rank of props.ranks) {
        const path = pathOf(props.job, rank, { attempt: props.attempt });
        await saved(await open(path), `${props.job}-rank${rank}.log`, setGot);
      }
    } catch (error) {
      props.onProblem((error as Error).message);
    }
    setGot(null);
  };
  return (
    <button type="button" disabled={got !== null} onClick={() => void download()}>
      {got === null ? "Download" : bytes(got)}
    </button>
  );
}

async function read(
  path: string,
  signal: AbortSignal,
  take: (text: string) => void,
): Promise<void> {
  const response = await open(path, { signal });
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const piece = await reader?.read().catch((error: Error) => {
      if (signal.aborted) throw error;
      throw new Error("The log broke off. It is read again when the gateway is back.");
    });
    if (!piece || piece.done) return;
    take(piece.value);
  }
}

/** Take the lines that a search finds: each answer is a JSON line with some of them. */
async function found(
  path: string,
  signal: AbortSignal,
  take: (text: string) => void,
): Promise<void> {
  let rest = "";
  await read(path, signal, (more) => {
    const parts = (rest + more).split("\n");
    rest = parts.pop() ?? "";
    for (const part of parts) if (part) take((JSON.parse(part) as { text: string }).text);
  });
}
