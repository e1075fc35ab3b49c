"""Shares of jobs that take turns, by weight, and the deficit of each job.

A job's share is the part of the time for which it should have its GPUs. Higher priorities come
first. Within one priority shares are proportional to weights, no share is above 1, and together
they use all GPUs (water-filling). The deficit says for how long a job should have run longer than
it has. It counts from when ranks really began and really stopped. So the time that a job runs on
until its mini-batch ends shortens its next turn, and the job that had to wait for that loses
nothing (Gandiva, section 4.1: the scheduler keeps track of this delay and adjusts the interval).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby

from skep.policy.view import HOLDING, JobView, Phase, VcView
from skep.units import Instant

Weigh = Callable[[JobView], float]

OWED_SLICES_MAX = 2
"""A deficit is at most so many slices, either way. A job that had idle GPUs for a day does not pay
for it when other jobs come, and one that could not be placed does not keep others waiting for as
long."""


def may_yield(job: JobView) -> bool:
    """Return whether a job can be suspended for others: it runs alone, and can release GPUs."""
    runs = job.phase is Phase.RUNNING and not job.borrows and not job.partners
    return runs and "release" in job.can


Kind = tuple[str, int, float]
"""What a job's share depends on: its pin, its priority, and its weight."""


def kind_of(job: JobView, weigh: Weigh) -> Kind:
    """Return the kind of a job."""
    return job.spec.resources.pinned, job.spec.priority, weigh(job)


def shares(view: VcView, weigh: Weigh) -> dict[str, float]:
    """Return by job the part of the time for which it should have its GPUs: 0 to 1.

    Args:
        view: The VC.
        weigh: The weight of a job.
    """
    fixed, turning, gpus = dict[str, int](), dict[Kind, int](), view.gpus_for()
    jobs = [job for job in view.jobs if not job.borrows and job.pin in gpus]
    for job in jobs:
        if is_fixed(job):
            fixed[job.pin] = fixed.get(job.pin, 0) + job.gpus
        else:
            kind = kind_of(job, weigh)
            turning[kind] = turning.get(kind, 0) + job.gpus
    found = divide(gpus, fixed, turning)
    return {job.job: 1.0 if is_fixed(job) else found[kind_of(job, weigh)] for job in jobs}


def divide(
    gpus: Mapping[str, int], fixed: Mapping[str, int], turning: Mapping[Kind, int]
) -> dict[Kind, float]:
    """Return the share of each kind of job: 0 to 1.

    Args:
        gpus: All GPUs, by pin.
        fixed: By pin, GPUs of jobs that take no turns.
        turning: By kind, GPUs that its jobs need.
    """
    found: dict[Kind, float] = {}
    kinds = sorted(turning, key=lambda kind: (-kind[1], -kind[2]))
    for pin, whole in gpus.items():
        left = float(whole - fixed.get(pin, 0))
        with_pin = [kind for kind in kinds if kind[0] == pin]
        for _, level in groupby(with_pin, key=lambda kind: kind[1]):
            left = _fill({kind: turning[kind] for kind in level}, max(left, 0.0), found)
    return found


def is_fixed(job: JobView) -> bool:
    """Return whether a job keeps its GPUs until it ends, or until its tenant resumes it."""
    if job.phase is Phase.RUNNING:
        return not may_yield(job)
    return job.phase is Phase.SUSPENDED


def _fill(kinds: Mapping[Kind, int], gpus: float, found: dict[Kind, float]) -> float:
    """Divide GPUs among kinds by weight, no share above 1; return what is left over."""
    weight = sum(kind[2] * wanted for kind, wanted in kinds.items())
    for kind, wanted in kinds.items():
        # The heaviest comes first. Once a share is below 1, all later ones are on the same level.
        level = gpus / weight if weight > 0 else 0.0
        share = found[kind] = min(1.0, level * kind[2])
        weight -= kind[2] * wanted
        gpus -= share * wanted
    return max(gpus, 0.0)


