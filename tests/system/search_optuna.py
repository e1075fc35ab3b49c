"""A search of sixty trials with Optuna on a live cluster, as one object and queued; prints JSON.

    python -m tests.system.search_optuna --seeds 5 --out out/search

Twice the same sampler, pruner and seed, on a fresh cluster of four slots each time, one after the
other. `sliced`: one search of Skep's, whose trials all begin and take turns; the most promising
keep their slots, and what the pruner would stop is demoted. `queued`: sixty jobs, first in first
out, and what the pruner would stop is stopped. The jobs train a small network on scikit-learn's
digits, a mini-batch in 20 ms at least. `target_s` is how long it took from the first submission
until somebody who looks twice a second saw an accuracy at the target; `steps` are the mini-batches
of all trials that he saw until then, which a busy machine does not change much.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState

from skep_services.ask_tell.client import SearchClient
from skep_services.ask_tell.space import suggest
from skep_services.ask_tell.study import LOOK_EVERY_S, SkepStudy
from tests.support.embedded import Embedded, until
from tests.system.search_jobs.picture import picture
from tests.system.search_jobs.space import PRUNERS, SPACE, TARGET, TRIALS, study_of

SCRIPT = Path(__file__).parent / "search_jobs" / "digits.py"
ENDED = {"succeeded", "failed", "cancelled", "refused"}
WITHIN_S = 300.0


class Seen:
    """What somebody saw who looked at the trials: points by trial, and when (s)."""

    def __init__(self) -> None:
        """Begin to look."""
        self._began = time.monotonic()
        self.points: dict[int, list[tuple[float, int, float]]] = {}
        self.target_s: float | None = None
        self.trial, self.at_step = 0, 0
        self.steps = 0

    @property
    def now(self) -> float:
        """Return how long ago it began."""
        return time.monotonic() - self._began

    def new(self, trial: int, curve: Any) -> list[tuple[int, float]]:
        """Take over a trial's curve; return the points that are new."""
        mine = self.points.setdefault(trial, [])
        last = mine[-1][1] if mine else 0
        fresh = [(step, value) for step, value in curve if step > last]
        for step, value in fresh:
            mine.append((round(self.now, 2), step, value))
            if value >= TARGET and self.target_s is None:
                self.target_s, self.trial, self.at_step = round(self.now, 1), trial, step
        if self.target_s is None or not self.steps:
            self.steps = sum(each[-1][1] for each in self.points.values() if each)
        return fresh

    def told(self) -> dict[str, Any]:
        """Return it as JSON."""
        first = sorted(mine[0][0] for mine in self.points.values() if mine)
        return {
            "target_s": self.target_s,
            "trial": self.trial,
            "at_step": self.at_step,
            "steps": self.steps,
            "heard_of": len(first),
            "feedback_s": first[-1] if len(first) == TRIALS else None,
        }


