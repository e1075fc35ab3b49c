"""Durable records of decisions. Folding them rebuilds the machine that recorded them."""

from __future__ import annotations

from enum import StrEnum

from skep.units import Instant
from skep.wire.array import ArrayFact
from skep.wire.array_gate import GateFact
from skep.wire.bearing import BadCell, BearingFact, CarriedHold
from skep.wire.changes import ChangeAsked, ChangeFact
from skep.wire.cluster import Cluster, VirtualCluster
from skep.wire.commands import BindJob
from skep.wire.following import AdviceFollowed
from skep.wire.held_up import HeldUpFact
from skep.wire.member import Member as Member  # noqa: PLC0414 - whoever reads facts finds it here
from skep.wire.message import Message
from skep.wire.moves import MoveFact
from skep.wire.node import MemberExited, NodeJoined, Outcome
from skep.wire.packs import PackFact
from skep.wire.part_facts import (
    ChangeTaken,
    ChangeTried,
    PartChanged,
    PartKnown,
    PartLoaded,
    PartReady,
    RankJoins,
)
from skep.wire.promises import PromiseFact
from skep.wire.reasons import Reason
from skep.wire.resizes import ResizeFact
from skep.wire.roles import Standing
from skep.wire.spec import JobSpec, Problem
from skep.wire.template_facts import TemplateSet
from skep.wire.trials import TrialFact
from skep.wire.volumes import Volume
from skep.wire.windows import WindowFact


class EpochBegan(Message, frozen=True, tag="epoch-began"):
    """A process won the log: what an earlier owner still wants to write is refused.

    `rules` is the version of the rules by which facts of this epoch are applied (`RULES`).
    """

    epoch: int
    owner: str
    rules: int = 1


# --- admission -----------------------------------------------------------------------------


class VcsSet(Message, frozen=True, tag="vcs-set"):
    """The virtual clusters that are asked for, the GPUs that each is promised, and the volumes."""

    vcs: dict[str, VirtualCluster]
    gpus: dict[str, int] = {}
    volumes: dict[str, Volume] = {}


class CellsSeen(Message, frozen=True, tag="cells-seen"):
    """The cells in force, as the allocator recorded them: for refusing what never can run."""

    cluster: Cluster


class NodeSeen(Message, frozen=True, tag="node-seen"):
    """The inventory the allocator uses for a node: what exists, for refusing what never can run."""

    node: str
    gpus: dict[str, int]
    cpus: int
    memory: int


class Admitted(Message, frozen=True, tag="admitted"):
    """A submission became a job. `spec` is normalised and whole.

    `owner` is the person that submitted it; empty: the VC as a whole did.
    """

    job: str
    spec: JobSpec
    submitted_at: Instant
    key: str = ""
    trace: str = ""
    owner: str = ""


class Refused(Message, frozen=True, tag="refused"):
    """A submission did not become a job. `owner` is as in `Admitted`."""

    job: str
    vc: str
    problems: tuple[Problem, ...]
    submitted_at: Instant
    name: str = ""
    key: str = ""
    trace: str = ""
    owner: str = ""


class Repeated(Message, frozen=True, tag="repeated"):
    """A submission with a key used before: it is `original`, not a job of its own."""

    job: str
    original: str
    vc: str
    trace: str = ""


class CancelAsked(Message, frozen=True, tag="cancel-asked"):
    """The wish to cancel an unfinished job was accepted. `by` is the person; empty: VC or Skep."""

    job: str
    by: str = ""


class RolesSeen(Message, frozen=True, tag="roles-seen"):
    """What a person is taken for from here on, as admission has heard it of the service `access`.

    `standing` is the whole of it; without any role the person may do nothing.
    """

    person: str
    standing: Standing


class JobOver(Message, frozen=True, tag="job-over"):
    """Admission saw the end of a job: its place in the VC is free.

    `end` is how a task of an array ended, and empty for other jobs.
    """

    job: str
    end: str = ""


