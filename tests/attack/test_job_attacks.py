"""What a hostile job tries on its node, and how each attempt is refused.

The victim is a process of another run on the same node, and of the same user. The attacker is this
process, which is the main process of a run of its own, or a process that it starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from skep.machines.agent import RankSaid, RankStats
from skep.units import Instant, seconds
from skep.wire import talk
from skep.wire.node import MemberExited
from skep_services.adapters.memory import ManualClock
from skep_services.agent import jobs as module
from skep_services.agent import proc
from skep_services.agent.jobs import JobSocket
from skep_services.agent.rank_access import KEY_FILE, Peer, RankAccess, node_key
from skep_services.ports import RunStarted
from tests.live_node import LiveNode
from tests.node_runtimes import Node, process_runtime

DEADLINE_S = 20.0
VICTIM: dict[str, Any] = {"job": "j14405", "attempt": 1, "rank": 0}
MINE: dict[str, Any] = {"job": "j666", "attempt": 2, "rank": 0}
VICTIMS_RUN, MY_RUN = "j14405.1.0", "j666.2.0"

# Connects, says the bytes of its second argument, and prints the first answer, if any.
SPEAKER = """
import os, socket, struct, sys
one = socket.socket(socket.AF_UNIX)
one.connect(sys.argv[1])
one.sendall(bytes.fromhex(sys.argv[2]))
one.settimeout(float(sys.argv[3]))
try:
    (length,) = struct.unpack(">I", one.recv(4, socket.MSG_WAITALL))
    print(one.recv(length, socket.MSG_WAITALL).decode(), flush=True)
except (TimeoutError, struct.error) as error:
    print(type(error).__name__, flush=True)
"""
# Does the same with nothing left above it but what reaps orphans, and in a session of its own.
DETACHED = "import os\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n"
# Does the same further below the main process than is looked.
DEEP = "import os\nfor _ in range(140):\n    if os.fork(): os.wait(); os._exit(0)\n"


def frame(**message: Any) -> bytes:
    body = json.dumps(message).encode()
    return struct.pack(">I", len(body)) + body


def speaker(path: Path, said: bytes, *, before: str = "", wait_s: float = DEADLINE_S) -> list[str]:
    """Return the command of a process that does `before`, then says something on a socket."""
    return [sys.executable, "-I", "-S", "-c", before + SPEAKER, str(path), said.hex(), str(wait_s)]


class Attacker:
    """One connection of this process."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def say(self, kind: str, **fields: Any) -> None:
        self.writer.write(frame(type=kind, **{**MINE, **fields}))

    async def refused(self) -> str:
        """Return why it is hung up on."""
        async with asyncio.timeout(DEADLINE_S):
            (length,) = struct.unpack(">I", await self.reader.readexactly(4))
            told = json.loads(await self.reader.readexactly(length))
            assert told["type"] == "not-heard", told
            with contextlib.suppress(ConnectionResetError):  # Not all that it said was read.
                assert await self.reader.read() == b""
        return str(told["why"])


class Clock(ManualClock):
    """Says when something waits for it to move on."""

    def __init__(self) -> None:
        super().__init__()
        self.asleep = asyncio.Event()

    async def sleep_until(self, instant: Instant) -> None:
        if instant > self.now():
            self.asleep.set()
        await super().sleep_until(instant)


class Target:
    """A node's socket, the victim's process, and what the agent's machine hears."""

    def __init__(self, folder: Path, victim: subprocess.Popen[bytes]) -> None:
        self.path = folder / "jobs.sock"
        self.victim = victim
        self.events: asyncio.Queue[RankSaid | RankStats] = asyncio.Queue()
        self.clock = Clock()
        self.access = RankAccess(node_key(folder))
        self.access.listed([started(VICTIMS_RUN, victim.pid), started(MY_RUN, os.getpid())])
        self.socket = JobSocket(folder, self.clock, self.events.put, self.access)
        self.attackers: list[Attacker] = []

    def secret(self, run: str = MY_RUN) -> str:
        return self.access.secret(run)

    async def connect(self, first: bytes = b"") -> Attacker:
        self.attackers.append(Attacker(*await asyncio.open_unix_connection(str(self.path))))
        self.attackers[-1].writer.write(first)
        return self.attackers[-1]

    def hello(self, **more: Any) -> bytes:
        return frame(**{"type": "hello", **MINE, "pid": 1, "token": self.secret(), **more})

    async def greeted(self, **more: Any) -> Attacker:
        """Return a connection on which the attacker speaks for its own rank, as it may."""
        one = await self.connect(self.hello(**more))
        assert isinstance((await self.said()).message, talk.Hello)
        return one

    async def said(self) -> Any:
        return await asyncio.wait_for(self.events.get(), DEADLINE_S)

    async def run(self, command: list[str]) -> str:
        """Return what a process prints."""
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        printed = await asyncio.wait_for(process.stdout.read(), DEADLINE_S)
        await process.wait()
        return printed.decode()


