// The state of the cluster, kept up to date: listed once, then changed as the gateway says.
//
// `GET /v1/state` lists tables and gives a cursor; `GET /v1/state/changes` sends the rows that
// changed since. After a break the stream goes on from the last cursor. A cursor that the gateway
// no longer knows is answered by `reset`, and the tables are listed anew.

import { batch, computed, type ReadonlySignal, type Signal, signal } from "@preact/signals";

import { open, Refused } from "./api";
import type * as rows from "./rows";
import { token } from "./session";

interface Listing {
  cursor: string;
  at: number;
  tables: Record<string, { columns: string[]; rows: unknown[][] }>;
}

interface Changes {
  at: number;
  tables: Record<string, { rows?: unknown[][]; gone?: string[] }>;
}

/** One table: rows by their key, and a number that grows with every change of it. */
export class Table<Row> {
  readonly rows = new Map<string, Row>();
  readonly version = signal(0);
  /** All rows, in the order in which they came. */
  readonly all: ReadonlySignal<Row[]> = computed(() => {
    this.version.value;
    return [...this.rows.values()];
  });
  private shape: Shape = shapeOf([]);
  /** Rows that are followed one by one. */
  private readonly followed = new Map<string, Signal<Row | undefined>>();

  /** Return the row with this key, and follow its changes alone. */
  get(key: string): Row | undefined {
    let one = this.followed.get(key);
    if (!one) this.followed.set(key, (one = signal(this.rows.get(key))));
    return one.value;
  }

  list(columns: string[], listed: unknown[][]): void {
    this.shape = shapeOf(columns);
    this.rows.clear();
    this.put(listed);
    for (const [key, one] of this.followed) one.value = this.rows.get(key);
  }

  change(changed: unknown[][], gone: string[]): void {
    for (const key of gone) this.rows.delete(key);
    this.put(changed);
    if (!this.followed.size) return;
    for (const key of gone) this.told(key);
    for (const cells of changed) this.told(String(cells[0]));
  }

  private put(changed: unknown[][]): void {
    for (const cells of changed) this.rows.set(String(cells[0]), new this.shape(cells) as Row);
    this.version.value += 1;
  }

  private told(key: string): void {
    const one = this.followed.get(key);
    if (one) one.value = this.rows.get(key);
  }
}

type Shape = new (cells: unknown[]) => object;

/** Return a class whose fields are the columns of a row, which stays the array that it came as:
 * as objects with forty fields of their own, ten thousand rows take several times the memory. */
function shapeOf(columns: string[]): Shape {
  class Row {
    constructor(readonly cells: unknown[]) {}
  }
  columns.forEach((column, place) =>
    Object.defineProperty(Row.prototype, column, {
      get(this: Row) {
        return this.cells[place];
      },
    }),
  );
  return Row;
}

export const jobs = new Table<rows.Job>();
export const nodes = new Table<rows.Node>();
export const gpus = new Table<rows.Gpu>();
export const vcs = new Table<rows.Vc>();
export const searches = new Table<rows.Search>();
export const totals = new Table<rows.Totals>();
export const alerts = new Table<rows.Alert>();

const tables: Record<string, Table<never>> = {
  jobs,
  nodes,
  gpus,
  vcs,
  searches,
  totals,
  alerts,
} as unknown as Record<string, Table<never>>;

/** `loading` until the first listing, then `live`, or `away` while the gateway does not answer. */
export const standing = signal<"loading" | "live" | "away">("loading");
/** How often the gateway came back after it was away: what is not in the tables is asked again then. */
export const returns = signal(0);
/** Why the state cannot be shown; empty: it can. */
export const problem = signal("");
/** How late the last change was shown after the gateway told it, in milliseconds. */
export const delay = signal(0);

const RETRY_MS = [250, 500, 1000, 2000, 4000];
const SILENT_MS = 40_000;
/** A stream that lasted so long and ended was ended in good order. */
const WHOLE_MS = 60_000;