class JobBegan(Message, frozen=True, tag="job-began"):
    """Admission saw a job get GPUs for the first time: it is not queued any more.

    This is recorded in VCs with limits, and of tasks of arrays.
    """

    job: str


AdmissionFact = (
    EpochBegan
    | VcsSet
    | CellsSeen
    | NodeSeen
    | Admitted
    | Refused
    | Repeated
    | CancelAsked
    | JobOver
    | ChangeAsked
    | PromiseFact
    | JobBegan
    | RolesSeen
    | ArrayFact
    | TemplateSet
)

# --- allocator -----------------------------------------------------------------------------


class End(StrEnum):
    """The one end of a job."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobFate(Message, frozen=True):
    """What a change of the cells means for an attempt that holds GPUs.

    `fate`: demoted (it goes on where it is, opportunistically), or released (its reservation is
    planned anew). Of a job that moves the attempt may be its successor.
    """

    job: str
    fate: str
    attempt: int = 0


class CellsSet(Message, frozen=True, tag="cells-set"):
    """The cells in force. `asked` is what the operator wrote, which leaves more open.

    Jobs that hold GPUs are carried over; `fates` tells of those for which anything changes. By
    rules 2 `carried` are the holds for which anything changes, in the order in which they are
    entered after the others, and `bad_cells` the cells that VCs go on bearing for their bad GPUs.
    """

    cluster: Cluster
    asked: Cluster
    fates: tuple[JobFate, ...] = ()
    carried: tuple[CarriedHold, ...] = ()
    bad_cells: tuple[BadCell, ...] = ()


class ClusterRefused(Message, frozen=True, tag="cluster-refused"):
    """What an operator asked for is no cluster: nothing of it is done."""

    problems: tuple[Problem, ...]


class CellsReserved(Message, frozen=True, tag="cells-reserved"):
    """A job has claimed these GPUs, which `victims` still use: no other job is offered them."""

    job: str
    attempt: int
    chain: str
    members: tuple[Member, ...]
    victims: tuple[str, ...]
    at: Instant
    why: Reason
    ranked: Reason = Reason.ARRIVAL


class ReservationDropped(Message, frozen=True, tag="reservation-dropped"):
    """A job lost its claim and waits again; the jobs on the GPUs hold them as before."""

    job: str
    attempt: int
    why: Reason


class JobDemoted(Message, frozen=True, tag="job-demoted"):
    """An attempt goes on where it is, opportunistically: its VC's cells are free again."""

    job: str
    attempt: int
    why: Reason
    detail: str = ""
    at: Instant = Instant(0)


class JobPromoted(Message, frozen=True, tag="job-promoted"):
    """An attempt that ran opportunistically goes on where it is, on its VC's cells.

    `levels` are those of the cells that cover its ranks, in the order of ranks.
    """

    job: str
    attempt: int
    levels: tuple[int, ...]
    at: Instant = Instant(0)


class CellsAlarm(Message, frozen=True, tag="cells-alarm"):
    """An invariant of the cells does not hold (`over`: it holds again): a bug, or bad memory.

    `where` is a cell, a node, a level or a VC of `chain`, `vcs` the VCs that it concerns. `story`
    are the latest facts about any of them, oldest first, each cut short.
    """

    rule: Reason
    chain: str
    where: str
    vcs: tuple[str, ...]
    text: str
    at: Instant
    story: tuple[str, ...] = ()
    over: bool = False


class GpuQuarantined(Message, frozen=True, tag="gpu-quarantined"):
    """A GPU counts as bad until it is taken back (`quarantine` false)."""

    node: str
    device: int
    quarantine: bool
    why: Reason
    detail: str = ""


class NodeAdded(Message, frozen=True, tag="node-added"):
    """The allocator uses this inventory for the node from here on.

    `clear`: the name has a new owner, and nothing is placed there before it has confirmed that
    nothing of the orders up to this one runs; 0 if there is nothing to confirm.
    """

    joined: NodeJoined
    clear: int = 0


