"""Copies of a gang's files between the memories of its nodes, over TCP.

    a rank that asks                        the rank that answers
    magic, nonces, proofs of the token  <-> as for any transfer of state
    {"put": boundary, rank, bytes}      -->  {"go": true} | {"error"}
    the bytes, a CRC per chunk          -->  {"stored": true} | {"error"}
    {"get": boundary, rank}             -->  {"bytes"} | {"error"}, the bytes

The token is the answering rank's own, new in every process, and known to the ranks of its gang
alone: they hear it over their process group.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import secrets
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from skep_job.link.orders import describe
from skep_job.observe.reporter import complain
from skep_job.replicas.memory import Key, Memory
from skep_job.state.checkpoint_folder import Superseded
from skep_job.state.transfer import CONNECT_S, Broken, Wire

TOKEN_BITS = 124
"""Two numbers of 62 bits, which go over a process group."""
AT_ONCE = 16
"""Connections that are answered at one time; any more are closed."""

PROVE_S = 2.0
"""Seconds that a connection has to show that it knows the token: it takes a place meanwhile."""


class Address(NamedTuple):
    """Where a rank answers."""

    host: str
    port: int
    token: int


class Server:
    """Answers for this rank's node until it is closed, on threads of its own."""

    def __init__(self, memory: Memory, may_put: Callable[[Key, int], bool]) -> None:
        """Listen.

        Args:
            memory: The node's folder.
            may_put: Says whether a file of a boundary and a rank is one of this gang's.

        Raises:
            OSError: No port can be had.
        """
        self._memory, self._may_put = memory, may_put
        self.token = secrets.randbits(TOKEN_BITS)
        self._room = threading.BoundedSemaphore(AT_ONCE)
        self._listener = socket.create_server(("", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, name="skep-replicas", daemon=True).start()

    def close(self) -> None:
        """Answer no more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            if not self._room.acquire(blocking=False):
                peer.close()
                continue
            threading.Thread(
                target=self._answer, args=(peer,), name="skep-replica", daemon=True
            ).start()

    def _answer(self, peer: socket.socket) -> None:
        with peer:
            try:
                wire = Wire(peer)
                self._prove(wire, peer)
                request = wire.receive()
                try:
                    self._do(wire, request)
                except (Superseded, Broken, OSError) as error:
                    wire.send({"error": describe(error)})
            except (Broken, OSError):
                pass  # The rank that asked says so, or is gone.
            except Exception as error:
                complain(f"a request for copies in memory failed: {describe(error)}")
            finally:
                self._room.release()

    def _prove(self, wire: Wire, peer: socket.socket) -> None:
        # A timeout of the socket would begin again with each byte.
        timer = threading.Timer(PROVE_S, _shut, (peer,))
        timer.daemon = True
        timer.start()
        try:
            wire.prove(_text(self.token), "source", "successor")
        finally:
            timer.cancel()

    def _do(self, wire: Wire, request: dict[str, Any]) -> None:
        kind = "put" if "put" in request else "get"
        key, rank = _read(request.get(kind))
        if kind == "get":
            path = self._memory.path(key, rank)
            size = path.stat().st_size
            tensor = _mapped(path, size)
            wire.send({"bytes": size})
            wire.send_tensors({"file": tensor})
            return
        announced = _size(request, self._memory.limit)
        if not self._may_put(key, rank):
            reason = "a file of another gang"
            raise Broken(reason)

        def write(path: Path) -> None:
            wire.send({"go": True})
            wire.receive_tensors({"file": _mapped(path, announced)})

        self._memory.take_in(key, rank, announced, write)
        wire.send({"stored": True})


def put(address: Address, memory: Memory, key: Key, rank: int) -> int:
    """Have another node keep a copy of a file of this node; return its bytes.

    Args:
        address: Of a rank on that node.
        memory: This node's folder.
        key: The boundary.
        rank: The rank whose part it is.

    Raises:
        Broken: The other side refused, or is not the rank that is meant.
        OSError: The file cannot be read, or the connection failed.
    """
    path = memory.path(key, rank)
    size = path.stat().st_size
    with socket.create_connection(address[:2], CONNECT_S) as peer:
        wire = Wire(peer)
        wire.prove(_text(address.token), "successor", "source")
        wire.send({"put": [*key, rank], "bytes": size})
        _require(wire.receive(), "go")
        wire.send_tensors({"file": _mapped(path, size)})
        _require(wire.receive(), "stored")
    return size


def get(address: Address, memory: Memory, key: Key, rank: int) -> int:
    """Fetch a file into this node's folder; return its bytes.

    Args:
        address: Of a rank on a node that has it.
        memory: This node's folder.
        key: The boundary.
        rank: The rank whose part it is.

    Raises:
        Superseded: A later attempt has written here.
        Broken: The other side refused, or bytes were damaged on their way.
        OSError: There is no room, or the connection failed.
    """
    with socket.create_connection(address[:2], CONNECT_S) as peer:
        wire = Wire(peer)
        wire.prove(_text(address.token), "successor", "source")
        wire.send({"get": [*key, rank]})
        answer = wire.receive()
        size = _size(answer, memory.limit)

        def write(path: Path) -> None:
            wire.receive_tensors({"file": _mapped(path, size)})

        return memory.take_in(key, rank, size, write)[1]


def _require(answer: dict[str, Any], word: str) -> None:
    if answer.get(word) is not True:
        raise Broken(str(answer.get("error", "an answer that is none"))[:500])


def _size(message: dict[str, Any], most: int) -> int:
    """Return the bytes that a message announces.

    Raises:
        Broken: They are none or too many, or the other side refuses.
    """
    size = message.get("bytes")
    if type(size) is int and 0 < size <= most:
        return size
    error = message.get("error", f"a file of {size!r} bytes, where {most} are the bound")
    raise Broken(str(error)[:500])


def _read(body: Any) -> tuple[Key, int]:
    """Return the boundary and the rank in a request.

    Raises:
        Broken: There is none.
    """
    if not isinstance(body, list) or len(body) != 4:
        reason = "a request that names no file"
        raise Broken(reason)
    if not all(type(each) is int and 0 <= each < 2**53 for each in body):
        reason = "a request with numbers that are none"
        raise Broken(reason)
    attempt, step, world, rank = body
    return Key(attempt, step, world), rank


def _mapped(path: Path, size: int) -> Any:
    """Return a file's bytes as a tensor; what is written there is written to the file.

    Args:
        path: The file, which is there.
        size: Its bytes, or those of them that are wanted, from the first on; at least 1.

    Raises:
        OSError: It is not there, or has fewer bytes.
    """
    import torch

    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        has = os.fstat(descriptor).st_size
        if not 0 < size <= has:
            reason = f"it has {has} bytes, and {size} are wanted"
            raise OSError(errno.EINVAL, reason, str(path))
        mapped = mmap.mmap(descriptor, size)  # Unmapped with the tensor, which alone refers to it.
    finally:
        os.close(descriptor)
    return torch.frombuffer(mapped, dtype=torch.uint8)


def _shut(peer: socket.socket) -> None:
    with contextlib.suppress(OSError):  # It has ended already.
        peer.shutdown(socket.SHUT_RDWR)


def _text(token: int) -> str:
    return f"{token:x}"
