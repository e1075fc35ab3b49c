"""The framing between a job and its agent: four bytes of length, big-endian, then a JSON object."""

from __future__ import annotations

import json
import struct

FRAME_BYTES_MAX = 64 * 1024
"""Bytes of JSON in one frame. Messages are hundreds of bytes; more means a broken peer."""

_LENGTH = struct.Struct(">I")


class FrameError(Exception):
    """The peer sent something that is no frame; the connection cannot be used any further."""


def encode(message: dict[str, object]) -> bytes:
    """Return `message` as one frame.

    Raises:
        AssertionError: A bug: the message is above the limit of a frame.
        ValueError: A number in it is not finite.
    """
    body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    assert len(body) <= FRAME_BYTES_MAX, f"a message of {len(body)} bytes"
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Cuts a byte stream into messages. Holds at most one incomplete frame."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[dict[str, object]]:
        """Return the messages that `data` completes, in order.

        Raises:
            FrameError: A frame is above the limit, or its body is no JSON object.
        """
        self._rest += data
        messages = []
        while len(self._rest) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._rest)
            if length > FRAME_BYTES_MAX:
                reason = f"a frame of {length} bytes; the limit is {FRAME_BYTES_MAX}"
                raise FrameError(reason)
            end = _LENGTH.size + length
            if len(self._rest) < end:
                break
            messages.append(_decode(self._rest[_LENGTH.size : end]))
            self._rest = self._rest[end:]
        return messages


def _decode(body: bytes) -> dict[str, object]:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        reason = f"a frame that is not JSON: {error}"
        raise FrameError(reason) from error
    if not isinstance(message, dict):
        reason = f"a frame with a JSON {type(message).__name__}, expected an object"
        raise FrameError(reason)
    return message
