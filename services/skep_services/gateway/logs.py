"""Job output, fetched piece by piece from the agent that has it, and only while a reader waits.

A reader that follows asks often while something comes, and seldom once nothing does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from skep.wire import codec, subjects
from skep_services.gateway.api import ApiError, no_array
from skep_services.gateway.fold import Fold
from skep_services.gateway.rows import ENDED, Job, Part
from skep_services.gateway.watch import Watch
from skep_services.ports import Bus, Delivery

PIECE_BYTES = 256 * 1024
"""What an agent gives at once; four pieces fit the bus's largest message."""
PIECE_TIMEOUT_S = 2.0
FOLLOW_EVERY_S = 0.3
"""How often an agent is asked whether there is more: to a person it is at once."""
FOLLOW_SLOWER = 1.5
FOLLOW_EVERY_S_MAX = 1.5
"""Each time that nothing has come the next question waits longer, up to this: most logs that are
followed are silent most of the time, and 500 of them cost a third of what they would."""
TAIL_BYTES_MAX = 16 * 1024 * 1024
"""How far back the last lines are looked for: a hundred thousand lines of 160 characters."""
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
        self._pause_s = FOLLOW_EVERY_S

    async def begin(self, lines: int | None, ago_s: int | None) -> None:
        """Move to the last lines, or to what was written lately; to both: to the later one.

        An attempt that is not placed yet has neither: it begins at its beginning.

        Args:
            lines: So many lines before the end; None: all.
            ago_s: What was written in the last so many seconds; None: ever.

        Raises:
            ApiError: The node does not answer (503), or its agent is of a version that does not
                know when lines were written (409).
        """
        part = self._part()
        if part is None or (lines is None and ago_s is None):
            return
        more = {} if ago_s is None else {"ago_s": ago_s}
        answer = await self._question(part, 0, 0, **more)
        if answer is None:
            raise self._away()
        size = max(0, _number(answer.headers.get("Skep-Size", "")))
        if ago_s is not None and size:
            if "Skep-Begin" not in answer.headers:
                text = f"the agent of {part.node} is of a version that cannot tell `since`"
                raise ApiError(409, "agent-too-old", f"{text}: upgrade it, or use `tail`")
            self.offset = min(size, max(0, _number(answer.headers["Skep-Begin"])))
        if lines is not None:
            self.offset = max(self.offset, await self._last_lines(part, size, lines))

    async def _last_lines(self, part: Part, size: int, lines: int) -> int:
        """Return where the last lines of an output of some size begin."""
        at, missing = size, lines
        while missing and at > max(0, size - TAIL_BYTES_MAX):
            start = max(0, at - PIECE_BYTES)
            answer = await self._question(part, start, at - start)
            if answer is None:
                raise self._away()
            piece = answer.payload[: at - start]
            # The end of the last line begins no further one.
            end = len(piece) - 1 if at == size and piece.endswith(b"\n") else len(piece)
            while missing:
                end = piece.rfind(b"\n", 0, end)
                if end < 0:
                    break
                missing -= 1
                if not missing:
                    return start + end + 1
            at = start
        return at

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
                raise self._away()
            return b""
        return piece.data

    def _away(self) -> ApiError:
        part = self._part()
        node = part.node if part is not None else "its node"
        return ApiError(503, "node-away", f"{node} does not answer, and the output is there")

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
                self._pause_s = FOLLOW_EVERY_S
                yield piece.data
                continue
            if not self._follow:
                return
            if piece is None or not self._complete(piece):
                await self._watch.news(self._job, self._pause_s)
                self._pause_s = min(self._pause_s * FOLLOW_SLOWER, FOLLOW_EVERY_S_MAX)
            elif not self._turn() and not self._over:
                await self._watch.news(self._job, NEWS_EVERY_S)
            yield b""

    async def _ask(self) -> Piece | None:
        """Return the piece at `offset` and move behind it; None if the node does not answer."""
        part = self._part()
        assert part is not None, self._job
        answer = await self._question(part, self.offset, PIECE_BYTES)
        if answer is None:
            self._unanswered += 1
            self._over = self._unanswered >= UNANSWERED_MAX and self._attempt_over()
            return None
        self._unanswered = 0
        self.offset += len(answer.payload)
        size = _number(answer.headers.get("Skep-Size", ""))
        return Piece(answer.payload, size, answer.headers.get("Skep-Ended") == "1")

    async def _question(self, part: Part, offset: int, limit: int, **more: int) -> Delivery | None:
        """Return what the agent of a part answers; None if it does not."""
        question = {
            "job": self._job,
            "attempt": self.attempt,
            "rank": self._rank,
            "offset": offset,
            "limit": limit,
            **more,
        }
        return await self._bus.request(
            subjects.logs(part.node), codec.encode(question), {}, PIECE_TIMEOUT_S
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


def _number(text: str) -> int:
    """Return a count that an agent says; -1 for what is none."""
    return int(text) if text.isascii() and text.isdecimal() else -1
