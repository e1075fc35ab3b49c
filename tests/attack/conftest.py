"""The cluster that is attacked, and what is looked at before and after each attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from skep.wire import subjects
from tests.support.bare_client import BareClient, bare_client
from tests.support.embedded import Embedded

SERVICES = (
    "nats",
    "admission",
    "allocator",
    "introspector",
    "advisor",
    "searches",
    "gateway",
    "node-1",
    "node-2",
)


class Target:
    """Two tenants (nlp and vision) and two nodes of two GPUs; one job of vision waits in it."""

    def __init__(self, cluster: Embedded) -> None:
        self.cluster = cluster
        self.pids = self._pids()
        self.victim = ""
        """A job of vision, which no attempt may see, change or end."""

    def submit(self, vc: str, command: Any, **more: Any) -> str:
        """Submit an honest job; return its id."""

        async def main() -> str:
            async with bare_client(self.cluster.about, f"vc-{vc}") as client:
                spec = {"name": "honest", "vc": vc, "command": command, **more}
                answer = await client.submit(spec)
                assert answer.verdict["accepted"], answer
                return answer.job

        return asyncio.run(main())

    def check_intact(self) -> None:
        """Assert that no service ended, and that jobs of both tenants still come to their end."""
        assert self._pids() == self.pids
        victim = self.cluster.get(f"/v1/jobs/{self.victim}")
        assert (victim["state"], victim["attempt"]) == ("running", 1), victim
        assert victim["asks"] == []
        nodes = self.cluster.get("/v1/nodes")["nodes"]
        assert [(node["node"], node["state"], node["gpus"]) for node in nodes] == [
            ("node-1", "up", 2),
            ("node-2", "up", 2),
        ]
        assert {vc["vc"]: vc["gpus"] for vc in self.cluster.get("/v1/vcs")["vcs"]} == {
            "nlp": 2,
            "vision": 2,
        }
        for vc in ("nlp", "vision"):
            assert self.cluster.ended(self.submit(vc, ["true"]))["state"] == "succeeded"

    def _pids(self) -> dict[str, int]:
        entries = self.cluster.pids()
        return {name: entries[name]["pid"] for name in SERVICES}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Return a cluster that is checked once more when all attempts have been made."""
    cluster = Embedded(tmp_path_factory.mktemp("attacked"))
    try:
        cluster.up(
            "--nodes", "2", "--gpus", "2", "--vc", "nlp=2", "--vc", "vision=2", "--port", "0"
        )
        made = Target(cluster)
        made.victim = made.submit("vision", ["sh", "-c", "sleep 1000"])
        cluster.started(made.victim)
        yield made
        made.check_intact()
    finally:
        cluster.down()


async def settled(client: BareClient) -> list[str]:
    """Return what the server refused, once it has taken everything that was said."""
    await client.settle()
    return client.violations


def violations(target: Target, user: str, subject: str, *, listen: bool = False) -> list[str]:
    """Publish on a subject (or `listen` on it) as a user; return what the server refused."""

    async def main() -> list[str]:
        async with bare_client(target.cluster.about, user) as client:
            if listen:
                await client.client.subscribe(subject)
            else:
                await client.client.publish(subject, b"{}")
            return await settled(client)

    return asyncio.run(main())


def stored(target: Target) -> dict[str, int]:
    """Return how many messages were ever stored in each stream."""

    async def main() -> dict[str, int]:
        async with bare_client(target.cluster.about, "operator") as client:
            stream = client.client.jetstream()
            infos = {name: await stream.stream_info(name) for name in subjects.STREAMS}
            return {name: info.state.last_seq for name, info in infos.items()}

    return asyncio.run(main())
