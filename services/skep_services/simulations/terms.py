"""On what terms the runs of a comparison compete: what is equal in all of them, and what is not.

A table of policies is read as if only the order of jobs differed. What else differs (which policy
may stop running jobs, what a priority is worth, which goes by run times, the cluster) is named in
its head.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from skep.policy.powers import Powers
from skep.policy.registry import make
from skep_lab.simulator.settings import IDEAL
from skep_lab.simulator.world import abilities
from skep_lab.traces.job import Trace, TraceJob
from skep_services.simulations.order import Order, Played

SOME_VCS = "some VCs"
YES, NO = "yes", "no"
ABLE = {"suspend": "suspended", "migrate": "moved", "resize": "resized if elastic"}
"""What people read of what Skep can do with jobs; the rest goes with these."""
PRIORITY = {"takes": "takes GPUs", "first": "waits first", "ignored": "does not count"}


class Term(msgspec.Struct, frozen=True):
    """Something that may differ between runs, with its value in each."""

    key: str
    title: str
    values: tuple[str, ...]

    @property
    def differs(self) -> bool:
        """Return whether some runs have another value than others."""
        return len(set(self.values)) > 1


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What is equal in all runs, in sentences, and what differs, by run."""

    runs: tuple[str, ...] = ()
    equal: tuple[str, ...] = ()
    differ: tuple[Term, ...] = ()

    def of(self, labels: Sequence[str]) -> tuple[Term, ...]:
        """Return what differs, of some of the runs; nothing if one of them is not known."""
        if any(label not in self.runs for label in labels):
            return ()
        places = [self.runs.index(label) for label in labels]
        return tuple(
            Term(each.key, each.title, tuple(each.values[place] for place in places))
            for each in self.differ
        )


def terms(labels: Sequence[str], orders: Sequence[Order], traces: Sequence[Trace]) -> Terms:
    """Return the terms of runs of the same traces.

    Args:
        labels: What the runs are called.
        orders: A run for each label; others of that name differ by their seed.
        traces: The jobs, which every run has; several: one for each seed.
    """
    jobs = [job for trace in traces for job in trace.jobs]
    listed = [
        *(
            Term(key, title, tuple(_told(order, get) for order in orders))
            for key, title, get in _powers(jobs)
        ),
        Term("cluster", "cluster", tuple(_cluster(order) for order in orders)),
        Term("can", "jobs", tuple(_able(order) for order in orders)),
    ]
    never = [each.title for each in listed if set(each.values) == {NO}]
    always = [each.title for each in listed if set(each.values) == {YES}]
    equal = [
        _jobs(traces, jobs),
        *([f"jobs {listed[-1].values[0]}"] if not listed[-1].differs else []),
        _costs(orders[0]),
        _hints(orders[0]),
        *([f"every policy {', '.join(always)}"] if always else []),
        *([f"no policy {', '.join(never)}"] if never else []),
    ]
    return Terms(
        runs=tuple(labels),
        equal=tuple(equal),
        differ=tuple(each for each in listed if each.differs),
    )


def with_refused(known: Terms, played: Sequence[Played]) -> Terms:
    """Return the terms with how many jobs each run refused, if that differs: they are in no mean.

    Args:
        known: The terms of the runs.
        played: One run for each of its labels, in their order.
    """
    counts = tuple(f"{run.measures.all.refused:,}" for run in played)
    if len(counts) != len(known.runs) or len(set(counts)) < 2:
        return known
    refused = Term("refused", "refused jobs, in no mean", counts)
    return msgspec.structs.replace(known, differ=(*known.differ, refused))


Get = Callable[[Powers], str]


def _powers(jobs: Sequence[TraceJob]) -> list[tuple[str, str, Get]]:
    """Return key, title and value of the powers that these jobs give an occasion for."""
    elastic = any(job.workers_max for job in jobs)
    found: list[tuple[str, str, Get]] = [
        ("suspends", "suspends running jobs for others", lambda p: _yes(p.suspends)),
        ("moves", "moves jobs that are not suspended", lambda p: _yes(p.moves)),
        ("packs", "packs jobs on shared GPUs", lambda p: _yes(p.packs)),
        ("resizes", "resizes elastic jobs", lambda p: _resizes(p, elastic=elastic)),
        ("passes", "passes over a job that does not fit", lambda p: _yes(p.passes)),
        ("run_times", "goes by run times that owners tell", lambda p: _yes(p.run_times)),
        ("rates", "goes by measured rates", lambda p: _yes(p.rates)),
    ]
    if len({job.priority for job in jobs}) > 1:
        found.append(("priority", "a higher priority", lambda p: PRIORITY[p.priority]))
    return found


def _resizes(powers: Powers, *, elastic: bool) -> str:
    return "has none to" if powers.resizes and not elastic else _yes(powers.resizes)


def _yes(said: bool) -> str:
    return YES if said else NO


def _told(order: Order, get: Get) -> str:
    named = order.settings.policies
    found = {
        get(make(*named.get(vc, (each.policy, each.options))).powers): None
        for vc, each in order.cluster.vcs.items()
    }
    return next(iter(found)) if len(found) == 1 else SOME_VCS


def _cluster(order: Order) -> str:
    vcs = len(order.cluster.vcs)
    queues = "one queue" if order.pooled else f"{vcs} VC" + "s" * (vcs != 1)
    return f"{order.shape}, {queues}"


def _able(order: Order) -> str:
    can = abilities(order.cluster, order.settings)
    told = ", ".join(ABLE[each] for each in can if each in ABLE)
    return (
        f"can be {told}"
        if told
        else "can only be stopped, and repeat what they did since a checkpoint"
    )


def _jobs(traces: Sequence[Trace], jobs: Sequence[TraceJob]) -> str:
    counts = Counter(job.priority for job in jobs)
    text = f"the same {len(jobs):,} jobs"
    if len(traces) > 1:
        text = f"seed by seed the same jobs, {len(jobs):,} of {len(traces)} seeds"
    if len(counts) < 2:
        return f"{text}, all of one priority"
    told = ", ".join(f"{priority} ({counts[priority]:,})" for priority in sorted(counts))
    return f"{text} with the same priorities: {told}"


def _costs(order: Order) -> str:
    costs = order.settings.costs
    if costs == IDEAL:
        return "starts, stops and changes of jobs cost no time (--costs)"
    told = [
        f"{name.removesuffix('_s').replace('_', ' ')} {getattr(costs, name):g} s"
        for name in costs.__struct_fields__
        if getattr(costs, name)
    ]
    return f"what changes of jobs cost: {', '.join(told)}"


def _hints(order: Order) -> str:
    return {
        "exact": "owners tell run times exactly (--hints)",
        "noisy": "owners tell run times with errors (--hints noisy)",
        "none": "owners tell no run times (--hints none)",
    }[order.settings.hints]