def started(run: str, pid: int) -> RunStarted:
    ticks = proc.start_ticks(pid)
    assert ticks is not None
    return RunStarted(run, pid, ticks, Instant(0))


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that starts what its standard input says, as a training script would."""
    script = "import subprocess, sys\nfor line in sys.stdin: subprocess.run(eval(line))"
    command = [sys.executable, "-I", "-S", "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
        yield process
        process.kill()


@pytest_asyncio.fixture
async def target(
    tmp_path: Path, victim: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Target]:
    monkeypatch.setattr(module, "REFUSED_HELD_S", 0.0)
    one = Target(tmp_path, victim)
    await one.socket.open()
    yield one
    for attacker in one.attackers:
        attacker.writer.close()
    await one.socket.close()


# --- speaking for another rank --------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "said, why",
    [
        ({**VICTIM, "token": VICTIMS_RUN}, "is not the secret of run j14405.1.0"),
        ({**VICTIM, "token": ""}, "is not the secret of run j14405.1.0"),
        ({**VICTIM}, "is not the secret of run j14405.1.0"),
        ({"attempt": 1}, "is not the secret of run j666.1.0"),
        ({"rank": 1}, "is not the secret of run j666.2.1"),
        ({"job": "j66", "attempt": 6}, "is not the secret of run j66.6.0"),
        ({"token": "\u00e9" * 64}, "is not the secret of run j666.2.0"),
        ({"token": "x" * 1000}, "length <= 256"),
    ],
    ids=["name", "none", "own secret", "earlier attempt", "other rank", "cut", "letters", "long"],
)
async def test_a_hello_with_another_secret(target: Target, said: dict[str, Any], why: str) -> None:
    attacker = await target.connect(target.hello(**said))
    assert why in await attacker.refused()
    assert target.events.empty()
    assert not target.socket.tell(talk.SuspendRank(**VICTIM, order=1))


@pytest.mark.asyncio
async def test_a_stolen_secret(target: Target) -> None:
    stolen = target.hello(**VICTIM, token=target.secret(VICTIMS_RUN))
    attacker = await target.connect(stolen)
    assert f"process {os.getpid()} is not of run {VICTIMS_RUN}" in await attacker.refused()
    assert target.events.empty()


@pytest.mark.asyncio
@pytest.mark.parametrize("before", [DETACHED, DEEP], ids=["detached", "deep"])
async def test_a_stolen_secret_in_a_process_of_no_run(target: Target, before: str) -> None:
    stolen = target.hello(**VICTIM, token=target.secret(VICTIMS_RUN))
    printed = await target.run(speaker(target.path, stolen, before=before))
    assert f"is not of run {VICTIMS_RUN}" in printed
    assert target.events.empty()


@pytest.mark.asyncio
async def test_a_stolen_secret_with_the_victims_marks(target: Target) -> None:
    """The environment and the number that the runner goes by can be forged; neither helps."""
    stolen = target.hello(**VICTIM, token=target.secret(VICTIMS_RUN))
    mark = proc.random_mark()
    resource.prlimit(target.victim.pid, resource.RLIMIT_RTTIME, (mark, resource.RLIM_INFINITY))
    with proc.marked(mark):
        process = await asyncio.create_subprocess_exec(
            *speaker(target.path, stolen),
            env={"SKEP_RUN": VICTIMS_RUN, "SKEP_RANK_SECRET": target.secret(VICTIMS_RUN)},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
    printed, _ = await asyncio.wait_for(process.communicate(), DEADLINE_S)
    assert f"is not of run {VICTIMS_RUN}" in printed.decode()
    assert target.events.empty()


@pytest.mark.asyncio
async def test_the_victim_itself_is_heard(target: Target) -> None:
    """What the victim starts speaks for it, in a session of its own too, as launchers start it."""
    said = target.hello(**VICTIM, token=target.secret(VICTIMS_RUN))
    command = speaker(target.path, said, before="import os; os.setsid()\n")
    assert target.victim.stdin is not None
    target.victim.stdin.write(f"{command!r}\n".encode())
    target.victim.stdin.flush()
    assert (await target.said()).message == talk.Hello(**VICTIM, pid=1)


@pytest.mark.asyncio
async def test_a_process_that_takes_a_dead_victims_number(target: Target) -> None:
    old = RunStarted(VICTIMS_RUN, os.getpid(), 1, Instant(0))
    target.access.began(old)
    attacker = await target.connect(target.hello(**VICTIM, token=target.secret(VICTIMS_RUN)))
    assert f"is not of run {VICTIMS_RUN}" in await attacker.refused()


@pytest.mark.asyncio
async def test_a_process_that_has_no_number_here(target: Target) -> None:
    """Only a run whose main process has none either is known by its secret alone."""
    hidden, secret = Peer(0, os.geteuid()), target.secret(VICTIMS_RUN)
    assert "process 0 is not of run" in target.access.refusal(hidden, VICTIMS_RUN, secret)
    target.access.began(RunStarted(VICTIMS_RUN, 2**22 + 1, 7, Instant(0)))
    assert target.access.refusal(hidden, VICTIMS_RUN, secret) == ""
    assert "is not the secret" in target.access.refusal(hidden, VICTIMS_RUN, target.secret())


@pytest.mark.asyncio
async def test_a_process_of_another_user(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "peer_of", lambda connection: Peer(os.getpid(), 54_321))
    attacker = await target.connect(target.hello())
    assert "is of user 54321, not the agent's" in await attacker.refused()
    assert target.events.empty()


@pytest.mark.asyncio
async def test_a_process_of_another_account_than_its_run(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a launcher each run has an account, and a stolen secret is of no use to another."""
    target.access.any_account = True
    mine = started(MY_RUN, os.getpid())
    target.access.began(msgspec.structs.replace(mine, uid=5001))
    victims = started(VICTIMS_RUN, target.victim.pid)
    target.access.began(msgspec.structs.replace(victims, uid=5002))
    monkeypatch.setattr(module, "peer_of", lambda connection: Peer(os.getpid(), 5001))
    stolen = target.hello(**VICTIM, token=target.secret(VICTIMS_RUN))
    why = await (await target.connect(stolen)).refused()
    assert why == f"process {os.getpid()} is of user 5001, and run {VICTIMS_RUN} of user 5002"
    await target.greeted()
    monkeypatch.setattr(module, "peer_of", lambda connection: Peer(os.getpid(), 5003))
    why = await (await target.connect(target.hello())).refused()
    assert why == f"process {os.getpid()} is of user 5003, and no run here is"


