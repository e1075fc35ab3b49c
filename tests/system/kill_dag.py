"""SIGKILL the allocator and admission again and again while jobs that name one another resolve.

    python -m tests.system.kill_dag [--jobs 60] [--kills 6] [--out FILE]

One file of layers of six jobs: three wait by `ok` for two of the layer before them, one fails, one
waits for that by `fail`, and one by `ok`, so that it is cancelled. One job of each layer is an
array of several tasks, which waits and is waited for like the others. The first layer is held until
all are submitted. Every job and task notes its start and its end in a file. At the end every one
must have ended once, as its dependencies say by themselves, and none may have started before them.
Exits 1 if not.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.embedded import Embedded, until

LAYER, FAILS, ARRAY = 6, 3, 1
"""Jobs of a layer, and the places of the one that fails and of the one that is an array."""
TASKS, TASKS_TEXT = 5, "0-4%3"
OPTIONS = ("--nodes", "2", "--gpus", "4", "--vc", "train=8", "--port", "0")
VICTIMS = ("allocator", "admission")
JOB = (
    "import os,sys,time; note=open(sys.argv[1]+os.environ.get('SKEP_ARRAY_INDEX',''),'a'); "
    "print('start',time.time_ns(),file=note,"
    "flush=True); time.sleep(0.2); print('end',time.time_ns(),file=note,flush=True); "
    "sys.exit(int(sys.argv[2]))"
)

Row = dict[str, Any]


def say(text: str) -> None:
    """Show progress on standard error."""
    print(f"kill-dag: {text}", file=sys.stderr, flush=True)


def after(number: int) -> dict[str, list[str]]:
    """Return for what the job of a number (from 0) waits, by name."""
    layer, place = divmod(number, LAYER)
    if not layer:
        return {}
    before = (layer - 1) * LAYER
    if place == FAILS:
        return {"any": [f"n{before + FAILS}"]}
    if place == FAILS + 1:  # It goes on where the one before it failed.
        return {"fail": [f"n{before + FAILS}"], "any": [f"n{before + place}"]}
    if place == FAILS + 2:  # It never comes to run, but in the first layer.
        return {"ok": [f"n{before + FAILS}"], "any": [f"n{before + place}"]}
    return {"ok": [f"n{before + each}" for each in sorted({place, (place + 1) % FAILS})]}


def expected(jobs: int) -> list[str]:
    """Return how each job is to end."""
    ends: list[str] = []
    for number in range(jobs):
        named = [
            (kind, ends[int(name[1:])]) for kind, names in after(number).items() for name in names
        ]
        wrong = any(
            (kind == "ok" and end != "succeeded") or (kind == "fail" and end == "succeeded")
            for kind, end in named
        )
        ends.append("cancelled" if wrong else "failed" if number % LAYER == FAILS else "succeeded")
    return ends


def is_array(number: int) -> bool:
    """Return whether the job of a number is an array."""
    return number % LAYER == ARRAY


class KillDag:
    """One run on a fresh cluster; `folder` takes what the jobs write."""

    def __init__(self, cluster: Embedded, folder: Path, jobs: int) -> None:
        """Prepare."""
        self.cluster, self.folder, self.jobs = cluster, folder, jobs

    def run(self, kills: int) -> dict[str, Any]:
        """Do it all; return the report. `problems` in it is empty if everything was as promised."""
        self.cluster.up(*OPTIONS)
        path = self.folder / "pipeline.json"
        path.write_text("\n".join(json.dumps(self.spec(number)) for number in range(self.jobs)))
        ids = self.cluster.skep("submit", "-q", str(path)).split()
        self.cluster.skep("release", *ids[:LAYER])
        for kill in range(kills):
            made = self.ended()
            victim = VICTIMS[kill % len(VICTIMS)]
            self.cluster.kill(victim)
            say(f"{victim} is killed, {made} of {self.jobs} jobs have ended")
            enough = partial(self.at_least, min(self.jobs, made + 2))
            until(enough, "two more jobs end")
        documents = [self.cluster.ended(job) for job in ids]
        problems = list(self.problems(documents))
        states = [row["state"] for row in documents]
        return {
            "jobs": self.jobs,
            "kills": kills,
            "ends": {state: states.count(state) for state in sorted(set(states))},
            "problems": problems,
        }

    def spec(self, number: int) -> Row:
        """Return the spec of a job."""
        fails = "1" if number % LAYER == FAILS else "0"
        note = str(self.folder / f"n{number}-")
        tree: Row = {"name": f"n{number}", "vc": "train"}
        if is_array(number):
            tree["array"] = TASKS_TEXT
        tree["command"] = [sys.executable, "-c", JOB, note, fails]
        return {**tree, "after": after(number)} if after(number) else {**tree, "hold": True}

    def ended(self) -> int:
        """Return how many jobs and arrays have ended."""
        return int(self.cluster.get("/v1/jobs?state=ended&limit=1")["total"])

    def at_least(self, count: int) -> bool:
        """Return whether so many jobs have ended."""
        return self.ended() >= count

    def noted(self, number: int) -> dict[str, list[int]]:
        """Return when a job, or each task of an array, says that it started and ended (ns)."""
        found: dict[str, list[int]] = {"start": [], "end": []}
        for task in range(TASKS) if is_array(number) else ("",):
            path = self.folder / f"n{number}-{task}"
            for line in path.read_text().splitlines() if path.exists() else ():
                word, when = line.split()
                found[word].append(int(when))
        return found

    def problems(self, documents: list[Row]) -> Iterator[str]:
        """Yield what is not as it was to be."""
        for number, (row, end) in enumerate(zip(documents, expected(self.jobs), strict=True)):
            noted = self.noted(number)
            if row["state"] != end:
                yield f"n{number} has {row['state']}, and was to have {end}"
            runs = (TASKS if is_array(number) else 1) if end != "cancelled" else 0
            if (starts := len(noted["start"])) != runs:
                yield f"n{number} ({end}) started {starts} times, and was to {runs} times"
            for names in after(number).values():
                for name in names:
                    others = self.noted(int(name[1:]))["end"]
                    if noted["start"] and others and min(noted["start"]) < max(others):
                        yield f"n{number} started before the end of {name}"


def main() -> int:
    """Run on a cluster of its own; print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cluster = Embedded(Path(folder) / "home")
        try:
            report = KillDag(cluster, Path(folder), given.jobs).run(given.kills)
        finally:
            cluster.down()
    text = json.dumps(report, indent=1)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")
    return 1 if report["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
