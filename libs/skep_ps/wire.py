"""Frames, deadlines and the handshake. A tensor is a memoryview on the wire.

A frame is four bytes of length (big-endian), a JSON object, and, when that has `bytes`, as many
bytes of payload: raw elements in the machine's order, straight from and into the tensors' memory.

The side that accepts a connection sends a nonce; the side that dials answers with its own nonce and
HMAC-SHA256(token, "dial" | run | both nonces), and is answered with the same over "accept". The run
is the job and its attempt, so that a process of an earlier attempt is not let in. Nothing else is
read before, and everything read before has at most HELLO_BYTES_MAX. What follows is neither
encrypted nor signed: the network between nodes is trusted as for MPI, gloo or NCCL.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import struct
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from skep_ps.errors import Broken, ParameterServerError, Refused, RequestFailed

Message = dict[str, Any]

SLICE_S = 1.0
"""The longest single wait. A process that was frozen for an hour has waited for one slice."""
HANDSHAKE_S = 10.0
HELLO_BYTES_MAX = 4 * 1024
HEADER_BYTES_MAX = 8 * 1024 * 1024
"""A placement has some 4 bytes for each chunk: enough for a million chunks."""
VECTORS_MAX = 512
"""Pieces in one call; the kernel takes 1,024."""

_LENGTH = struct.Struct(">I")
_SCRATCH_BYTES = 1024 * 1024


class Late(Exception):  # noqa: N818
    """A deadline has passed."""


class Patience:
    """A deadline that counts only the time in which this process was running.

    Each wait is cut into slices; a slice is charged with at most twice its length, so that a job
    that was suspended does not find all its deadlines passed when it is thawed.
    """

    def __init__(self, seconds: float, what: str) -> None:
        """Be patient for `seconds`; `what` was not there when they are over."""
        self.what = what
        self._seconds = self._left = seconds
        self._at = time.monotonic()

    def slice_s(self) -> float:
        """Return how long to wait next (seconds).

        Raises:
            Late: The time is over.
        """
        at = time.monotonic()
        self._left -= min(at - self._at, 2 * SLICE_S)
        self._at = at
        if self._left <= 0:
            reason = f"{self.what}: not within {self._seconds:g} s"
            raise Late(reason)
        return min(self._left, SLICE_S)


class AwakeClock:
    """Nanoseconds that pass only while this process runs; for the coordinator's deadlines."""

    def __init__(self) -> None:
        self._last = time.monotonic_ns()
        self._now = 0

    def now(self) -> int:
        """Return the time (ns). Called at least once in every slice."""
        at = time.monotonic_ns()
        self._now += min(at - self._last, int(2 * SLICE_S * 1e9))
        self._last = at
        return self._now


class Secret(NamedTuple):
    """What lets a process into the job: its token, and which attempt of which job it is."""

    token: str
    run: str

    def proof(self, side: str, *nonces: str) -> str:
        """Return what only a holder of the token can say.

        Args:
            side: "dial" or "accept": the side that says it.
            nonces: Those of both sides, that of the accepting side first.
        """
        text = "|".join(("skep-ps/1", side, self.run, *nonces))
        return hmac.new(self.token.encode(), text.encode(), hashlib.sha256).hexdigest()


