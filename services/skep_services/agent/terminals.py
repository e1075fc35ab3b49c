"""The sessions of a node: commands that people run in the jobs here, by way of a gateway.

What a gateway says arrives on one subject of the node, and the answers go to an inbox of the
gateway that has the node's name (`wire.terminal`). The gateway has judged whether the person may;
here it is seen that the job has that rank and runs, and that no session fills the memory:

    gateway --frames--> Session.take   never waits: beyond its window a session is ended
                        Session._feed  --> the command's input, as fast as it takes it
    gateway <--frames-- Session._show  <-- the command's output, as far as the client's window goes

A session ends with its command, its attempt, this agent, or when its gateway falls silent.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from skep.ids import job_sequence, run_token
from skep.wire import codec, subjects, terminal
from skep.wire.bounds import UNDECODABLE
from skep.wire.reasons import Reason
from skep.wire.terminal import Frame, Kind, Open, Over, Window
from skep_services.ports import Bus, Delivery, Entered, EnterPlan, NotEntered

log = logging.getLogger(__name__)

SESSIONS_MAX = 256
"""Sessions of one node: each has a task or two, three descriptors and a window of memory."""
OWN_PYTHON = (sys.executable, "-I", "-S")
"""What runs the programs of `attach`, `forward` and `copy`, beside the job's processes: they need
the standard library only, and start in 20 ms."""
IMAGE_PYTHON = ("python3", "-I", "-S")
"""What runs them in a container: the image's own."""
NOT_THERE = 127
"""The exit code of a command that is not there, of the shell that was to start it."""
STDERR = 2
QUEUE_MAX = 2 * terminal.WINDOW_BYTES // terminal.FRAME_COST
"""Frames of input that may wait: as many as the window allows, and as many changes of size."""

Enter = Callable[[EnterPlan], Awaitable[Entered | NotEntered]]


class Terminals:
    """All sessions of the node `node`; what it hears goes to `deliver`."""

    def __init__(
        self,
        bus: Bus,
        node: str,
        enter: Enter,
        programs: tuple[Path, Path],
        lives: Callable[[str, int], bool],
        contained: Callable[[str, int], bool],
    ) -> None:
        """Take the ports.

        Args:
            bus: Where answers go.
            node: The node.
            enter: Starts a command in a run.
            programs: The folder with `attach.py`, `forward.py`, `copy.py`, which jobs may read: on
                this machine, and in every container.
            lives: Says whether an attempt has processes here.
            contained: Says whether they are containers.
        """
        self._bus, self._node, self._enter = bus, node, enter
        self._programs, self._lives, self._contained = programs, lives, contained
        self._sessions: dict[str, Session] = {}

    async def deliver(self, delivery: Delivery) -> None:
        """Take what a gateway says; what is no frame is passed over."""
        frame = terminal.unpack_from_bus(delivery.payload)
        if frame is None or frame.kind not in terminal.TO_AGENT:
            return
        session = self._sessions.get(frame.session)
        if session is not None:
            session.take(frame)
        elif frame.kind is Kind.OPEN:
            await self._open(frame)
        elif frame.kind is Kind.ALIVE:
            await self._gone(frame)

    async def _open(self, frame: Frame) -> None:
        wanted = terminal.read_open(frame.body)
        if isinstance(wanted, str):
            # The gateway reads it before: this one is from another version.
            return
        tell = Teller(self._bus, self._node, wanted.asker, frame.session)
        plan = self._planned(wanted)
        if len(self._sessions) >= SESSIONS_MAX:
            text = f"{self._node} has {SESSIONS_MAX} sessions open, as many as it may have"
            plan = Over(reason=Reason.TOO_MANY_SESSIONS, text=text)
        if isinstance(plan, Over):
            await tell.over(plan)
            return
        session = Session(tell, wanted, plan, self._enter, self._forget)
        self._sessions[frame.session] = session
        session.begin(frame.number)

    def _planned(self, wanted: Open) -> EnterPlan | Over:
        if job_sequence(wanted.job) is None or not self._lives(wanted.job, wanted.attempt):
            text = f"{wanted.job} has no processes on {self._node} now"
            return Over(reason=Reason.NOT_RUNNING, text=text)
        contained = self._contained(wanted.job, wanted.attempt)
        if wanted.what == "attach" and contained:
            text = f"{wanted.job} runs in containers, where no job holds a terminal: `skep exec`"
            return Over(reason=Reason.NOT_BUILT, text=text)
        python = IMAGE_PYTHON if contained else OWN_PYTHON
        programs = self._programs[contained]
        argv = wanted.argv
        if wanted.what == "attach":
            fresh = ("--fresh",) if wanted.fresh else ()
            argv = (*python, str(programs / "attach.py"), *fresh)
        elif wanted.what == "forward":
            argv = (*python, str(programs / "forward.py"), str(wanted.port))
        elif wanted.what == "copy":
            argv = (*python, str(programs / "copy.py"), *wanted.argv)
        return EnterPlan(
            token=run_token(wanted.job, wanted.attempt, wanted.rank),
            argv=argv,
            env={"TERM": wanted.term or "dumb"} if wanted.terminal else {},
            terminal=wanted.terminal,
            rows=wanted.rows,
            columns=wanted.columns,
        )

    async def _gone(self, frame: Frame) -> None:
        """Say that a session is not here: the agent that had it was another process."""
        try:
            asker = terminal.ALIVE.decode(frame.body).asker
        except UNDECODABLE:
            return
        text = f"the agent of {self._node} was started anew, and what ran is gone"
        tell = Teller(self._bus, self._node, asker, frame.session)
        await tell.over(Over(reason=Reason.SESSION_LOST, text=text))

    def _forget(self, session: str) -> None:
        self._sessions.pop(session, None)

    async def close(self) -> None:
        """Hang up on every session."""
        for session in list(self._sessions.values()):
            await session.end(
                Over(reason=Reason.SESSION_LOST, text=f"the agent of {self._node} is being ended")
            )


