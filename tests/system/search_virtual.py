"""The same search time-sliced and queued, on a virtual clock with real curves; prints JSON.

    python -m tests.system.search_virtual --seeds 10

Every configuration that Optuna's sampler draws is trained once (a fifth of a second each), then
both ways of running them are played by its curve: `sliced` as one search of Skep's, decided by the
machine of the service `searches` in the world of its tests, and `queued` as sixty jobs, first in
first out, stopped where Optuna's pruner says so.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna

from skep.machines.searches import SearchesMachine
from skep.wire.facts import End
from skep.wire.reasons import Reason
from skep_services.ask_tell.space import suggest
from tests.kit import Driver
from tests.search_kit import Job, World
from tests.system.search_jobs.digits import DEFAULTS, Network, batches, load
from tests.system.search_jobs.space import PRUNERS, SPACE, TARGET, TRIALS, study_of

TICK_S = 0.1
TELL_EVERY = 60
"""Mini-batches between two points of a curve: metrics leave a job about once a second."""


class Costs(NamedTuple):
    """What things take, in seconds of the virtual clock."""

    step_s: float = 0.02
    begin_s: float = 1.0
    switch_s: float = 0.3


class Config(NamedTuple):
    """A configuration and its accuracy by mini-batches."""

    params: dict[str, Any]
    curve: list[tuple[int, float]]


class Outcome(NamedTuple):
    """How a run went. Times are None where it never came to that."""

    target_s: float | None
    trial: int
    feedback_s: float | None
    """When every configuration had told its first accuracy."""
    steps: int
    """Mini-batches of all trials until the target."""


def configs(seed: int, options: argparse.Namespace) -> list[Config]:
    """Return what the sampler draws, each with its real curve, kept in a file if there is one."""
    name = f"curves-{seed}-{options.steps}-{options.every}.json"
    if options.keep is not None and (options.keep / name).exists():
        kept = json.loads((options.keep / name).read_text())
        return [Config(params, [(step, value) for step, value in curve]) for params, curve in kept]
    study, data = study_of(seed, "none"), load()
    drawn = [suggest(SPACE)(study.ask()) for _ in range(TRIALS)]
    made = [_config(params, data, options.steps, options.every) for params in drawn]
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
        (options.keep / name).write_text(json.dumps(made))
    return made


def _config(params: dict[str, Any], data: Any, steps: int, every: int) -> Config:
    images, labels, tests, answers = data
    rng = np.random.default_rng(7)
    network, curve, best = Network(DEFAULTS | params, rng), [], 0.0
    chosen = batches(rng, len(labels), params["batch"])
    with np.errstate(all="ignore"):
        for step in range(1, steps + 1):
            batch = next(chosen)
            network.train(images[batch], labels[batch])
            if step % every == 0:
                best = max(best, network.accuracy(tests, answers))
            if step % TELL_EVERY == 0:
                curve.append((step, best))
    return Config(params, curve)


class Course:
    """One trial's progress while it runs."""

    def __init__(self, config: Config, costs: Costs) -> None:
        self.left = list(config.curve)
        self.wait_s, self.step = costs.begin_s, 0.0
        self._costs = costs

    def run(self, seconds: float) -> Iterator[tuple[int, float]]:
        """Yield the points that come within so long."""
        waited = min(self.wait_s, seconds)
        self.wait_s -= waited
        self.step += (seconds - waited) / self._costs.step_s
        while self.left and self.left[0][0] <= self.step + 1e-6:
            yield self.left.pop(0)


def queued(drawn: list[Config], seed: int, options: Any, costs: Costs) -> Outcome:
    """Play the configurations first in, first out; who is pruned is stopped."""
    study = study_of(seed, options.pruner)
    running: list[tuple[int, optuna.Trial, Course]] = []
    asked, now, steps = 0, 0.0, 0.0
    first: dict[int, float] = {}
    while running or asked < len(drawn):
        while len(running) < options.slots and asked < len(drawn):
            trial = study.ask()
            suggest(SPACE)(trial)
            running.append((asked, trial, Course(drawn[asked], costs)))
            asked += 1
        now += TICK_S
        for each in list(running):
            number, trial, course = each
            before = course.step
            for step, value in course.run(TICK_S):
                first.setdefault(number, now)
                trial.report(value, step)
                if value >= TARGET:
                    feedback = max(first.values()) if len(first) == len(drawn) else None
                    return Outcome(
                        round(now, 1), number + 1, feedback, round(steps + step - before)
                    )
                if trial.should_prune():
                    study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                    running.remove(each)
                    break
            else:
                if not course.left:
                    study.tell(trial, drawn[number].curve[-1][1])
                    running.remove(each)
            steps += course.step - before
    return Outcome(None, 0, max(first.values()), round(steps))


