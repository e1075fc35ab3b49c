"""Measure what signed identities on the bus cost: submissions, joins and revocations.

    python -m benchmarks identities [--jobs 4000] [--runs 5] [--known 0] [--joins 20]

Submissions: one tenant publishes specs to SUBMIT with `--window` in flight, on one server that has
passwords and on one that has signed identities, in turn; of `--runs` each the middle one counts.
CPU time is that of the server for one submission.

Joins and revocations: on three servers, which know `--known` nodes already. A join is from the
first word to the servers until a heartbeat of the new node has arrived elsewhere; it has the push
to all servers and the login in it. A revocation is from the first word until all three connections
of a person are cut. All processes share this machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import secrets
import statistics
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from benchmarks._sample import percentiles, say
from skep.wire import subjects
from skep_services.adapters import nats_keys, nats_server
from skep_services.adapters.nats_access import (
    ALLOCATOR,
    BOOTSTRAP,
    CLAIMS,
    PERSON_CONNECTIONS_MAX,
    Account,
    accounts,
    new_passwords,
    node_account,
    person_account,
    system_account,
    vc_identity,
)
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.nats_claims import Resolver
from skep_services.adapters.nats_link import Link, LinkOptions
from skep_services.adapters.nats_streams import bootstrap_streams

SERVERS = 3
PAYLOAD = b"x" * 600
"""As long as a usual spec."""
WITHIN_S = 60.0
ISSUED_AT_S = 1_700_000_000
"""When the keys of the clusters were made: long ago."""
TICKS = os.sysconf("SC_CLK_TCK")
MODES = ("passwords", "signed")
NODE, VC = "n1", "ml"

assert PERSON_CONNECTIONS_MAX >= SERVERS


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--jobs", type=int, default=4000)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--known", type=int, default=0)
    parser.add_argument("--joins", type=int, default=20)


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Measure all of it."""
    figures: dict[str, Any] = asyncio.run(submissions(given))
    figures.update(asyncio.run(changes(given)))
    return figures


async def submissions(given: argparse.Namespace) -> dict[str, Any]:
    """Return submissions per second with passwords and with signed identities, and their ratio."""
    rates: dict[str, list[float]] = {name: [] for name in MODES}
    spent: dict[str, list[float]] = {name: [] for name in MODES}
    for number in range(given.runs):
        for name in MODES if number % 2 else reversed(MODES):
            async with running(signed=name == "signed", servers=1) as bus:
                rate, cpu_us = await submit(bus, given.jobs, given.window)
            rates[name].append(rate)
            spent[name].append(cpu_us)
            say(f"{name}: {rate:.0f} submissions a second, {cpu_us:.1f} us of the server each")
    middle = {name: statistics.median(values) for name, values in rates.items()}
    cpu = {name: statistics.median(values) for name, values in spent.items()}
    return {
        "submissions_per_s": {name: round(value, 1) for name, value in middle.items()},
        "submissions_ratio": round(middle["signed"] / middle["passwords"], 3),
        "server_cpu_us": {name: round(value, 1) for name, value in cpu.items()},
        "server_cpu_us_min": {name: round(min(values), 1) for name, values in spent.items()},
    }


async def submit(bus: Bus, jobs: int, window: int) -> tuple[float, float]:
    """Publish so many specs; return how many a second, and CPU time of the server for one (us)."""
    tenant = await bus.link(vc_identity(VC), 0)
    left = deque(range(jobs))

    async def worker() -> None:
        while left:
            headers = {subjects.KEY_HEADER: f"k{left.popleft()}"}
            await tenant.call(subjects.submit(VC), PAYLOAD, headers, WITHIN_S)

    cpu, began = cpu_s(bus.servers[0].pid), time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(window)))
    lasted = time.perf_counter() - began
    return jobs / lasted, 1e6 * (cpu_s(bus.servers[0].pid) - cpu) / jobs


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process so far, in seconds."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS


async def changes(given: argparse.Namespace) -> dict[str, Any]:
    """Return what joins and revocations take on three servers."""
    async with running(signed=True, servers=SERVERS) as bus:
        resolver = await bus.resolver()
        for number in range(given.known):
            await resolver.push(node_account(f"known{number}"))
        say(f"three servers know {given.known} nodes")
        heard: asyncio.Queue[str] = asyncio.Queue()
        allocator = await bus.link(ALLOCATOR, 0)
        await allocator.subscribe(subjects.HEARTBEATS, lambda one: heard.put_nowait(one.subject))
        joins = [await join(bus, resolver, heard, number) for number in range(given.joins)]
        cuts = [await revoke(bus, resolver, number) for number in range(given.joins)]
    return {
        "push_ms": percentiles([push for push, _ in joins]),
        "join_ms": percentiles([whole for _, whole in joins]),
        "revocation_ms": percentiles(cuts),
    }


