"""A change of a part on its way: its phase, whose answers are missing, and what was said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from skep.ids import run_token
from skep.machines.agent.devices import share_of
from skep.machines.agent.parts import (
    PartState,
    RunDumped,
    RunEvicted,
    RunFrozen,
    RunHandled,
    RunRestored,
    RunSignalled,
    RunThawed,
)
from skep.machines.agent.rank_processes import Voices
from skep.units import Duration, Instant, after, seconds
from skep.wire.commands import BindJob, ChangeJob, Move, Resize, Resume
from skep.wire.node import Manner
from skep.wire.part_facts import RankJoins, Stand
from skep.wire.reports import RankProgress
from skep.wire.talk import (
    Answer,
    Checkpointed,
    CheckpointRank,
    Failed,
    Loaded,
    MoveRank,
    Past,
    Ready,
    Released,
    ReleaseRank,
    Rescaled,
    RescaleRank,
    Resumed,
    ResumeRank,
    Sent,
    Shared,
    ShareRank,
    Suspended,
    SuspendRank,
    Told,
)

ORDERS_PER_SERIAL = 8
"""Numbers a try has for what it tells ranks: one for each phase, and one to undo what is left."""
STRAY = ORDERS_PER_SERIAL - 1
"""The last of them: for ranks that stand though they are not to."""

CLOCK_MARGIN = 2
"""Mini-batches that a common step lies beyond the furthest rank, at the first try."""
CLOCK_REACH = seconds(0.1)
"""And as many more as are done in this time: a message to a job takes far less, its answer too."""
CLOCK_GROWTH = 4
"""How much larger the margin becomes with each try."""
TRIES_MAX = 5
"""How often a step is agreed on anew. By then the margin is 256 times the first."""
assert CLOCK_GROWTH ** (TRIES_MAX - 1) == 256

UNDO_WAIT = seconds(5)
"""How long ranks may take to say that they go on, before the next try or the answer. One that is
away hears it when it returns."""
RESIZE_UNDO_TEXT = "some ranks changed and some did not"


class Phase(StrEnum):
    """What a change waits for."""

    THAW = "thaw"
    UNDO = "undo"
    """Ranks told to go on, whatever they had been told."""
    STOP = "stop"
    RELEASE = "release"
    FREEZE = "freeze"
    RESUME = "resume"
    MEET = "meet"
    """Where the ranks of a resized gang meet is opened, if it is here."""
    START = "start"
    """Ranks that join are started, and make everything ready."""
    HOLD = "hold"
    """All is ready for a resize on several nodes, and waits for the next command."""
    STAY = "stay"
    """Ranks that stand, whatever for, are told that they are suspended."""
    WORK = "work"
    """A checkpoint, a move or a resize is done by the ranks themselves."""
    SHARE = "share"
    """Ranks told which part of their devices' memory is theirs, wherever they are."""
    EVICT = "evict"
    """The driver moves what a run has on its device into the host's memory."""
    RESTORE = "restore"
    DUMP = "dump"
    """An image of the run's processes is stored, which go on."""
    SIGNAL = "signal"
    """Runs are given the signal before their time limit."""


TOLD_IN = {
    Phase.UNDO: 0,
    Phase.STOP: 1,
    Phase.STAY: 1,
    Phase.RELEASE: 2,
    Phase.RESUME: 3,
    Phase.WORK: 4,
    Phase.SHARE: 5,
}
"""Phases in which ranks are told something, and the numbers of these orders within a try. One that
is not above the last begins another try."""
assert max(TOLD_IN.values()) < STRAY

TIMED = (
    Phase.STOP,
    Phase.RELEASE,
    Phase.RESUME,
    Phase.MEET,
    Phase.START,
    Phase.HOLD,
    Phase.WORK,
    Phase.SHARE,
)
"""Phases that the deadline of the command ends; the runtime's own work has its own bounds."""


