"""What the allocator sets timers for: a class for each kind, and their order within an instant."""

from __future__ import annotations

import msgspec

TimerOrder = tuple[str, str, int, int]
"""The place of a timer among those of its instant: by node (those of no node come first), job, and
attempt. Two timers have two places."""


class Resend(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """A node has not answered what it was told about an attempt."""

    node: str
    job: str
    attempt: int

    def order(self) -> TimerOrder:
        """Return its place among the timers of its instant."""
        return self.node, self.job, self.attempt, 0


class ClearNode(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """A node has not said that nothing of an earlier time is left on it."""

    node: str

    def order(self) -> TimerOrder:
        """Return its place among the timers of its instant: before what its jobs are told."""
        return self.node, "", 0, 0


class TimeLimit(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """An attempt has run as long as its job may."""

    job: str
    attempt: int

    def order(self) -> TimerOrder:
        """Return its place among the timers of its instant."""
        return "", self.job, self.attempt, 0


class LimitWarning(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """An attempt is so near its time limit that its ranks are to be given a signal."""

    job: str
    attempt: int

    def order(self) -> TimerOrder:
        """Return its place among the timers of its instant: before the limit itself."""
        return "", self.job, self.attempt, -1


class CheckpointTime(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """The state of an attempt is to be stored, as its spec says how often."""

    job: str
    attempt: int

    def order(self) -> TimerOrder:
        """Return its place among the timers of its instant: after the limit."""
        return "", self.job, self.attempt, 3


class SuccessorDeadline(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """A successor has to be ready, or to have the state of its source."""

    job: str
    attempt: int
    """The successor's."""

    def order(self) -> TimerOrder:
        """Return its place among the timers of its instant."""
        return "", self.job, self.attempt, 1


class YieldDeadline(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """An attempt that has to make room first ends a change, or goes on, for so long at most."""

    job: str
    attempt: int

    def order(self) -> TimerOrder:
        """Return its place among the timers of its instant: before the job's other ones."""
        return "", self.job, -self.attempt, 0


class BeginTime(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """A deferred job may begin, as far as its time goes."""

    job: str

    def order(self) -> TimerOrder:
        """Return its place among the timers of its instant."""
        return "", self.job, 0, 2


Timer = (
    Resend
    | ClearNode
    | TimeLimit
    | LimitWarning
    | CheckpointTime
    | SuccessorDeadline
    | YieldDeadline
    | BeginTime
)
"""All of them. A timer is told apart by its class, and set again if it is equal."""
