"""A message on which `decide` raises ends two processes and no third one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from skep.machines.admission import AdmissionMachine
from skep.machines.base import Effect
from skep.units import Instant, after
from skep.wire import subjects
from skep.wire.admin import SetVcs
from skep.wire.codec import CancelRequest, Submission, encode, read
from skep.wire.facts import AdmissionFact
from skep.wire.inputs import InputNotes
from skep_lab.live_log.decide_again import Again, Log
from skep_services import undecided
from skep_services.adapters.memory import MemoryFactLog
from skep_services.shell import Item
from skep_services.undecided import ATTEMPTS_MAX, QUIET, Undecided, UndecidedError
from tests.kit import spec, vcs
from tests.shell.test_shell import DEADLINE_S, Counter, Place, Seen, running

POISON = 2


class Sick(Counter):
    """Changes its state by half and then raises, on the second message of SUBMIT."""

    def decide(self, event: Any, now: Instant) -> list[Effect]:
        if isinstance(event, Submission) and event.job == f"j{POISON}":
            self.jobs.append("half")
            raise ValueError("a bug")
        if event == "poison":
            raise ValueError("a bug")
        return super().decide(event, now)


async def dies(place: Place, path: Path) -> tuple[Counter, str]:
    """Run a process until it ends; return its machine and its last words."""
    machine = Sick()
    shell = place.shell(machine, Seen(), failures=Undecided(path))
    with pytest.raises(UndecidedError) as ended:
        async with asyncio.timeout(DEADLINE_S):
            await shell.run()
    return machine, str(ended.value)


@pytest.mark.asyncio
async def test_a_message_that_ends_two_processes_is_passed_over(tmp_path: Path) -> None:
    place, path = Place(), tmp_path / "undecided"
    for number in range(1, 4):
        await place.submit(number)
    _, text = await dies(place, path)
    assert text == "attempt 1 at SUBMIT/2/0: ValueError: a bug"
    _, text = await dies(place, path)
    assert text == "attempt 2 at SUBMIT/2/0: ValueError: a bug"

    machine, seen = Sick(), Seen()
    shell = place.shell(machine, seen, failures=Undecided(path), notes=InputNotes())
    async with running(shell):
        await seen.until(lambda: "j3" in machine.jobs)
        assert machine.jobs == ["j1", "j3"], "what was changed by half is gone"
        assert shell.passed_over == 1
        assert shell.passed_latest == "Submission SUBMIT/2/0: ValueError: a bug"
        (report,) = seen.reports
        assert "passed over" in report
        assert "SUBMIT/2/0" in report
        assert shell.positions == {subjects.SUBMIT: 3}

    again, seen = Sick(), Seen()
    async with running(place.shell(again, seen)):  # On another host, which has no such file.
        assert again.jobs == ["j1", "j3"]
        assert not seen.reports, "it is behind the position that the log has"


@pytest.mark.asyncio
async def test_a_message_passed_over_last_is_noted_without_facts(tmp_path: Path) -> None:
    place, path = Place(), tmp_path / "undecided"
    for number in range(1, POISON + 1):
        await place.submit(number)
    for _ in range(ATTEMPTS_MAX):
        await dies(place, path)
    machine = Sick()
    shell = place.shell(machine, Seen(), failures=Undecided(path), notes=InputNotes())
    async with running(shell):
        async with asyncio.timeout(DEADLINE_S):
            while not shell.passed_over:  # noqa: ASYNC110
                await asyncio.sleep(0)  # tidy: allow sleep because the loop has to turn
        await shell.put("more")
    records = [record async for record in place.log().replay()]
    assert records[-1].positions == {subjects.SUBMIT: POISON}


@pytest.mark.asyncio
async def test_a_sender_whose_messages_end_processes_is_not_heard_for_a_while(
    tmp_path: Path,
) -> None:
    place, path = Place(), tmp_path / "undecided"

    async def sick_process() -> None:
        shell = place.shell(Sick(), Seen(), failures=Undecided(path))
        running_ = asyncio.ensure_future(shell.run())
        await asyncio.wait_for(shell.ready.wait(), DEADLINE_S)
        await shell.hear("poison")
        with pytest.raises(UndecidedError):
            await asyncio.wait_for(running_, DEADLINE_S)

    for _ in range(ATTEMPTS_MAX):
        await sick_process()
    machine, seen = Sick(), Seen()
    shell = place.shell(machine, seen, failures=Undecided(path))
    async with running(shell):
        await shell.hear("poison")
        await place.submit(1)
        await seen.until(lambda: machine.jobs == ["j1"])
        assert shell.passed_over == 1
    place.clock.advance(QUIET)
    place.clock.advance(QUIET)
    await sick_process()  # It is tried once more, and not heard again for as long.
    assert Undecided(path).passes("str ", place.clock.now()) is not None


@pytest.mark.asyncio
async def test_what_comes_from_inside_is_never_passed_over(tmp_path: Path) -> None:
    place, path = Place(), tmp_path / "undecided"
    for _ in range(ATTEMPTS_MAX + 1):
        shell = place.shell(Sick(), Seen(), failures=Undecided(path))
        running_ = asyncio.ensure_future(shell.run())
        await asyncio.wait_for(shell.ready.wait(), DEADLINE_S)
        await shell.put("poison")
        with pytest.raises(ValueError, match="a bug"):
            await asyncio.wait_for(running_, DEADLINE_S)
    assert not path.exists()


class Bold(Counter):
    """Asks for facts that no record holds, on every submission."""

    def __init__(self) -> None:
        super().__init__()
        self.pad = "x" * 600_000


@pytest.mark.asyncio
async def test_a_message_that_leads_to_too_much_is_passed_over(tmp_path: Path) -> None:
    place, path = Place(), tmp_path / "undecided"
    await place.submit(1)
    for _ in range(ATTEMPTS_MAX):
        shell = place.shell(Bold(), Seen(), failures=Undecided(path))
        with pytest.raises(UndecidedError, match="no record holds them"):
            await asyncio.wait_for(shell.run(), DEADLINE_S)
    machine, seen = Bold(), Seen()
    shell = place.shell(machine, seen, failures=Undecided(path))
    async with running(shell):
        await place.client.publish(subjects.cancel("nlp"), b"{}", "c", {})
        await seen.until(lambda: any(isinstance(each, CancelRequest) for each in seen.events))
    assert machine.jobs == []


class SickAdmission(AdmissionMachine):
    """Cannot decide on the second submission."""

    def decide(self, event: Any, now: Instant) -> list[Effect]:
        if isinstance(event, Submission) and event.job == "j3":
            raise AssertionError("a bug")
        return super().decide(event, now)


@pytest.mark.asyncio
async def test_a_message_passed_over_is_passed_over_again(tmp_path: Path) -> None:
    """`skep replay` with a program that is mended decides as the live one did: without it."""
    place, path = Place(), tmp_path / "undecided"
    place.broker.add_stream(subjects.ADMIN, subjects.STREAMS[subjects.ADMIN])

    def log() -> MemoryFactLog:
        return MemoryFactLog(place.store, AdmissionFact)

    raw = encode(spec())
    for number in range(1, 5):
        await place.client.publish(subjects.submit("nlp"), raw, f"k{number}", {})
    machine: Any
    for _ in range(ATTEMPTS_MAX):
        machine = SickAdmission()
        machine.decide(SetVcs(vcs=vcs(nlp=4)), place.clock.now())
        shell = place.shell(machine, Seen(), log=log(), failures=Undecided(path))
        with pytest.raises(UndecidedError):
            await asyncio.wait_for(shell.run(), DEADLINE_S)
    machine, seen = SickAdmission(), Seen()
    shell = place.shell(machine, seen, log=log(), failures=Undecided(path), notes=InputNotes())
    async with running(shell):
        await seen.until(lambda: machine.last_sequence == 4)
    records = [record async for record in log().replay()]
    stream = place.broker.stream(subjects.SUBMIT).messages
    messages = {
        subjects.SUBMIT: {
            each.sequence: read(each.subject, each.payload, each.headers, each.sequence, each.at)
            for each in stream
        }
    }
    begun = [at for at, record in enumerate(records) if record.epoch == records[-1].epoch]
    found = Again(AdmissionMachine, Log(records[begun[0] :], messages)).run()
    assert found.given == {"PassedOver": 1}
    assert (found.differences, found.equal) == ([], 3)


# --- the file -----------------------------------------------------------------------------------


def test_failures_outlive_the_process_and_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undecided, "KEPT_MAX", 10)
    path, now = tmp_path / "undecided", Instant(10)
    failures = Undecided(path)
    for number in range(15):
        failures.failed(f"SUBMIT/{number}/0", "event", ValueError("x" * 10_000), now)
    again = Undecided(path)
    assert len(again.failures) == 10
    assert "SUBMIT/4/0" not in again.failures
    assert again.passes("SUBMIT/5/0", now) is None
    again.failed("SUBMIT/5/0", "event", ValueError("x"), now)
    assert Undecided(path).passes("SUBMIT/5/0", after(now, QUIET)) is not None


@pytest.mark.parametrize("data", [b"", b"[", b"[]", b"\xff", b'{"a":{}}'])
def test_a_damaged_file_says_nothing(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "undecided"
    path.write_bytes(data)
    assert Undecided(path).failures == {}


def test_a_file_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    failures = Undecided(tmp_path / "nowhere" / "undecided")
    assert failures.failed("SUBMIT/1/0", "event", ValueError("x"), Instant(1)).attempts == 1


def keys(items: Sequence[Item]) -> list[str]:
    return [item.key for item in items]


def test_what_is_known_by_what() -> None:
    event = SetVcs(vcs={})
    assert keys([Item(event), Item(event, "ADMIN", 7), Item(event, outside=True)]) == [
        "",
        "ADMIN/7/0",
        "SetVcs ",
    ]
