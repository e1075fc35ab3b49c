// What lists have in common: how many rows are shown, the line that lists the same, and filters that
// are kept in the address.

import { count } from "../format";
import { vcs } from "../live";
import { query, setQuery } from "../router";
import { Command } from "./basics";

/** The heading of a list. */
export function ListTitle({ title, shown, line }: { title: string; shown: number; line: string }) {
  return (
    <div class="title">
      <h1>{title}</h1>
      <span class="dim" role="status">
        {count(shown)} shown
      </span>
      <span class="more">
        <Command line={line} />
      </span>
    </div>
  );
}

/** The words that rows must have. */
export function SearchBox({ label, hint }: { label: string; hint: string }) {
  return (
    <input
      type="search"
      placeholder={hint}
      aria-label={label}
      value={query.value.get("q") ?? ""}
      onInput={(event) => setQuery({ q: event.currentTarget.value })}
    />
  );
}

/** Return the words of the search, in small letters. */
export const wordsOf = (asked: URLSearchParams): string[] =>
  (asked.get("q") ?? "").toLowerCase().split(/\s+/).filter(Boolean);

/** A virtual cluster, or all. */
export function VcChoice() {
  return (
    <label>
      <span class="hidden">Virtual cluster</span>
      <select
        value={query.value.get("vc") ?? ""}
        onChange={(event) => setQuery({ vc: event.currentTarget.value })}
      >
        <option value="">All virtual clusters</option>
        {[...vcs.rows.keys()].sort().map((name) => (
          <option key={name} value={name}>
            {name}
          </option>
        ))}
      </select>
    </label>
  );
}

/** A button for each of some choices of a key of the address; `usual` is not written there. */
export function Choices(props: { name: string; choices: string[]; usual: string }) {
  const { name, choices, usual } = props;
  const chosen = query.value.get(name) ?? usual;
  return (
    <>
      {choices.map((one) => (
        <button
          key={one}
          type="button"
          aria-pressed={chosen === one}
          onClick={() => setQuery({ [name]: one === usual ? "" : one })}
        >
          {one}
        </button>
      ))}
    </>
  );
}
