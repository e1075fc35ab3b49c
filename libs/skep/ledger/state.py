"""The state of the cluster, and what can be read from it. Only `fold.apply` changes it.

`jobs` holds the life of a job, `cells` which attempt holds which GPU,
`nodes` what else a node has.
"""

from __future__ import annotations

from skep.cells.nodes import NodeState
from skep.cells.state import Cells
from skep.ids import attempt_id
from skep.ledger.accounts import People
from skep.ledger.delta import UNCHANGED, Delta
from skep.ledger.job_state import ArrayState, JobState
from skep.ledger.queue import JobQueue
from skep.ledger.records import (
    JobOutcome,
    MoveCosts,
    PipelineJobs,
    PipelineKey,
    Probes,
    Suspicion,
    Tries,
)
from skep.units import Instant
from skep.wire.bearing import RULES
from skep.wire.cluster import Cluster
from skep.wire.facts import CellsAlarm
from skep.wire.following import AdviceFollowed
from skep.wire.held_up import HeldUp
from skep.wire.reasons import Reason
from skep.wire.windows import Window

Place = tuple[Reason, str, str]
"""What is broken: rule, chain, and where."""


class ClusterState:
    """Jobs, nodes, cells, trials and GPU health, all of them derived from facts."""

    def __init__(self) -> None:
        """Start with no nodes and no jobs."""
        self.epoch = 0
        self.rules = RULES
        """The version of the rules by which facts of this epoch are applied."""
        self.unstated = False
        """Whether VCs bear bad cells that no fact names: those that earlier rules chose."""
        self.order = 0
        self.last_queued = 0
        self.asked = Cluster()
        """The cluster as the operator wrote it; `cells.cluster` is what follows from it."""
        self.cells = Cells(self.asked)
        self.nodes: dict[str, NodeState] = {}
        """In the order in which they first joined."""
        self.jobs: dict[str, JobState] = {}
        self.placed: dict[str, JobState] = {}
        """The jobs that hold GPUs: every one that is not queued, deferred or has a reservation."""
        self.sharers: dict[str, JobState] = {}
        """The jobs that ask for a share of a GPU and have one. Made from the jobs."""
        self.unshared: dict[str, JobState] = {}
        """The unfinished jobs that ask for a share of a GPU and have none."""
        self.parked: dict[str, JobState] = {}
        """Queued jobs that no cell can hold as things are: no job behind them waits for them."""
        self.deferred: dict[str, JobState] = {}
        """Jobs that wait for others, for a time or to be released: they are in no queue."""
        self.awaited: dict[str, dict[str, None]] = {}
        """By unfinished job or array: the jobs and arrays that wait for its end. Made from them."""
        self.pipelines: dict[PipelineKey, PipelineJobs] = {}
        """The pipelines that have unfinished jobs and `max_parallel`. Made from the jobs."""
        self.arrays: dict[str, ArrayState] = {}
        """The arrays that have not ended."""
        self.ends: dict[str, JobOutcome] = {}
        """How the latest jobs and arrays ended, oldest first."""
        self.reserved: dict[str, JobState] = {}
        """Jobs whose GPUs are claimed and still used by others."""
        self.borrowed: dict[str, JobState] = {}
        """Guaranteed jobs that run opportunistically for now."""
        self.lent: dict[str, JobState] = {}
        """Those of them that give back their GPUs at their turn (`JobState.lends`)."""
        self.away: dict[str, JobState] = {}
        """Suspended jobs that have given back their GPUs."""
        self.away_of: dict[tuple[str, bool], dict[str, JobState]] = {}
        """The same jobs by VC and class; the order of the VCs says nothing."""
        self.served: dict[str, list[int]] = {}
        """By VC with a policy: the service its latest jobs had had at their end, oldest first."""
        self.last_asked = 0
        """The latest request for a change that was taken, by its sequence in SUBMIT."""
        self.queues: dict[tuple[str, bool], JobQueue] = {}
        self.suspicion = Suspicion()
        self.held_up = HeldUp()
        """Which ranks hold their gangs up, and what that says about nodes."""
        self.tries = Tries()
        self.probes = Probes()
        self.move_costs = MoveCosts()
        self.alarms: dict[Place, CellsAlarm] = {}
        """Invariants of the cells that were found broken and have not been found to hold since."""
        self.followed: dict[str, AdviceFollowed] = {}
        """By VC with the policy `learned`: whether it follows its model, as it was said last."""
        self.people = People()
        """Of VCs with fair shares or limits: what each person has and has used."""
        self.windows: dict[str, Window] = {}
        """The windows that are booked or open, by name, in the order of booking."""
        self.opened: dict[str, None] = {}
        """Those of them that are open."""
        self._delta: Delta | None = None

    @property
    def delta(self) -> Delta:
        """Return what the fact that is being applied changes, for its handler to add to."""
        if self._delta is None:
            self._delta = Delta()
        return self._delta

    def end_change(self) -> Delta:
        """Return what the fact changed; `UNCHANGED`: nothing beyond what it says itself."""
        delta, self._delta = self._delta, None
        return UNCHANGED if delta is None else delta

    def queue(self, job: JobState) -> JobQueue:
        """Return the queue a job waits in."""
        return self.queue_of(job.spec.vc, job.spec.opportunistic)

    def queue_of(self, vc: str, opportunistic: bool) -> JobQueue:
        """Return the queue of a VC and service class."""
        queue = self.queues.get((vc, opportunistic))
        if queue is None:
            queue = self.queues[vc, opportunistic] = JobQueue()
        return queue

    def note_sharer(self, job: JobState, *, placed: bool) -> None:
        """Note whether a job that asks for a share of a GPU has one; others are not noted."""
        if job.spec.resources.share:
            here, there = (self.sharers, self.unshared) if placed else (self.unshared, self.sharers)
            there.pop(job.job, None)
            here[job.job] = job

    def note_away(self, job: JobState, *, away: bool) -> None:
        """Note whether a job is suspended and has given back its GPUs."""
        if away:
            self.away[job.job] = job
            self.away_of.setdefault(job.queue, {})[job.job] = job
        elif self.away.pop(job.job, None) is not None:
            there = self.away_of[job.queue]
            del there[job.job]
            if not there:
                del self.away_of[job.queue]

    def note_borrowed(self, job: JobState, at: Instant | None = None) -> None:
        """Note whether a guaranteed job holds GPUs opportunistically.

        Args:
            job: The job; how long it has waited or run is brought up to date.
            at: Since when; None: what it holds is as it was before (a piece of a snapshot).
        """
        hold = self.cells.holds.get(attempt_id(job.job, job.attempt))
        borrows = hold is not None and not hold.guaranteed and not job.spec.opportunistic
        job.lent = job.lent and (borrows or hold is None)
        if at and borrows is not (job.job in self.borrowed):
            job.changes_hands(at, borrows=borrows)
        if borrows and job.job in self.placed:
            self.borrow(job)
        else:
            self.forget_borrowed(job)

    def borrow(self, job: JobState) -> None:
        """Note that a job runs opportunistically."""
        self.borrowed[job.job] = job
        if job.lends:
            self.lent[job.job] = job
        else:
            self.lent.pop(job.job, None)

    def forget_borrowed(self, job: JobState) -> bool:
        """Note that a job does not run opportunistically; return whether it did."""
        self.lent.pop(job.job, None)
        return self.borrowed.pop(job.job, None) is not None


def apply_alarm(state: ClusterState, fact: CellsAlarm) -> None:
    """Take over that an invariant was found broken, or found to hold again."""
    place = fact.rule, fact.chain, fact.where
    if fact.over:
        state.alarms.pop(place, None)
    else:
        state.alarms[place] = fact