class NodeDrained(Message, frozen=True, tag="node-drained"):
    """An operator closed a node to further work, or (`drain` false) opened it again."""

    node: str
    drain: bool


class NodeLost(Message, frozen=True, tag="node-lost"):
    """A node was silent for too long. Its GPUs stay taken until it confirms that they are free."""

    node: str


class NodeBack(Message, frozen=True, tag="node-back"):
    """A lost node speaks again."""

    node: str


class NodeClean(Message, frozen=True, tag="node-clean"):
    """The new owner of a node's name runs nothing of an earlier time: the node is open for work."""

    node: str


class JobQueued(Message, frozen=True, tag="job-queued"):
    """An admitted job waits for GPUs. `owner` is as in `Admitted`."""

    job: str
    spec: JobSpec
    submitted_at: Instant
    trace: str = ""
    owner: str = ""


class JobWaits(Message, frozen=True, tag="job-waits"):
    """Why a job that waits does not start. `needs` names what it waits for.

    `aside`: no cell could hold it even if nothing else ran. Until the cells change it is not tried
    again, and the job behind it comes first.
    """

    job: str
    why: Reason
    needs: str = ""
    aside: bool = False


class JobDeferred(Message, frozen=True, tag="job-deferred"):
    """A job waits outside of its queue. `awaits`: the jobs in its `after` that have yet to end.

    Before `begin` it may not start (0: at any time), nor while it is `held`. `needs` names what the
    reason is about: the first of the jobs, or the time.
    """

    job: str
    why: Reason
    at: Instant
    needs: str = ""
    awaits: tuple[str, ...] = ()
    begin: Instant = Instant(0)
    held: bool = False


class JobEligible(Message, frozen=True, tag="job-eligible"):
    """A job that was deferred enters its queue, at the place of its submission."""

    job: str
    at: Instant


class JobBound(Message, frozen=True, tag="job-bound"):
    """An attempt got its GPUs. `order` numbers the commands that follow from it.

    `secret` is what its parameter servers ask for, if it has any.
    """

    job: str
    attempt: int
    order: int
    members: tuple[Member, ...]
    master_port: int
    why: Reason
    at: Instant
    ranked: Reason = Reason.ARRIVAL
    trace: str = ""
    chain: str = ""
    secret: str = ""


class MemberRan(Message, frozen=True, tag="member-ran"):
    """One node executed its part of an attempt."""

    job: str
    attempt: int
    node: str
    at: Instant


class JobRan(Message, frozen=True, tag="job-ran"):
    """Every member of the gang runs. `at` is the latest member's start."""

    job: str
    attempt: int
    at: Instant
    trace: str = ""


class JobStopping(Message, frozen=True, tag="job-stopping"):
    """An attempt is being ended; `order` numbers the commands that follow from it."""

    job: str
    attempt: int
    order: int
    why: Reason
    at: Instant
    detail: str = ""
    trace: str = ""


class MemberGone(Message, frozen=True, tag="member-gone"):
    """One node's part of an attempt is over.

    `free` says whether its GPUs are known to be free: not while a lost node has yet to confirm it.
    `copies`: the node has copies of the gang's state in its memory. `values` are as in JobEnded.
    """

    job: str
    attempt: int
    node: str
    outcome: Outcome
    free: bool = True
    steps: int = 0
    step_ns: int = 0
    detail: str = ""
    values: dict[str, float] = {}
    values_step: int = 0
    copies: bool = False


class GhostGone(Message, frozen=True, tag="ghost-gone"):
    """A node that was lost confirmed the end of an attempt given up meanwhile."""

    job: str
    attempt: int
    node: str


class JobRequeued(Message, frozen=True, tag="job-requeued"):
    """An attempt ended and the job waits for another. `counted`: it used up a retry."""

    job: str
    attempt: int
    why: Reason
    counted: bool
    at: Instant
    detail: str = ""
    trace: str = ""


