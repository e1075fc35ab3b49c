"""What the gateway says of environments: where they are built, which nodes keep them, whose."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from skep.units import after, seconds
from skep.wire import codec, subjects
from skep.wire.caches import AskCaches, KeptEnvironment, KeptHere
from skep.wire.reports import Building, Heartbeat
from skep.wire.roles import Role
from skep_services.adapters.memory import MemoryBus
from skep_services.ports import Delivery
from tests.gateway_kit import House, error, opened, submitted
from tests.kit import spec

pytestmark = pytest.mark.asyncio

KEY = "0123456789abcdef" * 2
FILES = "f" * 64


def kept(vc: str, owner: str, key: str = KEY, **more: Any) -> KeptEnvironment:
    return KeptEnvironment(
        key=key,
        vc=vc,
        owner=owner,
        kind="uv",
        path="uv.lock",
        files=FILES,
        bytes=5,
        took_s=1.5,
        used_at=2.0,
        **more,
    )


class Node:
    """Keeps environments, and removes what it is asked to."""

    def __init__(self, house: House) -> None:
        self.bus = MemoryBus(house.cluster.broker, "node-1", house.fatal.append)
        self.kept = [kept("nlp", "ann"), kept("vision", "bob", "f" * 32)]
        self.refused = ""

    async def open(self) -> None:
        await self.bus.listen(subjects.caches("node-1"), self._answer)

    async def _answer(self, asked: Delivery) -> None:
        ask = msgspec.json.decode(asked.payload, type=AskCaches)
        if ask.remove is not None and not self.refused:
            self.kept = [one for one in self.kept if one.key != ask.remove]
        here = KeptHere(environments=tuple(self.kept), bytes_max=9, refused=self.refused)
        await self.bus.send(asked.reply, codec.encode(here), {})


@pytest_asyncio.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with opened(tmp_path) as made:
        await made.with_nodes(1)
        yield made


async def test_people_see_and_remove_environments_of_their_jobs_alone(house: House) -> None:
    node = Node(house)
    await node.open()
    ann = await house.as_person("ann", {"nlp": Role.SUBMITTER})
    bob = await house.as_person("bob", {"nlp": Role.SUBMITTER})
    viewer = await house.as_person("vera", {"nlp": Role.VIEWER})
    (listed,) = (await ann.json("GET", "/v1/caches", 200))["nodes"]
    assert [one["vc"] for one in listed["environments"]] == ["nlp"]
    (every,) = (await house.op.json("GET", "/v1/caches", 200))["nodes"]
    assert [one["owner"] for one in every["environments"]] == ["ann", "bob"]
    (none,) = (await house.vision.json("GET", "/v1/caches", 200))["nodes"]
    assert [one["owner"] for one in none["environments"]] == ["bob"]

    path = f"/v1/caches/node-1/{KEY}"
    for other in (bob, viewer):
        await other.json("DELETE", path, 403)
    hidden = await ann.json("DELETE", f"/v1/caches/node-1/{'f' * 32}", 404)
    assert error(hidden)[0] == "no-environment"
    node.refused = "j1 may run in it"
    used = await ann.json("DELETE", path, 409)
    assert error(used)[0] == "environment-in-use"
    assert used["error"]["text"] == "it stays: j1 may run in it"
    node.refused = ""
    assert await ann.json("DELETE", path, 200) == {"node": "node-1", "key": KEY, "bytes": 5}
    assert error(await ann.json("DELETE", path, 404))[0] == "no-environment"
    for wrong in ("/v1/caches/node-1/abc", f"/v1/caches/a%20b/{KEY}"):
        assert error(await ann.json("DELETE", wrong, 400))[0] == "bad-value"
    await node.bus.close()


async def test_a_job_whose_environment_is_built_says_so(house: House) -> None:
    job = await submitted(house)
    row = await house.op.json("GET", f"/v1/jobs/{job}", 200)
    assert row["building"] == []
    since = house.cluster.clock.now()
    beat = Heartbeat(
        node="node-1",
        identity="i",
        at=since,
        building=(Building(job=job, attempt=row["attempt"], since=since),),
    )
    live = house.gateway.indexer.live
    for _ in range(2):
        live.apply(beat, since)
    row = await house.op.json("GET", f"/v1/jobs/{job}", 200)
    assert row["building"] == [{"node": "node-1", "since": since, "text": ""}]
    await submitted(house)  # What was noted is stored with the facts that come next.
    events = (await house.op.json("GET", f"/v1/jobs/{job}/events", 200))["events"]
    told = [one["text"] for one in events if one["kind"] == "environment-building"]
    assert told == ["node-1 builds its environment"]
    live.apply(msgspec.structs.replace(beat, building=()), after(since, seconds(1)))
    assert (await house.op.json("GET", f"/v1/jobs/{job}", 200))["building"] == []


async def test_a_spec_whose_files_are_not_here_is_refused(house: House) -> None:
    wrong = spec(environment={"uv": "uv.lock", "files": FILES})
    assert error(await house.op.json("POST", "/v1/jobs", 422, wrong))[0] == "no-code"