@pytest.mark.asyncio
async def test_strangers_of_one_account_leave_places_to_others(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STRANGERS_MAX", 4)
    target.access.any_account = True
    target.access.began(msgspec.structs.replace(started(VICTIMS_RUN, target.victim.pid), uid=5001))
    target.access.gone(MY_RUN)
    target.access.starting(MY_RUN)
    monkeypatch.setattr(module, "peer_of", lambda connection: Peer(2**22 + 1, 5001))
    silent = [await target.connect() for _ in range(6)]
    assert "have 4 connections already" in await silent[-1].refused()
    monkeypatch.setattr(module, "peer_of", lambda connection: Peer(os.getpid(), os.geteuid()))
    target.access.began(started(MY_RUN, os.getpid()))
    await target.greeted()


@pytest.mark.asyncio
async def test_words_for_another_rank_after_an_honest_hello(target: Target) -> None:
    attacker = await target.greeted()
    attacker.say("released", **VICTIM, order=9, moved=1)
    assert "spoke for rank 0 of j14405" in await attacker.refused()
    assert target.events.empty()


@pytest.mark.asyncio
async def test_a_second_hello(target: Target) -> None:
    attacker = await target.greeted()
    attacker.writer.write(target.hello(**VICTIM))
    assert "spoke for rank 0 of j14405" in await attacker.refused()


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["stats", "can", "suspended", "loaded", "bye"])
async def test_words_without_a_hello(target: Target, kind: str) -> None:
    more = {"order": 1, "steps": 1, "step_ns": 1, "monotonic_ns": 1, "last_step_monotonic_ns": 1}
    attacker = await target.connect(frame(type=kind, **VICTIM, **more))
    assert "did not say hello first" in await attacker.refused()
    assert target.events.empty()


