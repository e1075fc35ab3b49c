// Learned models: in which virtual cluster which one is followed, its stage, and why it fell back.

import type { Schemas } from "../api";
import { count, percent } from "../format";
import { At, Bar, Card, Command, Empty, Problem } from "../parts/basics";
import { Span, spanText } from "../parts/span";
import { Word } from "../parts/word";

type Vc = Schemas["VcRow"];
type Following = Schemas["FollowingTold"];
type Stage = Schemas["StageTold"];

/** The stages that a model goes through, and what they mean. */
const STAGES: [string, string][] = [
  ["shadow", "It is watched: the rule plans, and what the model advises is compared with it."],
  ["switchback", "It and the rule take turns, so that what each is worth is measured."],
  ["on", "It plans, and is measured still."],
];

/** One card for each virtual cluster that names a model. */
export function LearnedModels({ vcs, problem }: { vcs: Vc[]; problem: string }) {
  const named = vcs.flatMap((row) => (row.following ? [row.following] : []));
  return (
    <>
      <Problem text={problem} />
      {!named.length && (
        <Card title="Learned models" aside={<Command line="skep models ls" />}>
          <Empty>
            No virtual cluster follows a learned model. One does whose policy is{" "}
            <code>{"{name: learned, model: HASH}"}</code> in the cluster's file.
          </Empty>
        </Card>
      )}
      {named.map((one) => (
        <Model key={one.vc} said={one} />
      ))}
    </>
  );
}

function Model({ said }: { said: Following }) {
  return (
    <Card
      title={
        <>
          {said.vc}: model {said.model ? said.model.slice(0, 12) : "none"}
        </>
      }
      aside={said.model ? <Command line={`skep models show ${said.model.slice(0, 12)}`} /> : null}
    >
      <div class="inside">
        <p>
          <Word
            as={said.follows ? "running" : "drained"}
            text={said.follows ? "followed" : "not followed"}
          />
          : {said.text}, since <At at={said.since} />. <code class="chip">{said.why}</code>
        </p>
        <Ladder stage={said.stage ?? null} />
        {said.stage && <Figures stage={said.stage} />}
        {said.explored && (
          <p class="dim">
            It tries other moves now and then: the last one was choice {said.explored.choice} with a
            chance of {percent(said.explored.chance, 1e6)}.
          </p>
        )}
      </div>
    </Card>
  );
}

function Ladder({ stage }: { stage: Stage | null }) {
  const at = STAGES.findIndex(([name]) => name === stage?.stage);
  return (
    <ol class="ladder">
      {STAGES.map(([name, text], place) => (
        <li
          key={name}
          class={place === at ? "here" : place < at ? "past" : ""}
          aria-current={place === at ? "step" : undefined}
        >
          <b>
            {place < at ? "✓ " : place === at ? "▶ " : ""}
            {name}
          </b>
          <span>{text}</span>
        </li>
      ))}
      {stage?.stage === "off" && (
        <li class="here off" aria-current="step">
          <b>✕ off</b>
          <span>It is not followed: the rule plans alone.</span>
        </li>
      )}
    </ol>
  );
}

function Figures({ stage }: { stage: Stage }) {
  const most = Math.max(50, Math.abs(stage.low_milli), Math.abs(stage.high_milli));
  return (
    <dl class="facts">
      <dt>Stage since</dt>
      <dd>
        <At at={stage.since} />, {stage.text.split(";")[0]}
      </dd>
      {stage.decisions > 0 && (
        <>
          <dt>Agreed with the rule</dt>
          <dd>
            {percent(stage.agreed_milli, 1000)} of {count(stage.decisions)} decisions
            <Bar
              label={`${stage.agreed_milli / 10} % agreed`}
              parts={[["", stage.agreed_milli / 1000]]}
            />
          </dd>
        </>
      )}
      {stage.pairs > 0 && (
        <>
          <dt>
            {stage.stage === "shadow" ? "In hindsight shorter by" : "Completion time lower by"}
          </dt>
          <dd>
            <Span
              value={stage.gain_milli}
              low={stage.low_milli}
              high={stage.high_milli}
              from={-most}
              to={most}
              good={stage.low_milli > 0}
            />{" "}
            {spanText(stage.gain_milli, stage.low_milli, stage.high_milli)} over{" "}
            {count(stage.pairs)} comparisons.
          </dd>
        </>
      )}
    </dl>
  );
}
