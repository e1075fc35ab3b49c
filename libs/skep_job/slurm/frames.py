"""Messages between batch processes, and between `srun` and the first of them: lines of JSON."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
from typing import Any

LINE_BYTES_MAX = 4 * 2**20
"""A step carries its environment, of at most 2 MiB by Linux; base64 and JSON add half."""
PIECE_BYTES = 32 * 1024
NONCE_BYTES = 32


class FrameError(Exception):
    """The other end does not speak as it should."""


async def send(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    """Send one message, and wait while the other end is slow."""
    writer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
    await writer.drain()


async def receive(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """Return the next message; None at the end.

    Raises:
        FrameError: It is none.
    """
    try:
        line = await reader.readline()
    except (ValueError, ConnectionError) as error:
        raise FrameError(str(error)) from None
    if not line.endswith(b"\n"):
        return None
    try:
        message = json.loads(line)
    except ValueError:
        msg = "not JSON"
        raise FrameError(msg) from None
    if not isinstance(message, dict):
        msg = "not an object"
        raise FrameError(msg)
    return message


def proof(key: str, side: str, nonce: str) -> str:
    """Return what shows that a side knows the key.

    Args:
        key: The key.
        side: `leader` or `worker`: nobody can send back what it was sent.
        nonce: What the other side made up for this connection.
    """
    return hmac.new(key.encode(), f"{side}:{nonce}".encode(), hashlib.sha256).hexdigest()


def nonce() -> str:
    """Return a text that nobody can guess."""
    return os.urandom(NONCE_BYTES).hex()


def proves(message: dict[str, Any] | None, key: str, side: str, made_up: str) -> bool:
    """Return whether a message shows that its sender knows the key."""
    shown = (message or {}).get("proof")
    return isinstance(shown, str) and hmac.compare_digest(shown, proof(key, side, made_up))
