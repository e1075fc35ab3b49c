// One search: its curves and rungs, its parameters side by side, and all of its trials.

import { useMemo, useState } from "preact/hooks";

import { answered, api, type Schemas } from "../api";
import { useAsked } from "../asking";
import { count, length, many, NS } from "../format";
import { searches } from "../live";
import { At, Card, Command, Empty, Problem } from "../parts/basics";
import { type Confirmed, Confirm } from "../parts/confirm";
import { figure, sayParams, SEARCH_LOOKS } from "../parts/params";
import { type Column, Rows, sorted } from "../parts/rows";
import { Word } from "../parts/word";
import { nameIn, path, query, setQuery } from "../router";
import { may } from "../session";
import { SearchCurves } from "./search_curves";
import { axesOf, brushed, Parallel } from "./search_parallel";
import { Rungs } from "./search_rungs";

type Search = Schemas["SearchDetail"];
type Trial = Schemas["TrialRow"];

/** The page. */
export function SearchPage() {
  const name = nameIn(path.value, "/searches");
  const live = searches.get(name);
  // Curves are not in the row: they are asked for when it changes, and for a tenth more GPU time.
  const used = live ? Math.round(10 * Math.log(1 + live.gpu_ns / NS)) : 0;
  const key = JSON.stringify([live?.state, live?.stands, live?.best, live?.trials, used]);
  const [done, setDone] = useState(0);
  const { value: search, problem } = useAsked(
    () => answered(api.GET("/v1/searches/{search}", { params: { path: { search: name } } })),
    [name, key, done],
  );
  if (!search) {
    return problem ? (
      <>
        <h1>{name}</h1>
        <Problem text={problem} />
        <p>
          <a href="/searches">All searches</a>
        </p>
      </>
    ) : (
      <Empty>Loading {name} …</Empty>
    );
  }
  // The client's types lose that a point is a pair.
  const told = search as unknown as Search;
  return <Shown search={told} problem={problem} onDone={() => setDone(done + 1)} />;
}

function Shown({
  search,
  problem,
  onDone,
}: {
  search: Search;
  problem: string;
  onDone: () => void;
}) {
  const [ask, setAsk] = useState<Confirmed | null>(null);
  const steers = may("steer-search", search.vc, search.owner);
  const axes = useMemo(() => axesOf(search), [search]);
  const asked = query.value;
  const taken = useMemo(
    () => search.rows.filter((row) => brushed(row, axes, asked)),
    [axes, asked],
  );
  return (
    <>
      <div class="title">
        <h1>
          {search.search} <span class="dim">{search.name}</span>
        </h1>
        <Word as={SEARCH_LOOKS[search.state] ?? "queued"} text={search.state} />
        {search.why && <code class="chip">{search.why}</code>}
        <span class="more" role="group" aria-label="Actions">
          {steers && search.state === "active" && (
            <button type="button" class="danger" onClick={() => setAsk(cancelOf(search))}>
              Cancel
            </button>
          )}
        </span>
      </div>
      <Problem text={problem} />
      <Tiles search={search} />
      <SearchCurves search={search} trials={taken} />
      <Rungs search={search} />
      <Parallel search={search} axes={axes} taken={taken} />
      <TrialTable search={search} trials={taken} steers={steers} onAsk={setAsk} />
      <About search={search} />
      {ask && (
        <Confirm
          ask={ask}
          onClose={() => {
            setAsk(null);
            onDone();
          }}
        />
      )}
    </>
  );
}

function cancelOf(search: Search): Confirmed {
  return {
    title: `Cancel ${search.search} ${search.name}`,
    verb: "Cancel it",
    danger: true,
    text: "No further trial begins, and every trial of it ends.",
    line: `skep search cancel ${search.search}`,
    run: () =>
      answered(
        api.DELETE("/v1/searches/{search}", {
          params: { path: { search: search.search } },
        }),
      ),
  };
}