def begun(job: JobView) -> Instant:
    """Return the instant from which a job's deficit counts."""
    return job.owed_at or job.waiting_since


def owed(job: JobView, share: float, now: Instant, slice_ns: int) -> int:
    """Return the deficit of a job: for how many nanoseconds it should have run longer by now.

    It counts from when the policy last suspended the job, and continues from the deficit that was
    noted then.

    Args:
        job: The job.
        share: For what part of the time it should have its GPUs.
        now: The time of the view.
        slice_ns: The length of a slice; the result is bounded by OWED_SLICES_MAX slices.
    """
    most = OWED_SLICES_MAX * slice_ns
    first = begun(job)
    since, before = max(job.since, first), job.owed
    if job.owed_at and job.since >= first:
        before += round(share * (since - first)) - (job.served - job.owed_ran)
    elif not job.owed_at:
        before = round(share * (since - first))
    rest = max(now - since, 0)
    after = max(-most, min(before, most)) + round(share * rest)
    if job.phase is Phase.RUNNING:
        after -= rest
    return max(-most, min(after, most))


class Group:
    """The jobs of one kind: they have the same share."""

    __slots__ = ("kind", "share", "stands")

    def __init__(self, kind: Kind | None, share: float, stands: int) -> None:
        """Begin.

        Args:
            kind: Their kind; None: they have their GPUs all of the time.
            share: For what part of the time each should have its GPUs.
            stands: How long each of them stands at most, in nanoseconds.
        """
        self.kind, self.share, self.stands = kind, share, stands


class Account:
    """The deficit of one job: what `owed` says, without what stays the same from view to view."""

    __slots__ = (
        "_before",
        "_fixed",
        "_runs",
        "_share",
        "_since",
        "_span",
        "begun",
        "deficit",
        "group",
        "version",
    )

    def __init__(self, job: JobView, group: Group) -> None:
        """Open the account of a job as a view shows it."""
        first = self.begun = begun(job)
        self.group, self._runs = group, job.phase is Phase.RUNNING
        self._since = max(job.since, first)
        noted, stood = bool(job.owed_at), job.since >= first
        self._fixed = job.owed if noted else 0
        self._span = self._since - first if stood or not noted else 0
        if noted and stood:
            self._fixed -= job.served - job.owed_ran
        self._share, self._before = -1.0, 0
        self.deficit, self.version = 0, -1

    def settle(self, now: Instant, most: int) -> None:
        """Compute `deficit`.

        Args:
            now: The time of the view.
            most: The bound of deficits, either way, in nanoseconds.
        """
        share, rest = self.group.share, now - self._since
        if share != self._share:
            before = self._fixed + round(share * self._span)
            self._share, self._before = share, max(-most, min(before, most))
        deficit = self._before
        if rest > 0:
            deficit += round(share * rest)
            if self._runs:
                deficit -= rest
        if deficit > most:
            deficit = most
        elif deficit < -most:
            deficit = -most
        self.deficit = deficit


def height(view: VcView) -> int:
    """Return the height of the VC: the most jobs to which any GPU of a server is allocated.

    That is the ceiling of allocated GPUs by GPUs (Gandiva, section 4.2), suspended jobs included.
    """
    return max((-(-gpus // size) for _, gpus, size in loads(view)), default=0)


def loads(view: VcView) -> list[tuple[str, int, int]]:
    """Return for each node the GPUs that are allocated there, and those that it has.

    Suspended jobs count as allocated. A node has what is free for the VC's jobs and what they hold.
    """
    size = {node.node: node.free + sum(gpus for _, gpus in node.pins) for node in view.nodes}
    taken = dict.fromkeys(size, 0)
    for job in view.jobs:
        for node, gpus in job.nodes if not job.borrows else ():
            if node in size:
                taken[node] += gpus
                size[node] += gpus if job.phase in HOLDING else 0
    return [(node, taken[node], max(size[node], 1)) for node in size]
