"""Admission: turns submissions into jobs, or into refusals that say what to mend.

    Submission --Admitted--> active --JobOver--> forgotten (its key is remembered for ever)
               --Refused | Repeated--> answered

Knows tenants and their quota (from ADMIN), what hardware exists and which jobs are unfinished
(both from ALLOC: an inventory counts once the allocator uses it, for it alone judges which agent
a node's name belongs to), and the roles of people (from ACCESS; `allowing`). It waits for no
service: every submission is answered at once.

Deadlines are answered by the book of promises of their VC (`promising`, `skep.promises`), which
follows what runs. Its timer is the next instant at which a promise has to be judged again. How fast
jobs are it hears from the advisor (`measuring`); without it, their specs say how long they run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec

from skep.access.person import person_of
from skep.access.rights import Action
from skep.access.templates import Templates
from skep.cells.holds import Request
from skep.cells.legal import Refusal, impossible
from skep.cells.levels import gpus_in_cells
from skep.ids import NO_ATTEMPT, job_sequence
from skep.machines.admission import managing, mounting, person_limits
from skep.machines.admission.allowing import Allowing, action_of
from skep.machines.admission.arrays import Array, ArrayKept, Arrays, task_spec
from skep.machines.admission.depending import Known
from skep.machines.admission.hardware import Hardware
from skep.machines.admission.promising import HEARD, Answered, Promising
from skep.machines.admission.sizes import servers_problem, size_problem
from skep.machines.base import Effect, Record, Restarted, Send, Tick
from skep.policy.check import cluster_problems
from skep.promises.pledges import Pledges, PledgesKept
from skep.units import Instant, after, seconds
from skep.wire import subjects
from skep.wire.admin import Admin, DrainNode, QuarantineGpu, SetVcs
from skep.wire.advice import Advice, Outlook, QueueAdvice
from skep.wire.array import (
    ARRAY_KEYS,
    ArrayAdmitted,
    ArrayFact,
    ArrayOpened,
    ArrayOver,
    TasksCancelled,
    TasksRetried,
    as_ranges,
    task_of,
    task_of_key,
    tasks_of,
)
from skep.wire.array_gate import ArrayBroken, ArrayEligible
from skep.wire.bounds import UNDECODABLE
from skep.wire.changes import (
    Ask,
    AskHold,
    AskPack,
    AskPriority,
    AskRelease,
    AskResize,
    AskRetry,
    ChangeAsked,
    parse_ask,
)
from skep.wire.cluster import FIFO, Cluster, VirtualCluster
from skep.wire.codec import AskRequest, CancelRequest, Facts, Submission, Unreadable
from skep.wire.facts import (
    AdmissionFact,
    Admitted,
    CancelAsked,
    CellsSeen,
    CellsSet,
    EpochBegan,
    JobBegan,
    JobBound,
    JobEnded,
    JobOver,
    NodeAdded,
    NodeSeen,
    Refused,
    Repeated,
    RolesSeen,
    VcsSet,
)
from skep.wire.learned import LearnedAdvice, SightWanted
from skep.wire.node import NodeJoined
from skep.wire.parse import nearest, parse_spec
from skep.wire.promises import (
    JobSeen,
    LengthSeen,
    NodeAway,
    PromiseBroken,
    PromiseJudged,
    PromiseKept,
    PromiseMade,
    PromiseMoved,
)
from skep.wire.reasons import Reason
from skep.wire.search_facts import SearchRequest
from skep.wire.spec import SEARCH_KEYS, SERVICE_KEYS, Elastic, JobSpec, ParameterServers, Problem
from skep.wire.template_facts import TemplateAsk, TemplateSet, parse_template_ask
from skep.wire.verdict import Verdict
from skep.wire.volumes import Volume
from skep.wire.windows import CancelWindow, ReserveNodes

CANCEL_DECODER = msgspec.json.Decoder(dict[str, Any])

AdmissionEvent = (
    Submission | CancelRequest | AskRequest | SearchRequest | Admin | Facts | Advice | Unreadable
)
"""What admission takes from outside: everything that is read from SUBMIT, ADMIN, ALLOC and ACCESS,
and what the advisor says."""

KEY_CHARACTERS_MAX = 256
"""Idempotency keys are remembered for ever: long enough for a UUID and a path, no more."""


class ActiveJob(msgspec.Struct):
    """An admitted job whose end admission has not seen."""

    vc: str
    gpus: int
    guaranteed: bool
    cancelling: bool = False
    elastic: Elastic | None = None
    ps: ParameterServers | None = None
    owner: str = ""
    person: str = ""
    """Whose it is, for limits: its owner's, or as its label says."""
    began: bool = False
    """It has had GPUs, as far as that matters for a limit or an array."""
    task: str = ""
    """Which task of which array it is."""
    name: str = ""
    """For jobs that wait for it."""


class AdmissionKept(msgspec.Struct, frozen=True, kw_only=True, tag="admission-kept"):
    """What is kept of admission beside its history, in pieces: see `AdmissionMachine.snapshot`."""

    epoch: int
    last_sequence: int
    vcs: dict[str, VirtualCluster]
    promised: dict[str, int]
    gpus: tuple[tuple[str, int], ...]
    jobs: tuple[tuple[str, int], ...]
    last_asked: int = 0
    volumes: dict[str, Volume] = {}


class ActiveKept(msgspec.Struct, frozen=True, tag="active-kept"):
    """Unfinished jobs."""

    jobs: tuple[tuple[str, ActiveJob], ...]


class KeysKept(msgspec.Struct, frozen=True, tag="keys-kept"):
    """Idempotency keys: whose they are (see `_scope`), key, and the job that had it first."""

    keys: tuple[tuple[str, str, str], ...]


class RefusedKept(msgspec.Struct, frozen=True, tag="refused-kept"):
    """Refused submissions that brought a key."""

    jobs: tuple[str, ...]


class EndedKept(msgspec.Struct, frozen=True, tag="ended-kept"):
    """Jobs that ended recently, oldest first: each with its VC and name."""

    jobs: tuple[tuple[str, str, str], ...]