function rankOf(search: Search, trial: Trial): Confirmed {
  const verb = trial.demoted ? "promote" : "demote";
  return {
    title: `${trial.demoted ? "Promote" : "Demote"} trial ${trial.trial} of ${search.search}`,
    verb: trial.demoted ? "Promote" : "Demote",
    text: trial.demoted
      ? "It takes part again, as its curve says."
      : "It is suspended as soon as another trial waits, and runs only where no other wants to.",
    line: `skep search ${verb} ${search.search} ${trial.trial}`,
    run: () =>
      answered(
        api.POST("/v1/searches/{search}/trials/{trial}/{do}", {
          params: { path: { search: search.search, trial: trial.trial, do: verb } },
        }),
      ),
  };
}

function Tiles({ search }: { search: Search }) {
  const { best, stands } = search;
  const runs = (stands["running"] ?? 0) + (stands["outside"] ?? 0);
  return (
    <div class="tiles">
      <div class="tile">
        <b>{best ? figure(best.value) : "–"}</b>
        <span>
          best {search.metric}, {search.direction}
          {search.target !== null && `; the aim is ${figure(search.target)}`}
        </span>
      </div>
      <div class="tile">
        <b>{best ? <>trial {best.trial}</> : "–"}</b>
        <span>{best ? sayParams(best.params) : "No trial has reported a value yet."}</span>
      </div>
      <div class="tile">
        <b>
          {count(search.trials)}
          <small class="dim"> of {count(search.trials_max)}</small>
        </b>
        <span>
          trials; {count(runs)} run, {count(stands["over"] ?? 0)} are over
        </span>
      </div>
      <div class="tile">
        <b>{length(search.gpu_ns)}</b>
        <span>
          GPU time{typeof search.gpu_time_s === "number" && ` of ${length(search.gpu_time_s * NS)}`}
        </span>
      </div>
    </div>
  );
}

const upwards = (search: Search) => search.direction === "maximize";

function columnsOf(
  search: Search,
  steers: boolean,
  onAsk: (ask: Confirmed) => void,
): Column<Trial>[] {
  const best = search.best?.trial;
  // What has no value is last, whichever way is better.
  const by = (value: number | null) => value ?? (upwards(search) ? -Infinity : Infinity);
  return [
    {
      key: "trial",
      title: "Trial",
      width: "58px",
      cell: (row) => (row.trial === best ? <b>★ {row.trial}</b> : row.trial),
      by: (row) => row.trial,
    },
    {
      key: "job",
      title: "Job",
      width: "minmax(56px, .5fr)",
      cell: (row) =>
        row.job ? (
          <a href={`/jobs/${encodeURIComponent(row.job)}`}>{row.job}</a>
        ) : (
          <span class="dim">outside</span>
        ),
      by: (row) => row.job ?? "",
      from: 420,
    },
    {
      key: "state",
      title: "State",
      width: "minmax(96px, .8fr)",
      cell: (row) => <TrialState row={row} />,
      by: (row) => row.end ?? row.stand,
    },
    {
      key: "step",
      title: "Steps",
      width: "64px",
      right: true,
      cell: (row) => count(row.step),
      by: (row) => row.step,
      from: 620,
    },
    {
      key: "value",
      title: "Value",
      width: "78px",
      right: true,
      cell: (row) => figure(row.value),
      by: (row) => by(row.value),
      from: 760,
    },
    {
      key: "best",
      title: "Best",
      width: "78px",
      right: true,
      cell: (row) => figure(row.best),
      by: (row) => by(row.best),
    },
    {
      key: "promise",
      title: "Expected",
      width: "minmax(80px, .8fr)",
      right: true,
      cell: (row) => <Expected row={row} />,
      by: (row) => by(row.promise),
      from: 900,
    },
    {
      key: "rung",
      title: "Rung",
      width: "58px",
      right: true,
      cell: (row) => (row.rungs.length ? `${row.reached.length}/${row.rungs.length}` : "–"),
      by: (row) => row.reached.length,
      from: 1000,
    },
    {
      key: "ran",
      title: "Ran",
      width: "64px",
      right: true,
      cell: (row) => length(row.ran_ns),
      by: (row) => row.ran_ns,
      from: 820,
    },
    {
      key: "params",
      title: "Parameters",
      width: "minmax(110px, 2.4fr)",
      cell: (row) => <span title={sayParams(row.params)}>{sayParams(row.params)}</span>,
      from: 560,
    },
    ...(steers && search.state === "active"
      ? [
          {
            key: "do",
            title: "Action",
            width: "84px",
            cell: (row: Trial) =>
              row.stand !== "over" && (
                <button
                  type="button"
                  class="quiet"
                  aria-label={`${row.demoted ? "promote" : "demote"} trial ${row.trial}`}
                  onClick={() => onAsk(rankOf(search, row))}
                >
                  {row.demoted ? "promote" : "demote"}
                </button>
              ),
          },
        ]
      : []),
  ];
}

