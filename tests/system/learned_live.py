"""A learned model in a live cluster: shadow, turns with its rule, on; sabotage; kills; replay.

    python -m tests.system.learned_live [--jobs 40] [--torch 6]

An embedded cluster of two nodes has one VC with the policy `learned`. Some of its jobs are
trainings in PyTorch, the others only take their time. A model comes from shadow to a switchback by
what is measured, and is then turned on. Files that are missing, damaged, not finite, of another
schema or trained on another range take its place: each has to lead to the rule, with a fact. The
advisor is stopped and killed: jobs begin all the same. In the end every job has succeeded, and the
decisions of the allocator's log are made again. Prints JSON; exits 1 if anything failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
import safetensors.numpy

from skep.learn.features import JOB_FEATURES
from skep.learn.modelfile import KEY, Header, Ranges, dump, name_of
from skep.learn.net import random_weights
from skep.wire import codec, subjects
from skep.wire.facts import JobBound
from skep.wire.following import AdviceFollowed, BlockMeasured, StageSet
from skep.wire.reasons import Reason
from tests.support.embedded import until
from tests.system.introspect.live import Live, machine, running, under

VC = "team"
RULE = "backfill"
SLOTS = 2
NODES = [{"name": f"node-{number}", "gpus": SLOTS, "device": "cpu"} for number in (1, 2)]
SEED = 0
"""Of the weights: with these the model begins jobs, in another order than the rule."""
WITHIN_S = 60.0
MOST = 240
"""Jobs after which a model should have left the shadow."""
LATE_S = 20.0
"""A silent advisor is noticed after two seconds; a busy machine may take longer."""


def say(text: str) -> None:
    """Show progress on standard error."""
    print(f"learned-live: {time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def sabotaged(good: bytes) -> dict[str, tuple[str, bytes | None, tuple[Reason, ...]]]:
    """Return files that no VC may follow: by what is wrong, their name, content, and reasons."""
    weights = random_weights(SEED)
    tensors = {name: np.full_like(each, np.nan) for name, each in weights.items()}
    text = msgspec.json.encode(Header(), order="sorted").decode()
    nan = bytes(safetensors.numpy.save(tensors, {KEY: text}))
    text = msgspec.json.encode(Header(schema=99), order="sorted").decode()
    other = bytes(safetensors.numpy.save(weights, {KEY: text}))
    damaged = bytearray(good)
    damaged[-1] ^= 1
    narrow = tuple((0.0, 0.0) for _ in JOB_FEATURES)
    beyond = dump(random_weights(SEED + 1), Header(ranges=Ranges(job=narrow)))
    none = (Reason.NO_MODEL,)
    return {
        "missing": ("0" * 64, None, none),
        "not finite": (name_of(nan), nan, none),
        "damaged": (name_of(good[:-1] + b"?"), bytes(damaged), none),
        "another schema": (name_of(other), other, none),
        "another range": (name_of(beyond), beyond, (Reason.BEYOND_TRAINING,)),
    }


class Study:
    """One run."""

    def __init__(self, live: Live) -> None:
        """Begin without a model."""
        self.live, self.cluster = live, live.cluster
        self.models = live.cluster.home / "models"
        self.models.mkdir(exist_ok=True)
        self.names: list[str] = []
        self.report: dict[str, Any] = dict(machine())

    def put(self, name: str, data: bytes) -> None:
        """Add a model's file."""
        (self.models / f"{name}.safetensors").write_bytes(data)

    def policy(self, model: str, **options: Any) -> None:
        """Have the VC name a model."""
        chosen = {"model": model, "rule": RULE, "cool_s": 1, "shadow_s": 5, "period_s": 6}
        vcs = {VC: {"gpus": 2 * SLOTS, "policy": "learned", "options": chosen | options}}
        reply = self.cluster.ask("POST", "/v1/admin/vcs", json.dumps({"vcs": vcs}).encode())
        assert reply.status < 300, reply

    def sleepers(self, count: int, name: str) -> list[str]:
        """Hand in jobs that take a short or a long time."""
        made = []
        for number in range(count):
            took = (0.5, 0.5, 0.5, 2.5)[number % 4]
            spec = {"command": f"sleep {took}", "size": {"run_time": took}}
            made.append(self.live.submit(f"{name}-{number}", spec, VC).job)
        return made

    def facts(self) -> list[Any]:
        """Return the allocator's facts so far."""
        return [fact for _, fact in self.live.facts()]

    def stages(self) -> list[Any]:
        """Return what the advisor recorded of models."""

        async def read() -> list[Any]:
            found = []
            for one in await self.cluster.records(subjects.PROFILES):
                told = codec.read(one.subject, one.payload, one.headers, one.sequence, one.at)
                found += [each for each in told.facts if isinstance(each, StageSet | BlockMeasured)]
            return found

        return asyncio.run(read())

    def when(self, look: Callable[[AdviceFollowed], bool], what: str, since: int) -> AdviceFollowed:
        """Return the first fact of which something holds, of those behind the first `since`."""

        def find() -> AdviceFollowed | None:
            told = [fact for fact in self.facts() if isinstance(fact, AdviceFollowed)]
            return next((fact for fact in told[since:] if look(fact)), None)

        try:
            return until(find, what, WITHIN_S)
        except TimeoutError:
            told = [fact for fact in self.facts() if isinstance(fact, AdviceFollowed)]
            say(f"{what}: {told[since:]}, {self.stages()[-2:]}")
            raise

    def told(self) -> int:
        """Return how many such facts there are."""
        return sum(isinstance(fact, AdviceFollowed) for fact in self.facts())

    def stage(self, wanted: str) -> StageSet:
        """Return the fact by which the model came to a stage."""

        def find() -> StageSet | None:
            told = [each for each in self.stages() if isinstance(each, StageSet)]
            return next((each for each in told if each.stage == wanted), None)

        return until(find, f"stage {wanted}", WITHIN_S)

    def begins(self, what: str) -> float:
        """Hand in a job; return how many seconds passed until it was placed."""
        began = time.time_ns()
        job = self.sleepers(1, what)[0]
        bound = until(
            lambda: next((at for at, fact in self.live.facts() if _is_bound(fact, job)), None),
            f"{job} has GPUs",
            WITHIN_S,
        )
        return (bound - began) / 1e9


