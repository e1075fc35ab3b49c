"""Bus servers with signed identities: the real accounts and streams, on one server or on three."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from skep_services.adapters import nats_keys
from skep_services.adapters.nats_access import (
    BOOTSTRAP,
    CLAIMS,
    SERVICES_ACCOUNT,
    Account,
    User,
    new_passwords,
    system_account,
)
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.nats_claims import Resolver
from skep_services.adapters.nats_link import Link, LinkOptions
from skep_services.adapters.nats_server import Membership, Server, free_port
from skep_services.adapters.nats_streams import STREAM_PLANS, StreamPlan, bootstrap_streams
from tests.adapters.worlds import NODES, VCS, Accounts, NatsWorld, every_account

ISSUED_AT_S = 1_700_000_000
"""When the keys of a cluster were made: long ago."""


class SignedCluster:
    """Servers that believe signed identities. Further accounts join while they run."""

    def __init__(
        self, folder: Path, others: Accounts = tuple, servers: int = 1, cluster: str = "skep"
    ) -> None:
        self.folder = folder
        self.keys = nats_keys.create(folder / "keys")
        self.accounts = others(every_account(new_passwords(NODES, VCS)))
        self.fatal: list[Exception] = []
        self.marker = folder / "streams.json"
        self._buses: list[NatsBus] = []
        self._links: list[Link] = []
        self._files: dict[str, Path] = {}
        first = [self._account(SERVICES_ACCOUNT), system_account()]
        route = free_port()
        self.servers = [
            Server(
                folder / f"s{number}",
                (),
                cluster=None
                if servers == 1
                else Membership(
                    port=route,
                    routes=tuple(f"127.0.0.{other + 1}" for other in range(servers)),
                    user="route",
                    password="of-the-cluster",
                    monitor_port=free_port(),
                    host=f"127.0.0.{number + 1}",
                ),
                operator=self.keys.operator_mode(
                    cluster, folder / f"s{number}" / "accounts", first, ISSUED_AT_S
                ),
            )
            for number in range(servers)
        ]
        for account in (*self.accounts, system_account()):
            for user in account.users:
                self.issue(account, user)

    @property
    def server(self) -> Server:
        return self.servers[0]

    def _account(self, name: str) -> Account:
        return next(account for account in self.accounts if account.name == name)

    def issue(self, account: Account, user: User | None = None, **fields: Any) -> Path:
        """Write the credentials of a user of an account."""
        user = user or account.users[0]
        path = self.folder / f"{user.name}.creds"
        fields.setdefault("issued_at_s", ISSUED_AT_S)
        nats_keys.write_secret(path, self.keys.credentials(account.name, user, **fields))
        self._files[user.name] = path
        return path

    async def start(self, plans: tuple[StreamPlan, ...] = STREAM_PLANS) -> None:
        await asyncio.gather(*(server.start() for server in self.servers))
        for server in self.servers:
            await server.wait_healthy(BOOTSTRAP, credentials=self._files[BOOTSTRAP])
        bus = await self.bus(BOOTSTRAP)
        await bootstrap_streams(bus, self.marker, plans=plans, replicas=len(self.servers))
        self.resolver = Resolver(
            await self.link(CLAIMS), self.keys, len(self.servers), lambda: int(time.time())
        )
        for account in self.accounts:
            if account.name != SERVICES_ACCOUNT:
                await self.resolver.push(account)

    def options(self, identity: str, server: int = 0) -> LinkOptions:
        return LinkOptions(
            servers=(self.servers[server].url,),
            identity=identity,
            credentials=self._files[identity],
        )

    async def link(self, identity: str, server: int = 0) -> Link:
        made = await Link.connect(self.options(identity, server), self.fatal.append)
        self._links.append(made)
        return made

    async def bus(self, identity: str, server: int = 0) -> NatsBus:
        made = await NatsBus.connect(self.options(identity, server), self.fatal.append)
        self._buses.append(made)
        return made

    async def close(self) -> None:
        for one in (*self._buses, *self._links):
            await one.close()
        await asyncio.gather(*(server.stop() for server in self.servers))


class SignedWorld(NatsWorld):
    """The same world, in which identities are signed."""

    name = "signed"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        keys = nats_keys.create(folder / "keys")
        first = [self.account, system_account()]
        operator = keys.operator_mode("test", folder / "accounts", first, ISSUED_AT_S)
        self.server = Server(folder, (), operator=operator)
        for user in self.account.users:
            text = keys.credentials(self.account.name, user, issued_at_s=ISSUED_AT_S)
            nats_keys.write_secret(self._file(user.name), text)

    def _file(self, identity: str) -> Path:
        return self.server.folder / f"{identity}.creds"

    async def start(self) -> None:
        await self.server.start()
        await self.server.wait_healthy("tester", credentials=self._file("tester"))

    def options(self, url: str, identity: str) -> LinkOptions:
        return LinkOptions(servers=(url,), identity=identity, credentials=self._file(identity))
