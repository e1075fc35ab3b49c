"""The fold of the allocator's log: one function that takes over one fact, and chooses nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from skep.cells.nodes import Attempt, NodeState
from skep.ids import attempt_id, job_of, job_sequence
from skep.ledger import (
    array_facts,
    attempts,
    cell_facts,
    change_facts,
    deferral_facts,
    gpu_health,
    held_up,
    move_costs,
    move_facts,
    people,
    pipelines,
    sharing,
    size_facts,
    trial_facts,
    window_facts,
)
from skep.ledger.delta import Delta
from skep.ledger.job_state import GIVES_WAY, JobState, Part, State
from skep.ledger.snapshot import Kept, restore
from skep.ledger.state import ClusterState, apply_alarm
from skep.units import Instant
from skep.wire.array_gate import ArrayBroken, ArrayDeferred, ArrayEligible, ArrayEnded, ArraySeen
from skep.wire.bearing import BadCellBound, BadCellReturned, RulesRaised, SetLed
from skep.wire.changes import (
    AskOver,
    AskTaken,
    GpusRegained,
    JobChanged,
    JobChanging,
    JobPrioritised,
    MemberAnswered,
    MemberLearned,
)
from skep.wire.cluster import FIFO
from skep.wire.facts import (
    AllocatorFact,
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
    ReservationDropped,
)
from skep.wire.following import LEARNED, AdviceFollowed
from skep.wire.held_up import GangHeldUp, PlaceBlamed
from skep.wire.moves import (
    JobMoved,
    SuccessorBound,
    SuccessorDropped,
    SuccessorLoaded,
    SuccessorReady,
)
from skep.wire.packs import GpusShared
from skep.wire.reasons import Reason
from skep.wire.resizes import GangNarrowed, GangWidened
from skep.wire.trials import TrialBegun, TrialOver
from skep.wire.windows import WindowBegan, WindowBooked, WindowEnded, WindowRefused

ENDED_KEPT = 500
"""Ended jobs of a VC whose service is kept: a distribution of them, for 4 kB of a snapshot."""


def apply(state: ClusterState, fact: AllocatorFact | Kept) -> Delta:
    """Take over one fact, or one piece of a snapshot.

    Args:
        state: Changed.
        fact: The next record of the log, or the next piece of a snapshot.

    Returns:
        What changed.

    Raises:
        AssertionError: The fact contradicts the state: it is of another log, or there is a bug.
        LookupError: Likewise.
    """
    state.cells.begin_change()
    handler = HANDLERS.get(type(fact))
    if handler is None:
        restore(state, cast("Kept", fact))
        return state.end_change()  # It is no fact, and means nothing for trials.
    handler(state, fact)
    if state.people.of_vc:
        people.follow(state, fact)
    if state.probes.open or trial_facts.concerns(state.tries, fact):
        trial_facts.follow(state, fact)
    return state.end_change()


# --- jobs ----------------------------------------------------------------------------------------


def _job_queued(state: ClusterState, fact: JobQueued) -> None:
    sequence = job_sequence(fact.job) or 0
    state.last_queued = sequence
    job = JobState(
        job=fact.job,
        sequence=sequence,
        spec=fact.spec,
        trace=fact.trace,
        submitted_at=fact.submitted_at,
        waiting_since=fact.submitted_at,
        since=fact.submitted_at,
        owner=fact.owner,
    )
    state.jobs[fact.job] = job
    state.note_sharer(job, placed=False)
    pipelines.take(state, job)
    move_costs.came(state, job)
    state.queue(job).add(job.entry)


def _job_waits(state: ClusterState, fact: JobWaits) -> None:
    job = state.jobs[fact.job]
    job.waits = fact.why, fact.needs
    if fact.aside and job.job not in state.parked:
        state.queue(job).remove(job.entry)
        state.parked[job.job] = job


def _job_bound(state: ClusterState, fact: JobBound) -> None:
    job, name = state.jobs[fact.job], attempt_id(fact.job, fact.attempt)
    packed = sharing.decided(job, fact.attempt)
    if state.reserved.pop(fact.job, None) is not None:
        state.cells.occupy(name)
    elif state.parked.pop(fact.job, None) is None:
        state.queue(job).remove(job.entry)
    if name not in state.cells.holds and packed is None:
        state.cells.enter(attempts.hold(state, job, fact, claims=False))
    job.move("JobBound")
    job.attempt, job.order, job.port = fact.attempt, fact.order, fact.master_port
    job.chain, job.secret = fact.chain, fact.secret
    job.lent = not job.spec.opportunistic and packed is None
    job.bound_at, job.ran_at = fact.at, Instant(0)
    job.members = {member.node: member for member in fact.members}
    job.parts = dict.fromkeys(job.members, Part.BOUND)
    job.gone, job.waits, job.stopped_why = [], None, None
    job.stopped_detail = ""
    change_facts.forget(state, job)
    ranks = attempts.ranks_of(fact.members)
    if ranks != job.spec.resources.workers:
        job.resized = ranks  # Its policy has it begin with another number of workers.
    state.order = fact.order
    attempts.take(state, job, fact)
    state.placed[job.job] = job
    state.note_sharer(job, placed=True)
    if packed is not None:
        job.packed = packed
        sharing.enter(state, job, fact.attempt, fact.chain, fact.members)
    elif job.spec.resources.share:
        sharing.told(job, sharing.due(state, job))
    state.note_borrowed(job)


def _member_ran(state: ClusterState, fact: MemberRan) -> None:
    job = state.jobs[fact.job]
    job.parts[fact.node] = Part.RAN
    change_facts.ran(state, job, fact.node)


def _job_ran(state: ClusterState, fact: JobRan) -> None:
    state.jobs[fact.job].ran(fact.at, borrows=fact.job in state.borrowed)


def _cancel_asked(state: ClusterState, fact: CancelAsked) -> None:
    state.jobs[fact.job].cancelled = True


def _job_stopping(state: ClusterState, fact: JobStopping) -> None:
    job = state.jobs[fact.job]
    job.stands(fact.at, borrows=job.job in state.borrowed)
    job.move("JobStopping")
    state.note_away(job, away=False)
    job.order, job.stopped_why, job.stopped_detail = fact.order, fact.why, fact.detail
    state.order = fact.order
    for name, part in job.parts.items():
        if part is not Part.GONE:
            state.nodes[name].open_orders[fact.job, fact.attempt] = fact.order
    # The next job may plan with its VC's cells, on these GPUs or on others.
    sharing.give_back(state, attempt_id(fact.job, fact.attempt))


def _member_gone(state: ClusterState, fact: MemberGone) -> None:
    job = state.jobs[fact.job]
    job.parts[fact.node] = Part.GONE
    job.gone.append(fact)
    node, attempt = state.nodes[fact.node], (fact.job, fact.attempt)
    if fact.free:
        node.open_orders.pop(attempt, None)
        _release(state, node, attempt)
    else:
        # What a lost node still runs must not keep its VC from healthy hardware.
        node.ghosts[attempt] = job.order
        sharing.give_back(state, attempt_id(*attempt))


def _ghost_gone(state: ClusterState, fact: GhostGone) -> None:
    attempt, node = (fact.job, fact.attempt), state.nodes[fact.node]
    del node.ghosts[attempt]
    node.open_orders.pop(attempt, None)
    _release(state, node, attempt)


def _release(state: ClusterState, node: NodeState, attempt: Attempt) -> None:
    """Free what an attempt held on a node, or leave it to the attempts that share it."""
    name = attempt_id(*attempt)
    state.delta.claims += tuple(map(job_of, state.cells.claimers(name)))
    others = sharing.partners(state, (node.joined.node,), attempt)
    node.release(attempt)
    state.cells.release(name, node.joined.node)
    sharing.parted(state, others)
    state.delta.freed += 1


def _job_requeued(state: ClusterState, fact: JobRequeued) -> None:
    job = state.jobs[fact.job]
    gpu_health.over(state, job, fact)
    held_up.over(state, job.job)
    borrowed = state.forget_borrowed(job)
    job.stands(fact.at, borrows=borrowed)
    if not borrowed:
        job.waiting_since = fact.at
    job.move("JobRequeued")
    job.retries_used += fact.counted
    job.losses += not fact.counted and fact.why not in GIVES_WAY
    job.copies = tuple(gone.node for gone in job.gone if gone.copies) or job.copies
    job.members, job.parts, job.gone = {}, {}, []
    job.apart = job.spec.resources.share > 0 and job.stopped_why is Reason.UNPACKED
    job.stopped_why, job.waits = None, None
    change_facts.forget(state, job)
    del state.placed[job.job]
    state.note_sharer(job, placed=False)
    state.queue(job).add(job.entry)


def _job_ended(state: ClusterState, fact: JobEnded) -> None:
    job = state.jobs.pop(fact.job)
    for those in (state.sharers, state.unshared):
        those.pop(fact.job, None)
    gpu_health.over(state, job, fact)
    held_up.over(state, job.job)
    job.stands(fact.at, borrows=False)
    _note_service(state, job)
    if job.state is State.QUEUED:
        if state.parked.pop(fact.job, None) is None:
            state.queue(job).remove(job.entry)
    elif job.state is State.DEFERRED:
        deferral_facts.forget(state, job.job, job)
    else:
        del state.placed[job.job]
        state.forget_borrowed(job)
        state.note_away(job, away=False)
    state.delta.ended = job.job
    pipelines.over(state, job)
    deferral_facts.over(state, job.job, job.spec.vc, fact.end)
    trial_facts.ended(state, job)


def _note_service(state: ClusterState, job: JobState) -> None:
    """Keep what service a job had had, where a policy may learn from it."""
    vc = state.cells.cluster.vcs.get(job.spec.vc)
    if vc is not None and vc.policy != FIFO and not job.spec.opportunistic:
        kept = state.served.setdefault(job.spec.vc, [])
        kept.append(job.served * job.size * job.spec.resources.gpus)
        del kept[:-ENDED_KEPT]


def _gpus_shared(state: ClusterState, fact: GpusShared) -> None:
    state.jobs[fact.job].packed = fact  # What follows in its record does it.


# --- nodes and cells -----------------------------------------------------------------------------


def _epoch_began(state: ClusterState, fact: EpochBegan) -> None:
    if state.rules < fact.rules:
        trial_facts.raise_rules(state.tries)
    cell_facts.began(state, fact)


def _cells_set(state: ClusterState, fact: CellsSet) -> None:
    state.asked = fact.asked
    for parked in state.parked.values():
        parked.waits = None
        state.queue(parked).add(parked.entry)
    state.parked.clear()
    state.cells, changes = cell_facts.install(state, fact)
    for name, node, device in cell_facts.uncovered(state):
        state.cells.note_off_chain(name, node, device)
    for change in changes:
        job = state.jobs.get(job_of(change.job))
        if job is not None and change.fate == "released":
            job.move("ReservationDropped")
            del state.reserved[job.job]
            state.queue(job).add(job.entry)
        elif job is not None:
            state.note_borrowed(job)
    learned = {vc for vc, each in fact.cluster.vcs.items() if each.policy == LEARNED}
    state.followed = {vc: said for vc, said in state.followed.items() if vc in learned}
    people.install(state)
    _changed(state, *cell_facts.node_names(fact.cluster))


def _node_added(state: ClusterState, fact: NodeAdded) -> None:
    name = fact.joined.node
    if name in state.nodes:
        state.nodes[name].refresh(fact.joined)
    else:
        state.nodes[name] = NodeState(fact.joined)
    if fact.clear:
        state.nodes[name].clearing = fact.clear
    _changed(state, name)


def _node_drained(state: ClusterState, fact: NodeDrained) -> None:
    state.nodes[fact.node].drained = fact.drain
    _changed(state, fact.node)


def _node_lost(state: ClusterState, fact: NodeLost) -> None:
    state.nodes[fact.node].lost = True
    _changed(state, fact.node)


def _node_back(state: ClusterState, fact: NodeBack) -> None:
    state.nodes[fact.node].lost = False
    _changed(state, fact.node)


def _node_clean(state: ClusterState, fact: NodeClean) -> None:
    state.nodes[fact.node].clearing = 0
    _changed(state, fact.node)


def _gpu_quarantined(state: ClusterState, fact: GpuQuarantined) -> None:
    node = state.nodes[fact.node]
    if fact.quarantine:
        node.quarantined[fact.device] = None
    else:
        node.quarantined.pop(fact.device, None)
    gpu_health.quarantined(state, fact)
    held_up.taken_back(state, fact)
    _changed(state, fact.node)


def _changed(state: ClusterState, *nodes: str) -> None:
    """Take over these nodes' health, and that something may have come free."""
    state.delta.freed += 1
    state.delta.claims += tuple(state.reserved)
    cell_facts.health(state, nodes)