# --- messages that no job sends -------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"",
        b"null",
        b"[]",
        b'"stats"',
        b'{"type": 7}',
        b"\xff\xfe",
        b"[" * 60_000,
        b'{"type": "suspended", "order": 1e400}',
        b'{"type": "hello", "type": "hello"}',
    ],
)
async def test_what_is_no_message(target: Target, body: bytes) -> None:
    attacker = await target.greeted()
    attacker.writer.write(struct.pack(">I", len(body)) + body)
    assert "cannot be read" in await attacker.refused()
    assert target.events.empty()


@pytest.mark.asyncio
@pytest.mark.parametrize("length", [64 * 1024 + 1, 2**31, 2**32 - 1])
async def test_a_message_too_large(target: Target, length: int) -> None:
    attacker = await target.greeted()
    attacker.writer.write(struct.pack(">I", length))
    assert f"a message of {length} bytes: at most 65536" in await attacker.refused()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "kind, fields",
    [
        ("bye", {"steps": -1}),
        ("bye", {"steps": 10**30}),
        ("bye", {"steps": 2**53 + 1}),
        ("bye", {"steps": 1.5}),
        ("bye", {"steps": True}),
        ("suspended", {"order": -1}),
        ("suspended", {"order": 2**64}),
        ("suspended", {"order": 1, "step": 10**19}),
        ("released", {"order": 1, "moved": 10**30}),
        ("released", {"order": 1, "residue": -2}),
        ("resumed", {"order": 1, "pause_ns": 2**63}),
        ("ready", {"port": 70_000}),
        ("ready", {"port": -1}),
        ("shared", {"order": 1, "share": 2.0}),
        ("shared", {"order": 1, "share": -0.5}),
        ("rescaled", {"order": 1, "generation": 2**70}),
        ("stats", {"steps": 1, "step_ns": -1, "monotonic_ns": 1, "last_step_monotonic_ns": 1}),
        ("stats", {"steps": 1, "step_ns": 1, "monotonic_ns": 2**63, "last_step_monotonic_ns": 1}),
        ("can", {"can": ["suspend"] * 65}),
        ("can", {"can": ["x" * 257]}),
        ("can", {"tier": "x" * 257}),
        ("failed", {"order": 2**60, "what": "suspend"}),
        ("suspended", {"order": 1, "attempt": -1}),
        ("suspended", {"order": 1, "rank": 2**31}),
        ("suspended", {"order": 1, "part": -1}),
        ("suspended", {"order": 1, "part": 2**40}),
    ],
)
async def test_impossible_numbers(target: Target, kind: str, fields: dict[str, Any]) -> None:
    attacker = await target.greeted()
    attacker.say(kind, **fields)
    assert "cannot be read" in await attacker.refused()
    assert target.events.empty()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "fields",
    [
        {"parts": 0},
        {"parts": 10**9},
        {"parts": 2, "part": 2},
        {"world": -1},
        {"pid": 2**60},
        {"job": "j" * 10_000},
    ],
)
async def test_an_impossible_hello(target: Target, fields: dict[str, Any]) -> None:
    attacker = await target.connect(target.hello(**fields))
    assert await attacker.refused()
    assert target.events.empty()


