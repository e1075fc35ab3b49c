"""The runner: the small process that holds a node's runs, so that they survive the agent.

    python -I -S runner_process.py STATE IDLE_SECONDS

One per state folder, alone by the lock on STATE/runner.lock. It detaches, listens on
STATE/runner.sock (0600) and returns 0 once clients can connect, or when another holds the lock.
Processes of runs are hung up on: they could start and end the runs of others.
Messages both ways are a 4-byte big-endian length and that much JSON:

    {"id": 1, "do": "start", "plan": {...}}         -> {"id": 1, "started": {token, pid, ticks, at}}
                                                     | {"id": 1, "not_started": "what was missing"}
                                                       with "fault": "node" if the job has none
    {"id": 2, "do": "stop", "token", "grace_s"}     -> {"id": 2, "done": true}
    {"id": 3, "do": "forget", "token"}              -> {"id": 3, "done": true}
    {"id": 4, "do": "list"}                         -> {"id": 4, "runs": [started or exited, ...]}
    {"id": 5, "do": "ping"}                         -> {"id": 5, "pid": N, "live": N}
    {"id": 8, "do": "freeze" or "thaw", "token"}    -> {"id": 8, "done": true}
                                                     | {"id": 8, "trouble": "what would not"}
    {"id": 9, "do": "signal", "token", "name",      -> {"id": 9, "done": true}: once for each order
     "order"}                                        | {"id": 9, "trouble": "why not"}
    {"id": 10, "do": "enter", "token", "argv",      -> {"id": 10, "entered": pid}, with descriptors:
     "env", "terminal", "rows", "columns"}             a terminal, or stdin, stdout and stderr
                                                     | {"id": 10, "refused": "code: why"}
       to this client, when the command ends         -> {"left": code, "run_over": BOOL, "run_code":
                                                       code or null}; a client that goes is hung
                                                       up on (`runner_sessions`)
    {"id": 6, "do": "shutdown", "grace_s"}          -> {"id": 6, "done": true}, once no run is left
    a request that makes no sense                   -> {"id": 7, "error": "why"}
    to every client, when a run ends    -> {"exited": {token, code, leftovers, left, asked, at}}
                                           with "exceeded": "code: text" if a bound ended it

It ends when asked to, or after IDLE_SECONDS with neither a living run nor a client; SIGTERM makes
it end with its last run, or at once with all of them if its folder was deleted. It is not to be
trusted with anything it cannot write to STATE: what it knows is in runner.jsonl, and another runner
takes over from there (see `runner_holder`).
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from skep_services.agent import proc
from skep_services.agent.proc import COMMAND_CHARS_MAX
from skep_services.agent.runner_holder import LEFT_NAMES_MAX, LEFT_RUNS_MAX, RUNS_MAX, Holder
from skep_services.agent.runner_launch import NotStarted

MESSAGE_BYTES_MAX = 24 * 1024 * 1024
"""Room for a list of all runs; a plan is far smaller."""

TOKEN_CHARS_MAX = 128
RUN_CHARS_MAX = TOKEN_CHARS_MAX + 144
"""One run in a list: its token (ASCII), four numbers of at most 19 digits, whether it is frozen,
and the names of all that; what it left is told of the first that left anything.
"""

LEFT_CHARS_MAX = LEFT_NAMES_MAX * (COMMAND_CHARS_MAX + 24)
assert RUNS_MAX * RUN_CHARS_MAX + LEFT_RUNS_MAX * LEFT_CHARS_MAX < MESSAGE_BYTES_MAX

LOST_GRACE_SECONDS = 5.0
"""Between SIGTERM and SIGKILL of runs whose node's folder was deleted."""

BUFFER_BYTES_MAX = 4 * MESSAGE_BYTES_MAX
"""What may wait from a client, and for one that does not read; beyond it the client is dropped,
and asks again when it comes back.
"""

ACCEPT_PAUSE_SECONDS = 0.01
"""Keeps the loop from spinning where no client can be let in, and slows the runs little."""

