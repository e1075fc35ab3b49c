// The colour and the short name of each virtual cluster: the same on every page.

import { computed } from "@preact/signals";

import { vcs } from "../live";

/** How many colours there are; further virtual clusters begin anew, and their names tell them apart. */
const COLOURS = 10;
/** What a tenant reads in place of another one. */
export const HIDDEN = "?";

/** All names, in their order, in one text: it changes with them alone. */
export const names = computed(() => {
  vcs.version.value;
  return [...vcs.rows.keys()].sort().join(" ");
});

const places = computed(
  () =>
    new Map(
      names.value
        .split(" ")
        .filter(Boolean)
        .map((vc, place) => [vc, place]),
    ),
);

/** Three letters for each name: its first ones, or the last one too if those are another's as well. */
const shorts = computed(() => {
  const all = [...places.value.keys()];
  return new Map(
    all.map((vc): [string, string] => {
      const begin = vc.slice(0, 3);
      const alone = all.every((other) => other === vc || !other.startsWith(begin));
      return [vc, alone ? begin : begin.slice(0, 2) + vc.slice(-1)];
    }),
  );
});

/** Return the class that gives something the colour of a virtual cluster. */
export function colourOf(vc: string): string {
  const place = places.value.get(vc);
  return place === undefined ? "vc-other" : `vc-${place % COLOURS}`;
}

/** Return the class that marks a GPU as one that a virtual cluster owns, whoever uses it. */
export const ownOf = (vc: string): string => colourOf(vc).replace("vc-", "own-");

/** Return the letters that stand for a virtual cluster where its name has no room. */
export const shortOf = (vc: string): string => shorts.value.get(vc) ?? HIDDEN;

/** Return how a virtual cluster is called in a sentence. */
export const nameOf = (vc: string): string =>
  vc === HIDDEN || !vc ? "another virtual cluster" : vc;

/** A virtual cluster: its colour, its letters and its name, as a link. */
export function VcName({ vc }: { vc: string }) {
  if (vc === HIDDEN || !vc) return <span class="dim">another virtual cluster</span>;
  return (
    <a class="vcname" href={`/tenants/${encodeURIComponent(vc)}`}>
      <i class={`swatch ${colourOf(vc)}`} aria-hidden="true">
        {shortOf(vc)}
      </i>
      {vc}
    </a>
  );
}

/** What the colours mean. */
export function VcLegend() {
  const all = [...places.value.keys()];
  if (!all.length) return null;
  return (
    <>
      {all.map((vc) => (
        <VcName key={vc} vc={vc} />
      ))}
    </>
  );
}

/** How a GPU is drawn, and what that means. */
export function Mark({ gpu, text }: { gpu: string; text: string }) {
  return (
    <span>
      <i class={`gpu ${gpu}`} />
      {text}
    </span>
  );
}