COUNTED = {"steps": 1, "step_ns": 1, "monotonic_ns": 1, "last_step_monotonic_ns": 1}
LOOKS: dict[str, Any] = {"parameters": 9, "gradient_bytes": 36, "shapes": "0123456789abcdef"}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "odd",
    [
        None,
        [],
        "x",
        {},
        {**LOOKS, "parameters": -1},
        {**LOOKS, "parameters": 2**60},
        {**LOOKS, "gradient_bytes": 1e300},
        {**LOOKS, "shapes": "../../etc/passwd"},
        {**LOOKS, "shapes": "0123456789abcdef\n"},
        {**LOOKS, "shapes": "F" * 16},
        {**LOOKS, "dtypes": ["\x1b[31mred"]},
        {**LOOKS, "dtypes": ["float32"] * 9},
        {**LOOKS, "sizes": [0] * 49},
        {**LOOKS, "sizes": [-1]},
        {**LOOKS, "torch": "2.5.1; rm -rf /"},
        {**LOOKS, "torch": "9" * 65},
        {**LOOKS, "batch": [1] * 9},
        {**LOOKS, "batch": [[[[[[[[[[1]]]]]]]]]]},
        {**LOOKS, "processes": 10**9},
    ],
)
async def test_a_hostile_fingerprint(
    target: Target, odd: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It is passed over, with one line in the log; the process is heard as before."""
    attacker = await target.greeted()
    attacker.say("fingerprint", fingerprint=odd)
    attacker.say("stats", **COUNTED)
    told = await target.said()
    if odd is None:
        told = await target.said()  # That nothing was seen may be said.
    assert (told.progress.steps, told.progress.fingerprint) == (1, None)
    lines = [each.getMessage() for each in caplog.records]
    assert len(lines) == (0 if odd is None else 1), lines
    for line in lines:
        assert "rank 0 of j666 attempt 2: a fingerprint that cannot be read: " in line
        assert line.isprintable()
        assert len(line) < 500


@pytest.mark.asyncio
async def test_a_flood_of_hostile_fingerprints(
    target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    """They are read as fast as other messages, and counted in the log, not told one by one."""
    attacker = await target.greeted()
    for _ in range(500):
        attacker.say("fingerprint", fingerprint={"parameters": "x" * 1000})
    attacker.say("stats", **COUNTED)
    assert (await target.said()).progress.steps == 1
    assert len(caplog.records) == 1


@pytest.mark.asyncio
async def test_an_impossible_timing(target: Target) -> None:
    attacker = await target.greeted()
    odd = {**dict.fromkeys(("mean_ns", "deviation_ns", "p10_ns", "p50_ns", "p90_ns"), 1)}
    attacker.say("stats", **COUNTED, timing={**odd, "samples": 10**6})
    assert "`$.timing.samples`" in await attacker.refused()
    assert target.events.empty()


@pytest.mark.asyncio
async def test_a_fingerprint_before_any_hello(target: Target) -> None:
    attacker = await target.connect(frame(type="fingerprint", **MINE, fingerprint={"x": 1}))
    assert "a fingerprint that cannot be read" in await attacker.refused()


@pytest.mark.asyncio
async def test_a_mini_batch_in_the_future(target: Target) -> None:
    attacker = await target.greeted()
    attacker.say("stats", steps=1, step_ns=1, monotonic_ns=1, last_step_monotonic_ns=2**62)
    assert (await target.said()).progress.last_step_at == target.clock.now()
    attacker.say("stats", steps=1, step_ns=1, monotonic_ns=2**62, last_step_monotonic_ns=1)
    assert (await target.said()).progress.last_step_at == 0


@pytest.mark.asyncio
async def test_too_many_numbers_and_too_long_a_text(target: Target) -> None:
    attacker = await target.greeted()
    attacker.say("metrics", step=1, values={f"n{each}": 1.0 for each in range(33)})
    attacker.say("metrics", step=1, values={"n" * 65: 1.0})
    attacker.say("error", error="x" * 60_000)
    assert (await target.said()).message.error == "x" * module.ERROR_CHARACTERS_MAX
    attacker.say("failed", order=1, what="suspend", error="y" * 60_000)
    assert (await target.said()).message.error == "y" * module.ERROR_CHARACTERS_MAX


# --- too much of everything -----------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_flood_of_messages_is_read_at_a_bounded_rate(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BURST_S", 1)
    monkeypatch.setattr(module, "MESSAGE_NS", 10**9 // 20)
    others = [await target.greeted(), await target.greeted(pid=2, parts=2, part=1)]
    for order in range(60):
        others[order % 2].say("suspended", part=order % 2, order=order)
    heard = [(await target.said()).message.order for _ in range(20)]
    await asyncio.wait_for(target.clock.asleep.wait(), DEADLINE_S)
    target.clock.asleep.clear()
    assert target.events.empty(), "twenty a second, over all connections of the rank"
    target.clock.advance(seconds(1))
    heard += [(await target.said()).message.order for _ in range(20)]
    await asyncio.wait_for(target.clock.asleep.wait(), DEADLINE_S)
    target.clock.asleep.clear()
    assert target.events.empty()
    assert len(set(heard)) == 40


@pytest.mark.asyncio
async def test_half_open_connections_by_the_hundred(target: Target) -> None:
    silent = [await target.connect() for _ in range(300)]
    assert f"run {MY_RUN} has 64 connections already" in await silent[-1].refused()
    said = target.hello(**VICTIM, token=target.secret(VICTIMS_RUN))
    assert target.victim.stdin is not None
    target.victim.stdin.write(f"{speaker(target.path, said)!r}\n".encode())
    target.victim.stdin.flush()
    assert (await target.said()).message == talk.Hello(**VICTIM, pid=1), (
        "others get in all the same"
    )


@pytest.mark.asyncio
async def test_half_open_connections_of_no_run(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STRANGERS_MAX", 8)
    target.access.gone(MY_RUN)
    silent = [await target.connect() for _ in range(20)]
    assert "processes of no known run have 8 connections" in await silent[-1].refused()
    target.access.began(started(MY_RUN, os.getpid()))
    await target.greeted()


@pytest.mark.asyncio
@pytest.mark.parametrize("first", [b"", b"\0\0", struct.pack(">I", 60_000) + b"{"])
async def test_silence_and_half_a_hello(
    target: Target, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    monkeypatch.setattr(module, "HELLO_WITHIN_S", 0.01)
    attacker = await target.connect(first)
    assert "did not say hello within" in await attacker.refused()


@pytest.mark.asyncio
async def test_refusals_do_not_fill_the_log(
    target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(40):
        await (await target.connect(target.hello(token="guess"))).refused()
    assert len(caplog.records) == 1
    target.clock.advance(seconds(module.REFUSALS_EVERY_S))
    await (await target.connect(target.hello(token="guess"))).refused()
    assert "39 more were refused" in caplog.records[-1].getMessage()


@pytest.mark.asyncio
async def test_a_refused_connection_is_held(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that guesses gets a bounded number of answers a second."""
    monkeypatch.setattr(module, "REFUSED_HELD_S", DEADLINE_S)
    monkeypatch.setattr(module, "CONNECTIONS_PER_RANK_MAX", 3)
    held = [await target.connect(target.hello(token="guess")) for _ in range(3)]
    for one in held:
        assert await asyncio.wait_for(one.reader.readexactly(4), DEADLINE_S)
    fourth = await target.connect(target.hello(token="guess"))
    assert "has 3 connections already" in await fourth.refused()


# --- the node's files and its other socket --------------------------------------------------------


@pytest.mark.asyncio
async def test_what_only_the_agents_user_may_open(target: Target) -> None:
    folder = target.path.parent
    assert stat.S_IMODE(target.path.stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / KEY_FILE).stat().st_mode) == 0o600
    assert node_key(folder) == node_key(folder), "ranks outlive their agent"
    (folder / KEY_FILE).write_bytes(b"short")
    assert len(node_key(folder)) == 32


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, process_runtime)


