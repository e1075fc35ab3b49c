// The searches: how far each of them has come, and its best trial.

import { useMemo } from "preact/hooks";

import { count, length, many } from "../format";
import { searches, standing } from "../live";
import { At, Bar, Command, Empty } from "../parts/basics";
import { ListTitle, Choices, SearchBox, VcChoice, wordsOf } from "../parts/listing";
import { figure, sayParams, SEARCH_LOOKS } from "../parts/params";
import { type Column, Rows, sorted } from "../parts/rows";
import { Word } from "../parts/word";
import { query, setQuery } from "../router";
import type { Search } from "../rows";

const STATES = ["active", "over", "all"];

const COLUMNS: Column<Search>[] = [
  {
    key: "search",
    title: "Search",
    width: "minmax(60px, .6fr)",
    cell: (row) => row.search,
    by: (row) => row.search,
  },
  {
    key: "name",
    title: "Name",
    width: "minmax(90px, 2.4fr)",
    cell: (row) => <span title={row.name}>{row.name}</span>,
    by: (row) => row.name,
  },
  {
    key: "state",
    title: "State",
    width: "84px",
    cell: (row) => <SearchState row={row} />,
    by: (row) => row.state,
  },
  {
    key: "vc",
    title: "VC",
    width: "minmax(60px, .7fr)",
    cell: (row) => row.vc,
    by: (row) => row.vc,
    from: 760,
  },
  {
    key: "owner",
    title: "Owner",
    width: "minmax(60px, .7fr)",
    cell: (row) => row.owner,
    by: (row) => row.owner,
    from: 1100,
  },
  {
    key: "trials",
    title: "Trials",
    width: "minmax(90px, 130px)",
    cell: (row) => <Trials row={row} />,
    by: (row) => row.trials,
    from: 420,
  },
  {
    key: "best",
    title: "Best",
    width: "92px",
    right: true,
    cell: (row) => (row.best ? figure(row.best.value) : "–"),
    by: (row) => row.best?.value ?? -Infinity,
    from: 560,
  },
  {
    key: "metric",
    title: "Metric",
    width: "minmax(104px, 1fr)",
    cell: (row) => <span title={row.metric}>{`${row.metric}, ${row.direction}`}</span>,
    by: (row) => row.metric,
    from: 900,
  },
  {
    key: "params",
    title: "Its parameters",
    width: "minmax(120px, 2fr)",
    cell: (row) => row.best && <Params row={row} />,
    from: 1000,
  },
  {
    key: "gpu",
    title: "GPU time",
    width: "76px",
    right: true,
    cell: (row) => length(row.gpu_ns),
    by: (row) => row.gpu_ns,
    from: 860,
  },
  {
    key: "began",
    title: "Began",
    width: "92px",
    right: true,
    cell: (row) => <At at={row.began_at} />,
    by: (row) => -row.began_at,
    from: 700,
  },
];

function SearchState({ row }: { row: Search }) {
  return <Word as={SEARCH_LOOKS[row.state] ?? "queued"} text={row.state} title={row.why ?? ""} />;
}

function Params({ row }: { row: Search }) {
  const text = sayParams(row.best?.params ?? {});
  return <span title={text}>{text}</span>;
}

function Trials({ row }: { row: Search }) {
  const { stands, trials } = row;
  const most = Math.max(row.trials_max, trials, 1);
  const runs = (stands["running"] ?? 0) + (stands["outside"] ?? 0);
  const label = `${many(trials, "trial")} of ${count(row.trials_max)}: ${runs} run, ${stands["over"] ?? 0} over`;
  return (
    <Bar
      label={label}
      parts={[
        ["dim", (stands["over"] ?? 0) / most],
        ["good", runs / most],
        ["honey", (trials - runs - (stands["over"] ?? 0)) / most],
      ]}
    />
  );
}

/** The page. */
export function SearchesPage() {
  const asked = query.value;
  const [state, vc, sort] = [
    asked.get("state") ?? "all",
    asked.get("vc") ?? "",
    asked.get("sort") ?? "",
  ];
  const words = wordsOf(asked);
  const all = searches.all.value;
  const rows = useMemo(
    () =>
      sorted(
        all.filter((row) => {
          if (state !== "all" && (row.state === "over") !== (state === "over")) return false;
          if (vc && row.vc !== vc) return false;
          const text =
            `${row.search} ${row.name} ${row.vc} ${row.owner} ${row.metric} ${row.method}`.toLowerCase();
          return words.every((word) => text.includes(word));
        }),
        COLUMNS,
        sort || "-began",
      ),
    [all, asked],
  );
  const line = ["skep search list", state !== "all" && `--state ${state}`, vc && `--vc ${vc}`];
  return (
    <>
      <ListTitle title="Searches" shown={rows.length} line={line.filter(Boolean).join(" ")} />
      <div class="controls">
        <SearchBox label="Search" hint="Search names, metrics, owners …" />
        <VcChoice />
        <span class="controls bare" role="group" aria-label="States">
          <Choices name="state" choices={STATES} usual="all" />
        </span>
      </div>
      <div class="card sized">
        <Rows
          label="Searches"
          columns={COLUMNS}
          rows={rows}
          keyOf={(row) => row.search}
          href={(row) => `/searches/${encodeURIComponent(row.search)}`}
          sort={sort || "-began"}
          onSort={(next) => setQuery({ sort: next })}
          empty={<Nothing some={all.length > 0} />}
        />
      </div>
    </>
  );
}

function Nothing({ some }: { some: boolean }) {
  if (standing.value === "loading") return <Empty>Loading …</Empty>;
  if (some)
    return (
      <Empty>
        No search matches. <a href="/searches">Show all searches</a>.
      </Empty>
    );
  return (
    <Empty>
      There is no search. One runs many trials of a job with other parameters, and gives GPUs to
      those that promise most. Begin one: <Command line="skep search submit search.yaml" />
    </Empty>
  );
}
