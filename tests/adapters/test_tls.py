"""The encrypted bus: real servers with real certificates, good and bad, and their replacement."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from asyncio import sslproto
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from skep_services.adapters import nats_link
from skep_services.adapters.nats_access import Account, User
from skep_services.adapters.nats_api import PubAck, publish_once
from skep_services.adapters.nats_link import Link, LinkOptions
from skep_services.adapters.nats_server import Membership, Server, free_port
from skep_services.pki.certificates import load
from skep_services.pki.files import TlsFiles, host_port
from skep_services.ports import RefusedError
from tests.adapters.worlds import ANYTHING, DEADLINE_S, PASSWORD, eventually
from tests.tls_kit import LOOPBACK, Certificates

pytestmark = [pytest.mark.asyncio, pytest.mark.adapters]

USERS = (User(name="a", password=PASSWORD, grants=ANYTHING),)
ACCOUNTS = [Account(name="TEST", users=USERS, jetstream=True)]


class Bus:
    """Servers of one cluster, or one alone, and links to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificates = Certificates(folder)
        self.servers: list[Server] = []
        self.links: list[Link] = []
        self.fatal: list[Exception] = []

    async def start(self, host: str = LOOPBACK[0], tls: TlsFiles | None = None) -> Server:
        files = tls or self.certificates.give("server", *LOOPBACK)
        server = Server(self.folder / "nats", ACCOUNTS, host=host, tls=files)
        self.servers.append(server)
        await server.start()
        await server.wait_healthy("a")
        return server

    async def link(
        self, server: Server, files: TlsFiles | None, url: str = "", within_s: float = DEADLINE_S
    ) -> Link:
        options = LinkOptions(
            servers=(url or server.url,),
            identity="a",
            password=PASSWORD,
            tls=files,
            connect_within_s=within_s,
        )
        link = await Link.connect(options, self.fatal.append)
        self.links.append(link)
        return link

    async def close(self) -> None:
        for link in self.links:
            await link.close()
        for server in self.servers:
            await server.kill()


@pytest_asyncio.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    made = Bus(tmp_path)
    yield made
    await made.close()