REQUESTS: list[dict[str, Any]] = [
    {"do": "stop", "token": "victim", "grace_s": 0.0},
    {"do": "shutdown", "grace_s": 0.0},
    {"do": "list"},
    {"do": "freeze", "token": "victim"},
    {
        "do": "start",
        "plan": {
            "token": "x",
            "argv": ["/bin/true"],
            "env": {},
            "workdir": "/",
            "log_path": "/tmp/x",
            "log_bytes_max": 4096,
            "script": "",
        },
    },
]


@pytest.mark.asyncio
async def test_a_job_asks_the_runner(node: Node) -> None:
    """The runner starts and ends runs for its agent; a job's processes are hung up on."""
    runtime = await node.open()
    await runtime.start(node.plan("victim", "sleep", "1000"))
    socket = node.state / "runner.sock"
    agents = await asyncio.create_subprocess_exec(
        *speaker(socket, frame(id=1, do="ping")), stdout=subprocess.PIPE
    )
    assert b'"id": 1' in (await agents.communicate())[0], "an agent is answered"
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(node.state.stat().st_mode) == 0o700
    tries = [(request, "") for request in REQUESTS]
    for number, (request, before) in enumerate(
        [*tries, (REQUESTS[0], DETACHED), (REQUESTS[0], DEEP)]
    ):
        asked = speaker(socket, frame(id=1, **request), before=before)
        await runtime.start(node.plan(str(number), *asked))
        await node.end_of(str(number))
        assert '"id": 1' not in node.log(str(number)), (request, before)
    alive = [run.token for run in await runtime.runs() if isinstance(run, RunStarted)]
    assert alive == ["victim"]
    assert "is no agent" in (node.state / "runner.log").read_text()
    assert isinstance(runtime, type(process_runtime(node.state)))
    await runtime.shutdown(0.0)
    await runtime.close()


