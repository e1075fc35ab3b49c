"""Which of a service's processes works: real services on a real server, with their real rights."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from skep.units import Instant
from skep.wire import subjects
from skep_services import service
from skep_services.adapters import peers as adapter
from skep_services.adapters import wiring
from skep_services.adapters.nats_access import (
    BOOTSTRAP,
    GATEWAY,
    accounts,
    new_passwords,
    service_grants,
)
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.nats_link import LinkOptions
from skep_services.adapters.nats_server import Server
from skep_services.adapters.nats_streams import bootstrap_streams
from skep_services.adapters.peers import Peers, Standing
from skep_services.admission.__main__ import main as admission
from skep_services.ports import Delivery, SupersededError
from tests.adapters.worlds import DEADLINE_S

pytestmark = [pytest.mark.asyncio, pytest.mark.adapters]

PAIR = ("admission-1", "admission-2")


class Quiet:
    """A log that nobody reads."""

    def info(self, *_: Any, **__: Any) -> None: ...

    error = warning = debug = info


class Pair:
    """A server, and as many processes of the services on it as a test starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.passwords = new_passwords((), ("ml",), replicas=2)
        self.server = Server(folder / "nats", accounts(self.passwords, (), ("ml",), replicas=2))
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._buses: list[NatsBus] = []

    async def start(self) -> None:
        await self.server.start()
        await self.server.wait_healthy(BOOTSTRAP)
        await bootstrap_streams(await self.bus(BOOTSTRAP), self.folder / "streams.json")
        self.gateway = await self.bus(GATEWAY)

    async def bus(self, identity: str) -> NatsBus:
        options = LinkOptions(
            servers=(self.server.url,), identity=identity, password=self.passwords[identity]
        )
        bus = await NatsBus.connect(options, lambda _: None)
        self._buses.append(bus)
        return bus

    def environment(self, identity: str) -> Mapping[str, str]:
        secret = self.folder / f"{identity}.password"
        secret.write_text(self.passwords[identity])
        return {
            "SKEP_NATS_URL": self.server.url,
            "SKEP_NATS_USER": identity,
            "SKEP_NATS_PASSWORD_FILE": str(secret),
            "SKEP_STATE": str(self.folder / identity),
        }

    def serve(self, main: Any, identity: str, peer: str) -> asyncio.Task[None]:
        name = identity.rpartition("-")[0]
        environment = {**self.environment(identity), "SKEP_PEERS": peer}
        task: asyncio.Task[None] = asyncio.ensure_future(
            main(service.settings(name, environment), Quiet())
        )
        self.tasks[identity] = task
        return task

    async def health(self, identity: str) -> dict[str, Any] | None:
        answer = await self.gateway.request(subjects.health(identity), b"", {}, 1.0)
        if answer is None:
            return None
        told: dict[str, Any] = json.loads(answer.payload)
        return told

    async def active(self, identity: str) -> dict[str, Any]:
        """Return the health of `identity` once it does the work."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                health = await self.health(identity)
                if health is not None and health["active_since"]:
                    return health

    async def stop(self, identity: str) -> None:
        task = self.tasks.pop(identity)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        for identity in list(self.tasks):
            await self.stop(identity)
        for bus in self._buses:
            await bus.close()
        await self.server.stop()


@pytest_asyncio.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    made = Pair(tmp_path)
    await made.start()
    yield made
    await made.close()


async def test_the_standby_takes_over_and_is_taken_over_from(pair: Pair) -> None:
    pair.serve(admission, *PAIR)
    assert (await pair.active("admission-1"))["epoch"] == 1
    pair.serve(admission, *reversed(PAIR))
    async with asyncio.timeout(DEADLINE_S):
        # The first fact it applies is the other's epoch.
        while (waiting := await pair.health("admission-2")) is None or not waiting["facts"]:
            pass
    assert (waiting["epoch"], waiting["active_since"]) == (0, 0)
    assert (await pair.active("admission"))["identity"] == "admission-1"
    await pair.stop("admission-1")
    taken = await pair.active("admission-2")
    assert taken["epoch"] == 2
    assert (await pair.active("admission"))["identity"] == "admission-2"
    pair.serve(admission, *PAIR)
    await pair.stop("admission-2")
    assert (await pair.active("admission-1"))["epoch"] == 3


async def test_of_two_that_work_the_later_one_stays(pair: Pair) -> None:
    buses = [await pair.bus(identity) for identity in PAIR]
    standings = [Standing(0, Instant(1000)), Standing(0, Instant(1001))]
    for bus, identity, standing in zip(buses, PAIR, standings, strict=True):
        health = {"epoch": standing.epoch, "active_since": standing.since}
        await answering(bus, identity, health)
    earlier = Peers(buses[0].link, PAIR[0], PAIR[1:])
    later = Peers(buses[1].link, PAIR[1], PAIR[:1])
    assert not await earlier.has_come()
    watching = asyncio.ensure_future(later.superseded(standings[1]))
    found = await asyncio.wait_for(earlier.superseded(standings[0]), DEADLINE_S)
    assert isinstance(found, SupersededError)
    assert "admission-2 took over" in str(found)
    assert not watching.done()
    # The epoch decides before the time does.
    found = await asyncio.wait_for(later.superseded(Standing(-1, Instant(2000))), DEADLINE_S)
    assert "admission-1" in str(found)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def answering(bus: NatsBus, identity: str, health: dict[str, int]) -> None:
    async def answer(asked: Delivery) -> None:
        await bus.send(asked.reply, json.dumps(health).encode(), {})

    await bus.listen(subjects.health(identity), answer)


async def test_one_that_is_silent_is_given_up_in_time(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "ASK_TIMEOUT_S", 0.05)
    monkeypatch.setattr(adapter, "SILENT_S_MAX", 0.3)
    paused, standby = await pair.bus(PAIR[0]), await pair.bus(PAIR[1])

    async def say_nothing(asked: Delivery) -> None:
        del asked

    await paused.listen(subjects.health(PAIR[0]), say_nothing)
    peers = Peers(standby.link, PAIR[1], (PAIR[0],))
    assert not await peers.has_come()
    async with asyncio.timeout(DEADLINE_S):
        while not await peers.has_come():
            pass


async def test_of_two_that_stand_by_the_first_goes_first(pair: Pair) -> None:
    buses = [await pair.bus(identity) for identity in PAIR]
    for bus, identity in zip(buses, PAIR, strict=True):
        await answering(bus, identity, {"epoch": 0, "active_since": 0})
    assert await Peers(buses[0].link, PAIR[0], PAIR[1:]).has_come()
    assert not await Peers(buses[1].link, PAIR[1], PAIR[:1]).has_come()


async def test_a_container_is_well_while_its_process_answers(pair: Pair) -> None:
    pair.serve(admission, *PAIR)
    await pair.active("admission-1")
    environment = {
        **pair.environment("admission-1"),
        "SKEP_NATS_URL": f"nats://127.0.0.1:1,{pair.server.url}",
    }

    async def asked() -> tuple[int | None, bytes]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "skep_services.compose.check",
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        return process.returncode, said

    code, said = await asked()
    assert (code, json.loads(said)["identity"]) == (0, "admission-1")
    await pair.stop("admission-1")
    code, said = await asked()
    assert code == 1
    assert b"not well" in said


async def test_a_replica_has_no_more_rights_than_its_work_needs() -> None:
    grants = service_grants("allocator", "allocator-1", ("allocator-1", "allocator-2"))
    assert "skep.v1.health.allocator-2" in grants.publish
    assert "skep.v1.health.allocator-2" not in grants.subscribe
    assert "skep.v1.health.allocator" in grants.subscribe
    assert not any("allocator-2" in one for one in grants.subscribe)
    assert not any(".allocator-2" in one for one in grants.publish if one.startswith("$JS"))
    assert wiring.owner() != wiring.owner()
