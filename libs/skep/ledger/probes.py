"""What probes of a VC take of its GPU time: at most a fiftieth, within any 24 hours.

A probe counts from when it begins until its gang has its own size again, with all GPUs of the
larger of both sizes: also those that the gang has anyway, and the time in which it trains. Before
it ends it counts as if it took the longest that it may. So no probe begins that could exceed the
part, and what one takes beyond its time counts against the next.
"""

from __future__ import annotations

from collections.abc import Iterable

from skep.ledger.job_state import JobState
from skep.ledger.records import Probe
from skep.ledger.state import ClusterState
from skep.units import Duration, Instant, after, seconds
from skep.wire.changes import Goal
from skep.wire.commands import Resize
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


def recent(probes: Iterable[Probe], now: Instant) -> int:
    """Return how many probes there were in the last 24 hours.

    Args:
        probes: Of one VC. Older ones are forgotten when the next one begins.
        now: The end of the 24 hours.
    """
    return sum(_counts(each, now) for each in probes)


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
    """Take over that a trial began, if it is a probe."""
    if fact.kind is not Kind.PROBE:
        return
    first, known = fact.jobs[0], state.probes
    each = first.gpus // max(fact.workers, 1)
    chain = state.cells.chains.get(state.jobs[first.job].chain)
    probe = Probe(
        trial=fact.trial,
        job=first.job,
        family=fact.families[0],
        gpu_type="" if chain is None else chain.topology.gpu,
        workers=fact.grown,
        gpus=each * fact.grown,
        nodes=len(fact.nodes),
        takes=each * max(fact.grown, fact.workers),
        at=fact.at,
        until=after(fact.until, PUT_BACK),
    )
    counts = [one for one in known.of_vc.get(fact.vc, ()) if _counts(one, fact.at)]
    known.of_vc[fact.vc] = [*counts, probe]
    known.open[fact.trial] = probe


def over(state: ClusterState, fact: TrialOver) -> None:
    """Take over the verdict on a trial: the gang of a probe may have another size still."""
    probe = state.probes.open.get(fact.trial)
    if probe is not None:
        probe.void = fact.verdict is Verdict.VOID


def follow(state: ClusterState, fact: object) -> None:
    """Take over that gangs of probes have their own size again, or are no more.

    That is once a probe has its verdict, nothing is to be put back, and no size changes.
    """
    tries, at = state.tries, getattr(fact, "at", None)
    for trial, probe in list(state.probes.open.items()) if at else ():
        undo, job = tries.undoing.get(probe.job), state.jobs.get(probe.job)
        resizes = job is not None and job.change is not None and job.change.goal is Goal.RESIZE
        owes = undo is not None and undo.trial == trial
        if trial not in tries.open and not owes and not resizes:
            probe.ended = Instant(at or 0)
            del state.probes.open[trial]


def remains(state: ClusterState, job: JobState, trial: int) -> bool:
    """Return whether a gang has, or is about to have, the size of a probe that is over."""
    probe, change = state.probes.open.get(trial), job.change
    if probe is None:
        return False
    told = change.change if change is not None else None
    goes = told.world if isinstance(told, Resize) else 0
    return probe.workers in (job.size, goes)


def check(state: ClusterState) -> None:
    """Assert that the probes that have not ended are those of the VCs.

    Raises:
        AssertionError: They are not.
    """
    found = {
        each.trial: each
        for known in state.probes.of_vc.values()
        for each in known
        if not each.ended
    }
    assert found == state.probes.open, (found, state.probes.open)


def _counts(probe: Probe, now: Instant) -> bool:
    return not probe.ended or probe.ended > now - DAY
