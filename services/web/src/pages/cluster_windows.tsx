// Windows: nodes that are kept free for a time, for maintenance or for one virtual cluster.

import { useState } from "preact/hooks";

import { answered, api } from "../api";
import { instant, length, many, now, NS } from "../format";
import { nodes, vcs } from "../live";
import { At, Card, Command, Dialog, Empty, Problem } from "../parts/basics";
import { Confirm, type Confirmed } from "../parts/confirm";
import { VcName } from "../parts/vcs";
import type { Window } from "../rows";
import { may } from "../session";

const HOUR = 3600 * NS;

/** All windows that are booked or open. */
export function WindowsView(props: { windows: Window[]; problem: string; onChange: () => void }) {
  const [ask, setAsk] = useState<Confirmed | null>(null);
  const [booking, setBooking] = useState(false);
  return (
    <>
      <Problem text={props.problem} />
      <Card
        title="Nodes that are kept free"
        aside={
          may("maintain") && (
            <button type="button" class="strong" onClick={() => setBooking(true)}>
              Reserve nodes
            </button>
          )
        }
      >
        {!props.windows.length && (
          <Empty>
            No node is reserved.{" "}
            <Command line="skep reserve create --nodes NODE --from 2h --for 4h --maintenance" />
          </Empty>
        )}
        <ul class="list">
          {props.windows.map((one) => (
            <li key={one.name}>
              <div class="what">
                <b>{one.name}</b>
                <WindowLine window={one} />
                {may("maintain") && (
                  <button
                    type="button"
                    class="quiet"
                    onClick={() => setAsk(giveUp(one, props.onChange))}
                  >
                    {one.open ? "end it" : "give it up"}
                  </button>
                )}
              </div>
              <div>
                {one.nodes.map((node) => (
                  <a key={node} href={`/cluster?tab=windows&node=${encodeURIComponent(node)}`}>
                    {node}{" "}
                  </a>
                ))}
                {one.reason && <span class="dim">{one.reason}</span>}
              </div>
              {one.jobs.length > 0 && (
                <div class="dim within">
                  {one.open ? "Still there" : "They leave when it begins"}:{" "}
                  {one.jobs.map((job) => (
                    <a key={job} href={`/jobs/${encodeURIComponent(job)}`}>
                      {job}{" "}
                    </a>
                  ))}
                </div>
              )}
            </li>
          ))}
        </ul>
      </Card>
      {ask && <Confirm ask={ask} onClose={() => setAsk(null)} />}
      {booking && (
        <WindowDialog nodes={[]} onClose={() => setBooking(false)} onDone={props.onChange} />
      )}
    </>
  );
}

/** A window in one line: what for, and when. */
export function WindowLine({ window }: { window: Window }) {
  return (
    <span>
      {window.maintenance ? (
        "maintenance"
      ) : (
        <>
          for <VcName vc={window.vc} />
        </>
      )}{" "}
      <At at={window.begins} /> to <At at={window.ends} /> ({length(window.ends - window.begins)}
      {window.open ? ", open now" : ""})
    </span>
  );
}

function giveUp(window: Window, done: () => void): Confirmed {
  return {
    title: `${window.open ? "End" : "Give up"} the window ${window.name}`,
    verb: window.open ? "End it" : "Give it up",
    danger: true,
    line: `skep reserve cancel ${window.name}`,
    text: (
      <p>
        {many(window.nodes.length, "node")} are as before it: jobs of all virtual clusters may start
        there.
      </p>
    ),
    run: () => answered(api.POST("/v1/admin/unreserve", { body: { name: window.name } })),
    done,
  };
}

interface DialogProps {
  nodes: string[];
  onClose: () => void;
  onDone: () => void;
}

