"""The gateway as a process of its own, over a real nats-server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from skep.machines.admission import AdmissionMachine
from skep.wire import codec, subjects
from skep.wire.admin import SetVcs
from skep_services.adapters.nats_access import accounts, new_passwords
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.nats_link import LinkOptions
from skep_services.adapters.nats_server import Server
from skep_services.adapters.nats_streams import bootstrap_streams
from skep_services.cli.client import Client, Target
from skep_services.cli.exits import CommandError
from skep_services.pki.files import TlsFiles
from skep_services.ports import Delivery
from tests.kit import Driver, RecordWriter, joined, spec, vcs
from tests.tls_kit import LOOPBACK, Certificates

pytestmark = [pytest.mark.asyncio, pytest.mark.e2e]

DEADLINE_S = 120.0
NODES, TENANTS = ("node-1",), ("nlp",)


class Cluster:
    """A nats-server with Skep's users and streams, and gateways on it."""

    def __init__(self, folder: Path, tls: TlsFiles | None = None) -> None:
        self.folder = folder
        self.passwords = new_passwords(NODES, TENANTS)
        self.server = Server(folder / "nats", accounts(self.passwords, NODES, TENANTS), tls=tls)
        self.processes: list[asyncio.subprocess.Process] = []
        self.buses: list[NatsBus] = []

    async def open(self) -> None:
        await self.server.start()
        await self.server.wait_healthy("bootstrap")
        await bootstrap_streams(await self.bus("bootstrap"), self.folder / "marker")
        (self.folder / "tokens.json").write_text('{"op": "operator"}')

    async def bus(self, identity: str) -> NatsBus:
        options = LinkOptions(
            servers=(self.server.url,),
            identity=identity,
            password=self.passwords[identity],
            tls=self.server.tls,
        )
        bus = await NatsBus.connect(options, lambda _: None)
        self.buses.append(bus)
        return bus

    def environment(self) -> dict[str, str]:
        return {
            "SKEP_NATS_URL": self.server.url,
            "SKEP_NATS_USER": "gateway",
            "SKEP_NATS_PASSWORD": self.passwords["gateway"],
            "SKEP_STATE": str(self.folder / "gateway"),
            "SKEP_LISTEN": "127.0.0.1:0",
            "SKEP_TOKENS": str(self.folder / "tokens.json"),
        }

    async def gateway(self, environment: Mapping[str, str]) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "skep_services.gateway",
            env={**os.environ, **environment},
            stderr=asyncio.subprocess.PIPE,
        )
        self.processes.append(process)
        return process

    async def close(self) -> None:
        for process in self.processes:
            if process.returncode is None:
                process.kill()
                await process.communicate()
        for bus in self.buses:
            await bus.close()
        await self.server.stop()


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(made.close)
        await made.open()
        yield made


async def logged(process: asyncio.subprocess.Process, event: str) -> dict[str, Any]:
    """Return the next log line of that name."""
    assert process.stderr is not None
    async with asyncio.timeout(DEADLINE_S):
        while line := await process.stderr.readline():
            said: dict[str, Any] = json.loads(line)
            if said["event"] == event:
                return said
    raise AssertionError(event)


async def admission(cluster: Cluster) -> None:
    """Answer submissions as admission does, by its own machine."""
    bus = await cluster.bus("admission")
    machine, writer = Driver(AdmissionMachine, thorough=False), RecordWriter()
    machine(SetVcs(vcs=vcs(nlp=4)))

    async def took(delivery: Delivery) -> None:
        event = codec.read(
            delivery.subject, delivery.payload, delivery.headers, delivery.sequence, delivery.at
        )
        count = len(machine.facts)
        machine(event)
        record = writer.record(machine.facts[count:], delivery.at)
        key = f"record-{delivery.sequence}"
        await bus.publish(subjects.ADMISSION_FACTS, record, key, {})

    await bus.follow(subjects.SUBMIT, 0, took)


