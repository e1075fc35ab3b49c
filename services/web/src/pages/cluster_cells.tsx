// The cells: from a chain down to one GPU, with who owns them, who uses them, and who would leave.

import { useEffect, useMemo } from "preact/hooks";

import { answered, api } from "../api";
import { useAnew } from "../asking";
import {
  type Cell,
  type Chain,
  findNode,
  focusOn,
  inside,
  jobsIn,
  type Leaf,
  leaves,
  nodeOf,
  useOf,
  windowsOf,
} from "../cells";
import { count, many } from "../format";
import { gpus, vcs } from "../live";
import { Card, Command, Empty, Problem } from "../parts/basics";
import { Grid } from "../parts/grid";
import { colourOf, HIDDEN, Mark, nameOf, names, ownOf, shortOf, VcLegend } from "../parts/vcs";
import { go, query } from "../router";
import type { Window } from "../rows";
import { Inside } from "./cluster_inside";

/** Cells of more GPUs are drawn as a bar, not as GPUs. */
const DRAWN_MAX = 64;
const IN_ROW = 8;
const HEAD_PX = 52;
const ROW_PX = 27;
/** The part of the tree that the address names. */
export function CellsView({ windows }: { windows: Window[] }) {
  const version = gpus.version.value + vcs.version.value;
  const { value, problem } = useAnew(() => answered(api.GET("/v1/cells")), version, []);
  const chains = (value?.chains ?? []) as Chain[];
  const find = query.value.get("find");
  useEffect(() => {
    const found = find && chains.length ? findNode(chains, find) : null;
    if (found) go(hrefOf(...found), true);
  }, [find, chains.length]);
  if (!value) return problem ? <Problem text={problem} /> : <Empty>Loading …</Empty>;
  if (!chains.length) {
    return (
      <Empty>
        There are no cells: no node has joined. <Command line="skep node token" />
      </Empty>
    );
  }
  const only = chains.length === 1 ? (chains[0]?.chain ?? "") : "";
  const focus = focusOn(chains, query.value.get("chain") || only, query.value.get("cell") ?? "");
  return (
    <>
      <Problem text={problem} />
      {value.alarms.map((one) => (
        <Problem key={`${one.rule} ${one.where}`} text={`${one.where}: ${one.text}`} />
      ))}
      <Path chains={chains.length} chain={focus?.chain.chain ?? ""} path={focus?.path ?? []} />
      <p class="legend dim">
        <VcLegend />
        <Mark gpu="free" text="idle" />
        <Mark gpu="vc-other borrowed" text="borrowed" />
        <Mark gpu="free claimed" text="reserved" />
        <Mark gpu="bad" text="bad" />
        <Mark gpu="free own own-other" text="line below: the owner's colour" />
      </p>
      {focus ? (
        <Focused chain={focus.chain} path={focus.path} windows={windows} />
      ) : (
        <Chains chains={chains} windows={windows} />
      )}
    </>
  );
}

/** Return the address of a cell in this page. */
export const hrefOf = (chain: string, address = ""): string => {
  const asked = new URLSearchParams({ tab: "cells", chain, ...(address && { cell: address }) });
  return `/cluster?${asked.toString()}`;
};

const lastOf = (address: string): string => address.split("/").at(-1) ?? address;

function Path({ chains, chain, path }: { chains: number; chain: string; path: Cell[] }) {
  return (
    <nav class="path" aria-label="Where this is">
      <ol>
        {chains > 1 && (
          <li>
            <a href="/cluster?tab=cells" aria-current={chain ? undefined : "page"}>
              All chains
            </a>
          </li>
        )}
        {chain && (
          <li>
            <a href={hrefOf(chain)} aria-current={path.length ? undefined : "page"}>
              {chain}
            </a>
          </li>
        )}
        {path.map((cell, place) => (
          <li key={cell.address}>
            <a
              href={hrefOf(chain, cell.address)}
              aria-current={place === path.length - 1 ? "page" : undefined}
            >
              {lastOf(cell.address)}
            </a>
          </li>
        ))}
      </ol>
    </nav>
  );
}

function Chains({ chains, windows }: { chains: Chain[]; windows: Window[] }) {
  return (
    <div class="columns">
      {chains.map((chain) => {
        const all = chain.cells.reduce((sum, cell) => sum + cell.gpus, 0);
        return (
          <Card
            key={chain.chain}
            title={<a href={hrefOf(chain.chain)}>{chain.chain}</a>}
            aside={
              <span class="dim">
                {many(all, "GPU")}, {chain.gpu}
              </span>
            }
          >
            <div class="inside">
              <UseBar cells={chain.cells} of={all} />
              <div class="dim">{sayUse(chain.cells)}</div>
              <div class="dim">
                Levels: {chain.levels.map((one) => `${one.level} (${one.gpus})`).join(" · ")}
              </div>
            </div>
            {all <= DRAWN_MAX && (
              <div class="inside drawn">
                {chain.cells.map((cell) => (
                  <CellBox
                    key={cell.address}
                    chain={chain}
                    cell={cell}
                    owner=""
                    windows={windows}
                  />
                ))}
              </div>
            )}
          </Card>
        );
      })}
    </div>
  );
}

interface FocusedProps {
  chain: Chain;
  path: Cell[];
  windows: Window[];
}

/** What is shown of a cell: drawn anew with another tree, and not with every change of a row. */
function Focused({ chain, path, windows }: FocusedProps) {
  return useMemo(() => focused(chain, path, windows), [chain, path.at(-1), windows, names.value]);
}

