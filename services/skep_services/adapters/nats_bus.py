"""The Bus port over NATS and JetStream. Nothing outside the adapters sees the client library."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from skep.wire.subjects import KEY_HEADER
from skep_services.adapters.archive import Archive
from skep_services.adapters.nats_api import (
    STREAM_NOT_FOUND,
    Pauses,
    StreamNames,
    ask,
    publish_once,
    refused,
    unclaimed,
)
from skep_services.adapters.nats_follow import Follow
from skep_services.adapters.nats_link import Link, LinkOptions, OnFatal, Silence
from skep_services.adapters.nats_listen import Listen, delivery_of
from skep_services.ports import Deliver, Delivery, RefusedError, Subscription

PUBLISH_TIMEOUT_S = 2.0
"""How long one publish waits for its acknowledgement. A lost connection is noticed sooner; this
bounds what only a lost message or an election hides."""
PUBLISHES_IN_FLIGHT_MAX = 512
"""Twice the window at which a synced stream reaches its full rate (4,400 per second at 256)."""
UNCLAIMED_MAX = 3
"""How often in a row the server must know no stream for a subject before that is believed: a
cluster that elects a leader answers the same for a moment."""


class BusStats(msgspec.Struct, frozen=True):
    """What was lost or refused since the start, for metrics and alarms."""

    reconnects: int
    sends_dropped: int
    listens_dropped: int
    violations: int
    follow_restarts: int


class NatsBus:
    """Messages over one NATS connection. Make it with `NatsBus.connect`.

    `on_fatal` receives the reason when this process cannot go on: the connection is beyond repair,
    a followed stream vanished, or a `deliver` raised. The process should then exit (status 70) and
    be started anew.
    """

    def __init__(self, link: Link, archive: Archive | None = None) -> None:
        self.link = link
        self.archive = archive
        """Where messages are that streams no longer have; None: nowhere."""
        self._publishing = asyncio.Semaphore(PUBLISHES_IN_FLIGHT_MAX)
        self._subscriptions: dict[int, Follow | Listen] = {}
        self._may_look = True
        self._sends_dropped = 0
        self._listens_dropped = 0
        self._follow_restarts = 0

    @classmethod
    async def connect(
        cls, options: LinkOptions, on_fatal: OnFatal, archive: Archive | None = None
    ) -> NatsBus:
        """Return a connected bus.

        Args:
            options: How to connect.
            on_fatal: Takes the reason why this process cannot go on.
            archive: What streams no longer have, to be followed as if they had it.

        Raises:
            RefusedError: As `Link.connect`.
            ConnectionError: As `Link.connect`.
        """
        return cls(await Link.connect(options, on_fatal), archive)

    @property
    def stats(self) -> BusStats:
        """The counters at this moment."""
        running = self._subscriptions.values()
        listens = [one for one in running if isinstance(one, Listen)]
        follows = [one for one in running if isinstance(one, Follow)]
        return BusStats(
            reconnects=self.link.reconnects,
            sends_dropped=self._sends_dropped,
            listens_dropped=self._listens_dropped + sum(one.dropped for one in listens),
            violations=self.link.violations.count,
            follow_restarts=self._follow_restarts + sum(one.restarts for one in follows),
        )

    async def send(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> None:
        if not await self.link.send(subject, payload, headers):
            self._sends_dropped += 1

    async def publish(
        self, subject: str, payload: bytes, key: str, headers: Mapping[str, str]
    ) -> int:
        """Publish into a stream; see the port. An empty `key` stands for one of its own.

        A standalone server stores a key once. A cluster that changes the stream's leader while a
        publish is in flight can store its repetition as well (seen with nats-server 2.15.1, three
        replicas): a reader of the stream must know the keys it has seen.

        Raises:
            unclaimed: A MissingStreamError: no stream keeps `subject`.
            refused: A RefusedError: the server's answer is another one that no repetition changes;
                a FullError if the stream is full.
            ConnectionError: The bus was closed.
        """
        stamped = {**headers, KEY_HEADER: key or self.link.new_inbox()}
        async with self._publishing:
            pauses = Pauses()
            misses = 0
            while True:
                ack = await publish_once(self.link, subject, payload, stamped, PUBLISH_TIMEOUT_S)
                if not isinstance(ack, Silence):
                    if ack.error is None:
                        return ack.seq
                    if ack.error.err_code == STREAM_NOT_FOUND:
                        raise unclaimed(subject)
                    if not ack.error.is_transient:
                        raise refused(ack.error, f"{subject} ({len(payload)} bytes)")
                elif ack is Silence.NO_RESPONDERS:
                    misses = 0 if await self._is_claimed(subject) else misses + 1
                    if misses >= UNCLAIMED_MAX:
                        raise unclaimed(subject)
                if ack is not Silence.LOST:
                    await pauses.wait()

    async def _is_claimed(self, subject: str) -> bool:
        """Return False only if the server knows of no stream that takes `subject`."""
        if not self._may_look:
            return True
        try:
            names = await ask(self.link, "STREAM.NAMES", {"subject": subject}, StreamNames)
        except RefusedError:
            # A tenant may publish but not look around; without knowing, the publish goes on.
            self._may_look = False
            return True
        return names.error is not None or bool(names.streams)

    async def follow(
        self,
        stream: str,
        after: int,
        deliver: Deliver,
        subjects: Sequence[str] = (),
        known: int = 0,
    ) -> Subscription:
        assert not any(
            isinstance(one, Follow) and one.stream == stream for one in self._subscriptions.values()
        ), f"{self.link.identity} follows {stream} already, and its consumer carries its name"
        follow = Follow(
            self.link,
            stream,
            after,
            deliver,
            subjects=subjects,
            known=known,
            on_close=self._forget,
            archive=self.archive,
        )
        self._subscriptions[id(follow)] = follow
        try:
            await follow.start()
        except BaseException:
            await follow.close()
            raise
        return follow

    async def listen(self, subject: str, deliver: Deliver) -> Subscription:
        listen = Listen(self.link, subject, deliver, self._forget)
        await listen.start()
        self._subscriptions[id(listen)] = listen
        return listen

    async def request(
        self, subject: str, payload: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> Delivery | None:
        answer = await self.link.call(subject, payload, headers, timeout_s)
        return None if isinstance(answer, Silence) else delivery_of(answer)

    async def close(self) -> None:
        """End every subscription and the connection; what was sent goes out first."""
        for subscription in list(self._subscriptions.values()):
            await subscription.close()
        await self.link.close()

    def _forget(self, subscription: Follow | Listen) -> None:
        if self._subscriptions.pop(id(subscription), None) is None:
            return
        if isinstance(subscription, Listen):
            self._listens_dropped += subscription.dropped
        else:
            self._follow_restarts += subscription.restarts
