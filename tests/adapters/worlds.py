"""The worlds the adapter suites run in: memory, and a real nats-server of the test's own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from skep.units import KIB, seconds
from skep_services.adapters.memory import (
    ManualClock,
    MemoryBroker,
    MemoryBus,
    MemoryFactLog,
    MemoryLogStore,
)
from skep_services.adapters.nats_access import (
    BOOTSTRAP,
    Account,
    Grants,
    User,
    accounts,
    new_passwords,
    person_account,
)
from skep_services.adapters.nats_api import Answer, StoredMessage, ask
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.nats_facts import NatsFactLog
from skep_services.adapters.nats_link import LinkOptions
from skep_services.adapters.nats_server import Server
from skep_services.adapters.nats_streams import STREAM_PLANS, StreamPlan, bootstrap_streams
from skep_services.pki.files import TlsFiles
from skep_services.ports import Bus, Delivery, FactLog

DEADLINE_S = 120.0
"""After this a condition that should become true counts as never."""

ANYTHING = Grants((">",), (">",))
READERS = tuple(f"reader-{n}" for n in range(1, 17))
IDENTITIES = ("a", "b", "tester", "keeper", "asker", *READERS)
PASSWORD = "open sesame"


NODES, VCS = ("n1", "n2"), ("ml", "web")
PEOPLE = (("ml", "anna"), ("ml", "bob"), ("web", "anna"))
"""Of a `RealCluster`; people with the VCs that they belong to."""

Accounts = Callable[[tuple[Account, ...]], tuple[Account, ...]]
Passwords = Callable[[dict[str, str]], dict[str, str]]


class Placed(msgspec.Struct, frozen=True, tag="placed"):
    job: str
    pad: str = ""


class Freed(msgspec.Struct, frozen=True, tag="freed"):
    job: str


class Alien(msgspec.Struct, frozen=True, tag="alien"):
    job: str


FACT_SUBJECT = "test.fact"


class Inbox:
    """Takes deliveries and lets a test wait until it has seen enough of them."""

    def __init__(self) -> None:
        self.got: list[Delivery] = []
        self._more = asyncio.Condition()

    async def deliver(self, delivery: Delivery) -> None:
        async with self._more:
            self.got.append(delivery)
            self._more.notify_all()

    async def wait(self, count: int) -> list[Delivery]:
        async with asyncio.timeout(DEADLINE_S), self._more:
            await self._more.wait_for(lambda: len(self.got) >= count)
        return self.got

    @property
    def payloads(self) -> list[bytes]:
        return [delivery.payload for delivery in self.got]

    @property
    def sequences(self) -> list[int]:
        return [delivery.sequence for delivery in self.got]


class World(Protocol):
    """A broker, and buses and fact logs on it. `fatal` collects what ended a bus."""

    fatal: asyncio.Queue[Exception]

    async def bus(self, identity: str = "a") -> Bus: ...

    async def add_stream(
        self, name: str, subjects: Sequence[str], message_max: int = KIB
    ) -> None: ...

    async def drop_stream(self, name: str) -> None: ...

    async def fact_log(self, facts: Any = ...) -> FactLog: ...

    async def fact_log_of(self, identity: str) -> FactLog: ...

    async def intrude(self, payload: bytes, key: str = "") -> None:
        """Write a message into the stream of fact logs, as somebody who is not their owner."""

    async def take_out(self, sequence: int) -> None:
        """Delete a message of that stream."""

    async def stored(self, sequence: int) -> bytes:
        """Return a message of that stream."""


class MemoryWorld:
    name = "memory"

    def __init__(self) -> None:
        self.fatal: asyncio.Queue[Exception] = asyncio.Queue()
        self.broker = MemoryBroker(ManualClock())
        self.store = MemoryLogStore()
        self._buses: list[MemoryBus] = []

    async def bus(self, identity: str = "a") -> Bus:
        bus = MemoryBus(self.broker, identity, self.fatal.put_nowait)
        self._buses.append(bus)
        return bus

    async def add_stream(self, name: str, subjects: Sequence[str], message_max: int = KIB) -> None:
        self.broker.add_stream(name, subjects, message_max)

    async def drop_stream(self, name: str) -> None:
        self.broker.drop_stream(name)

    async def fact_log(self, facts: Any = Placed | Freed) -> FactLog:
        return MemoryFactLog(self.store, facts)

    async def fact_log_of(self, identity: str) -> FactLog:
        del identity
        return await self.fact_log()

    async def intrude(self, payload: bytes, key: str = "") -> None:
        del key
        self.store.records.append(payload)

    async def take_out(self, sequence: int) -> None:
        self.store.records[sequence - 1] = None

    async def stored(self, sequence: int) -> bytes:
        return self.store.records[sequence - 1] or b""

    async def close(self) -> None:
        for bus in self._buses:
            await bus.close()


class NatsWorld:
    name = "nats"

    def __init__(self, folder: Path) -> None:
        self.fatal: asyncio.Queue[Exception] = asyncio.Queue()
        users = tuple(User(name=name, password=PASSWORD, grants=ANYTHING) for name in IDENTITIES)
        self.account = Account(name="TEST", users=users, jetstream=True)
        self.server = Server(folder, [self.account])
        self._buses: list[NatsBus] = []
        self._has_fact_stream = False
        self._logs = 0
        self._readers = itertools.cycle(READERS)

    async def start(self) -> None:
        await self.server.start()
        await self.server.wait_healthy("tester")

    async def restart(self) -> None:
        """Kill the server with SIGKILL and start it again on the same store and port."""
        await self.server.kill()
        await self.server.start()

    async def bus(self, identity: str = "a") -> NatsBus:
        return await self.bus_at(self.server.url, identity)

    def options(self, url: str, identity: str) -> LinkOptions:
        """Return how an identity logs in to a server at `url`."""
        return LinkOptions(servers=(url,), identity=identity, password=PASSWORD)

    async def bus_at(self, url: str, identity: str = "a") -> NatsBus:
        bus = await NatsBus.connect(self.options(url, identity), self.fatal.put_nowait)
        self._buses.append(bus)
        return bus

    async def api(self, verb: str, body: Any = None) -> None:
        """Have JetStream do something the adapters never do."""
        tester = await self.bus("tester")
        answer = await ask(tester.link, verb, body, Answer)
        assert answer.error is None, answer.error
        await tester.close()

    async def add_stream(self, name: str, subjects: Sequence[str], message_max: int = KIB) -> None:
        plan = StreamPlan(
            name=name,
            subjects=tuple(subjects),
            message_max=message_max,
            bytes_max=64 * 1024 * KIB,
            duplicates=seconds(120),
            deny_delete=name != "FACTS",
        )
        await self.api(f"STREAM.CREATE.{name}", plan.config(replicas=1))

    async def drop_stream(self, name: str) -> None:
        await self.api(f"STREAM.DELETE.{name}")

    async def fact_log(self, facts: Any = Placed | Freed) -> NatsFactLog:
        return await self.fact_log_on(await self.reader(), facts)

    async def reader(self) -> NatsBus:
        """Return a connection of an identity of its own: readers of one would take one another's
        consumer."""
        return await self.bus(next(self._readers))

    async def intrude(self, payload: bytes, key: str = "") -> None:
        intruder = await self.bus("b")
        await intruder.publish(FACT_SUBJECT, payload, key or f"intruder-{payload!r}", {})
        await intruder.close()

    async def take_out(self, sequence: int) -> None:
        await self.api("STREAM.MSG.DELETE.FACTS", {"seq": sequence})

    async def stored(self, sequence: int) -> bytes:
        bus = await self.bus("b")
        asked = {"seq": sequence}
        found = await ask(bus.link, "STREAM.MSG.GET.FACTS", asked, StoredMessage)
        await bus.close()
        return found.payload

    async def fact_log_of(self, identity: str) -> NatsFactLog:
        return await self.fact_log_on(await self.bus(identity))

    async def fact_log_on(
        self, bus: NatsBus, facts: Any = Placed | Freed, end: Path | None = None, **fields: Any
    ) -> NatsFactLog:
        """Return a log whose host remembers nothing of it, or what is in `end`."""
        if not self._has_fact_stream:
            await self.add_stream("FACTS", [FACT_SUBJECT], 600 * KIB)
            self._has_fact_stream = True
        self._logs += 1
        return NatsFactLog(
            bus,
            stream="FACTS",
            subject=FACT_SUBJECT,
            service="tester",
            facts=facts,
            end=end or self.server.folder / f"end-{self._logs}",
            **fields,
        )

    async def close(self) -> None:
        for bus in self._buses:
            await bus.close()
        await self.server.kill()


def every_account(passwords: dict[str, str]) -> tuple[Account, ...]:
    """Return the accounts of a `RealCluster`, those of people among them."""
    people = (person_account(vc, person, f"{PASSWORD} {person}") for vc, person in PEOPLE)
    return (*accounts(passwords, NODES, VCS), *people)


class RealCluster:
    """A server with the real accounts and streams, or with other accounts of the same users."""

    def __init__(
        self,
        folder: Path,
        others: Accounts = tuple,
        inside: Passwords = dict,
        tls: TlsFiles | None = None,
    ) -> None:
        self.passwords = new_passwords(NODES, VCS)
        self.accounts = others(every_account(inside(self.passwords)))
        for account in self.accounts:
            for user in account.users:
                self.passwords.setdefault(user.name, user.password)
        self.server = Server(folder / "nats", self.accounts, tls=tls)
        self.marker = folder / "streams.json"
        self.fatal: list[Exception] = []
        self._buses: list[NatsBus] = []

    async def start(self, plans: tuple[StreamPlan, ...] = STREAM_PLANS) -> None:
        await self.server.start()
        await self.server.wait_healthy(BOOTSTRAP)
        await bootstrap_streams(await self.bus(BOOTSTRAP), self.marker, plans=plans)

    async def bus(self, identity: str) -> NatsBus:
        options = LinkOptions(
            servers=(self.server.url,),
            identity=identity,
            password=self.passwords[identity],
            tls=self.server.tls,
        )
        bus = await NatsBus.connect(options, self.fatal.append)
        self._buses.append(bus)
        return bus

    async def close(self) -> None:
        for bus in self._buses:
            await bus.close()
        await self.server.stop()


class Proxy:
    """A TCP connection in between that a test can make deaf, frozen or broken."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._pipes: list[asyncio.Task[None]] = []
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.swallowing = False
        self.swallowed = asyncio.Event()

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        self._writers.append(far_writer)
        self._pipes += [
            asyncio.create_task(self._pipe(reader, far_writer, answers=False)),
            asyncio.create_task(self._pipe(far_reader, writer, answers=True)),
        ]

    async def _pipe(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        try:
            while data := await reader.read(65536):
                await self._flowing.wait()
                if answers and self.swallowing:
                    self.swallowed.set()
                    continue
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    def swallow(self) -> None:
        """Lose what the server says from here on."""
        self.swallowed.clear()
        self.swallowing = True

    def cut(self) -> None:
        """Break every connection; later ones work."""
        self.swallowing = False
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def freeze(self) -> None:
        """Let nothing through, in either direction, without breaking anything."""
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    def say(self, words: bytes) -> None:
        """Speak to the clients as if the server did."""
        for writer in self._writers[::2]:
            writer.write(words)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.thaw()
        self.cut()
        for pipe in self._pipes:
            pipe.cancel()
        if self._pipes:
            await asyncio.wait(self._pipes)


async def eventually(condition: Callable[[], bool]) -> None:
    """Return once `condition()` holds; for states that nobody announces."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110
            # tidy: allow sleep because what is waited for has no event
            await asyncio.sleep(0.005)


async def publish_all(world: World, payloads: list[bytes], subject: str = "job.a") -> None:
    bus = await world.bus("b")
    for payload in payloads:
        await bus.publish(subject, payload, f"key-{payload.decode()}", {})


def numbers(count: int, first: int = 1) -> list[bytes]:
    return [str(number).encode() for number in range(first, first + count)]
