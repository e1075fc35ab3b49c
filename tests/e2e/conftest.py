"""One embedded cluster for every test that leaves it as it found it, and what tests do with it."""

from __future__ import annotations

import asyncio
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.bare_client import Answer, bare_client
from tests.support.embedded import Embedded, until
from tests.support.shared import left_idle, two_nodes

JOBS = Path(__file__).parent / "jobs"
SITE_PACKAGES = sysconfig.get_path("purelib")
"""What containers of the shared cluster see beside their own folders: the image has no PyTorch."""

LOG_BYTES_MAX = 256 * 1024
"""Of each job's log on the shared cluster: soon reached by a job that floods it."""


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    """Two nodes with four slots each; virtual clusters nlp and vision with four GPUs each."""
    home = tmp_path_factory.mktemp("cluster")
    settings = {
        "SKEP_LOG_BYTES_MAX": str(LOG_BYTES_MAX),
        "SKEP_CONTAINER_FOLDERS": f"{SITE_PACKAGES}:{JOBS}",
    }
    with two_nodes(Embedded(home, settings), ("nlp", "vision"), "--secrets") as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: Embedded) -> Iterator[Embedded]:
    """The shared cluster, idle before the test and after it, whatever the test left running."""
    yield from left_idle(shared)


class Tenant:
    """Submits and cancels with a bare NATS client, one connection for each message."""

    def __init__(self, cluster: Embedded, vc: str) -> None:
        self.cluster, self.vc, self.user = cluster, vc, f"vc-{vc}"

    def spec(self, command: Any, **more: Any) -> dict[str, Any]:
        """Return a small spec of this tenant."""
        return {"name": "test", "vc": self.vc, "command": command, **more}

    def submit(self, spec: dict[str, Any], key: str = "") -> Answer:
        """Publish a spec; return acknowledgement and verdict."""
        return asyncio.run(self._submit(spec, key))

    def accepted(self, spec: dict[str, Any], key: str = "") -> str:
        """Publish a spec that must be admitted; return the job."""
        answer = self.submit(spec, key)
        assert answer.verdict["accepted"], answer
        return answer.job

    def refused(self, payload: dict[str, Any] | bytes) -> dict[str, Any]:
        """Publish something that must be refused; return its first problem."""
        if isinstance(payload, bytes):
            answer = asyncio.run(self._publish(payload))
        else:
            answer = self.submit(payload)
        assert not answer.verdict["accepted"], answer
        assert answer.verdict["reason"] == answer.verdict["problems"][0]["reason"], answer
        problem: dict[str, Any] = answer.verdict["problems"][0]
        return problem

    def cancel(self, job: str) -> dict[str, Any]:
        """Ask for a job's end; return the verdict."""
        return asyncio.run(self._cancel(job)).verdict

    async def _submit(self, spec: dict[str, Any], key: str) -> Answer:
        async with bare_client(self.cluster.about, self.user) as client:
            return await client.submit(spec, key)

    async def _publish(self, payload: bytes) -> Answer:
        async with bare_client(self.cluster.about, self.user) as client:
            return await client.ask(f"skep.v1.submit.{self.vc}", payload)

    async def _cancel(self, job: str) -> Answer:
        async with bare_client(self.cluster.about, self.user) as client:
            return await client.cancel(self.vc, job)


@pytest.fixture
def nlp(cluster: Embedded) -> Tenant:
    return Tenant(cluster, "nlp")


@pytest.fixture
def vision(cluster: Embedded) -> Tenant:
    return Tenant(cluster, "vision")


class Gate:
    """A job's command that waits until the test opens the gate; `ready` once the job got there."""

    def __init__(self, folder: Path, name: str = "gate") -> None:
        self._here, self._open = folder / f"{name}.here", folder / f"{name}.open"
        self.wait = f"echo here; : > {self._here}; while [ ! -e {self._open} ]; do sleep 0.05; done"

    def reached(self) -> None:
        """Return once the job waits at the gate."""
        until(self._here.exists, f"a job at {self._here}")

    def is_reached(self) -> bool:
        """Return whether the job waits at the gate."""
        return self._here.exists()

    def open(self) -> None:
        """Let the job go on."""
        self._open.touch()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


@pytest.fixture
def gates(tmp_path: Path) -> Callable[[str], Gate]:
    return lambda name: Gate(tmp_path, name)
