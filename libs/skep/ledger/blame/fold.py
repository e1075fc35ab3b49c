"""The fold of the allocator's facts into where each job's time went.

    queued: waits ... --JobDeferred--> deferred --JobEligible--> waits ...
    queued: waits ... --CellsReserved--> waits-for-room --JobBound--> starting --JobRan--> running
    running --JobChanged(suspend)--> suspended | preempted --JobChanged(resume)--> running
    any --JobStopping--> stopping --JobRequeued--> waits ... | --JobEnded--> told

It may begin anywhere in a log, and a fact that does not fit changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from skep.ledger.blame.causes import WAITING, Cause
from skep.ledger.blame.lives import Life, Ranks, node_party, reason_party
from skep.ledger.blame.state import Blame
from skep.ledger.blame.told import Told, Total, divided, tell, tell_pieces
from skep.ledger.blame.usage import Usage, count
from skep.units import Instant
from skep.wire.changes import (
    AskOver,
    AskResume,
    AskSuspend,
    AskTaken,
    Goal,
    GpusRegained,
    JobChanged,
    JobChanging,
    Result,
)
from skep.wire.commands import Resize, Resume
from skep.wire.facts import (
    CellsReserved,
    CellsSet,
    End,
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
    Member,
    MemberGone,
    MemberRan,
    NodeBack,
    NodeLost,
    ReservationDropped,
)
from skep.wire.moves import JobMoved, SuccessorBound, SuccessorDropped
from skep.wire.node import Outcome
from skep.wire.reasons import Reason
from skep.wire.resizes import GangNarrowed, GangWidened
from skep.wire.trials import Kind, TrialBegun, TrialOver

FOR_OTHERS: Final = frozenset((Reason.PREEMPTED, Reason.PREEMPTED_BY_POLICY))
"""Why an attempt is stopped or suspended so that other jobs have its GPUs."""
BY_A_NODE: Final = frozenset((JobRan, MemberRan))
"""Facts whose instant is of a node's clock."""
BY_NODES: Final = frozenset((Reason.NODE_LOST, Reason.NODE_STOPPED, Reason.NODE_FAULT))
"""Why an attempt is over that a node is to blame for."""
QUEUED: Final = frozenset(
    (
        Cause.WAITS_BEHIND,
        Cause.WAITS_FOR_NODES,
        Cause.WAITS_FOR_AFFINITY,
        Cause.FITS_NO_CELL,
        Cause.HELD_BY_POLICY,
        Cause.PREEMPTED,
    )
)
"""Causes of a job that waits and has no reservation."""
HARD: Final = frozenset((Cause.WAITS_FOR_NODES, Cause.WAITS_FOR_AFFINITY, Cause.FITS_NO_CELL))
"""What keeps a job waiting also when no other job has taken its GPUs."""
USER_LABEL: Final = "user"
"""The label that names the person of a job without an owner."""
PROJECT_LABEL: Final = "project"
MILLI_PER_SECOND: Final = 1_000_000_000_000
"""Thousandths of a mini-batch a second, for one that takes a nanosecond."""


def apply(blame: Blame, fact: object, at: Instant) -> Told | None:
    """Take over one fact.

    Args:
        blame: Changed.
        fact: A fact of the allocator. Others change nothing.
        at: When its record was stored; 0: that is not known, and the fact's own instant counts.

    Returns:
        Where the time of a job went, if the fact ended it; it is forgotten from then on.
    """
    told = getattr(fact, "at", 0)
    # A node's clock may be ahead: nothing happens after it was recorded.
    now = min(told, at) if told and at else told or at or blame.clock
    if type(fact) not in BY_A_NODE:
        blame.clock = now
    handler = HANDLERS.get(type(fact))
    return handler(blame, fact, now) if handler is not None else None


def told_of(blame: Blame, job: str, now: Instant) -> Told | None:
    """Return where the time of a job has gone so far.

    Args:
        blame: Not changed.
        job: One that has not ended; else None is returned.
        now: The instant; one before the latest fact counts as that.
    """
    life = blame.lives.get(job)
    if life is None:
        return None
    return tell(life, blame.pending(life, max(now, blame.clock)))