HANDLED: Mapping[type, Phase] = {
    RunFrozen: Phase.FREEZE,
    RunThawed: Phase.THAW,
    RunEvicted: Phase.EVICT,
    RunRestored: Phase.RESTORE,
    RunSignalled: Phase.SIGNAL,
    RunDumped: Phase.DUMP,
}
"""The phases that the runtime's answers end."""


class Drive(msgspec.Struct):
    """One try to carry a change out: soft, as a restarted agent tries anew."""

    command: ChangeJob
    serial: int
    deadline: Instant
    phases: list[Phase]
    phase: Phase | None = None
    waits: dict[str, None] = {}
    """Ranks whose answer is missing in this phase, by token."""
    answers: dict[str, Answer] = {}
    """What ranks said in this phase."""
    step: int = 0
    tries: int = 1
    far: int = 0
    """The furthest mini-batch that a rank said it is past."""
    past: bool = False
    undo_by: Instant | None = None
    manner: Manner = Manner.BOUNDARY
    again: bool = False
    """An earlier try may have come as far as this one, or further."""
    meets_here: bool = False
    """The address at which a resized gang meets is this node's."""
    refreeze: bool = False
    """It failed, and the part is to stand frozen as before."""
    done_step: int = 0
    moved: int = 0
    residue: int = -1
    pause_ns: int = 0
    released: bool = False
    """Some rank gave its device memory back."""
    kept: bool = False
    """Some rank did not, when it was told to."""
    stay: dict[str, None] = {}
    """Ranks that were told to go on and stand where they stood, as they said themselves."""
    room: int = 0
    """Bytes of the host's memory that its ranks may fill."""
    changed_ranks: int = 0
    detail: str = ""
    dumps: bool = False
    """The node stores the processes: the job cannot store its state by itself."""
    told: int = -1
    """The number of what its ranks were told last."""

    @property
    def given_back(self) -> bool:
        """Return whether no rank has memory on its devices any more: others may use them."""
        return self.released and not self.kept

    @property
    def order(self) -> int:
        """Return the number of what ranks are told in this phase."""
        assert self.phase is not None
        return order_of(self.serial, self.phase)


def order_of(serial: int, phase: Phase) -> int:
    """Return the number of what ranks are told in a phase of a try.

    Args:
        serial: The number of the try, counted for all parts of the agent.
        phase: One of `TOLD_IN`.
    """
    return serial * ORDERS_PER_SERIAL + TOLD_IN[phase]


