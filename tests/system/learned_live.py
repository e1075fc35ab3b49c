"""A learned model in a live cluster: its verdict, random weights, sabotage, kills, replay.

    python -m tests.system.learned_live [--model FILE] [--torch 2] [--export FILE]

An embedded cluster has two VCs with the policy `learned`. Bursts of jobs come to both all the time,
the long ones first; some jobs are trainings in PyTorch. In `team` a model (by itself the network
that evolution begins with, which places the shortest job first) comes from shadow to turns with
`backfill`, and its blocks decide whether it is turned on. In `chance` a model of random weights
begins beside `hold`, and must not be turned on. Advisor and trainer are killed meanwhile.

Then files that are missing, damaged, not finite, of another schema or trained on another range take
the model's place, and a model is retired while it acts: each has to lead to the rule, with a fact,
and none of them may place a job. The advisor is stopped and killed while a model acts: jobs
begin all the same. In the end every job has succeeded, and the decisions of the log are made again.
Takes eight minutes (`docs/experiments/learned-live.md`). Prints JSON; exits 1 if anything failed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import safetensors.numpy

from skep.learn.features import JOB_FEATURES
from skep.learn.guard import BLOCKS_KEPT
from skep.learn.modelfile import KEY, Header, Ranges, dump, name_of
from skep.learn.net import random_weights
from skep.wire import codec, subjects
from skep.wire.facts import JobBound, JobEnded, JobQueued
from skep.wire.following import AdviceFollowed, BlockMeasured, StageSet
from skep.wire.learned import LearnedAdvice, Sight
from skep.wire.reasons import Reason
from skep_lab.learn import evolve
from tests.support.embedded import Embedded, until
from tests.system.introspect.live import Ears, Live, machine, running, under
from tests.system.learned_waits import answers, summary, waits

TEAM, CHANCE = "team", "chance"
RULES = {TEAM: "backfill", CHANCE: "hold"}
"""Order of arrival, which is bad where long jobs come first; and the shortest job first, than which
no order is better here."""
VC_GPUS = 4
NODES = [{"name": f"node-{number}", "gpus": VC_GPUS, "device": "cpu"} for number in (1, 2)]
SEED = 0
"""Of random weights."""
PERIOD_S, SHADOW_S = 10, 5
BURST_EVERY_S = PERIOD_S / 2
"""One burst of a period comes after its first quarter, which counts for neither."""
SHORT_S = 0.3
BURST = 3.3, 3.2, 3.1, 3.0, 0.5, 0.2, 0.4, 0.3, 0.5, 0.3
"""Seconds. Under any order all of it is over before the next one comes."""
KILLED_AFTER = 3
"""Blocks of a switchback after which the advisor is killed: its block is spoilt, and counts."""
WITHIN_S = 60.0
TRAINED_S = 180.0
"""To import PyTorch and make 20 steps takes a minute on a machine that is far too busy."""
VERDICT_WITHIN_S = 330.0
"""Eight blocks and a period after them take 170 s, 250 s where the first ones are longer."""
CHANCE_S = 40.0
"""For how much longer it is seen what becomes of random weights."""
LATE_S = 20.0
"""A silent advisor is noticed after two seconds; a busy machine may take longer."""
T = TypeVar("T")


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
    huge = {name: np.full_like(each, 3e38) for name, each in weights.items()}
    overflows = dump(huge, Header(trained_on="numbers that overflow"))
    none = (Reason.NO_MODEL,)
    return {
        "missing": ("0" * 64, None, none),
        "not finite": (name_of(nan), nan, none),
        "damaged": (name_of(good + b"?"), bytes(damaged), none),
        "another schema": (name_of(other), other, none),
        "another range": (name_of(beyond), beyond, (Reason.BEYOND_TRAINING,)),
        "overflows": (
            name_of(overflows),
            overflows,
            (Reason.BEYOND_TRAINING, Reason.ADVICE_BROKEN),
        ),
    }


class Told(Ears):
    """Hears facts of the allocator and the advisor, and what both say of learned models."""

    SUBJECTS = (
        subjects.ALLOC_FACTS,
        subjects.PROFILE_FACTS,
        subjects.SIGHTS,
        subjects.ADVICE_LEARNED,
    )

    def __init__(self, about: Any) -> None:
        super().__init__(about)
        self._timed: list[tuple[int, Any]] = []
        self._kinds: dict[type, list[Any]] = {}
        self._read = 0

    def facts(self, kind: type[T]) -> list[T]:
        """Return the facts of a kind, in order."""
        self.timed()
        return self._kinds.get(kind, [])

    def timed(self) -> list[tuple[int, Any]]:
        """Return all facts, each with the time of its record (ns)."""
        new = self.seen[self._read :]
        self._read += len(new)
        for record in (each.message for each in new if isinstance(each.message, codec.Facts)):
            for fact in record.facts:
                self._timed.append((record.at, fact))
                self._kinds.setdefault(type(fact), []).append(fact)
        return self._timed


class Study:
    """One run."""

    def __init__(self, live: Live, told: Told, models: Mapping[str, str]) -> None:
        """Begin with a model in each VC.

        Args:
            live: The cluster.
            told: What is heard.
            models: By VC: the name of its model.
        """
        self.live, self.told, self.cluster = live, told, live.cluster
        self.named = dict(models)
        self.models = live.cluster.home / "models"
        self.models.mkdir(exist_ok=True)
        self.report: dict[str, Any] = dict(machine())

    def put(self, data: bytes, name: str = "") -> None:
        """Add a model's file, under another name if it is damaged."""
        (self.models / f"{name or name_of(data)}.safetensors").write_bytes(data)

    def policy(self, model: str, **options: Any) -> None:
        """Have the policy of `team` name a model."""
        self.named[TEAM] = model
        more = {vc: options if vc == TEAM else {} for vc in self.named}
        vcs = {
            vc: {"gpus": VC_GPUS, "policy": "learned", "options": options_of(vc, name) | more[vc]}
            for vc, name in self.named.items()
        }
        reply = self.cluster.ask("POST", "/v1/admin/vcs", json.dumps({"vcs": vcs}).encode())
        assert reply.status < 300, reply

    def sleepers(self, name: str, times_s: Sequence[float], vc: str = TEAM) -> list[str]:
        """Hand in jobs that take so many seconds, and say so."""
        made = []
        for number, took in enumerate(times_s):
            spec = {"command": f"sleep {took}", "size": {"run_time": took}}
            made.append(self.live.submit(f"{name}-{number}", spec, vc).job)
        return made

    def stages(self, vc: str) -> list[StageSet]:
        """Return how a VC's model came to its stages."""
        return [fact for fact in self.told.facts(StageSet) if fact.vc == vc]

    def blocks(self, vc: str) -> list[BlockMeasured]:
        """Return what was measured of a VC's model."""
        return [fact for fact in self.told.facts(BlockMeasured) if fact.vc == vc]

    def verdict(self) -> StageSet | None:
        """Return what came of the shadow and the turns of the model of `team`."""
        told = self.stages(TEAM)
        ends = (after for before, after in pairwise(told) if before.stage == "switchback")
        return next(ends, None) or next((each for each in told if each.stage == "off"), None)

    def followed(self) -> list[AdviceFollowed]:
        """Return how `team` was planned."""
        return [fact for fact in self.told.facts(AdviceFollowed) if fact.vc == TEAM]

    def placed_by(self, model: str) -> int:
        """Return how many jobs a model has placed in `team`."""
        named, count = "", 0
        for _, fact in self.told.timed():
            if isinstance(fact, AdviceFollowed) and fact.vc == TEAM:
                named = fact.model
            count += isinstance(fact, JobBound) and fact.ranked is Reason.ADVISED and named == model
        return count

    def when(self, look: Callable[[AdviceFollowed], bool], what: str, since: int) -> AdviceFollowed:
        """Return the first fact of which something holds, of those behind the first `since`."""
        try:
            return until(lambda: next(filter(look, self.followed()[since:]), None), what, WITHIN_S)
        except TimeoutError:
            say(f"{what}: {self.followed()[since:]}, {self.stages(TEAM)[-2:]}")
            raise

    def acts(self, model: str) -> None:
        """Have a model act, and return once it does."""
        since = len(self.followed())
        self.policy(model, stage="on")
        self.when(
            lambda fact: fact.follows and fact.model == model, "the model acts", max(since - 1, 0)
        )

    def begins(self, what: str) -> float:
        """Hand in a job; return how many seconds passed until it was placed."""
        began = time.time_ns()
        job = self.sleepers(what, [SHORT_S])[0]

        def bound() -> int:
            return next((fact.at for fact in self.told.facts(JobBound) if fact.job == job), 0)

        return round((until(bound, f"{job} has GPUs", WITHIN_S) - began) / 1e9, 3)

    def trains(self, name: str, count: int) -> None:
        """Hand in trainings in PyTorch, and return once they have ended."""
        made = [self.live.train(f"{name}-{n}", {}, steps=20, vc=TEAM) for n in range(count)]
        for each in made:
            state = self.cluster.ended(each.job, TRAINED_S)["state"]
            assert state == "succeeded", (each.name, state)

    def kill_advisor(self) -> None:
        """Kill the advisor, and return once it is back."""
        pid = self.cluster.entry("advisor")["pid"]
        self.cluster.kill("advisor")
        self.cluster.wait_back("advisor", pid)


