"""The port at which servers of one cluster meet: HTTPS, on `Ports.servers` of each.

    GET  /v1/ca               the authority's certificate, for everybody
    POST /v1/servers/join     a token for one server -> the secrets of the cluster
    GET  /v1/servers          who the servers are, for those that have the secrets

It is up before the bus is: a cluster of three can only begin once it knows all three. Whoever is
let in gets the key of the authority and the operator's key of the bus, so a token for a server is
worth the cluster; one for a node is not.
"""

from __future__ import annotations

import hashlib
import hmac
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from skep.wire.bounds import UNDECODABLE
from skep_services.pki.files import TlsError, TlsFiles, client_context, following_server
from skep_services.servers import files, setup, tokens
from skep_services.servers.files import FilesError, Member, Ports, ServerFile
from skep_services.servers.joining import CA_PATH
from skep_services.servers.versions import VersionError, check_meeting

JOIN_PATH, SERVERS_PATH = "/v1/servers/join", "/v1/servers"
BODY_BYTES_MAX = 64 * 1024
SHUTDOWN_S = 0.5
ANSWER_WITHIN_S = 2.0
QUIET_S = 30.0
"""How long a connection may be without a whole head of a request."""


class AskServer(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine says that wants to be a server. `machine` is what it drew to be known by."""

    id: str
    secret: str
    machine: str
    hosts: tuple[str, ...]
    ports: Ports
    version: str
    replaces: str = ""


class ServerJoined(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine gets that is a server now."""

    cluster: str
    name: str
    size: int
    revision: int
    members: list[Member]
    secrets: setup.Secrets


class Servers(msgspec.Struct, frozen=True, kw_only=True):
    """Who the servers are. Of two lists the one with the higher revision holds."""

    revision: int
    members: list[Member]


class Meeting:
    """The port of one server.

    Args:
        home: The state folder.
        changed: Called when there are other servers than before.
        say: Writes a line into the log.
    """

    def __init__(
        self, home: str, changed: Callable[[ServerFile], None], say: Callable[..., None]
    ) -> None:
        self._home, self._changed, self._say = home, changed, say
        self._runner: web.AppRunner | None = None

    async def open(self) -> None:
        """Listen.

        Raises:
            FilesError: The port is taken.
        """
        file = files.read_server(self._home)
        application = web.Application(client_max_size=BODY_BYTES_MAX)
        application.add_routes(
            [
                web.get(CA_PATH, self._authority),
                web.get(SERVERS_PATH, self._servers),
                web.post(JOIN_PATH, self._join),
            ]
        )
        self._runner = web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=SHUTDOWN_S,
            keepalive_timeout=QUIET_S,
        )
        await self._runner.setup()
        context = following_server(own_tls(self._home), self._say)
        host = None if file.listen == files.EVERYWHERE else file.listen
        site = web.TCPSite(self._runner, host, file.me.ports.servers, ssl_context=context)
        try:
            await site.start()
        except OSError as error:
            text = f"port {file.me.ports.servers} of the servers is taken: {error.strerror}"
            raise FilesError(text) from None

    async def close(self) -> None:
        """Listen no more."""
        if self._runner is not None:
            await self._runner.cleanup()

    # --- answers ---------------------------------------------------------------------------------

    async def _authority(self, _: web.Request) -> web.Response:
        trust = setup.authority(self._home).trust
        return web.Response(body=trust, content_type="application/x-pem-file")

    async def _servers(self, request: web.Request) -> web.Response:
        given = request.headers.get("Authorization", "")
        wanted = f"Bearer {meeting_secret(setup.read_secrets(self._home))}"
        if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), wanted.encode()):
            return _refused(401, "unauthorized", "only servers of the cluster are told")
        file = files.read_server(self._home)
        return _answer(Servers(revision=file.revision, members=file.members))

    async def _join(self, request: web.Request) -> web.Response:
        try:
            asked = msgspec.json.decode(await request.read(), type=AskServer)
        except UNDECODABLE as error:
            return _refused(400, "bad-value", f"the request cannot be read: {error}")
        file = files.read_server(self._home)
        try:
            check_meeting(asked.version, f"the machine at {request.remote}")
            name = place_of(file, asked)
            tokens.use(self._home, asked.id, asked.secret, asked.machine, time.time())
            joined = with_member(file, setup.new_member(name, asked.hosts, asked.ports))
        except (VersionError, FilesError) as error:
            return _refused(409, getattr(error, "reason", "refused"), str(error))
        except tokens.TokenRefusedError as error:
            self._say("server refused", source=request.remote, reason=error.reason)
            return _refused(403, error.reason, str(error))
        if joined != file:
            files.write(files.server_path(self._home), joined)
            self._changed(joined)
        self._say("server joined", server=name, hosts=asked.hosts, source=request.remote)
        return _answer(
            ServerJoined(
                cluster=joined.cluster,
                name=name,
                size=joined.size,
                revision=joined.revision,
                members=joined.members,
                secrets=setup.read_secrets(self._home),
            )
        )