READ_BYTES = 256 * 1024
LENGTH = struct.Struct(">I")
PEER = struct.Struct("iII")
COMPLAIN_EVERY_SECONDS = 10.0
"""A process that is refused again and again must not fill runner.log."""
BACKLOG = 16
STDERR_BYTES_MAX = 1024 * 1024

PR_SET_CHILD_SUBREAPER = 36
NICE = -10
"""Jobs saturate the processors; what starts and kills them must get through nevertheless."""

WAIT_SECONDS_MAX = 3600.0
"""The kernel takes no time of a thousand years, which a client may name."""

UNFIT = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)
"""What comes of a request that makes no sense: its client hears of it, and the runs go on."""


class Client:
    """One connection; `ask` receives each message."""

    def __init__(self, connection: socket.socket, bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        self.connection = connection
        self.bytes_max = bytes_max
        self.inbox = bytearray()
        self.outbox = bytearray()
        self.gone = False

    def read(self) -> None:
        """Take what arrived."""
        try:
            data = self.connection.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.inbox += data
        self.gone = self.gone or not data or len(self.inbox) > BUFFER_BYTES_MAX

    def message(self) -> bytes | None:
        """Return the next whole message, or None."""
        if self.gone or len(self.inbox) < LENGTH.size:
            return None
        (size,) = LENGTH.unpack_from(self.inbox)
        if size > self.bytes_max:
            complain(f"refused: a message of {size} bytes: at most {self.bytes_max} are read")
            self.gone = True
            return None
        end = LENGTH.size + size
        if len(self.inbox) < end:
            return None
        message = bytes(self.inbox[LENGTH.size : end])
        del self.inbox[:end]
        return message

    def ready(self) -> bool:
        """Tell whether a whole message may be waiting."""
        if self.gone or len(self.inbox) < LENGTH.size:
            return False
        size: int = LENGTH.unpack_from(self.inbox)[0]
        return len(self.inbox) >= LENGTH.size + size

    def send(self, message: dict[str, Any]) -> None:
        """Send, or keep for when the client reads again."""
        text = json.dumps(message).encode()
        self.outbox += LENGTH.pack(len(text)) + text
        self.flush()

    def hand(self, message: dict[str, Any], descriptors: Sequence[int]) -> None:
        """Send a message with descriptors; a client that has not read the one before is dropped."""
        text = json.dumps(message).encode()
        frame = LENGTH.pack(len(text)) + text
        try:
            sent = not self.outbox and socket.send_fds(self.connection, [frame], descriptors)
        except OSError:
            sent = 0
        self.gone = self.gone or sent != len(frame)

    def flush(self) -> None:
        """Send what the socket takes."""
        try:
            while self.outbox and not self.gone:
                del self.outbox[: self.connection.send(self.outbox)]
        except BlockingIOError:
            self.gone = len(self.outbox) > BUFFER_BYTES_MAX
        except OSError:
            self.gone = True


class Server:
    """Carries requests to the holder, and its news to the clients, until there is no need."""

    message_bytes_max = MESSAGE_BYTES_MAX
    socket_name = "runner.sock"

    def __init__(self, listener: socket.socket, holder: Holder, idle_seconds: float) -> None:
        self.holder = holder
        self.closing = False
        self.draining = False
        self._listener = listener
        self._complain_at = 0.0
        self._idle_seconds = idle_seconds
        self._idle_since = time.monotonic()
        self._clients: list[Client] = []
        self._goodbyes: list[tuple[Client, dict[str, Any]]] = []
        self._selector = selectors.DefaultSelector()
        self._watch(listener, self._accept)
        for pidfd in holder.watched:
            self._watch(pidfd, functools.partial(self._adopted_ended, pidfd))
        self._signals, wakeup = socket.socketpair()
        for end in (self._signals, wakeup):
            end.setblocking(False)
        self._wakeup = wakeup
        signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
        self._watch(self._signals, self._signalled)

    def run(self) -> None:
        """Serve until the end."""
        self.holder.reap()
        while not self._done():
            for key, _ in self._selector.select(self._wait_seconds()):
                key.data()
            # One message of each client a turn: an end is told between two starts.
            for client in list(self._clients):
                message = client.message()
                if message is not None:
                    self._serve(client, message)
            self.holder.tick()
            self._tell_ends()
            self._sweep()
        for client, reply in self._goodbyes:
            if not client.gone:
                client.connection.setblocking(True)
                client.send(reply)

    def _done(self) -> bool:
        if self.holder.live or self._clients:
            self._idle_since = time.monotonic()
        if self.closing or self.draining:
            return not self.holder.live
        return time.monotonic() - self._idle_since >= self._idle_seconds

    def _wait_seconds(self) -> float | None:
        if any(client.ready() for client in self._clients):
            return 0
        at = self.holder.wake_at()
        if not self.holder.live and not self._clients:
            at = min(at, self._idle_since + self._idle_seconds)
        return (
            None if at == float("inf") else max(0.0, min(at - time.monotonic(), WAIT_SECONDS_MAX))
        )

    def _watch(self, source: Any, then: Callable[[], None]) -> None:
        self._selector.register(source, selectors.EVENT_READ, then)

    # --- what select brings -----------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            # Too many open files: the client still waits, and asking again at once is no use.
            time.sleep(ACCEPT_PAUSE_SECONDS)
            return
        if not self._is_an_agent(connection):
            connection.close()
            return
        connection.setblocking(False)
        client = Client(connection, self.message_bytes_max)
        self._clients.append(client)
        self._watch(connection, lambda: self._moved(client))

    def _is_an_agent(self, connection: socket.socket) -> bool:
        """Return whether a client may start and end runs: processes of runs may not.

        A container's process is one too, and so is what has no number here.
        """
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
        pid, uid, _ = PEER.unpack(credentials)
        if self._may_ask(pid, uid):
            return True
        now = time.monotonic()
        if now >= self._complain_at:
            self._complain_at = now + COMPLAIN_EVERY_SECONDS
            peer = f"process {pid} of user {uid} ({proc.command_line(pid)})"
            complain(f"{self.socket_name}: refused: {peer} is no agent")
        return False

    def _may_ask(self, pid: int, uid: int) -> bool:
        if uid not in (os.geteuid(), 0):
            return False
        return proc.is_here(pid) and not self.holder.is_of_a_run(pid)

    def _moved(self, client: Client) -> None:
        client.read()
        client.flush()

    def _adopted_ended(self, pidfd: int) -> None:
        self._selector.unregister(pidfd)
        self.holder.adopted_ended(pidfd)

    def _signalled(self) -> None:
        self.heard(self._signals.recv(4096))
        self.holder.reap()

    def heard(self, numbers: bytes) -> None:
        """Act on signals."""
        if signal.SIGTERM in numbers:
            self.draining = True
            if not os.path.exists(os.path.join(self.holder.state, "runner.sock")):
                # Its folder was deleted: no agent can ever come for what runs here, or end it.
                for token in list(self.holder.live):
                    self.holder.stop(token, LOST_GRACE_SECONDS)

    # --- clients ----------------------------------------------------------------------------------

    def _serve(self, client: Client, message: bytes) -> None:
        request: Any = None
        try:
            request = json.loads(message)
            reply = self._answer(client, request)
        except UNFIT as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        if reply is not None:
            number = request.get("id") if isinstance(request, dict) else None
            client.send({"id": number, **reply})

    def _answer(self, client: Client, request: dict[str, Any]) -> dict[str, Any] | None:
        match request["do"]:
            case "start" if self.closing:
                return {"not_started": "this node is shutting down", "fault": "node"}
            case "start":
                return self.holder.start(request["plan"])
            case "enter":
                return self._enter(client, request)
            case "stop":
                self.holder.stop(request["token"], request["grace_s"])
            case "freeze" | "thaw" as what:
                trouble = getattr(self.holder, what)(request["token"])
                return {"trouble": trouble} if trouble else {"done": True}
            case "signal":
                trouble = self.holder.signal(request["token"], request["name"], request["order"])
                return {"trouble": trouble} if trouble else {"done": True}
            case "forget":
                self.holder.forget(request["token"])
            case "list":
                return {"runs": self.holder.runs()}
            case "ping":
                return {"pid": os.getpid(), "live": len(self.holder.live)}
            case "shutdown":
                for token in list(self.holder.live):
                    self.holder.stop(token, request["grace_s"])
                self.closing = True
                self._goodbyes.append((client, {"id": request["id"], "done": True}))
                return None
            case unknown:
                return {"error": f"there is no request {unknown!r}"}
        return {"done": True}

    def _enter(self, client: Client, request: dict[str, Any]) -> dict[str, Any] | None:
        if self.closing or self._emptied():
            return {"refused": "not-running: this node is shutting down"}
        outcome = self.holder.enter(request, client)
        if isinstance(outcome, NotStarted):
            return {"refused": outcome.detail}
        pid, ends = outcome
        client.hand({"id": request.get("id"), "entered": pid}, ends.ours)
        ends.close_ours()
        return None

    def _emptied(self) -> bool:
        """Return whether no further process may start."""
        return self.draining

    def _tell_ends(self) -> None:
        for left in self.holder.sessions.left:
            assert isinstance(left.asked, Client)
            told = {"left": left.code, "run_over": left.run_over, "run_code": left.run_code}
            left.asked.send(told)
        self.holder.sessions.left.clear()
        for end in self.holder.ends:
            for client in self._clients:
                client.send({"exited": end})
        self.holder.ends.clear()

    def _sweep(self) -> None:
        """Drop clients that are gone; write to those that have something waiting."""
        for client in list(self._clients):
            if client.gone:
                self._selector.unregister(client.connection)
                client.connection.close()
                self._clients.remove(client)
                self.holder.sessions.gone(client)
                continue
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.outbox else 0)
            key = self._selector.get_key(client.connection)
            if key.events != events:
                self._selector.modify(client.connection, events, key.data)


