"""Pure decisions about changes: what is refused, which phases a change has, how a part then stands.

What a part stands as afterwards is in its answer, so that replaying needs no decision.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from skep.ids import run_token
from skep.machines.agent.change_progress import (
    RESIZE_UNDO_TEXT,
    STAND_AFTER,
    Drive,
    Phase,
    common_step,
    devices_of,
    resized,
)
from skep.machines.agent.devices import packed
from skep.machines.agent.parts import PartState, Rank
from skep.units import Instant
from skep.wire.commands import (
    Change,
    Checkpoint,
    Move,
    RankPlan,
    Resize,
    Resume,
    Share,
    Suspend,
    Warn,
)
from skep.wire.node import Manner, MemberChanged, NodeJoined
from skep.wire.part_facts import PartChanged, Stand
from skep.wire.reports import RankProgress

NEEDS: tuple[tuple[type, str], ...] = (
    (Checkpoint, "checkpoint"),
    (Move, "migrate"),
    (Resize, "resize"),
)
"""What ranks must be able to do for a change; a part of any kind can be suspended and resumed."""

NO_LIMIT = "no limit of memory can be set on this job's processes, which run already"


def refusal_of(part: PartState, change: Change, can: tuple[str, ...]) -> str:
    """Return why a part cannot take a change as it stands, or an empty text.

    Args:
        part: The part as it stands.
        change: What is wanted of it.
        can: What every rank of it can do.
    """
    for kind, name in NEEDS:
        if isinstance(change, kind):
            if part.joins and isinstance(change, Resize):
                continue  # That is what its ranks are there for.
            if name not in can:
                return f"the job cannot {name}: its ranks said they can {', '.join(can) or 'not'}"
            stands = kind is Move and part.stand is Stand.SUSPENDED
            if part.stand is not Stand.RUNNING and not stands:
                return f"the part is {part.stand}: only a running one can {name}"
    match change:
        case Suspend() if part.stand is Stand.AWAITING and part.loaded is None:
            return "its state has not arrived yet"
        case Resume():
            return _resume_refusal(part, change, can)
        case Move():
            known = {target.rank for target in change.targets}
            missing = [r.plan.rank for r in part.alive().values() if r.plan.rank not in known]
            return f"no target for rank {missing[0]}" if missing else ""
        case Resize():
            stay = {plan.rank for plan in change.ranks}
            gang = [rank for rank in part.ranks.values() if not rank.out and rank.down is not None]
            ended = [rank.plan.rank for rank in gang if rank.plan.rank in stay]
            return f"rank {ended[0]} has ended" if ended else ""
        case _:
            return ""


def _resume_refusal(part: PartState, change: Resume, can: tuple[str, ...]) -> str:
    others = [hold for hold in part.holds if hold is not change.hold]
    if others:
        return f"still suspended by: {', '.join(others)}"
    if part.stand is Stand.AWAITING and part.loaded is None:
        return "its state has not arrived yet"
    moves = any(
        devices_of(part, change, token) != rank.plan.devices for token, rank in part.alive().items()
    )
    if moves and "rebind" not in can:
        return "the job cannot go on with other devices than it has"
    if moves and part.stand is Stand.FROZEN:
        return "the job was frozen where it was and still has its devices"
    return ""


def is_evictable(can: tuple[str, ...]) -> bool:
    """Return whether memory comes off the devices by the driver: the job knows no boundary.

    Args:
        can: What every rank of a part can do.
    """
    return "release" in can and "suspend" not in can


def back_again(can: tuple[str, ...]) -> list[Phase]:
    """Return the phases that have a part go on that may stand, and has been thawed.

    Args:
        can: What every rank of it can do.
    """
    if "suspend" in can:
        return [Phase.UNDO]
    return [Phase.RESTORE] if is_evictable(can) else []


def standing_answer(part: PartState, drive: Drive) -> bool:
    """Tell whether a part stands as it is wanted already, and fill in the answer.

    Args:
        part: The part as it stands.
        drive: The change; if it returns true, what the answer says is set in it.
    """
    change = drive.command.change
    if not isinstance(change, Suspend) or not part.stands_frozen or part.changed is None:
        return False
    can = () if part.known is None else part.known.known.can
    able = part.stand is Stand.SUSPENDED or is_evictable(can)
    if able and change.release and not part.released:
        return False
    last = part.changed.changed
    drive.manner = Manner.BOUNDARY if part.stand is Stand.SUSPENDED else Manner.FROZEN
    drive.done_step, drive.moved, drive.residue = last.step, last.moved, last.residue
    drive.released = part.released
    return True


def phases_of(part: PartState, drive: Drive, can: tuple[str, ...], *, again: bool) -> list[Phase]:
    """Return the phases of a change, having noted in `drive` what is clear from the beginning.

    Args:
        part: The part as it stands.
        drive: The change; its `manner` and `detail` are set where they are clear already.
        can: What every rank of the part can do.
        again: An earlier try may have done a part of this change, or of another one.

    Returns:
        The phases in their order; empty: there is nothing to do but to answer.
    """
    speaks = "suspend" in can
    before = [Phase.THAW, *([Phase.UNDO] if speaks else [])] if again else []
    match drive.command.change:
        case Suspend() as change:
            if not speaks or part.stand is Stand.FROZEN:
                drive.manner = Manner.FROZEN
                drive.detail = "" if speaks else "the job knows no boundary"
                evict = [Phase.EVICT] if change.release and is_evictable(can) else []
                # The driver's threads in it do the work.
                thaw = [Phase.THAW] if evict and (again or part.stands_frozen) else []
                return [*thaw, *evict, Phase.FREEZE]
            release = [Phase.RELEASE] if change.release and "release" in can else []
            if part.stand is Stand.SUSPENDED:
                last = part.changed
                drive.done_step = 0 if last is None else last.changed.step
                # Nothing that may have been tried since has let a rank go: it only has to know
                # that what it waits for is a resume, and not what becomes of a move.
                return [Phase.THAW, *([Phase.STAY] if again else []), *release, Phase.FREEZE]
            if part.stand in {Stand.SENT, Stand.AWAITING}:
                return [Phase.THAW, Phase.STAY, *release, Phase.FREEZE]
            if change.release and not release:
                drive.detail = "the job cannot give device memory back"
            return [*before, Phase.STOP, *release, Phase.FREEZE]
        case Resume():
            # The state comes back first: it may be more than a share that became smaller meanwhile.
            shares = [Phase.SHARE] if part.share_due and "share" in can else []
            if part.stand in {Stand.SENT, Stand.AWAITING}:
                return [*([Phase.THAW] if again else []), Phase.RESUME, *shares]
            back = [Phase.RESUME] if speaks else back_again(can)
            return [Phase.THAW, *back, *shares]
        case Share():
            return _share_phases(part, drive, can, before)
        case Warn():
            return [*(before if part.stand is Stand.RUNNING else []), Phase.SIGNAL]
        case Resize() as change:
            here = [rank.plan.rank for rank in part.alive().values() if not rank.out]
            starts = [Phase.START] if any(plan.rank not in here for plan in change.ranks) else []
            meets = [Phase.MEET] if drive.meets_here and not change.servers else []
            if change.prepare:
                # With nothing to get ready, it withdraws what was.
                return [*before, *meets, *starts, *([Phase.HOLD] if meets or starts else [])]
            return [*before, *meets, *starts, Phase.WORK]
        case Move() if part.stand is Stand.SUSPENDED:
            return [Phase.THAW, Phase.WORK]
        case Checkpoint() if drive.dumps:
            return [Phase.DUMP]  # It takes the processes wherever they are.
        case _:
            return [*before, Phase.WORK]


def meets_here(change: Change, joined: NodeJoined) -> bool:
    """Return whether the meeting place of a resized gang is this node's to open.

    Args:
        change: What is wanted of a part.
        joined: This node.
    """
    if not isinstance(change, Resize):
        return False
    if change.at:
        return change.at == joined.node
    return bool(change.master_address) and change.master_address == joined.address


def _share_phases(
    part: PartState, drive: Drive, can: tuple[str, ...], before: list[Phase]
) -> list[Phase]:
    """Return the phases of a change of partners; what an earlier try left behind comes first."""
    mute = part.known is not None and "share" not in can
    if mute:
        drive.manner, drive.detail = Manner.UNCHANGED, NO_LIMIT
    if part.stands_frozen:
        drive.detail = drive.detail or "its ranks are told when they go on"
        return [Phase.FREEZE] if before else []
    if part.stand is not Stand.RUNNING:  # Its ranks stand and hear: nothing is to be undone.
        before = []
    return before if mute else [*before, Phase.SHARE]


def clock(
    part: PartState,
    drive: Drive,
    progress: Mapping[int, RankProgress],
    now: Instant,
    processes: int,
) -> int:
    """Return the step to stop or change after: 0 for a process alone, which needs no common one.

    Args:
        part: The part as it stands.
        drive: The change, at the try that begins.
        progress: The latest report of each rank, by its number.
        now: The time of the decision.
        processes: How many processes of the part train together.

    Returns:
        The number of a mini-batch. It is 0 too where all ranks stand already, and where they agree
        on the step themselves.
    """
    wanted = getattr(drive.command.change, "step", 0)
    if part.stand is Stand.SUSPENDED:
        return 0  # All of them stand at one already.
    alive = [rank.plan.rank for rank in part.alive().values() if not rank.out]
    joining = isinstance(drive.command.change, Resize)
    if getattr(drive.command.change, "agree", False):
        return 0
    if not wanted and processes == 1 and not joining:
        return 0
    known = [progress[rank] for rank in alive if rank in progress]
    return common_step(known, drive.tries, now, wanted, drive.far)


def holds_none(part: PartState, drive: Drive) -> bool:
    """Return whether nothing of a part is on its devices, now that the change is over.

    Either the change has released them, or a resume left every rank as it was: none was told to go
    on, or all that were said that they stand.
    """
    if drive.manner is not Manner.UNCHANGED or not isinstance(drive.command.change, Resume):
        return drive.given_back
    if not part.released or part.stand is not Stand.SUSPENDED or drive.changed_ranks:
        return False
    untold = drive.phase is None and not drive.again
    return untold or all(token in drive.stay for token in part.alive())


def settle(part: PartState, drive: Drive, changed: MemberChanged, event: int) -> PartChanged:
    """Return the fact that ends a change: how the part stands from here on.

    Args:
        part: The part as it stands.
        drive: The change at its end.
        changed: What the cluster is told about it.
        event: The number of the event by which the cluster is told.
    """
    change = drive.command.change
    stand, holds = part.stand, part.holds
    host_bytes, released, broken = part.host_bytes, part.released, False
    due = part.share_due
    done = drive.manner is not Manner.UNCHANGED
    match change:
        case Suspend() if done:
            stand = STAND_AFTER[drive.manner]
            holds = tuple(dict.fromkeys((*part.holds, change.hold)))
            if drive.room or not part.released:
                host_bytes, released = drive.moved, drive.given_back
        case Suspend() if stand in {Stand.SUSPENDED, Stand.FROZEN} and drive.phase is not None:
            stand, holds, host_bytes, released = Stand.RUNNING, (), 0, False
        case Resume() if done:
            stand, holds, host_bytes, released = Stand.RUNNING, (), 0, False
            due = False
        case Share():
            due = done and part.stands_frozen
        case Resume() if drive.refreeze:
            # Told to go on, some ranks did: they are frozen where they are.
            stand = Stand.FROZEN if drive.changed_ranks else stand
        case Resume():
            holds = tuple(hold for hold in part.holds if hold is not change.hold) or part.holds
        case Move() if done:
            stand, holds = Stand.SENT, ()
        case Resize() if not done and drive.changed_ranks:
            broken = True
            text = f"{RESIZE_UNDO_TEXT}: {changed.detail}"
            changed = msgspec.structs.replace(changed, detail=text)
        case _:
            pass
    return PartChanged(
        event=event,
        changed=changed,
        stand=stand,
        holds=holds,
        broken=broken,
        host_bytes=host_bytes,
        released=released,
        share_due=due,
        # One that was only to be made while it trains says nothing of whether it does.
        stood_until=part.stood_until if change == Checkpoint(trains=True) and not done else None,
    )


def apply_change(part: PartState, fact: PartChanged) -> None:
    """Take the end of a change over: pure bookkeeping, also of which ranks belong to the gang.

    Args:
        part: Changed.
        fact: The end of its latest change.
    """
    part.changed = fact
    part.stand, part.holds, part.broken = fact.stand, fact.holds, fact.broken
    part.host_bytes, part.released, part.share_due = fact.host_bytes, fact.released, fact.share_due
    stood_until = fact.stood_until
    part.stood_until = fact.changed.at if stood_until is None else stood_until
    done = fact.changed.manner is not Manner.UNCHANGED
    if part.change is None or part.command is None:
        return
    if part.change.command.order != fact.changed.order:
        return
    match part.change.command.change:
        case Share() as change:  # The others are there whether or not a limit could be set.
            part.command = packed(part.command, change)
        case _ if not done:
            pass
        case Resize(prepare=True):
            pass  # No rank has joined or left.
        case Resize() as change:
            part.command = resized(part.command, change)
            part.ranks = _regrouped(part, change)
        case Resume(ranks=ranks) if ranks:
            plans = {plan.rank: plan for plan in ranks}
            for rank in part.ranks.values():
                rank.plan = plans.get(rank.plan.rank, rank.plan)
            mine = tuple(plans.get(plan.rank, plan) for plan in part.command.ranks)
            part.command = msgspec.structs.replace(part.command, ranks=mine)
        case _:
            pass


def _regrouped(part: PartState, change: Resize) -> dict[str, Rank]:
    """Return the ranks of the gang as a resize names them, then those that leave it."""
    assert part.command is not None
    job, attempt = part.command.job, part.command.attempt
    tokens = {run_token(job, attempt, plan.rank): plan for plan in change.ranks}
    gang: dict[str, Rank] = {}
    for token, plan in tokens.items():
        known = part.ranks.get(token)
        gang[token] = _as_planned(known, plan) if known is not None else Rank(plan)
    rest = {
        token: rank
        for token, rank in part.ranks.items()
        if token not in tokens and rank.down is None
    }
    for rank in rest.values():
        rank.out = True
    return {**gang, **rest}


def _as_planned(rank: Rank, plan: RankPlan) -> Rank:
    rank.plan, rank.out = plan, False
    return rank
