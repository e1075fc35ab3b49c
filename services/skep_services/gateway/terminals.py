"""Sessions in running jobs: a WebSocket of a person, joined to the agent of the node.

    client --WebSocket--> Terminals.answer --bus--> agent        (frames of `wire.terminal`)

This judges whether the person may, finds the rank's node, writes the line of the audit log, and
then only carries frames. Client and agent keep to windows from end to end, so nothing is kept here
beyond one window of each session: an end that does not keep to it is cut. What a client says to a
job that is suspended because it did nothing waits in the job, and asks for its return.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

import msgspec
from aiohttp import WSMsgType, web

from skep.access.rights import Action, may
from skep.wire import codec, subjects, terminal
from skep.wire.reasons import Reason
from skep.wire.terminal import FRAME_COST, WINDOW_BYTES, Alive, Frame, Kind, Open, Over
from skep_services.gateway.api import ApiError, caller_of, forbidden
from skep_services.gateway.authentication import TERMINAL_PROTOCOL
from skep_services.gateway.callers import Caller
from skep_services.gateway.jobs import Jobs
from skep_services.gateway.limits import SESSIONS_MAX, Limits
from skep_services.gateway.rows import ENDED, Job, State
from skep_services.ports import Bus, Delivery

ALL_MAX = 500
"""Sessions of one gateway: 128 MiB if none of their clients reads anything."""
FIRST_WITHIN_S = 10.0
"""How long a client may take to say what is to run."""
STALL_S = 20.0
"""How long a client may take nothing of what it asked for before it is cut."""
MESSAGE_BYTES_MAX = 2 * terminal.WORDS_BYTES_MAX + 1
QUEUE_MAX = 2 * WINDOW_BYTES // FRAME_COST
"""Frames of an agent that wait for the client: as many as the window allows, and what carries
nothing."""
COMMAND_CHARS_SHOWN = 120
"""How much of a command is in the audit log: arguments may be anything, secrets too."""

RETURN_EVERY_S = 2.0
"""How often the words of one client ask for the return of its job."""
PONG_BYTES_MAX = 64
"""What a browser answers to the pings of a page's WebSocket is shorter; what it asks is longer."""

Note = Callable[[Caller, str, str, str], Awaitable[None]]
ACTIONS = {"exec": "exec", "attach": "attach", "forward": "port-forward", "copy": "cp"}


class Placed(NamedTuple):
    """The rank that a session goes to."""

    job: str
    attempt: int
    node: str