def complain(text: str) -> None:
    """Leave a word for people in the log."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


# --- becoming a runner ----------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    """Detach and serve, unless another runner does so already; return the exit status.

    Args:
        arguments: The state folder, and after how many seconds without work the runner ends.
    """
    state, idle_seconds = os.path.realpath(arguments[0]), float(arguments[1])
    lock = os.open(os.path.join(state, "runner.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    listener = _listen(state)
    _detach(state)
    prepare()
    server = Server(listener, Holder(state), idle_seconds)
    server.run()
    try:
        os.unlink(os.path.join(state, "runner.sock"))
    except FileNotFoundError:
        pass  # The folder was deleted meanwhile.
    return 0


def _listen(state: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path = os.path.join(state, "runner.sock")
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass  # The usual case: an earlier runner removed it.
    # An address has room for 107 bytes; a folder of any depth is reached by its descriptor.
    folder = os.open(state, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    umask = os.umask(0o177)
    try:
        listener.bind(f"/proc/self/fd/{folder}/runner.sock")
    finally:
        os.umask(umask)
        os.close(folder)
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def _detach(state: str) -> None:
    """Leave the starter's session and process group, and its stdout and stderr."""
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    errors = os.open(os.path.join(state, "runner.log"), flags, 0o600)
    if os.fstat(errors).st_size > STDERR_BYTES_MAX:
        os.ftruncate(errors, 0)
    if os.fork():
        os._exit(0)
    os.setsid()
    os.dup2(null, 0)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    os.close(null)
    os.close(errors)
    os.chdir("/")


def prepare() -> None:
    """Take what children inherit back to its defaults, and become their reaper.

    Raises:
        OSError: The kernel does not let this process be a reaper.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGCHLD):
        # Caught, not ignored: exec resets what is caught, but a job would inherit what is ignored.
        signal.signal(number, _caught)
    _hurry()


def _caught(number: int, frame: Any) -> None:
    """Do nothing: the number arrives through the wakeup descriptor."""


def _hurry() -> None:
    """Run before the jobs where that is permitted; children start at the usual priority again."""
    if os.getpriority(os.PRIO_PROCESS, 0) != 0:
        return
    try:
        os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
        # Where the kernel shares time between sessions first, each job's session is its own.
        with open("/proc/self/autogroup", "w", encoding="ascii") as file:
            file.write(str(NICE))
    except (PermissionError, FileNotFoundError):
        pass  # Only root may, and not every kernel knows it: then time is shared evenly.