def count_unended(blame: Blame, usage: Usage, job: str, now: Instant) -> None:
    """Add to a usage what a job that has not ended had so far; one that ended adds nothing.

    Args:
        blame: Not changed.
        usage: Changed.
        job: The job.
        now: The instant; one before the latest fact counts as that.
    """
    life = blame.lives.get(job)
    if life is not None:
        pending = blame.pending(life, max(now, blame.clock))
        count(usage, life, *divided(life, pending))


# --- waiting --------------------------------------------------------------------------------------


def _job_queued(blame: Blame, fact: JobQueued, now: int) -> None:
    spec = fact.spec
    life = Life(
        job=fact.job,
        name=spec.name,
        vc=spec.vc,
        opportunistic=spec.opportunistic,
        gpu_type=spec.resources.gpu_type or "",
        wanted=spec.gpus,
        workers=spec.resources.workers,
        begin=fact.submitted_at,
        at=fact.submitted_at,
        user=fact.owner or spec.labels.get(USER_LABEL, ""),
        project=spec.labels.get(PROJECT_LABEL, ""),
        share=spec.resources.share,
    )
    blame.lives[fact.job] = life
    blame.turn(life, now, Cause.WAITS_BEHIND)


def _job_waits(blame: Blame, fact: JobWaits, now: int) -> None:
    life = blame.lives.get(fact.job)
    if life is None or life.cause not in QUEUED:
        return
    cause = WAITING.get(fact.why, Cause.WAITS_BEHIND)
    if cause is life.cause or (life.cause is Cause.PREEMPTED and cause not in HARD):
        return
    blame.turn(life, now, cause)


def _job_deferred(blame: Blame, fact: JobDeferred, now: int) -> None:
    life = blame.lives.get(fact.job)
    if life is not None and life.cause is not Cause.DEFERRED:
        blame.turn(life, now, Cause.DEFERRED)


def _job_eligible(blame: Blame, fact: JobEligible, now: int) -> None:
    life = blame.lives.get(fact.job)
    if life is not None:
        blame.turn(life, now, Cause.WAITS_BEHIND)


def _cells_reserved(blame: Blame, fact: CellsReserved, now: int) -> None:
    life = blame.lives.get(fact.job)
    if life is None:
        return
    blame.let_go(life, now)
    others = (name for name in fact.victims if name != fact.job)  # Else its own earlier attempt.
    victims = [blame.lives[name] for name in others if name in blame.lives]
    blame.turn(life, now, Cause.WAITS_FOR_ROOM, {each.party: each.gpus or 1 for each in victims})
    life.took = tuple(each.job for each in victims)
    for victim in victims:
        victim.takers[life.party] = life.wanted


def _reservation_dropped(blame: Blame, fact: ReservationDropped, now: int) -> None:
    life = blame.lives.get(fact.job)
    if life is not None and life.cause is Cause.WAITS_FOR_ROOM:
        blame.let_go(life, now)
        blame.turn(life, now, Cause.WAITS_BEHIND)


# --- attempts -------------------------------------------------------------------------------------


def _job_bound(blame: Blame, fact: JobBound, now: int) -> None:
    life = blame.lives.get(fact.job)
    if life is None:
        return
    blame.turn(life, now, Cause.STARTING)
    life.bound_at = life.bound_at or max(now, life.begin)
    life.attempt, life.chain, life.takers = fact.attempt, fact.chain, {}
    life.stands, life.kept_parts, life.step_ns, life.asked_back = False, {}, 0, 0
    life.size = sum(len(member.devices) for member in fact.members)
    life.owns = _owns(fact.members)
    blame.place(life, now, _parts(fact.members))
    if life.beside and not life.owns and not life.opportunistic:
        # A guest has no cells of its own: it is in those of its host.
        hosts = (blame.lives[each.rpartition(" ")[2]] for each in life.beside)
        life.owns = any(host.owns and host.vc == life.vc for host in hosts)
        blame.tell_holders(life, now)


def _job_ran(blame: Blame, fact: JobRan, now: int) -> None:
    life = blame.lives.get(fact.job)
    if life is not None and life.cause is Cause.STARTING:
        blame.turn(life, max(now, life.at), Cause.RUNNING)
        blame.train(life)


def _member_gone(blame: Blame, fact: MemberGone, now: int) -> None:
    life = blame.lives.get(fact.job)
    if life is not None and life.attempt == fact.attempt:
        life.step_ns = max(life.step_ns, fact.step_ns)
        if fact.outcome is Outcome.NODE_FAULT:
            life.faulty = life.faulty or fact.node


