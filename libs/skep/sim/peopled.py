"""What the allocator's log says about people's limits and about windows (I20, I21)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from skep.access.person import person_of
from skep.sim.modelled import ModelJob
from skep.sim.violation import require
from skep.units import NS_PER_SECOND, Instant
from skep.wire.changes import GpusRegained
from skep.wire.cluster import VirtualCluster
from skep.wire.facts import CellsReserved, JobBound
from skep.wire.moves import SuccessorBound
from skep.wire.resizes import GangWidened
from skep.wire.spec import JobSpec
from skep.wire.windows import Window, WindowBegan, WindowBooked, WindowEnded, WindowFact


class Windows:
    """The windows that are booked, and those that are open."""

    def __init__(self) -> None:
        """Start without any."""
        self.booked: dict[str, Window] = {}
        self.open: dict[str, Window] = {}

    def take(self, fact: WindowFact) -> None:
        """Take a fact about a window."""
        match fact:
            case WindowBooked(window=window):
                require(window.name not in self.booked, "I21", f"{window.name} is booked twice")
                for other in self.booked.values():
                    apart = window.begins >= other.ends or other.begins >= window.ends
                    apart = apart or not set(window.nodes) & set(other.nodes)
                    require(apart, "I21", f"{window} and {other} overlap")
                self.booked[window.name] = window
            case WindowBegan(name=name, at=at):
                require(name not in self.open, "I21", f"{name} begins twice")
                require(at >= self.booked[name].begins, "I21", f"{name} begins early")
                self.open[name] = self.booked[name]
            case WindowEnded(name=name, at=at, cancelled=cancelled):
                window = self.booked.pop(name)
                self.open.pop(name, None)
                require(cancelled or at >= window.ends, "I21", f"{name} ends early")
            case _:
                pass

    def begins(
        self, spec: JobSpec, fact: JobBound | SuccessorBound | GpusRegained, nodes: Iterable[str]
    ) -> None:
        """Require that a job may be on the nodes that it gets, for as long as it may run.

        Only of a job that says nothing else is its time limit all that is known of its length.
        """
        there = dict.fromkeys(nodes)
        limit = spec.limits.time if isinstance(spec.limits.time, int) else None
        if spec.size.run_time is not None or spec.size.total() is not None:
            limit = None
        for window in self.booked.values():
            both = [name for name in window.nodes if name in there]
            if not both or window.vc == spec.vc or window.ends <= fact.at:
                continue
            text = f"{fact.job} is on {both[0]}, which {window.name} keeps"
            require(window.name not in self.open, "I21", text)
            if limit is not None and not isinstance(fact, GpusRegained):
                over = Instant(fact.at + limit * NS_PER_SECOND)
                require(over < window.begins, "I21", f"{text} from before its limit on")


def within_limits(
    vcs: Mapping[str, VirtualCluster],
    jobs: Mapping[str, ModelJob],
    fact: JobBound | CellsReserved | GangWidened,
) -> None:
    """Require that a person has no more than it may after it got, or claimed, GPUs.

    Args:
        vcs: What each VC allows.
        jobs: The jobs as they are after the fact.
        fact: By which one of them got GPUs.
    """
    mine = jobs[fact.job]
    vc = vcs.get(mine.spec.vc)
    if vc is None or vc.limits is None:
        return
    person = person_of("", mine.spec.labels)
    theirs = [
        job
        for job in jobs.values()
        if job.spec.vc == mine.spec.vc
        and person_of("", job.spec.labels) == person
        and (job.claims or not job.queued)
    ]
    limits = vc.limits
    if limits.running is not None and not isinstance(fact, GangWidened):
        text = f"{person} runs {len(theirs)} jobs with {fact.job}"
        require(len(theirs) <= limits.running, "I20", text)
    if limits.gpus is not None:
        gpus = sum((job.ranks or job.workers) * job.spec.resources.gpus for job in theirs)
        require(gpus <= limits.gpus, "I20", f"{person} has {gpus} GPUs with {fact.job}")