class Bus:
    """Bus servers, with passwords or with signed identities."""

    def __init__(self, folder: Path, servers: int, *, signed: bool) -> None:
        """Plan servers in a folder; none is started."""
        self.passwords = new_passwords((NODE,), (VC,))
        self.accounts = accounts(self.passwords, (NODE,), (VC,))
        self.keys = nats_keys.create(folder / "keys") if signed else None
        self._folder, self._links = folder, list[Link]()
        self._files: dict[str, Path] = {}
        port, secret = nats_server.free_port(), secrets.token_hex(8)
        others = tuple(f"127.0.0.{number + 1}" for number in range(servers))
        self.servers = [
            nats_server.Server(
                folder / f"s{number}",
                () if self.keys else self.accounts,
                cluster=None
                if servers == 1
                else nats_server.Membership(
                    port=port,
                    routes=others,
                    user="route",
                    password=secret,
                    monitor_port=nats_server.free_port(),
                    host=host,
                ),
                operator=self._operator(folder / f"s{number}-accounts"),
            )
            for number, host in enumerate(others)
        ]
        for account in (*self.accounts, system_account()) if signed else ():
            self.issue(account)

    def _operator(self, resolver: Path) -> nats_server.OperatorMode | None:
        if self.keys is None:
            return None
        first = (self.accounts[0], system_account())
        return self.keys.operator_mode("bench", resolver, first, ISSUED_AT_S)

    def issue(self, account: Account) -> None:
        """Write credentials of all users of an account."""
        assert self.keys is not None
        for user in account.users:
            self._files[user.name] = self._folder / f"{user.name}.creds"
            text = self.keys.credentials(account.name, user, issued_at_s=ISSUED_AT_S)
            nats_keys.write_secret(self._files[user.name], text)

    async def start(self) -> None:
        """Start the servers, and make the streams."""
        for server in self.servers:
            await server.start()
        for server in self.servers:
            await server.wait_healthy(BOOTSTRAP, credentials=self._files.get(BOOTSTRAP))
        bus = NatsBus(await self.link(BOOTSTRAP, 0))
        await bootstrap_streams(bus, self._folder / "streams.json", replicas=len(self.servers))
        if self.keys is not None:
            resolver = await self.resolver()
            for account in self.accounts:
                await resolver.push(account)

    async def resolver(self) -> Resolver:
        """Return what tells the servers of accounts."""
        assert self.keys is not None
        link = await self.link(CLAIMS, 0)
        return Resolver(link, self.keys, len(self.servers), lambda: int(time.time()))

    async def link(
        self, identity: str, server: int, fatal: Callable[[Exception], None] = print
    ) -> Link:
        """Return a connection of an identity to one of the servers."""
        options = LinkOptions(
            servers=(self.servers[server].url,),
            identity=identity,
            password=self.passwords.get(identity, ""),
            credentials=self._files.get(identity),
        )
        made = await Link.connect(options, fatal)
        self._links.append(made)
        return made

    async def close(self) -> None:
        """End all connections, and then the servers."""
        for link in self._links:
            await link.close()
        for server in self.servers:
            await server.stop()


@contextlib.asynccontextmanager
async def running(servers: int, *, signed: bool) -> AsyncIterator[Bus]:
    """Run bus servers in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="skep-bench-identities-") as folder:
        bus = Bus(Path(folder), servers, signed=signed)
        try:
            await bus.start()
            yield bus
        finally:
            await bus.close()


async def join(
    bus: Bus, resolver: Resolver, heard: asyncio.Queue[str], number: int
) -> tuple[float, float]:
    """Have a node join; return the time of its push, and until it was heard elsewhere (ms)."""
    name = f"new{number}"
    account = node_account(name)
    bus.issue(account)
    began = time.perf_counter()
    await resolver.push(account)
    pushed = time.perf_counter()
    agent = await bus.link(account.name, number % SERVERS)
    await agent.send(subjects.heartbeat(name), b"alive", {})
    assert await heard.get() == subjects.heartbeat(name)
    return 1e3 * (pushed - began), 1e3 * (time.perf_counter() - began)


async def revoke(bus: Bus, resolver: Resolver, number: int) -> float:
    """Revoke a person with a connection at each server; return when the last was cut (ms)."""
    account = person_account(VC, f"p{number}")
    bus.issue(account)
    await resolver.push(account)
    loop = asyncio.get_running_loop()
    cuts: list[float] = []
    cut = loop.create_future()

    def ended(_: Exception) -> None:
        cuts.append(time.perf_counter())
        if len(cuts) == SERVERS:
            cut.set_result(None)

    for server in range(SERVERS):
        await bus.link(account.name, server, ended)
    began = time.perf_counter()
    await resolver.revoke(account)
    await asyncio.wait_for(cut, WITHIN_S)
    return 1e3 * (max(cuts) - began)
