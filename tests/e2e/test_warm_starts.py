"""Runs forked from a warm process, through a whole cluster, and what dies meanwhile."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from skep_services.supervisor.home import service_log_path
from tests.support.embedded import Embedded, until

READY = re.compile(r"^warm process (\d+)\b.* imports, \d+ bytes", re.MULTILINE)
NODE = "node-1"
SCRIPT = """\
import aiohttp
import skep_job
import os, sys, time
run = skep_job.init()
for step in range(3):
    run.step()
begun, go = sys.argv[1:]
with open(begun, "w") as out:
    print(os.getppid(), file=out)
while not os.path.exists(go):
    time.sleep(0.01)
print(aiohttp.__name__, os.environ["SKEP_JOB"], run.steps)
"""


class Place:
    """A cluster of one node, and a script on it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cluster = folder, Embedded(folder / "home")
        self.script = folder / "train.py"
        self.script.write_text(SCRIPT)
        self.count = 0

    def submit(self) -> tuple[str, Path]:
        """Submit the script; return its job, and the file that lets it end once it has begun."""
        self.count += 1
        begun, go = self.folder / f"begun{self.count}", self.folder / f"go{self.count}"
        job = {"script": str(self.script), "args": [str(begun), str(go)]}
        spec = json.dumps({"name": "one", "vc": "lab", **job})
        reply = self.cluster.ask("POST", "/v1/jobs", spec.encode())
        assert reply.status in {201, 202}, reply
        until(lambda: begun.exists() and begun.read_text(), f"run {self.count} to begin")
        return reply.body["job"], go

    def ended(self, job: str, go: Path) -> None:
        """Let a job end, and see that it did in its first attempt."""
        go.touch()
        shown = self.cluster.ended(job)
        assert (shown["state"], shown["attempt"]) == ("succeeded", 1), self.cluster.log(job)
        assert self.cluster.log(job).split() == ["aiohttp", job, "3"]

    def said(self) -> str:
        """Return what the runner says of its warm processes."""
        path = self.cluster.home / NODE / "runner.log"
        return path.read_text() if path.exists() else ""

    def forked(self, job: str) -> bool:
        """Return whether the agent says that a job's run was forked; it says that or why not."""
        agent = Path(service_log_path(str(self.cluster.home), NODE))
        text = until(
            lambda: [line for line in agent.read_text().splitlines() if f"run {job}.1." in line],
            f"the agent to say how {job} started",
        )
        return "forked from a warm process" in " ".join(text)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    made.cluster.up("--nodes", "1", "--gpus", "1", "--vc", "lab=1")
    yield made
    made.cluster.down()


def test_a_forked_run_outlives_its_agent_and_its_warm_process(place: Place) -> None:
    first = place.submit()
    warm = until(lambda: READY.search(place.said()), "a warm process")
    place.ended(*first)
    assert not place.forked(first[0])

    second = place.submit()
    assert place.forked(second[0])
    os.kill(int(warm[1]), signal.SIGKILL)
    agent = place.cluster.entry(NODE)["pid"]
    place.cluster.kill(NODE)
    place.cluster.wait_back(NODE, agent)
    place.ended(*second)

    third = place.submit()
    place.ended(*third)
    assert not place.forked(third[0])
