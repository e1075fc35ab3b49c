"""The nodes' side: agents that answer every command, and jobs that make progress."""

from __future__ import annotations

import msgspec

from skep.sim.cluster.settings import Settings
from skep.traces.job import TraceJob
from skep.units import Duration, Instant, after, seconds
from skep.wire.commands import BindJob, StopJob
from skep.wire.node import MemberExited, MemberStarted, Outcome
from skep.workloads.situation import Speeds


class Attempt(msgspec.Struct):
    """The processes of one attempt."""

    job: str
    number: int
    nodes: int
    parts: dict[str, BindJob]
    """By node: what it was told."""
    begins_at: Instant = Instant(0)


class Ends(msgspec.Struct, frozen=True):
    """A job comes to its end, unless its attempt is another by then."""

    job: str
    attempt: int


class Gone(msgspec.Struct, frozen=True):
    """The processes of a part that was told to stop are gone."""

    order: StopJob


Later = Ends | Gone


class Agents:
    """All nodes. `told` collects what they say at this instant, `later` what is to come."""

    def __init__(self, jobs: dict[str, TraceJob], settings: Settings, speeds: Speeds) -> None:
        """Have no job running."""
        self._jobs, self._costs, self._speeds = jobs, settings.costs, speeds
        self._start = seconds(settings.costs.start_s)
        self._stop = seconds(settings.costs.stop_s)
        self._runs: dict[tuple[str, int], Attempt] = {}
        self.told: list[MemberStarted | MemberExited] = []
        self.later: list[tuple[Instant, Later]] = []

    def bind(self, order: BindJob, now: Instant) -> None:
        """Start a part; with the last of them the attempt begins."""
        key = order.job, order.attempt
        run = self._runs.get(key)
        if run is None:
            run = self._runs[key] = Attempt(order.job, order.attempt, order.nodes, {})
        if order.node in run.parts:
            return
        run.parts[order.node] = order
        self.told.append(MemberStarted(node=order.node, identity=order.identity, job=order.job,
                                       attempt=order.attempt, at=now))  # fmt: skip
        if len(run.parts) == run.nodes:
            run.begins_at = now
            lasts = Duration(self._jobs[order.job].run_time + self._start)
            self.later.append((after(now, lasts), Ends(order.job, order.attempt)))

    def stop(self, order: StopJob, now: Instant) -> None:
        """End a part, in a while."""
        self.later.append((after(now, self._stop), Gone(order)))

    def happens(self, event: Later, now: Instant) -> None:
        """Have something happen whose time has come."""
        match event:
            case Ends():
                run = self._runs.pop((event.job, event.attempt), None)
                for part in run.parts.values() if run is not None else ():
                    self.told.append(_exited(part, Outcome.SUCCEEDED, now))
            case Gone(order=order):
                run = self._runs.get((order.job, order.attempt))
                if run is not None and run.parts.pop(order.node, None) is not None:
                    self.told.append(_exited(order, Outcome.STOPPED, now))
                    if not run.parts:
                        del self._runs[order.job, order.attempt]
                elif run is None:
                    self.told.append(_exited(order, Outcome.STOPPED, now))


def _exited(order: BindJob | StopJob, outcome: Outcome, now: Instant) -> MemberExited:
    return MemberExited(node=order.node, identity=order.identity, job=order.job,
                        attempt=order.attempt, outcome=outcome, at=now)  # fmt: skip
