"""Acknowledge submissions, SIGKILL everything at once, start again: is every job known and ended?

    python scripts/kill_all.py [--jobs 500] [--out FILE]

A bare NATS client submits the jobs with many publishes in flight. The moment the last one is
acknowledged, every service, both agents, the supervisor and the bus server are killed together.
`skep up` on the same folder must then bring every job to exactly one end. What each job does is
append a line to a file, so executions are counted as well. Exits 1 if a job is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.bare_client import bare_client
from scripts.embedded import Embedded, until
from skep.wire import subjects
from skep.wire.facts import Admitted, JobEnded, Repeated
from skep_services.supervisor import home as folder

JOBS = 500
OPTIONS = ("--nodes", "2", "--gpus", "4", "--vc", "batch=8", "--port", "0")
ENDED_WITHIN_S = 120.0


class KillAll:
    """One run on a fresh cluster; the jobs write into `runs`."""

    def __init__(self, cluster: Embedded, runs: Path, jobs: int = JOBS) -> None:
        """Prepare."""
        self.cluster, self.runs, self.jobs = cluster, runs, jobs
        self.entries: dict[str, dict[str, Any]] = {}

    def run(self) -> dict[str, Any]:
        """Do it all; return the report."""
        self.cluster.up(*OPTIONS)
        submitted, acknowledged_s, killed_at = asyncio.run(self._submit_and_kill())
        until(self._all_gone, f"{self.entries} are gone")
        began = time.monotonic()
        self.cluster.up()
        up_s = time.monotonic() - began
        until(self._all_ended, f"{self.jobs} jobs ended", ENDED_WITHIN_S)
        ended_s = time.monotonic() - began
        return {
            "acknowledged": len(submitted),
            "acknowledged_within_s": round(acknowledged_s, 3),
            "killed": list(self.entries),
            **asyncio.run(self._account(submitted, killed_at)),
            "skep_up_s": round(up_s, 2),
            "all_ended_s": round(ended_s, 2),
        }

    async def _submit_and_kill(self) -> tuple[list[str], float, int]:
        """Return the jobs, how long their acknowledgements took, and when the kill came."""
        command = f'echo "$SKEP_JOB $SKEP_GEN" >> {self.runs}'
        specs = [{"name": f"batch-{n}", "vc": "batch", "command": command}
                 for n in range(self.jobs)]  # fmt: skip
        names = ("nats", "supervisor", *(name for name in self.cluster.pids() if name != "nats"))
        self.entries = {name: self.cluster.entry(name) for name in names}
        async with bare_client(self.cluster.about, "vc-batch") as client:
            began = time.perf_counter()
            submitted = await client.submit_many(specs)
            took_s = time.perf_counter() - began
            at = time.time_ns()
            for entry in self.entries.values():
                os.kill(entry["pid"], signal.SIGKILL)
        return submitted, took_s, at

    def _all_gone(self) -> bool:
        return not any(folder.is_alive(entry) for entry in self.entries.values())

    def _all_ended(self) -> bool:
        ended = self.cluster.get("/v1/jobs?state=ended&limit=1")["total"]
        return bool(ended >= self.jobs)

    async def _account(self, submitted: list[str], killed_at: int) -> dict[str, Any]:
        """Return what the fact logs, the gateway and the jobs' own file say."""
        verdicts = await self.cluster.facts(subjects.ADMISSION)
        admitted = [(at, fact) for at, fact in verdicts if isinstance(fact, Admitted)]
        # A submission whose acknowledgement was late was repeated with its key: it is one job.
        originals = {fact.job: fact.original for _, fact in verdicts if isinstance(fact, Repeated)}
        jobs = {originals.get(job, job): None for job in submitted}
        ends = [(at, fact) for at, fact in await self.cluster.facts(subjects.ALLOC)
                if isinstance(fact, JobEnded)]  # fmt: skip
        times_ended = Counter(fact.job for _, fact in ends)
        known = {row["job"]: row["state"]
                 for row in self.cluster.get("/v1/jobs?state=all")["jobs"]}  # fmt: skip
        executed = Counter(line.split()[0] for line in self.runs.read_text().splitlines())
        return {
            "before_the_kill": {
                "admitted": sum(at < killed_at for at, _ in admitted),
                "ended": sum(at < killed_at for at, _ in ends),
            },
            "repeated_submissions": len(originals),
            "known": sum(job in known for job in jobs),
            "ended_once": sum(times_ended[job] == 1 for job in jobs),
            "succeeded": sum(known.get(job) == "succeeded" for job in jobs),
            "executed_once": sum(executed[job] == 1 for job in jobs),
            "one_attempt": sum(fact.attempts == 1 for _, fact in ends),
            "jobs_nobody_submitted": len(set(known) - set(jobs)),
        }


def is_good(report: dict[str, Any]) -> bool:
    """Return whether every acknowledged job is known and ended once."""
    wanted = report["acknowledged"]
    return all(report[name] == wanted for name in ("known", "ended_once", "succeeded"))


def main() -> int:
    """Run it in a temporary folder."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--out", type=Path, help="write the report to a file as well")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="skep-kill-all-") as name:
        cluster = Embedded(Path(name) / "home")
        try:
            report = KillAll(cluster, Path(name) / "runs", arguments.jobs).run()
        finally:
            cluster.down()
    text = json.dumps(report, indent=1)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    return 0 if is_good(report) else 1


if __name__ == "__main__":
    sys.exit(main())
