"""JetStream's request interface, as far as Skep uses it: plain JSON over the link.

The answers are JSON documents that carry either a result or `error`. What no repetition changes is
returned as an ApiError or raised; silence and a cluster without a leader are waited out.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from skep.units import Instant
from skep.wire.bounds import COUNT_MAX
from skep_services.adapters.nats_client import Msg
from skep_services.adapters.nats_link import Link, Silence
from skep_services.ports import FullError, MissingStreamError, RefusedError

STREAM_NOT_FOUND = 10059
CONSUMER_NOT_FOUND = 10014
MESSAGE_NOT_FOUND = 10037
STORE_FAILED = 10077
KEY_IN_PROCESS = 10158
SUBJECT_IN_FLIGHT = 10164
WRONG_LAST_SEQUENCE = 10071

ASK_TIMEOUT_S = 2.0
"""How long one request waits: a healthy server answers in milliseconds, one that elects a leader
not at all, and then asking again is what finds the new leader."""
PAUSE_FIRST_S = 0.05
PAUSE_MAX_S = 1.0
"""Between repetitions: the first soon, as most troubles last for milliseconds; the later ones as
rare as keeps an election of 4 to 9 seconds free of noise."""


class ApiError(msgspec.Struct, frozen=True):
    """What the server refused: an HTTP-like `code` and its own `err_code`."""

    code: int = 0
    err_code: int = 0
    description: str = ""

    @property
    def is_transient(self) -> bool:
        """Whether asking again later may be answered otherwise.

        A full stream also reports 503, but stays full until room is made.
        """
        if self.err_code == STORE_FAILED:
            return not self.is_full
        return self.code in {429, 503} or self.err_code in {KEY_IN_PROCESS, SUBJECT_IN_FLIGHT}

    @property
    def is_full(self) -> bool:
        """Whether the stream holds as much as it may."""
        return self.err_code == STORE_FAILED and "maximum" in self.description


class PubAck(msgspec.Struct, frozen=True):
    """The answer to a publish: durable at `seq`, or `error`."""

    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: ApiError | None = None


class Answer(msgspec.Struct, frozen=True):
    """An answer of which only success or failure matters."""

    error: ApiError | None = None


class StreamState(msgspec.Struct, frozen=True):
    """What a stream holds. An empty stream's `first_seq` is one above its `last_seq`."""

    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0
    num_deleted: int = 0
    deleted: list[int] | None = None
    """The sequences that were deleted, if they were asked for; [0] of a stream that is empty."""

    @property
    def last_there(self) -> int:
        """Return the sequence of the last message that is there; 0 if none is."""
        gone = frozenset(self.deleted or ())
        last = self.last_seq if self.messages else 0
        while last > 0 and last in gone:
            last -= 1
        return last


class StreamInfo(msgspec.Struct, frozen=True):
    """A stream's configuration, as the server reports it, and state."""

    config: dict[str, Any] = {}
    state: StreamState = StreamState()
    error: ApiError | None = None


FIRST_EPOCH = "skep-first-epoch"
"""In the metadata of a log that was restored from a backup: its next epoch is no lower."""


def first_epoch(config: Mapping[str, Any]) -> int:
    """Return the least epoch that may begin in a log.

    Args:
        config: The configuration of its stream, as the server reports it.
    """
    text = str((config.get("metadata") or {}).get(FIRST_EPOCH, ""))
    said = int(text) if text.isascii() and text.isdecimal() and len(text) < 17 else 0
    return min(said, COUNT_MAX)


class StreamNames(msgspec.Struct, frozen=True):
    """The streams that take a subject."""

    streams: list[str] | None = None
    error: ApiError | None = None


class Stored(msgspec.Struct, frozen=True):
    """A message as the server keeps it: headers and payload are base64."""

    seq: int = 0
    hdrs: str = ""
    data: str = ""
    time: datetime | None = None


