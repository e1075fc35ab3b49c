// The services: how many replicas each has and is to have, and what is asked of it.

import { useMemo } from "preact/hooks";

import { answered, api, type Schemas } from "../api";
import { useAsked } from "../asking";
import { NS, now } from "../format";
import { At, Command, Empty, Problem } from "../parts/basics";
import { Choices, ListTitle, SearchBox, VcChoice, wordsOf } from "../parts/listing";
import { type Column, Rows, sorted } from "../parts/rows";
import { Word } from "../parts/word";
import { query, setQuery } from "../router";

export type Service = Schemas["ServiceRow"];

const STATES = ["active", "over", "all"];
/** Loads change all the time, and no message says so: they are asked for every so many seconds. */
export const ASKED_EVERY_S = 3;

/** A number that is another one each time that loads are to be asked for. */
export const round = () => Math.floor(now.value / NS / ASKED_EVERY_S);

const LOOKS: Record<string, string> = {
  active: "running",
  updating: "bound",
  lacking: "queued",
  idle: "suspended",
  ending: "stopping",
  over: "succeeded",
};

/** The state of a service, and whether it has the replicas that it is to have. */
export function ServiceState({ row }: { row: Service }) {
  const active = row.state === "active";
  const less = row.wanted === 0 ? "idle" : row.ready < row.wanted ? "lacking" : "active";
  const word = !active ? row.state : row.updating ? "updating" : less;
  return <Word as={LOOKS[word] ?? "queued"} text={word} title={row.why ?? ""} />;
}

/** The latency of 95 % of the requests, and what it is to be. */
export function Latency({ row }: { row: Service }) {
  const late = row.latency_ms !== null && row.p95_ms > row.latency_ms;
  const shown = row.p95_ms ? `${row.p95_ms} ms` : "–";
  return (
    <>
      {late ? <Word as="failed" text={shown} title="longer than the service allows" /> : shown}
      {row.latency_ms !== null && <span class="dim"> of {row.latency_ms}</span>}
    </>
  );
}

export const perSecond = (value: number): string => String(Number(value.toPrecision(3)));

const COLUMNS: Column<Service>[] = [
  {
    key: "service",
    title: "Service",
    width: "minmax(56px, .5fr)",
    cell: (row) => row.service,
    by: (row) => Number(row.service.slice(1)),
  },
  {
    key: "name",
    title: "Name",
    width: "minmax(90px, 2fr)",
    cell: (row) => <span title={row.name}>{row.name}</span>,
    by: (row) => row.name,
  },
  {
    key: "state",
    title: "State",
    width: "92px",
    cell: (row) => <ServiceState row={row} />,
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
    key: "ready",
    title: "Ready",
    width: "72px",
    right: true,
    cell: (row) => `${row.ready} of ${row.wanted}`,
    by: (row) => row.ready,
  },
  {
    key: "most",
    title: "At most",
    width: "76px",
    right: true,
    cell: (row) => row.replicas_max,
    by: (row) => row.replicas_max,
    from: 900,
  },
  {
    key: "requests",
    title: "Requests/s",
    width: "92px",
    right: true,
    cell: (row) => perSecond(row.requests_per_s),
    by: (row) => row.requests_per_s,
    from: 560,
  },
  {
    key: "target",
    title: "Each answers",
    width: "104px",
    right: true,
    cell: (row) => (row.target_per_s === null ? "–" : `${row.target_per_s}/s`),
    by: (row) => row.target_per_s ?? 0,
    from: 1000,
  },
  {
    key: "p95",
    title: "95 % within",
    width: "124px",
    right: true,
    cell: (row) => <Latency row={row} />,
    by: (row) => row.p95_ms,
    from: 660,
  },
  {
    key: "open",
    title: "Open",
    width: "60px",
    right: true,
    cell: (row) => row.open,
    by: (row) => row.open,
    from: 860,
  },
  {
    key: "began",
    title: "Began",
    width: "92px",
    right: true,
    cell: (row) => <At at={row.began_at} />,
    by: (row) => -row.began_at,
    from: 960,
  },
];

/** The page. */
export function ServicesPage() {
  const asked = query.value;
  const [state, vc, sort] = [
    asked.get("state") ?? "active",
    asked.get("vc") ?? "",
    asked.get("sort") ?? "",
  ];
  const words = wordsOf(asked);
  const { value, problem } = useAsked(
    () => answered(api.GET("/v1/services", { params: { query: { state: "all" } } })),
    [round()],
  );
  const all = value?.services;
  const rows = useMemo(
    () =>
      sorted(
        (all ?? []).filter((row) => {
          if (state !== "all" && (row.state === "over") !== (state === "over")) return false;
          if (vc && row.vc !== vc) return false;
          const text = `${row.service} ${row.name} ${row.vc} ${row.owner}`.toLowerCase();
          return words.every((word) => text.includes(word));
        }),
        COLUMNS,
        sort || "-began",
      ),
    [all, asked],
  );
  const line = ["skep services", state !== "active" && "--all", vc && `--vc ${vc}`];
  return (
    <>
      <ListTitle title="Services" shown={rows.length} line={line.filter(Boolean).join(" ")} />
      <Problem text={problem} />
      <div class="controls">
        <SearchBox label="Search" hint="Search names, owners …" />
        <VcChoice />
        <span class="controls bare" role="group" aria-label="States">
          <Choices name="state" choices={STATES} usual="active" />
        </span>
      </div>
      <div class="card sized">
        <Rows
          label="Services"
          columns={COLUMNS}
          rows={rows}
          keyOf={(row) => row.service}
          href={(row) => `/services/${encodeURIComponent(row.service)}`}
          sort={sort || "-began"}
          onSort={(next) => setQuery({ sort: next })}
          empty={<Nothing known={!!all} some={!!all?.length} />}
        />
      </div>
    </>
  );
}

function Nothing({ known, some }: { known: boolean; some: boolean }) {
  if (!known) return <Empty>Loading …</Empty>;
  if (some)
    return (
      <Empty>
        No service matches. <a href="/services?state=all">Show all services</a>.
      </Empty>
    );
  return (
    <Empty>
      There is no service. One keeps replicas of a server at work, and passes requests on to those
      that are ready. Begin one: <Command line="skep serve service.yaml" />
    </Empty>
  );
}
