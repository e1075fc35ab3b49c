"""Reference models of the two fact logs: what they say, read plainly, and must never say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from skep.cells.levels import gpus_in_cells
from skep.ids import job_sequence
from skep.sim import mixing, moves, peopled, returns, shared, sharing, sizes
from skep.sim.arrayed import ArraysModel
from skep.sim.churn import Churn, embargoed
from skep.sim.held import Gpus
from skep.sim.modelled import ModelJob, ModelNode
from skep.sim.moves import gpus
from skep.sim.peopled import Windows
from skep.sim.processes import Run
from skep.sim.tried import Tried
from skep.sim.violation import Key, ViolationError, require
from skep.sim.waits import Waits
from skep.units import Instant
from skep.wire.array import ArrayAdmitted, ArrayOpened, ArrayOver, TasksCancelled, TasksRetried
from skep.wire.bearing import BadCell, BadCellBound, BadCellReturned
from skep.wire.changes import (
    AskOver,
    AskTaken,
    ChangeAsked,
    Goal,
    GpusRegained,
    JobChanged,
    JobChanging,
    JobPrioritised,
    MemberAnswered,
    MemberLearned,
    Result,
)
from skep.wire.cluster import FIFO, Cluster, VirtualCluster
from skep.wire.commands import BindJob, Resize, Resume
from skep.wire.facts import (
    Admitted,
    CancelAsked,
    CellsAlarm,
    CellsReserved,
    CellsSet,
    End,
    GhostGone,
    JobBound,
    JobDeferred,
    JobDemoted,
    JobEnded,
    JobOver,
    JobPromoted,
    JobQueued,
    JobRan,
    JobRequeued,
    JobStopping,
    JobWaits,
    Member,
    MemberGone,
    MemberRan,
    NodeAdded,
    NodeBack,
    NodeClean,
    NodeDrained,
    NodeLost,
    NodeSeen,
    Refused,
    Repeated,
    ReservationDropped,
    VcsSet,
)
from skep.wire.following import LEARNED, AdviceFollowed
from skep.wire.moves import JobMoved, SuccessorBound, SuccessorDropped, SuccessorLoaded
from skep.wire.node import Manner, Outcome
from skep.wire.packs import GpusShared
from skep.wire.reasons import Reason
from skep.wire.resizes import GangNarrowed, GangWidened
from skep.wire.trials import TrialMessage
from skep.wire.windows import WindowBegan, WindowBooked, WindowEnded, WindowRefused

ASIDE = (Reason.PERSON_LIMIT, Reason.WAITS_FOR_WINDOW, Reason.WAITS_FOR_SHARE)
"""Why jobs wait that others may overtake."""
FAIR = "fair"
GPU_HOUR, MILLION = 3600 * 10**9, 10**6


class AdmissionModel:
    """What admission's log says."""

    def __init__(self, allocator: AllocatorModel) -> None:
        """Start empty; `allocator` knows which jobs have ended."""
        self.answers: dict[str, Admitted | ArrayAdmitted | Refused | Repeated] = {}
        self.arrays = ArraysModel()
        self.cancelled: dict[str, None] = {}
        self.over: dict[str, None] = {}
        self.asks: dict[int, ChangeAsked] = {}
        self.nodes: dict[str, NodeSeen] = {}
        self.vcs: dict[str, VirtualCluster] = {}
        self.keys: dict[tuple[str, str], str] = {}
        self._allocator = allocator

    def take(self, facts: Sequence[Any]) -> None:
        """Take the facts of one record."""
        for fact in facts:
            match fact:
                case Admitted() | Refused() | Repeated():
                    self._answer(fact)
                case ArrayAdmitted():
                    self._answer(fact)
                    self.arrays.take(fact)
                    self._few_enough(fact.spec.vc)
                case ArrayOpened():
                    said = fact.array in self._allocator.waits.opened
                    require(said, "I22", f"the allocator has not said that {fact.array} may begin")
                    held = fact.array in self._allocator.waits.held
                    require(not held, "I22", f"{fact.array} starts and is held")
                    self.arrays.take(fact)
                case TasksCancelled() | TasksRetried() | ArrayOver():
                    self.arrays.take(fact)
                case CancelAsked():
                    admitted = isinstance(self.answers.get(fact.job), Admitted)
                    require(admitted, "I1", f"{fact.job} is cancelled but was not admitted")
                    require(fact.job not in self.cancelled, "I1", f"{fact.job} cancelled twice")
                    self.cancelled[fact.job] = None
                case ChangeAsked():
                    require(fact.number not in self.asks, "I1", f"{fact} is asked twice")
                    self.asks[fact.number] = fact
                case JobOver():
                    require(fact.job in self._allocator.ended, "I1", f"{fact.job} is not over")
                    require(fact.job not in self.over, "I1", f"{fact.job} is over twice")
                    self.over[fact.job] = None
                    self.arrays.over(fact.job, fact.end)
                case NodeSeen():
                    self.nodes[fact.node] = fact
                case VcsSet():
                    self.vcs = fact.vcs
                case _:
                    pass  # Epochs are checked with the envelope.

    def _answer(self, fact: Admitted | ArrayAdmitted | Refused | Repeated) -> None:
        name = fact.array if isinstance(fact, ArrayAdmitted) else fact.job
        require(name not in self.answers, "I1", f"{name} is answered twice")
        self.answers[name] = fact
        if isinstance(fact, Repeated):
            require(fact.original in self.answers, "I9", f"{fact.job} repeats nothing")
        elif fact.key:
            vc = fact.vc if isinstance(fact, Refused) else fact.spec.vc
            first = self.keys.setdefault((vc, fact.key), name)
            require(first == name, "I9", f"{name} and {first} have one key")
        if isinstance(fact, Admitted) and fact.spec.task:
            self.arrays.admitted(fact)  # It was counted with its array.
        elif isinstance(fact, Admitted):
            self._few_enough(fact.spec.vc)

    def _few_enough(self, vc: str) -> None:
        active = [
            job
            for job, answer in self.answers.items()
            if isinstance(answer, Admitted) and answer.spec.vc == vc and job not in self.over
        ]
        jobs_max = self.vcs[vc].jobs_max if vc in self.vcs else 0
        count = len(active) + self.arrays.waiting(vc)
        require(count <= jobs_max, "I8", f"{vc} has {count} of {jobs_max} jobs")


