"""Reading a stream in order, exactly once, from a position the reader keeps itself.

A follow is a pull consumer of its own: in memory, without acknowledgements, named after the
identity so that permissions can name it. It lives for one *round*. Within a round the server
numbers what it delivers 1, 2, 3, …; anything that breaks the numbering, says that the consumer is
gone, or keeps silent for longer than heartbeats allow ends the round, and the next one makes the
consumer anew behind the last message that was delivered. So the consumer's state never matters,
and what the reader saw is always a prefix of the stream.

    pull requests ──> server ──messages, heartbeats──> queue ──> deliver
         ^                                               │
         └── asked again when half of the batch is left ─┘

While `deliver` waits, nothing more is asked for: at most one batch waits here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from skep.units import MIB, NS_PER_SECOND, Instant
from skep.wire import subjects
from skep_services.adapters.archive import Archive
from skep_services.adapters.nats_api import (
    CONSUMER_NOT_FOUND,
    STREAM_NOT_FOUND,
    Answer,
    ApiError,
    Pauses,
    ask,
    missing,
    refused,
    stream_info,
)
from skep_services.adapters.nats_client import Msg, RawSubscription
from skep_services.adapters.nats_link import Link
from skep_services.adapters.nats_listen import end
from skep_services.ports import CorruptLogError, Deliver, Delivery, RefusedError

log = logging.getLogger(__name__)

BATCH_MESSAGES = 256
BATCH_BYTES = 4 * MIB
"""What is asked for at once. The bytes keep a batch of large records below the server's 32 MiB for
a slow connection, and are above the largest message."""
PULL_EXPIRES_S = 30
HEARTBEAT_EVERY_S = 0.5
SILENCE_S_MAX = 2.0
"""Four heartbeats: fewer would take a busy loop for a dead consumer."""
CHECK_EVERY_S = 0.5
CONSUMER_IDLE_S_MAX = 300
"""When the server may drop a consumer without requests, for readers that died."""
ARCHIVE_SLICE = 256
"""Archived messages between two moments in which others may run."""
ROUND_SHORT_S = 1.0
"""A round that ends sooner counts as failed, and the next one starts after a pause."""
BEHIND_S_MAX = 12.0
"""How long an isolated former leader may still answer with an old state of a replicated stream."""
CLOSE_TIMEOUT_S = 0.5
CONSUMER_EXISTS = frozenset({10013, 10148})
"""A creation whose answer was lost took effect: delete and create again."""
BATCH_ENDS = ("Request Timeout", "Message Size Exceeds MaxBytes", "Batch Completed", "No Messages")
"""What a pull request ends with in good order, beside its last message."""

assert HEARTBEAT_EVERY_S * 4 <= SILENCE_S_MAX < PULL_EXPIRES_S
assert BATCH_BYTES > MIB, "a message above the batch would never be delivered"

ACK_V1_TOKENS = 9
ACK_V2_TOKENS_MIN = 11


class Position(NamedTuple):
    """What the reply subject of a delivered message says about it."""

    stream_sequence: int
    consumer_sequence: int
    at: Instant


def position_of(reply: str) -> Position:
    """Parse `$JS.ACK.<stream>.<consumer>.<tries>.<sseq>.<cseq>.<ns>.<pending>`.

    Servers with `js_ack_fc_v2` put a domain and an account before the stream, and may add a token
    at the end.
    """
    tokens = reply.split(".")
    shift = 0 if len(tokens) == ACK_V1_TOKENS else 2
    assert len(tokens) == ACK_V1_TOKENS or len(tokens) >= ACK_V2_TOKENS_MIN, reply
    return Position(int(tokens[5 + shift]), int(tokens[6 + shift]), Instant(int(tokens[7 + shift])))


class Batch(NamedTuple):
    """How much a follow asks for at once, in messages and bytes."""

    messages: int
    size: int


WHOLE_BATCH = Batch(BATCH_MESSAGES, BATCH_BYTES)


def _takes(pattern: str, subject: str) -> bool:
    """Return whether a subject is one of a pattern of NATS (`*`: one token, `>`: all further)."""
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted, tokens = wanted[:-1], tokens[: len(wanted) - 1]
    return len(wanted) == len(tokens) and all(
        one in ("*", token) for one, token in zip(wanted, tokens, strict=True)
    )


class _Round:
    """One consumer's life: what was asked for, what came, and why it is over."""

    def __init__(self) -> None:
        self.raw: RawSubscription | None = None
        self.inbox = ""
        self.asked = 0
        self.consumer_sequence = 0
        self.began_at = asyncio.get_running_loop().time()
        self.heard_at = self.began_at
        self.over = ""


