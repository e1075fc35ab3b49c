"""What probes of a VC take of its GPU time: at most a fiftieth, within any 24 hours.

A probe counts from when it begins until its gang has its own size again, with all GPUs of the
larger of both sizes: also those that the gang has anyway, and the time in which it trains. Before
it ends it counts as if it took the longest that it may. So no probe begins that could exceed the
part, and what one takes beyond its time counts against the next.
"""

from __future__ import annotations

from collections.abc import Iterable

from skep.ledger.records import Probe
from skep.ledger.state import ClusterState
from skep.units import Duration, Instant, after, seconds
from skep.wire.changes import Goal
from skep.wire.trials import Kind, TrialBegun, TrialOver, Verdict

PART_MILLI = 20
"""Thousandths of the GPU time that a VC owns."""
DAY = seconds(86_400.0)
HOUR = seconds(3600.0)
PUT_BACK = seconds(60.0)
"""What is set aside for the way back: ranks stop at a mini-batch, and others start."""
PROBES_MAX = 200
"""Probes of a VC within 24 hours: 150 bytes each in a snapshot."""


def most(owned: int) -> int:
    """Return the GPU time that probes of a VC may take within 24 hours, in nanoseconds of a GPU.

    Args:
        owned: The GPUs of the VC.
    """
    return owned * DAY * PART_MILLI // 1000


def spent(probe: Probe, now: Instant) -> int:
    """Return the GPU time of a probe, in nanoseconds of a GPU: what it may take until it ends."""
    until = probe.ended or max(probe.until, now)
    return probe.takes * max(0, until - probe.at)


def used(probes: Iterable[Probe], now: Instant) -> int:
    """Return the GPU time of the probes of the last 24 hours, in nanoseconds of a GPU.

    Args:
        probes: Of one VC. One that ended within 24 hours counts in full.
        now: The end of the 24 hours.
    """
    return sum(spent(each, now) for each in probes if _counts(each, now))


def fits(probes: Iterable[Probe], owned: int, takes: int, lasts: Duration, now: Instant) -> bool:
    """Return whether a further probe may begin.

    Args:
        probes: Of its VC.
        owned: The GPUs of the VC.
        takes: The GPUs of the probe.
        lasts: The longest that it may take, without the way back.
        now: The time.
    """
    return used(probes, now) + takes * (lasts + PUT_BACK) <= most(owned)


def tried(
    probes: Iterable[Probe], family: str, gpu_type: str, now: Instant
) -> set[tuple[int, int]]:
    """Return the places (GPUs, nodes) that are not to be tried again yet.

    That is for a day, as the advisor has the result by now, or for an hour if nothing came of it.
    """
    return {
        (each.gpus, each.nodes)
        for each in probes
        if (each.family, each.gpu_type) == (family, gpu_type)
        and now < after(each.at, HOUR if each.void else DAY)
    }


def begun(state: ClusterState, fact: TrialBegun) -> None:
    """Take over that a probe began."""
    if fact.kind is not Kind.PROBE:
        return
    first, tries = fact.jobs[0], state.tries
    each = first.gpus // max(fact.workers, 1)
    chain = state.cells.chains.get(state.jobs[first.job].chain)
    known = [one for one in tries.probes.get(fact.vc, ()) if _counts(one, fact.at)]
    probe = Probe(
        trial=fact.trial,
        job=first.job,
        family=fact.families[0],
        gpu_type="" if chain is None else chain.topology.gpu,
        gpus=each * fact.grown,
        nodes=len(fact.nodes),
        takes=each * max(fact.grown, fact.workers),
        at=fact.at,
        until=after(fact.until, PUT_BACK),
    )
    tries.probes[fact.vc] = [*known, probe]
    tries.probing[fact.trial] = fact.vc


def over(state: ClusterState, trial: TrialBegun, fact: TrialOver) -> None:
    """Take over the verdict on a probe: its gang may have its own size again yet, or not."""
    for probe in state.tries.probes.get(trial.vc, ()) if trial.kind is Kind.PROBE else ():
        if probe.trial == fact.trial:
            probe.void = fact.verdict is Verdict.VOID


def follow(state: ClusterState, fact: object) -> None:
    """Take over that gangs of probes have their own size again, or are no more.

    That is once a probe has its verdict, nothing is to be put back, and no size changes.
    """
    tries, at = state.tries, getattr(fact, "at", None)
    for trial, vc in list(tries.probing.items()) if at else ():
        probe = next(each for each in tries.probes[vc] if each.trial == trial)
        undo, job = tries.undoing.get(probe.job), state.jobs.get(probe.job)
        resizes = job is not None and job.change is not None and job.change.goal is Goal.RESIZE
        owes = undo is not None and undo.trial == trial
        if trial not in tries.open and not owes and not resizes:
            probe.ended = Instant(at or 0)
            del tries.probing[trial]


def check(state: ClusterState) -> None:
    """Assert that each probe that has not ended is one of its VC's.

    Raises:
        AssertionError: One is not.
    """
    tries = state.tries
    open_ones = {
        each.trial: vc for vc, known in tries.probes.items() for each in known if not each.ended
    }
    assert open_ones == tries.probing, (open_ones, tries.probing)


def _counts(probe: Probe, now: Instant) -> bool:
    return not probe.ended or probe.ended > now - DAY