/** Asks for which nodes, when, how long and what for, and books a window. */
export function WindowDialog(props: DialogProps) {
  const [values, setValues] = useState({
    nodes: props.nodes.join(","),
    from: inputTime(now.value + HOUR),
    hours: "4",
    vc: "",
    reason: "",
  });
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const put =
    (name: keyof typeof values) =>
    (event: { currentTarget: HTMLInputElement | HTMLSelectElement }) =>
      setValues({ ...values, [name]: event.currentTarget.value });
  const chosen = values.nodes
    .split(",")
    .map((one) => one.trim())
    .filter(Boolean);
  const begins = Date.parse(values.from) * 1e6;
  const window = {
    name: nameFor(begins, chosen[0] ?? ""),
    nodes: chosen,
    begins,
    ends: begins + Number(values.hours) * HOUR,
    vc: values.vc,
    reason: values.reason,
  };
  const there = [
    ...new Map(chosen.flatMap((node) => nodes.rows.get(node)?.jobs ?? [])).entries(),
  ].filter(([, vc]) => vc !== values.vc);
  const book = async () => {
    setBusy(true);
    try {
      await answered(api.POST("/v1/admin/reserve", { body: { window } }));
    } catch (error) {
      setProblem((error as Error).message);
      return;
    } finally {
      setBusy(false);
    }
    props.onDone();
    props.onClose();
  };
  return (
    <Dialog title="Keep nodes free for a time" onClose={props.onClose}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void book();
        }}
      >
        <label class="field">
          <span>Nodes, with commas between</span>
          <input required value={values.nodes} onInput={put("nodes")} list="all-nodes" />
        </label>
        <datalist id="all-nodes">
          {[...nodes.rows.keys()].slice(0, 200).map((node) => (
            <option key={node} value={node} />
          ))}
        </datalist>
        <label class="field">
          <span>Begins (time of this browser)</span>
          <input type="datetime-local" required value={values.from} onInput={put("from")} />
        </label>
        <label class="field">
          <span>Hours</span>
          <input
            type="number"
            min={0.25}
            max={744}
            step={0.25}
            required
            value={values.hours}
            onInput={put("hours")}
          />
        </label>
        <label class="field">
          <span>For</span>
          <select value={values.vc} onChange={put("vc")}>
            <option value="">maintenance: no job is on them</option>
            {[...vcs.rows.keys()].sort().map((vc) => (
              <option key={vc} value={vc}>
                jobs of {vc} only
              </option>
            ))}
          </select>
        </label>
        <label class="field">
          <span>Why, in one line (optional)</span>
          <input maxLength={256} value={values.reason} onInput={put("reason")} />
        </label>
        <p>
          {there.length ? (
            <>
              When it begins, {many(there.length, "job")} that {there.length === 1 ? "is" : "are"}{" "}
              there now {there.length === 1 ? "leaves" : "leave"}, if not over by then: moved if
              possible, else stored and queued again, else suspended, else stopped and queued again.
              No retry is counted.{" "}
              {there.slice(0, 12).map(([job]) => (
                <a key={job} href={`/jobs/${encodeURIComponent(job)}`}>
                  {job}{" "}
                </a>
              ))}
            </>
          ) : (
            "No job that would have to leave is there now. One that is known to run into it goes elsewhere, or waits."
          )}
        </p>
        <p>
          <Command line={lineOf(window)} />
        </p>
        <Problem text={problem} />
        <div class="buttons">
          <button type="button" onClick={props.onClose}>
            Leave it
          </button>
          <button class="strong" disabled={busy || !chosen.length || Number.isNaN(begins)}>
            Reserve
          </button>
        </div>
      </form>
    </Dialog>
  );
}

/** Return an instant as `<input type="datetime-local">` has it. */
function inputTime(at: number): string {
  const date = new Date(at / 1e6);
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

/** Return a name as `skep reserve create` makes it: `w-20261201-0800-gpu-3`. */
function nameFor(begins: number, node: string): string {
  if (Number.isNaN(begins)) return "";
  const told = instant(begins).slice(0, 16).replaceAll("-", "").replace("T", "-").replace(":", "");
  return `w-${told}-${node}`.replace(/[^A-Za-z0-9_-]/g, "-").slice(0, 63);
}

function lineOf(window: Omit<Window, "maintenance" | "open" | "jobs">): string {
  const from = Number.isNaN(window.begins) ? "TIME" : `${instant(window.begins).slice(0, 16)}Z`;
  const minutes = Math.round((window.ends - window.begins) / (60 * NS));
  return [
    `skep reserve create --nodes ${window.nodes.join(",") || "NODE"} --from ${from} --for ${minutes}m`,
    window.vc ? `--vc ${window.vc}` : "--maintenance",
    window.reason && `--reason ${JSON.stringify(window.reason)}`,
  ]
    .filter(Boolean)
    .join(" ");
}