async def test_a_gateway_serves_dies_and_goes_on(cluster: Cluster) -> None:
    node, operator = await cluster.bus("node-node-1"), await cluster.bus("operator")
    await node.publish(subjects.node_event("node-1", "joined"), codec.encode(joined()), "j", {})
    process = await cluster.gateway(cluster.environment())
    ready = await logged(process, "ready")
    await admission(cluster)
    url = f"http://{ready['listen']}"
    headers = {"Authorization": "Bearer op"}
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.post(f"{url}/v1/jobs", data=codec.encode(spec())) as answer:
            assert answer.status == 201, await answer.text()
            assert (await answer.json())["job"] == "j1"
        health = await operator.request(subjects.health("gateway"), b"", {}, DEADLINE_S)
        assert health is not None
        assert json.loads(health.payload)["identity"] == "gateway"
    process.kill()
    await process.communicate()

    process = await cluster.gateway(cluster.environment())
    ready = await logged(process, "ready")
    async with aiohttp.ClientSession(headers=headers) as session:
        path = f"http://{ready['listen']}/v1/jobs/j1?wait=started&timeout_s=0"
        async with session.get(path) as answer:
            assert (await answer.json())["state"] == "queued"
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(DEADLINE_S):
        await process.communicate()
    assert process.returncode == 0


@pytest.mark.parametrize(
    "change,said",
    [
        ({"SKEP_TOKENS": ""}, "SKEP_TOKENS is not set"),
        ({"SKEP_LISTEN": "nowhere"}, "HOST:PORT"),
        ({"SKEP_STATE": ""}, "SKEP_STATE is not set"),
        ({"SKEP_NATS_URL": "nats://10.0.0.1:4222"}, "is another machine's and not encrypted"),
        ({"SKEP_LISTEN": "0.0.0.0:80"}, "other machines would be served in plain text"),
        ({"SKEP_TLS_CERT": "/nowhere/c", "SKEP_TLS_KEY": "/k"}, "SKEP_TLS_CERT: /nowhere/c"),
    ],
)
async def test_a_wrong_configuration_is_said_at_once(
    tmp_path: Path, change: dict[str, str], said: str
) -> None:
    environment = {
        "SKEP_NATS_URL": "nats://127.0.0.1:1",
        "SKEP_NATS_USER": "gateway",
        "SKEP_NATS_PASSWORD": "x",
        "SKEP_STATE": str(tmp_path),
        "SKEP_TOKENS": os.devnull,
        **change,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "skep_services.gateway",
        env={**os.environ, **environment},
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(DEADLINE_S):
        _, words = await process.communicate()
    assert process.returncode == 64
    assert said in words.decode()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
async def test_a_gateway_serves_https_with_certificates_that_are_replaced(
    tmp_path: Path, host: str
) -> None:
    issuer = Certificates(tmp_path)
    (tmp_path / "other").mkdir()
    stranger = Certificates(tmp_path / "other").give("x")
    mine = issuer.give("gateway", *LOOPBACK, days=50)
    ca = str(mine.ca)
    made = Cluster(tmp_path, issuer.give("server", *LOOPBACK))
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(made.close)
        await made.open()
        environment = {
            **made.environment(),
            "SKEP_LISTEN": f"{host}:0",
            "SKEP_TLS_CA": ca,
            "SKEP_TLS_CERT": str(mine.certificate),
            "SKEP_TLS_KEY": str(mine.key),
        }
        process = await made.gateway(environment)
        ready = await logged(process, "ready")
        assert ready["tls"]
        url = f"https://{ready['listen']}"

        def days(client: Client) -> int:
            """Ask something, and say how long the gateway's certificate is valid."""
            assert client.get("/v1/vcs")["vcs"] == []
            ends_at = client.ends_at()
            assert ends_at is not None
            return round((ends_at - time.time()) / 86_400)

        kept = Client(Target(url, "op", "", ca))
        assert await asyncio.to_thread(days, kept) == 50
        await asyncio.to_thread(issuer.give, "gateway", *LOOPBACK, days=60)
        # The connection that stands goes on; another one is shown the new certificate.
        assert await asyncio.to_thread(days, kept) == 50
        assert await asyncio.to_thread(days, Client(Target(url, "op", "", ca))) == 60
        for trust in (str(stranger.ca), ""):
            with pytest.raises(CommandError, match="is from another CA than") as refused:
                await asyncio.to_thread(days, Client(Target(url, "op", "", trust)))
            assert "\n" not in refused.value.text
        issuer.aged(-2).give("gateway", *LOOPBACK)
        with pytest.raises(CommandError, match="is not valid yet by this clock"):
            await asyncio.to_thread(days, Client(Target(url, "op", "", ca)))
        with pytest.raises(CommandError, match="cannot be reached"):
            await asyncio.to_thread(
                days, Client(Target(url.replace("https", "http"), "op", "", ""), patience_s=0.0)
            )
        kept.close()
