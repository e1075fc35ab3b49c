"""Job output, fetched piece by piece from the agent that has it, and only while a reader waits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from skep.wire import codec, subjects
from skep_services.gateway.api import ApiError, no_array
from skep_services.gateway.fold import Fold
from skep_services.gateway.rows import ENDED, Job, Part
from skep_services.gateway.watch import Watch
from skep_services.ports import Bus

PIECE_BYTES = 256 * 1024
"""What an agent gives at once; four pieces fit the bus's largest message."""
PIECE_TIMEOUT_S = 2.0
FOLLOW_EVERY_S = 0.3
"""How often an agent is asked whether there is more: to a person it is at once."""
NEWS_EVERY_S = 5.0
"""How often to look for another attempt when no news has come."""
UNANSWERED_MAX = 10
"""Questions a follower repeats to a node that is away once the attempt is over: about 23 s."""


class Piece(NamedTuple):
    """Some output, how much there is in all (-1: no file), and whether nothing runs any more."""

    data: bytes
    size: int
    ended: bool


class Logs:
    """Opens outputs."""

    def __init__(self, bus: Bus, fold: Fold, watch: Watch) -> None:
        self._bus, self._fold, self._watch = bus, fold, watch

    def open(self, job: Job, *, attempt: int | None, rank: int, offset: int, follow: bool) -> Tail:
        """Return the output of a rank.

        Args:
            attempt: The attempt's number; None: the latest and, with `follow`, the later ones too.
            rank: The rank, from 0.
            offset: Where the output begins (bytes).
            follow: The output goes on until the attempt is over (without `attempt`: the job).

        Raises:
            ApiError: There is no such attempt or rank, and waiting would not help (404).
        """
        name, workers = job.row.job, job.row.workers
        no_array(job)
        chosen = job.row.attempt if attempt is None else attempt
        if workers and rank >= workers:
            raise ApiError(404, "no-rank", f"{name} has ranks 0 to {workers - 1}")
        known = any(one.attempt == chosen for one in job.attempts)
        hopeless = not follow or attempt is not None or job.row.state in ENDED
        if not known and hopeless:
            text = f"{name} has no attempt {chosen}" if chosen else f"{name} has not started"
            raise ApiError(404, "no-attempt", f"{text}: it is {job.row.state}")
        tail = Tail(self._bus, self._fold, self._watch, name, rank, follow=follow)
        tail.attempt, tail.offset, tail.latest = chosen, offset, attempt is None
        return tail


class Tail:
    """One reader's place in a job's output."""

    def __init__(
        self, bus: Bus, fold: Fold, watch: Watch, job: str, rank: int, *, follow: bool
    ) -> None:
        self.attempt = 0
        self.offset = 0
        self.latest = True
        self._bus, self._fold, self._watch = bus, fold, watch
        self._job, self._rank, self._follow = job, rank, follow
        self._unanswered = 0
        self._over = False

    async def first(self) -> bytes:
        """Return the first piece; empty if there is none yet.

        Raises:
            ApiError: The node does not answer, and the reader does not follow (503).
        """
        if self._part() is None:
            return b""
        piece = await self._ask()
        if piece is None:
            if not self._follow:
                part = self._part()
                node = part.node if part is not None else "its node"
                text = f"{node} does not answer, and the output is there"
                raise ApiError(503, "node-away", text)
            return b""
        return piece.data

    async def rest(self) -> AsyncIterator[bytes]:
        """Yield what follows; empty pieces while there is nothing, so that the reader can leave."""
        while not self._over:
            if self._part() is None:
                if not self._follow:
                    return
                await self._watch.news(self._job, NEWS_EVERY_S)
                self._turn()
                yield b""
                continue
            piece = await self._ask()
            if piece is not None and piece.data:
                yield piece.data
                continue
            if not self._follow:
                return
            if piece is None or not self._complete(piece):
                await self._watch.news(self._job, FOLLOW_EVERY_S)
            elif not self._turn() and not self._over:
                await self._watch.news(self._job, NEWS_EVERY_S)
            yield b""

    async def _ask(self) -> Piece | None:
        """Return the piece at `offset` and move behind it; None if the node does not answer."""
        part = self._part()
        assert part is not None, self._job
        question = {
            "job": self._job,
            "attempt": self.attempt,
            "rank": self._rank,
            "offset": self.offset,
            "limit": PIECE_BYTES,
        }
        answer = await self._bus.request(
            subjects.logs(part.node), codec.encode(question), {}, PIECE_TIMEOUT_S
        )
        if answer is None:
            self._unanswered += 1
            self._over = self._unanswered >= UNANSWERED_MAX and self._attempt_over()
            return None
        self._unanswered = 0
        self.offset += len(answer.payload)
        size = answer.headers.get("Skep-Size", "-1")
        return Piece(
            answer.payload,
            int(size) if size.isdecimal() else -1,
            answer.headers.get("Skep-Ended") == "1",
        )

    def _part(self) -> Part | None:
        """Return the part of the attempt that has the rank, None before it is placed."""
        job = self._fold.find(self._job)
        if job is None:
            return None
        for attempt in job.attempts:
            if attempt.attempt == self.attempt:
                for part in attempt.members:
                    if self._rank in part.numbers:
                        return part
        return None

    def _complete(self, piece: Piece) -> bool:
        """Return whether there will be no more of this attempt, and all of it was read.

        That no process lives is not enough: before the first one starts there is none either.
        """
        return piece.ended and self.offset >= piece.size and self._attempt_over()

    def _attempt_over(self) -> bool:
        part, job = self._part(), self._fold.find(self._job)
        if job is None or (part is not None and part.outcome is not None):
            return True
        return any(one.attempt == self.attempt and one.outcome is not None for one in job.attempts)

    def _turn(self) -> bool:
        """Go on with the next attempt if there is one; note when there will be none."""
        job = self._fold.find(self._job)
        if job is not None and self.latest and job.row.attempt > self.attempt:
            self.attempt, self.offset = job.row.attempt, 0
            return True
        self._over = job is None or not self.latest or job.row.state in ENDED
        return False
