"""How the state of one rank goes from the process that has it to its successor, over TCP.

    source                                  successor
    magic, nonce                -->
                                <--         nonce
    proof of the token          -->         (wrong: closed without a word)
                                <--         proof of the token
    about, plain values, layout -->
    tensors, a sum per chunk    -->         read into the memory they stay in
                                <--         loaded, or failed and why
    taken                       -->         only now does the successor call itself loaded

The successor counts as loaded only if the source has heard so: when the connection ends at any
earlier moment the source goes on, and the successor listens again. Neither trains on its own
account after `taken`. The token proves which process is meant; the bytes are not encrypted, as
those of gradients are not.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import struct
import zlib
from collections.abc import Iterator
from typing import Any

from skep_job.state.checksum import checksum
from skep_job.state.snapshot import (
    READABLE,
    VERSION,
    Peek,
    Snapshot,
    host_bytes,
    layout_of,
    version_of,
)
from skep_job.state.state_tree import Tensors

CONNECT_S = 5.0
"""How long the source tries to reach its successor, whose port is open since it was ready."""
SILENCE_S = 20.0
"""How long either side waits for the other's next bytes; training stands still meanwhile."""
assert CONNECT_S < SILENCE_S

CHUNK_BYTES = 1024 * 1024
"""Bytes under one sum: as many as stay in the processor's cache between the sum and the copy."""
FRAME_BYTES_MAX = 256 * 1024 * 1024
"""Bytes of the plain values; the user's own state may be large."""

_MAGIC = b"skep-state-2\n"
_NONCE_BYTES = 16
_FRAME = struct.Struct(">II")  # length, CRC-32
_SUM = struct.Struct(">I")


class Broken(Exception):  # noqa: N818  a name for what happened
    """The other side is not what it should be, sent what it should not, or failed and said why."""


