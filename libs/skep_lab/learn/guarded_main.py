"""Random worlds in which a VC has a learned model under the guard, beside its rule alone.

    python -m skep_lab.learn.guarded_main --out FILE       play worlds, and print what came of them
    python -m skep_lab.learn.guarded_main --out FILE --cpu-minutes 0 --json      only print

A world is a small cluster, jobs of one family, a rule and a model: a good one, one with random
weights, or a sabotaged one. It is played three times in the production simulator, all with the same
jobs: with the rule; with the policy `learned` under the guard; and with the rule again while every
other job comes a minute later. The third tells by how much the mean JCT of such a world differs
though no policy is worse. Each world adds a line to the file, and the same command goes on with the
rest. The protocol is docs/experiments/guarded.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from skep.learn import modelfile
from skep.learn.advising import Seat
from skep.learn.net import random_weights
from skep.learn.seat import ModelSeat
from skep.sim.guesses import Onlooker
from skep.units import Duration, Instant, in_seconds, seconds
from skep.wire.following import LEARNED, AdviceFollowed, StageSet
from skep.wire.learned import AdvisedMove, JobSight, Sight
from skep_lab.learn import evolve, protocol
from skep_lab.learn.judge import played
from skep_lab.learn.protocol import COSTS, FAMILIES, NODE_GPUS, Setting
from skep_lab.outcome import RunResult
from skep_lab.simulator.build import ALL, uniform
from skep_lab.simulator.ledger import BEGIN
from skep_lab.simulator.run import run
from skep_lab.simulator.settings import EVERYTHING, Settings
from skep_lab.simulator.world import World
from skep_lab.traces.heldout import evaluation_seed, training_seed
from skep_lab.traces.job import Trace

JUDGED = range(2_000)
"""The worlds of the judgement, a thousand for each guard; others are for trying."""
SEED_AT = 1_000_000
"""World n has the seed of trace SEED_AT + n: that of evaluation, if it is judged."""
NODES = range(2, 9)
LOADS = protocol.TRAIN_LOADS
ERRORS = protocol.TRAIN_ERRORS
JOBS, JOBS_WEIGHTS = (80, 120, 160, 420), (0.3, 0.3, 0.3, 0.1)
PERIOD_JOBS, SHADOW_PERIODS = 8, 6
"""The guard's times: a period is eight mean intervals of jobs long, and the shadow six periods, as
by default (4 hours, a day)."""
LATER = seconds(60.0)
WORSE = 0.02
MODEL = "9" * 64
NEAR_SIGMA = 0.3
"""By how much the weights of `near` are off: the spread with which evolution begins."""
LATE_S = 5.0
"""More than the policy waits for an answer (2 s)."""
MOVES, SWING = 32, seconds(3600.0)
WAIT_BOUND_S = 21_600.0
"""The default of `wait_bound_s`."""


class GuardedWorld(NamedTuple):
    """A world."""

    number: int
    setting: Setting
    jobs: int
    rule: str
    kind: str
    """Of the model: one of KINDS."""


def draw(number: int) -> GuardedWorld:
    """Return a world.

    Args:
        number: In JUDGED, or from there on for trying.
    """
    rng = np.random.default_rng([seed_of(number), 1])
    family = FAMILIES[rng.integers(len(FAMILIES))]
    setting = Setting(
        family=family,
        load=LOADS[rng.integers(len(LOADS))],
        bursts=bool(rng.random() < 0.5),
        error=ERRORS[rng.integers(len(ERRORS))],
        unseen=bool(rng.random() < 0.25),
        nodes=NODES[rng.integers(len(NODES))],
    )
    rules = {"locality": ("hold",), "elastic": ("look-ahead",)}.get(family, protocol.RULES)
    rule = rules[rng.integers(len(rules))]
    jobs = int(rng.choice(JOBS, p=JOBS_WEIGHTS))
    return GuardedWorld(number, setting, jobs, rule, (*KINDS,)[number % len(KINDS)])


def seed_of(number: int) -> int:
    """Return the seed of a world."""
    made = evaluation_seed if number in JUDGED else training_seed
    return made(SEED_AT + number)


# --- models --------------------------------------------------------------------------------------


Chooses = Callable[[list[JobSight], int, Instant], list[AdvisedMove]]
"""Returns moves of jobs, of which some wait, with so many free GPUs, at a time."""


class Sabotaged(Onlooker):
    """A model that does harm: it sees what a network sees, and chooses by a plain function."""

    def __init__(self, chooses: Chooses) -> None:
        """Begin without a sight.

        Args:
            chooses: Returns its moves.
        """
        super().__init__()
        self._chooses, self._free = chooses, 0

    def follow(self, sight: Sight) -> bool:
        """Take over a sight; return False if a whole one is needed."""
        follows = super().follow(sight)
        if follows:
            self._free = sight.free
        return follows

    def decide(self, now: Instant) -> Wish:
        """Return what it would do."""
        return Wish(self._chooses(list(self._jobs.values()), self._free, now))


class Wish(NamedTuple):
    """What a sabotaged model would do."""

    moves: list[AdvisedMove]
    holds: tuple[str, ...] = ()
    reliable: bool = True


def _begins(
    jobs: list[JobSight], free: int, *, size: Callable[[JobSight], int], sign: int = 1
) -> list[AdvisedMove]:
    """Return moves that begin the shortest jobs wherever there is room, or the longest.

    Args:
        jobs: All jobs.
        free: GPUs.
        size: With how many workers a job begins.
        sign: -1: the longest first.
    """
    made = list[AdvisedMove]()
    waiting = (job for job in jobs if job.phase == "waiting")
    for job in sorted(waiting, key=lambda job: (sign * (job.expected or 0), job.sequence)):
        workers = size(job)
        if workers * job.each <= free and len(made) < MOVES:
            free -= workers * job.each
            made.append(AdvisedMove(job=job.job, workers=workers, spread=True, margin_milli=9))
    return made


def _swings(jobs: list[JobSight], free: int, now: Instant) -> list[AdvisedMove]:
    """Return moves that begin jobs as they ask, and change the size of all every hour."""
    made, large = _begins(jobs, free, size=lambda job: job.workers), now // SWING % 2
    for job in jobs:
        workers = min(job.most, job.workers + free // job.each) if large else job.least
        if job.resizable and job.phase == "running" and len(made) < MOVES:
            free -= (workers - job.workers) * job.each
            made.append(AdvisedMove(job=job.job, workers=workers, margin_milli=9))
    return made


def _broken(_jobs: list[JobSight], _free: int, _now: Instant) -> list[AdvisedMove]:
    """Fail as a network does whose numbers are not finite.

    Raises:
        FloatingPointError: Always.
    """
    reason = "a score is not a number"
    raise FloatingPointError(reason)


SABOTAGED: dict[str, Chooses] = {
    "broken": _broken,
    "holds": lambda _jobs, _free, _now: [],
    "longest": lambda jobs, free, _: _begins(jobs, free, size=lambda job: job.workers, sign=-1),
    "narrow": lambda jobs, free, _: _begins(jobs, free, size=lambda job: job.least),
    "wide": lambda jobs, free, _: _begins(jobs, free, size=lambda job: job.most),
    "swings": _swings,
}
KINDS = {
    "good": "the network that evolution begins with, or that of --model",
    "near": "the same, every weight that evolves off by a normal number of sigma 0.3",
    "random": "a network with random weights",
    "late": "the good one, whose answers come after 5 s",
    "broken": "it fails instead of an answer, as NaN does",
    "holds": "it never begins a job",
    "longest": "the longest job first",
    "narrow": "the shortest job first, with the fewest workers, on any nodes",
    "wide": "the shortest job first, with the most workers, on any nodes",
    "swings": "the shortest job first, and every size is changed every hour",
}
"""Kinds of models; every tenth world has the same."""


def seats_of(world: GuardedWorld, good: bytes | None) -> Callable[[], Seat]:
    """Return what makes a seat of a world's model.

    Args:
        world: The world.
        good: The file of the good model; None: what evolution begins with.
    """
    if world.kind in SABOTAGED:
        chooses = SABOTAGED[world.kind]
        return lambda: Sabotaged(chooses)
    rng = np.random.default_rng([seed_of(world.number), 2])
    if world.kind == "random":
        header = modelfile.Header(job=32, head=32, trained_on="nothing", learner="none", seeds=())
        made = modelfile.dump(random_weights(int(rng.integers(2**31))), header)
    elif world.kind == "near":
        start = evolve.starts()
        made = evolve.file_of(start + NEAR_SIGMA * rng.standard_normal(len(start)), "near")
    else:
        made = good or evolve.file_of(evolve.starts(), "evolve")
    model = modelfile.load(made)
    return lambda: ModelSeat(model)


# --- playing -------------------------------------------------------------------------------------


def play(number: int, good: bytes | None = None) -> dict[str, Any]:
    """Return the row of a world.

    Args:
        number: The world.
        good: The file of the good model; None: what evolution begins with.
    """
    began = time.process_time()
    world = draw(number)
    drawn = protocol.drawn(world.setting, seed_of(number), world.jobs)
    trace = protocol.trace_of(drawn, f"world {number}")
    interval_s = in_seconds(trace.jobs[-1].at) / len(trace.jobs)
    options = {
        "model": MODEL,
        "rule": world.rule,
        "period_s": max(round(PERIOD_JOBS * interval_s), 1),
        "shadow_s": round(SHADOW_PERIODS * PERIOD_JOBS * interval_s),
    }
    settings = Settings(
        seed=number,
        costs=COSTS,
        can=EVERYTHING,
        policies={ALL: (world.rule, {})},
        models={MODEL: seats_of(world, good)},
        guards=True,
        advice_delay_s=LATE_S if world.kind == "late" else 0.0,
    )
    guarded = msgspec.structs.replace(settings, policies={ALL: (LEARNED, options)})
    cluster, truth = uniform(world.setting.nodes, NODE_GPUS), protocol.TruthOf(drawn)
    seen = dict[str, World]()
    falls = Counter[str]()

    def judge(played: World, facts: list[Any]) -> None:
        seen["world"] = played
        for fact in facts:
            if isinstance(fact, AdviceFollowed) and not fact.follows:
                falls[str(fact.why)] += 1

    rule = run(trace, cluster, settings, truth)
    learned = run(trace, cluster, guarded, truth, judge=judge)
    same = rule.decisions == learned.decisions
    again = rule if same else run(_later(trace), cluster, settings, truth)
    reports = seen["world"].reports
    assert reports is not None
    stages = [fact for fact in reports.recorded if isinstance(fact, StageSet)]
    return {
        "world": number,
        **world.setting._asdict(),
        "jobs": world.jobs,
        "rule": world.rule,
        "kind": world.kind,
        "alone": _figures(rule),
        "again": _figures(again),
        "guarded": _figures(learned),
        "same": same,
        "stages": [_told(fact, interval_s) for fact in stages],
        "falls": dict(falls),
        "cpu_s": round(time.process_time() - began, 3),
    }


def _later(trace: Trace) -> Trace:
    """Return a trace whose every other job comes a little later."""
    jobs = (
        msgspec.structs.replace(job, at=Duration(job.at + LATER * (place % 2)))
        for place, job in enumerate(trace.jobs)
    )
    ordered = tuple(sorted(jobs, key=lambda job: job.at))
    return msgspec.structs.replace(trace, jobs=ordered)


def _figures(result: RunResult) -> dict[str, float]:
    """Return what became of jobs."""
    found = played(result)
    return {
        "mean_jct_s": round(found.mean_jct_s, 3),
        "p99_jct_s": round(found.p99_jct_s, 3),
        "longest_wait_s": round(max(in_seconds(each.waited) for each in result.jobs), 3),
        "unfinished": found.unfinished,
    }


def _told(fact: StageSet, interval_s: float) -> dict[str, Any]:
    """Return a change of stage; `at` counts mean intervals of jobs."""
    return {
        "stage": fact.stage,
        "why": str(fact.why),
        "at": round(in_seconds(fact.at - BEGIN) / interval_s, 1),
        "decisions": fact.decisions,
        "agreed_milli": fact.agreed_milli,
        "samples": fact.pairs,
        "gain_milli": (fact.gain_milli, fact.low_milli, fact.high_milli),
    }


# --- what came of it -----------------------------------------------------------------------------


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the measures of the protocol over some worlds.

    Args:
        rows: At least one.
    """
    worse = np.array([_worse(row, "guarded") for row in rows])
    noise = np.array([_worse(row, "again") for row in rows])
    acted = np.array([not row["same"] for row in rows])
    draws = np.random.default_rng(0).integers(len(rows), size=(2000, len(rows)))
    low, high = np.quantile(worse[draws].mean(1), (0.025, 0.975))
    whys = sum((Counter(row["falls"]) for row in rows), Counter[str]())
    return {
        "worlds": len(rows),
        "worse_mean": float(worse.mean()),
        "worse_low": float(low),
        "worse_high": float(high),
        "worse_worst": float(worse.max()),
        "worse_part": float((worse > WORSE).mean()),
        "noise_mean": float(noise.mean()),
        "noise_worst": float(noise.max()),
        "noise_part": float((noise > WORSE).mean()),
        "otherwise": int(acted.sum()),
        "noise_part_otherwise": float((noise[acted] > WORSE).mean()) if acted.any() else 0.0,
        "switchback": sum(_reached(row, "switchback") for row in rows),
        "on": sum(_reached(row, "on") for row in rows),
        "off": sum(_reached(row, "off") for row in rows),
        "unfinished": int(sum(row["guarded"]["unfinished"] for row in rows)),
        "starved": sum(map(starved, rows)),
        "falls": dict(sorted(whys.items())),
    }