class JobEnded(Message, frozen=True, tag="job-ended"):
    """The job's one end. Times are wall clock; `ran_at` 0 if the last attempt never ran.

    `steps` are the mini-batches of the slowest rank in the last attempt. `values` is what a trial
    of a search said last, as of `values_step`: its search needs the end of its curve.
    """

    job: str
    end: End
    why: Reason
    attempts: int
    at: Instant
    ran_at: Instant = Instant(0)
    steps: int = 0
    step_ns: int = 0
    detail: str = ""
    trace: str = ""
    values: dict[str, float] = {}
    values_step: int = 0


AllocatorFact = (
    EpochBegan
    | CellsSet
    | ClusterRefused
    | CellsReserved
    | ReservationDropped
    | JobDemoted
    | JobPromoted
    | CellsAlarm
    | GpuQuarantined
    | HeldUpFact
    | NodeAdded
    | NodeDrained
    | NodeLost
    | NodeBack
    | NodeClean
    | JobQueued
    | JobWaits
    | JobBound
    | MemberRan
    | JobRan
    | JobStopping
    | MemberGone
    | GhostGone
    | JobRequeued
    | JobEnded
    | CancelAsked
    | ChangeFact
    | MoveFact
    | ResizeFact
    | PackFact
    | TrialFact
    | BearingFact
    | AdviceFollowed
    | WindowFact
    | JobDeferred
    | JobEligible
    | GateFact
)

# --- agent (its journal) -------------------------------------------------------------------


class AgentStarted(Message, frozen=True, tag="agent-started"):
    """The agent joins, at its start or asked to; `incarnation` counts that, `event` numbers it."""

    incarnation: int
    event: int


class BindTaken(Message, frozen=True, tag="bind-taken"):
    """A BindJob above its job's floor was accepted: its processes will be started once."""

    command: BindJob


class StopTaken(Message, frozen=True, tag="stop-taken"):
    """A StopJob above its job's floor was accepted."""

    job: str
    attempt: int
    order: int
    epoch: int
    grace_ms: int
    joins: int = 0


class RankUp(Message, frozen=True, tag="rank-up"):
    """A rank's process was executed."""

    token: str
    pid: int
    start_ticks: int


class RankDown(Message, frozen=True, tag="rank-down"):
    """A rank's process tree is gone, or (`started` false) never came to be.

    `stopped`: it had been asked to end, so its status says nothing about the job.
    """

    token: str
    code: int | None
    started: bool = True
    detail: str = ""
    stopped: bool = False
    left: tuple[str, ...] = ()


class PartStarted(Message, frozen=True, tag="part-started"):
    """Every rank of the attempt was executed; told to the cluster as event number `event`."""

    job: str
    attempt: int
    event: int
    at: Instant


class PartStepped(Message, frozen=True, tag="part-stepped"):
    """The attempt's first mini-batch was seen; told as event number `event`."""

    job: str
    attempt: int
    event: int
    at: Instant


class PartOver(Message, frozen=True, tag="part-over"):
    """This node's part of an attempt is over; told as event number `event`."""

    event: int
    exited: MemberExited


class FloorRaised(Message, frozen=True, tag="floor-raised"):
    """Orders up to `order` are settled for this node, and these attempts are forgotten.

    `event`, `epoch` and `serial` keep the event counter, the epoch floor and the number of the
    latest try, which the forgotten attempts may have been the last to carry.
    """

    order: int
    event: int
    epoch: int
    forgotten: tuple[tuple[str, int], ...] = ()
    serial: int = 0


class ClearDone(Message, frozen=True, tag="clear-done"):
    """Nothing of the orders up to `order` runs here any more; told as event number `event`."""

    order: int
    event: int


AgentFact = (
    EpochBegan
    | AgentStarted
    | BindTaken
    | StopTaken
    | RankUp
    | RankDown
    | PartStarted
    | PartStepped
    | PartOver
    | FloorRaised
    | ClearDone
    | PartKnown
    | PartReady
    | PartLoaded
    | ChangeTaken
    | ChangeTried
    | RankJoins
    | PartChanged
)