def frame(message: dict[str, Any]) -> bytes:
    """Return one frame, to be sent more than once."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return _FRAME.pack(len(body), zlib.crc32(body)) + body


class Wire:
    """One connection with frames of JSON on it, and raw bytes between them."""

    def __init__(self, peer: socket.socket) -> None:
        self._socket = peer
        peer.settimeout(SILENCE_S)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: dict[str, Any]) -> None:
        """Send one frame.

        Raises:
            OSError: The connection failed.
        """
        self.send_frame(frame(message))

    def send_frame(self, data: bytes) -> None:
        """Send what `frame` returned.

        Raises:
            OSError: The connection failed.
        """
        self._send_all(data)

    def receive(self) -> dict[str, Any]:
        """Return the next frame.

        Raises:
            Broken: The frame is damaged or none, or the connection ended.
            OSError: The connection failed, or the other side is silent for SILENCE_S.
        """
        length, crc = _FRAME.unpack(self._read(_FRAME.size))
        if length > FRAME_BYTES_MAX:
            reason = f"a frame of {length} bytes"
            raise Broken(reason)
        body = self._read(length)
        if zlib.crc32(body) != crc:
            reason = "a frame was damaged on its way"
            raise Broken(reason)
        try:
            message = json.loads(body)
        except ValueError as error:
            reason = "a frame that is not JSON"
            raise Broken(reason) from error
        if not isinstance(message, dict):
            reason = "a frame that is no object"
            raise Broken(reason)
        return message

    def prove(self, token: str, mine: str, theirs: str) -> None:
        """Prove to know the token, and have the other side prove it.

        The source speaks first, so that a process without the token learns nothing from a
        successor.

        Args:
            token: The secret of the move.
            mine: The part of this side: "source" or "successor".
            theirs: The part of the other side.

        Raises:
            Broken: The other side speaks another protocol, or does not know the token.
            OSError: The connection failed.
        """
        own = os.urandom(_NONCE_BYTES)
        leads = mine == "source"
        if leads:
            self._send_all(_MAGIC + own)
            other = self._read(_NONCE_BYTES)
        else:
            if self._read(len(_MAGIC)) != _MAGIC:
                reason = "what connected speaks another protocol, or another version of it"
                raise Broken(reason)
            other = self._read(_NONCE_BYTES)
            self._send_all(own)
        nonces = own + other if leads else other + own
        if leads:
            self._send_all(_proof(token, mine, nonces))
        if not hmac.compare_digest(
            self._read(hashlib.sha256().digest_size), _proof(token, theirs, nonces)
        ):
            reason = f"the {theirs} does not know the token of this move"
            raise Broken(reason)
        if not leads:
            self._send_all(_proof(token, mine, nonces))

    def send_tensors(self, tensors: Tensors, peek: Peek | None = None) -> int:
        """Send all bytes in order, a sum behind each chunk; return their number.

        Args:
            tensors: The tensors.
            peek: It returns the bytes of those whose memory was given back; None: there are none.

        Raises:
            OSError: The connection failed.
        """
        total = 0
        for chunk, _keep in _chunks(tensors, peek):
            # Summed at once, so that the bytes are in the processor's cache when they are copied.
            after = _SUM.pack(checksum(chunk))
            self._send_all(chunk)
            self._send_all(after)
            total += len(chunk)
        return total

    def receive_tensors(self, tensors: Tensors) -> int:
        """Fill all tensors in order; return the number of bytes.

        Args:
            tensors: Their content is overwritten.

        Raises:
            Broken: Bytes were damaged on their way, or the connection ended.
            OSError: The connection failed.
        """
        total, damaged = 0, False
        for chunk, _keep in _chunks(tensors):
            self._read_into(chunk)
            (expected,) = _SUM.unpack(self._read(_SUM.size))
            damaged |= checksum(chunk) != expected
            total += len(chunk)
        if damaged:  # Only now: the other side hears of it when it has sent everything.
            reason = "some of the state was damaged on its way"
            raise Broken(reason)
        return total

    def _send_all(self, data: bytes | memoryview) -> None:
        self._socket.sendall(data, socket.MSG_NOSIGNAL)

    def _read(self, count: int) -> bytes:
        data = bytearray(count)
        self._read_into(memoryview(data))
        return bytes(data)

    def _read_into(self, data: memoryview) -> None:
        done = 0
        while done < len(data):
            count = self._socket.recv_into(data[done:])
            if not count:
                reason = "the connection ended half way"
                raise Broken(reason)
            done += count


def send(address: tuple[str, int], token: str, snapshot: Snapshot, about: dict[str, Any]) -> int:
    """Send the state to a successor; return its bytes once that has loaded it.

    After an exception the successor will not train.

    Args:
        address: The successor's host and port.
        token: The secret of the move.
        snapshot: The state.
        about: What the source says of itself.

    Raises:
        Broken: The other side is not the successor, or could not load the state.
        OSError: The connection failed.
    """
    with socket.create_connection(address, CONNECT_S) as peer:
        wire = Wire(peer)
        wire.prove(token, "source", "successor")
        layout = layout_of(snapshot.tensors)
        version = version_of(snapshot.plain)
        wire.send({"version": version, "about": about, "plain": snapshot.plain, "layout": layout})
        moved = wire.send_tensors(snapshot.tensors, snapshot.peek)
        answer = wire.receive()
        if not answer.get("loaded"):
            reason = f"the successor could not load it: {str(answer.get('error'))[:500]}"
            raise Broken(reason)
        wire.send({"taken": True})
        return moved


def is_ours(header: dict[str, Any], **expected: Any) -> str:
    """Return why a header is not what this successor awaits.

    Args:
        header: What the source sent first.
        expected: Values in what the source says of itself, by name.

    Returns:
        Empty if it is.
    """
    if header.get("version") not in READABLE:
        return f"the state is of version {header.get('version')}, and this is version {VERSION}"
    about = header.get("about")
    if not isinstance(about, dict):
        return "the state does not say whose it is"
    for name, value in expected.items():
        if about.get(name) != value:
            return f"the state is of {name} {about.get(name)}, and this is {name} {value}"
    return ""


def _chunks(tensors: Tensors, peek: Peek | None = None) -> Iterator[tuple[memoryview, Any]]:
    for tensor in tensors.values():
        data, keep = host_bytes(tensor, peek)
        for begin in range(0, len(data), CHUNK_BYTES):
            yield data[begin : begin + CHUNK_BYTES], keep


def _proof(token: str, who: str, nonces: bytes) -> bytes:
    return hmac.digest(token.encode(), f"skep {who} ".encode() + nonces, "sha256")
