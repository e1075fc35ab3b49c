"""Measure how long jobs of PyTorch take to their first mini-batch, executed and forked.

    python -m benchmarks warm_starts [--jobs 8] [--trials 60] [--slots 2] [--pairs 1]

A cluster of one node for each of `cold` (every rank is executed) and `warm` (ranks are forked from
a warm process), in turns. `first_batch_s`: from the submission over the gateway to the end of the
first mini-batch, of one job at a time, after one that is not counted. `search_s`: a whole search,
from its submission to its end, on the same cluster; its trials are some mini-batches long. `ratio`
is cold divided by warm. `warm_process_bytes` is what the warm process had in memory, shared with
what is forked from it. `same_losses`: whether all trials printed the same in both.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks._sample import extremes, say
from tests.support.embedded import Embedded, until

SCRIPT = Path(__file__).parent / "jobs" / "short_trial.py"
LIBRARIES = str(Path(__file__).parents[1] / "libs")
READY = re.compile(r"^warm process .* imports, (\d+) bytes", re.MULTILINE)


class Bench:
    """One cluster."""

    def __init__(self, folder: Path, options: argparse.Namespace, *, warm: bool) -> None:
        self.folder, self.options, self.warm = folder, options, warm
        given = {"SKEP_WARM_PROCESSES": "2" if warm else "0"}
        self.cluster = Embedded(folder / "home", given)
        self.file = folder / "first"

    def figures(self) -> dict[str, Any]:
        """Return what was measured on this cluster."""
        slots = str(self.options.slots)
        self.cluster.up("--nodes", "1", "--gpus", slots, "--vc", f"lab={slots}")
        try:
            self.first_batch("0.01")
            if self.warm:
                until(lambda: READY.search(self._said()), "a warm process")
            firsts = [self.first_batch("0.01") for _ in range(self.options.jobs)]
            search_s, losses = self.search()
            found = READY.findall(self._said())
        finally:
            self.cluster.down()
        return {
            "first_batch_s": firsts,
            "search_s": search_s,
            "losses": losses,
            "bytes": max(map(int, found), default=0),
        }

    def first_batch(self, rate: str) -> float:
        """Return how long a job took to its first mini-batch; waits for its end."""
        spec = {"name": "one", "vc": "lab", **self._job(rate)}
        began = time.time()
        reply = self.cluster.ask("POST", "/v1/jobs", json.dumps(spec).encode())
        assert reply.status in {201, 202}, reply
        job = reply.body["job"]
        ended = self.cluster.ended(job)
        assert ended["state"] == "succeeded", (ended, self.cluster.log(job))
        return self._firsts()[job] - began

    def search(self) -> tuple[float, list[str]]:
        """Return how long a search takes, and what its trials printed."""
        spec = {
            "name": "short",
            "vc": "lab",
            "metric": "loss",
            "job": self._job("{rate}"),
            "space": {"rate": {"log": [0.001, 0.01]}},
            "budget": {"trials": self.options.trials},
            "parallel": self.options.slots,
            "exclusive": self.options.slots - 1,
            "steps": self.options.steps,
        }
        began = time.time()
        reply = self.cluster.ask("POST", "/v1/searches", json.dumps(spec).encode())
        assert reply.status in {201, 202}, reply
        search = reply.body["search"]
        shown = until(
            lambda: (
                (told := self.cluster.get(f"/v1/searches/{search}"))["state"] == "over" and told
            ),
            f"{search} to be over",
            within_s=3600,
        )
        taken = time.time() - began
        logs = [self.cluster.log(row["job"]).strip() for row in shown["rows"]]
        return taken, logs

    def _job(self, rate: str) -> dict[str, Any]:
        args = [rate, str(self.options.steps), str(self.file)]
        # The library of this checkout, whichever is installed.
        return {"script": str(SCRIPT), "args": args, "env": {"PYTHONPATH": LIBRARIES}}

    def _firsts(self) -> dict[str, float]:
        lines = self.file.read_text(encoding="ascii").splitlines()
        return {each["job"]: each["at"] for each in map(json.loads, lines)}

    def _said(self) -> str:
        found = [path.read_text() for path in self.cluster.home.rglob("runner.log")]
        return "".join(found)


def options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=1)


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Measure pairs of clusters, and compare them."""
    found: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for pair in range(given.pairs):
        for warm in (False, True) if pair % 2 == 0 else (True, False):
            say(f"pair {pair + 1}: {'warm' if warm else 'cold'}")
            with tempfile.TemporaryDirectory() as folder:
                found[warm].append(Bench(Path(folder), given, warm=warm).figures())
    firsts = {warm: [s for one in found[warm] for s in one["first_batch_s"]] for warm in found}
    searches = {warm: [one["search_s"] for one in found[warm]] for warm in found}
    medians = {warm: statistics.median(firsts[warm]) for warm in found}
    return {
        "cold": {
            "first_batch_s": extremes(firsts[False], 3),
            "search_s": extremes(searches[False], 2),
        },
        "warm": {
            "first_batch_s": extremes(firsts[True], 3),
            "search_s": extremes(searches[True], 2),
            "warm_process_bytes": max(one["bytes"] for one in found[True]),
        },
        "ratio": {
            "first_batch": round(medians[False] / medians[True], 2),
            "search": round(
                statistics.median(searches[False]) / statistics.median(searches[True]), 2
            ),
        },
        "same_losses": len({tuple(one["losses"]) for warm in found for one in found[warm]}) == 1,
    }