class Terminals:
    """The handler."""

    def __init__(self, bus: Bus, identity: str, jobs: Jobs, limits: Limits, note: Note) -> None:
        """Take the ports.

        Args:
            bus: Where agents are.
            identity: This gateway on the bus.
            jobs: Finds jobs.
            limits: Counts what a tenant has open.
            note: Writes a line of the audit log.
        """
        self._bus, self._identity = bus, identity
        self._jobs, self._limits, self._note = jobs, limits, note
        self._open: dict[str, Session] = {}

    def routes(self) -> list[web.RouteDef]:
        """Return where the handler belongs."""
        return [web.get("/v1/jobs/{job}/terminal", self.answer, allow_head=False)]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Carry a session, until it is over.

        Raises:
            ApiError: There is no such job (404), several have this name (409), the caller may not
                run commands in it (403), too many sessions are open (429: by this tenant; 503), or
                the request is for no WebSocket (400).
        """
        job = await self._jobs.job(request)
        caller = caller_of(request)
        admit(caller, job)
        socket = web.WebSocketResponse(
            max_msg_size=MESSAGE_BYTES_MAX,
            compress=False,
            timeout=1.0,
            autoclose=True,
            protocols=(TERMINAL_PROTOCOL,),
        )
        if not socket.can_prepare(request):
            text = "a session is a WebSocket: `skep exec` opens one"
            raise ApiError(400, Reason.BAD_VALUE, text)
        if len(self._open) >= ALL_MAX:
            text = f"{ALL_MAX} sessions are open at this gateway, as many as there may be"
            raise ApiError(503, Reason.TOO_MANY_SESSIONS, text)
        with self._limits.one_of(caller, "sessions", SESSIONS_MAX):
            session = Session(self._bus, self._identity, socket)
            self._open[session.name] = session
            try:
                await socket.prepare(request)
                await self._carry(session, caller, job)
            finally:
                del self._open[session.name]
        return socket

    async def close(self, application: web.Application) -> None:
        """Tell every client that this gateway ends."""
        over = Over(reason=Reason.SESSION_LOST, text="the gateway is being ended")
        for session in list(self._open.values()):
            with contextlib.suppress(ConnectionError, RuntimeError):
                await session.over(over)

    async def _carry(self, session: Session, caller: Caller, job: Job) -> None:
        try:
            wanted = await session.first()
            placed = _placed(job, wanted) if isinstance(wanted, Open) else wanted
            if isinstance(wanted, Over) or isinstance(placed, Over):
                assert isinstance(placed, Over)
                await session.over(await self._returning(caller, job, placed))
                return
            try:
                await self._note(caller, ACTIONS[wanted.what], _target(placed, wanted), job.row.vc)
            except ApiError as error:
                said = error.body["error"]
                await session.over(Over(reason=str(said["reason"]), text=str(said["text"])))
                return
            await session.join(placed, wanted, partial(self._have_back, caller, placed.job))
        except (ConnectionError, TimeoutError):
            pass  # The client has gone; the agent is told when the session is left.

    async def _have_back(self, caller: Caller, name: str) -> bool:
        """Ask for the return of a job if it gave its GPUs back while idle; return whether."""
        try:
            return await self._jobs.have_back_if_idle(caller, name)
        except ApiError:
            return True  # It cannot return now: a new session says why.

    async def _returning(self, caller: Caller, job: Job, over: Over) -> Over:
        """Return why there is no session, having asked for the return of a job that was idle."""
        if over.reason != Reason.JOB_SUSPENDED or job.row.why != Reason.IDLE:
            return over
        name, returns = job.row.job, False
        try:
            await self._jobs.have_back(caller, job)
        except ApiError as error:
            said = error.body["error"]
            text = f"{name} did nothing and gave its GPUs back; it cannot return: {said['text']}"
        else:
            returns = True
            text = (
                f"{name} did nothing and gave its GPUs back. It was asked to return: try again "
                f"once it runs (skep show {name})"
            )
        return Over(reason=over.reason, text=text, returns=returns)


def admit(caller: Caller, job: Job) -> None:
    """Stop at what a caller may not enter.

    A job without an owner is its VC's, and so its own to a caller with the VC's token.

    Raises:
        forbidden: An ApiError (403): its role is too low.
    """
    vc, owner = job.row.vc, job.row.owner
    own = caller.person == owner if caller.person else caller.vc == vc and not owner
    ruling = may(Action.ENTER, caller.role(vc), own=own, vc=vc)
    if ruling.reason is Reason.NOT_ITS_OWNER:
        whose = f"{owner}'s" if owner else f"VC {vc}'s"
        ruling = msgspec.structs.replace(ruling, text=f"{ruling.text}, and it is {whose}")
    if not ruling:
        raise forbidden(ruling)


def _placed(job: Job, wanted: Open) -> Placed | Over:
    """Return where a rank of a job runs now, or why there is no session in it."""
    row = job.row
    name, state = row.job, row.state
    if state in ENDED:
        return Over(reason=Reason.NOT_RUNNING, text=f"{name} has ended: it is {state}")
    if state is State.SUSPENDED:
        text = f"{name} is suspended, and what is run in it would stand still: skep resume {name}"
        return Over(reason=Reason.JOB_SUSPENDED, text=text)
    if state is not State.RUNNING:
        text = f"{name} is {state}: it has no process that runs (skep why {name})"
        return Over(reason=Reason.NOT_RUNNING, text=text)
    for attempt in job.attempts:
        if attempt.attempt == row.attempt:
            for part in attempt.members:
                if wanted.rank in part.numbers:
                    return Placed(name, row.attempt, part.node)
    text = f"{name} has no rank {wanted.rank}: it has ranks 0 to {max(row.workers, 1) - 1}"
    return Over(reason="no-rank", text=text)


def _target(placed: Placed, wanted: Open) -> str:
    """Return what the audit log says of a session: where, and the beginning of what."""
    where = f"{placed.job} rank {wanted.rank}"
    if wanted.what == "attach":
        return where
    what = f"port {wanted.port}" if wanted.what == "forward" else " ".join(wanted.argv)
    shown = "".join(each if each.isprintable() else "?" for each in what)
    if len(shown) > COMMAND_CHARS_SHOWN:
        shown = shown[:COMMAND_CHARS_SHOWN] + "..."
    return f"{where}: {shown}"


class Session:
    """One session: a client's WebSocket, and what an agent says to it."""

    def __init__(self, bus: Bus, identity: str, socket: web.WebSocketResponse) -> None:
        """Take the connections, and a name that no other one guesses."""
        self.name = secrets.token_hex(16)
        self._bus, self._identity, self._socket = bus, identity, socket
        self._node = ""
        self._numbers = [0, 0]  # of what the agent was told, and of what it said
        self._carried, self._confirmed = 0, 0  # of output: its cost, and what the client used
        self._input, self._taken = 0, 0  # of input, the same
        self._heard_at = 0.0
        self._opened = self._ended = self._agent_done = False
        self._told: asyncio.Queue[Frame] = asyncio.Queue()
        self._have_back: Callable[[], Awaitable[bool]] = _nothing
        self._forwards = self._has_said = False
        self._asked_at = -RETURN_EVERY_S

    async def first(self) -> Open | Over:
        """Return what the client wants to run.

        Raises:
            ConnectionError: The client has gone.
            TimeoutError: It has not said anything.
        """
        message = await self._socket.receive(timeout=FIRST_WITHIN_S)
        if message.type is not WSMsgType.BINARY:
            raise ConnectionError
        frame = terminal.unpack(message.data)
        if frame is None or frame.kind is not Kind.OPEN:
            return Over(reason=Reason.BAD_VALUE, text="a session begins with what is to run")
        wanted = terminal.read_open(frame.body)
        if isinstance(wanted, str):
            return Over(reason=Reason.BAD_VALUE, text=wanted)
        return wanted

    async def over(self, over: Over) -> None:
        """Tell the client how the session ended, and hang up."""
        if self._ended:
            return
        self._ended = True
        await self._give(Frame(Kind.OVER, codec.encode(over)))
        await self._socket.close()

    async def join(
        self, placed: Placed, wanted: Open, have_back: Callable[[], Awaitable[bool]]
    ) -> None:
        """Have the agent start it, and carry what both say until one of them ends it.

        Args:
            placed: Where it runs.
            wanted: What is to run.
            have_back: Asks for the return of the job if it is suspended because it did nothing, and
                says whether it did.

        Raises:
            ConnectionError: The client has gone.
        """
        self._have_back, self._forwards = have_back, wanted.what == "forward"
        self._node = placed.node
        loop = asyncio.get_running_loop()
        subject = subjects.session(self._identity, placed.node, self.name)
        listening = await self._bus.listen(subject, self._hear)
        try:
            self._heard_at = loop.time()
            opening = msgspec.structs.replace(
                wanted, job=placed.job, attempt=placed.attempt, asker=self._identity
            )
            await self._tell(Frame(Kind.OPEN, codec.encode(opening)))
            tasks = [loop.create_task(each) for each in (self._up(), self._down(), self._watch())]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    over = task.result()
                    if over is not None:
                        await self.over(over)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await listening.close()
            if not self._agent_done:
                await self._tell(Frame(Kind.CLOSE))

    # --- what the agent says --------------------------------------------------------------------

    async def _hear(self, delivery: Delivery) -> None:
        frame = terminal.unpack_from_bus(delivery.payload)
        if frame is None or frame.session != self.name or frame.kind not in terminal.TO_CLIENT:
            return
        # The queue is bounded by the window: what is beyond it ends the session in `_down`.
        self._heard_at = asyncio.get_running_loop().time()
        if self._told.qsize() <= QUEUE_MAX:
            self._told.put_nowait(frame)

    async def _down(self) -> Over | None:
        """Carry what the agent says to the client; return what it says last, or what is wrong."""
        while True:
            frame = await self._told.get()
            self._numbers[1] += 1
            # An agent that has only begun does not know how much the one before it said.
            if frame.number != self._numbers[1] and not _is_last(frame):
                return _lost(f"the bus lost a part of what {self._node} said")
            if frame.kind is Kind.OVER:
                self._agent_done = True
                return terminal.read_over(frame.body)
            if frame.kind is Kind.OPENED:
                self._opened = True
            if frame.kind is Kind.USED_UP:
                self._taken = max(self._taken, terminal.read_used(frame.body))
            if frame.kind in terminal.CARRY:
                self._carried += terminal.cost(frame.body)
                if self._carried - self._confirmed > WINDOW_BYTES:
                    return _lost(f"{self._node} said more than it may")
            await self._give(frame)

    async def _give(self, frame: Frame) -> None:
        """Give a frame to the client, and cut one that takes nothing.

        Raises:
            ConnectionError: The client is gone, or took nothing for STALL_S.
        """
        try:
            async with asyncio.timeout(STALL_S):
                await self._socket.send_bytes(terminal.pack(frame))
        except (TimeoutError, RuntimeError):
            text = f"the client takes nothing for {STALL_S:.0f} s, or is gone"
            raise ConnectionError(text) from None

    # --- what the client says -------------------------------------------------------------------

    async def _up(self) -> Over | None:
        """Carry what the client says to the agent; return None when it has gone."""
        while True:
            try:
                message = await self._socket.receive(timeout=terminal.SILENT_S)
            except TimeoutError:
                return _lost("the client is silent")
            if message.type is not WSMsgType.BINARY:
                return None
            frame = terminal.unpack(message.data)
            if frame is None or frame.kind not in terminal.TO_AGENT or frame.kind is Kind.OPEN:
                return Over(reason=Reason.BAD_VALUE, text="the client said what is no part of this")
            trouble = self._counted(frame)
            if trouble:
                return Over(reason=Reason.BAD_VALUE, text=trouble)
            if frame.kind is not Kind.ALIVE:
                await self._tell(frame)
            if frame.kind is Kind.INPUT and not (
                self._forwards and len(frame.body) < PONG_BYTES_MAX
            ):
                # If it is being suspended right now, what was said would wait in it: `_watch`.
                self._has_said = True
                await self._ask_back()

    async def _ask_back(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._asked_at >= RETURN_EVERY_S and await self._have_back():
            self._asked_at = now

    def _counted(self, frame: Frame) -> str:
        """Count a frame of the client; return how it does not keep to its window."""
        if frame.kind is Kind.INPUT:
            self._input += terminal.cost(frame.body)
            if self._input - self._taken > WINDOW_BYTES:
                return "the client said more than it may"
        if frame.kind is Kind.USED_UP:
            used = terminal.read_used(frame.body)
            if not self._confirmed <= used <= self._carried:
                return "the client used more than it got"
            self._confirmed = used
        return ""

    async def _tell(self, frame: Frame) -> None:
        self._numbers[0] += 1
        sent = frame._replace(session=self.name, number=self._numbers[0])
        await self._bus.send(subjects.terminal(self._node), terminal.pack_for_bus(sent), {})

    # --- silence --------------------------------------------------------------------------------

    async def _watch(self) -> Over | None:
        """Say to both ends now and then that this lives; return when the agent is silent."""
        loop = asyncio.get_running_loop()
        alive = codec.encode(Alive(asker=self._identity))
        begun = loop.time()
        while True:
            await asyncio.sleep(terminal.ALIVE_EVERY_S)
            now = loop.time()
            if not self._opened and now - begun >= terminal.OPEN_WITHIN_S:
                return Over(reason="node-away", text=f"{self._node} does not answer")
            if now - self._heard_at >= terminal.SILENT_S:
                return _lost(f"{self._node} has not been heard for {terminal.SILENT_S:.0f} s")
            await self._tell(Frame(Kind.ALIVE, alive))
            if self._has_said:
                self._has_said = False
                await self._ask_back()


async def _nothing() -> bool:
    """Ask for nothing: no job is known yet."""
    return False


def _is_last(frame: Frame) -> bool:
    return frame.kind is Kind.OVER and frame.number == 1


def _lost(text: str) -> Over:
    return Over(reason=Reason.SESSION_LOST, text=text)
