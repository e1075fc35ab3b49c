"""Answers what a service would decide, on copies of its process: nothing is decided by it.

    question ──fork──> copy of the allocator ──fork──> one copy for each thing that is tried
                            └──────── answer, by a pipe ────────> the one that asked

A fork copies everything, also what is soft (rates, advice, views), and costs the process that
decides only its page tables: a few milliseconds, however long the copies then think. They run at a
lower priority and own no connection: what they inherited they close at once, so that the bus sees
it when the process that decides dies. They end with it, and leave by `_exit`. One question is
answered at a time, and none whose asker is gone.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from skep.machines.admission import AdmissionMachine
from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.what_if import what_if
from skep.units import KIB
from skep.wire import codec
from skep.wire.bounds import UNDECODABLE
from skep.wire.drafts import ASKED_FOR_S, Answer, Judge, Judgement, Outcome, Question
from skep.wire.parse import parse_spec
from skep.wire.spec import JobSpec
from skep_services.ports import Bus, Clock, Delivery

ANSWER_WITHIN_S = 10.0
"""A question that takes longer is given up: many times what 40 copies of a large cluster take."""
WAITING_MAX = 16
"""Questions that wait for their turn; a further one is refused: it may come again."""
NICENESS = 10
ANSWER_BYTES_MAX = 900 * KIB
"""The bus takes a mebibyte."""
PIECE = 1 << 16
FILES_MAX = 65_536
"""Descriptors above it are not looked for: a service has some tens."""

_QUESTIONS = msgspec.json.Decoder(Question)
_ANSWERS = msgspec.json.Decoder(Answer)
_JUDGES = msgspec.json.Decoder(Judge)
_OUTCOMES = msgspec.json.Decoder(Outcome)


class CopyError(Exception):
    """A copy ended without an answer."""


class Drafter:
    """Answers questions about an allocator."""

    def __init__(self, machine: AllocatorMachine, bus: Bus, clock: Clock) -> None:
        self._machine, self._bus, self._clock = machine, bus, clock
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.held_ns = 0
        """For how long the latest question kept this process from anything else."""

    async def answer(self, asked: Delivery) -> None:
        """Answer one question, without keeping its sender waiting."""
        if not asked.reply:
            return
        if self._waiting >= WAITING_MAX:
            await self._say(asked.reply, self._problem("too many questions at once: ask again"))
            return
        self._waiting += 1
        until = asyncio.get_running_loop().time() + ASKED_FOR_S
        task = asyncio.ensure_future(self._in_turn(asked, until))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _in_turn(self, asked: Delivery, until: float) -> None:
        """Answer a question that is waited for until a time of the loop."""
        try:
            async with self._turn:
                left_s = until - asyncio.get_running_loop().time()
                if left_s <= 0:
                    return
                answer = await self.look(asked.payload, min(left_s, ANSWER_WITHIN_S))
            await self._say(asked.reply, answer)
        finally:
            self._waiting -= 1

    async def look(self, payload: bytes, within_s: float = ANSWER_WITHIN_S) -> bytes:
        """Return the answer to a question, both encoded."""
        try:
            question = _QUESTIONS.decode(payload)
        except UNDECODABLE as error:
            return self._problem(f"not a question: {error}")
        machine, now, here = self._machine, self._clock.now(), os.getpid()

        def think() -> bytes:
            return _fitting(what_if.answer(machine, question, now, _apart(machine, here)))

        began = time.perf_counter_ns()
        pid, pipe = fork(think)
        self.held_ns = time.perf_counter_ns() - began
        try:
            data = await _read(pipe, within_s)
            _ANSWERS.decode(data)
        except (CopyError, TimeoutError, *UNDECODABLE) as error:
            return self._problem(f"the question could not be answered: {error!r}")
        else:
            return data
        finally:
            os.close(pipe)
            end(pid)

    def _problem(self, text: str) -> bytes:
        return codec.encode(Answer(at=self._clock.now(), problem=text))

    async def _say(self, reply: str, answer: bytes) -> None:
        await self._bus.send(reply, answer, {})


class JudgeOnly:
    """Answers what admission thinks of a spec: a look at its state, in this process."""

    def __init__(self, machine: AdmissionMachine, bus: Bus) -> None:
        self._machine, self._bus = machine, bus

    async def answer(self, asked: Delivery) -> None:
        """Answer one question."""
        if asked.reply:
            await self._bus.send(asked.reply, self.look(asked.payload), {})

    def look(self, payload: bytes) -> bytes:
        """Return the judgement on a spec, both encoded; empty for what is no such question."""
        try:
            asked = _JUDGES.decode(payload)
        except UNDECODABLE:
            return b""
        machine, vc = self._machine, self._machine.vcs.get(asked.vc)
        templates = vc.templates if vc is not None else {}
        named = machine.templates.named(asked.vc, templates)
        parsed = parse_spec(asked.spec.encode(), named)
        instead = machine.active.get(asked.instead)
        if instead is not None:
            machine.count(instead, -1)
        try:
            judged = machine.judge(asked.vc, parsed, person=asked.person)
        finally:
            if instead is not None:
                machine.count(instead, 1)
        if isinstance(judged, JobSpec):
            return codec.encode(Judgement(spec=judged))
        return codec.encode(Judgement(problems=tuple(judged)))


def _fitting(answer: Answer) -> bytes:
    """Return an answer as one message: a large spec comes again with every option."""
    data = codec.encode(answer)
    if len(data) > ANSWER_BYTES_MAX:
        data = codec.encode(msgspec.structs.replace(answer, in_vain=()))
    if len(data) > ANSWER_BYTES_MAX:
        text = f"the answer has {len(data)} bytes: the spec is too large to be tried in variants"
        data = codec.encode(Answer(at=answer.at, problem=text))
    return data


# --- copies of this process -----------------------------------------------------------------------


def fork(work: Callable[[], bytes]) -> tuple[int, int]:
    """Have a copy of this process do something.

    Args:
        work: What it does; the bytes that this returns are the result.

    Returns:
        The copy's process id, and the descriptor that its result can be read from. The caller
        closes the descriptor and ends the copy.
    """
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(out)
        _work(work, into)
    os.close(into)
    return pid, out


def _work(work: Callable[[], bytes], into: int) -> NoReturn:
    """Be the copy: nothing of what it inherited may act, or be cleaned up."""
    code = 1
    try:
        # What cleans up would write to pages that are shared, and run others' finalisers.
        gc.disable()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.closerange(3, into)
        os.closerange(into + 1, FILES_MAX)
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(nothing, standard)
        os.setpgid(0, 0)
        os.nice(NICENESS)
        _write(into, work())
        code = 0
    finally:
        os._exit(code)


def _apart(machine: AllocatorMachine, asked: int) -> what_if.Apart:
    """Return what does something with a copy of the machine: in a copy of this copy.

    `asked` is the process that has the original: no process waits for an answer once it is gone.
    """

    def apart(work: Callable[[AllocatorMachine], Outcome]) -> Outcome:
        if os.getppid() != asked:
            os._exit(1)
        out, into = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(out)
                _write(into, codec.encode(work(machine)))
                code = 0
            finally:
                os._exit(code)
        os.close(into)
        with open(out, "rb") as pipe:
            data = pipe.read()
        os.waitpid(pid, 0)
        return _OUTCOMES.decode(data)

    return apart


def _write(into: int, data: bytes) -> None:
    view: Any = memoryview(data)
    while view:
        view = view[os.write(into, view) :]


async def _read(pipe: int, within_s: float) -> bytes:
    """Return all that comes out of a pipe.

    Raises:
        CopyError: Nothing came out of it.
        TimeoutError: It was not closed within `within_s`.
    """
    os.set_blocking(pipe, False)
    loop, pieces = asyncio.get_running_loop(), list[bytes]()
    over: asyncio.Future[None] = loop.create_future()

    def ready() -> None:
        try:
            piece = os.read(pipe, PIECE)
        except BlockingIOError:
            return
        pieces.append(piece)
        if not piece and not over.done():
            over.set_result(None)

    loop.add_reader(pipe, ready)
    try:
        async with asyncio.timeout(within_s):
            await over
    finally:
        loop.remove_reader(pipe)
    if not any(pieces):
        text = "the copy ended early"
        raise CopyError(text)
    return b"".join(pieces)


def end(pid: int) -> None:
    """End a copy, and those that it made, if they have not ended."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    os.waitpid(pid, 0)
