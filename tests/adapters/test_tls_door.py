"""The door of an encrypted bus: tenants have their login, the door has a certificate."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from skep.wire import subjects
from skep_services.adapters.nats_access import ADMISSION_SERVICE, DOOR, behind_door
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.nats_link import LinkOptions
from skep_services.adapters.nats_server import free_port
from skep_services.pki.certificates import load
from skep_services.pki.files import TlsFiles, client_context, host_port
from skep_services.ports import RefusedError
from tests.adapters.worlds import DEADLINE_S, VCS, Inbox, RealCluster
from tests.tls_kit import LOOPBACK, Certificates

pytestmark = [pytest.mark.asyncio, pytest.mark.adapters]


class Behind:
    """An encrypted cluster whose tenants come through the door, a process of its own."""

    def __init__(self, folder: Path, host: str) -> None:
        self.folder, self.host, self.port = folder, host, free_port(host)
        self.certificates = Certificates(folder)
        self.cluster = RealCluster(
            folder,
            inside=lambda known: behind_door(known, VCS),
            tls=self.certificates.give("server", *LOOPBACK),
        )
        self.door = self.certificates.give("door", *LOOPBACK)
        assert self.door.ca is not None
        self.trust = TlsFiles(ca=self.door.ca)
        """What a tenant has: the CA, and no certificate."""
        self.fatal: list[Exception] = []
        self._buses: list[NatsBus] = []

    async def start(self) -> None:
        await self.cluster.start()
        environment = {
            **os.environ,
            "SKEP_NATS_URL": self.cluster.server.url,
            "SKEP_NATS_USER": DOOR,
            "SKEP_NATS_PASSWORD": self.cluster.passwords[DOOR],
            "SKEP_STATE": str(self.folder / "door-state"),
            "SKEP_LISTEN": host_port(self.host, self.port),
            "SKEP_TLS_CA": str(self.door.ca),
            "SKEP_TLS_CERT": str(self.door.certificate),
            "SKEP_TLS_KEY": str(self.door.key),
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

    async def bus(self, identity: str, tls: TlsFiles | None) -> NatsBus:
        """Return a connection through the door."""
        options = LinkOptions(
            servers=(f"tls://{host_port(self.host, self.port)}",),
            identity=identity,
            password=self.cluster.passwords[identity],
            tls=tls,
            connect_within_s=5.0,
        )
        bus = await NatsBus.connect(options, self.fatal.append)
        self._buses.append(bus)
        return bus

    async def shown(self) -> int:
        """Return the serial number of the certificate that the door shows now."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        greeting = json.loads((await reader.readline())[len(b"INFO ") :])
        assert greeting["tls_required"]
        assert "tls_verify" not in greeting
        await writer.start_tls(client_context(self.trust.ca), server_hostname=self.host)
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return load(ssl.DER_cert_to_PEM_cert(der).encode(), "it")[0].serial_number

    async def close(self) -> None:
        for bus in self._buses:
            await bus.close()
        self.process.terminate()
        await self.process.communicate()
        await self.cluster.close()


@pytest_asyncio.fixture(params=LOOPBACK[:2])
async def behind(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Behind]:
    made = Behind(tmp_path, request.param)
    await made.start()
    yield made
    await made.close()


async def test_a_tenant_without_certificate_submits_through_the_door_only(behind: Behind) -> None:
    tenant = await behind.bus("vc-ml", behind.trust)
    heard = Inbox()
    await tenant.listen(subjects.reply("ml", ">"), heard.deliver)
    assert await tenant.publish(subjects.submit("ml"), b"x" * 100_000, "k", {}) == 1
    admission = await behind.cluster.bus(ADMISSION_SERVICE)
    await admission.send(subjects.reply("ml", "x"), b"admitted" * 50_000, {})
    assert (await heard.wait(1))[0].payload == b"admitted" * 50_000
    with pytest.raises(RefusedError, match="refuses the login of 'vc-ml'"):
        await behind.cluster.bus("vc-ml")
    assert not behind.fatal


async def test_many_messages_through_the_encrypted_door_are_stored_once_each(
    behind: Behind,
) -> None:
    tenants = [await behind.bus(f"vc-{vc}", behind.trust) for vc in VCS]
    sequences = await asyncio.gather(
        *(
            tenant.publish(subjects.submit(vc), b"x" * 5_000, f"{vc}-{number}", {})
            for vc, tenant in zip(VCS, tenants, strict=True)
            for number in range(150)
        )
    )
    assert sorted(sequences) == list(range(1, 301))
    assert [tenant.stats.reconnects for tenant in tenants] == [0, 0]


async def test_a_wrong_password_and_a_wrong_authority_are_refused(
    behind: Behind, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = Certificates(tmp_path / "other").give("x")
    with pytest.raises(RefusedError, match="is from another CA than those of"):
        await behind.bus("vc-ml", TlsFiles(ca=other.ca))
    behind.cluster.passwords["vc-ml"] = "guessed"
    with pytest.raises(RefusedError, match="refuses the login of 'vc-ml'"):
        await behind.bus("vc-ml", behind.trust)


async def test_a_client_that_does_not_encrypt_is_told_nothing(behind: Behind) -> None:
    reader, writer = await asyncio.open_connection(behind.host, behind.port)
    assert (await reader.readline()).startswith(b"INFO ")
    writer.write(b"CONNECT {}\r\nPING\r\n")
    async with asyncio.timeout(DEADLINE_S):
        # At most an alert of TLS.
        assert b"PONG" not in await reader.read()
    writer.close()


async def test_a_certificate_is_replaced_while_a_tenant_submits(behind: Behind) -> None:
    tenant = await behind.bus("vc-ml", behind.trust)
    assert await tenant.publish(subjects.submit("ml"), b"x", "k1", {}) == 1
    before = await behind.shown()
    behind.certificates.give("door", *LOOPBACK)
    assert await behind.shown() != before
    assert await tenant.publish(subjects.submit("ml"), b"x", "k2", {}) == 2
    later = await behind.bus("vc-web", behind.trust)
    assert await later.publish(subjects.submit("web"), b"x", "k3", {}) == 3
    assert tenant.stats.reconnects == 0


async def test_a_connection_outlives_a_restart_of_the_bus(behind: Behind) -> None:
    tenant = await behind.bus("vc-ml", behind.trust)
    assert await tenant.publish(subjects.submit("ml"), b"x", "k1", {}) == 1
    await behind.cluster.server.kill()
    await behind.cluster.server.start()
    assert await tenant.publish(subjects.submit("ml"), b"x", "k2", {}) == 2
    assert tenant.stats.reconnects >= 1
