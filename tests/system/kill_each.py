"""SIGKILL each service of a cluster in turn while jobs train, and account for every mini-batch.

    python -m tests.system.kill_each [--plain] [--out FILE]

Two nodes with eight slots each. Two single trainings and a gang over both nodes run all the time
and note every mini-batch in a file. After each kill a probe is submitted at once by a bare NATS
client: a gang of all free slots, which needs both nodes. Recovery is the time from the kill to the
exec of the probe's last process. At the end every job must have ended once, with one attempt, and
the trainings' files must count 1, 2, 3, ... without gap or repetition. Exits 1 if not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from skep.wire import subjects
from skep.wire.facts import JobBound, JobEnded
from tests.support.bare_client import Answer, bare_client
from tests.support.embedded import Embedded, until

JOBS = Path(__file__).parents[1] / "e2e" / "jobs"
OPTIONS = ("--nodes", "2", "--gpus", "8", "--vc", "train=16", "--port", "0")
SERVICES = (
    "door",
    "admission",
    "allocator",
    "introspector",
    "advisor",
    "searches",
    "gateway",
    "node-1",
    "node-2",
    "nats",
)
"""The supervisor is the last one, because nobody starts it again but `skep up`."""
TRAININGS = {"alone-1": (1, 1), "alone-2": (1, 1), "gang": (2, 5)}
"""Workers and GPUs of each. Five of eight slots: the gang has one worker on each node."""
FREE = 4
"""Slots the trainings leave for opportunistic probes, at least one of them on each node."""
STEPS_MIN = 5
"""Mini-batches that each training must go on by after a kill, before the next one."""

Row = dict[str, Any]


def say(text: str) -> None:
    """Show progress on standard error."""
    print(f"kill-each: {text}", file=sys.stderr, flush=True)


class KillEach:
    """One run on a fresh cluster; `folder` takes what the jobs write."""

    def __init__(self, cluster: Embedded, folder: Path, *, plain: bool) -> None:
        """Prepare; `plain` jobs count without PyTorch."""
        self.cluster, self.folder, self.plain = cluster, folder, plain
        self.jobs: dict[str, str] = {}
        self.rows: list[Row] = []

    def run(self, services: Sequence[str] = SERVICES) -> dict[str, Any]:
        """Do it all; return the report. `problems` in it is empty if everything was as promised."""
        self.cluster.up(*OPTIONS)
        for name, (workers, gpus) in TRAININGS.items():
            self.jobs[name] = self.submit(self.training(name, workers, gpus)).job
        for job in self.jobs.values():
            self.cluster.started(job)
        self.wait_trained(dict.fromkeys(TRAININGS, 0))
        for service in services:
            self.kill(service)
        self.kill_supervisor()
        for name in TRAININGS:
            Path(f"{self.notes(name)}.stop").touch()
        documents = {name: self.cluster.ended(job) for name, job in self.jobs.items()}
        problems = list(self.problems(documents))
        return {
            "rows": self.rows,
            "trainings": [self.account(name, documents[name]) for name in TRAININGS],
            "jobs": len(documents),
            "ended_once": len(documents) - len({text.split(":")[0] for text in problems}),
            "problems": problems,
        }

    # --- jobs ----------------------------------------------------------------------------------

    def training(self, name: str, workers: int, gpus: int) -> dict[str, Any]:
        """Return the spec of a training that notes its mini-batches."""
        what: dict[str, Any] = {"script": str(JOBS / "stepper.py")}
        if self.plain:
            what = {"command": [sys.executable, str(JOBS / "counter.py")]}
        return {
            "name": name,
            "vc": "train",
            **what,
            "env": {"STEPS_FILE": self.notes(name)},
            "resources": {"workers": workers, "gpus": gpus},
        }

    def notes(self, name: str) -> str:
        """Return the path that a training's files begin with."""
        return str(self.folder / name)

    def lines(self, name: str, rank: int) -> list[str]:
        """Return what a rank noted."""
        path = Path(f"{self.notes(name)}.{rank}")
        return path.read_text().splitlines() if path.exists() else []

    def trained(self) -> dict[str, int]:
        """Return how many mini-batches each training's slowest rank has made."""
        return {
            name: min(len(self.lines(name, rank)) for rank in range(workers))
            for name, (workers, _) in TRAININGS.items()
        }

    def wait_trained(self, before: dict[str, int]) -> None:
        """Return once every training has gone on."""

        def went_on() -> bool:
            return all(made >= before[name] + STEPS_MIN for name, made in self.trained().items())

        until(went_on, f"every training goes on from {before}")

    def submit(self, spec: dict[str, Any]) -> Answer:
        """Submit with a bare client."""
        return asyncio.run(self._submit(spec, ""))[0]

    async def _submit(self, spec: dict[str, Any], victim: str) -> tuple[Answer, int, int]:
        """Submit, killing `victim` at the moment before; return also when it was and the answer."""
        async with bare_client(self.cluster.about, f"vc-{spec['vc']}") as client:
            killed = self.cluster.kill(victim) if victim else time.time_ns()
            answer = await client.submit(spec)
            return answer, killed, time.time_ns()

    # --- kills ---------------------------------------------------------------------------------

    def kill(self, service: str) -> None:
        """SIGKILL a service while a probe is submitted, and wait until all is well again."""
        pid = self.cluster.entry(service)["pid"]
        row = self.probe(service, service)
        row["ready_ms"] = round((self.cluster.wait_back(service, pid) - row.pop("at")) / 1e6)
        self.finish(row)

    def kill_supervisor(self) -> None:
        """SIGKILL the supervisor, see that the rest goes on, and put another in its place."""
        row = self.probe("supervisor", "supervisor")
        del row["at"]
        self.finish(row)
        at, before = time.time_ns(), self.trained()
        self.cluster.up()
        again = {**self.probe("`skep up` after it", ""), "mini_batches": before}
        again["ready_ms"] = round((again.pop("at") - at) / 1e6)
        # The probe came after everything was ready; the time is from the command on.
        again["new_job_ms"] += again["ready_ms"]
        self.finish(again)

    def probe(self, what: str, victim: str) -> Row:
        """Submit a gang that needs every node; return how long until its processes started."""
        spec = {
            "name": f"probe-{len(self.rows)}",
            "vc": "train",
            "command": ["true"],
            "service_class": "opportunistic",
            "resources": {"workers": FREE},
        }
        before = self.trained()
        answer, killed, answered = asyncio.run(self._submit(spec, victim))
        document = self.cluster.ended(answer.job)
        self.jobs[str(spec["name"])] = answer.job
        (attempt,) = document["attempts"]
        # An agent that is killed between exec and note tells the end only: the later of the two.
        started = attempt["started_at"] or attempt["ended_at"]
        return {
            "killed": what,
            "at": killed,
            "verdict_ms": round((answered - killed) / 1e6),
            "new_job_ms": round((started - killed) / 1e6),
            "ready_ms": None,
            "mini_batches": before,
        }

    def finish(self, row: Row) -> None:
        """Keep a row once the trainings have gone on and every node is there again."""
        self.wait_trained(self.trained())

        def nodes_up() -> bool:
            nodes = self.cluster.get("/v1/nodes")["nodes"]
            return [node["state"] for node in nodes] == ["up", "up"]

        until(nodes_up, "both nodes are up")
        row["mini_batches"] = {
            name: [before, self.trained()[name]] for name, before in row["mini_batches"].items()
        }
        self.rows.append(row)
        say(f"{row['killed']}: new job started after {row['new_job_ms']} ms")

    # --- the account ---------------------------------------------------------------------------

    def account(self, name: str, document: dict[str, Any]) -> Row:
        """Return what a training did, by its own notes and by what Skep counted."""
        workers, _ = TRAININGS[name]
        return {
            "name": name,
            "job": document["job"],
            "state": document["state"],
            "attempts": len(document["attempts"]),
            "mini_batches": [len(self.lines(name, rank)) for rank in range(workers)],
            "counted_by_skep": document["steps"],
            "seconds": round((document["ended_at"] - document["started_at"]) / 1e9, 1),
        }

    def problems(self, documents: dict[str, Any]) -> Iterable[str]:
        """Yield everything that was not as promised, each beginning with the job's name."""
        every = [fact for _, fact in asyncio.run(self.cluster.facts(subjects.ALLOC))]
        for name, document in documents.items():
            job = document["job"]
            mine = [fact for fact in every if getattr(fact, "job", "") == job]
            ends = [fact for fact in mine if isinstance(fact, JobEnded)]
            if [end.end for end in ends] != ["succeeded"]:
                yield f"{name}: ended as {[str(end.end) for end in ends]}, not succeeded once"
            bound = [fact.attempt for fact in mine if isinstance(fact, JobBound)]
            if bound != [1]:
                yield f"{name}: attempts {bound}, not one"
            if name not in TRAININGS:
                continue
            notes = [self.lines(name, rank) for rank in range(TRAININGS[name][0])]
            for rank, lines in enumerate(notes):
                if lines != [f"1 {step}" for step in range(1, len(lines) + 1)]:
                    yield f"{name}: rank {rank} lost or repeated mini-batches"
            if not self.plain and document["steps"] != len(notes[0]):
                yield f"{name}: Skep counted {document['steps']}, it made {len(notes[0])}"