class Channel:
    """A connection of frames. One thread receives; any may send."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(SLICE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # A host that is gone says nothing: it is found out in 10 s. A frozen process answers.
        for name, value in (("TCP_KEEPIDLE", 4), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._socket = connection
        self._sending = threading.Lock()
        self._scratch = bytearray()
        self.unread = 0
        """Bytes of the latest frame's payload that are still to be read."""

    def send(
        self, message: Message, parts: Sequence[memoryview] = (), *, wait_s: float = 60.0
    ) -> None:
        """Send one frame.

        Args:
            message: The header; `bytes` is added if there is a payload.
            parts: The payload.
            wait_s: How long there may be no progress (seconds).

        Raises:
            Broken: The other side has closed the connection or does not read.
        """
        if parts:
            message = {**message, "bytes": sum(part.nbytes for part in parts)}
        body = json.dumps(message, separators=(",", ":")).encode()
        head = memoryview(_LENGTH.pack(len(body)) + body)
        with self._sending:
            self._send_all([head, *parts], wait_s)

    def receive(self, patience: Patience, bytes_max: int = HEADER_BYTES_MAX) -> Message:
        """Return the next frame without its payload, whose size is in `unread` then.

        Args:
            patience: How long to wait.
            bytes_max: The largest header that is taken (bytes).

        Raises:
            Broken: The connection has ended, or what came is no frame.
            Late: Patience is over.
        """
        head = bytearray(_LENGTH.size)
        self.read_into([memoryview(head)], patience)
        (length,) = _LENGTH.unpack(head)
        if length > bytes_max:
            reason = f"a frame of {length} bytes; the limit is {bytes_max}"
            raise Broken(reason)
        body = bytearray(length)
        self.read_into([memoryview(body)], patience)
        try:
            message = json.loads(body)
        except (ValueError, RecursionError) as error:
            reason = f"a frame that is not JSON: {error}"
            raise Broken(reason) from error
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            reason = "a frame without a type"
            raise Broken(reason)
        self.unread = int(message.get("bytes", 0))
        return message

    def read_into(self, parts: Sequence[memoryview], patience: Patience) -> None:
        """Fill `parts` with the payload.

        Args:
            parts: They are overwritten.
            patience: How long to wait.

        Raises:
            Broken: The connection has ended.
            Late: Patience is over.
        """
        left = [part for part in parts if part.nbytes]
        first = 0
        while first < len(left):
            try:
                count = self._socket.recvmsg_into(left[first : first + VECTORS_MAX])[0]
            except TimeoutError:
                patience.slice_s()
                continue
            except OSError as error:
                raise Broken(str(error)) from error
            if not count:
                reason = "the other side closed the connection"
                raise Broken(reason)
            self.unread -= count
            first = _advance(left, first, count)

    def skip(self, patience: Patience) -> None:
        """Read what is left of the payload and forget it."""
        if not self._scratch:
            self._scratch = bytearray(_SCRATCH_BYTES)
        while self.unread > 0:
            part = memoryview(self._scratch)[: min(self.unread, _SCRATCH_BYTES)]
            self.read_into([part], patience)

    def own_host(self) -> str:
        """Return the address by which the other side sees this machine."""
        return str(self._socket.getsockname()[0])

    def finish(self) -> None:
        """Say that nothing more is sent; what the other side sends is received as before."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # The other side has ended it already.

    def hang_up(self) -> None:
        """Send and wait for nothing more: a reader gets what has come, and then Broken."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # The other side has ended it already.

    def close(self) -> None:
        """End it; a thread that waits on it wakes up with Broken."""
        self.hang_up()
        self._socket.close()

    def _send_all(self, parts: Sequence[memoryview], wait_s: float) -> None:
        left = [part.cast("B") if part.format != "B" else part for part in parts if part.nbytes]
        first = 0
        patience = Patience(wait_s, "the other side reads")
        while first < len(left):
            try:
                count = self._socket.sendmsg(
                    left[first : first + VECTORS_MAX], (), getattr(socket, "MSG_NOSIGNAL", 0)
                )
            except TimeoutError:
                try:
                    patience.slice_s()
                except Late as late:
                    raise Broken(str(late)) from late
                continue
            except OSError as error:
                raise Broken(str(error)) from error
            patience = Patience(wait_s, patience.what)
            first = _advance(left, first, count)


def _advance(parts: list[memoryview], first: int, count: int) -> int:
    """Return the first part that is not done after `count` more bytes; cut it to its rest."""
    while count:
        size = parts[first].nbytes
        if count < size:
            parts[first] = parts[first][count:]
            return first
        count -= size
        first += 1
    return first


def expect(message: Message, parts: Sequence[memoryview]) -> None:
    """Check that the payload of a message has the size of `parts`.

    Raises:
        RequestFailed: It has another size.
    """
    expected, given = sum(part.nbytes for part in parts), int(message.get("bytes", 0))
    if expected != given:
        reason = f"{message['type']} with {given} bytes, expected {expected}"
        raise RequestFailed(reason)


