"""What the model of a VC was told of it, and what is new since."""

from __future__ import annotations

from collections import deque

from skep.policy.incremental import changes
from skep.policy.sight import job_sight, room_of, seen
from skep.policy.view import JobView, NodeView, VcView
from skep.units import Duration, Instant, after
from skep.wire.learned import SEEN_MAX, JobSight, RoomSight, Sight

OPEN_MAX = 10_000
"""Unanswered sights that are remembered: an hour's. The first one tells since when."""


class Sights:
    """The sights of one VC, in differences: each costs what has changed since the one before."""

    def __init__(self) -> None:
        """Begin with nothing told."""
        self.at: Instant | None = None
        """When the latest one was made; None: there was none."""
        self.whole_at = Instant(0)
        """When the latest whole one was."""
        self._wanted = False
        """Whether a whole one was asked for."""
        self._number = 0
        self._open: deque[tuple[int, Instant]] = deque()
        """Sights that no advice has answered, and when they were sent."""
        self._counts: tuple[int, int] = 0, 0
        self._jobs: tuple[JobView, ...] = ()
        self._told: dict[str, JobSight] = {}
        self._nodes: tuple[NodeView, ...] = ()
        self._room: tuple[RoomSight, ...] = ()
        self._rest: tuple[object, ...] = ()

    @property
    def unanswered(self) -> Instant | None:
        """Return when the first sight was sent that no advice has answered; None: all have one."""
        return self._open[0][1] if self._open else None

    def answered(self, number: int) -> None:
        """Take over that advice has come of a sight, and so of those before it."""
        while self._open and self._open[0][0] <= number:
            self._open.popleft()

    def again(self) -> None:
        """Have the next one be whole."""
        self._wanted = True

    def whole(self, now: Instant, every: Duration) -> bool:
        """Return whether the next one is to be whole.

        Args:
            now: The present instant.
            every: How often it is, whatever happens.
        """
        late = not self.whole_at <= now < after(self.whole_at, every)
        return self.at is None or self._wanted or late

    def stale(self, jobs: tuple[JobView, ...], counts: tuple[int, int]) -> bool:
        """Return whether what is seen may be otherwise than was told.

        Args:
            jobs: The VC's jobs now: the same object, if nothing of them is new.
            counts: What is counted whenever anything else of a view may be new.
        """
        return jobs is not self._jobs or counts != self._counts

    def check(self) -> None:
        """Assert the bounds, and that what is unanswered is in order.

        Raises:
            AssertionError: That does not hold.
        """
        numbers = [number for number, _ in self._open]
        assert len(numbers) <= OPEN_MAX
        assert numbers == sorted(numbers)
        assert not numbers or numbers[-1] <= self._number
        assert len(self._told) <= SEEN_MAX

    def see(self, view: VcView, counts: tuple[int, int], *, whole: bool) -> Sight | None:
        """Return what is to be told of a view; None: nothing is new.

        Args:
            view: The VC, with its nodes.
            counts: Those of `stale`, as of this view.
            whole: Whether all is told.
        """
        before, self._jobs, self._counts, self.at = self._jobs, view.jobs, counts, view.now
        changed, gone = dict[str, JobSight](), dict[str, None]()
        for old, new in changes(seen(before), seen(view.jobs)):
            if new is not None:
                made = job_sight(new)
                gone.pop(made.job, None)
                if self._told.get(made.job) != made:
                    self._told[made.job] = changed[made.job] = made
            elif old is not None and self._told.pop(old.job, None) is not None:
                gone[old.job] = None
        if view.nodes is not self._nodes:
            self._nodes, self._room = view.nodes, room_of(view.nodes)
        rest = view.gpus, view.free, view.node_gpus, self._room
        if not (whole or changed or gone or rest != self._rest):
            return None
        self._rest = rest
        self._number += 1
        if len(self._open) < OPEN_MAX:
            self._open.append((self._number, view.now))
        if whole:
            self.whole_at, self._wanted = view.now, False
            told = sorted(self._told.values(), key=lambda job: job.sequence)
            changed, gone = {job.job: job for job in told}, {}
        return Sight(
            vc=view.vc,
            number=self._number,
            whole=whole,
            at=view.now,
            gpus=view.gpus,
            free=view.free,
            node_gpus=view.node_gpus,
            room=self._room,
            jobs=tuple(changed.values()),
            gone=tuple(gone),
        )