function focused(chain: Chain, path: Cell[], windows: Window[]) {
  const cell = path.at(-1);
  const parts = cell ? inside(chain, cell) : chain.cells;
  const owner = path.findLast((one) => one.owner)?.owner ?? "";
  const all = (cell ? [cell] : chain.cells).flatMap((cell) => leaves(chain, cell, owner));
  const node = nodeOf(chain, path);
  const one = parts[0];
  return (
    <div class={parts.length ? "cells" : ""}>
      {one && (
        <div>
          <h2 class="counted">
            {many(parts.length, one.level)} of {many(one.gpus, "GPU")}
          </h2>
          <Grid
            label={`Cells of ${cell ? cell.address : chain.chain}`}
            items={parts}
            keyOf={(part) => part.address}
            width={one.gpus === 1 ? 130 : 250}
            height={heightOf(one)}
            box={(part) => <CellBox chain={chain} cell={part} owner={owner} windows={windows} />}
          />
        </div>
      )}
      <Inside
        chain={chain}
        cell={cell ?? null}
        owner={owner}
        leaves={all}
        jobs={jobsIn(all)}
        node={node}
        windows={node ? windowsOf(windows, node) : []}
      />
    </div>
  );
}

function heightOf(cell: Cell): number {
  if (cell.gpus > DRAWN_MAX) return HEAD_PX + 68;
  if (cell.gpus === 1) return 74;
  return HEAD_PX + ROW_PX * Math.ceil(cell.gpus / IN_ROW);
}

/** Few GPUs are drawn wider: there is room for them. */
const sizeOf = (gpus: number): string => (gpus === 1 ? "one" : gpus <= 4 ? "few" : "");

interface BoxProps {
  chain: Chain;
  cell: Cell;
  owner: string;
  windows: Window[];
}

function CellBox({ chain, cell, owner, windows }: BoxProps) {
  const mine = cell.owner || owner;
  const said = sayCell(cell, mine);
  const name = lastOf(cell.address);
  const reserved = cell.level === chain.node_level ? windowsOf(windows, name)[0] : undefined;
  return (
    <a
      class={`node cell ${cell.owner ? `owned ${colourOf(cell.owner)}` : ""} ${cell.doomed ? "doomed" : ""}`}
      href={hrefOf(chain.chain, cell.address)}
      title={said}
    >
      <span class="head">
        <span>{name}</span>
        <span class="dim">
          {cell.pin && `${cell.pin} · `}
          {reserved ? (reserved.maintenance ? "maintenance · " : `for ${reserved.vc} · `) : ""}
          {mine ? nameOf(mine) : ""}
        </span>
      </span>
      {cell.gpus > DRAWN_MAX ? (
        <>
          <UseBar cells={[cell]} of={cell.gpus} />
          <span class="dim brief" title={sayUse([cell])}>
            {sayUse([cell])}
          </span>
        </>
      ) : (
        <>
          <span class="hidden">: {said}</span>
          <span class={`gpus ${sizeOf(cell.gpus)}`} aria-hidden="true">
            {leaves(chain, cell, owner).map((leaf) => (
              <Square key={leaf.address} leaf={leaf} big={cell.gpus === 1} />
            ))}
          </span>
        </>
      )}
    </a>
  );
}

function Square({ leaf, big }: { leaf: Leaf; big: boolean }) {
  const { cell, owner } = leaf;
  const held = Boolean(cell.used || cell.borrowed);
  const names = [
    "gpu",
    held ? `tinted ${colourOf(cell.vc ?? "")}` : cell.bad ? "bad" : "free",
    cell.borrowed ? "borrowed" : "",
    cell.reserved ? "claimed" : "",
    cell.bad ? "crossed" : "",
    owner ? `own ${ownOf(owner)}` : "",
  ];
  const text = held
    ? big
      ? `${cell.job} · ${shortOf(cell.vc ?? "")}`
      : shortOf(cell.vc ?? "")
    : cell.bad
      ? "✕"
      : cell.reserved
        ? "→"
        : "";
  return <span class={names.join(" ")}>{text || "\u00a0"}</span>;
}

/** How the GPUs of cells are used, as one bar; each part has the letters of its virtual cluster. */
export function UseBar({ cells, of }: { cells: Cell[]; of: number }) {
  const use = useOf(cells);
  const parts = [...use.byVc].sort(([a], [b]) => a.localeCompare(b));
  return (
    <span class="usebar" role="img" aria-label={sayUse(cells)}>
      {parts.map(([vc, n]) => (
        <i key={vc} class={colourOf(vc)} style={{ flexGrow: n }}>
          {n / of > 0.06 ? shortOf(vc) : ""}
        </i>
      ))}
      {use.bad > 0 && (
        <i class="bad" style={{ flexGrow: use.bad }}>
          {use.bad / of > 0.06 ? "✕" : ""}
        </i>
      )}
      {use.idle > 0 && <i class="idle" style={{ flexGrow: use.idle }} />}
    </span>
  );
}

function sayUse(cells: Cell[]): string {
  const use = useOf(cells);
  return [
    `${count(use.idle)} idle`,
    use.bad && `${count(use.bad)} bad`,
    use.borrowed && `${count(use.borrowed)} borrowed`,
    use.reserved && `${count(use.reserved)} reserved`,
    ...[...use.byVc]
      .sort(([, one], [, other]) => other - one)
      .map(([vc, n]) => `${vc === HIDDEN ? "others" : vc} ${count(n)}`),
  ]
    .filter(Boolean)
    .join(", ");
}

function sayCell(cell: Cell, owner: string): string {
  return [
    `${cell.level} ${cell.address}: ${many(cell.gpus, "GPU")}`,
    owner && `owned by ${nameOf(owner)}`,
    cell.pin && `pinned as ${cell.pin}`,
    cell.doomed && "bad, and borne by its owner",
    sayUse([cell]),
    cell.job && `job ${cell.job}`,
  ]
    .filter(Boolean)
    .join(", ");
}