class Follow:
    """One running `Bus.follow`. `restarts` counts the rounds after the first."""

    def __init__(
        self,
        link: Link,
        stream: str,
        after: int,
        deliver: Deliver,
        *,
        subjects: Sequence[str] = (),
        known: int = 0,
        batch: Batch = WHOLE_BATCH,
        on_close: Callable[[Follow], None] = lambda _: None,
        archive: Archive | None = None,
    ) -> None:
        """Follow a stream; nothing is asked of the bus before `start`.

        Args:
            link: The connection, whose identity the consumer is named after.
            after: The sequence behind which delivery begins.
            deliver: Takes each message; while it waits, nothing more is asked for.
            subjects: The subjects that are delivered; empty: every subject.
            known: The sequence up to which the stream was read at an earlier time: it must reach so
                far. 0: none is known.
            batch: How much is asked for at once.
            on_close: Is called when this is closed.
            archive: Has what the stream no longer has: it is delivered first. None: nothing has.
        """
        assert after >= 0, after
        self.stream = stream
        self.restarts = 0
        self._link = link
        self._consumer = f"{stream}.{link.reader}"
        self._delivered = after
        self._known = known
        self._deliver = deliver
        self._subjects = tuple(subjects)
        self._batch = batch
        self._on_close = on_close
        self._archive = archive
        self._queue: deque[tuple[Msg, Position]] = deque()
        self._some = asyncio.Event()
        self._round = _Round()
        self._pauses = Pauses()
        self._pump: asyncio.Task[None] | None = None
        self._checker: asyncio.TimerHandle | None = None
        self._closed = False

    async def start(self) -> None:
        """Begin to deliver.

        SUBMIT may begin behind what should come next, as decided submissions are taken out
        (`compaction`), but not behind what a reader of all of it has decided: then the reader's log
        is older than it was. A stream that keeps only the latest message of each subject begins
        where the oldest of those is.

        Raises:
            MissingStreamError: The stream does not exist.
            RefusedError: This identity may not follow it.
            CorruptLogError: The stream ends before `after` or `known`, or begins behind what should
                come next: going on would lose messages unseen.
        """
        name = f"follow {self.stream}"
        if await self._is_archived():
            self._pump = asyncio.create_task(self._run_archived(), name=name)
            return
        await self._go()
        self._pump = asyncio.create_task(self._run(), name=name)

    async def _go(self) -> None:
        """Begin with what the stream has."""
        await self._begin()
        self._link.on_up(self, lambda: self._end_round(self._round, "the connection was lost"))
        self._check()

    async def close(self) -> None:
        self._closed = True
        self._link.forget(self)
        if self._checker is not None:
            self._checker.cancel()
        await end(self._pump)
        if self._round.raw is not None:
            await self._link.unsubscribe(self._round.raw)
        self._on_close(self)
        if self._link.connected:
            # Only tidiness: a consumer that stays is replaced by the next follow, or expires.
            try:
                await self._link.call(
                    f"$JS.API.CONSUMER.DELETE.{self._consumer}", b"", {}, CLOSE_TIMEOUT_S
                )
            except (RefusedError, ConnectionError):
                pass

    # --- rounds ----------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Make the consumer behind the last delivered message and ask for the first batch."""
        await self._check_stream()
        await self._make_consumer()
        current = _Round()
        self._round = current
        self._queue.clear()
        current.inbox = self._link.new_inbox()
        current.raw = await self._link.subscribe(
            current.inbox, lambda message: self._take(current, message)
        )
        await self._ask_more()

    async def _check_stream(self) -> None:
        loop = asyncio.get_running_loop()
        patience_ends_at = loop.time() + BEHIND_S_MAX
        while True:
            info = await stream_info(self._link, self.stream)
            # A position (`known`) in all of the stream is admission's, and it alone takes out.
            decides = self._known > 0 and not self._subjects
            compacted = self.stream == subjects.SUBMIT and not decides
            # What a later message on its subject replaced is needed no more.
            latest_only = info.config.get("max_msgs_per_subject") == 1
            lacks = info.state.first_seq > self._delivered + 1
            if lacks and not compacted and not latest_only:
                message = (
                    f"stream {self.stream} begins at {info.state.first_seq}, but what follows "
                    f"{self._delivered} is needed next: messages in between were removed. If they "
                    f"were archived (`skep log archive`), name the archive (SKEP_ARCHIVE)"
                )
                raise CorruptLogError(message)
            known = max(self._known, self._delivered)
            if info.state.last_seq >= known:
                return
            if info.config.get("num_replicas", 1) == 1 or loop.time() > patience_ends_at:
                message = (
                    f"stream {self.stream} ends at {info.state.last_seq}, but {known} "
                    f"was delivered from it: the bus lost data"
                )
                raise CorruptLogError(message)
            await self._pauses.wait()

    async def _is_archived(self) -> bool:
        """Return whether the stream lacks what comes next, and the archive has it."""
        if self._archive is None:
            return False
        info = await stream_info(self._link, self.stream)
        gone = info.state.first_seq > self._delivered + 1
        return gone and self._archive.last(self.stream) >= info.state.first_seq - 1

    async def _run_archived(self) -> None:
        """Deliver what is archived, then what the stream has."""
        archive = self._archive
        assert archive is not None
        try:
            while await self._is_archived():
                for number, old in enumerate(archive.read(self.stream, self._delivered)):
                    if not self._subjects or any(
                        _takes(one, old.subject) for one in self._subjects
                    ):
                        await self._deliver(old)
                    if number % ARCHIVE_SLICE == 0:
                        await asyncio.sleep(0)
                self._delivered = archive.last(self.stream)
            await self._go()
        except Exception as error:
            self._link.fatal(error)
            return
        await self._run()

    async def _make_consumer(self) -> None:
        create = f"CONSUMER.CREATE.{self._consumer}"
        config: dict[str, Any] = {
            "name": self._link.reader,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self._delivered + 1,
            "ack_policy": "none",
            "replay_policy": "instant",
            "inactive_threshold": CONSUMER_IDLE_S_MAX * NS_PER_SECOND,
            "num_replicas": 1,
            "mem_storage": True,
        }
        if len(self._subjects) == 1:
            # The server wants the one filter in the subject too, where permissions can see it.
            create = f"{create}.{self._subjects[0]}"
            config["filter_subject"] = self._subjects[0]
        elif self._subjects:
            config["filter_subjects"] = list(self._subjects)
        body = {"stream_name": self.stream, "config": config, "action": "create"}
        while True:
            gone = await ask(self._link, f"CONSUMER.DELETE.{self._consumer}", None, Answer)
            if gone.error is not None and gone.error.err_code != CONSUMER_NOT_FOUND:
                raise self._refusal(gone.error)
            made = await ask(self._link, create, body, Answer)
            if made.error is None:
                return
            if made.error.err_code not in CONSUMER_EXISTS:
                raise self._refusal(made.error)
            await self._pauses.wait()

    def _refusal(self, error: ApiError) -> Exception:
        if error.err_code == STREAM_NOT_FOUND:
            return missing(self.stream)
        return refused(error, f"following {self.stream} as {self._link.identity}")

    async def _ask_more(self) -> None:
        """Fill up the batch when half of it or less is asked for or waiting."""
        current = self._round
        pending = current.asked + len(self._queue)
        if 2 * pending > self._batch.messages:
            return
        if current.asked == 0:
            current.heard_at = asyncio.get_running_loop().time()
        more = self._batch.messages - pending
        current.asked += more
        body = {
            "batch": more,
            "max_bytes": self._batch.size,
            "expires": PULL_EXPIRES_S * NS_PER_SECOND,
            "idle_heartbeat": int(HEARTBEAT_EVERY_S * NS_PER_SECOND),
        }
        # Lost, it leads to silence, and that to the next round.
        await self._link.send(
            f"$JS.API.CONSUMER.MSG.NEXT.{self._consumer}",
            msgspec.json.encode(body),
            {},
            current.inbox,
        )

    def _end_round(self, current: _Round, why: str) -> None:
        if not current.over:
            current.over = why
            self._some.set()

    def _check(self) -> None:
        """End a round that should have heard something; called every CHECK_EVERY_S."""
        loop = asyncio.get_running_loop()
        silent_s = loop.time() - self._round.heard_at
        if self._round.asked > 0 and silent_s > SILENCE_S_MAX and self._link.connected:
            self._end_round(self._round, f"silent for {silent_s:.1f} s")
        self._checker = loop.call_later(CHECK_EVERY_S, self._check)

    # --- messages --------------------------------------------------------------------------

    def _take(self, current: _Round, message: Msg) -> None:
        if current.over or current is not self._round:
            return
        current.heard_at = asyncio.get_running_loop().time()
        if not message.reply.startswith("$JS.ACK."):
            self._take_status(current, message.headers or {})
            return
        position = position_of(message.reply)
        if position.consumer_sequence != current.consumer_sequence + 1:
            self._end_round(current, f"a gap after {current.consumer_sequence}")
            return
        current.consumer_sequence += 1
        current.asked -= 1
        self._queue.append((message, position))
        self._some.set()

    def _take_status(self, current: _Round, headers: dict[str, str]) -> None:
        status, what = headers.get("Status", ""), headers.get("Description", "")
        if status == "100":
            sent = int(headers.get("Nats-Last-Consumer", current.consumer_sequence))
            if sent > current.consumer_sequence:
                self._end_round(current, f"missed {current.consumer_sequence + 1} to {sent}")
        elif what in BATCH_ENDS:
            current.asked -= int(headers.get("Nats-Pending-Messages", current.asked))
            self._some.set()
        else:
            self._end_round(current, f"{status} {what}")

    async def _run(self) -> None:
        try:
            while not self._closed:
                if self._round.over:
                    await self._restart()
                while self._queue and not self._round.over:
                    await self._deliver_one()
                await self._ask_more()
                if not self._queue and not self._round.over:
                    self._some.clear()
                    await self._some.wait()
        except Exception as error:
            self._link.fatal(error)

    async def _deliver_one(self) -> None:
        message, position = self._queue.popleft()
        delivery = Delivery(
            subject=message.subject,
            payload=message.data,
            headers=message.headers or {},
            stream=self.stream,
            sequence=position.stream_sequence,
            at=position.at,
        )
        await self._deliver(delivery)
        self._delivered = position.stream_sequence
        await self._ask_more()

    async def _restart(self) -> None:
        ended = self._round
        log.info("%s follows %s anew: %s", self._link.identity, self.stream, ended.over)
        if ended.raw is not None:
            await self._link.unsubscribe(ended.raw)
        if asyncio.get_running_loop().time() - ended.began_at < ROUND_SHORT_S:
            await self._pauses.wait()
        else:
            self._pauses = Pauses()
        self.restarts += 1
        await self._begin()