async def shown(server: Server, files: TlsFiles) -> int:
    """Return the serial number of the certificate that a server shows now."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    assert files.certificate is not None
    assert files.key is not None
    context.load_cert_chain(files.certificate, files.key)
    reader, writer = await asyncio.open_connection(server.host, server.port)
    await reader.readline()
    await writer.start_tls(context)
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return load(ssl.DER_cert_to_PEM_cert(der).encode(), "it")[0].serial_number


def serial(files: TlsFiles) -> int:
    assert files.certificate is not None
    return load(files.certificate.read_bytes(), "it")[0].serial_number


@pytest.mark.parametrize("host", LOOPBACK[:2])
async def test_a_link_is_encrypted_and_proves_itself(bus: Bus, host: str) -> None:
    server = await bus.start(host)
    assert server.url.startswith("tls://")
    link = await bus.link(server, bus.certificates.give("client"))
    got: asyncio.Queue[bytes] = asyncio.Queue()
    await link.subscribe("x", lambda message: got.put_nowait(message.data))
    assert await link.send("x", b"y" * 100_000, {})
    async with asyncio.timeout(DEADLINE_S):
        assert await got.get() == b"y" * 100_000
    transport = link._client._transport._io_writer.transport  # type: ignore[union-attr]
    assert transport.get_extra_info("cipher")[1] == "TLSv1.3"
    if host == "127.0.0.1":
        await bus.link(server, bus.certificates.give("client"), f"tls://localhost:{server.port}")
    assert not bus.fatal


CASES = {
    "none": "wants a certificate and got none: set SKEP_TLS_CERT",
    "other CA": r"refuses .*cert\.pem: it is from Skep CA \w+, which is no CA of that server",
    "expired": r"refuses .*cert\.pem: it expired on 20\d\d-",
    "clock ahead": r"refuses .*cert\.pem: it is valid from 20\d\d-.*compare this machine's clock",
    "believes another CA": r"is from another CA than those of .*ca\.pem: check the",
    "no file": r"SKEP_TLS_CERT: .*cert\.pem: No such file",
    "other host": "is for other hosts: use one of its names, or issue it anew",
}


@pytest.mark.parametrize("case", CASES)
async def test_what_is_not_believed_is_refused_in_one_line(
    bus: Bus, case: str, tmp_path: Path
) -> None:
    server = await bus.start(tls=bus.certificates.give("server", "127.0.0.1"))
    good = bus.certificates.give("client")
    (tmp_path / "other").mkdir()
    other = Certificates(tmp_path / "other").give("client")
    url = server.url
    match case:
        case "none":
            files = TlsFiles(ca=good.ca)
        case "other CA":
            files = msgspec.structs.replace(other, ca=good.ca)
        case "expired":
            files = bus.certificates.aged(40).give("client", days=30)
        case "clock ahead":
            files = bus.certificates.aged(-2).give("client", days=30)
        case "believes another CA":
            files = msgspec.structs.replace(good, ca=other.ca)
        case "no file":
            files = msgspec.structs.replace(good, certificate=tmp_path / "cert.pem")
        case _:
            files, url = good, f"tls://localhost:{server.port}"
    with pytest.raises(RefusedError, match=CASES[case]) as refused:
        await bus.link(server, files, url)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "aged, line",
    [
        (40, "has expired by this clock"),
        (-2, "is not valid yet by this clock .* seems to be behind"),
    ],
)
async def test_a_server_of_another_time_is_refused_in_one_line(
    bus: Bus, aged: float, line: str
) -> None:
    files = bus.certificates.aged(aged).give("server", *LOOPBACK, days=30)
    server = Server(bus.folder / "nats", ACCOUNTS, tls=files)
    bus.servers.append(server)
    await server.start()
    await server._wait_listening()
    with pytest.raises(RefusedError, match=line):
        await bus.link(server, bus.certificates.give("client"))


async def test_nothing_is_said_to_a_server_that_does_not_encrypt(bus: Bus) -> None:
    """One in between could ask for plain text, and would be told the password."""
    heard = bytearray()
    closed = asyncio.Event()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.15.1","max_payload":1000}\r\n')
        heard.extend(await reader.read())
        writer.close()
        closed.set()

    liar = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = liar.sockets[0].getsockname()[1]
    server = Server(bus.folder / "nats", ACCOUNTS, port)
    with pytest.raises(RefusedError, match=f"127.0.0.1:{port} does not encrypt: it is no bus"):
        await bus.link(server, bus.certificates.give("client"), f"tls://127.0.0.1:{port}")
    async with asyncio.timeout(DEADLINE_S):
        await closed.wait()
    assert not heard
    liar.close()


def abort_of_python_3_11_2(transport: Any) -> None:
    """Do what Python 3.11.2 does: it fails for a transport that was closed twice."""
    transport._closed = True
    transport._ssl_protocol._abort()


async def test_a_link_waits_for_a_certificate_that_ends_and_takes_in_the_next(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the link stands nothing happens; while it does not, the next certificate is tried."""
    monkeypatch.setattr(nats_link, "RECONNECT_PAUSE_S_MAX", 0.05)
    monkeypatch.setattr(sslproto._SSLProtocolTransport, "abort", abort_of_python_3_11_2)
    server = await bus.start()
    link = await bus.link(server, bus.certificates.give("client"))
    bus.certificates.aged(40).give("client", days=30)
    assert await link.echo(DEADLINE_S)
    await server.kill()
    await server.start()
    await eventually(lambda: link._tls_refused >= 3)
    assert not link.connected
    assert "it expired on" in link._tls_trouble
    bus.certificates.give("client")
    assert await link.wait_up(DEADLINE_S)
    assert link.reconnects == 1
    assert not bus.fatal


async def test_a_pair_that_is_half_replaced_is_not_used(bus: Bus) -> None:
    server = await bus.start()
    mine = bus.certificates.give("client")
    link = await bus.link(server, mine)
    assert mine.key is not None
    mine.key.write_bytes(bus.certificates.authority.issue("client").key)
    await server.kill()
    await server.start()
    assert await link.wait_up(DEADLINE_S)


