// Saved views of the jobs: a name, and the query that shows them. They are kept in this browser.

import { signal } from "@preact/signals";

export interface View {
  name: string;
  query: string;
}

const KEY = "skep-views";
const MOST = 20;

function stored(): View[] {
  try {
    const told: unknown = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(told)
      ? told.filter((one) => typeof one?.name === "string" && typeof one?.query === "string")
      : [];
  } catch {
    return [];
  }
}

/** The views, in the order in which they were saved. */
export const views = signal<View[]>(stored());

function store(next: View[]): void {
  views.value = next;
  localStorage.setItem(KEY, JSON.stringify(next));
}

/** Save a view; one of the same name is replaced. */
export function keep(name: string, query: string): void {
  const told = name.trim();
  if (!told) return;
  store([...views.value.filter((one) => one.name !== told), { name: told, query }].slice(-MOST));
}

/** Forget a view. */
export function forget(name: string): void {
  store(views.value.filter((one) => one.name !== name));
}