class AllocatorModel:
    """What the allocator's log says.

    `freed` is asked before a machine's GPUs count as free, and raises if processes of the attempt
    are alive there; `cleared` before a machine that has its name anew counts as clean; `stands`
    before the GPUs of a suspended attempt count as free; `left` before some GPUs of one do whose
    gang has become smaller; `together` when one has changed its size, or has not after all.
    """

    admission: AdmissionModel
    """What was admitted."""

    def __init__(
        self,
        freed: Callable[[Member, str, int], None],
        cleared: Callable[[str], None],
        stands: Callable[[Member, str, int], None],
        left: Callable[[list[Key], str, int], None],
        together: Callable[[list[Member], str, int], None],
    ) -> None:
        """Start empty; `admission` is to be set."""
        self.jobs: dict[str, ModelJob] = {}
        self.ended: dict[str, JobEnded] = {}
        self.nodes: dict[str, ModelNode] = {}
        self.quotas: dict[str, int] = {}
        """GPUs in each VC's cells together."""
        self.cluster = Cluster()
        self.borne: dict[BadCell, range] = {}
        """The cells that VCs bear for their bad GPUs, with their GPUs' numbers in the chain."""
        self.gpus = Gpus()
        self.ghosts: dict[tuple[str, str, int], Member] = {}
        self.disowned: dict[str, None] = {}
        """Machines whose name was given to another, until it is theirs again and they are clean."""
        self.hopeless: dict[str, None] = {}
        """Jobs that no cell can hold as things are: somebody has to cancel them."""
        self.released: dict[Key, None] = {}
        """Attempts that, suspended, hold no GPUs."""
        self.learned: dict[tuple[str, int, str], tuple[str, ...]] = {}
        """What a node's part of an attempt can do."""
        self.asked: dict[int, None] = {}
        """Requests for changes that were taken, by number."""
        self.answered: dict[int, None] = {}
        self.moved: dict[Key, Key] = {}
        """What took over from what."""
        self.successors: dict[str, SuccessorBound] = {}
        self.loaded: dict[str, dict[str, None]] = {}
        """By job that moves: the nodes where its state has arrived."""
        self.order = self.attempts = 0
        self.policies: dict[str, str] = {}
        """By VC: its policy."""
        self.followed: dict[str, AdviceFollowed] = {}
        """By VC with the policy `learned`: what was said last."""
        self.fallen: dict[str, None] = {}
        """VCs whose policy failed: first come, first served meanwhile."""
        self.tried = Tried(self.jobs, self.gpus)
        self.windows = Windows()
        self.waits = Waits(self.jobs, self.ended)
        self.aside: dict[str, None] = {}
        """Jobs that wait for what is no matter of GPUs: others go past them."""
        self.submitted: dict[str, Instant] = {}
        self._yielded: dict[str, None] = {}
        """Jobs whose claims were dropped for whoever is bound, or claims, next in the record."""
        self._freed = freed
        self._cleared = cleared
        self._stands = stands
        self.left = left
        self._together = together

    def take(self, facts: Sequence[Any]) -> None:
        """Take the facts of one record."""
        self._yielded.clear()
        for index, fact in enumerate(facts):
            self.waits.take(fact)
            match fact:
                case NodeAdded() | NodeDrained() | NodeLost() | NodeBack() | NodeClean():
                    self._node(fact)
                case GhostGone():
                    self._ghost_gone(fact, facts[index + 1 :])
                case CellsSet():
                    self._cells(fact)
                case CellsAlarm():
                    self._alarm(fact)
                case JobWaits():
                    self._waits(fact)
                case JobDemoted() | JobPromoted():
                    self._regraded(fact)
                case CellsReserved() | ReservationDropped():
                    self._claims(fact)
                case JobQueued():
                    self._queued(fact)
                case JobBound():
                    self._bound(fact)
                case MemberRan() | JobRan():
                    self._ran(fact)
                case WindowBooked() | WindowRefused() | WindowBegan() | WindowEnded():
                    self.windows.take(fact)
                case JobStopping() | MemberGone() | JobRequeued() | JobEnded():
                    self._stops(fact)
                case _:
                    self._of_changes(fact)
        sharing.left(self, facts)

    def _waits(self, fact: JobWaits) -> None:
        """Take why a job waits."""
        if fact.why in ASIDE:
            self.aside[fact.job] = None
        else:
            self.aside.pop(fact.job, None)
        if fact.aside:
            self.hopeless[fact.job] = None
        else:
            self.hopeless.pop(fact.job, None)

    def _stops(self, fact: JobStopping | MemberGone | JobRequeued | JobEnded) -> None:
        """Take a step towards the end of an attempt."""
        match fact:
            case JobStopping():
                self._stopping(fact)
            case MemberGone():
                self._member_gone(fact)
            case JobRequeued():
                self._over(fact).queued = True
            case JobEnded():
                self._ended(fact)

    def _regraded(self, fact: JobDemoted | JobPromoted) -> None:
        """Take that a job lost its VC's cells, or has them."""
        if isinstance(fact, JobPromoted):
            self.attempt_of(fact.job, fact.attempt)
            for job in sharing.set_of(self, fact.job, fact.attempt):
                job.guaranteed = not job.spec.opportunistic and job.stopping is None
                self.within_quota(job.spec.vc)
            return
        # What a lost node may still run can lose its cells, and a successor.
        haunts = any(key[1:] == (fact.job, fact.attempt) for key in self.ghosts)
        if not (haunts or moves.succeeds(self, fact.job, fact.attempt)):
            self.attempt_of(fact.job, fact.attempt)
        moves.demote(self, fact.job, fact.attempt)

    def _claims(self, fact: CellsReserved | ReservationDropped) -> None:
        """Take that a job has a reservation, or has it no more."""
        require(self._job(fact.job).queued, "I1", f"{fact.job} claims while it runs")
        self._job(fact.job).claims = isinstance(fact, CellsReserved)
        if isinstance(fact, CellsReserved):
            peopled.within_limits(self.cluster.vcs, self.jobs, fact)
        if isinstance(fact, CellsReserved):
            self._yielded.clear()
        elif fact.why is Reason.PREEMPTED:
            self._yielded[fact.job] = None

    def _queued(self, fact: JobQueued) -> None:
        """Take a job as it was admitted."""
        known = fact.job in self.jobs or fact.job in self.ended
        require(not known, "I1", f"{fact.job} is queued twice")
        answer = self.admission.answers.get(fact.job)
        same = isinstance(answer, Admitted) and answer.spec == fact.spec
        require(same, "I1", f"{fact.job} is not as it was admitted")
        self.jobs[fact.job] = ModelJob(spec=fact.spec, owner=fact.owner)
        self.submitted[fact.job] = fact.submitted_at

    def _of_changes(self, fact: Any) -> None:
        match fact:
            case JobChanging() | MemberAnswered() | JobChanged() | GpusRegained():
                self._change(fact)
            case MemberLearned():
                self.learned[fact.job, fact.attempt, fact.node] = fact.can
            case AskTaken() | AskOver():
                self._asked(fact)
            case JobPrioritised():
                require(not self._job(fact.job).members, "I12", f"{fact.job} has GPUs")
            case SuccessorBound() | JobMoved() | SuccessorDropped():
                self.next_order(fact.order)
                moves.take(self, self._job(fact.job), fact)
                if isinstance(fact, SuccessorBound):
                    there = [member.node for member in fact.members]
                    self.windows.begins(self._job(fact.job).spec, fact, there)
            case SuccessorLoaded():
                self.loaded[fact.job][fact.node] = None
            case GangWidened() | GangNarrowed():
                sizes.resize(self, fact)
                if isinstance(fact, GangWidened):
                    peopled.within_limits(self.cluster.vcs, self.jobs, fact)
            case GpusShared():
                sharing.share(self, fact)
                shared.together(self, fact)
            case TrialMessage():
                self.tried.take(fact)
            case AdviceFollowed():
                self._followed(fact)
            case JobDeferred():
                self.hopeless.pop(fact.job, None)  # It is tried anew once it enters its queue.
            case BadCellBound() | BadCellReturned():
                self._bearing(fact)
            case _:
                pass  # Why a job waits changes nothing.

    def _followed(self, fact: AdviceFollowed) -> None:
        """Take whether a VC follows its model: only the one that its policy names may act."""
        options = self.cluster.vcs[fact.vc].options
        require(self.policies[fact.vc] == LEARNED, "I19", f"{fact.vc} has no model")
        named = fact.model == options["model"] and fact.rule == options["rule"]
        require(named, "I19", f"{fact.vc} is said to follow {fact.model[:12]}, {fact.rule}")
        before = self.followed.get(fact.vc)
        again = before is not None and msgspec.structs.replace(before, at=fact.at) == fact
        require(not again, "I19", f"{fact.vc} is told twice: {fact}")
        if fact.seed != (before.seed if before is not None else 0):
            require(options.get("explore_share_milli", 0) > 0, "I19", f"{fact.vc} explores")
            budget = options.get("explore_gpu_hours", 0) * GPU_HOUR
            require(fact.spent <= budget, "I19", f"{fact.vc} explores beyond its budget")
            require(fact.follows and 0 < fact.chance < MILLION, "I19", f"no draw: {fact}")
        self.followed[fact.vc] = fact

    def _alarm(self, fact: CellsAlarm) -> None:
        """Take that something is wrong: with a policy it may be, and with the cells never."""
        if fact.rule is Reason.POLICY_FAILED:
            self.fallen.pop(fact.where, None)
            if not fact.over:
                self.fallen[fact.where] = None
        elif fact.rule is not Reason.NOT_ITS_JOB:
            require(fact.over, "I0", f"{fact.rule} in {fact.chain}: {fact.text}")

    def _cells(self, fact: CellsSet) -> None:
        self.policies = {vc: policy_of(each) for vc, each in fact.cluster.vcs.items()}
        for vc in [each for each in self.followed if self.policies.get(each) != LEARNED]:
            del self.followed[vc]
        self.quotas = {vc: gpus_in_cells(fact.cluster, vc) for vc in fact.cluster.vcs}
        self.hopeless.clear()
        self.cluster, self.borne = fact.cluster, {}
        for cell in fact.bad_cells:
            self._bears(cell)
        for fate in fact.fates:
            if fate.fate == "demoted" and fate.job in self.jobs:
                moves.demote(self, fate.job, fate.attempt)
        for vc in self.quotas:
            self.within_quota(vc)

    def _bears(self, cell: BadCell) -> None:
        """Take that a VC bears a bad cell, which no other cell that is borne may overlap."""
        chain = self.cluster.chains.get(cell.chain)
        require(chain is not None, "I0", f"{cell} is in no chain")
        assert chain is not None
        known = 1 <= cell.level <= len(chain.levels) + 1
        require(known and cell.index >= 0, "I0", f"{cell} is no cell")
        sizes = [1]
        for level in chain.levels:
            sizes.append(sizes[-1] * level.fanout)
        size = sizes[cell.level - 1]
        gpus = range(cell.index * size, (cell.index + 1) * size)
        name = chain.leaf if cell.level == 1 else chain.levels[cell.level - 2].name
        owned_here = sum(
            quota.count
            for quota in self.cluster.vcs[cell.vc].cells
            if (quota.chain, quota.level) == (cell.chain, name)
        )
        mine = [
            other
            for other in self.borne
            if (other.chain, other.vc, other.level) == (cell.chain, cell.vc, cell.level)
        ]
        require(len(mine) < owned_here, "I0", f"{cell.vc} bears more cells than it owns: {cell}")
        for other, theirs in self.borne.items():
            apart = other.chain != cell.chain or not (
                theirs.start < gpus.stop and gpus.start < theirs.stop
            )
            require(apart, "I0", f"{cell} and {other} overlap")
        self.borne[cell] = gpus

    def _bearing(self, fact: BadCellBound | BadCellReturned) -> None:
        if isinstance(fact, BadCellBound):
            self._bears(fact.cell)
        else:
            require(fact.cell in self.borne, "I0", f"{fact.cell} was not borne")
            del self.borne[fact.cell]

    def _node(self, fact: NodeAdded | NodeDrained | NodeLost | NodeBack | NodeClean) -> None:
        if isinstance(fact, NodeAdded):
            joined = fact.joined
            node = self.nodes.setdefault(joined.node, ModelNode(identity=joined.identity))
            if node.identity != joined.identity:
                self.disowned[node.identity] = None
                held = [key for key in self.gpus.held if key[0] == node.identity]
                require(not held, "I2", f"{joined.node} was replaced while {held} were held")
            node.identity = joined.identity
            node.clearing = node.clearing or fact.clear > 0
            return
        node = self.nodes[fact.node]
        match fact:
            case NodeDrained():
                node.drained = fact.drain
            case NodeLost():
                node.lost = True
            case NodeBack():
                node.lost = False
            case NodeClean():
                node.clearing = False
                self._cleared(node.identity)
                self.disowned.pop(node.identity, None)

    def _job(self, name: str) -> ModelJob:
        job = self.jobs.get(name)
        if job is None:
            invariant = "I1"
            raise ViolationError(invariant, f"{name} is not an unfinished job")
        return job

    def attempt_of(self, name: str, attempt: int) -> ModelJob:
        job = self._job(name)
        live = not job.queued and job.attempt == attempt
        require(live, "I1", f"{name} is not in attempt {attempt}")
        return job

    def next_order(self, order: int) -> None:
        require(order == self.order + 1, "I5", f"order {order} after {self.order}")
        self.order = order

    def _bound(self, fact: JobBound) -> None:
        job, name = self._job(fact.job), fact.job
        require(job.queued, "I1", f"{name} is bound twice")
        require(fact.attempt > job.spent, "I1", f"{name}: attempt {fact.attempt} again")
        job.spent = fact.attempt
        self.next_order(fact.order)
        self.attempts += 1
        wanted = job.spec.resources
        ranks = [
            pair
            for member in fact.members
            for pair in zip(member.numbers, member.devices, strict=True)
        ]
        sizes = job.spec.elastic
        least, most = (sizes.min, sizes.max) if sizes else (wanted.workers, wanted.workers)
        whole = [rank for rank, _ in ranks] == list(range(len(ranks)))
        whole = whole and least <= len(ranks) <= most
        whole = whole and all(len(devices) == wanted.gpus for _, devices in ranks)
        require(whole, "I3", f"{name}: {fact.members} are not the gang")
        mixing.apart(self.cluster, job.spec, fact)
        packed = (name, fact.attempt) in self.gpus.decisions
        counted = job.claims  # Its person had it from its claim on.
        if not (job.claims or packed):  # Who has claimed its cells had its turn then.
            self._in_turn(job, fact)
        self._yielded.clear()
        job.queued, job.attempt, job.order = False, fact.attempt, fact.order
        job.claims = False
        job.guaranteed = any(level for member in fact.members for level in member.levels)
        require(not (packed and job.guaranteed), "I16", f"{name} is packed and got cells as well")
        job.guaranteed = job.guaranteed or sharing.inherits(self, name, fact.attempt)
        allowed = not (job.guaranteed and job.spec.opportunistic)
        require(allowed, "I8", f"{name} is opportunistic and got cells of {job.spec.vc}")
        job.members = {member.node: member for member in fact.members}
        job.gone, job.ran, job.stopping = {}, {}, None
        job.suspended, job.size, job.before = False, len(ranks), {}
        for member in fact.members:
            node = self.nodes[member.node]
            usable = not (node.lost or node.drained or node.clearing)
            usable = usable and node.identity == member.identity
            require(usable, "I2", f"{name} is bound to {member.node}, which is not usable")
            self.gpus.take(gpus(member), (name, fact.attempt), f"{name} got")
        self.within_quota(job.spec.vc)
        if not counted:
            peopled.within_limits(self.cluster.vcs, self.jobs, fact)
        self.windows.begins(job.spec, fact, job.members)

    def _in_turn(self, job: ModelJob, fact: JobBound) -> None:
        """Require that no job in the job's queue is more important, or earlier without advice.

        A job whose claim on idle GPUs gave way to one of its VC's own cells has had its turn:
        alone, its VC would not have had those GPUs.
        """
        cells = any(level for member in fact.members for level in member.levels)
        if fact.ranked is Reason.LENT_MEANWHILE:
            require(not cells, "I11", f"{fact.job} was lent cells of its VC")
            require(job.spec.over_quota == "auto", "I11", f"{fact.job} was lent GPUs")
            return  # It has its turn yet to come.
        spec, sequence = job.spec, job_sequence(fact.job) or 0
        if not spec.opportunistic and self.policies.get(spec.vc, FIFO) != FIFO:
            if cells or fact.ranked is not Reason.ARRIVAL:  # Else its VC's cells never hold it.
                self._by_its_turn(spec.vc, sequence, fact)
            return
        for name, other in self.jobs.items():
            theirs = other.spec
            aside = other.claims or name in self.hopeless or (cells and name in self._yielded)
            aside = aside or name in self.aside or name in self.waits.deferred
            if not other.queued or aside or name == fact.job or theirs.vc != spec.vc:
                continue
            if theirs.opportunistic is spec.opportunistic:
                first = theirs.priority > spec.priority
                if fact.ranked is Reason.ARRIVAL and theirs.priority == spec.priority:
                    first = first or (job_sequence(name) or 0) < sequence
                require(not first, "I11", f"{fact.job} was bound before {name}")

    def _by_its_turn(self, vc: str, sequence: int, fact: JobBound) -> None:
        """Require that a job is placed by a turn of its VC's policy, and not while it is held."""
        if self.policies[vc] != Churn.name or vc in self.fallen:
            return
        require(fact.ranked is Reason.BY_POLICY, "I17", f"{fact.job} was bound without a turn")
        held = embargoed(sequence, self.submitted[fact.job], fact.at)
        require(not held, "I17", f"{fact.job} was bound while its policy held it")

    def within_quota(self, vc: str) -> None:
        holders = [
            job
            for job in self.jobs.values()
            if not job.queued and job.guaranteed and job.spec.vc == vc
        ]
        used = len(
            {
                gpu
                for job in holders
                for member in job.members.values()
                if member.node not in job.gone
                for gpu in gpus(member)
            }
        )
        quota = self.quotas.get(vc, 0)
        require(used <= quota, "I8", f"{vc} holds {used} of {quota} GPUs")

    def _ran(self, fact: MemberRan | JobRan) -> None:
        job = self.attempt_of(fact.job, fact.attempt)
        if isinstance(fact, MemberRan):
            require(fact.node not in job.gone, "I3", f"{fact.node} ran after it was gone")
            job.ran[fact.node] = None
        else:
            # A part may have succeeded before its start was told.
            missing = [node for node in job.members if node not in {**job.ran, **job.gone}]
            require(not missing, "I3", f"{fact.job} ran without {missing}")

    def _stopping(self, fact: JobStopping) -> None:
        job = self.attempt_of(fact.job, fact.attempt)
        require(job.stopping is None, "I1", f"{fact.job} is stopped twice")
        self.next_order(fact.order)
        require(job.changing is None, "I12", f"{fact.job} is stopped in the middle of a change")
        job.stopping = fact.why
        job.guaranteed = False  # Its cells are its VC's again; whoever gets them waits for it.
        if fact.why is Reason.TIME_LIMIT:
            require(job.spec.limits.time is not None, "I1", f"{fact.job} has no time limit")

    def _member_gone(self, fact: MemberGone) -> None:
        job = self.attempt_of(fact.job, fact.attempt)
        require(fact.node in job.members, "I3", f"{fact.node} has no part of {fact.job}")
        require(fact.node not in job.gone, "I1", f"{fact.node} is gone twice")
        job.gone[fact.node] = fact
        member = job.members[fact.node]
        if fact.free:
            self._free(member, fact.job, fact.attempt)
        else:
            self.ghosts[fact.node, fact.job, fact.attempt] = member

    def _ghost_gone(self, fact: GhostGone, later: Sequence[Any]) -> None:
        key = fact.node, fact.job, fact.attempt
        require(key in self.ghosts, "I2", f"{key} was no ghost")
        member = self.ghosts.pop(key)
        replaced = any(
            isinstance(each, NodeAdded)
            and each.joined.node == fact.node
            and each.joined.identity != member.identity
            for each in later
        )
        if replaced:
            self.disowned[member.identity] = None
        self._free(member, fact.job, fact.attempt)

    def _free(self, member: Member, job: str, attempt: int) -> None:
        if (job, attempt) not in self.released:
            self.gpus.drop(gpus(member), (job, attempt))
        if member.identity not in self.disowned:
            self._freed(member, job, attempt)

    def _over(self, fact: JobRequeued | JobEnded) -> ModelJob:
        job = self._job(fact.job)
        left = [node for node in job.members if node not in job.gone]
        require(job.queued or not left, "I3", f"{fact.job} is over but for {left}")
        require(job.changing is None, "I12", f"{fact.job} is over in the middle of a change")
        require(fact.job not in self.successors, "I13", f"{fact.job} is over, its successor not")
        return job

    def _ended(self, fact: JobEnded) -> None:
        job = self._over(fact)
        # Who was only to join the gang is none of it.
        outcomes = [
            gone.outcome
            for node, gone in job.gone.items()
            if job.members[node].first_rank < job.workers
        ]
        if fact.end is End.SUCCEEDED:
            whole = not job.queued and all(each is Outcome.SUCCEEDED for each in outcomes)
            require(whole, "I3", f"{fact.job} succeeded with {outcomes}")
        require(fact.attempts == job.attempt, "I1", f"{fact.job}: {fact.attempts} attempts")
        self.ended[fact.job] = fact
        del self.jobs[fact.job]
        self.hopeless.pop(fact.job, None)

    def _change(self, fact: JobChanging | MemberAnswered | JobChanged | GpusRegained) -> None:
        job, name = self.attempt_of(fact.job, fact.attempt), fact.job
        require(job.stopping is None, "I12", f"{name} is changed while it is stopped")
        members = [member for node, member in job.members.items() if node not in job.gone]
        match fact:
            case JobChanging(goal=goal):
                same = job.changing is None or job.changing.goal is goal
                require(same, "I12", f"{name}: two changes are open")
                resumes = isinstance(fact.change, Resume) and bool(fact.nodes)
                gone = job.suspended and resumes and (name, job.attempt) in self.released
                require(not gone, "I12", f"{name} is resumed without GPUs")
                if isinstance(fact.change, Resize):
                    self.tried.resized = name, fact.attempt, fact.change.world
                fits = goal is Goal.RESIZE or job.ranks == job.workers
                require(fits, "I14", f"{name}: {job.ranks} for {job.workers}")
                self.next_order(fact.order)
                before = job.changing.change if job.changing is not None else None
                again = isinstance(fact.change, Resume) and isinstance(before, Resume)
                # Whoever goes on already is not told again.
                job.answers = {
                    node: answer
                    for node, answer in job.answers.items()
                    if again and node not in fact.nodes
                }
                job.changing = fact
            case MemberAnswered(node=node):
                open_change = job.changing is not None and job.changing.order == fact.order
                require(open_change and node not in job.answers, "I12", f"{name}: {fact}")
                job.answers[node] = fact
            case JobChanged():
                require(job.changing is not None, "I12", f"{name}: no change was open")
                if fact.result is Result.DONE:
                    self._changed(job, fact, members)
                elif fact.released and fact.goal is Goal.RESUME:
                    for member in returns.refused(self, job, fact):
                        self._stands(member, name, fact.attempt)
                resized = fact.goal is Goal.RESIZE and fact.result is Result.DONE
                if resized or (fact.result is Result.UNDONE and _spans(job)):
                    self._together(members, name, fact.attempt)
                job.changing = None
            case GpusRegained():
                returns.regained(self, job, fact)
                self.windows.begins(job.spec, fact, [member.node for member in members])

    def _asked(self, fact: AskTaken | AskOver) -> None:
        known = self.answered if isinstance(fact, AskOver) else self.asked
        require(fact.number not in known, "I12", f"{fact} was said before")
        self.asked[fact.number] = known[fact.number] = None

    def _changed(self, job: ModelJob, fact: JobChanged, members: list[Member]) -> None:
        told = [job.answers.get(member.node) for member in members]
        whole = all(one is not None and one.manner is not Manner.UNCHANGED for one in told)
        undone = job.changing is not None and job.changing.undoing
        undone = undone and fact.goal is not Goal.RESIZE  # It may have come to the smaller size.
        require(whole and not undone, "I12", f"{fact.job}: {fact.goal} is done without {told}")
        if fact.goal is Goal.SUSPEND:
            steps = {one.step for one in told if one is not None and one.manner is Manner.BOUNDARY}
            common = len(steps) <= 1 or job.suspended
            require(common, "I12", f"{fact.job} stands at different mini-batches: {steps}")
            job.suspended = True
        elif job.changing is not None and isinstance(job.changing.change, Resume):
            job.suspended, job.before = False, {}
        if fact.released:
            require(job.suspended, "I12", f"{fact.job} gives its GPUs back and trains")
            for member in members:
                self._stands(member, fact.job, fact.attempt)
                self.gpus.drop(gpus(member), (fact.job, fact.attempt))
            self.released[fact.job, fact.attempt] = None
            job.guaranteed = False
        if job.changing is not None and isinstance(job.changing.change, Resize):
            sizes, job.size = job.spec.elastic, job.changing.change.world
            allowed = sizes is not None and sizes.min <= job.size <= sizes.max
            allowed = allowed and not job.changing.change.prepare
            require(allowed and job.size <= job.ranks, "I14", f"{fact.job}: {job.size} workers")

    def has(self, identity: str, run: Run) -> bool:
        """Return whether a run's attempt holds its GPUs."""
        return self.gpus.has(identity, run.devices, (run.job, run.attempt))

    def holds(self, identity: str, command: BindJob, devices: Sequence[int]) -> bool:
        """Return whether an attempt holds these GPUs of a machine.

        Args:
            identity: The identity of the machine.
            command: The order that the attempt began with there.
            devices: The devices of one rank.
        """
        return self.gpus.has(identity, devices, (command.job, command.attempt))


def _spans(job: ModelJob) -> bool:
    """Return whether the change that is open is one of the size of a gang on several nodes."""
    change = job.changing.change if job.changing is not None else None
    return isinstance(change, Resize) and (change.prepare or change.agree)


def policy_of(vc: VirtualCluster) -> str:
    """Return the policy of a VC; one that shares by person, or limits it, is planned as well."""
    plain = vc.fair_share is None and vc.limits is None
    return vc.policy if plain or vc.policy != FIFO else FAIR