def _is_bound(fact: Any, job: str) -> bool:
    return isinstance(fact, JobBound) and fact.job == job


def stages(study: Study, good: str, jobs: int, torch: int) -> None:
    """Have a model come from shadow to a switchback, and turn it on."""
    study.policy(good)
    study.when(lambda fact: fact.why is Reason.STAGE_SHADOW, "shadow", 0)
    say("shadow")
    trainings = [study.live.train(f"torch-{n}", {}, steps=20, vc=VC) for n in range(torch)]
    switched, part = None, 0
    while switched is None and part < MOST // jobs:
        last = study.sleepers(jobs, f"shadow-{part}")[-1]
        study.cluster.ended(last, WITHIN_S)
        told = [each for each in study.stages() if isinstance(each, StageSet)]
        switched = next((each for each in told if each.stage == "switchback"), None)
        part += 1
    assert switched is not None, "the model is still in shadow"
    study.report["shadow"] = msgspec.to_builtins(switched)
    say(f"switchback: {switched.agreed_milli / 10:.0f}% of {switched.decisions} agreed")
    since = study.told()
    study.when(lambda fact: fact.follows, "the model has its turn", since - 1)
    study.when(lambda fact: fact.why is Reason.STAGE_SWITCHBACK, "the rule has its turn", 0)
    study.sleepers(10, "turns")
    until(
        lambda: [each for each in study.stages() if isinstance(each, BlockMeasured)],
        "a block is measured",
        WITHIN_S,
    )
    study.policy(good, stage="on")
    study.stage("on")
    since = study.told()
    study.when(lambda fact: fact.follows, "the model acts", max(since - 1, 0))
    say("on")
    study.report["trainings"] = [
        study.cluster.ended(each.job, WITHIN_S)["state"] for each in trainings
    ]


