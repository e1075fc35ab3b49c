// The tree of cells: where a cell is in it, what is inside, and who would have to leave.

import type { Schemas } from "./api";
import type { Window } from "./rows";

/** Parts are left out of the answer where they say nothing. */
export type Cell = Partial<Schemas["Cell"]> & { level: string; address: string; gpus: number };
export type Chain = Omit<Schemas["CellChain"], "cells"> & { cells: Cell[] };

/** A cell with the cells around it, the largest first. */
export interface Focus {
  chain: Chain;
  path: Cell[];
}

/** Return what the address names: a chain and, with an address, the cell in it and those around. */
export function focusOn(chains: Chain[], chain: string, address: string): Focus | null {
  const found = chains.find((one) => one.chain === chain);
  if (!found) return null;
  const path: Cell[] = [];
  for (let level = found.cells; address;) {
    const next = level.find(
      (cell) => cell.address === address || address.startsWith(`${cell.address}/`),
    );
    if (!next) break;
    path.push(next);
    if (next.address === address) break;
    level = inside(found, next);
  }
  return { chain: found, path };
}

/** Return the cells in a cell. Where all are alike the answer leaves them out: they are made here. */
export function inside(chain: Chain, cell: Cell): Cell[] {
  if (cell.children?.length) return cell.children as Cell[];
  const place = chain.levels.findIndex((one) => one.level === cell.level);
  const below = chain.levels[place - 1];
  if (!below) return [];
  const parts = cell.gpus / below.gpus;
  const part = (n: number | undefined) => (n ? n / parts : 0);
  return Array.from({ length: parts }, (_, index) => ({
    level: below.level,
    address: `${cell.address}/${below.level} ${index}`,
    gpus: below.gpus,
    idle: part(cell.idle),
    used: part(cell.used),
    borrowed: part(cell.borrowed),
    reserved: part(cell.reserved),
    bad: part(cell.bad),
    job: cell.job ?? "",
    vc: cell.vc ?? "",
    for: cell.for ?? "",
    beside: cell.beside ?? [],
  }));
}

/** A GPU of a cell, with the owner of the cell that it is in. */
export interface Leaf {
  cell: Cell;
  owner: string;
  address: string;
}

/** Return the GPUs in a cell, in the order of the tree. */
export function leaves(chain: Chain, cell: Cell, owner: string): Leaf[] {
  const mine = cell.owner || owner;
  const within = inside(chain, cell);
  if (!within.length) return [{ cell, owner: mine, address: cell.address }];
  return within.flatMap((one) => leaves(chain, one, mine));
}

/** Counts of the GPUs in a cell: by virtual cluster that uses them, idle, bad, borrowed. */
export interface Use {
  byVc: Map<string, number>;
  idle: number;
  bad: number;
  borrowed: number;
  reserved: number;
}

/** Return how the GPUs of some cells are used. */
export function useOf(cells: Cell[]): Use {
  const use: Use = { byVc: new Map(), idle: 0, bad: 0, borrowed: 0, reserved: 0 };
  const take = (cell: Cell) => {
    if (cell.children?.length) return (cell.children as Cell[]).forEach(take);
    use.idle += cell.idle ?? 0;
    use.bad += cell.bad ?? 0;
    use.borrowed += cell.borrowed ?? 0;
    use.reserved += cell.reserved ?? 0;
    const held = (cell.used ?? 0) + (cell.borrowed ?? 0);
    if (held) use.byVc.set(cell.vc || "?", (use.byVc.get(cell.vc || "?") ?? 0) + held);
  };
  cells.forEach(take);
  return use;
}

/** Return the node that an address leads through; empty: it is of a larger cell. */
export function nodeOf(chain: Chain, path: Cell[]): string {
  const node = path.find((cell) => cell.level === chain.node_level);
  return node?.address.split("/").at(-1) ?? "";
}

/** Return the windows that a node is in, the first to begin first. */
export const windowsOf = (windows: Window[], node: string): Window[] =>
  windows.filter((one) => one.nodes.includes(node));

/** A job in a cell: on how many of its GPUs, and by which right. */
export interface Inside {
  job: string;
  vc: string;
  gpus: number;
  borrowed: boolean;
  /** The virtual clusters that own the GPUs that it borrows here; empty: none does now. */
  from: string[];
}

/** Return the jobs in some GPUs, those that hold most first. */
export function jobsIn(all: Leaf[]): Inside[] {
  const found = new Map<string, Inside>();
  for (const { cell, owner } of all) {
    if (!(cell.used || cell.borrowed)) continue;
    const borrowed = Boolean(cell.borrowed);
    const key = `${cell.job} ${cell.vc} ${borrowed}`;
    const one = found.get(key) ?? {
      job: cell.job ?? "?",
      vc: cell.vc || "?",
      gpus: 0,
      borrowed,
      from: [],
    };
    one.gpus += 1;
    if (borrowed && owner && !one.from.includes(owner)) one.from.push(owner);
    found.set(key, one);
  }
  return [...found.values()].sort((a, b) => b.gpus - a.gpus);
}

/** Return the address of the cell that is a node, and its chain; null: it is in no chain. */
export function findNode(chains: Chain[], node: string): [string, string] | null {
  for (const chain of chains) {
    const stack = [...chain.cells];
    for (let cell = stack.pop(); cell; cell = stack.pop()) {
      if (cell.level !== chain.node_level) stack.push(...((cell.children ?? []) as Cell[]));
      else if (cell.address.split("/").at(-1) === node) return [chain.chain, cell.address];
    }
  }
  return null;
}
