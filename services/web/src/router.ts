// The address bar: which page is shown, and in which state.

import { computed, signal } from "@preact/signals";

const address = signal(location.pathname + location.search);

/** The path without its query: `/jobs/j3`. */
export const path = computed(() => address.value.split("?")[0] ?? "/");
/** The query: the state of the page, so that a link shows the same. */
export const query = computed(() => new URLSearchParams(address.value.split("?")[1] ?? ""));

/** Return the name that a path has after `under`; what cannot be decoded is taken as it is. */
export function nameIn(shown: string, under: string): string {
  const text = shown.slice(under.length + 1);
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

addEventListener("popstate", () => {
  address.value = location.pathname + location.search;
});

/** Show another page, or (`replace`) the same one without a new step back. */
export function go(to: string, replace = false): void {
  if (to === address.value) return;
  history[replace ? "replaceState" : "pushState"](null, "", to);
  address.value = to;
  if (!replace) scrollTo(0, 0);
}

/** Change parts of the query; an empty value takes a part away. */
export function setQuery(changes: Record<string, string>): void {
  const next = new URLSearchParams(query.value);
  for (const [name, value] of Object.entries(changes)) {
    if (value) next.set(name, value);
    else next.delete(name);
  }
  const text = next.toString();
  go(text ? `${path.value}?${text}` : path.value, true);
}

/** Follow links within the page without loading it anew. */
export function followLinks(): void {
  document.addEventListener("click", (event) => {
    if (
      event.defaultPrevented ||
      event.button ||
      event.metaKey ||
      event.ctrlKey ||
      event.shiftKey
    ) {
      return;
    }
    const link = (event.target as Element | null)?.closest?.("a[href]");
    const href = link?.getAttribute("href");
    if (
      !link ||
      !href?.startsWith("/") ||
      href.startsWith("/v1/") ||
      link.hasAttribute("download")
    ) {
      return;
    }
    event.preventDefault();
    go(href);
  });
}