def sabotage(study: Study, good: bytes) -> None:
    """Have files that are no good take the model's place, and see that the rule does."""
    found = {}
    for what, (name, data, reasons) in sabotaged(good).items():
        if data is not None:
            study.put(name, data)
        since, began = study.told(), time.time_ns()
        study.policy(name, stage="on")
        study.sleepers(4 * SLOTS + 4, f"{what.replace(' ', '-')}-jobs")  # It has to see some.
        fact = study.when(
            lambda fact, name=name, reasons=reasons: (  # type: ignore[misc]
                fact.model == name and not fact.follows and fact.why in reasons
            ),
            what,
            since,
        )
        placed_s = study.begins(what.replace(" ", "-"))
        found[what] = {
            "why": fact.why,
            "within_s": round((fact.at - began) / 1e9, 3),
            "placed_s": round(placed_s, 3),
        }
        say(f"{what}: {found[what]}")
    study.report["sabotage"] = found


def silence(study: Study, good: str) -> None:
    """Stop and kill the advisor while its model acts: jobs begin all the same."""
    since = study.told()
    study.policy(good, stage="on")
    study.when(lambda fact: fact.follows and fact.model == good, "the model acts again", since)
    found: dict[str, Any] = {"placed_s_before": round(study.begins("before"), 3)}
    pid = study.cluster.entry("advisor")["pid"]
    since = study.told()
    os.kill(pid, signal.SIGSTOP)
    try:
        found["placed_s_stopped"] = round(study.begins("stopped"), 3)
        late = study.when(lambda fact: not fact.follows, "the rule plans", since)
        found["why"] = late.why
    finally:
        os.kill(pid, signal.SIGCONT)
    study.when(lambda fact: fact.follows, "the model acts after a stop", since + 1)
    placed = []
    for number in range(3):
        pid = study.cluster.entry("advisor")["pid"]
        study.cluster.kill("advisor")
        placed.append(round(study.begins(f"killed-{number}"), 3))
        study.cluster.wait_back("advisor", pid)
    found["placed_s_killed"] = placed
    kept = [each for each in study.stages() if isinstance(each, StageSet)]
    found["stages_kept"] = len(kept)
    study.report["silence"] = found
    say(f"silence: {found}")


def main() -> int:
    """Run what the command line asks for."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=24, help="jobs that come at a time")
    parser.add_argument("--torch", type=int, default=6, help="trainings in PyTorch")
    given = parser.parse_args()
    good = dump(random_weights(SEED), Header(trained_on="nothing"))
    vcs: Mapping[str, Any] = {VC: under("learned", 2 * SLOTS, model=name_of(good), rule=RULE)}
    with running(vcs, NODES) as (live, _):
        study = Study(live)
        study.put(name_of(good), good)
        stages(study, name_of(good), given.jobs, given.torch)
        sabotage(study, good)
        silence(study, name_of(good))
        ended = [study.cluster.ended(each.job, WITHIN_S)["state"] for each in live.jobs.values()]
        study.report["jobs"] = {state: ended.count(state) for state in sorted(set(ended))}
        again = json.loads(live.cluster.skep("replay", "--json"))["services"]["allocator"]
        study.report["replay"] = {
            name: again.get(name) for name in ("decisions", "equal", "differences")
        }
        study.report["following"] = live.cluster.get("/v1/trials")["following"]
    print(json.dumps(study.report, indent=2, default=str))
    bad = set(study.report["jobs"]) - {"succeeded"}
    differs = study.report["replay"]["decisions"] != study.report["replay"]["equal"]
    silence_s = study.report["silence"]
    late = max(silence_s["placed_s_stopped"], *silence_s["placed_s_killed"]) > LATE_S
    return 1 if bad or differs or late else 0


if __name__ == "__main__":
    sys.exit(main())