def _job_stopping(blame: Blame, fact: JobStopping, now: int) -> None:
    life = blame.lives.get(fact.job)
    if life is not None:
        blame.turn(life, now, Cause.STOPPING, life.takers if fact.why in FOR_OTHERS else None)


def _job_requeued(blame: Blame, fact: JobRequeued, now: int) -> None:
    life = blame.lives.get(fact.job)
    if life is None:
        return
    _attempt_over(blame, life, now)
    life.lose(_losers(blame, life, fact.why))
    blame.let_go(life, now)
    _leave(blame, life, now)
    if fact.why in FOR_OTHERS:
        blame.turn(life, now, Cause.PREEMPTED, life.takers)
    else:
        blame.turn(life, now, Cause.WAITS_BEHIND)


def _job_ended(blame: Blame, fact: JobEnded, now: int) -> Told | None:
    life = blame.lives.get(fact.job)
    if life is None:
        return None
    _attempt_over(blame, life, now)
    if fact.end is End.FAILED:
        life.lose(_losers(blame, life, fact.why))
    else:
        life.save()
    blame.turn(life, now, Cause.UNDECIDED)
    blame.let_go(life, now)
    _leave(blame, life, now)
    del blame.lives[fact.job]
    pieces = divided(life, ())
    told = tell_pieces(life, pieces, fact.end)
    count(blame.usage, life, *pieces, fact.end)
    blame.totals.setdefault(life.vc, Total()).add(told)
    return told