OwnKept = AdmissionKept | ActiveKept | ArrayKept | KeysKept | RefusedKept | EndedKept | PledgesKept
Kept = OwnKept | NodeSeen | CellsSeen | RolesSeen | TemplateSet

JUDGED_MAX = 4096
"""Requests whose verdict is kept: a cluster sees few shapes of jobs, at 300 bytes each."""
PLEDGES = 20
"""Promises in one piece of a snapshot: names of GPUs and of nodes may be long."""
PIECE = 500
"""Entries in one piece of a snapshot: with keys of the longest, half of what a record may hold."""


BACKLOG_LAG, BACKLOG_PAUSE = seconds(30.0), seconds(1.0)
"""A record older than the first when it is read is history. All of it is read once none came for as
long as the second."""
RESTART_PAUSE = seconds(5.0)
"""How long after a restart history may begin to come."""
AGAIN_AFTER = seconds(60.0)
"""When a promise is looked at again of which nothing came."""


class AdmissionMachine:
    """The behaviour of the admission service."""

    def __init__(self) -> None:
        """Start without tenants, hardware or jobs."""
        self.epoch = 0
        self.vcs: dict[str, VirtualCluster] = {}
        self.promised: dict[str, int] = {}
        """GPUs that each VC owns."""
        self.volumes: dict[str, Volume] = {}
        self.cells = Cluster()
        """The cells in force, as far as the allocator has said."""
        self.nodes: dict[str, NodeSeen] = {}
        self._hardware: Hardware | None = None
        """What `nodes` are together, until the next one is seen."""
        self._judged: dict[Request, Refusal | None] = {}
        """What cells in force can never serve, and what they can, as far as it was asked."""
        self._owns: dict[str, int] = {}
        """GPUs that each VC owns of them."""
        self.active: dict[str, ActiveJob] = {}
        self.keys: dict[tuple[str, str], str] = {}
        self.refused: dict[str, None] = {}
        """Refused submissions that brought a key: their repetition is refused too."""
        self.outstanding_gpus: dict[str, int] = {}
        """GPUs of each VC's unfinished guaranteed jobs together."""
        self.outstanding_jobs: dict[str, int] = {}
        self.queued: dict[tuple[str, str], int] = {}
        """By VC and person: unfinished jobs that have not begun."""
        self.last_sequence = 0
        self.last_asked = 0
        """The latest request for a change that was accepted, by its sequence in SUBMIT."""
        self.pledges = Pledges()
        """What is promised to which job."""
        self.promising = Promising(self.pledges)
        self.arrays = Arrays()
        """Arrays, and which of their tasks become jobs when."""
        self.templates = Templates()
        """Those that managers wrote."""
        self.allowing = Allowing()
        """What people may ask."""
        self.known = Known()
        """Jobs that others may wait for."""
        self._quiet_until = Instant(0)
        """Until then no promise is judged by the clock: what became of jobs is still being read."""
        self._effects: list[Effect] = []

    def decide(self, event: AdmissionEvent | Restarted | Tick, now: Instant) -> list[Effect]:
        """Return the verdict on a submission or cancellation, or the facts others' news lead to.

        Args:
            event: What came. A submission that was answered before the latest restart is passed
                over.
            now: The time: only answers to deadlines depend on it.
        """
        self._effects = []
        match event:
            case Submission():
                self._submission(event, now)
            case CancelRequest():
                self._cancellation(event)
            case AskRequest():
                self._ask(event)
            case Facts():
                self._news(event, now)
            case SetVcs():
                self._set_vcs(event)
            case Outlook():
                self.promising.measurements.hear(event, now)
            case Restarted():
                self.arrays.restarted()
                self._quiet_until = after(now, RESTART_PAUSE)
                self.promising.measurements.began(now)
            case Tick() | Unreadable():
                pass  # Nothing is owed: a verdict lost in a crash is in the facts.
            case DrainNode() | QuarantineGpu() | ReserveNodes() | CancelWindow():
                pass  # For the allocator.
            case SearchRequest():
                pass  # For the service of searches.
            case QueueAdvice() | LearnedAdvice() | SightWanted():
                pass  # For the allocator.
        if now >= self._quiet_until:
            if isinstance(event, Tick):
                self.promising.measured(now, self._record)
            if not self.promising.due(now, self._record):
                self._quiet_until = after(now, AGAIN_AFTER)
        self._follow_arrays(now)
        return self._effects

    def _news(self, event: Facts, now: Instant) -> None:
        """Take over what the allocator did."""
        if now - event.at > BACKLOG_LAG:
            self._quiet_until = after(now, BACKLOG_PAUSE)
        for fact in event.facts:
            if isinstance(fact, JobEnded) and fact.job in self.active:
                self.promising.ended(fact, self._record)
                end = fact.end.value if self.active[fact.job].task else ""
                self._record(JobOver(job=fact.job, end=end))
            elif isinstance(fact, JobBound):
                self._began(fact.job)
            elif isinstance(fact, HEARD):
                self.promising.heard(fact, self.vcs, now, self._record)
            elif (roles := self.allowing.seen(fact)) is not None:
                self._record(roles)
            elif isinstance(fact, ArrayEligible | ArrayBroken):
                self._gate(fact)
            elif isinstance(fact, NodeAdded):
                self._added(fact.joined)
            elif isinstance(fact, CellsSet) and fact.cluster != self.cells:
                self._record(CellsSeen(cluster=fact.cluster))

    def _gate(self, fact: ArrayEligible | ArrayBroken) -> None:
        """Take over that an array waits for nothing more, or for what can never come."""
        array = self.arrays.unfinished(fact.array)
        if array is None or not array.gated or array.cancelling:
            return
        if isinstance(fact, ArrayEligible):
            self._record(ArrayOpened(array=fact.array))
            return
        self._record(
            TasksCancelled(
                array=fact.array,
                tasks=as_ranges(array.waiting),
                whole=True,
                why=Reason.DEPENDENCY_NEVER_SATISFIED,
                detail=fact.detail,
            )
        )

    def _began(self, name: str) -> None:
        """Take over that a job has GPUs, where that makes room for a further one.

        It does for its person, where there are limits, and in its array.
        """
        job = self.active.get(name)
        if job is None or job.began:
            return
        vc = self.vcs.get(job.vc)
        if job.task or (vc is not None and vc.limits is not None):
            self._record(JobBegan(job=name))

    def _set_vcs(self, event: SetVcs) -> None:
        cluster = event.cluster
        if not any(cluster_problems(cluster)):  # Else the allocator refuses it in so many words.
            promised = {
                vc: each.gpus + gpus_in_cells(cluster, vc) for vc, each in event.vcs.items()
            }
            self._record(VcsSet(vcs=event.vcs, gpus=promised, volumes=event.volumes))

    def snapshot(self) -> list[Kept]:
        """Return what rebuilds this state without history; to be encoded before the next event."""
        kept: list[Kept] = [
            AdmissionKept(
                epoch=self.epoch,
                last_sequence=self.last_sequence,
                vcs=self.vcs,
                promised=self.promised,
                gpus=tuple(self.outstanding_gpus.items()),
                jobs=tuple(self.outstanding_jobs.items()),
                last_asked=self.last_asked,
                volumes=self.volumes,
            )
        ]
        kept.append(CellsSeen(cluster=self.cells))
        kept += self.nodes.values()
        kept += self.allowing.snapshot()
        kept += self.templates.facts()
        kept += self.arrays.snapshot()  # Before their jobs.
        kept += [ActiveKept(piece) for piece in _pieces(self.active.items())]
        keys = ((vc, key, job) for (vc, key), job in self.keys.items())
        kept += [KeysKept(piece) for piece in _pieces(keys)]
        kept += [RefusedKept(piece) for piece in _pieces(self.refused)]
        ended = ((job, vc, name) for job, (vc, name) in self.known.ended.items())
        kept += [EndedKept(piece) for piece in _pieces(ended)]
        return [*kept, *self.pledges.snapshot(PLEDGES)]

    def _restore(self, kept: OwnKept) -> None:
        match kept:
            case AdmissionKept():
                self.epoch, self.last_sequence = kept.epoch, kept.last_sequence
                self.vcs, self.promised = dict(kept.vcs), dict(kept.promised)
                self.outstanding_gpus, self.outstanding_jobs = dict(kept.gpus), dict(kept.jobs)
                self.last_asked, self.volumes = kept.last_asked, dict(kept.volumes)
            case ActiveKept():
                self.active.update(kept.jobs)
                for name, job in kept.jobs:
                    self._count_queued(job, 1)
                    self.known.add(name, job.vc, job.task or job.name)
                    if job.task:
                        self.arrays.restore_job(job.task, name, began=job.began)
            case ArrayKept():
                array = self.arrays.restore(kept)
                self._add_queued((array.spec.vc, array.person), len(array.waiting))
                if not array.over:
                    self.known.add(kept.array, array.spec.vc, array.spec.name)
            case KeysKept():
                self.keys.update(((vc, key), job) for vc, key, job in kept.keys)
            case RefusedKept():
                self.refused.update(dict.fromkeys(kept.jobs))
            case EndedKept():
                for each in kept.jobs:
                    self.known.end(*each)
            case PledgesKept():
                self.pledges.restore(kept)

    def apply(self, fact: AdmissionFact | Kept) -> None:
        """Take over one fact, or one piece of a snapshot."""
        match fact:
            case EpochBegan():
                self.epoch = fact.epoch
            case VcsSet() | TemplateSet():
                self._apply_vcs(fact)
            case CellsSeen():
                self.cells = fact.cluster
                self._judged = {}
                self._owns = {vc: gpus_in_cells(fact.cluster, vc) for vc in fact.cluster.vcs}
                self.pledges.set_cells(fact.cluster)
            case NodeSeen():
                self.nodes[fact.node] = fact
                self._hardware = None
            case Admitted():
                self._apply_admitted(fact)
            case Refused():
                self._apply_refused(fact)
            case Repeated():
                self._answered(fact.job, fact.vc, "")
            case CancelAsked():
                self.active[fact.job].cancelling = True
                self.pledges.cancel(fact.job)
            case JobBegan():
                self._apply_began(fact)
            case ChangeAsked():
                self.last_asked = fact.number
            case RolesSeen():
                self.allowing.apply(fact)
            case JobOver():
                self._apply_over(fact)
            case ArrayAdmitted() | ArrayOpened() | TasksCancelled() | TasksRetried() | ArrayOver():
                self._apply_array(fact)
            case (
                PromiseJudged()
                | PromiseMade()
                | PromiseMoved()
                | PromiseBroken()
                | PromiseKept()
                | JobSeen()
                | LengthSeen()
                | NodeAway()
            ):
                self.pledges.apply(fact)
            case _:
                self._restore(fact)

    def _apply_vcs(self, fact: VcsSet | TemplateSet) -> None:
        if isinstance(fact, TemplateSet):
            self.templates.apply(fact)
            self.last_asked = max(self.last_asked, fact.number)
            return
        self.vcs, self.promised = dict(fact.vcs), dict(fact.gpus)
        self.volumes = dict(fact.volumes)
        self.templates.keep_only(fact.vcs)

    def _apply_admitted(self, fact: Admitted) -> None:
        self._answered(fact.job, fact.spec.vc, fact.key, fact.owner)
        job = ActiveJob(
            vc=fact.spec.vc,
            gpus=fact.spec.gpus,
            guaranteed=not fact.spec.opportunistic,
            elastic=fact.spec.elastic,
            ps=fact.spec.ps,
            owner=fact.owner,
            person=person_of(fact.owner, fact.spec.labels),
            task=fact.spec.task,
            name=fact.spec.name,
        )
        self.active[fact.job] = job
        self.known.add(fact.job, job.vc, job.task or job.name)
        self.count(job, 1)
        if job.task:
            self._count_waiting(self.arrays.admitted(job.task, fact.job), -1)
        self.pledges.add(fact.job, fact.spec)

    def _apply_refused(self, fact: Refused) -> None:
        self._answered(fact.job, fact.vc, fact.key, fact.owner)
        if fact.key:
            self.refused[fact.job] = None

    def _apply_began(self, fact: JobBegan) -> None:
        job = self.active[fact.job]
        self._count_queued(job, -1)
        job.began = True
        if job.task:
            self.arrays.began(job.task)

    def _apply_over(self, fact: JobOver) -> None:
        job = self.active.pop(fact.job)
        self.count(job, -1)
        if job.task:
            self.arrays.job_over(job.task, fact.end, began=job.began)
        self.known.over(fact.job)
        self.pledges.remove(fact.job)

    def wake_at(self) -> Instant | None:
        """Return when a promise has to be judged, or a task published, again; None: never."""
        task = self.arrays.wake_at()
        check = self.pledges.next_check()
        if self.promising.measurements.pending:
            return min(self._quiet_until, task or self._quiet_until)
        judged = None if check is None else max(check[0], self._quiet_until)
        return min((each for each in (task, judged) if each is not None), default=None)

    def check(self) -> None:
        """Assert that the counts are those of the unfinished jobs.

        Raises:
            AssertionError: They are not.
        """
        gpus: dict[str, int] = {}
        jobs: dict[str, int] = {}
        for job in self.active.values():
            jobs[job.vc] = jobs.get(job.vc, 0) + 1
            gpus[job.vc] = gpus.get(job.vc, 0) + (job.gpus if job.guaranteed else 0)
        for array in self.arrays.arrays.values():
            vc, waiting = array.spec.vc, len(array.waiting)
            jobs[vc] = jobs.get(vc, 0) + waiting
            each = 0 if array.spec.opportunistic else array.spec.gpus
            gpus[vc] = gpus.get(vc, 0) + waiting * each
        jobs = {vc: n for vc, n in jobs.items() if n}
        assert {vc: n for vc, n in self.outstanding_jobs.items() if n} == jobs
        assert {vc: n for vc, n in self.outstanding_gpus.items() if n} == {
            vc: n for vc, n in gpus.items() if n
        }
        assert self.pledges.jobs.keys() <= self.active.keys()
        queued: dict[tuple[str, str], int] = {}
        for job in self.active.values():
            if not job.began:
                queued[job.vc, job.person] = queued.get((job.vc, job.person), 0) + 1
        for array in self.arrays.arrays.values():
            if array.waiting:
                whose = array.spec.vc, array.person
                queued[whose] = queued.get(whose, 0) + len(array.waiting)
        assert self.queued == queued
        arrays = {name for name, array in self.arrays.arrays.items() if not array.over}
        assert self.known.unfinished.keys() == self.active.keys() | arrays
        self.known.check()
        self.arrays.check()
        self.pledges.check()
        self.promising.measurements.check()

    def _record(self, fact: AdmissionFact) -> None:
        self.apply(fact)
        self._effects.append(Record(fact))

    def _answered(self, job: str, vc: str, key: str, owner: str = "") -> None:
        self.last_sequence = max(self.last_sequence, job_sequence(job) or 0)
        if key:
            self.keys[_scope(vc, owner), key] = job

    def count(self, job: ActiveJob, sign: int) -> None:
        """Add a job to the counts of its VC, or take it out of them.

        Args:
            job: The job.
            sign: 1 or -1.
        """
        jobs, gpus = self.outstanding_jobs, self.outstanding_gpus
        jobs[job.vc] = jobs.get(job.vc, 0) + sign
        gpus[job.vc] = gpus.get(job.vc, 0) + sign * (job.gpus if job.guaranteed else 0)
        self._count_queued(job, sign)

    def _count_queued(self, job: ActiveJob, sign: int) -> None:
        """Add a job that has not begun to the count of its person, or take it out of it."""
        if not job.began:
            self._add_queued((job.vc, job.person), sign)

    def _count_waiting(self, array: Array, tasks: int) -> None:
        """Count tasks of an array that wait (less than 0: no longer) as so many jobs."""
        vc, jobs, gpus = array.spec.vc, self.outstanding_jobs, self.outstanding_gpus
        each = 0 if array.spec.opportunistic else array.spec.gpus
        jobs[vc] = jobs.get(vc, 0) + tasks
        gpus[vc] = gpus.get(vc, 0) + tasks * each
        self._add_queued((vc, array.person), tasks)

    def _add_queued(self, whose: tuple[str, str], jobs: int) -> None:
        left = self.queued.get(whose, 0) + jobs
        if left:
            self.queued[whose] = left
        else:
            self.queued.pop(whose, None)

    # --- submissions -----------------------------------------------------------------------

    def _submission(self, event: Submission, now: Instant) -> None:
        if (job_sequence(event.job) or 0) <= self.last_sequence:
            return  # Read again after a restart: it is answered.
        scope = _scope(event.vc, event.owner)
        original = self.keys.get((scope, event.key)) if event.key else None
        if original is not None:
            self._record(Repeated(job=event.job, original=original, vc=event.vc, trace=event.trace))
            verdict = self._again(original)
        else:
            verdict = self._first_submission(event, now)
        self._reply(event, event.owner, verdict, event.trace)

    def _again(self, original: str) -> Verdict:
        """Return the verdict on a repetition: the original's."""
        if original not in self.refused:
            return Verdict(job=original, accepted=True, reason=Reason.REPEATED)
        problem = Problem(
            path="$",
            reason=Reason.REPEATED,
            text=f"this key was used before, by {original}, which was refused",
            suggestion="mend the spec and use another key",
        )
        return Verdict(job=original, accepted=False, reason=Reason.REPEATED, problems=(problem,))

    def _first_submission(self, event: Submission, now: Instant) -> Verdict:
        key = event.key
        parsed: JobSpec | list[Problem]
        if key.startswith(ARRAY_KEYS):
            task = self._task(event)
            if isinstance(task, JobSpec):
                return self._admit(event, Answered(task), key, now)
            parsed = [task]
        elif len(key) <= KEY_CHARACTERS_MAX and key.isprintable():
            vc = self.vcs.get(event.vc)
            templates = vc.templates if vc is not None else {}
            read = parse_spec(event.raw, self.templates.named(event.vc, templates))
            parsed = self.judge(event.vc, read, key, event.owner)
        else:
            text = f"a key has at most {KEY_CHARACTERS_MAX} characters, all of them printable"
            parsed = [
                Problem(path=f"header {subjects.KEY_HEADER}", reason=Reason.BAD_VALUE, text=text)
            ]
            key = ""
        if isinstance(parsed, JobSpec):
            answered = self.promising.answer(parsed, self.vcs[event.vc], event.at, now)
            if answered.problem is None:
                return self._admit(event, answered, key, now)
            parsed = [answered.problem]
        problems = tuple(parsed)
        self._record(
            Refused(
                job=event.job,
                vc=event.vc,
                problems=problems,
                key=key,
                submitted_at=event.at,
                trace=event.trace,
                name=_name_in(event.raw),
                owner=event.owner,
            )
        )
        return Verdict(job=event.job, accepted=False, reason=problems[0].reason, problems=problems)

    def _admit(self, event: Submission, answered: Answered, key: str, now: Instant) -> Verdict:
        """Let a submission become a job, with its promise if it has one, or an array."""
        if answered.spec.array is not None:
            self._record(
                ArrayAdmitted(
                    array=event.job,
                    spec=answered.spec,
                    submitted_at=event.at,
                    key=key,
                    trace=event.trace,
                    owner=event.owner,
                )
            )
            return Verdict(job=event.job, accepted=True)
        self._record(
            Admitted(
                job=event.job,
                spec=answered.spec,
                submitted_at=event.at,
                key=key,
                trace=event.trace,
                owner=event.owner,
            )
        )
        for fact in self.promising.made(event.job, answered, now):
            self._record(fact)
        return Verdict(job=event.job, accepted=True, judged=answered.judged)

    def judge(
        self, vc: str, parsed: JobSpec | list[Problem], key: str = "", person: str = ""
    ) -> JobSpec | list[Problem]:
        """Return the spec as it will run, or why this cluster refuses it.

        Args:
            vc: The VC that the spec was published to.
            parsed: The spec, or what is wrong with its text.
            key: The idempotency key of the submission; empty: none.
            person: The person that submits it; empty: the VC as a whole.

        Returns:
            The spec, perhaps of another service class; or problems, one at least.
        """
        outsider = self.allowing.outsider(Action.SUBMIT, person, vc)
        if outsider is not None:
            return [outsider]
        if vc not in self.vcs:
            known = ", ".join(sorted(self.vcs)) or "none yet"
            text = f"there is no virtual cluster `{vc}`; there are: {known}"
            return [
                Problem(
                    path="$.vc",
                    reason=Reason.UNKNOWN_VC,
                    text=text,
                    suggestion=nearest(vc, sorted(self.vcs)),
                )
            ]
        if not isinstance(parsed, JobSpec):
            return parsed
        if parsed.vc != vc:
            text = f"the spec names `{parsed.vc}` but was published to `{vc}`"
            return [
                Problem(
                    path="$.vc",
                    reason=Reason.WRONG_VC,
                    text=text,
                    suggestion=f"publish it to {subjects.submit(parsed.vc, person)}",
                )
            ]
        problem = (
            self.allowing.submission(person, vc, parsed.priority, self.vcs[vc])
            or _search_problem(parsed, key)
            or _service_problem(parsed, key)
            or _task_problem(parsed)
            or _mixed_problem(parsed, self.vcs[vc])
            or self._impossible(parsed)
            or self._too_many(parsed, jobs := _jobs(parsed))
            or self._above_limits(parsed, person_of(person, parsed.labels), jobs)
        )
        if problem is not None:
            return [problem]
        judged = self._within_quota(parsed, jobs)
        fitting = self._fitting(judged) if isinstance(judged, JobSpec) else judged
        if isinstance(fitting, JobSpec):
            fitting = mounting.resolved(fitting, self.volumes)
        return self.known.resolved(fitting) if isinstance(fitting, JobSpec) else fitting

    def _fitting(self, spec: JobSpec) -> JobSpec | list[Problem]:
        """Return the spec, or why no cell can ever serve it, with what would fit.

        What a VC was promised in GPUs it gets as nodes join: until then nothing is impossible.
        """
        cells, vc = self.cells, spec.vc
        settled = vc in cells.vcs and not any(each.gpus for each in cells.vcs.values())
        if not cells.chains or not settled or self._owns[vc] < self.vcs[vc].gpus:
            return spec
        refusal = self._never(Request.of(spec, NO_ATTEMPT, guaranteed=not spec.opportunistic))
        if refusal is None:
            return spec
        spare = Request.of(spec, NO_ATTEMPT, guaranteed=False)
        if spec.over_quota == "opportunistic" and self._never(spare) is None:
            return msgspec.structs.replace(spec, service_class="opportunistic")
        return [
            Problem(
                path="$.resources",
                reason=refusal.reason,
                text=refusal.text,
                suggestion=refusal.suggestion,
            )
        ]

    def _never(self, request: Request) -> Refusal | None:
        """Return why the cells in force can never serve a request: worked out once for its like."""
        known = self._judged
        if request not in known:
            if len(known) >= JUDGED_MAX:
                known.clear()
            known[request] = impossible(self.cells, request)
        return known[request]

    def _too_many(self, spec: JobSpec, jobs: int) -> Problem | None:
        config, has = self.vcs[spec.vc], self.outstanding_jobs.get(spec.vc, 0)
        if has + jobs <= config.jobs_max:
            return None
        text = f"`{spec.vc}` has {config.jobs_max} unfinished jobs, as many as it may have"
        if has < config.jobs_max:
            text = (
                f"`{spec.vc}` has {has} unfinished jobs and may have {config.jobs_max}: "
                f"{jobs} tasks are too many"
            )
        return Problem(
            path="$.vc",
            reason=Reason.TOO_MANY_JOBS,
            text=text,
            suggestion="wait for some to end, or cancel some",
        )

    def _above_limits(self, spec: JobSpec, person: str, jobs: int) -> Problem | None:
        """Return why a person may not have so many more jobs in its VC."""
        limits = self.vcs[spec.vc].limits
        if limits is None:
            return None
        queued = self.queued.get((spec.vc, person), 0)
        return person_limits.problem(limits, person, queued, spec, jobs)

    def _within_quota(self, spec: JobSpec, jobs: int) -> JobSpec | list[Problem]:
        """Return the spec, made opportunistic if it asked for that, or why quota refuses it."""
        if spec.opportunistic:
            return spec
        quota = self.promised[spec.vc]
        used = self.outstanding_gpus.get(spec.vc, 0)
        if spec.gpus <= quota and (used + jobs * spec.gpus <= quota or spec.over_quota != "refuse"):
            return spec
        if spec.gpus > quota:
            if spec.over_quota == "opportunistic":
                return msgspec.structs.replace(spec, service_class="opportunistic")
            text = f"it needs {spec.gpus} GPUs and `{spec.vc}` owns {quota}"
            hint = "use fewer, or `service_class: opportunistic`"
            return [
                Problem(
                    path="$.resources", reason=Reason.QUOTA_TOO_SMALL, text=text, suggestion=hint
                )
            ]
        text = f"`{spec.vc}` owns {quota} GPUs and its unfinished jobs ask for {used}"
        return [
            Problem(
                path="$.over_quota",
                reason=Reason.OVER_QUOTA,
                text=text,
                suggestion="use `over_quota: wait` or `opportunistic`",
            )
        ]

    def _impossible(self, spec: JobSpec) -> Problem | None:
        """Return why no node this cluster ever had could run the job, naming what exists."""
        if self._hardware is None:
            self._hardware = Hardware(self.nodes.values())
        return self._hardware.problem(spec, self.cells)

    # --- arrays ------------------------------------------------------------------------------

    def _task(self, event: Submission) -> JobSpec | Problem:
        """Return the spec of the task that a submission begins, or why it begins none.

        A client that may publish for the array's owner may publish this too. It begins nothing
        that is not to begin now, and nothing else than was admitted.
        """
        name, index = task_of_key(event.key) or ("", 0)
        array = self.arrays.unfinished(name)
        own = array is not None and (array.spec.vc, array.owner) == (event.vc, event.owner)
        if array is not None and own and index in array.next():
            return task_spec(name, array, index)
        return Problem(
            path=f"header {subjects.KEY_HEADER}",
            reason=Reason.BAD_VALUE,
            text=f"keys that begin with `{ARRAY_KEYS}` begin tasks, and no such task is to begin",
            suggestion="use another key",
        )

    def _follow_arrays(self, now: Instant) -> None:
        """End arrays whose tasks have all ended, and have further tasks become jobs."""
        for job in self.arrays.to_cancel(lambda job: self.active[job].cancelling):
            self._record(CancelAsked(job=job))
        for name in self.arrays.touched():
            over = self.arrays.ended(name, now)
            if over is not None:
                self._record(over)
        self._effects += self.arrays.follow(now)

    def _apply_array(self, fact: ArrayFact) -> None:
        match fact:
            case ArrayAdmitted():
                self._answered(fact.array, fact.spec.vc, fact.key, fact.owner)
                array = self.arrays.begin(fact, person_of(fact.owner, fact.spec.labels))
                self._count_waiting(array, len(array.waiting))
                self.known.add(fact.array, fact.spec.vc, fact.spec.name)
            case ArrayOpened():
                self.arrays.opened(fact)
            case TasksCancelled():
                array, gone = self.arrays.cancelled(fact)
                self._count_waiting(array, -gone)
            case TasksRetried():
                if self.arrays.unfinished(fact.array) is None:
                    spec = self.arrays.arrays[fact.array].spec
                    self.known.again(fact.array, spec.vc, spec.name)
                array, again = self.arrays.retried(fact)
                self._count_waiting(array, again)
                self.last_asked = fact.number
            case ArrayOver():
                self.arrays.end(fact)
                self.known.over(fact.array)

    # --- cancellations, tenants, hardware ----------------------------------------------------

    def _cancellation(self, event: CancelRequest) -> None:
        job, problem = self._cancel_wish(event)
        if problem is None:
            self._cancel(job, event.person)
        verdict = Verdict(
            job=job,
            accepted=problem is None,
            reason=problem.reason if problem else None,
            problems=(problem,) if problem else (),
        )
        self._reply(event, event.person, verdict, "")

    def _cancel_wish(self, event: CancelRequest) -> tuple[str, Problem | None]:
        try:
            job = CANCEL_DECODER.decode(event.raw).get("job")
        except UNDECODABLE as error:
            return "", Problem(
                path="$",
                reason=Reason.NOT_JSON,
                text=f"not JSON: {error}",
                suggestion='publish {"job": "j17"}',
            )
        task = task_of(job) if isinstance(job, str) else None
        if not isinstance(job, str) or (task is None and job_sequence(job) is None):
            return "", Problem(
                path="$.job",
                reason=Reason.BAD_VALUE,
                text="`job` must be a job id, or a task such as j7[3]",
                suggestion='publish {"job": "j17"}',
            )
        if task is None:
            return job, self._forbidden(Action.CANCEL, job, event.person, event.vc)
        problem = self._forbidden(Action.CANCEL, task[0], event.person, event.vc)
        return job, problem or self._no_task(*task)

    def _cancel(self, name: str, person: str) -> None:
        """Cancel a job, an array or a task that may be cancelled."""
        task = task_of(name)
        array = self.arrays.unfinished(task[0] if task is not None else name)
        if task is not None and array is not None:
            if task[1] in array.waiting:
                self._record(TasksCancelled(array=task[0], tasks=str(task[1]), by=person))
                return
            name = array.live[task[1]]
        elif array is not None:
            if not array.cancelling:
                tasks = as_ranges(array.waiting)
                self._record(TasksCancelled(array=name, tasks=tasks, whole=True, by=person))
            return
        if not self.active[name].cancelling:
            self._record(CancelAsked(job=name, by=person))

    def _no_task(self, name: str, index: int) -> Problem | None:
        """Return why there is no such task of an unfinished array to be cancelled, or None."""
        array = self.arrays.unfinished(name)
        if array is not None and (index in array.live or index in array.waiting):
            return None
        if array is not None and index in tasks_of(array.spec.array or ""):
            text = f"task {index} of {name} has already ended"
            return Problem(path="$.job", reason=Reason.ALREADY_ENDED, text=text)
        what = f"{name} is no array" if array is None else f"array {name} has no task {index}"
        return Problem(path="$.job", reason=Reason.UNKNOWN_JOB, text=what)

    def _forbidden(self, action: Action, job: str, person: str, vc: str) -> Problem | None:
        """Return why a person may not do something to a job, or None.

        Whether there is such a job only those learn that have a role in the VC.
        """
        problem = self.allowing.outsider(action, person, vc) or self._not_active(job, vc)
        if problem is None:
            active, array = self.active.get(job), self.arrays.arrays.get(job)
            owner = active.owner if active is not None else array.owner if array else ""
            problem = self.allowing.of_job(action, person, vc, owner)
        return problem

    def _not_active(self, job: str, vc: str) -> Problem | None:
        """Return why nothing can be asked of a job by a VC, or None if it is one of its own."""
        active, array = self.active.get(job), self.arrays.unfinished(job)
        if active is not None and active.vc == vc:
            return None
        if array is not None and array.spec.vc == vc:
            return None
        if active is None and 0 < (job_sequence(job) or 0) <= self.last_sequence:
            # Another tenant's finished job looks the same from here, which tells it nothing.
            return Problem(
                path="$.job", reason=Reason.ALREADY_ENDED, text=f"{job} has already ended"
            )
        return Problem(path="$.job", reason=Reason.UNKNOWN_JOB, text=f"`{vc}` has no job {job}")

    def _ask(self, event: AskRequest) -> None:
        """Pass a request for a change on to the allocator, or say why there is nothing to change.

        One that is read again after a restart was passed on then.
        """
        about = parse_template_ask(event.raw)
        if about is not None:
            self._ask_template(about, event)
            return
        parsed = parse_ask(event.raw)
        job, problems = "", parsed if isinstance(parsed, list) else []
        if isinstance(parsed, AskRetry):
            job, problem = parsed.job, self._retry(parsed, event)
            problems = [problem] if problem is not None else []
        elif not isinstance(parsed, list):
            job, problem = parsed.job, self._change_problem(parsed, event.vc, event.person)
            problems = [problem] if problem is not None else []
            if problem is None and event.number > self.last_asked:
                self._record(
                    ChangeAsked(number=event.number, ask=parsed, at=event.at, by=event.person)
                )
        verdict = Verdict(
            job=job,
            accepted=not problems,
            problems=tuple(problems),
            reason=problems[0].reason if problems else None,
        )
        self._reply(event, event.person, verdict, "")

    def _ask_template(self, ask: TemplateAsk | list[Problem], event: AskRequest) -> None:
        """Set or remove a template of a VC's managers, or say why not."""
        vc, person = event.vc, event.person
        problem = self.allowing.outsider(Action.MANAGE_TEMPLATES, person, vc)
        problem = problem or self.allowing.of_job(Action.MANAGE_TEMPLATES, person, vc, "")
        problems = [problem] if problem is not None else []
        if isinstance(ask, list):
            problems = problems or ask
        elif not problems and event.number > self.last_asked:
            # One that is read again after a restart was done then.
            problems = self._set_template(ask, event)
        verdict = Verdict(
            job="",
            accepted=not problems,
            problems=tuple(problems),
            reason=problems[0].reason if problems else None,
        )
        self._reply(event, person, verdict, "")

    def _set_template(self, ask: TemplateAsk, event: AskRequest) -> list[Problem]:
        if event.vc not in self.vcs:
            text = f"there is no virtual cluster `{event.vc}`"
            return [Problem(path="$.vc", reason=Reason.UNKNOWN_VC, text=text)]
        problems = managing.problems(ask, event.vc, self.vcs[event.vc], self.templates)
        if not problems:
            self._record(
                TemplateSet(
                    vc=event.vc,
                    name=ask.name,
                    number=event.number,
                    at=event.at,
                    template=getattr(ask, "template", None),
                    by=event.person,
                )
            )
        return problems

    def _retry(self, ask: AskRetry, event: AskRequest) -> Problem | None:
        """Have the failed tasks of an array wait again, or return why not."""
        name, vc, person = ask.job, event.vc, event.person
        problem = self.allowing.outsider(Action.CHANGE, person, vc)
        if problem is not None or event.number <= self.last_asked:
            return problem  # One that is read again after a restart was done then.
        array = self.arrays.arrays.get(name)
        if array is None or array.spec.vc != vc:
            known = 0 < (job_sequence(name) or 0) <= self.last_sequence
            text = f"`{vc}` has no array {name} with tasks that failed"
            reason = Reason.NOTHING_FAILED if known else Reason.UNKNOWN_JOB
            hint = "submit it again" if known else ""
            return Problem(path="$.job", reason=reason, text=text, suggestion=hint)
        again = len(array.failed)
        problem = self.allowing.of_job(Action.CHANGE, person, vc, array.owner)
        if problem is None and (not again or array.cancelling):
            what = "is being cancelled" if array.cancelling else "has no task that failed"
            problem = Problem(
                path="$.job", reason=Reason.NOTHING_FAILED, text=f"array {name} {what}"
            )
        if problem is None and vc in self.vcs:
            problem = self._too_many(array.spec, again) or self._above_limits(
                array.spec, array.person, again
            )
        if problem is None:
            tasks = as_ranges(array.failed)
            self._record(
                TasksRetried(
                    array=name, number=event.number, tasks=tasks, at=event.at, by=person, vc=vc
                )
            )
        return problem

    def _change_problem(self, ask: Ask, vc: str, person: str) -> Problem | None:
        problem = self._forbidden(action_of(ask), ask.job, person, vc)
        if problem is None and ask.job not in self.active:
            return self._array_change_problem(ask)
        targets = [name.strip() for name in getattr(ask, "to", "").split(",")]
        target = next((name for name in targets if name and name not in self.nodes), "")
        if problem is None and target:
            known = sorted(self.nodes)
            problem = Problem(
                path="$.to",
                reason=Reason.UNKNOWN_NODE,
                text=f"no node `{target}`",
                suggestion=nearest(target, known),
            )
        if problem is None and isinstance(ask, AskPack):
            partner = self._not_active(ask.beside, vc)
            if partner is not None:
                only = "only jobs of one virtual cluster share GPUs"
                problem = msgspec.structs.replace(partner, path="$.beside", suggestion=only)
            else:  # The partner is slowed down: it is changed as well.
                problem = self._forbidden(Action.CHANGE, ask.beside, person, vc)
        if problem is None and isinstance(ask, AskResize):
            job = self.active[ask.job]
            problem = size_problem(ask, job.elastic) or servers_problem(ask, job.ps)
        if problem is None and isinstance(ask, AskPriority) and vc in self.vcs:
            problem = self.allowing.priority(ask, person, vc, self.vcs[vc])
        return problem

    def _array_change_problem(self, ask: Ask) -> Problem | None:
        """Return why an array cannot be changed so. It can be held before its tasks are jobs."""
        if isinstance(ask, AskRelease):
            return None
        hint = f"name a task that is a job: `skep ps --array {ask.job}` lists them"
        text = f"{ask.job} is an array, and only its jobs can be changed"
        if isinstance(ask, AskHold):
            if self.arrays.arrays[ask.job].gated:
                return None
            text = f"tasks of {ask.job} have begun to be jobs: it cannot be held as a whole"
        return Problem(path="$.job", reason=Reason.CANNOT, text=text, suggestion=hint)

    def _added(self, joined: NodeJoined) -> None:
        gpus: dict[str, int] = {}
        for gpu in joined.gpus:
            gpus[gpu.type] = gpus.get(gpu.type, 0) + 1
        seen = NodeSeen(node=joined.node, gpus=gpus, cpus=joined.cpus, memory=joined.memory)
        if self.nodes.get(joined.node) != seen:
            self._record(seen)

    def _reply(
        self,
        asked: Submission | CancelRequest | AskRequest,
        person: str,
        verdict: Verdict,
        trace: str,
    ) -> None:
        if asked.reply and subjects.reply_allowed(asked.reply, asked.vc, person):
            headers = {subjects.TRACE_HEADER: trace} if trace else {}
            self._effects.append(Send(asked.reply, verdict, headers))


