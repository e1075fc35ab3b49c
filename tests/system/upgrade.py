"""Upgrade a cluster of the previous release, service by service, while jobs run.

    python -m tests.system.upgrade [--tag 0.2.0] [--out FILE]
    python -m tests.system.upgrade --deployment --tag COMMIT     # machines, as root

The code of the tag comes out of this repository (`git archive`) and runs with this environment's
libraries. Processes find their code by a link in PYTHONPATH: once the link points to the present
code, each service is stopped in turn, and its supervisor starts it anew, as a package manager and
systemd would. Two jobs and a gang over both nodes count all the time, and a tenant submits short
jobs with keys of their own. At the end no job may be lost, repeated or begun twice, each counter is
without a gap, and the logs are whole and readable. Exits 1 if not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from skep.wire import subjects
from skep.wire.facts import JobBound, JobEnded
from skep_services.supervisor import home as folder
from tests.support.bare_client import Answer, bare_client
from tests.support.embedded import Embedded, until

ROOT = Path(__file__).parents[2]
TAG = "0.2.0"
SERVICES = ("allocator", "admission", "searches", "advisor", "introspector", "gateway", "door")
"""In this order: an agent may tell of what an earlier allocator cannot read."""
NODES = ("node-1", "node-2")
OPTIONS = ("--nodes", "2", "--gpus", "3", "--vc", "nlp=6", "--port", "0")
COUNTERS = {"alone-1": 1, "alone-2": 1, "gang": 2}
"""Workers of each."""
COUNTER = """
import os, sys, time
path = os.path.join(sys.argv[1], f"{sys.argv[2]}-{os.environ['SKEP_RANK']}-{os.getpid()}")
number = 0
while not os.path.exists(os.path.join(sys.argv[1], "over")):
    number += 1
    with open(path, "a") as file:
        file.write(f"{number}\\n")
    time.sleep(0.02)