def common_step(
    progress: Iterable[RankProgress], tries: int, now: Instant, wanted: int = 0, far: int = 0
) -> int:
    """Return a mini-batch that no rank has ended when the message about it arrives.

    It is the furthest rank's, by its latest report and its speed since, and a margin that grows
    with each try.

    Args:
        progress: The latest reports of the ranks.
        tries: The number of this try, from 1.
        now: The time of the decision.
        wanted: A step that others have agreed on already, which is returned as it is; 0: none.
        far: A step that a rank said it is past; 0: no rank said so.

    Returns:
        The number of a mini-batch.
    """
    if wanted:
        return wanted
    known = list(progress)
    step_ns = min((one.step_ns for one in known if one.step_ns), default=0)
    furthest = max((_steps_at(one, now) for one in known), default=0)
    furthest = max(furthest, far)
    margin = CLOCK_MARGIN + (CLOCK_REACH // step_ns if step_ns else 0)
    return int(furthest + margin * CLOCK_GROWTH ** (tries - 1))


def _steps_at(one: RankProgress, now: Instant) -> int:
    """Return how far a rank is if it went on as it did since it reported."""
    if not one.step_ns or not one.last_step_at:
        return one.steps
    return one.steps + max(0, now - one.last_step_at) // one.step_ns


def message_for(drive: Drive, part: PartState, token: str, among: int) -> Told:
    """Return what a rank is told in the phase that a change is in.

    Args:
        drive: The change, in one of its phases.
        part: The part that is changed.
        token: The process of the rank.
        among: How many processes share the host's memory that the change may fill.
    """
    assert part.command is not None
    assert drive.phase is not None
    job, attempt, rank = part.command.job, part.command.attempt, part.ranks[token].plan.rank
    order, change = drive.order, drive.command.change
    match drive.phase:
        case Phase.STAY:
            return SuspendRank(job=job, attempt=attempt, rank=rank, order=order)
        case Phase.STOP:
            return SuspendRank(job=job, attempt=attempt, rank=rank, order=order, step=drive.step)
        case Phase.RELEASE:
            share = max(drive.room // among, 1)
            return ReleaseRank(job=job, attempt=attempt, rank=rank, order=order, max_bytes=share)
        case Phase.RESUME:
            return ResumeRank(
                job=job,
                attempt=attempt,
                rank=rank,
                order=order,
                devices=devices_of(part, change, token),
            )
        case Phase.SHARE:
            return ShareRank(
                job=job, attempt=attempt, rank=rank, order=order, share=share_of(part, change)
            )
        case Phase.WORK if isinstance(change, Move):
            target = next(each for each in change.targets if each.rank == rank)
            return MoveRank(
                job=job,
                attempt=attempt,
                rank=rank,
                order=order,
                step=drive.step,
                host=target.host,
                port=target.port,
                token=target.token,
            )
        case Phase.WORK if isinstance(change, Resize):
            stays = any(plan.rank == rank for plan in change.ranks)
            return RescaleRank(
                job=job,
                attempt=attempt,
                rank=rank,
                order=order,
                step=drive.step,
                generation=change.generation,
                world=change.world,
                host=change.master_address,
                port=change.master_port,
                leaves=not stays,
                servers=change.servers,
                agree=change.agree,
            )
        case Phase.WORK:
            return CheckpointRank(job=job, attempt=attempt, rank=rank, order=order, step=drive.step)
        case _:
            return ResumeRank(
                job=job,
                attempt=attempt,
                rank=rank,
                order=order,
                devices=part.ranks[token].plan.devices,
            )


def stray(part: PartState, rank: int) -> ResumeRank:
    """Return what a rank is told that stands though what it was told has been withdrawn.

    Args:
        part: The part that the rank is of.
        rank: The number of the rank.
    """
    assert part.command is not None
    plan = next(each.plan for each in part.ranks.values() if each.plan.rank == rank)
    return ResumeRank(
        job=part.command.job,
        attempt=part.command.attempt,
        rank=rank,
        order=part.serial * ORDERS_PER_SERIAL + STRAY,
        devices=plan.devices,
    )


def devices_of(part: PartState, change: object, token: str) -> tuple[int, ...]:
    """Return the devices that a rank is to go on with: those it has, unless others are named.

    Args:
        part: The part that the rank is of.
        change: What is done to the part; only a `Resume` may name devices.
        token: The process of the rank.

    Returns:
        Indices of devices on the node.
    """
    plan = part.ranks[token].plan
    named = change.ranks if isinstance(change, Resume) else ()
    return next((each.devices for each in named if each.rank == plan.rank), plan.devices)


def handled(drive: Drive, event: RunHandled) -> str:
    """Note what the runtime did to a run; return why the change fails, or an empty text.

    Args:
        drive: The change; changed.
        event: What the runtime did.
    """
    match event:
        case RunEvicted(trouble=trouble) if trouble:
            drive.detail, drive.kept = trouble, True
        case RunEvicted(moved=moved):
            drive.released = True
            drive.moved += moved
        case RunDumped(trouble=trouble) if trouble:
            return trouble
        case RunDumped(bytes=size, pause_ns=pause_ns):
            drive.moved += size
            drive.pause_ns = max(drive.pause_ns, pause_ns)
        case RunRestored(trouble=trouble) if trouble:
            if drive.manner is Manner.UNCHANGED:
                drive.detail = f"{drive.detail}; {trouble}"
            return trouble
        case RunSignalled(trouble=trouble) if trouble:
            drive.manner, drive.detail = Manner.UNCHANGED, drive.detail or trouble
        case _ if event.trouble:
            drive.detail = drive.detail or event.trouble
            if isinstance(event, RunFrozen) and drive.manner is Manner.FROZEN:
                return event.trouble
        case _:
            pass
    return ""


def is_answer(drive: Drive, message: Answer) -> bool:
    """Return whether a message answers what ranks were told in the phase that a change is in."""
    if drive.phase not in TOLD_IN or message.order != drive.order:
        return False
    match drive.phase:
        case Phase.UNDO | Phase.RESUME:
            return isinstance(message, Resumed | Failed)
        case Phase.STOP | Phase.STAY:
            return isinstance(message, Suspended | Past | Failed)
        case Phase.RELEASE:
            return isinstance(message, Released | Failed)
        case Phase.SHARE:
            return isinstance(message, Shared | Failed)
        case _:
            return isinstance(message, Checkpointed | Sent | Rescaled | Past | Failed)


def failure_text(message: Failed) -> str:
    """Return in words that a rank did not do what it was told."""
    return f"rank {message.rank}: {message.error or message.what}"


def add_answer(drive: Drive, message: Answer) -> None:
    """Add one rank's answer to what the change comes to.

    Args:
        drive: The change; changed.
        message: What the rank said.
    """
    step = getattr(message, "step", 0)
    if drive.phase is not Phase.UNDO and step:
        drive.done_step = min(drive.done_step or step, step)
    drive.pause_ns = max(drive.pause_ns, getattr(message, "pause_ns", 0))
    match message:
        case Released():
            known = drive.residue >= 0 or not drive.released
            drive.residue = (
                max(drive.residue, 0) + message.residue if known and message.residue >= 0 else -1
            )
            drive.released = True
            drive.moved += message.moved
        case Shared():
            drive.residue = max(drive.residue, 0) + message.used
        case Checkpointed() | Sent():
            drive.moved += message.bytes
        case Rescaled() | Resumed() if drive.phase is not Phase.UNDO:
            drive.changed_ranks += 1
        case _:
            pass


def newcomers(part: PartState, resize: Resize) -> list[str]:
    """Return the tokens of the ranks that a resize starts here."""
    wanted = {plan.rank for plan in resize.ranks}
    return [
        token
        for token, rank in part.ranks.items()
        if rank.out and rank.down is None and rank.plan.rank in wanted
    ]


def expected(part: PartState, resize: Resize) -> list[RankJoins]:
    """Return the facts that ranks are to join, so that they are known whatever happens."""
    assert part.command is not None
    job, attempt = part.command.job, part.command.attempt
    tokens = {run_token(job, attempt, plan.rank): plan for plan in resize.ranks}
    return [
        RankJoins(token=token, plan=plan)
        for token, plan in tokens.items()
        if token not in part.ranks or part.ranks[token].down is not None
    ]


def find_room(drive: Drive, budget: int, taken: int, wanted: int) -> bool:
    """Note the room in the host's memory for the state of a part, or why it has none.

    Args:
        drive: The change; its `room` is set, or its `detail`.
        budget: Bytes of the host's memory that suspended state may take.
        taken: Bytes of it that other parts have, or are about to have.
        wanted: Bytes that the part has on its devices; 0: unknown.

    Returns:
        Whether there is room.
    """
    room = budget - taken
    if room <= 0 or wanted > room:
        drive.detail = (
            f"device memory was kept: {taken} of {budget} bytes for suspended state "
            f"are taken, and {wanted or 'some'} would come"
        )
        return False
    drive.room = min(room, 2 * wanted) if wanted else room
    return True


def strangers(part: PartState, change: object) -> list[str]:
    """Return the tokens of ranks that were to join, and are not to by what is wanted instead."""
    wanted = [plan.rank for plan in change.ranks] if isinstance(change, Resize) else []
    return [
        token
        for token, rank in part.ranks.items()
        if rank.out and rank.down is None and rank.plan.rank not in wanted
    ]


def resized(command: BindJob, resize: Resize) -> BindJob:
    """Return the command as it is for ranks of the resized gang."""
    return msgspec.structs.replace(
        command,
        awaits="",
        world=resize.world,
        ranks=resize.ranks,
        master_address=resize.master_address,
        master_port=resize.master_port,
    )


def joining(command: BindJob, resize: Resize) -> BindJob:
    """Return the command for ranks that join: they await their state, as successors do."""
    later = resized(command, resize)
    env = {**later.env, "SKEP_GENERATION": str(resize.generation)}
    return msgspec.structs.replace(later, awaits=f"generation-{resize.generation}", env=env)


class Soft(msgspec.Struct):
    """What a crash may forget of the talk with ranks; all of it is said again."""

    drives: dict[tuple[str, int], Drive] = {}
    greeted: dict[str, None] = {}
    """Ranks that are or were connected to this process."""
    cans: dict[str, tuple[str, tuple[str, ...]]] = {}
    """Tier and abilities, as each rank said them."""
    resumed: dict[str, str] = {}
    """Which checkpoint each rank goes on from, if it said so."""
    sizes: dict[str, tuple[int, ...]] = {}
    """The numbers of ranks that the gang can have, as each rank said them."""
    standing: dict[str, None] = {}
    """Ranks that stand between two mini-batches."""
    doors: dict[str, Ready] = {}
    loads: dict[str, Loaded] = {}
    known_by: dict[tuple[str, int], Instant] = {}
    """When a part whose ranks say nothing is taken for opaque."""
    leave_by: dict[str, Instant] = {}
    """When a rank that left its gang is ended."""
    voices: Voices = msgspec.field(default_factory=Voices)
    """The processes of ranks that have several."""

    def processes(self, part: PartState) -> int:
        """Return how many processes of a part train together, 1 at least."""
        return max(sum(self.voices.count(token) for token in part.alive()), 1)

    def may_stand(self, token: str) -> bool:
        """Return whether a rank stands by its own word, as far as is known.

        One that was frozen when this agent began has not said how it stands.
        """
        return token in self.standing or token not in self.greeted


def within(now: Instant, milliseconds: int) -> Instant:
    """Return the deadline that is so far away."""
    return after(now, Duration(milliseconds * 1_000_000))


STAND_AFTER: Mapping[Manner, Stand] = {
    Manner.BOUNDARY: Stand.SUSPENDED,
    Manner.FROZEN: Stand.FROZEN,
}


def joins(
    soft: Soft, part: PartState, drive: Drive, token: str, told: Mapping[int, RankProgress]
) -> bool:
    """Tell whether a newcomer is there and has made everything ready, in whatever order.

    One that an earlier try had started may have joined since: it does not say it is ready again,
    but trains. One that still makes ready is waited for, as the gang would stand meanwhile.

    Args:
        soft: What ranks have said.
        part: The part that the rank is to join.
        drive: The resize.
        token: The process of the rank.
        told: The latest report of each rank, by its number.
    """
    rank = part.ranks[token]
    trains = rank.plan.rank in told and told[rank.plan.rank].steps > 0
    return rank.up and (token in soft.doors or (drive.again and trains))


def deserted(part: PartState, drive: Drive) -> bool:
    """Tell whether only newcomers are left of a gang: no rank will bring them the state."""
    change = drive.command.change
    if not isinstance(change, Resize) or not change.ranks or part.joins:
        return False  # No rank is to stay here, or none was here.
    gang = any(not rank.out and rank.down is None for rank in part.ranks.values())
    return not gang and drive.manner is not Manner.UNCHANGED
