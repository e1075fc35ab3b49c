"""The door before a real bus server: who comes through, and what a flood leaves to others."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from skep.wire import subjects
from skep_services.adapters.nats_access import ADMISSION_SERVICE, DOOR, behind_door
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.nats_link import LinkOptions
from skep_services.ports import RefusedError
from tests.adapters.worlds import DEADLINE_S, VCS, Inbox, RealCluster
from tests.support.ports import free_port

pytestmark = [pytest.mark.asyncio, pytest.mark.adapters]

FLOOD = 3_000
"""Messages that one tenant writes at once: 20 to 90 rounds."""


class Behind:
    """A cluster whose tenants come through the door, a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.cluster = RealCluster(folder, inside=lambda known: behind_door(known, VCS))
        self.port = free_port()
        self.folder = folder
        self.others: list[str] = []
        """Addresses of further bus servers."""
        self.fatal: list[Exception] = []
        self._buses: list[NatsBus] = []

    async def start(self) -> None:
        await self.cluster.start()
        environment = {
            **os.environ,
            "SKEP_NATS_URL": ",".join((self.cluster.server.url, *self.others)),
            "SKEP_NATS_USER": DOOR,
            "SKEP_NATS_PASSWORD": self.cluster.passwords[DOOR],
            "SKEP_STATE": str(self.folder / "door"),
            "SKEP_LISTEN": f"127.0.0.1:{self.port}",
        }
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "skep_services.door",
            env=environment,
            stderr=asyncio.subprocess.PIPE,
        )
        assert self.process.stderr is not None
        while b'"ready"' not in (line := await self.process.stderr.readline()):
            assert line, "it has ended"

    async def bus(self, identity: str) -> NatsBus:
        """Return a connection through the door."""
        options = LinkOptions(
            servers=(f"nats://127.0.0.1:{self.port}",),
            identity=identity,
            password=self.cluster.passwords[identity],
        )
        bus = await NatsBus.connect(options, self.fatal.append)
        self._buses.append(bus)
        return bus

    async def close(self) -> None:
        for bus in self._buses:
            await bus.close()
        self.process.terminate()
        await self.process.communicate()
        await self.cluster.close()


@pytest_asyncio.fixture
async def behind(tmp_path: Path) -> AsyncIterator[Behind]:
    made = Behind(tmp_path)
    await made.start()
    yield made
    await made.close()


async def test_a_tenant_submits_and_hears_through_the_door_only(behind: Behind) -> None:
    tenant = await behind.bus("vc-ml")
    heard = Inbox()
    await tenant.listen(subjects.reply("ml", ">"), heard.deliver)
    assert await tenant.publish(subjects.submit("ml"), b"x" * 10_000, "k", {}) == 1
    admission = await behind.bus(ADMISSION_SERVICE)
    await admission.send(subjects.reply("ml", "x"), b"admitted", {})
    assert (await heard.wait(1))[0].payload == b"admitted"
    with pytest.raises(RefusedError, match="refuses the login of 'vc-ml'"):
        await behind.cluster.bus("vc-ml")
    assert not behind.fatal


async def test_a_wrong_password_is_refused_through_the_door(behind: Behind) -> None:
    behind.cluster.passwords["vc-ml"] = "guessed"
    with pytest.raises(RefusedError, match="refuses the login of 'vc-ml'"):
        await behind.bus("vc-ml")


async def test_a_connection_outlives_a_restart_of_the_bus(behind: Behind) -> None:
    tenant = await behind.bus("vc-ml")
    assert await tenant.publish(subjects.submit("ml"), b"x", "k1", {}) == 1
    await behind.cluster.server.kill()
    await behind.cluster.server.start()
    assert await tenant.publish(subjects.submit("ml"), b"x", "k2", {}) == 2
    assert tenant.stats.reconnects >= 1


@pytest.mark.parametrize("listens", [False, True])
async def test_clients_come_to_the_server_that_answers(tmp_path: Path, listens: bool) -> None:
    """Another one is gone, or takes connections and says nothing: then it has each second one."""
    behind = Behind(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        behind.others = [f"nats://127.0.0.1:{silent.getsockname()[1] if listens else free_port()}"]
        await behind.start()
        opened = [await asyncio.open_connection("127.0.0.1", behind.port) for _ in range(2)]
        said = [asyncio.ensure_future(reader.readline()) for reader, _ in opened]
        when = asyncio.FIRST_COMPLETED if listens else asyncio.ALL_COMPLETED
        done, silence = await asyncio.wait(said, timeout=DEADLINE_S, return_when=when)
        assert {(await one)[:5] for one in done} == {b"INFO "}
        for one in silence:
            one.cancel()
        for _, writer in opened:
            writer.close()
        await behind.close()


async def logged_in(
    behind: Behind, identity: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a bare connection; like a client, try again while the door closes it unopened."""
    login = {"user": identity, "pass": behind.cluster.passwords[identity], "verbose": False}
    async with asyncio.timeout(DEADLINE_S):
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", behind.port)
            writer.write(b"CONNECT " + json.dumps(login).encode() + b"\r\nPING\r\n")
            async for line in reader:
                if line == b"PONG\r\n":
                    return reader, writer
            writer.close()


async def test_a_flood_is_stored_whole_and_others_do_not_wait_behind_it(behind: Behind) -> None:
    quiet = await behind.bus("vc-web")
    reader, writer = await logged_in(behind, "vc-ml")
    message = b"PUB " + subjects.submit("ml").encode() + b" 4\r\nspec\r\n"
    writer.write(message * FLOOD)
    stored = Inbox()
    await (await behind.cluster.bus(ADMISSION_SERVICE)).follow("SUBMIT", 0, stored.deliver)
    await stored.wait(1)
    sequence = await quiet.publish(subjects.submit("web"), b"spec", "k", {})
    assert sequence < FLOOD, "it is stored while the flood still is"
    await stored.wait(FLOOD + 1)
    assert [one.subject for one in stored.got].count(subjects.submit("ml")) == FLOOD
    writer.close()
    async with asyncio.timeout(DEADLINE_S):
        await reader.read()