def place_of(file: ServerFile, asked: AskServer) -> str:
    """Return the name of the server that a machine becomes.

    Args:
        file: The cluster.
        asked: What the machine asks for.

    Raises:
        FilesError: There is no place for it.
    """
    known = {one.name: one for one in file.members}
    if asked.replaces:
        if asked.replaces not in known or asked.replaces == file.name:
            text = f"{asked.replaces} cannot be replaced: the others are {_names(file)}"
            raise FilesError(text)
        return asked.replaces
    for one in file.members:
        if one.hosts == asked.hosts and one.ports == asked.ports:
            return one.name  # It asks again: the answer got lost.
    if file.size == 1:
        raise FilesError(ONE_STAYS_ONE)
    for number in range(1, file.size + 1):
        name = f"server-{number}"
        if name not in known:
            taken = [one.name for one in file.members if set(one.hosts) & set(asked.hosts)]
            ports = [one for one in file.members if one.ports == asked.ports]
            if taken and ports:
                text = f"{taken[0]} has one of these hosts: {', '.join(asked.hosts)}; use --host"
                raise FilesError(text)
            return name
    text = f"the cluster has its {file.size} servers ({_names(file)}): use --replace NAME"
    raise FilesError(text)


ONE_STAYS_ONE = (
    "this cluster was made for one server, and its bus cannot become one of three without losing "
    "its data: make a new cluster with `skep server init --servers 3`, and bring everything over "
    "with `skep backup` and `skep restore`"
)


def with_member(file: ServerFile, member: Member) -> ServerFile:
    """Return the cluster with a server that joined, or whose hosts are others now."""
    if member in file.members:
        return file
    others = [one for one in file.members if one.name != member.name]
    members = sorted([*others, member], key=lambda one: one.name)
    return msgspec.structs.replace(file, members=members, revision=file.revision + 1)


def newer(file: ServerFile, told: Servers) -> ServerFile:
    """Return the cluster with the servers that another one told of, if it knows more."""
    if told.revision <= file.revision or not any(one.name == file.name for one in told.members):
        return file
    return msgspec.structs.replace(file, members=told.members, revision=told.revision)


def meeting_secret(shared: setup.Secrets) -> str:
    """Return by which servers know one another at this port."""
    key = shared.bus[min(shared.bus)].encode()
    return hmac.new(hashlib.sha256(key).digest(), b"skep servers 1", "sha256").hexdigest()


async def ask_servers(home: str, other: Member) -> Servers | None:
    """Return whom another server knows; None if it does not answer."""
    try:
        context: ssl.SSLContext = client_context(Path(files.tls_path(home, files.CA)))
    except TlsError:
        return None
    headers = {"Authorization": f"Bearer {meeting_secret(setup.read_secrets(home))}"}
    limit = aiohttp.ClientTimeout(total=ANSWER_WITHIN_S)
    url = other.url("https", other.ports.servers) + SERVERS_PATH
    try:
        async with (
            aiohttp.ClientSession(timeout=limit) as session,
            session.get(url, headers=headers, ssl=context) as answer,
        ):
            if answer.status != 200:
                return None
            return msgspec.json.decode(await answer.read(), type=Servers)
    except (aiohttp.ClientError, OSError, TimeoutError, msgspec.MsgspecError):
        return None


def own_tls(home: str) -> TlsFiles:
    """Return the files of this machine's certificate."""
    return TlsFiles(
        ca=Path(files.tls_path(home, files.CA)),
        certificate=Path(files.tls_path(home, files.CERTIFICATE)),
        key=Path(files.tls_path(home, files.KEY)),
    )


def _names(file: ServerFile) -> str:
    return ", ".join(one.name for one in file.members if one.name != file.name) or "none"


def _answer(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def _refused(status: int, reason: str, text: str) -> web.Response:
    body = {"error": {"reason": reason, "text": text, "problems": []}}
    return web.Response(
        status=status, body=msgspec.json.encode(body), content_type="application/json"
    )
