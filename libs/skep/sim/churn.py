"""A policy for the fault simulator: it does everything a policy may do, and what none may.

By rules that follow from the view alone jobs are held back, placed, preempted, suspended, packed,
moved and resized; now and then it raises, or names jobs that are not its own. Whatever it does, the
allocator's promises hold, and everything ends: a job that has run for a while is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from skep.policy.api import Policy
from skep.policy.plan import (
    Action,
    Migrate,
    Pack,
    Plan,
    Preempt,
    Resize,
    Suspend,
    Turn,
    Unpack,
    Withheld,
)
from skep.policy.registry import POLICIES
from skep.policy.view import JobView, Phase, VcView
from skep.units import Instant, after, in_seconds, seconds
from skep.wire.reasons import Reason

EMBARGO = seconds(3)
"""How long every third job is held back after its submission."""
EMBARGOED = 3
LEFT_ALONE = seconds(20)
STARTS_MAX = 3


class Churn(Policy, frozen=True):
    """Whatever comes to mind."""

    name: ClassVar[str] = "churn"
    source: ClassVar[str] = "no paper: what finds bugs"
    strict: bool = False
    wild: bool = False
    """Whether it also raises, and names what it may not."""
    keen: bool = False
    """Whether it tries things all the time, and does little else."""
    sees_nodes: ClassVar[bool] = True

    def plan(self, view: VcView) -> Plan:
        """Return a plan that does all sorts of things, some of which a policy must not do.

        Raises:
            ZeroDivisionError: It is `wild`, and this second is one in which it fails.
        """
        beat = int(in_seconds(view.now))
        if self.wild and beat % 11 == 0:
            raise ZeroDivisionError
        held = [
            job
            for job in view.jobs
            if job.phase is Phase.WAITING and embargoed(job.sequence, job.submitted_at, view.now)
        ]
        names = {job.job for job in held}
        ready = (Phase.WAITING, Phase.AWAY)
        waiting = [job for job in view.jobs if job.phase in ready and job.job not in names]
        turns = [
            Turn(job.job, Reason.BY_POLICY, self._nodes(view, job, beat))
            for job in sorted(waiting, key=_latest)
        ]
        if self.wild and beat % 7 == 0:
            turns.append(Turn("j1", Reason.BY_POLICY))
        return Plan(
            turns=tuple(turns),
            strict=self.strict,
            actions=tuple(self._actions(view, waiting, beat)),
            holds=tuple(Withheld(job.job, Reason.HELD_BY_POLICY, "an embargo") for job in held),
            look_at=after(view.now, seconds(0.7)) if view.jobs else None,
        )

    @staticmethod
    def _nodes(view: VcView, job: JobView, beat: int) -> tuple[str, ...]:
        """Return some nodes for every other job, for a while."""
        if (job.sequence + beat // 4) % 4:
            return ()
        return tuple(node.node for at, node in enumerate(view.nodes) if (at + beat // 4) % 2)

    def _actions(self, view: VcView, waiting: list[JobView], beat: int) -> Iterator[Action]:
        running = [job for job in view.jobs if job.phase is Phase.RUNNING]
        if self.keen:
            yield from _tries(view, waiting, running, beat)
        for job in view.jobs if not self.keen or beat % 5 == 0 else ():
            dice = (job.sequence * 7 + beat) % 12
            if job.ran(view.now) > LEFT_ALONE or job.starts > STARTS_MAX:
                continue
            if dice == 0 and job.phase not in (Phase.WAITING, Phase.AWAY):
                yield Preempt(job.job, Reason.BY_POLICY, "churn")
            elif dice == 1 and job.phase is Phase.RUNNING:
                yield Suspend(job.job, Reason.BY_POLICY)
            elif dice == 2 and job.phase is Phase.RUNNING:
                there = tuple(node.node for node in view.nodes if node.free >= job.gpus)[:1]
                yield Migrate(
                    job.job,
                    Reason.BY_POLICY,
                    there if job.sequence % 2 else (),
                    trial=beat % 2 == 0,
                    defrag=beat % 5 == 0,
                )
            elif dice == 3 and job.spec.elastic is not None:
                sizes = job.spec.elastic
                yield Resize(
                    job.job,
                    Reason.BY_POLICY,
                    sizes.min if beat % 2 else sizes.max,
                    trial=beat % 4 == 0,
                )
            elif dice == 4 and job.partners:
                yield Unpack(job.job, Reason.BY_POLICY)
            elif dice in (5, 6) and job in waiting and running:
                host = running[job.sequence % len(running)]
                yield Pack(job.job, host.job, Reason.BY_POLICY, trial=beat % 2 == 0)


def _tries(
    view: VcView, waiting: list[JobView], running: list[JobView], beat: int
) -> Iterator[Action]:
    """Yield a trial of whatever can be tried with each job."""
    for job in running:
        sizes = job.spec.elastic
        if job.trial or job.ran(view.now) > LEFT_ALONE:
            continue
        if sizes is not None and job.workers < sizes.max and (job.sequence + beat) % 2:
            yield Resize(job.job, Reason.BY_POLICY, job.workers + 1, trial=True)
        elif "migrate" in job.can and (job.sequence + beat) % 3 == 0:
            yield Migrate(job.job, Reason.BY_POLICY, trial=True, defrag=beat % 4 == 0)
    for job, host in zip(waiting, running, strict=False):
        yield Pack(job.job, host.job, Reason.BY_POLICY, trial=True)


def embargoed(sequence: int, submitted_at: Instant, now: Instant) -> bool:
    """Return whether a job is held back.

    Args:
        sequence: The job's place in the order of arrival: one in EMBARGOED is held back.
        submitted_at: When the job came.
        now: The time of the view.
    """
    return sequence % EMBARGOED == 0 and now < after(submitted_at, EMBARGO)


def _latest(job: JobView) -> tuple[int, int]:
    return -job.spec.priority, -job.sequence


def register() -> None:
    """Let cluster files of the simulator name it."""
    POLICIES.setdefault(Churn.name, Churn)
