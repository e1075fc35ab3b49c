// Replays: what a past span would have been under other policies, begun here, with its progress.

import { useEffect, useState } from "preact/hooks";

import { answered, api, type Schemas } from "../api";
import { useAsked } from "../asking";
import { clock } from "../format";
import { returns } from "../live";
import { At, Bar, Card, Command, Empty, Problem } from "../parts/basics";
import { type Confirmed, Confirm } from "../parts/confirm";
import { Wide } from "../parts/wide";
import { Word } from "../parts/word";
import { query, setQuery } from "../router";
import { AskReplay, lineOf, sayPolicies } from "./replay_ask";
import { Outcome } from "./replay_outcome";

type Row = Schemas["ReplayRow"];
type Detail = Schemas["ReplayDetail"];

const LOOKS: Record<string, string> = {
  running: "running",
  done: "succeeded",
  failed: "failed",
  cancelled: "cancelled",
};
/** How long the gateway may take to tell that a replay has changed (seconds). */
const WAIT_S = 25;

/** The page. */
export function ReplayPage() {
  const [again, setAgain] = useState(0);
  const shown = query.value.get("r") ?? "";
  const { replay, problem } = useReplay(shown);
  const { value, problem: away } = useAsked(
    () => answered(api.GET("/v1/replays")),
    [again, shown, replay?.state],
  );
  const rows = (value?.replays ?? []) as Row[];
  const running = rows.find((row) => row.state === "running");
  return (
    <>
      <div class="title">
        <h1>Replay</h1>
      </div>
      <p class="dim">
        The jobs of a past span are simulated twice, with the run times that they had: as the
        cluster was, and under other policies. Nothing of the cluster is changed.
      </p>
      <Problem text={away} />
      <AskReplay
        busy={running?.replay ?? ""}
        onBegun={(name) => {
          setAgain(again + 1);
          setQuery({ r: name });
        }}
      />
      {shown && <Problem text={problem} />}
      {replay && <Shown replay={replay} />}
      <Card title="Replays of this gateway">
        {!rows.length && <Empty>None since it began. Choose a span and a policy above.</Empty>}
        {rows.length > 0 && <Table rows={rows} shown={shown} />}
      </Card>
    </>
  );
}

/** Ask for a replay, and ask on while it runs: each answer comes when it has changed. */
function useReplay(name: string): { replay: Detail | null; problem: string } {
  const [told, setTold] = useState<{ replay: Detail | null; problem: string }>({
    replay: null,
    problem: "",
  });
  useEffect(() => {
    let over = false;
    setTold({ replay: null, problem: "" });
    const ask = async () => {
      for (let seen = 0; name && !over;) {
        const replay = (await answered(
          api.GET("/v1/replays/{replay}", {
            params: { path: { replay: name }, query: { seen, timeout_s: WAIT_S } },
          }),
        )) as unknown as Detail;
        if (!over) setTold({ replay, problem: "" });
        if (replay.state !== "running") return;
        seen = replay.version;
      }
    };
    ask().catch((error: Error) => over || setTold({ replay: null, problem: error.message }));
    return () => {
      over = true;
    };
  }, [name, returns.value]);
  return told;
}

function Shown({ replay }: { replay: Detail }) {
  const [ask, setAsk] = useState<Confirmed | null>(null);
  return (
    <>
      <Card
        title={`${replay.replay}: ${sayPolicies(replay.policies)}`}
        aside={<Command line={lineOf(replay.since, replay.until, replay.policies)} />}
      >
        <div class="inside" role="status">
          <p>
            <Word as={LOOKS[replay.state] ?? "queued"} text={replay.state} /> {clock(replay.since)}{" "}
            to {clock(replay.until)}
            {replay.state === "running" && (
              <>
                , {replay.phase}: {Math.round(replay.part / 10)} %
              </>
            )}
          </p>
          {replay.state === "running" && (
            <>
              <Bar
                label={`${replay.phase}: ${Math.round(replay.part / 10)} %`}
                parts={[["", replay.part / 1000]]}
              />
              <p>
                <button type="button" class="danger" onClick={() => setAsk(cancelOf(replay))}>
                  Cancel
                </button>
              </p>
            </>
          )}
          {replay.text && (
            <p>
              <code class="chip">{replay.reason}</code> {replay.text}
            </p>
          )}
        </div>
      </Card>
      {replay.outcome && <Outcome outcome={replay.outcome} />}
      {ask && <Confirm ask={ask} onClose={() => setAsk(null)} />}
    </>
  );
}

function cancelOf(replay: Row): Confirmed {
  return {
    title: `Cancel ${replay.replay}`,
    verb: "Cancel it",
    danger: true,
    text: "Its process ends. A replay at the command line is ended by Ctrl-C.",
    line: lineOf(replay.since, replay.until, replay.policies),
    run: () =>
      answered(api.DELETE("/v1/replays/{replay}", { params: { path: { replay: replay.replay } } })),
  };
}

function Table({ rows, shown }: { rows: Row[]; shown: string }) {
  return (
    <Wide label="Replays">
      <table class="plain">
        <thead>
          <tr>
            <th>Replay</th>
            <th>State</th>
            <th>Policies</th>
            <th>Span</th>
            <th>Begun</th>
            <th>By</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.replay}>
              <td>
                <a
                  href={`/replay?r=${row.replay}`}
                  aria-current={row.replay === shown ? "true" : undefined}
                >
                  {row.replay}
                </a>
              </td>
              <td>
                <Word as={LOOKS[row.state] ?? "queued"} text={row.state} title={row.text} />
              </td>
              <td>{sayPolicies(row.policies)}</td>
              <td>
                {clock(row.since)} to {clock(row.until)}
              </td>
              <td>
                <At at={row.begun_at} />
              </td>
              <td>{row.by}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Wide>
  );
}