"""
COUNTED_MIN = 10


class AbsentError(Exception):
    """The tag is not in this repository, or this is none."""


def say(text: str) -> None:
    """Show progress on standard error."""
    print(f"upgrade: {text}", file=sys.stderr, flush=True)


def unpack(tag: str, target: Path) -> Path:
    """Put the tree of a tag into a folder.

    Raises:
        AbsentError: There is no such tag.
    """
    target.mkdir(parents=True)
    git = shutil.which("git")
    if git is None:
        raise AbsentError("git is not installed")
    archive = subprocess.run(
        [git, "-C", str(ROOT), "archive", tag, "libs", "services"], check=False, capture_output=True
    )
    if archive.returncode:
        text = f"there is no tag {tag} here: {archive.stderr.decode().strip()}"
        raise AbsentError(text)
    subprocess.run(["tar", "-x", "-C", str(target)], input=archive.stdout, check=True)
    return target


class Upgrade:
    """One run; `work` takes the code, the state folder and what jobs write."""

    def __init__(self, work: Path, tag: str = TAG) -> None:
        """Unpack the earlier version."""
        old = unpack(tag, work / "old")
        self._link = work / "code"
        self._link.symlink_to(old)
        self._out = work / "out"
        self._out.mkdir()
        path = f"{self._link}/libs:{self._link}/services"
        self.cluster = Embedded(work / "home", {"PYTHONPATH": path})
        self._stop = threading.Event()
        self.submitted: dict[str, str] = {}
        """Job by key."""
        self.problems: list[str] = []
        self.rows: list[dict[str, Any]] = []

    def run(self) -> dict[str, Any]:
        """Upgrade, and return what came of it. The caller takes the cluster down."""
        cluster = self.cluster
        cluster.up(*OPTIONS)
        code = self._running_code()
        counters = {name: self._counter(name, workers) for name, workers in COUNTERS.items()}
        for job in counters.values():
            cluster.started(job)
        self._counted_on("before")
        loader = threading.Thread(target=self._load)
        loader.start()
        try:
            self._switch()
            say(cluster.skep("upgrade").strip())
            for name in (*SERVICES, *NODES):
                self._renew(name)
            self._renewed_all()
        finally:
            self._stop.set()
            loader.join()
        (self._out / "over").touch()
        ended = {name: cluster.ended(job)["state"] for name, job in counters.items()}
        short = {job: cluster.ended(job)["state"] for job in self.submitted.values()}
        self._check(counters, {**ended, **short})
        return {
            "from": code,
            "to": self._running_code(),
            "rows": self.rows,
            "counters": ended,
            "submitted": len(self.submitted),
            "problems": self.problems,
        }

    def _running_code(self) -> str:
        return os.path.basename(os.readlink(self._link))

    def _counter(self, name: str, workers: int) -> str:
        spec = {
            "name": name,
            "vc": "nlp",
            "command": [sys.executable, "-c", COUNTER, str(self._out), name],
            "resources": {"gpus": 1, "workers": workers},
        }
        return self._submit(spec, f"counter-{name}").job

    def _submit(self, spec: dict[str, Any], key: str) -> Answer:
        async def submitted() -> Answer:
            async with bare_client(self.cluster.about, "vc-nlp") as client:
                return await client.submit(spec, key)

        return asyncio.run(submitted())

    def _load(self) -> None:
        """Submit short jobs; one whose answer is lost is submitted again, with its key."""
        number = 0
        while not self._stop.is_set():
            number += 1
            key = f"short-{number}"
            spec = {"name": key, "vc": "nlp", "command": ["true"]}
            while key not in self.submitted:
                try:
                    answer = self._submit(spec, key)
                except (OSError, TimeoutError, RuntimeError, AssertionError) as error:
                    say(f"{key} is submitted again: {error!r}")
                    if self._stop.is_set():
                        return
                    continue
                if not answer.verdict.get("accepted"):
                    self.problems.append(f"{key}: {answer.verdict}")
                    return
                self.submitted[key] = answer.job

    def _switch(self) -> None:
        """Have every process that starts from now on run the present code."""
        other = self._link.with_name("code.next")
        other.symlink_to(ROOT)
        os.replace(other, self._link)

    def _renew(self, name: str) -> None:
        """Stop a process, and wait until it is back and jobs go on."""
        entry = self.cluster.entry(name)
        assert folder.is_alive(entry), (name, entry)
        began = time.monotonic()
        os.kill(entry["pid"], signal.SIGTERM)
        self.cluster.wait_back(name, entry["pid"])
        before = len(self.submitted)
        until(lambda: len(self.submitted) > before + 1, f"jobs are submitted after {name}")
        self._counted_on(name)
        took_s = round(time.monotonic() - began, 1)
        say(f"{name}: back, and jobs go on, after {took_s} s")
        self.rows.append({"service": name, "s": took_s})

    def _renewed_all(self) -> None:
        """Note if the answer of a route that only the present code has does not come."""
        reply = self.cluster.ask("GET", "/v1/report?by=vc")
        if reply.status != 200:
            self.problems.append(f"the gateway is not of the present code: {reply}")

    def _counted(self) -> dict[str, list[int]]:
        return {
            path.name: [int(line) for line in path.read_text().split()]
            for path in sorted(self._out.glob("*-*-*"))
        }

    def _counted_on(self, where: str) -> None:
        """Return once each counter has counted on."""
        wanted = sum(COUNTERS.values())
        before = {name: len(found) for name, found in self._counted().items()}

        def look() -> bool:
            now = self._counted()
            return len(now) >= wanted and all(
                len(found) >= before.get(name, 0) + COUNTED_MIN for name, found in now.items()
            )

        until(look, f"counters go on after {where}")

    def _check(self, counters: dict[str, str], states: dict[str, str]) -> None:
        problems = self.problems
        problems += [f"{job} {state}" for job, state in states.items() if state != "succeeded"]
        counted = self._counted()
        if len(counted) != sum(COUNTERS.values()):
            problems.append(f"a counter was begun again: {sorted(counted)}")
        for name, found in counted.items():
            if found != list(range(1, len(found) + 1)):
                problems.append(f"{name} counted with a gap")
        facts = [fact for _, fact in asyncio.run(self.cluster.facts(subjects.ALLOC))]
        bound = [fact.job for fact in facts if isinstance(fact, JobBound)]
        over = [fact.job for fact in facts if isinstance(fact, JobEnded)]
        for job in counters.values():
            if bound.count(job) != 1:
                problems.append(f"{job} was started {bound.count(job)} times")
        if sorted(over) != sorted({*counters.values(), *self.submitted.values()}):
            problems.append(f"{len(over)} ends of {len(states)} jobs")
        logs = json.loads(self.cluster.skep("log", "check", "--json"))
        if not logs["ok"]:
            problems.append(f"logs: {logs}")


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tag", default=TAG)
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--deployment", action="store_true", help="servers and nodes, by `skep ... upgrade`"
    )
    given = parser.parse_args()
    if given.deployment:
        from tests.system.deployment import upgrading

        with tempfile.TemporaryDirectory(prefix="skep-upgrade-") as work:
            try:
                return upgrading.run(given.tag, Path(work))
            except AbsentError as error:
                print(f"skipped: {error}")
                return upgrading.SKIPPED
    with tempfile.TemporaryDirectory(prefix="skep-upgrade-") as work:
        run = Upgrade(Path(work), given.tag)
        try:
            report = run.run()
        finally:
            run.cluster.down()
    text = json.dumps(report, indent=1)
    if given.out:
        given.out.write_text(text + "\n")
    print(text)
    return 1 if report["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