function TrialState({ row }: { row: Trial }) {
  const state = row.end === "done" ? "succeeded" : (row.end ?? row.stand);
  const looks = state === "outside" ? "running" : state === "given-up" ? "cancelled" : state;
  const title = [row.end ?? row.stand, row.why, row.demoted && "behind all others"]
    .filter(Boolean)
    .join(", ");
  return (
    <>
      <Word as={looks} text={row.end ?? row.stand} title={title} />
      {row.demoted && <span class="chip">behind</span>}
    </>
  );
}

function Expected({ row }: { row: Trial }) {
  if (row.promise === null) return <>–</>;
  const title = [
    row.spread !== null && `give or take ${figure(row.spread)}`,
    row.chance !== null && `reaches the aim with ${Math.round(100 * row.chance)} %`,
  ]
    .filter(Boolean)
    .join("; ");
  return <span title={title}>{figure(row.promise)}</span>;
}

function TrialTable(props: {
  search: Search;
  trials: Trial[];
  steers: boolean;
  onAsk: (ask: Confirmed) => void;
}) {
  const { search, trials } = props;
  const sort = query.value.get("sort") || (upwards(search) ? "-best" : "best");
  const columns = columnsOf(search, props.steers, props.onAsk);
  const rows = useMemo(() => sorted(trials, columns, sort), [search, trials, sort]);
  return (
    <Card
      title={
        trials.length === search.rows.length
          ? many(rows.length, "trial")
          : `${count(rows.length)} of ${many(search.rows.length, "trial")}`
      }
      class="sized"
      aside={<Command line={`skep search show ${search.search}`} />}
    >
      <Rows
        label="Trials"
        columns={columns}
        rows={rows}
        keyOf={(row) => String(row.trial)}
        sort={sort}
        onSort={(next) => setQuery({ sort: next })}
        empty={
          <Empty>
            {search.rows.length
              ? "No trial lies within the parameters that are chosen above."
              : "No trial has begun: the first one does as soon as the search has a place."}
          </Empty>
        }
      />
    </Card>
  );
}

function About({ search }: { search: Search }) {
  return (
    <Card title="What it is">
      <dl class="facts inside">
        <dt>Virtual cluster</dt>
        <dd>{search.vc}</dd>
        {search.owner && (
          <>
            <dt>Owner</dt>
            <dd>{search.owner}</dd>
          </>
        )}
        <dt>Method</dt>
        <dd>
          {search.method === "asha"
            ? "asha: a trial goes on from a rung if it is among the best that came there"
            : "curves: the trials whose learning curves promise most keep their GPUs"}
        </dd>
        <dt>Began</dt>
        <dd>
          <At at={search.began_at} />
        </dd>
        {search.ended_at && (
          <>
            <dt>Ended</dt>
            <dd>
              <At at={search.ended_at} />
            </dd>
          </>
        )}
      </dl>
      <details class="inside">
        <summary>Its spec</summary>
        <pre class="wide">{JSON.stringify(search.spec, null, 2)}</pre>
      </details>
    </Card>
  );
}