def table(report: dict[str, Any]) -> str:
    """Return the report as people read it."""
    lines = [
        f"{'SIGKILL of':20} {'verdict':>10} {'new job started':>16} {'itself ready':>13}   "
        "mini-batches while it was away"
    ]
    for row in report["rows"]:
        ready = "-" if row["ready_ms"] is None else f"{row['ready_ms']} ms"
        made = ", ".join(f"{name} +{b - a}" for name, (a, b) in row["mini_batches"].items())
        lines.append(
            f"{row['killed']:20} {row['verdict_ms']:>7} ms {row['new_job_ms']:>13} ms "
            f"{ready:>13}   {made}"
        )
    lines.append("")
    for one in report["trainings"]:
        made = " and ".join(str(count) for count in one["mini_batches"])
        lines.append(
            f"{one['name']}: {one['state']}, attempts = {one['attempts']}, {made} "
            f"mini-batches noted, {one['counted_by_skep']} counted by Skep, "
            f"in {one['seconds']} s"
        )
    lines.append(
        f"{report['ended_once']} of {report['jobs']} jobs ended once, with one attempt "
        "and without a mini-batch lost or repeated"
    )
    lines += [f"PROBLEM {problem}" for problem in report["problems"]]
    return "\n".join(lines)


def main() -> int:
    """Run it in a temporary folder."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plain", action="store_true", help="jobs that count without PyTorch")
    parser.add_argument("--out", type=Path, help="write the report as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="skep-kill-each-") as name:
        folder = Path(name)
        cluster = Embedded(folder / "home")
        try:
            report = KillEach(cluster, folder, plain=arguments.plain).run()
        finally:
            cluster.down()
    print(table(report))
    if arguments.out:
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    else:
        print(json.dumps(report))
    return 1 if report["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