def _scope(vc: str, owner: str) -> str:
    """Return whose idempotency keys are apart from others': a person's, or those of the VC."""
    return f"{vc}.{owner}" if owner else vc


def _search_problem(spec: JobSpec, key: str) -> Problem | None:
    """Return why a job is not a trial of the search that it names, or None.

    A search knows its trials by their keys, and the followers of the allocator by their specs.
    """
    search, mark, _ = key.removeprefix(SEARCH_KEYS).partition("/")
    named = search if key.startswith(SEARCH_KEYS) and mark else ""
    if named == spec.search and (named or not key.startswith(SEARCH_KEYS)):
        return None
    text = (
        f"`search` is given by the search whose trial a job is, and this key is "
        f"{f'of search {named}' if named else 'none of a search'}"
    )
    return Problem(
        path="$.search",
        reason=Reason.BAD_VALUE,
        text=text,
        suggestion="leave it out, and use another key",
    )


def _service_problem(spec: JobSpec, key: str) -> Problem | None:
    """Return why a job is no replica of a service, or None.

    A service knows its replicas by their keys.
    """
    if (spec.kind == "inference") == key.startswith(SERVICE_KEYS):
        return None
    if spec.kind == "inference":
        return Problem(
            path="$.kind",
            reason=Reason.BAD_VALUE,
            text="a job of kind `inference` is a replica of a service",
            suggestion="describe the service, and begin it by `skep serve FILE`",
        )
    return Problem(
        path=f"header {subjects.KEY_HEADER}",
        reason=Reason.BAD_VALUE,
        text=f"keys that begin with `{SERVICE_KEYS}` are those of services' replicas",
        suggestion="use another key",
    )


