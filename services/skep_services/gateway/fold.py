"""Folds facts into rows: pure, and the same rows come out in whatever order the streams arrive.

    SUBMIT ──> submitted          ADMISSION ──> queued | refused | repeated
    ALLOC  ──> queued -> bound -> running -> stopping -> succeeded | failed | cancelled
    NODE   ──> first mini-batch, exit codes

Within one stream order is given; between streams it is not. So every state has one owner that wins
over the streams before it in the job's life: what ALLOC says is never undone by ADMISSION, nor
what ADMISSION says by SUBMIT. Everything else is taken over field by field, each field from one
stream alone.

What ALLOC says of cells, nodes and GPUs is folded by `skep.ledger`, as in the allocator: `state` is
the same state. Rows have what the ledger forgets: ended jobs and attempts, and when all of it was.

Jobs that are not over stay here; ended ones leave for the store (`forget`) and are loaded again
when something more is said about them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import structlog

from skep.access.templates import Templates
from skep.ids import job_of, job_sequence
from skep.ledger import fold as ledger_fold
from skep.ledger.blame import fold as blame_fold
from skep.ledger.blame import kept as blame_kept
from skep.ledger.blame.state import Blame
from skep.ledger.blame.told import Told
from skep.ledger.history import History, Point
from skep.ledger.snapshot import Kept
from skep.ledger.state import ClusterState
from skep.units import Instant
from skep.wire import codec
from skep.wire.admin import DrainNode, QuarantineGpu, SetVcs
from skep.wire.array import (
    ArrayAdmitted,
    ArrayOpened,
    ArrayOver,
    TasksCancelled,
    TasksRetried,
    task_of,
)
from skep.wire.array_gate import (
    ArrayBroken,
    ArrayDeferred,
    ArrayEligible,
    ArrayEnded,
    ArraySeen,
    GateFact,
)
from skep.wire.bearing import BadCellBound, BadCellReturned, RulesRaised, SetLed
from skep.wire.changes import ChangeAsked, ChangeFact
from skep.wire.facts import (
    Admitted,
    CancelAsked,
    CellsAlarm,
    CellsReserved,
    CellsSet,
    ClusterRefused,
    EpochBegan,
    GhostGone,
    GpuQuarantined,
    JobBound,
    JobDeferred,
    JobDemoted,
    JobEligible,
    JobEnded,
    JobPromoted,
    JobQueued,
    JobRan,
    JobRequeued,
    JobStopping,
    JobWaits,
    MemberGone,
    MemberRan,
    NodeAdded,
    NodeBack,
    NodeClean,
    NodeDrained,
    NodeLost,
    Refused,
    Repeated,
    ReservationDropped,
    VcsSet,
)
from skep.wire.following import AdviceFollowed, turns
from skep.wire.held_up import GangHeldUp, PlaceBlamed
from skep.wire.moves import MoveFact
from skep.wire.node import JOIN_DELAY_MAX, MemberExited, MemberStepped, NodeJoined
from skep.wire.packs import GpusShared
from skep.wire.promises import PromiseBroken, PromiseJudged, PromiseKept, PromiseMade, PromiseMoved
from skep.wire.reasons import Reason
from skep.wire.resizes import ResizeFact
from skep.wire.search_facts import SearchRequest
from skep.wire.spec import SPEC_BYTES_MAX
from skep.wire.template_facts import TemplateSet
from skep.wire.trials import TrialBegun, TrialOver
from skep.wire.windows import (
    CancelWindow,
    ReserveNodes,
    WindowBegan,
    WindowBooked,
    WindowEnded,
    WindowRefused,
)
from skep_services.gateway import arrays, changes, pledging
from skep_services.gateway.holders import partners, use_of
from skep_services.gateway.ledger import Ledger, Tried
from skep_services.gateway.news import News
from skep_services.gateway.rows import ACTIVE, REPEATS_KEPT, Attempt, Event, Heard, Job, Row, State
from skep_services.gateway.texts import (
    Line,
    describe,
    describe_admin,
    describe_node,
    place_of,
    trial_jobs,
)

RECENT_MAX = 1_000
"""Ended jobs kept at hand: late news about a job mostly comes within seconds of its end."""


JobFact = (
    JobQueued
    | JobWaits
    | JobDeferred
    | JobEligible
    | JobBound
    | MemberRan
    | JobRan
    | JobStopping
    | MemberGone
    | GhostGone
    | JobRequeued
    | JobEnded
)
ClaimFact = CellsReserved | ReservationDropped | JobDemoted | JobPromoted
log = structlog.get_logger(service="gateway")


class Changes(NamedTuple):
    """What the store has to write. `specs` is keyed by sequence; `ended`: the job, and when."""

    jobs: dict[str, Job]
    heard: dict[str, Heard]
    specs: dict[int, bytes]
    events: list[Event]
    ended: list[tuple[Job, Instant]]
    trials: list[Tried]
    blamed: list[tuple[int, Told]]
    """Where the time of jobs went that have ended, by sequence."""
    points: list[Point]
    """The points of the cluster's history that changed."""
    templates: dict[tuple[str, str], TemplateSet | None]
    """By VC and name: what became of templates of managers; None: its VC is gone."""