def dial(host: str, port: int, secret: Secret, wait_s: float = HANDSHAKE_S) -> Channel:
    """Return a connection that both sides trust.

    Args:
        host: The host of the other side.
        port: Its port.
        secret: What lets this process in.
        wait_s: How long connecting and the handshake may take, each (seconds).

    Raises:
        Broken: The other side is away, or does not do the handshake in time.
        Refused: The token or the attempt is not the same on both sides.
    """
    try:
        connection = socket.create_connection((host, port), timeout=wait_s)
    except OSError as error:
        reason = f"{host}:{port}: {error}"
        raise Broken(reason) from error
    channel = Channel(connection)
    patience = Patience(wait_s, f"{host}:{port} answers")
    try:
        theirs = str(channel.receive(patience, HELLO_BYTES_MAX).get("nonce", ""))
        ours = secrets.token_hex(16)
        channel.send({"type": "prove", "nonce": ours, "proof": secret.proof("dial", theirs, ours)})
        answer = channel.receive(patience, HELLO_BYTES_MAX)
    except (Broken, Late) as error:
        channel.close()
        reason = f"{host}:{port}: {error}"
        raise Broken(reason) from error
    if answer["type"] == "refused":
        channel.close()
        raise Refused(f"{host}:{port}: {answer.get('why', '')}")  # noqa: EM102
    if not hmac.compare_digest(str(answer.get("proof", "")), secret.proof("accept", theirs, ours)):
        channel.close()
        reason = f"{host}:{port} does not know the job's token"
        raise Refused(reason)
    return channel


def admit(connection: socket.socket, secret: Secret) -> Channel | None:
    """Return the trusted connection of a process that dialled.

    Returns:
        None if it could not prove itself; the connection is closed then.
    """
    channel = Channel(connection)
    patience = Patience(HANDSHAKE_S, "proof of the job's token")
    ours = secrets.token_hex(16)
    try:
        channel.send({"type": "challenge", "nonce": ours})
        answer = channel.receive(patience, HELLO_BYTES_MAX)
        theirs = str(answer.get("nonce", ""))
        proof = secret.proof("dial", ours, theirs)
        if not hmac.compare_digest(str(answer.get("proof", "")), proof):
            why = "this is another job, another attempt of it, or the token is wrong"
            channel.send({"type": "refused", "why": why})
            channel.close()
            return None
        channel.send({"type": "welcome", "proof": secret.proof("accept", ours, theirs)})
    except (Broken, Late):
        channel.close()
        return None
    return channel


class Settings(NamedTuple):
    """Where the coordinator is, what lets us in, and how long to wait for what."""

    host: str
    port: int
    secret: Secret
    wait_s: float
    """For a step of all workers, for a scaling, and for a coordinator that is away."""
    lost_s: float
    """A broken connection may be made anew for so long."""


TOKEN_CHARACTERS_MIN = 16
WAIT_S, LOST_S = 300.0, 5.0


def settings(environ: dict[str, str]) -> Settings:
    """Return what SKEP_PS (host:port), SKEP_PS_TOKEN, SKEP_JOB, SKEP_GEN, SKEP_PS_WAIT_S and
    SKEP_PS_LOST_S say.

    Raises:
        ParameterServerError: One is missing or wrong; the text names it.
    """  # noqa: D205
    host, _, port = environ.get("SKEP_PS", "").rpartition(":")
    if not host or not port.isdecimal():
        reason = (
            f"SKEP_PS is {environ.get('SKEP_PS', '')!r}: it must be the coordinator's HOST:PORT; "
            "`python -m skep_ps.launch` sets it"
        )
        raise ParameterServerError(reason)
    token = environ.get("SKEP_PS_TOKEN", "")
    if len(token) < TOKEN_CHARACTERS_MIN:
        reason = (
            f"SKEP_PS_TOKEN must be a secret of at least {TOKEN_CHARACTERS_MIN} characters, the "
            "same for every process of the job (`env` in its spec)"
        )
        raise ParameterServerError(reason)
    run = f"{environ.get('SKEP_JOB', 'local')}.{environ.get('SKEP_GEN', '1')}"
    return Settings(
        host=host,
        port=int(port),
        secret=Secret(token, run),
        wait_s=_seconds(environ, "SKEP_PS_WAIT_S", WAIT_S),
        lost_s=_seconds(environ, "SKEP_PS_LOST_S", LOST_S),
    )


def _seconds(environ: dict[str, str], name: str, default: float) -> float:
    text = environ.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = -1.0
    if not 0 < value < 1e6:
        reason = f"{name} is {text!r}, expected a number of seconds above 0"
        raise ParameterServerError(reason)
    return value
