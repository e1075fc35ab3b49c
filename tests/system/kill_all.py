"""Acknowledge submissions, SIGKILL everything at once, start again: is every job known and ended?

    python -m tests.system.kill_all [--jobs 500] [--times 1] [--power-cut] [--out FILE]
    python -m tests.system.kill_all --power-cut --unsynced [--times 5]

A bare NATS client submits the jobs with many publishes in flight. The moment the last one is
acknowledged, every service, both agents, the supervisor and the bus server are killed together.
`skep up` on the same folder must then bring every job to exactly one end. What each job does is
append a line to a file, so executions are counted as well. Exits 1 if a job is missing.

A killed process leaves the page cache behind. With --power-cut it is lost too: the cluster lives on
a disk of its own, and goes on with what had reached that disk. Jobs that had run may run again.
--unsynced is the control: the same cut under a bus server with its own default of syncing, where
acknowledged messages must be missing for the method to be worth anything.
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

from skep.wire import subjects
from skep.wire.facts import Admitted, JobEnded, Repeated
from skep_services.adapters.nats_access import BOOTSTRAP, accounts, new_passwords
from skep_services.adapters.nats_api import StreamInfo, ask
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.nats_link import LinkOptions
from skep_services.adapters.nats_server import Server
from skep_services.adapters.nats_streams import bootstrap_streams
from skep_services.supervisor import home as folder
from tests.support.bare_client import bare_client
from tests.support.embedded import Embedded, until
from tests.system.loop_store import LoopStore

JOBS = 500
OPTIONS = ("--nodes", "2", "--gpus", "4", "--vc", "batch=8", "--port", "0")
ENDED_WITHIN_S = 120.0


class KillAll:
    """One run on a fresh cluster; the jobs write into `runs`, and `disk` loses power, if any."""

    def __init__(
        self, cluster: Embedded, runs: Path, jobs: int = JOBS, disk: LoopStore | None = None
    ) -> None:
        """Prepare."""
        self.cluster, self.runs, self.jobs, self.disk = cluster, runs, jobs, disk
        self.entries: dict[str, dict[str, Any]] = {}

    def run(self) -> dict[str, Any]:
        """Do it all; return the report."""
        self.cluster.up(*OPTIONS)
        submitted, acknowledged_s, killed_at, kills_ms = asyncio.run(self._submit_and_kill())
        if self.disk is not None:
            self.disk.cut(
                [*(entry["pid"] for entry in self.entries.values()), *self.cluster.processes()]
            )
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
            "all_killed_within_ms": round(kills_ms, 2),
            **asyncio.run(self._account(submitted, killed_at)),
            "skep_up_s": round(up_s, 2),
            "all_ended_s": round(ended_s, 2),
        }

    async def _submit_and_kill(self) -> tuple[list[str], float, int, float]:
        """Return the jobs, how long their acknowledgements took, when the kill came, its length."""
        command = f'echo "$SKEP_JOB $SKEP_GEN" >> {self.runs}'
        specs = [
            {"name": f"batch-{n}", "vc": "batch", "command": command} for n in range(self.jobs)
        ]
        names = ("nats", "supervisor", *(name for name in self.cluster.pids() if name != "nats"))
        self.entries = {name: self.cluster.entry(name) for name in names}
        async with bare_client(self.cluster.about, "vc-batch") as client:
            began = time.perf_counter()
            submitted = await client.submit_many(specs)
            took_s = time.perf_counter() - began
            at = time.time_ns()
            for entry in self.entries.values():
                # What is to lose its power must not have time to sync: it stands still at once.
                os.kill(entry["pid"], signal.SIGKILL if self.disk is None else signal.SIGSTOP)
            kills_ms = (time.time_ns() - at) / 1e6
        return submitted, took_s, at, kills_ms

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
        ends = [
            (at, fact)
            for at, fact in await self.cluster.facts(subjects.ALLOC)
            if isinstance(fact, JobEnded)
        ]
        times_ended = Counter(fact.job for _, fact in ends)
        known = {row["job"]: row["state"] for row in self.cluster.get("/v1/jobs?state=all")["jobs"]}
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


def run_once(jobs: int, *, power_cut: bool) -> dict[str, Any]:
    """Return the report of one run in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="skep-kill-all-") as name:
        disk = LoopStore(Path(name)) if power_cut else None
        cluster = Embedded((disk.path if disk else Path(name)) / "home")
        try:
            return KillAll(cluster, Path(name) / "runs", jobs, disk).run()
        finally:
            cluster.down()
            if disk is not None:
                disk.close()


class Unsynced(Server):
    """A server that syncs when it sees fit."""

    def config(self) -> str:
        """Return the configuration without the line that everything rests on."""
        return super().config().replace("  sync_interval: always\n", "")


async def unsynced_once(jobs: int) -> dict[str, Any]:
    """Return what a server that syncs now and then has of what it acknowledged, after a cut."""
    with tempfile.TemporaryDirectory(prefix="skep-unsynced-") as name:
        disk = LoopStore(Path(name))
        passwords = new_passwords((), ("batch",))
        server = Unsynced(disk.path / "nats", accounts(passwords, (), ("batch",)))
        await server.start()
        await server.wait_healthy(BOOTSTRAP)
        options = {
            one: LinkOptions(servers=(server.url,), identity=one, password=passwords[one])
            for one in (BOOTSTRAP, "vc-batch")
        }
        bus = await NatsBus.connect(options[BOOTSTRAP], _ignore)
        await bootstrap_streams(bus, disk.path / "streams.json")
        client = await NatsBus.connect(options["vc-batch"], _ignore)
        publish = (
            client.publish(subjects.submit("batch"), b"{}", f"k{n}", {}) for n in range(jobs)
        )
        acknowledged = len(await asyncio.gather(*publish))
        await bus.close()
        await client.close()
        disk.cut([server.pid])
        await server.kill()
        await server.start()
        await server.wait_healthy(BOOTSTRAP)
        bus = await NatsBus.connect(options[BOOTSTRAP], _ignore)
        info = await ask(bus.link, f"STREAM.INFO.{subjects.SUBMIT}", None, StreamInfo)
        await bus.close()
        await server.stop()
        disk.close()
    gone = info.error is not None
    return {"acknowledged": acknowledged, "known": info.state.messages, "stream_gone": gone}


def _ignore(_: Exception) -> None:
    """Go on: connections break when the power is cut."""


def main() -> int:
    """Run it as often as asked for."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--power-cut", action="store_true", help="lose the page cache as well")
    parser.add_argument("--unsynced", action="store_true", help="the control: must lose some")
    parser.add_argument("--out", type=Path, help="write the reports to a file as well")
    arguments = parser.parse_args()
    reports = []
    for number in range(1, arguments.times + 1):
        if arguments.unsynced:
            report = asyncio.run(unsynced_once(arguments.jobs))
        else:
            report = run_once(arguments.jobs, power_cut=arguments.power_cut)
        reports.append(report)
        print(
            f"run {number}: known {report['known']} of {report['acknowledged']}",
            file=sys.stderr,
            flush=True,
        )
    text = json.dumps(reports[0] if len(reports) == 1 else reports, indent=1)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    if arguments.unsynced:
        return 0 if any(report["known"] < report["acknowledged"] for report in reports) else 1
    return 0 if all(is_good(report) for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