def _attempt_over(blame: Blame, life: Life, now: int) -> None:
    """End the stretch of an attempt that is over, and note what its parts told of its rate."""
    blame.cut(life, now)
    if life.step_ns:
        life.measured(MILLI_PER_SECOND // life.step_ns)


def _leave(blame: Blame, life: Life, now: int) -> None:
    """Have a job hold nothing."""
    blame.place(life, now, {}, {})
    life.stands, life.kept_parts, life.condition, life.step_ns = False, {}, -1, 0
    life.asked_back = life.world = 0
    life.goes_on, life.faulty = False, ""


def _losers(blame: Blame, life: Life, why: Reason) -> list[str]:
    """Return whose doing it is that an attempt's work is lost."""
    if why in FOR_OTHERS and life.takers:
        return list(life.takers)
    nodes = [node for node in (*life.parts, *life.kept_parts) if node in blame.lost]
    if why is Reason.NODE_FAULT and life.faulty:
        nodes = [life.faulty]
    if why in BY_NODES and not nodes and len(life.parts) == 1:
        nodes = list(life.parts)
    if why in BY_NODES and nodes:
        return [node_party(node) for node in dict.fromkeys(nodes)]
    return [reason_party(why)]


# --- changes --------------------------------------------------------------------------------------


def _ask_taken(blame: Blame, fact: AskTaken, now: int) -> None:
    life = blame.lives.get(fact.job)
    if life is not None and life.stands and isinstance(fact.ask, AskResume):
        life.asked_back = fact.number
        if life.cause is Cause.SUSPENDED and not life.gpus:
            blame.turn(life, now, Cause.WAITS_BEHIND)


def _ask_over(blame: Blame, fact: AskOver, now: int) -> None:
    life = blame.lives.get(fact.job)
    if life is None or not life.stands:
        return
    if isinstance(fact.ask, AskSuspend) and fact.result is Result.DONE:
        life.stands_for, life.asked_back = Cause.SUSPENDED, 0
    elif fact.number != life.asked_back or fact.result is Result.DONE:
        return
    life.asked_back = 0
    if life.cause in QUEUED or life.cause is Cause.SUSPENDED:
        _stand(blame, life, now)


def _job_changing(blame: Blame, fact: JobChanging, now: int) -> None:
    life = blame.lives.get(fact.job)
    if life is None:
        return
    life.goes_on = isinstance(fact.change, Resume)
    life.world = fact.change.world if isinstance(fact.change, Resize) else 0
    if life.stands and life.goes_on and life.cause is not Cause.STOPPING:
        blame.turn(life, now, Cause.CHANGING)


def _job_changed(blame: Blame, fact: JobChanged, now: int) -> None:
    life = blame.lives.get(fact.job)
    if life is None or life.cause is Cause.STOPPING:
        return
    if life.trains and fact.pause_ns > 0:
        blame.cut(life, now)
        life.stood(fact.pause_ns)
    if fact.result is Result.DONE:
        _change_done(blame, life, fact, now)
    else:
        if fact.released:
            _give_back(blame, life, now)
        if life.stands and life.cause is Cause.CHANGING:
            _stand(blame, life, now)
    life.goes_on, life.world = False, 0


def _change_done(blame: Blame, life: Life, fact: JobChanged, now: int) -> None:
    """Take over that a change of an attempt is done."""
    if fact.goal is Goal.SUSPEND:
        if not life.stands:
            life.stands_for = Cause.PREEMPTED if fact.why in FOR_OTHERS else Cause.SUSPENDED
        life.stands = True
        if fact.released:
            _give_back(blame, life, now)
        _stand(blame, life, now)
    elif life.stands and life.goes_on:
        blame.turn(life, now, Cause.RUNNING)
        life.stands, life.takers, life.asked_back, life.kept_parts = False, {}, 0, {}
        blame.train(life)
    elif fact.goal is Goal.MIGRATE and fact.released:
        _give_back(blame, life, now)
    elif fact.goal is Goal.CHECKPOINT:
        blame.cut(life, now)
        life.save()
    elif life.world:
        blame.cut(life, now)
        life.size = life.world
        if life.trains:
            blame.train(life)


def _stand(blame: Blame, life: Life, now: int) -> None:
    """Have a suspended job stand: for its tenant, or for others."""
    if life.stands_for is not Cause.SUSPENDED:
        blame.turn(life, now, Cause.PREEMPTED, life.takers)
    elif life.asked_back and not life.gpus:
        blame.turn(life, now, Cause.WAITS_BEHIND)
    else:
        blame.turn(life, now, Cause.SUSPENDED)


def _give_back(blame: Blame, life: Life, now: int) -> None:
    """Have a suspended job hold nothing, and know what it held."""
    blame.let_go(life, now)
    if life.parts:
        life.kept_parts = life.parts
        blame.place(life, now, {})


def _gpus_regained(blame: Blame, fact: GpusRegained, now: int) -> None:
    life = blame.lives.get(fact.job)
    if life is None or life.attempt != fact.attempt:
        return
    blame.turn(life, now, Cause.CHANGING)
    life.chain, life.owns = fact.chain, False
    blame.place(life, now, {**(life.parts or life.kept_parts), **_parts(fact.members)})


# --- moves and sizes ------------------------------------------------------------------------------


def _successor_bound(blame: Blame, fact: SuccessorBound, now: int) -> None:
    life = blame.lives.get(fact.job)
    if life is None:
        return
    life.next_owns, life.next_chain = _owns(fact.members), fact.chain
    if life.cause in QUEUED:
        blame.turn(life, now, Cause.CHANGING)
    blame.place(life, now, next_parts=_parts(fact.members))


def _successor_dropped(blame: Blame, fact: SuccessorDropped, now: int) -> None:
    life = blame.lives.get(fact.job)
    if life is None:
        return
    blame.place(life, now, next_parts={})
    if life.stands and life.cause is Cause.CHANGING:
        _stand(blame, life, now)


def _job_moved(blame: Blame, fact: JobMoved, now: int) -> None:
    life = blame.lives.get(fact.job)
    if life is None or not life.next_parts:
        return
    blame.cut(life, now)
    life.attempt, life.owns, life.chain = fact.attempt, life.next_owns, life.next_chain
    life.kept_parts, life.step_ns = {}, 0
    blame.place(life, now, life.next_parts, {})
    if life.trains:
        blame.train(life)


def _gang_widened(blame: Blame, fact: GangWidened, now: int) -> None:
    life = blame.lives.get(fact.job)
    if life is not None and life.attempt == fact.attempt:
        node = fact.member.node
        more = life.parts.get(node, ()) + fact.member.devices
        blame.place(life, now, {**life.parts, node: more})


def _gang_narrowed(blame: Blame, fact: GangNarrowed, now: int) -> None:
    life = blame.lives.get(fact.job)
    if life is None or life.attempt != fact.attempt or fact.node not in life.parts:
        return
    parts = {**life.parts, fact.node: life.parts[fact.node][: fact.workers]}
    blame.place(life, now, {node: ranks for node, ranks in parts.items() if ranks})
    if life.trains:
        blame.cut(life, now)
        blame.train(life)


# --- rights, nodes and rates ----------------------------------------------------------------------


def _owner_changed(blame: Blame, fact: JobDemoted | JobPromoted, now: int) -> None:
    life = blame.lives.get(fact.job)
    if life is not None and life.attempt == fact.attempt:
        life.owns = isinstance(fact, JobPromoted)
        blame.tell_holders(life, now)


def _cells_set(blame: Blame, fact: CellsSet, now: int) -> None:
    before = blame.kinds  # Jobs may go on where a chain was.
    blame.kinds = before | {name: chain.gpu for name, chain in fact.cluster.chains.items()}
    for carried in fact.carried:
        life = blame.lives.get(carried.job)
        if life is not None and life.attempt == carried.attempt:
            life.chain = carried.chain or life.chain
            blame.tell_holders(life, now)
    for fate in fact.fates:
        life = blame.lives.get(fate.job)
        if life is None:
            continue
        if fate.fate == "released" and life.cause is Cause.WAITS_FOR_ROOM:
            blame.let_go(life, now)
            blame.turn(life, now, Cause.WAITS_BEHIND)
        elif fate.fate == "demoted":
            life.owns = False
            blame.tell_holders(life, now)
    for life in blame.lives.values():
        if life.gpus and blame.kinds != before:
            blame.tell_holders(life, now)
        if life.cause is Cause.FITS_NO_CELL:
            blame.turn(life, now, Cause.WAITS_BEHIND)  # It is tried again.


def _node_lost(blame: Blame, fact: NodeLost, now: int) -> None:
    blame.lost[fact.node] = None


def _node_back(blame: Blame, fact: NodeBack, now: int) -> None:
    blame.lost.pop(fact.node, None)


def _gpu_quarantined(blame: Blame, fact: GpuQuarantined, now: int) -> None:
    for name in blame.users.get(f"{fact.node}/{fact.device}", ()) if fact.quarantine else ():
        life = blame.lives[name]
        if life.trains and life.condition >= 0:
            life.conditions[life.condition].bad = fact.node


def _trial_begun(blame: Blame, fact: TrialBegun, now: int) -> None:
    for before in fact.jobs:
        life = blame.lives.get(before.job)
        if life is None:
            continue
        if before.solo_milli and fact.kind is Kind.PACK:
            life.solo[life.size or life.workers] = before.solo_milli
        if life.trains:
            life.measured(before.rate_milli)


def _trial_over(blame: Blame, fact: TrialOver, now: int) -> None:
    for after in fact.after:
        life = blame.lives.get(after.job)
        if life is not None and life.trains:
            life.measured(after.rate_milli)


def _owns(members: tuple[Member, ...]) -> bool:
    return any(any(member.levels) for member in members)


def _parts(members: tuple[Member, ...]) -> dict[str, Ranks]:
    return {member.node: member.devices for member in members}


Handler = Callable[[Blame, Any, int], Told | None]

HANDLERS: Final[dict[type, Handler]] = {
    AskOver: _ask_over,
    AskTaken: _ask_taken,
    CellsReserved: _cells_reserved,
    CellsSet: _cells_set,
    GangNarrowed: _gang_narrowed,
    GangWidened: _gang_widened,
    GpuQuarantined: _gpu_quarantined,
    GpusRegained: _gpus_regained,
    JobBound: _job_bound,
    JobChanged: _job_changed,
    JobChanging: _job_changing,
    JobDeferred: _job_deferred,
    JobDemoted: _owner_changed,
    JobEligible: _job_eligible,
    JobEnded: _job_ended,
    JobMoved: _job_moved,
    JobPromoted: _owner_changed,
    JobQueued: _job_queued,
    JobRan: _job_ran,
    JobRequeued: _job_requeued,
    JobStopping: _job_stopping,
    JobWaits: _job_waits,
    MemberGone: _member_gone,
    NodeBack: _node_back,
    NodeLost: _node_lost,
    ReservationDropped: _reservation_dropped,
    SuccessorBound: _successor_bound,
    SuccessorDropped: _successor_dropped,
    TrialBegun: _trial_begun,
    TrialOver: _trial_over,
}
"""By type of fact: what takes it over."""
