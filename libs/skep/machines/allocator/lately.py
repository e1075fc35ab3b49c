"""What a policy may learn from the past of its VC: what moving cost, and when a job last came.

Durable, as it follows from facts alone. How long a job makes nothing while it is moved is taken
from when its ranks are told to stop until its successor goes on, by the allocator's clock: so it
holds the rest of a mini-batch, the state's way to the other hosts, and every round of a gang.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import msgspec

from skep.machines.allocator.jobs import JobState, OpenChange, State
from skep.units import Duration, Instant
from skep.wire.changes import Goal, JobChanged, Result

if TYPE_CHECKING:
    from skep.machines.allocator.machine import AllocatorMachine

KEPT = 5
"""Pauses of which the middle one counts, the latest: one that was held up says little."""
KEYS_MAX = 10_000
"""Jobs, families and VCs of which pauses are kept, the latest moved."""


class Lately(msgspec.Struct):
    """What was measured of each."""

    pauses: dict[str, list[int]] = {}
    """By job, by VC and family, by `vc:` and VC: how long moves took, oldest first."""
    came: dict[str, Instant] = {}
    """By VC: when its latest guaranteed job was submitted."""


def came(machine: AllocatorMachine, job: JobState) -> None:
    """Take over that a job has come."""
    vc = job.spec.vc
    if not job.spec.opportunistic:
        known = machine.lately.came
        known[vc] = max(known.get(vc, Instant(0)), job.submitted_at)


def changed(machine: AllocatorMachine, job: JobState, change: OpenChange, fact: JobChanged) -> None:
    """Take over how long a move took, if that is what has ended."""
    moved = fact.goal is Goal.MIGRATE and fact.result is Result.DONE
    if not (moved and change.stops_at and job.state is State.RUNNING):
        return
    pause, pauses = max(0, fact.at - change.stops_at), machine.lately.pauses
    for name in _names(job):
        kept = pauses.pop(name, [])
        pauses[name] = [*kept[1 - KEPT :], pause]
        if not kept or median(kept) != median(pauses[name]):
            _show(machine, name)
    while len(pauses) > KEYS_MAX:
        name = next(iter(pauses))
        del pauses[name]
        _show(machine, name)


def pause(machine: AllocatorMachine, job: JobState) -> Duration:
    """Return how long a job makes nothing when it is moved, by the closest there is; 0: unknown."""
    pauses = machine.lately.pauses
    if not pauses:
        return Duration(0)
    known = next((pauses[name] for name in _names(job) if name in pauses), None)
    return Duration(int(median(known)) if known else 0)


def ended(machine: AllocatorMachine, name: str) -> None:
    """Forget a job that is over."""
    machine.lately.pauses.pop(name, None)


def _names(job: JobState) -> tuple[str, ...]:
    """Return under which names what a job takes to be moved is kept, the closest first."""
    family, vc = job.spec.size.family, job.spec.vc
    return job.job, *((f"{vc} {family}",) if family else ()), f"vc:{vc}"


def _show(machine: AllocatorMachine, name: str) -> None:
    """Have jobs be seen anew for which something else is known of what moving them takes."""
    if name in machine.jobs and machine.soft.planned:
        machine.soft.touched[name] = None
    for planned in machine.soft.planned.values():
        for other in planned.views if name.startswith((f"vc:{planned.vc}", planned.vc)) else ():
            job = machine.jobs.get(other)
            if job is not None and name in _names(job):
                machine.soft.touched[other] = None