def job(options: argparse.Namespace) -> dict[str, Any]:
    """Return what a trial is, but for its parameters."""
    return {
        "script": str(SCRIPT),
        "vc": "lab",
        "args": ["--steps", str(options.steps), "--step-s", str(options.step_s)],
        "env": {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    }


@contextmanager
def cluster(options: argparse.Namespace, policy: str) -> Iterator[Embedded]:
    """Yield a fresh cluster of one node, whose virtual cluster has this policy."""
    with tempfile.TemporaryDirectory(prefix="skep-search-") as folder:
        made = Embedded(Path(folder), {"SKEP_PORTS": options.ports} if options.ports else None)
        try:
            made.up("--nodes", "1", "--gpus", str(options.slots), "--vc", f"lab={options.slots}")
            vcs = {"vcs": {"lab": {"gpus": options.slots, "policy": policy}}}
            reply = made.ask("POST", "/v1/admin/vcs", json.dumps(vcs).encode())
            assert reply.status == 202, reply
            until(lambda: made.get("/v1/usage")["vcs"][0]["policy"] == policy, policy)
            yield made
        finally:
            made.down()


def sliced(options: argparse.Namespace, seed: int) -> Seen:
    """Run the search as one object."""
    with cluster(options, "gandiva") as made:
        spec = {
            "name": f"digits-{seed}",
            "vc": "lab",
            "metric": "accuracy",
            "direction": "maximize",
            "job": job(options),
            "space": SPACE,
            "budget": {"trials": TRIALS},
            "target": TARGET,
            "sampler": "client",
            "parallel": options.slots,
            "exclusive": options.exclusive,
            "live": TRIALS,
            "turn": options.turn,
            "steps": options.steps,
        }
        seen, client = Seen(), SearchClient(str(made.home))

        def watch(shown: Any) -> None:
            for row in shown["rows"]:
                seen.new(row["trial"], row["points"])
            if options.verbose:
                print(
                    f"{seen.now:.1f}",
                    shown["state"],
                    shown["stands"],
                    sum(row["demoted"] for row in shown["rows"]),
                    shown["best"] and shown["best"]["value"],
                    file=sys.stderr,
                )
            late = seen.target_s is not None or seen.now > WITHIN_S
            if late and shown["state"] != "over":
                client.cancel(shown["search"])

        SkepStudy(study_of(seed, options.pruner), spec, client).run(watch=watch)
        return seen


def queued(options: argparse.Namespace, seed: int) -> Seen:
    """Run the same trials first in, first out; who is pruned is stopped."""
    with cluster(options, "fifo") as made:
        study, seen, trials = study_of(seed, options.pruner), Seen(), {}
        for number in range(1, TRIALS + 1):
            trial = study.ask()
            params = suggest(SPACE)(trial)
            spec = {**job(options), "name": f"digits-{seed}-{number}"}
            spec["env"] = {**spec["env"], "SKEP_PARAMETERS": json.dumps(params)}
            reply = made.ask("POST", "/v1/jobs", json.dumps(spec).encode())
            assert reply.status == 201, reply
            trials[reply.body["job"]] = number, trial
        left = dict(trials)
        while left and seen.target_s is None and seen.now < WITHIN_S:
            rows = {row["job"]: row for row in made.get("/v1/jobs?state=all")["jobs"]}
            for name in [name for name in left if rows[name]["state"] not in {"queued", "bound"}]:
                number, trial = left[name]
                points = made.get(f"/v1/jobs/{name}/curve")["points"]
                curve = [(each["step"], each["values"]["accuracy"]) for each in points]
                for step, value in seen.new(number, curve):
                    trial.report(value, step)
                    if seen.target_s is None and trial.should_prune():
                        made.ask("DELETE", f"/v1/jobs/{name}")
                        study.tell(trial, state=TrialState.PRUNED)
                        del left[name]
                        break
                if name in left and rows[name]["state"] in ENDED:
                    study.tell(trial, max(value for _, _, value in seen.points[number]))
                    del left[name]
            if options.verbose:
                print(
                    f"{seen.now:.1f}",
                    len(left),
                    {k: v[-1] for k, v in seen.points.items() if v},
                    file=sys.stderr,
                )
            time.sleep(LOOK_EVERY_S)
        return seen


def main() -> int:
    """Run every seed both ways, one after the other, and print what came of it."""
    options = arguments()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rows, curves = [], {}
    for seed in range(options.first, options.first + options.seeds):
        row: dict[str, Any] = {"seed": seed, "load": os.getloadavg()[0]}
        # Who goes first changes with the seed: what else the machine does is then for both.
        order = [("sliced", sliced), ("queued", queued)][:: 1 if seed % 2 else -1]
        for name, way in order:
            if name in options.only:
                seen = way(options, seed)
                row[name] = seen.told()
                curves[f"{name}-{seed}"] = seen.points
        times = [row.get(name, {}).get("target_s") for name in ("queued", "sliced")]
        row["times_sooner"] = None if None in times else round(times[0] / times[1], 2)
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / "curves.json").write_text(json.dumps(curves))
            (options.out / "search.svg").write_text(picture(curves, TARGET))
    both = [row for row in rows if row["times_sooner"] is not None]
    found = [row["times_sooner"] for row in both]
    mean = {
        name: statistics.mean(row[name]["target_s"] for row in both) if both else 0.0
        for name in ("sliced", "queued")
    }
    print(
        json.dumps(
            {
                "about": {
                    **vars(options),
                    "out": str(options.out),
                    "target": TARGET,
                    "trials": TRIALS,
                },
                "seeds": rows,
                "mean_s": mean,
                "times_sooner_median": statistics.median(found or [0]),
                "times_sooner_of_means": mean["queued"] / mean["sliced"] if both else None,
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
    parser.add_argument("--turn", type=int, default=1, metavar="SECONDS")
    parser.add_argument("--pruner", choices=PRUNERS, default="median")
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--only", nargs="+", default=["sliced", "queued"])
    parser.add_argument("--ports", default="", metavar="FIRST-LAST", help="where gangs meet")
    parser.add_argument("--out", type=Path, help="folder for curves and the picture")
    parser.add_argument("--verbose", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
