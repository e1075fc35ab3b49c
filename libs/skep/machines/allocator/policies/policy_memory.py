"""What is kept of a virtual cluster with a policy, from one plan to the next."""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from skep.ids import AttemptId
from skep.ledger.job_state import JobState, State
from skep.machines.allocator.placement import quota
from skep.machines.allocator.policies.demand import Demand
from skep.machines.allocator.policies.node_views import Seats
from skep.machines.allocator.policies.sights import Sights
from skep.machines.allocator.policies.trial_limits import Pairs
from skep.policy.api import Policy
from skep.policy.fair import shared
from skep.policy.view import JobView
from skep.units import Duration, Instant, after, seconds
from skep.wire.cluster import FIFO, FairShare, PersonLimits, VirtualCluster
from skep.wire.learned import LearnedAdvice

TRY_AGAIN, TRY_AGAIN_MAX, TRIES_DOUBLED = seconds(30), seconds(600), 5
"""How long a move that came to nothing is not tried again: twice as long each time, up to the most.
A successor that cannot start costs GPUs and facts every time."""

TAKES_WITHIN = seconds(60)
"""How long a job whose GPUs its policy took may take to run at all, once it has others."""


Sharing = tuple[FairShare | None, PersonLimits | None]
NO_SHARING: Sharing = (None, None)


def sharing_of(entry: VirtualCluster | None) -> Sharing:
    """Return how the people of a VC share, and what each may have."""
    return NO_SHARING if entry is None else (entry.fair_share, entry.limits)


