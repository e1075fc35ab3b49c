// What would become of a job: when and where it would start and end, and whom that touches.

import type { Schemas } from "../api";
import { clock, length, many, now, rate } from "../format";

type Outcome = Schemas["Outcome"];
type Touched = Schemas["TouchedJob"];

const TOUCHES: Record<string, string> = {
  stops: "stops",
  suspends: "suspends",
  moves: "moves",
  resizes: "changes the size of",
  shares: "shares GPUs with",
  stores: "has stored the state of",
  borrows: "leaves without its own cells",
  unclaims: "takes what was reserved for",
  starts: "lets start",
};

/** Return when and where it would start, in a sentence. */
export function startText(outcome: Outcome): string {
  const others = outcome.nodes - outcome.place.split(" ").filter(Boolean).length;
  const on = outcome.place
    ? ` on ${outcome.place}${others > 0 ? ` and ${many(others, "more node")}` : ""}` +
      (outcome.borrows ? ", on borrowed GPUs" : "")
    : "";
  const why = outcome.text ? `: ${outcome.text}` : "";
  switch (outcome.start) {
    case "now":
      return `It would start now${on}${why}.`;
    case "after":
      return `It would start${on} as soon as others have made room${why}.`;
    case "later": {
      const left = outcome.at ? length(Math.max(0, outcome.at - now.value)) : "some time";
      const after = outcome.awaits.length ? `, after ${outcome.awaits.join(", ")}` : "";
      return `It would wait ${outcome.limits ? "at most" : "about"} ${left}${after}, then start${on}. ${waits(outcome)}`;
    }
    default: {
      const unknown = outcome.unknown
        ? `: the end of ${many(outcome.unknown, "job")} is not known`
        : "";
      return `It would wait, for how long is not known${unknown}. ${waits(outcome)}`;
    }
  }
}

/** Return what it would wait for. */
export const waits = (outcome: Outcome): string =>
  outcome.text ? `${outcome.text}${outcome.needs ? `: ${outcome.needs}` : ""}.` : "";

function touchedText(one: Touched): string {
  const name = one.job ?? "a job of another virtual cluster";
  const parts = [many(one.gpus, "GPU")];
  if (one.what !== "starts" && one.rate_milli !== null) {
    parts.push(
      `${rate(one.rate_milli)} now, ${one.then_milli === null ? "unknown" : rate(one.then_milli)} then`,
    );
  }
  return `it ${TOUCHES[one.what] ?? one.what} ${name} (${parts.join(", ")})`;
}

/** The outcome as lines. */
export function OutcomeLines({ outcome, ends = true }: { outcome: Outcome; ends?: boolean }) {
  return (
    <ul class="plainly">
      <li>{startText(outcome)}</li>
      {outcome.others.map((one) => (
        <li key={`${one.what}${one.job}`}>{touchedText(one)}</li>
      ))}
      {outcome.others_more > 0 && <li>and touches {many(outcome.others_more, "further job")}</li>}
      {ends && outcome.ends_at && <li>It would end about {clock(outcome.ends_at)}.</li>}
      {ends && outcome.ends_most && (
        <li>Its time limit ends it at {clock(outcome.ends_most)} at the latest.</li>
      )}
    </ul>
  );
}