class StoredMessage(msgspec.Struct, frozen=True):
    """One message read back by sequence."""

    message: Stored | None = None
    error: ApiError | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The headers it was stored with."""
        raw = base64.b64decode(self.message.hdrs if self.message else "").decode()
        pairs = (line.partition(":") for line in raw.split("\r\n")[1:] if ":" in line)
        return {name.strip(): value.strip() for name, _, value in pairs}

    @property
    def at(self) -> Instant:
        """When it was stored (wall-clock ns, to the microsecond); 0 if that is not known."""
        time = self.message.time if self.message else None
        return Instant(int(time.timestamp() * 1e6) * 1000 if time is not None else 0)

    @property
    def payload(self) -> bytes:
        """What it says."""
        return base64.b64decode(self.message.data if self.message else "")


Reply = TypeVar("Reply", Answer, StreamInfo, StreamNames, StoredMessage)


class Pauses:
    """The growing pauses between repetitions of one thing."""

    def __init__(self) -> None:
        self._next_s = PAUSE_FIRST_S

    async def wait(self) -> None:
        """Sleep, the next time for twice as long."""
        await asyncio.sleep(self._next_s)
        self._next_s = min(2 * self._next_s, PAUSE_MAX_S)


async def ask(link: Link, verb: str, body: Any, reply: type[Reply]) -> Reply:
    """Return JetStream's answer, asking until there is one.

    The answer may carry an error that no repetition changes.

    Args:
        verb: What is asked, behind `$JS.API.`.
        body: What is sent as JSON; None: nothing.
        reply: The type of the answer.

    Raises:
        RefusedError: This identity may not ask it.
        ConnectionError: The link was closed.
    """
    payload = b"" if body is None else msgspec.json.encode(body)
    pauses = Pauses()
    while True:
        message = await link.call(f"$JS.API.{verb}", payload, {}, ASK_TIMEOUT_S)
        if isinstance(message, Msg):
            answer = msgspec.json.decode(message.data, type=reply)
            if answer.error is None or not answer.error.is_transient:
                return answer
        if message is not Silence.LOST:
            await pauses.wait()


async def publish_once(
    link: Link, subject: str, payload: bytes, headers: Mapping[str, str], timeout_s: float
) -> PubAck | Silence:
    """Publish into a stream once.

    Args:
        subject: A subject that the stream keeps.
        timeout_s: How long the acknowledgement is waited for (seconds).

    Returns:
        The acknowledgement, which may carry an error, or why there is none: then the message may or
        may not be stored.

    Raises:
        RefusedError: This identity may not publish there, or no server would take the message.
        ConnectionError: The link was closed.
    """
    message = await link.call(subject, payload, headers, timeout_s)
    if isinstance(message, Msg):
        return msgspec.json.decode(message.data, type=PubAck)
    return message


async def latest(link: Link, stream: str, subject: str) -> bytes:
    """Return the last message of a stream on a subject; empty if there is none."""
    answer = await ask(link, f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject}, StoredMessage)
    return answer.payload


async def stream_info(link: Link, stream: str, *, deleted: bool = False) -> StreamInfo:
    """Return what is known of `stream`.

    Args:
        link: The connection.
        stream: The name of the stream.
        deleted: Whether to ask which messages were deleted too.

    Raises:
        missing: A MissingStreamError: the stream does not exist.
        refused: A RefusedError: the server does not tell.
    """
    asked = {"deleted_details": True} if deleted else None
    info = await ask(link, f"STREAM.INFO.{stream}", asked, StreamInfo)
    if info.error is None:
        return info
    if info.error.err_code == STREAM_NOT_FOUND:
        raise missing(stream)
    raise refused(info.error, f"stream {stream}")


def missing(stream: str) -> MissingStreamError:
    """Return the error for a stream that is not there."""
    return MissingStreamError(
        f"stream {stream} does not exist, and Skep never creates a stream twice: if the bus lost "
        f"its storage, restore it from a backup; if it is a fresh bus, create the streams with the "
        f"first start"
    )


def unclaimed(subject: str) -> MissingStreamError:
    """Return the error for a subject that no stream keeps."""
    return MissingStreamError(f"no stream keeps {subject}: it is misspelt, or the stream is gone")


def refused(error: ApiError, what: str) -> RefusedError:
    """Return the error for an answer that no repetition changes."""
    kind = FullError if error.is_full else RefusedError
    return kind(f"{what}: {error.description} (error {error.err_code}, code {error.code})")