@pytest.mark.asyncio
async def test_an_adopted_job_asks_the_runner(node: Node) -> None:
    """A run that outlived its runner is not below the next one, and is refused all the same."""
    runtime = await node.open()
    assert isinstance(runtime, type(process_runtime(node.state)))
    go = node.folder / "go"
    wait = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    asked = speaker(node.state / "runner.sock", frame(id=1, do="list"), before=wait)
    await runtime.start(node.plan("orphan", *asked))
    first = await runtime.ping()
    os.kill(first, signal.SIGKILL)
    assert await runtime.ping() != first
    go.touch()
    await node.end_of("orphan")
    assert '"id": 1' not in node.log("orphan")
    assert "is no agent" in (node.state / "runner.log").read_text()
    await runtime.shutdown(0.0)
    await runtime.close()


@pytest.mark.asyncio
async def test_the_agents_credentials_are_not_with_the_runner(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKEP_NATS_PASSWORD", "of the agent")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the operator")
    runtime = await node.open()
    assert isinstance(runtime, type(process_runtime(node.state)))
    names = set(proc.environ(await runtime.ping()))
    assert names <= {
        b"PATH",
        b"LANG",
        b"LC_ALL",
        b"LD_LIBRARY_PATH",
        b"TMPDIR",
        b"COVERAGE_PROCESS_START",
        b"COVERAGE_PROCESS_CONFIG",
    }
    await runtime.shutdown(0.0)
    await runtime.close()


# --- what a job is told ---------------------------------------------------------------------------

CREDENTIALS = {
    "SKEP_NATS_URL": "nats://bus",
    "SKEP_NATS_CREDS": "/secrets/node.creds",
    "SKEP_NATS_PASSWORD": "of the agent",
    "SKEP_TOKEN": "of the operator",
    "SKEP_HOME": "/operator/.skep",
    "AWS_SECRET_ACCESS_KEY": "of the operator",
    "DOCKER_HOST": "unix:///operator.sock",
    "SSH_AUTH_SOCK": "/tmp/agent",
}
TOLD = {
    # The node's, and the process's.
    "PATH",
    "HOME",
    "LANG",
    "LC_CTYPE",
    "OMP_NUM_THREADS",
    "PYTHONPATH",
    "PYTHONUNBUFFERED",
    "PYTHONHASHSEED",
    # Which rank it is, and of what.
    "SKEP_JOB",
    "SKEP_NAME",
    "SKEP_VC",
    "SKEP_GEN",
    "SKEP_RANK",
    "SKEP_WORLD",
    "SKEP_SOCK",
    "SKEP_RUN",
    "SKEP_RANK_SECRET",
    "SKEP_ADDRESS",
    "SKEP_PORT",
    "SKEP_NODE_STATE",
    "SKEP_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "SKEP_CHECKPOINTS",
    "SKEP_HOST_BYTES",
}


@pytest.mark.asyncio
async def test_a_jobs_whole_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the agent's but what is listed, and what the spec says, names of Skep's apart."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    node = LiveNode(tmp_path)
    node.inherited = {**node.inherited, **CREDENTIALS, "HOME": "/h", "LANG": "C.UTF-8"}
    await node.begin()
    try:
        shows = "import json, os; print(json.dumps(dict(os.environ)))"
        mine = {"SKEP_TOKEN": "of the user", "SKEP_API": "http://cluster", "LR": "0.1"}
        forged = dict.fromkeys(
            (
                "SKEP_RUN",
                "SKEP_RANK_SECRET",
                "SKEP_SOCK",
                "SKEP_RANK",
                "SKEP_DEVICES",
                "CUDA_VISIBLE_DEVICES",
                "SKEP_NODE_STATE",
                "SKEP_JOB",
            ),
            "forged",
        )
        argv = (sys.executable, "-I", "-c", shows)
        job = node.job("x", argv=argv, env={**mine, **forged}, distributed=False)
        await node.send(job)
        await node.event(MemberExited, lambda one: True)
        told = json.loads((node.state / "logs/j1/1/rank0.log").read_text())
    finally:
        await node.close()
    assert {name: told.pop(name) for name in mine} == mine, "`skep` can be used inside a job"
    assert set(told) - TOLD == set()
    assert "forged" not in told.values()
    assert not set(told.values()) & set(CREDENTIALS.values())
    assert told["SKEP_RUN"] == "j1.1.0"
    assert len(told["SKEP_RANK_SECRET"]) == 64