def waited_for(vc: str, name: str) -> str:
    """Return by which name a change of a template is waited for."""
    return f"template {vc}/{name}"


class Fold:
    """The read model in memory. `load` returns a stored job that is not here, or None."""

    def __init__(self, load: Callable[[int], Job | None]) -> None:
        self.active: dict[str, Job] = {}
        self.arrays: dict[str, Job] = {}
        """Unfinished arrays: they wait for nothing and hold nothing, their jobs do."""
        self.recent: dict[str, Job] = {}
        self.heard: dict[str, Heard] = {}
        """What agents announced of themselves, by node."""
        self.state = ClusterState()
        """The allocator's state, by its facts."""
        self.blame = Blame()
        """Where the time of each job goes, by the same facts."""
        self.history_misfits = 0
        """Facts that the history could not take over: likewise."""
        self.blame_misfits = 0
        """Facts that it could not take over: likewise a bug."""
        self.history = History()
        """The cluster over the last days, by the same facts."""
        self.news = News()
        """What may be shown otherwise now."""
        self.misfits = 0
        """Facts that the ledger could not take over: that is a bug."""
        self.alarms_raised = 0
        """Alarms about the cells since the log began."""
        self.ledger = Ledger()
        self.promises: dict[str, list[int]] = {}
        """By VC: promises that were made, kept and broken, since the log began."""
        self.broken: dict[str, dict[str, int]] = {}
        """By VC and cause: those that were broken."""
        self.templates = Templates()
        """Those that managers wrote for their virtual clusters."""
        self.newest = 0
        """The highest sequence of a job that anything was said about."""
        self.event_seq = 0
        self.facts = 0
        self.unreadable = 0
        self.touched: list[str] = []
        """Ids of the jobs that something was said about, until the reader clears it."""
        self._load = load
        self._jobs: dict[str, Job] = {}
        self._heard: dict[str, Heard] = {}
        self._specs: dict[int, bytes] = {}
        self._events: list[Event] = []
        self._ended: list[tuple[Job, Instant]] = []
        self._blamed: list[tuple[int, Told]] = []
        self._templates: dict[tuple[str, str], TemplateSet | None] = {}

    def restore(
        self, jobs: Iterable[Job], heard: Iterable[Heard], newest: int, trials: Iterable[Tried] = ()
    ) -> None:
        """Begin with what the store has of rows: unfinished jobs, announcements, trials.

        Args:
            jobs: The jobs that are not over.
            heard: What agents announced.
            newest: The highest sequence of a stored job.
            trials: The newest trials.
        """
        self.ledger = Ledger(trials)
        for job in jobs:
            home = self.active if job.row.tasks is None else self.arrays
            home[job.row.job] = job
        for job in self.active.values():
            job.row.eta_s = job.row.estimate = None  # They rest on rates of another time.
        self.heard = {each.node: each for each in heard}
        self.newest = newest

    def restore_state(
        self, kept: Iterable[Kept], alarms_raised: int, blame: Iterable[blame_kept.Kept] = ()
    ) -> None:
        """Begin with a kept state of the ledger, which may be older than the rows.

        Args:
            kept: The pieces of the state.
            alarms_raised: How many alarms there had been by then.
            blame: The pieces of where time had gone by then.
        """
        for piece in kept:
            ledger_fold.apply(self.state, piece)
        for part in blame:
            blame_kept.restore(self.blame, part)
        self.alarms_raised = alarms_raised

    def restore_history(self, points: Iterable[Point], at: int) -> None:
        """Begin with stored points of the cluster's history, and until when they tell."""
        self.history.restore(points, at)

    def catch_up(self, event: Any) -> None:
        """Take over a message of ALLOC that the rows have and the ledger's state lacks."""
        for fact in event.facts if isinstance(event, codec.Facts) else ():
            self._follow(fact, event.at)

    def apply(self, event: Any, at: Instant) -> None:
        """Take over one message of a followed stream.

        Args:
            event: The message, as `codec.read` returned it.
            at: When the stream stored it (wall-clock ns).
        """
        match event:
            case codec.Facts(service="allocator"):
                for fact in event.facts:
                    self.facts += 1
                    self._allocator(fact, event.at)
            case codec.Facts():
                for fact in event.facts:
                    self.facts += 1
                    self._admission(fact, event.at)
            case codec.Submission():
                self._submission(event)
            case codec.Unreadable():
                self.unreadable += 1
            case SetVcs() | DrainNode() | QuarantineGpu() | ReserveNodes() | CancelWindow():
                self.note(event, at, describe_admin(event), None)
            case codec.CancelRequest() | codec.AskRequest() | SearchRequest():
                pass  # Its service's facts say whether it came to anything.
            case _:
                self._agent(event, at)

    def find(self, name: str) -> Job | None:
        """Return a job, or None if nothing named it. For a repeated submission: the original."""
        sequence = job_sequence(name)
        if sequence is None or f"j{sequence}" != name:
            return None
        job = self._at_hand(name)
        if job is None and sequence <= self.newest:
            job = self._load(sequence)
        if job is None or job.row.state is State.UNSEEN:
            return None
        if job.row.state is State.REPEATED and job.original != name:
            return self.find(job.original)
        return job

    def take(self) -> Changes:
        """Return what changed since the last call."""
        changes = Changes(
            self._jobs,
            self._heard,
            self._specs,
            self._events,
            self._ended,
            self.ledger.take(),
            self._blamed,
            self.history.news(),
            self._templates,
        )
        self._jobs, self._heard, self._specs, self._events, self._ended = {}, {}, {}, [], []
        self._blamed, self._templates = [], {}
        return changes

    @property
    def events_wait(self) -> bool:
        """Return whether there are events that `take` has not returned."""
        return bool(self._events)

    @property
    def blamed_waiting(self) -> int:
        """Return of how many ended jobs it is known where their time went, and not stored."""
        return len(self._blamed)

    def forget(self) -> None:
        """Let go of ended jobs beyond RECENT_MAX that the store has."""
        surplus = len(self.recent) - RECENT_MAX
        for name in list(self.recent)[: max(0, surplus)]:
            if name not in self._jobs:
                del self.recent[name]

    def note(self, message: Any, at: Instant, line: Line | None, job: Job | None) -> None:
        """Keep a line as an event.

        Args:
            message: What the line is about; its tag is the event's kind.
            at: When it happened (wall-clock ns).
            line: The line; None: there is no event.
            job: The job that it is about; None: it is about no job.
        """
        if line is None:
            return
        self.event_seq += 1
        row = job.row if job is not None else None
        self._events.append(
            Event(
                seq=self.event_seq,
                at=at,
                kind=message.__struct_config__.tag,
                text=line.text,
                job=row.job if row is not None else "",
                vc=row.vc if row is not None else "",
                attempt=line.attempt,
                node=line.node,
                reason=line.reason,
                owner=row.owner if row is not None else "",
            )
        )

    # --- what was asked and admitted -----------------------------------------------------------

    def _submission(self, event: codec.Submission) -> None:
        job = self._job(event.job)
        if job is None:
            return
        if not job.spec_whole and len(event.raw) <= SPEC_BYTES_MAX:
            self._specs[job.sequence] = event.raw
        # Admission and the allocator pass these on as they are.
        job.row.vc, job.row.owner, job.row.submitted_at = event.vc, event.owner, event.at
        job.trace, job.key = event.trace, event.key
        if job.row.state is State.UNSEEN:
            self.enter(job, State.SUBMITTED)

    def _admission(self, fact: Any, at: Instant) -> None:
        match fact:
            case Admitted():
                job = self._job(fact.job)
                if job is not None:
                    self._described(job, fact)
                    job.key, job.row.owner = fact.key, fact.owner
                    if job.row.state in {State.UNSEEN, State.SUBMITTED}:
                        job.row.why = Reason.WAITS_BEHIND
                        self.enter(job, State.QUEUED)
            case Refused():
                job = self._refused(fact, at)
            case Repeated():
                job = self._repeated(fact)
            case CancelAsked():
                job = self._job(fact.job)
                if job is not None:
                    job.cancel_asked = True
            case ChangeAsked():
                job = self._job(fact.ask.job)
                if job is not None:
                    changes.asked(job, fact)
            case EpochBegan() | TemplateSet() | VcsSet():
                self._of_no_job(fact)
                job = None
            case ArrayAdmitted() | TasksCancelled() | TasksRetried() | ArrayOver():
                job = self._array_fact(fact)
            case ArrayOpened():
                return  # The allocator's ArrayEligible says it.
            case PromiseJudged() | PromiseMade() | PromiseMoved() | PromiseBroken() | PromiseKept():
                job = self._job(fact.job)
                pledging.count(self.promises, self.broken, fact)
                if job is not None:
                    pledging.pledge(job, fact)
            case _:
                return  # The others repeat what the allocator's facts say.
        self.note(fact, at, describe(fact), job)

    def _of_no_job(self, fact: EpochBegan | TemplateSet | VcsSet) -> None:
        """Take over a template, or that virtual clusters are gone and their templates with them."""
        if isinstance(fact, EpochBegan):
            return
        if isinstance(fact, TemplateSet):
            self.templates.apply(fact)
            self._templates[fact.vc, fact.name] = fact
            self.touched.append(waited_for(fact.vc, fact.name))
            return
        before = {vc: list(own) for vc, own in self.templates.of_vc.items()}
        for vc in self.templates.keep_only(fact.vcs):
            self._templates.update(((vc, name), None) for name in before[vc])

    def _array_fact(self, fact: arrays.ArrayFact | GateFact) -> Job | None:
        array = self._job(fact.array)
        if array is not None:
            if isinstance(fact, ArrayAdmitted):
                self._described(array, fact)
                array.key, array.row.owner = fact.key, fact.owner
            arrays.take(array, fact)
            self._settle(array)
        return array

    def _settle(self, array: Job) -> None:
        """Have an array be in the state in which its tasks are."""
        array.row.why = arrays.why_of(array)
        self.enter(array, arrays.state_of(array))

    def _refused(self, fact: Refused, at: Instant) -> Job | None:
        job = self._job(fact.job)
        if job is not None:
            row = job.row
            row.name, row.vc, row.owner = fact.name, fact.vc, fact.owner
            row.submitted_at, row.ended_at = fact.submitted_at, at
            row.why = fact.problems[0].reason if fact.problems else None
            job.problems, job.key, job.trace = fact.problems, fact.key, fact.trace
            self.enter(job, State.REFUSED)
        return job

    def _repeated(self, fact: Repeated) -> Job | None:
        job = self._job(fact.job)
        original = self._job(fact.original)
        if job is None or original is None:
            return None
        job.original, job.row.vc, job.trace = fact.original, fact.vc, fact.trace
        self.enter(job, State.REPEATED)
        if fact.job not in original.repeated_by:
            original.repeated_by.append(fact.job)
            del original.repeated_by[:-REPEATS_KEPT]
        return original

    # --- what the allocator decided ------------------------------------------------------------

    def _allocator(self, fact: Any, at: Instant) -> None:
        drawn = isinstance(fact, AdviceFollowed) and not turns(
            self.state.followed.get(fact.vc), fact
        )
        self.history.begin(self.state)
        changed = self._follow(fact, at)
        self._remember(fact, at, changed)
        match fact:
            case AdviceFollowed() if drawn:
                pass  # The VC is planned as before.
            case (
                NodeAdded()
                | NodeDrained()
                | NodeLost()
                | NodeBack()
                | NodeClean()
                | GpuQuarantined()
                | PlaceBlamed()
                | EpochBegan()
                | ClusterRefused()
                | CellsAlarm()
                | AdviceFollowed()
                | WindowBooked()
                | WindowRefused()
                | WindowBegan()
                | WindowEnded()
            ):
                self.note(fact, at, describe(fact), None)
            case CellsSet():
                self._cells_set(fact)
                self.note(fact, at, describe(fact), None)
                changed = (*self.state.placed, *changed)
            case BadCellBound() | BadCellReturned() | RulesRaised() | SetLed():
                pass  # Only the ledger's state has these.
            case CancelAsked():
                pass  # Admission's fact of the same name says it.
            case ArraySeen() | ArrayDeferred() | ArrayEligible() | ArrayBroken() | ArrayEnded():
                self.note(fact, at, describe(fact), self._array_fact(fact))
            case GangHeldUp():
                self.note(fact, at, describe(fact), self._job(fact.job))
                self.news.job(fact.job)
            case TrialBegun() | TrialOver():
                self.ledger.apply(fact)
                for name in trial_jobs(fact):
                    self.note(fact, at, describe(fact), self._job(name))
            case _:
                job = self._job(fact.job)
                if job is not None:
                    self._of_job(job, fact)
                    self.note(fact, at, describe(fact), job)
                    if isinstance(fact, JobEnded):
                        self._lose(job, fact)
        if not isinstance(fact, GpusShared):  # What follows in its record does it.
            for name in dict.fromkeys(changed):
                self._show_use(name)

    def _follow(self, fact: Any, at: Instant) -> tuple[str, ...]:
        """Have the ledger take over a fact; return the jobs that may have GPUs otherwise now.

        A fact that does not fit is a bug of the ledger. It must not end the process: rows go on,
        and what is shown of cells may be wrong until the process begins anew.

        Args:
            fact: The fact.
            at: When it was recorded.
        """
        self.alarms_raised += isinstance(fact, CellsAlarm) and not fact.over
        self._blame(fact, at)
        try:
            delta = ledger_fold.apply(self.state, fact)
        except Exception:
            self.misfits += 1
            if self.misfits == 1:
                log.exception("a fact does not fit the state", kind=type(fact).__name__)
            return ()
        name = getattr(fact, "job", "")
        job = self.state.jobs.get(name)
        shared = partners(self.state, name, job.attempt) if job is not None else ()
        return (name, *delta.partners, *map(job_of, shared)) if name else delta.partners

    def _remember(self, fact: Any, at: Instant, changed: tuple[str, ...]) -> None:
        """Have the history take over a fact; a bug there must not end the process."""
        self.news.fact(fact)
        try:
            self.history.take(self.state, fact, at, changed)
        except Exception:
            self.history_misfits += 1
            self.history.counted = False
            if self.history_misfits == 1:
                log.exception("a fact does not fit the history", kind=type(fact).__name__)

    def _lose(self, job: Job, fact: JobEnded) -> None:
        """Take what a job lost from the history of the time in which it trained."""
        told = self._blamed[-1][1] if self._blamed else None
        if told is None or told.job != job.row.job:
            return
        spans = [
            (each.started_at, each.ended_at or fact.at)
            for each in job.attempts
            if each.started_at is not None
        ]
        self.history.lose(told.vc, told.lost_gpu_ns, spans)

    def _blame(self, fact: Any, at: Instant) -> None:
        """Take over what a fact says of where time goes; a bug there must not end the process."""
        try:
            told = blame_fold.apply(self.blame, fact, at)
        except Exception:
            self.blame_misfits += 1
            if self.blame_misfits == 1:
                log.exception("a fact does not fit what time went to", kind=type(fact).__name__)
            return
        if told is not None:
            self._blamed.append((job_sequence(told.job) or 0, told))

    def _show_use(self, name: str) -> None:
        """Have a row say by which right its job has its GPUs now, and beside which others."""
        known = self.active.get(name) or self.recent.get(name)
        if known is None:
            return
        row, use = known.row, use_of(self.state, name)
        if (row.class_in_force, row.beside) == use:
            return
        job = self._job(name)
        assert job is not None, name
        if not use.beside and (row.beside or not use.right):
            row.share = None
        row.class_in_force, row.beside = use

    def _of_job(self, job: Job, fact: Any) -> None:
        """Take over an allocator's fact about one job."""
        if isinstance(fact, ChangeFact):
            entered = changes.apply(job, fact)
            if entered is not None:
                self.enter(job, entered)
        elif isinstance(fact, MoveFact):
            changes.move(job, fact)
        elif isinstance(fact, ResizeFact):
            changes.resize(job, fact)
        elif isinstance(fact, GpusShared):
            job.row.share = fact.told
        elif isinstance(fact, ClaimFact):
            self._claim_fact(job, fact)
        else:
            self._job_fact(job, fact)

    def _cells_set(self, fact: CellsSet) -> None:
        """Take over cells: reservations may end, and jobs that no cell could hold wait again."""
        for fate in fact.fates:
            job = self._job(fate.job)
            if job is not None and fate.fate == "released":
                self._unclaimed(job)
        for name in [name for name, job in self.active.items() if job.aside]:
            job = self._job(name)
            if job is not None:
                job.aside, job.row.why, job.row.needs = False, Reason.WAITS_BEHIND, ""

    def _job_fact(self, job: Job, fact: JobFact) -> None:
        row = job.row
        match fact:
            case MemberRan():
                job.attempt(fact.attempt).part(fact.node).started_at = fact.at
            case MemberGone():
                _gone(job, fact)
            case JobQueued():
                self._described(job, fact)
                row.why = Reason.WAITS_BEHIND
                self.enter(job, State.QUEUED)
            case JobWaits() if row.state is State.SUSPENDED:
                row.needs = fact.needs  # Why it stands aside stays the reason.
            case JobWaits():
                row.why, row.needs, job.aside = fact.why, fact.needs, fact.aside
            case JobDeferred():
                row.why, row.needs, job.aside, job.deferred = fact.why, fact.needs, False, True
            case JobEligible():
                row.why, row.needs, job.deferred = Reason.WAITS_BEHIND, "", False
            case JobBound():
                self._bound(job, fact)
            case JobRan():
                row.started_at = job.attempt(fact.attempt).started_at = fact.at
                self.enter(job, State.RUNNING)
            case JobStopping():
                row.why, row.needs = fact.why, ""
                attempt = job.attempt(fact.attempt)
                attempt.ended_why, attempt.detail = fact.why, fact.detail
                self.enter(job, State.STOPPING)
            case GhostGone():
                job.attempt(fact.attempt).part(fact.node).free = True
            case JobRequeued():
                self._requeued(job, fact)
            case JobEnded():
                self._over(job, fact)

    def _claim_fact(self, job: Job, fact: ClaimFact) -> None:
        """Take over that GPUs are reserved for a job, or no longer."""
        match fact:
            case CellsReserved():
                job.victims = fact.victims
                job.row.why = Reason.WAITS_FOR_VICTIMS
            case ReservationDropped():
                self._unclaimed(job)
            case JobDemoted() | JobPromoted():
                pass  # By which right it has its GPUs follows from the ledger's state.

    def _bound(self, job: Job, fact: JobBound) -> None:
        row, attempt = job.row, job.attempt(fact.attempt)
        row.place = attempt.place = place_of(fact.members)
        row.bound_at = attempt.bound_at = fact.at
        row.why = attempt.why = fact.why
        attempt.ranked = fact.ranked
        row.attempt, row.needs, row.started_at = fact.attempt, "", None
        row.rate_milli = row.eta_s = row.stalled_since = row.estimate = None
        row.steps = 0
        job.victims = ()
        job.released, job.changing = False, None
        changes.begin_again(job)
        changes.begin_with(job, sum(len(member.devices) for member in fact.members))
        for member in fact.members:
            part = attempt.part(member.node)
            part.first_rank, part.devices = member.first_rank, member.devices
            part.gpu_type = member.gpu_type
        attempt.members.sort(key=lambda part: part.first_rank)
        self.enter(job, State.BOUND)

    def _unclaimed(self, job: Job) -> None:
        """Have a job wait as if nothing had been reserved for it."""
        job.victims = ()
        job.row.why, job.row.needs = Reason.WAITS_BEHIND, ""

    def _requeued(self, job: Job, fact: JobRequeued) -> None:
        row, attempt = job.row, job.attempt(fact.attempt)
        attempt.outcome, attempt.ended_why, attempt.detail = "requeued", fact.why, fact.detail
        attempt.ended_at = fact.at
        parts = [part for part in attempt.members if part.outcome is not None]
        attempt.steps = min((part.steps for part in parts), default=0)
        row.place, row.bound_at, row.started_at = "", None, None
        job.released, job.changing = False, None
        row.rate_milli = row.eta_s = row.stalled_since = row.estimate = None
        row.why, row.needs, row.steps = fact.why, "", 0
        job.detail = fact.detail
        self.enter(job, State.QUEUED)

    def _over(self, job: Job, fact: JobEnded) -> None:
        row = job.row
        if fact.attempts:
            self._over_attempt(job.attempt(fact.attempts), fact)
        row.ended_at, row.why, row.needs = fact.at, fact.why, ""
        job.released, job.changing, job.deferred = False, None, False
        job.victims = ()
        row.steps = fact.steps
        row.rate_milli = row.eta_s = row.stalled_since = row.estimate = None
        job.detail = fact.detail
        job.trace = job.trace or fact.trace
        self.enter(job, State(fact.end.value))
        self._ended.append((job, fact.at))

    @staticmethod
    def _over_attempt(attempt: Attempt, fact: JobEnded) -> None:
        if attempt.outcome is None:  # A job cancelled in its queue ends with no attempt under way.
            attempt.outcome, attempt.ended_why, attempt.detail = fact.end, fact.why, fact.detail
            attempt.ended_at, attempt.steps, attempt.step_ns = fact.at, fact.steps, fact.step_ns

    # --- what agents said ----------------------------------------------------------------------

    def _agent(self, event: Any, at: Instant) -> None:
        job = None
        match event:
            case MemberStepped():
                job = self._job(event.job)
                if job is not None:
                    attempt = job.attempt(event.attempt)
                    first = attempt.first_step_at
                    attempt.first_step_at = event.at if first is None else min(first, event.at)
            case MemberExited():
                job = self._job(event.job)
                if job is not None:
                    part = job.attempt(event.attempt).part(event.node)
                    part.ended_at, part.exits = event.at, event.ranks
            case NodeJoined():
                self._announced(event, at)
            case _:
                return  # MemberStarted: the allocator's MemberRan says it.
        self.note(event, at, describe_node(event), job)

    # --- keeping the books -----------------------------------------------------------------------

    def _job(self, name: str) -> Job | None:
        """Return the job to be changed, made if it is not known; None for what is no job id."""
        job = self._at_hand(name)
        if job is None:
            sequence = job_sequence(name)
            if sequence is None:
                self.unreadable += 1
                return None
            # Whatever is newer than anything named so far cannot be in the store.
            job = self._load(sequence) if sequence <= self.newest else None
            job = job or Job(sequence=sequence, row=Row(job=name))
            self.recent[name] = job
            self.newest = max(self.newest, sequence)
        self._jobs[name] = job
        self.touched.append(name)
        self.news.job(name)
        return job

    def _at_hand(self, name: str) -> Job | None:
        return self.active.get(name) or self.arrays.get(name) or self.recent.get(name)

    def _announced(self, event: NodeJoined, at: Instant) -> None:
        """Take over an agent's announcement, unless a later one of the node is known."""
        heard = self.heard.setdefault(event.node, Heard(node=event.node))
        late = at - heard.heard_at > JOIN_DELAY_MAX
        if event.incarnation >= heard.heard_incarnation or late:
            heard.heard_identity, heard.heard_at = event.identity, at
            heard.heard_incarnation = event.incarnation
        self._heard[event.node] = heard

    def enter(self, job: Job, state: State) -> None:
        """Have a job be in a state."""
        name, before = job.row.job, job.row.state
        job.row.state = state
        if state in ACTIVE:
            self.recent.pop(name, None)
            if job.row.tasks is None:
                self.active[name] = job
            else:
                self.active.pop(name, None)
                self.arrays[name] = job
        else:
            self.active.pop(name, None)
            self.arrays.pop(name, None)
            self.recent[name] = job
        task = task_of(job.row.task) if job.row.task and before is not state else None
        array = self._job(task[0]) if task is not None else None
        if array is not None:
            arrays.moved(array, before, job)
            self._settle(array)

    def _described(self, job: Job, fact: Admitted | JobQueued | ArrayAdmitted) -> None:
        """Take over the admitted spec and its owner, which ADMISSION and ALLOC both carry."""
        if job.spec_whole:
            return
        row, spec = job.row, fact.spec
        row.name, row.vc, row.submitted_at = spec.name, spec.vc, fact.submitted_at
        # Without it a person's own job would be another's until the other stream has come so far.
        row.owner = fact.owner
        row.service_class, row.priority = spec.service_class, spec.priority
        row.gpus, row.workers = spec.gpus, spec.resources.workers
        row.gpu_type, row.total_steps = spec.resources.gpu_type, spec.size.total()
        row.task, row.labels = spec.task, spec.labels
        row.gpu_share = spec.resources.share / 1000 if spec.resources.share else None
        job.trace, job.spec_whole = fact.trace, True
        job.pinned, job.snapshots = spec.resources.pinned, spec.snapshots
        self._specs[job.sequence] = codec.encode(spec)


def _gone(job: Job, fact: MemberGone) -> None:
    part = job.attempt(fact.attempt).part(fact.node)
    part.outcome, part.detail, part.free = fact.outcome, fact.detail, fact.free
    part.steps, part.step_ns = fact.steps, fact.step_ns