class Teller:
    """Says what is for one session, in order."""

    def __init__(self, bus: Bus, node: str, asker: str, session: str) -> None:
        """Take where it goes: `asker` is a gateway."""
        self.session = session
        self._bus, self._subject = bus, subjects.session(asker, node, session)
        self._number = 0

    async def say(self, kind: Kind, body: bytes = b"") -> None:
        """Send a frame."""
        self._number += 1
        frame = Frame(kind, body, self.session, self._number)
        await self._bus.send(self._subject, terminal.pack_for_bus(frame), {})

    async def over(self, over: Over) -> None:
        """Send the last frame."""
        await self.say(Kind.OVER, codec.encode(over))


class Session:
    """One session, from its OPEN on."""

    def __init__(
        self,
        tell: Teller,
        wanted: Open,
        plan: EnterPlan,
        enter: Enter,
        forget: Callable[[str], None],
    ) -> None:
        """Take what is to run; `begin` starts it."""
        self._wanted, self._plan = wanted, plan
        self._tell, self._enter, self._forget = tell, enter, forget
        self._window = Window()
        self._room = asyncio.Event()
        self._input: asyncio.Queue[Frame] = asyncio.Queue()
        self._number = 0
        self._heard_at = 0.0
        self._entered: Entered | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._last: asyncio.Task[None] | None = None

    def begin(self, number: int) -> None:
        """Start the command, and tell of it; `number` is that of the OPEN."""
        self._number = number
        self._heard_at = asyncio.get_running_loop().time()
        self._tasks.append(asyncio.create_task(self._run()))

    def take(self, frame: Frame) -> None:
        """Take a frame. The queue is bounded by the window, and by what counts as a word below."""
        self._heard_at = asyncio.get_running_loop().time()
        self._number += 1
        if frame.number != self._number:
            self._fail("the bus lost a part of what was said")
            return
        match frame.kind:
            case Kind.USED_UP:
                if not self._window.confirm(frame.body):
                    self._fail("the gateway said what cannot be")
                self._room.set()
            case Kind.CLOSE:
                self._stop()
            case Kind.INPUT | Kind.END_OF_INPUT | Kind.RESIZE:
                carries = frame.kind is Kind.INPUT
                within = self._window.receive(frame.body) if carries else True
                if not within or self._input.qsize() > QUEUE_MAX:
                    self._fail("more was said than may wait")
                else:
                    self._input.put_nowait(frame)
            case _:
                pass  # ALIVE has been heard; a second OPEN changes nothing.

    async def end(self, over: Over) -> None:
        """End the session, and say why."""
        self._stop()
        await self._tell.over(over)

    # --- the tasks ------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            over = await self._whole()
        except Exception as error:  # A session that fails must not take the agent along.
            log.exception("session %s failed", self._tell.session)
            over = Over(reason=Reason.SESSION_LOST, text=f"the agent failed: {error!r}")
        self._tasks.pop(0)
        self._stop()
        await self._tell.over(over)

    async def _whole(self) -> Over:
        outcome = await self._enter(self._plan)
        if isinstance(outcome, NotEntered):
            return _refusal(outcome)
        self._entered = outcome
        await self._tell.say(Kind.OPENED)
        self._tasks += [
            asyncio.create_task(self._feed(outcome)),
            asyncio.create_task(self._watch()),
        ]
        await self._show(outcome)
        if outcome.run_over:
            # The shell that it was attached to ended, and its own process was not quick enough.
            if self._wanted.what == "attach" and outcome.run_code is not None:
                return Over(code=outcome.run_code)
            return Over(reason=Reason.ATTEMPT_OVER, text="the attempt ended, and this with it")
        code = outcome.code
        if code is None:
            text = "what holds the job's processes has gone, and the command with it"
            return Over(reason=Reason.SESSION_LOST, text=text)
        return self._said(code) or Over(code=code)

    def _said(self, code: int) -> Over | None:
        """Return what one of the agent's own programs says by how it ended."""
        job, port = self._wanted.job, self._wanted.port
        match self._wanted.what, -code:
            case ("forward" | "copy") as what, _ if code == NOT_THERE:
                text = f"the image of {job} has no python3, which a {what} in a container needs"
                return Over(reason=Reason.CANNOT_EXECUTE, text=text)
            case "attach", signal.SIGUSR1:
                text = f"{job} is no shell: `skep exec {job} -- bash` opens one in it"
                return Over(reason=Reason.NO_TERMINAL, text=text)
            case "attach", signal.SIGUSR2:
                text = f"{job} was attached to from elsewhere"
                return Over(reason=Reason.TAKEN_OVER, text=text)
            case "forward", signal.SIGUSR1:
                text = (
                    f"nothing listens on port {port} where rank {self._wanted.rank} of {job} runs"
                )
                return Over(reason=Reason.NOTHING_LISTENS, text=text)
            case _:
                return None

    async def _show(self, entered: Entered) -> None:
        """Send output until there is no more."""
        while True:
            while self._window.room <= 0:
                self._room.clear()
                await self._room.wait()
            piece = await entered.read(self._window.room)
            if piece is None:
                return
            stream, data = piece
            self._window.send(data)
            await self._tell.say(Kind.ERRORS if stream == STDERR else Kind.OUTPUT, data)

    async def _feed(self, entered: Entered) -> None:
        """Give the command its input, in the order in which it was said."""
        while True:
            frame = await self._input.get()
            match frame.kind:
                case Kind.INPUT:
                    await entered.write(frame.body)
                    self._window.use(frame.body)
                    if (told := self._window.due()) is not None:
                        await self._tell.say(Kind.USED_UP, told)
                case Kind.RESIZE if len(frame.body) == terminal.SIZE.size:
                    rows, columns = terminal.SIZE.unpack(frame.body)
                    await entered.resize(max(rows, 1), max(columns, 1))
                case _:
                    entered.end_input()

    async def _watch(self) -> None:
        """Say now and then that the session lives, until nothing is heard any more."""
        loop = asyncio.get_running_loop()
        while loop.time() - self._heard_at < terminal.SILENT_S:
            await asyncio.sleep(terminal.ALIVE_EVERY_S)
            await self._tell.say(Kind.ALIVE)
        self._stop()

    def _fail(self, text: str) -> None:
        if self._tasks:
            self._stop()
            over = Over(reason=Reason.SESSION_LOST, text=text)
            self._last = asyncio.create_task(self._tell.over(over))

    def _stop(self) -> None:
        self._forget(self._tell.session)
        if self._entered is not None:
            self._entered.close()
        for task in self._tasks:
            task.cancel()
        self._tasks = []


def _refusal(why: NotEntered) -> Over:
    code, mark, text = why.detail.partition(": ")
    if mark and code in {each.value for each in Reason}:
        return Over(reason=code, text=text)
    return Over(reason=Reason.CANNOT_EXECUTE, text=why.detail)
