"""The access service in its shell: requests by the bus, a signer that fails, a crash between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skep.machines.access import AccessMachine
from skep.wire import codec, subjects
from skep.wire.access import (
    AccessAnswer,
    AccessFact,
    Actor,
    AddPerson,
    AskAccess,
    MakeJoinToken,
    RemoveNode,
    Wish,
)
from skep.wire.admin import SetVcs
from skep.wire.reasons import Reason
from skep_services.access.__main__ import FOLLOW, LISTEN, signer_of
from skep_services.access.signer import MemorySigner, NoSigner, Signer, SignerCalls
from skep_services.adapters.memory import (
    ManualClock,
    MemoryBroker,
    MemoryBus,
    MemoryFactLog,
    MemoryLogStore,
)
from skep_services.links import ForeignSeen
from skep_services.service import ConfigurationError, Settings
from skep_services.shell import Shell
from skep_services.undecided import Undecided
from tests.access_kit import HASH, OPERATOR, join, key, token
from tests.adapters.worlds import eventually
from tests.kit import at, vcs

pytestmark = pytest.mark.asyncio


class Quiet:
    """An observer that keeps nothing."""

    def decided(self, *_: Any) -> None: ...

    def report(self, what: str, **about: Any) -> None:
        raise AssertionError((what, about))

    async def flush(self) -> None: ...


class Place:
    """What outlives a process of the service: the bus, the log, the clock, and the signer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock(at(0))
        self.broker = MemoryBroker(self.clock)
        for stream, patterns in subjects.STREAMS.items():
            self.broker.add_stream(stream, patterns)
        self.store = MemoryLogStore()
        self.signer = MemorySigner()
        self.asker = MemoryBus(self.broker, "gateway", _raise)
        self.broker.store(
            subjects.admin("vcs"), codec.encode(SetVcs(vcs=vcs(nlp=4))), {subjects.KEY_HEADER: "1"}
        )

    @asynccontextmanager
    async def service(self) -> AsyncIterator[AccessMachine]:
        """Run a process of the service until the end of the block."""
        bus, calls = MemoryBus(self.broker, "access", _raise), SignerCalls(self.signer)
        machine = AccessMachine()
        shell: Shell[Any, Any] = Shell(
            machine,
            bus=bus,
            clock=self.clock,
            observer=Quiet(),
            owner="one",
            failures=Undecided(self.folder / "undecided"),
            foreign=ForeignSeen(print),
            facts=MemoryFactLog(self.store, AccessFact),
            calls=calls,
            follow=FOLLOW,
            listen=LISTEN,
        )
        running = asyncio.create_task(shell.run())
        await shell.ready.wait()
        yield machine
        running.cancel()
        await asyncio.wait((running,))
        await calls.close()
        await bus.close()

    async def ask(self, wish: Wish, actor: Actor = OPERATOR) -> AccessAnswer:
        body = codec.encode(AskAccess(actor=actor, wish=wish))
        told = await self.asker.request(subjects.ACCESS_ASKED, body, {}, 60.0)
        assert told is not None
        return msgspec.json.decode(told.payload, type=AccessAnswer)


def _raise(error: Exception) -> None:
    raise error


def invite() -> Wish:
    return MakeJoinToken(token=token(1), hash=HASH, expires_at=at(3600))


async def test_a_request_is_answered_once_it_is_stored(tmp_path: Path) -> None:
    place = Place(tmp_path)
    async with place.service() as machine:
        assert (await place.ask(AddPerson(person="ada"))).accepted
        assert "ada" in machine.people.people
        assert len(place.store.records) >= 2
    async with place.service() as machine:
        assert "ada" in machine.people.people
        assert (await place.ask(AddPerson(person="ada"))).reason is Reason.REPEATED


async def test_a_node_that_was_taken_is_signed_after_a_crash(tmp_path: Path) -> None:
    place = Place(tmp_path)
    async with place.service():
        await place.ask(invite())
        place.signer.fails = "the disk is full"
        refused = await place.ask(join(1, "n1", token(1)))
        assert (refused.reason, "the disk is full" in refused.text) == (Reason.NOT_SIGNED, True)
    place.signer.fails = ""
    async with place.service() as machine:
        await eventually(lambda: bool(place.signer.signed))
        answer = await place.ask(join(1, "n1", token(1)))
        assert answer.credentials is not None
        assert answer.credentials.jwt == f"jwt of {key(1)}"
        # It is removed, and the bus cannot be told before this process ends.
        place.signer.fails = "no bus"
        assert (await place.ask(RemoveNode(node="n1"))).accepted
        assert machine.people.keys[key(1)].dropped
    place.signer.fails = ""
    async with place.service() as machine:
        await eventually(lambda: key(1) in machine.people.revoked)
        assert list(place.signer.revoked) == [key(1)]


async def test_what_can_never_be_signed_says_so(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.signer.refuses = "the request has a key of 512 bits"
    async with place.service() as machine:
        await place.ask(invite())
        answer = await place.ask(join(1, "n1", token(1)))
        assert answer.reason is Reason.NOT_SIGNED
        await eventually(lambda: not machine.people.keys)


async def test_requests_that_cannot_be_read_change_nothing(tmp_path: Path) -> None:
    place = Place(tmp_path)
    async with place.service() as machine:
        for body in (b"", b"{}", b"\xff", b"[" * 100_000, b'{"type":"ask-access"}'):
            await place.asker.send(subjects.ACCESS_ASKED, body, {})
        assert (await place.ask(AddPerson(person="ada"))).accepted
        assert list(machine.people.people) == ["ada"]


async def test_the_signer_is_named_by_the_environment(tmp_path: Path) -> None:
    def chosen(name: str) -> Settings:
        return Settings(
            service="access",
            nats_url="nats://127.0.0.1:1",
            identity="access",
            password="x",
            state=tmp_path,
            environment={"SKEP_SIGNER": name} if name else {},
        )

    assert isinstance(signer_of(chosen("")), NoSigner)
    found: Signer = signer_of(chosen(f"{__name__}:signer"))
    assert isinstance(found, MemorySigner)
    for wrong in ("skep.nothing:x", f"{__name__}:nothing", "x"):
        with pytest.raises(ConfigurationError, match="SKEP_SIGNER"):
            signer_of(chosen(wrong))


def signer(_: Settings) -> Signer:
    return MemorySigner()