/** Follow the state of the cluster until `stop` is aborted. */
export async function follow(stop: AbortSignal): Promise<void> {
  let cursor = "";
  let failures = 0;
  standing.value = "loading";
  while (!stop.aborted && token.value) {
    try {
      cursor ||= await list(stop);
      failures = 0;
      for await (const frame of frames(cursor, stop)) {
        if (frame.event === "reset") {
          cursor = "";
          break;
        }
        take(JSON.parse(frame.data) as Changes);
        cursor = frame.id || cursor;
      }
    } catch (error) {
      if (stop.aborted) return;
      if (error instanceof Refused && error.status >= 400 && error.status < 500) {
        if (error.status !== 429) {
          problem.value = error.message;
          return;
        }
      }
      standing.value = standing.value === "loading" ? "loading" : "away";
      await later(RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)] ?? 4000, stop);
    }
  }
}

/** List everything: what is small and shown first, then the tables of a row for each job and GPU.
 * Return the older cursor, as a large table may be that of a second ago: what changed since comes
 * once more. */
async function list(stop: AbortSignal): Promise<string> {
  const small = ["totals", "alerts", "vcs", "searches"];
  const large = Object.keys(tables).filter((name) => !small.includes(name));
  let cursor = "";
  // Those of two processes of the gateway cannot be compared: it was started anew between them.
  while (!cursor) cursor = older(await listSome(small, stop), await listSome(large, stop));
  problem.value = "";
  isLive();
  return cursor;
}

/** Return the older of two cursors, EPOCH-VERSION; empty: they are of two epochs. */
function older(one: string, other: string): string {
  const [epoch, version] = one.split("-");
  const [otherEpoch, otherVersion] = other.split("-");
  if (epoch !== otherEpoch) return "";
  return Number(otherVersion) < Number(version) ? other : one;
}

async function listSome(names: string[], stop: AbortSignal): Promise<string> {
  const response = await open(`/v1/state?tables=${names.join()}`, { signal: stop });
  const listing = (await response.json()) as Listing;
  batch(() => {
    for (const name of names) {
      const listed = listing.tables[name];
      tables[name]?.list(listed?.columns ?? [], listed?.rows ?? []);
    }
  });
  return listing.cursor;
}

function isLive(): void {
  if (standing.value === "away") returns.value += 1;
  standing.value = "live";
}

function take(changes: Changes): void {
  batch(() => {
    for (const [name, change] of Object.entries(changes.tables)) {
      tables[name]?.change(change.rows ?? [], change.gone ?? []);
    }
    delay.value = Math.max(0, Date.now() - changes.at / 1e6);
  });
}

interface Frame {
  event: string;
  id: string;
  data: string;
}

/** Yield the frames of the stream. A stream that is silent for too long is given up. */
async function* frames(cursor: string, stop: AbortSignal): AsyncGenerator<Frame> {
  const silent = new AbortController();
  let timer = setTimeout(() => silent.abort(), SILENT_MS);
  try {
    const signal = AbortSignal.any([stop, silent.signal]);
    const path = `/v1/state/changes?since=${encodeURIComponent(cursor)}`;
    const response = await open(path, { signal });
    if (!response.body) return;
    const began = Date.now();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    isLive();
    for (let rest = ""; ;) {
      const { value, done } = await reader.read();
      if (done) {
        // The gateway ends streams in good order now and then; what ends at once is another matter.
        if (Date.now() - began > WHOLE_MS) return;
        throw new Error("the stream ended");
      }
      clearTimeout(timer);
      timer = setTimeout(() => silent.abort(), SILENT_MS);
      const parts = (rest + value).split("\n\n");
      rest = parts.pop() ?? "";
      for (const part of parts) {
        const frame = read(part);
        if (frame.data) yield frame;
      }
    }
  } finally {
    clearTimeout(timer);
  }
}

function read(text: string): Frame {
  const frame: Frame = { event: "message", id: "", data: "" };
  for (const line of text.split("\n")) {
    if (line.startsWith("event: ")) frame.event = line.slice(7);
    else if (line.startsWith("id: ")) frame.id = line.slice(4);
    else if (line.startsWith("data: ")) frame.data += line.slice(6);
  }
  return frame;
}

function later(ms: number, stop: AbortSignal): Promise<void> {
  return new Promise((done) => {
    const timer = setTimeout(done, ms);
    stop.addEventListener(
      "abort",
      () => {
        clearTimeout(timer);
        done();
      },
      { once: true },
    );
  });
}