class Planned:
    """What is kept of a VC that has a policy, from one plan to the next."""

    def __init__(self, vc: str, policy: Policy, entry: VirtualCluster | None = None) -> None:
        """Start with everything to be looked at.

        Args:
            vc: Its name.
            policy: Its policy.
            entry: What the cluster file says of it; None: nothing of people.
        """
        self.vc = vc
        self.policy = policy
        self.sharing = sharing_of(entry)
        """How its people share, and what each may have."""
        self.plan = policy.planner() if self.sharing == NO_SHARING else shared(policy.planner())
        self.lends = self.sharing != NO_SHARING and policy.name == FIFO
        """Whether jobs that can give GPUs back have idle ones while they wait, as in a VC that has
        no policy."""
        self.views: dict[str, JobView | None] = {}
        """Its guaranteed jobs in the order of arrival; None: not for the policy."""
        self.due = True
        """Whether something happened since the last plan was made."""
        self.look_at: Instant | None = None
        """When to ask again if nothing happens before."""
        self.changes = -1
        """`Soft.changes` when the last plan was carried out."""
        self.vain: tuple[Instant, int, int] | None = None
        """When a plan last came to nothing, with `Soft.changes` and `Soft.stirred` then; None: the
        last one did something."""
        self.named: dict[str, None] = {}
        """Jobs that had a turn or an action in the last plan."""
        self.open = False
        """Whether a job of the last plan's turns waits still."""
        self.limited = False
        """Whether a job of the last plan waits for what its person has elsewhere in the VC."""
        self.outside = False
        """Whether what such a job waits for may be in others' hands."""
        self.fallen = False
        """Whether the last plan failed: its queue is served first come, first served."""
        self.misfits: dict[str, None] = {}
        """Its jobs that its cells would not hold if nothing else ran: they are no policy's
        business, and have what they may borrow."""
        self.strays: dict[str, None] = {}
        """Its suspended jobs that can go on only where they are, on nodes where its cells would not
        hold them if nothing else ran: they have idle GPUs there, whatever their specs say."""
        self.held: dict[str, tuple[int, int]] = {}
        """By job: how often a plan held it, and `freed` when it last did."""
        self.line: tuple[str, ...] = ()
        """The jobs that had a turn in the last plan."""
        self.lent_at = -1
        """`Soft.changes` when nothing idle was left for its waiting jobs."""
        self.returning: dict[str, None] = {}
        """Suspended jobs for which others leave the GPUs that they had."""
        self.awaited: dict[str, None] = {}
        """Nodes that jobs of the VC leave for others of it that have a turn in the last plan."""
        self.leaving: dict[AttemptId, str] = {}
        """Attempts that leave the VC's cells to a suspended job that moves there, and which."""
        self.going: dict[str, None] = {}
        """Those that go on where they were, and have yet to have the VC's cells there."""
        self.tried: dict[str, tuple[int, Instant]] = {}
        """Suspended jobs that were to go on elsewhere: how often, and when that may be tried again
        if it comes to nothing."""
        self.taken: dict[str, Instant] = {}
        """Jobs from which the policy has taken GPUs, and when it last did."""
        self.fits: dict[Any, bool] = {}
        """By what was asked for: whether its cells would hold it."""
        self.demand = Demand()
        self.whole = False
        """Whether the last plan's turns were all taken, as far as there was room for anybody."""
        self.unsaid: dict[str, None] = {}
        """Jobs of which there may be something new to be said, if they have no turn."""
        self.borrowers: dict[str, None] = {}
        """Its jobs that would have idle GPUs while they wait."""
        self.probable: dict[str, None] = {}
        """Its running jobs that may be probed."""
        self.advised: LearnedAdvice | None = None
        """What its model said last."""
        self.sights = Sights() if policy.answers_within is not None else None
        """What its model was told of it; None: it has none."""
        self.pairs = Pairs()
        self.seats = Seats()
        self._shown: list[JobView] = []
        """The views of its jobs that there are, in the order of arrival."""
        self._jobs: tuple[JobView, ...] | None = None
        """The same; None: one of them is another."""

    def try_elsewhere(self, name: str, now: Instant) -> bool:
        """Return whether a job may be moved now, and count the try if so.

        Args:
            name: The job.
            now: The time of the decision.

        Returns:
            Whether it may; if not, `look_at` is set to when to ask again.
        """
        count, soonest = self.tried.get(name, (0, now))
        if soonest > now:
            self.look_at = min(self.look_at or soonest, soonest)
            return False
        delay = min(TRY_AGAIN << min(count, TRIES_DOUBLED), TRY_AGAIN_MAX)
        self.tried[name] = count + 1, after(now, Duration(delay))
        return True

    def rests(self, job: JobState, now: Instant, runs_least: Duration) -> bool:
        """Return whether a job from which GPUs were taken is to be let be, as it has others now.

        It is until it has run for `runs_least`, or TAKES_WITHIN has passed: so each job is taken
        from a bounded number of times within any time, whatever is planned, and at an instant once.

        Args:
            job: The job.
            now: The time of the decision.
            runs_least: How long it keeps its GPUs at least; 0: until the next instant.
        """
        taken = self.taken.get(job.job)
        if taken is None or now < taken:
            return False  # A clock that was set back protects no job for longer.
        runs = job.state is State.RUNNING and job.since >= taken
        until = after(taken, TAKES_WITHIN)
        if runs:
            until = min(until, after(job.since, runs_least))
        if until <= now:
            return now == taken  # Whatever is planned now was planned without knowing of that.
        self.look_at = min(self.look_at or until, until)
        return True

    def hold(self, name: str, freed: int) -> None:
        """Count that a job is held, once for each time that something of the VC had come free.

        Args:
            name: The job.
            freed: How often something of the VC has come free (`policy_views.freed`).
        """
        count, last = self.held.get(name, (0, -1))
        view = self.views[name]
        if view is not None and last != freed:
            self.held[name] = count + 1, freed
            self.show(name, replace(view, held=count + 1))

    def show(self, name: str, view: JobView | None) -> bool:
        """Take over how the policy sees a job from now on; None: not at all.

        Returns:
            Whether that is otherwise than before.
        """
        before, self.views[name] = self.views.get(name), view
        return self._replace(before, view)

    def _replace(self, before: JobView | None, view: JobView | None) -> bool:
        """Put another view of a job in its place; return whether it is another."""
        any_view = before or view
        if before == view or any_view is None:
            return False
        at = bisect_left(self._shown, any_view.sequence, key=_sequence)
        self._shown[at : at + (before is not None)] = [] if view is None else [view]
        self._jobs = None
        return True

    def borrows(self, job: JobState) -> bool:
        """Return whether a job may have idle GPUs while it waits."""
        return quota.borrows(job) or (self.lends and quota.lends(job))

    def jobs(self) -> tuple[JobView, ...]:
        """Return what the policy sees of its jobs, in the order of their arrival."""
        if self._jobs is None:
            self._jobs = tuple(self._shown)
        return self._jobs

    def forget(self, name: str) -> None:
        """Take over that a job is over."""
        self.misfits.pop(name, None)
        self.strays.pop(name, None)
        self.held.pop(name, None)
        self.tried.pop(name, None)
        self.taken.pop(name, None)
        self.unsaid.pop(name, None)
        self.borrowers.pop(name, None)
        self.probable.pop(name, None)
        self.demand.leave(name)
        before = self.views.pop(name)
        self.seats.move(name, before, None)
        self._replace(before, None)


_sequence = attrgetter("sequence")