def sliced(drawn: list[Config], seed: int, options: Any, costs: Costs) -> Outcome:
    """Play them as one search: all at once, by turns, the most promising exclusively."""
    world = World(gpus=options.slots)
    world.driver = Driver(SearchesMachine, thorough=False)
    world.driver.restart(0)
    steps = drawn[0].curve[-1][0]
    name = world.begin(
        sampler="client",
        space=SPACE,
        budget={"trials": len(drawn)},
        steps=steps,
        parallel=options.slots,
        exclusive=options.exclusive,
        live=len(drawn),
        turn=options.turn,
        target=TARGET,
        job={"script": "digits.py"},
    )
    study = study_of(seed, options.pruner)
    trials: dict[int, optuna.Trial] = {}
    for _ in drawn:
        trial = study.ask()
        told = world.ask(do="ask", search=name, params=suggest(SPACE)(trial))
        assert told.accepted, told
        trials[told.trial] = trial
    courses = {number: Course(drawn[number - 1], costs) for number in trials}
    began, ran, demoted = world.now, set[int](), set[int]()
    first: dict[int, float] = {}

    def heard(job: Job, number: int, step: int, value: float) -> bool:
        first.setdefault(number, (world.now - began) / 1e9)
        world.measure(job, step, value)
        trial = trials[number]
        trial.report(value, step)
        pruned = trial.should_prune()
        if value < TARGET and pruned != (number in demoted):
            (demoted.add if pruned else demoted.remove)(number)
            world.ask(do="demote" if pruned else "promote", search=name, trial=number)
        return value >= TARGET

    while True:
        world.pass_time(TICK_S)
        now = {int(job.spec.labels["trial"]): job for job in world.running()}
        for number in now.keys() - ran:
            if courses[number].step:
                courses[number].wait_s = costs.switch_s
        ran = set(now)
        for number, job in now.items():
            for step, value in courses[number].run(TICK_S):
                if heard(job, number, step, value):
                    taken_s = (world.now - began) / 1e9
                    feedback = max(first.values()) if len(first) == len(drawn) else None
                    made = round(sum(each.step for each in courses.values()))
                    return Outcome(taken_s, number, feedback, made)
            if not courses[number].left:
                world.end(job, End.SUCCEEDED, Reason.SUCCEEDED)
                study.tell(trials[number], drawn[number - 1].curve[-1][1])
        if not now and not world.machine.searches:
            made = round(sum(each.step for each in courses.values()))
            return Outcome(None, 0, max(first.values()), made)


def main() -> int:
    """Play every seed both ways and print what came of it."""
    options = arguments()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    costs, rows = Costs(), []
    for seed in range(options.first, options.first + options.seeds):
        began = time.process_time()
        drawn = configs(seed, options)
        ways = {"sliced": sliced, "queued": queued}
        row: dict[str, Any] = {
            "seed": seed,
            "reach_it": sum(max(value for _, value in each.curve) >= TARGET for each in drawn),
        }
        row |= {name: way(drawn, seed, options, costs)._asdict() for name, way in ways.items()}
        times = [row[name]["target_s"] for name in ("queued", "sliced")]
        row["times_sooner"] = None if None in times else round(times[0] / times[1], 2)
        rows.append(row | {"cpu_s": round(time.process_time() - began, 1)})
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    found = [row["times_sooner"] for row in rows if row["times_sooner"] is not None]
    about = {
        **vars(options),
        "keep": str(options.keep),
        "costs": costs._asdict(),
        "target": TARGET,
        "trials": TRIALS,
    }
    mean = (
        {
            name: round(
                statistics.mean(
                    row[name]["target_s"] for row in rows if row["times_sooner"] is not None
                ),
                1,
            )
            for name in ("sliced", "queued")
        }
        if found
        else {}
    )
    print(
        json.dumps(
            {
                "about": about,
                "seeds": rows,
                "mean_s": mean,
                "never": {
                    name: sum(row[name]["target_s"] is None for row in rows)
                    for name in ("sliced", "queued")
                },
                "times_sooner_median": statistics.median(found) if found else None,
                "times_sooner_of_means": round(mean["queued"] / mean["sliced"], 2)
                if found
                else None,
            },
            indent=2,
        )
    )
    return 0


def arguments() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--exclusive", type=int, default=2)
    parser.add_argument("--turn", type=int, default=2, metavar="SECONDS")
    parser.add_argument("--pruner", choices=PRUNERS, default="median")
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="curves once made")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