def options_of(vc: str, model: str) -> dict[str, Any]:
    """Return the options of a VC's policy."""
    usual = {"cool_s": 1, "shadow_s": SHADOW_S, "period_s": PERIOD_S}
    return {"model": model, "rule": RULES[vc], **usual}


class Trainer:
    """`skep-trainer` beside the cluster, for the jobs of `team`; it is killed now and then."""

    SETTINGS = ("generations=2", "population=2", "traces=1", "tuning=1", "every=1", "blocks=3")
    """Little: its kernels are interpreted here, as to compile them takes a minute."""

    def __init__(self, cluster: Embedded) -> None:
        """Begin it."""
        self._state = cluster.home / "trainer"
        words = ["--vc", TEAM, "--every", "24", "--window", "24", "--poll", "2"]
        words += [f"--set={each}" for each in self.SETTINGS]
        self._command = [sys.executable, "-m", "skep_services.trainer", *words]
        self._environment = {**cluster.environment, "NUMBA_DISABLE_JIT": "1"}
        self.ended, self.kills = list[int](), 0
        """How those ended that ended by themselves."""
        self._process = self._begin()

    def _begin(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command, env=self._environment, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def kill(self) -> None:
        """Kill it, and begin another one."""
        self.end()
        self.kills += 1
        self._process = self._begin()

    def end(self) -> None:
        """Kill it."""
        if self._process.poll() is not None:
            self.ended.append(self._process.returncode)
        self._process.kill()
        self._process.wait()

    def report(self) -> dict[str, Any]:
        """Return what came of its rounds."""
        kept = self._state / "trainer.json"
        rounds = json.loads(kept.read_text())["rounds"] if kept.exists() else []
        outcomes = [each["outcome"] for each in rounds]
        return {"kills": self.kills, "ended": self.ended, "rounds": outcomes}


class Bursts:
    """Hands in a burst of jobs in every VC, again and again, in a thread."""

    def __init__(
        self,
        study: Study,
        name: str,
        vcs: Sequence[str] = tuple(RULES),
        burst: Sequence[float] = BURST,
        every_s: float = BURST_EVERY_S,
    ) -> None:
        self._study, self._over = study, threading.Event()
        self._name, self._vcs, self._burst, self._every_s = name, vcs, burst, every_s
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.count, self._wrong = 0, ""

    def __enter__(self) -> Bursts:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        assert not self._wrong, self._wrong

    def _run(self) -> None:
        began = time.monotonic()
        try:
            while not self._over.wait(began + self.count * self._every_s - time.monotonic()):
                for number, took in enumerate(self._burst):
                    for vc in self._vcs:
                        name = f"{self._name}-{vc}-{self.count}-{number}"
                        self._study.sleepers(name, [took], vc)
                self.count += 1
        except (OSError, RuntimeError) as error:
            self._wrong = f"burst {self.count}: {error}"


def rise(study: Study, trainer: Trainer, torch: int) -> None:
    """Have the models come from shadow to turns, and see what their blocks come to."""
    began, seen = time.monotonic(), list[int]()

    def left_s() -> float:
        return max(VERDICT_WITHIN_S - (time.monotonic() - began), 1.0)

    def so_far(blocks: int) -> bool:
        for known in study.blocks(TEAM)[len(seen) :]:
            seen.append(known.block)
            jobs = f"{known.by_model} and {known.by_rule} jobs"
            say(f"block {known.block}: {jobs}, {known.gain_milli / 10:+.1f}%")
        return study.verdict() is not None or len(seen) >= blocks

    study.trains("shadow", torch)
    with Bursts(study, "rise") as bursts:
        until(lambda: bursts.count, "a burst", WITHIN_S)
        study.kill_advisor()
        trainer.kill()
        say("advisor and trainer were killed in shadow")
        until(partial(so_far, KILLED_AFTER), f"{KILLED_AFTER} blocks", left_s())
        study.kill_advisor()
        trainer.kill()
        say(f"advisor and trainer were killed after {KILLED_AFTER} blocks")
        try:
            until(partial(so_far, BLOCKS_KEPT), "a verdict", left_s())
        except TimeoutError as error:
            say(str(error))
        chance_until = time.monotonic() + min(CHANCE_S, left_s())
        until(
            lambda: (
                {each.stage for each in study.stages(CHANCE)} & {"on", "off"}
                or time.monotonic() > chance_until
            ),
            "a verdict on random weights",
            2 * CHANCE_S,
        )
    found = study.verdict()
    say(f"verdict after {time.monotonic() - began:.0f} s: {found}")
    heard = [each.message for each in study.told.seen]
    advised = [each for each in heard if isinstance(each, Sight | LearnedAdvice)]
    waited = waits(study.told.timed(), TEAM, VC_GPUS)
    study.report |= {
        "verdict": found,
        "stages": {vc: study.stages(vc) for vc in RULES},
        "blocks": {
            vc: [
                [each.block, each.by_model, each.by_rule, each.valid, each.gain_milli]
                for each in study.blocks(vc)
            ]
            for vc in RULES
        },
        "bursts": bursts.count,
        "rise_s": round(time.monotonic() - began),
        "waits_with_free_gpus": {planner: summary(each) for planner, each in waited.items()},
        "sight_to_advice": summary(answers(advised, TEAM)),
    }


def sabotage(study: Study, good: bytes) -> None:
    """Have files that are no good take the model's place, and see that the rule does."""
    found = {}
    for what, (name, data, reasons) in sabotaged(good).items():
        if data is not None:
            study.put(data, name)
        since, began = len(study.followed()), time.time_ns()
        study.policy(name, stage="on")
        with Bursts(study, what.replace(" ", "-"), [TEAM], [SHORT_S], SHORT_S):  # It sees some.
            fact = study.when(
                lambda fact, name=name, reasons=reasons: (  # type: ignore[misc]
                    fact.model == name and not fact.follows and fact.why in reasons
                ),
                what,
                since,
            )
        found[what] = {
            "why": fact.why,
            "within_s": round((fact.at - began) / 1e9, 3),
            "placed_s": study.begins(f"{what.replace(' ', '-')}-again"),
            "placed": study.placed_by(name),
        }
        say(f"{what}: {found[what]}")
    spare = dump(random_weights(SEED), Header(trained_on="nothing, to be retired"))
    study.put(spare)
    study.acts(name_of(spare))
    since, began = len(study.followed()), time.time_ns()
    study.cluster.skep("models", "retire", name_of(spare), "--why", "a test")
    placed_s = study.begins("retired")
    fact = study.when(lambda fact: fact.why is Reason.NO_MODEL, "the rule plans", since)
    found["retired while it acts"] = {
        "why": fact.why,
        "within_s": round((fact.at - began) / 1e9, 3),
        "placed_s": placed_s,
        "placed": 0,
    }
    say(f"retired: {found['retired while it acts']}")
    study.report["sabotage"] = found


def silence(study: Study, good: str, torch: int) -> None:
    """Stop and kill the advisor while its model acts: jobs begin all the same."""
    study.acts(good)
    before = study.placed_by(good)
    study.trains("acts", torch)
    study.report["trainings_placed"] = study.placed_by(good) - before
    found: dict[str, Any] = {"placed_s_before": study.begins("before")}
    pid = study.cluster.entry("advisor")["pid"]
    since = len(study.followed())
    os.kill(pid, signal.SIGSTOP)
    try:
        found["placed_s_stopped"] = study.begins("stopped")
        found["why"] = study.when(lambda fact: not fact.follows, "the rule plans", since).why
    finally:
        os.kill(pid, signal.SIGCONT)
    study.when(lambda fact: fact.follows, "the model acts after a stop", since + 1)
    placed, stages = [], len(study.stages(TEAM))
    for number in range(3):
        until(lambda: study.followed()[-1].follows, "the model acts", WITHIN_S)
        pid = study.cluster.entry("advisor")["pid"]
        study.cluster.kill("advisor")
        placed.append(study.begins(f"killed-{number}"))
        study.cluster.wait_back("advisor", pid)
    found |= {"placed_s_killed": placed, "stages_set_by_kills": len(study.stages(TEAM)) - stages}
    study.report["silence"] = found
    say(f"silence: {found}")


def ends(study: Study) -> None:
    """Have all jobs end, and make the decisions of the log again."""
    admitted = {fact.job for fact in study.told.facts(JobQueued)}
    until(lambda: len(study.told.facts(JobEnded)) == len(admitted), "all jobs end", WITHIN_S)
    ended = [str(fact.end) for fact in study.told.facts(JobEnded) if fact.job in admitted]
    again = json.loads(study.cluster.skep("replay", "--json"))["services"]["allocator"]
    study.report |= {
        "jobs": {state: ended.count(state) for state in sorted(set(ended))},
        "lost": len(study.live.jobs) - len(admitted),
        "replay": {name: again.get(name) for name in ("decisions", "equal", "differences")},
        "following": study.cluster.get("/v1/trials")["following"],
    }


def wrong(report: Mapping[str, Any], named: str) -> list[str]:
    """Return what is not as it has to be, in words.

    Args:
        report: What was seen.
        named: The file of the model of `team`; empty: the one that has to be turned on.
    """
    found = []
    if set(report["jobs"]) != {"succeeded"} or report["lost"]:
        found.append(f"jobs: {report['jobs']}, {report['lost']} lost")
    if report["replay"]["decisions"] != report["replay"]["equal"]:
        found.append("the decisions are others")
    verdict = report["verdict"]
    if verdict is None or (not named and verdict.stage != "on"):
        found.append(f"the verdict is {verdict}")
    if any(each.stage == "on" for each in report["stages"][CHANCE]):
        found.append("random weights were turned on")
    for vc, blocks in report["blocks"].items():
        numbers, starts = [each[0] for each in blocks], [each[0] for each in blocks].count(0)
        if starts == 1 and numbers != list(range(len(numbers))):
            found.append(f"blocks of {vc} are lost: {numbers}")
    if report["trainer"]["ended"]:
        found.append(f"the trainer ended by itself: {report['trainer']}")
    if any(each["placed"] for each in report["sabotage"].values()):
        found.append("a sabotaged model placed jobs")
    placed = report["silence"]["placed_s_stopped"], *report["silence"]["placed_s_killed"]
    if max(placed) > LATE_S or report["silence"]["stages_set_by_kills"]:
        found.append(f"killing the advisor did harm: {report['silence']}")
    return found


def main() -> int:
    """Run what the command line asks for."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="", help="a file, in `team`; default: generation 0")
    parser.add_argument("--torch", type=int, default=2, help="trainings in PyTorch, twice")
    parser.add_argument("--export", default="", help="where the cluster's log is written")
    given = parser.parse_args()
    began = time.monotonic()
    first = evolve.file_of(evolve.starts(), "evolve")
    good = Path(given.model).read_bytes() if given.model else first
    chance = dump(random_weights(SEED), Header(trained_on="nothing"))
    models = {TEAM: name_of(good), CHANCE: name_of(chance)}
    vcs = {vc: under("learned", VC_GPUS, **options_of(vc, name)) for vc, name in models.items()}
    with running(vcs, NODES) as (live, _), Told(live.cluster.about) as told:
        study = Study(live, told, models)
        study.put(good)
        study.put(chance)
        trainer = Trainer(live.cluster)
        try:
            rise(study, trainer, given.torch)
        finally:
            trainer.end()
        study.report["trainer"] = trainer.report()
        say(f"trainer: {study.report['trainer']}")
        sabotage(study, good)
        silence(study, models[TEAM], given.torch)
        ends(study)
        if given.export:
            live.cluster.skep("replay", "--export", given.export)
    study.report["took_s"] = round(time.monotonic() - began)
    print(json.dumps(msgspec.to_builtins(study.report), indent=2, default=str))
    found = wrong(study.report, given.model)
    for text in found:
        say(text)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