def _mixed_problem(spec: JobSpec, entry: VirtualCluster) -> Problem | None:
    """Return why a gang cannot be mixed in a VC: its policy plans gangs in one chain each."""
    if not spec.resources.mixed or not entry.is_planned:
        return None
    by = f"policy `{entry.policy}`" if entry.policy != FIFO else "shares or limits of people"
    return Problem(
        path="$.resources.mixed",
        reason=Reason.MIXED_UNDER_POLICY,
        text=f"the jobs of `{spec.vc}` are placed by its {by}, which places no mixed gang",
        suggestion="leave `mixed` out, or submit to a virtual cluster with `policy: fifo` alone",
    )


def _task_problem(spec: JobSpec) -> Problem | None:
    """Return why a job is not a task: only admission makes one into one."""
    if not spec.task:
        return None
    text = "`task` is given by Skep to the jobs of an array"
    return Problem(path="$.task", reason=Reason.BAD_VALUE, text=text, suggestion="leave it out")


def _jobs(spec: JobSpec) -> int:
    """Return how many jobs a spec becomes."""
    return 1 if spec.array is None else tasks_of(spec.array).count


def _pieces(entries: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield entries in tuples of at most PIECE."""
    rest = iter(entries)
    while piece := tuple(islice(rest, PIECE)):
        yield piece


def _name_in(raw: bytes) -> str:
    """Return the name in a spec that is otherwise wrong, or an empty text."""
    try:
        tree = msgspec.json.decode(raw[:1_000_000])
    except UNDECODABLE:
        return ""
    name = tree.get("name") if isinstance(tree, dict) else None
    return name[:128] if isinstance(name, str) else ""