# --- replacement under traffic -----------------------------------------------------------------


class Traffic:
    """Publishes one message after the other into a stream until it is stopped."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.stored: list[int] = []
        self._ends = False
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        for number in itertools.count():
            if self._ends:
                break
            headers = {"Nats-Msg-Id": f"k{number}"}
            answer = await publish_once(self.link, "job.a", b"%d" % number, headers, DEADLINE_S)
            assert isinstance(answer, PubAck), answer
            assert answer.error is None, answer
            self.stored.append(answer.seq)

    async def more(self, count: int = 20) -> None:
        """Return once so many more are stored."""
        goal = len(self.stored) + count
        async with asyncio.timeout(DEADLINE_S):
            while len(self.stored) < goal:
                if self._task.done():
                    await self._task
                await asyncio.sleep(0)

    async def stop(self) -> None:
        self._ends = True
        await self._task
        assert self.stored == list(range(1, len(self.stored) + 1))


async def until_shown(server: Server, files: TlsFiles) -> None:
    """Return once a server shows to new connections what is in its files."""
    assert server.tls is not None
    server.reload()
    async with asyncio.timeout(DEADLINE_S):
        while await shown(server, files) != serial(server.tls):  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_certificates_and_the_authority_change_under_traffic(bus: Bus) -> None:
    server = await bus.start()
    issuer, client = bus.certificates, bus.certificates.give("client")
    assert server.tls is not None
    link = await bus.link(server, client)
    answer = await link.call(
        "$JS.API.STREAM.CREATE.JOBS", b'{"name":"JOBS","subjects":["job.*"]}', {}, DEADLINE_S
    )
    assert not isinstance(answer, nats_link.Silence)
    traffic = Traffic(link)
    await traffic.more()
    # Its own certificate anew, from the same authority.
    before = serial(server.tls)
    issuer.give("server", *LOOPBACK)
    await until_shown(server, client)
    assert serial(server.tls) != before
    await traffic.more()
    # A new authority: first it is believed, then it issues, then only it is believed.
    old = issuer.give("late")
    issuer.authority = issuer.authority.begin_change()
    issuer.give("server", *LOOPBACK)
    issuer.trust("client")
    await until_shown(server, client)
    issuer.authority = issuer.authority.switch_change()
    issuer.give("server", *LOOPBACK)
    await until_shown(server, client)
    await traffic.more()
    await bus.link(server, client)  # The client's is still of the one before.
    issuer.give("client")
    await bus.link(server, client)
    issuer.authority = issuer.authority.end_change()
    issuer.trust("server", "client")
    issuer.give("server", *LOOPBACK)
    await until_shown(server, client)
    await traffic.more()
    with pytest.raises(RefusedError, match="which is no CA of that server"):
        await bus.link(server, msgspec.structs.replace(old, ca=client.ca))
    await traffic.stop()
    assert link.reconnects == 0
    assert not bus.fatal


async def test_a_reload_with_files_that_do_not_fit_changes_nothing(bus: Bus) -> None:
    server = await bus.start()
    client = bus.certificates.give("client")
    assert server.tls is not None
    before = serial(server.tls)
    assert server.tls.key is not None
    server.tls.key.write_bytes(b"?")
    server.reload()
    await eventually(lambda: "Failed to reload" in server.log_path.read_text())
    assert await shown(server, client) == before
    await bus.link(server, client)


# --- routes between servers --------------------------------------------------------------------


def members(bus: Bus, count: int, host: str, given: Sequence[TlsFiles] = ()) -> list[Server]:
    """Return servers of one cluster, each with its own certificate and its own port for routes."""
    ports = [free_port(host) for _ in range(count)]
    for at, port in enumerate(ports):
        files = given[at] if given else bus.certificates.give(f"server-{at}", *LOOPBACK)
        others = [each for each in ports if each != port]
        cluster = Membership(
            port=port,
            routes=tuple(host_port(host, each) for each in others),
            user="route",
            password="between",
            monitor_port=free_port(),
            host=host,
        )
        server = Server(bus.folder / f"n{at}", ACCOUNTS, host=host, tls=files, cluster=cluster)
        bus.servers.append(server)
    return bus.servers


async def crosses(sender: Link, receiver: Link) -> bool:
    """Return whether what one says on its server is heard by the other on another."""
    heard = asyncio.Event()
    await receiver.subscribe("across", lambda _: heard.set())
    async with asyncio.timeout(DEADLINE_S):
        while not heard.is_set():
            await sender.send("across", b"", {})
            await sender.echo(DEADLINE_S)
    return True


@pytest.mark.parametrize("host", LOOPBACK[:2])
async def test_servers_meet_over_encrypted_routes(bus: Bus, host: str) -> None:
    servers = members(bus, 2, host)
    for server in servers:
        await server.start()
        await server._wait_listening()
    client = bus.certificates.give("client")
    one, two = [await bus.link(server, client) for server in servers]
    assert await crosses(one, two)
    # A server that begins anew meets the other by what was replaced meanwhile, and by that only.
    issuer = bus.certificates
    issuer.authority = issuer.authority.begin_change().switch_change().end_change()
    for at, server in enumerate(servers):
        issuer.give(f"server-{at}", *LOOPBACK)
        server.reload()
    client = issuer.give("client")
    await until_shown(servers[0], client)
    await servers[1].kill()
    await servers[1].start()
    await servers[1]._wait_listening()
    assert await two.wait_up(DEADLINE_S)
    assert await crosses(two, one)
    assert one.reconnects == 0


async def asked(link: Link, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return what JetStream answers, once there is a leader that answers."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            answer = await link.call(f"$JS.API.{verb}", msgspec.json.encode(body), {}, 1.0)
            if not isinstance(answer, nats_link.Silence):
                told: dict[str, Any] = msgspec.json.decode(answer.data)
                if "error" not in told:
                    return told
            # tidy: allow sleep because servers elect a leader in their own time
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_three_servers_change_their_authority_under_traffic(bus: Bus) -> None:
    servers = members(bus, 3, LOOPBACK[0])
    for server in servers:
        await server.start()
    for server in servers:
        await server._wait_listening()
    issuer, client = bus.certificates, bus.certificates.give("client")
    link = await bus.link(servers[0], client)
    plan = {"name": "JOBS", "subjects": ["job.*"], "num_replicas": 3}
    await asked(link, "STREAM.CREATE.JOBS", plan)
    traffic = Traffic(link)

    async def issue_all() -> None:
        for at, server in enumerate(servers):
            issuer.give(f"server-{at}", *LOOPBACK)
            await until_shown(server, client)
        await traffic.more()

    await issue_all()
    issuer.authority = issuer.authority.begin_change()
    issuer.trust()
    await issue_all()
    issuer.authority = issuer.authority.switch_change()
    client = issuer.give("client")
    await issue_all()
    issuer.authority = issuer.authority.end_change()
    issuer.trust()
    await issue_all()
    await traffic.stop()
    assert link.reconnects == 0
    # One that begins anew has only what is believed now, and catches up over the others' routes.
    await servers[2].kill()
    await servers[2].start()
    await servers[2]._wait_listening()
    late = await bus.link(servers[2], client)
    while True:
        told = await asked(late, "STREAM.INFO.JOBS", {})
        replicas = told["cluster"]["replicas"]
        if len(replicas) == 2 and all(one["current"] for one in replicas):
            break
    assert told["state"]["messages"] == len(traffic.stored)


async def test_a_server_of_another_authority_gets_no_route(bus: Bus, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    stranger = Certificates(tmp_path / "other").give("server-1", *LOOPBACK)
    mine = bus.certificates.give("server-0", *LOOPBACK)
    first, second = members(bus, 2, LOOPBACK[0], [mine, stranger])
    await first.start()
    await second.start()
    await eventually(lambda: "TLS route handshake error" in first.log_path.read_text())
    assert "Route connection created" not in second.log_path.read_text().partition("error")[0]