def _advice_followed(state: ClusterState, fact: AdviceFollowed) -> None:
    state.followed[fact.vc] = fact


def _nothing(_state: ClusterState, _fact: ClusterRefused | WindowRefused) -> None:
    """Take over a fact that is for readers of the log only."""


Handler = Callable[[ClusterState, Any], None]

HANDLERS: dict[type[Any], Handler] = {
    AdviceFollowed: _advice_followed,
    ArrayBroken: array_facts.apply,
    ArrayDeferred: array_facts.apply,
    ArrayEligible: array_facts.apply,
    ArrayEnded: array_facts.apply,
    ArraySeen: array_facts.apply,
    AskOver: change_facts.apply,
    AskTaken: change_facts.apply,
    BadCellBound: cell_facts.apply_bearing,
    BadCellReturned: cell_facts.apply_bearing,
    CancelAsked: _cancel_asked,
    CellsAlarm: apply_alarm,
    CellsReserved: cell_facts.apply_hold,
    CellsSet: _cells_set,
    ClusterRefused: _nothing,
    EpochBegan: _epoch_began,
    GangHeldUp: held_up.apply,
    GangNarrowed: size_facts.apply,
    GangWidened: size_facts.apply,
    GhostGone: _ghost_gone,
    GpuQuarantined: _gpu_quarantined,
    GpusRegained: change_facts.apply,
    GpusShared: _gpus_shared,
    JobBound: _job_bound,
    JobChanged: change_facts.apply,
    JobChanging: change_facts.apply,
    JobDeferred: deferral_facts.apply,
    JobDemoted: cell_facts.apply_hold,
    JobEligible: deferral_facts.apply,
    JobEnded: _job_ended,
    JobMoved: move_facts.apply,
    JobPrioritised: change_facts.apply,
    JobPromoted: cell_facts.apply_hold,
    JobQueued: _job_queued,
    JobRan: _job_ran,
    JobRequeued: _job_requeued,
    JobStopping: _job_stopping,
    JobWaits: _job_waits,
    MemberAnswered: change_facts.apply,
    MemberGone: _member_gone,
    MemberLearned: change_facts.apply,
    MemberRan: _member_ran,
    NodeAdded: _node_added,
    NodeBack: _node_back,
    NodeClean: _node_clean,
    NodeDrained: _node_drained,
    NodeLost: _node_lost,
    PlaceBlamed: held_up.apply_blame,
    ReservationDropped: cell_facts.apply_hold,
    RulesRaised: cell_facts.apply_bearing,
    SetLed: cell_facts.apply_bearing,
    SuccessorBound: move_facts.apply,
    SuccessorDropped: move_facts.apply,
    SuccessorLoaded: move_facts.apply,
    SuccessorReady: move_facts.apply,
    TrialBegun: trial_facts.apply,
    TrialOver: trial_facts.apply,
    WindowBegan: window_facts.apply,
    WindowBooked: window_facts.apply,
    WindowEnded: window_facts.apply,
    WindowRefused: _nothing,
}
"""By type of fact: what takes it over. A test compares the keys with `wire.facts.AllocatorFact`."""