def _worse(row: dict[str, Any], name: str) -> float:
    """Return by which part the mean JCT is longer than with the rule."""
    return float(row[name]["mean_jct_s"] / row["alone"]["mean_jct_s"] - 1.0)


def _reached(row: dict[str, Any], stage: str) -> bool:
    return any(each["stage"] == stage for each in row["stages"])


def starved(row: dict[str, Any]) -> bool:
    """Return whether a job did not end, or waited far longer than its bound and than any did alone.

    That is twice as long as the longest wait under the rule.
    """
    wait, alone = row["guarded"]["longest_wait_s"], row["alone"]["longest_wait_s"]
    return bool(row["guarded"]["unfinished"] > row["alone"]["unfinished"]) or bool(
        wait > max(WAIT_BOUND_S, 2 * alone)
    )


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the measures as a table: by kind of model, and of all."""
    head = ("model", "worlds", "mean worse, 95 %", "worst", "> 2 %", "noise > 2 %", "otherwise")
    lines: list[tuple[str, ...]] = [(*head, "turns", "on", "off", "unfinished", "starved")]
    groups = {kind: [row for row in rows if row["kind"] == kind] for kind in KINDS}
    groups |= {rule: [row for row in rows if row["rule"] == rule] for rule in protocol.RULES}
    for name, chosen in {**groups, "all": list(rows)}.items():
        if not chosen:
            continue
        found = summary(chosen)
        low, mean, high = (found[f"worse_{each}"] for each in ("low", "mean", "high"))
        lines.append(
            (
                name,
                str(found["worlds"]),
                f"{mean:+.2%} ({low:+.2%} to {high:+.2%})",
                f"{found['worse_worst']:+.1%}",
                f"{found['worse_part']:.1%}",
                f"{found['noise_part']:.1%}",
                *(str(found[each]) for each in ("otherwise", "switchback", "on", "off")),
                str(found["unfinished"]),
                str(found["starved"]),
            )
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Play worlds for some processor time, and print what came of all that were played.

    Args:
        arguments: The command line; None: that of the process.

    Returns:
        The exit code: 1 if a world was worse in the mean by more than 2 %, or starved a job.
    """
    parser = argparse.ArgumentParser(
        prog="python -m skep_lab.learn.guarded_main", description=__doc__
    )
    parser.add_argument("--out", type=Path, required=True, help="a line of JSON for each world")
    parser.add_argument("--first", type=int, default=JUDGED.start)
    parser.add_argument("--worlds", type=int, default=1000)
    parser.add_argument("--cpu-minutes", type=float, default=40.0)
    parser.add_argument("--model", type=Path, help="the file of the good model")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    good = given.model.read_bytes() if given.model else None
    name = hashlib.sha256(good).hexdigest() if good else ""
    lines = given.out.read_text().splitlines() if given.out.exists() else []
    worlds = range(given.first, given.first + given.worlds)
    rows = [row for row in map(json.loads, lines) if row["world"] in worlds]
    if any(row.get("model", name) != name for row in rows):
        _say(f"{given.out} has worlds of another --model: name another file")
        return 1
    known = {row["world"] for row in rows}
    with given.out.open("a") as file:
        for number in worlds:
            if time.process_time() > 60 * given.cpu_minutes:
                break
            if number not in known:
                rows.append(play(number, good) | {"model": name})
                file.write(json.dumps(rows[-1]) + "\n")
                file.flush()
    if not rows:
        _say(f"no world was played: --cpu-minutes {given.cpu_minutes} leaves no time")
        return 1
    kinds = {kind: [row for row in rows if row["kind"] == kind] for kind in KINDS}
    found = {kind: summary(chosen) for kind, chosen in kinds.items() if chosen}
    found["all"] = summary(rows)
    _say(json.dumps(found, indent=1) if given.json else table(rows))
    return int(found["all"]["worse_part"] > 0 or found["all"]["starved"] > 0)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
