"""How running parts are suspended, stored, moved, resized and packed, and what ranks say to it.

    ChangeJob --ChangeTaken--> phases, one after the other --PartChanged--> answered

    suspend     stop · release · freeze         (no boundary in time, or an opaque job: freeze)
    resume      thaw · resume
    checkpoint  work                            (of a job that cannot, by the node: dump)
    move        work                            (the ranks then wait for what becomes of it;
                                                of a suspended part: thaw · work, back by stay)
    resize      meet · start · work         (on several nodes first: meet · start · hold)
    share       share                           (one that stands is told when it goes on)
    warn        signal

Ranks of a gang stop at a common step, agreed on in two phases (DL2, section 5): one that is past it
says so, all go on, and the next step lies further ahead. A tree is frozen only after the boundary,
so that nothing hangs halfway. What is stored or moved needs all ranks: those that train together do
it once all have the order (`skep_job.cooperate.gang_barrier`), whatever step it names. Only the
taking and the answer are facts: an agent that comes back tries anew under a higher serial, which
fences what the ranks were told before.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from skep.ids import run_token
from skep.machines.agent import hanging
from skep.machines.agent.capabilities import Abilities
from skep.machines.agent.change_phases import (
    back_again,
    clock,
    holds_none,
    meets_here,
    phases_of,
    refusal_of,
    settle,
    standing_answer,
)
from skep.machines.agent.change_progress import (
    HANDLED,
    TIMED,
    TOLD_IN,
    TRIES_MAX,
    UNDO_WAIT,
    Drive,
    Phase,
    Soft,
    add_answer,
    deserted,
    expected,
    failure_text,
    find_room,
    handled,
    is_answer,
    joins,
    message_for,
    newcomers,
    strangers,
    stray,
    within,
)
from skep.machines.agent.devices import excess
from skep.machines.agent.owner import Owner
from skep.machines.agent.parts import (
    DumpRun,
    EvictRun,
    FreezeRun,
    OpenStore,
    PartKey,
    PartState,
    RestoreRun,
    RunHandled,
    SignalRun,
    StopRun,
    StoreOpened,
    TellRank,
    ThawRun,
)
from skep.machines.base import Call
from skep.units import Instant, after, seconds
from skep.wire.bounds import DETAIL_MAX
from skep.wire.commands import ChangeJob, Checkpoint, Move, Resize, Resume, Share, Suspend, Warn
from skep.wire.node import Manner, MemberChanged
from skep.wire.part_facts import ChangeTaken, ChangeTried, Stand
from skep.wire.runs import RunExited, RunStarted
from skep.wire.talk import (
    Answer,
    Can,
    Checkpointed,
    Failed,
    Hello,
    Loaded,
    Past,
    Ready,
    Released,
    Rescaled,
    Resumed,
    Said,
    Sent,
    Shared,
    Suspended,
)

MEETING = "the meeting place"
NEXT = "the next command"
LEAVE_WAIT = seconds(5)
"""How long a rank that left its gang may take to end by itself, to close what its script has open:
its state is with the others, and a job may wait for its GPUs."""


class Changes:
    """Carries out ChangeJob commands for an agent; everything here but its facts is soft."""

    def __init__(self, agent: Owner) -> None:
        """Work for `agent`, which records and calls."""
        self._agent = agent
        self.soft = Soft()
        self.abilities = Abilities(agent, self.soft)

    # --- commands --------------------------------------------------------------------------------

    def take(self, command: ChangeJob, now: Instant) -> None:
        """Take a change above its part's order, once; tell the answer again if it is known."""
        key = command.job, command.attempt
        part = self._agent.parts.get(key)
        if part is None or part.over is not None or part.started is None:
            return  # What became of it is told, or it is to begin first: the command is repeated.
        if part.change is not None and command.order == part.change.command.order:
            self._tell_answer(part)
            return
        if command.order <= part.order or part.grace_s is not None:
            return
        earlier = self.soft.drives.pop(key, None)
        # What only held has told the ranks nothing.
        again = part.changing is not None if earlier is None else earlier.phase is not Phase.HOLD
        self._agent.record(ChangeTaken(command=command, serial=self._agent.serial + 1))
        self._begin(key, now, again=again)
        self._agent.raise_floor(command.settled)

    def _begin(self, key: PartKey, now: Instant, *, again: bool) -> None:
        """Begin with the latest change; `again`: what was done for another or before is unsure."""
        part = self._part(key)
        assert part.change is not None, key
        command = part.change.command
        drive = Drive(command, part.serial, within(now, command.deadline_ms), [], again=again)
        self._call(*(StopRun(token, 0.0) for token in strangers(part, command.change)))
        refusal = refusal_of(part, command.change, self.abilities.can(part))
        if not refusal and isinstance(command.change, Checkpoint) and command.change.trains:
            refusal = hanging.why_not_stored(part, self._agent.progress.get(key, {}), now)
        if refusal:
            if isinstance(command.change, Resize):  # An earlier try may have started some.
                self._call(*(StopRun(token, 0.0) for token in newcomers(part, command.change)))
            drive.manner, drive.detail = Manner.UNCHANGED, refusal
            self._answer(key, drive, now)
            return
        drive.dumps = isinstance(command.change, Checkpoint) and self.abilities.is_dumped(part)
        if not again and standing_answer(part, drive):
            self._answer(key, drive, now)
            return
        self.soft.drives[key] = drive
        drive.meets_here = meets_here(command.change, self._agent.joined)
        drive.phases = phases_of(part, drive, self.abilities.can(part), again=again)
        self._next(key, now)

    # --- phases ----------------------------------------------------------------------------------

    def _next(self, key: PartKey, now: Instant) -> None:
        """Enter the next phase, or answer after the last one."""
        drive = self.soft.drives[key]
        while drive.phases:
            drive.phase = drive.phases.pop(0)
            drive.answers = {}
            self._enter(key, drive, now)
            if drive.waits:
                return
        self._answer(key, drive, now)

    def _enter(self, key: PartKey, drive: Drive, now: Instant) -> None:
        part = self._part(key)
        alive = part.alive()
        drive.waits = dict.fromkeys(alive)
        match drive.phase:
            case Phase.THAW:
                self._call(*(ThawRun(token) for token in alive))
            case Phase.FREEZE:
                self._call(*(FreezeRun(token) for token in alive))
            case Phase.MEET:
                assert isinstance(drive.command.change, Resize)
                where = drive.command.change
                drive.waits = {MEETING: None}
                self._call(OpenStore(*key, where.master_address, where.master_port))
            case Phase.START:
                self._start_newcomers(key, part, drive)
            case Phase.HOLD:
                drive.waits = {NEXT: None}
                self.abilities.prepared(key, part, drive.command.order, now)
            case Phase.RELEASE | Phase.EVICT if not self._room(key, drive):
                drive.waits = {}
            case Phase.EVICT:
                self._call(
                    *(
                        EvictRun(token, rank.plan.devices, drive.room)
                        for token, rank in alive.items()
                    )
                )
            case Phase.RESTORE:
                self._call(*(RestoreRun(token) for token in alive))
            case Phase.DUMP:
                told = self._agent.progress.get(key, {})
                drive.done_step = min((rank.steps for rank in told.values()), default=0)
                self._call(
                    *(
                        DumpRun(token, *key, rank.plan.rank, rank.plan.devices)
                        for token, rank in alive.items()
                    )
                )
            case Phase.SIGNAL:
                assert isinstance(drive.command.change, Warn)
                name, order = drive.command.change.signal, drive.command.order
                self._call(*(SignalRun(token, name, order) for token in alive))
            case _:
                drive.past = False
                self._number(key, drive)
                if drive.phase in {Phase.STOP, Phase.WORK}:
                    told = self._agent.progress.get(key, {})
                    drive.step = clock(part, drive, told, now, self.soft.processes(part))
                if drive.phase in {Phase.UNDO, Phase.STAY}:
                    drive.undo_by = after(now, UNDO_WAIT)
                elif drive.phase is Phase.RESUME:
                    held = part.stand in {Stand.SUSPENDED, Stand.SENT, Stand.AWAITING}
                    drive.waits = {
                        each: None for each in alive if held or self.soft.may_stand(each)
                    }
                for token in alive:
                    self._tell(part, drive, token)

    def _start_newcomers(self, key: PartKey, part: PartState, drive: Drive) -> None:
        """Start the ranks that are to join a gang, and wait until each of them is ready."""
        assert isinstance(drive.command.change, Resize)
        for fact in expected(part, drive.command.change):
            self._agent.record(fact)
        joining = newcomers(part, drive.command.change)
        told = self._agent.progress.get(key, {})
        drive.waits = {
            each: None for each in joining if not joins(self.soft, part, drive, each, told)
        }
        for token in joining:
            if not part.ranks[token].up:
                self._agent.start_rank(key, token)

    def _number(self, key: PartKey, drive: Drive) -> None:
        """Have what ranks are told now be above what they were told before."""
        if drive.order <= drive.told:
            tried = ChangeTried(job=key[0], attempt=key[1], serial=self._agent.serial + 1)
            self._agent.record(tried)
            drive.serial = self._part(key).serial
        drive.told = drive.order

    def _tell(self, part: PartState, drive: Drive, token: str) -> None:
        among = self.soft.processes(part)
        self._call(TellRank(message_for(drive, part, token, among), among=among))

    def _room(self, key: PartKey, drive: Drive) -> bool:
        """Find room in the host's memory for the state of a part; say in `detail` if none is left.

        Never more than the budget: what does not fit would be swapped out, which takes longer than
        it does to train.
        """
        parts = [part for part in self._agent.parts.values() if part.over is None]
        taken = sum(part.host_bytes for part in parts)
        taken += sum(each.room for each in self.soft.drives.values() if each is not drive)
        told = self._agent.progress.get(key, {})
        alive = [rank.plan.rank for rank in self._part(key).alive().values()]
        wanted = sum(told[rank].memory for rank in alive if rank in told)
        return find_room(drive, self._agent.host_budget, taken, wanted)

    def _again(self, key: PartKey, now: Instant) -> None:
        """Agree on a later step, as a rank is past the one that was named."""
        drive, part = self.soft.drives[key], self._part(key)
        assert drive.phase is not None
        asked = getattr(drive.command.change, "step", 0)
        if asked:
            self._fail(key, f"a rank was past step {asked}", now)
            return
        if drive.tries >= TRIES_MAX:
            self._missed(key, f"no common step was found in {drive.tries} tries", now)
            return
        self._agent.record(ChangeTried(job=key[0], attempt=key[1], serial=self._agent.serial + 1))
        drive.serial = part.serial
        drive.tries += 1
        drive.phases = [Phase.UNDO, drive.phase, *drive.phases]
        self._next(key, now)

    def _missed(self, key: PartKey, why: str, now: Instant) -> None:
        """Draw the consequence of a phase that did not come to its end."""
        drive = self.soft.drives[key]
        match drive.phase:
            case Phase.STOP:
                drive.manner, drive.detail = Manner.FROZEN, why
                drive.phases = [Phase.FREEZE]
                self._next(key, now)
            case Phase.RELEASE:
                drive.detail, drive.kept = why, True
                self._next(key, now)
            case Phase.UNDO | Phase.STAY:
                self._next(key, now)
            case Phase.SHARE:
                self._unshared(drive, why)
                self._next(key, now)
            case _:
                self._fail(key, why, now)

    @staticmethod
    def _unshared(drive: Drive, why: str) -> None:
        """Note that a rank does not keep to its share: it goes on with what it has."""
        drive.detail = drive.detail or why
        if isinstance(drive.command.change, Share):
            drive.manner = Manner.UNCHANGED

    def _fail(self, key: PartKey, why: str, now: Instant) -> None:
        """Put everything back, and say why."""
        drive, part = self.soft.drives[key], self._part(key)
        if drive.manner is Manner.UNCHANGED:
            self._next(key, now)
            return
        drive.manner, drive.detail = Manner.UNCHANGED, why
        match drive.command.change:
            case Move() if part.stand is Stand.SUSPENDED:
                drive.phases = [Phase.STAY, Phase.FREEZE]
            case Suspend():
                drive.phases = [Phase.THAW, *back_again(self.abilities.can(part))]
            case Resume():
                drive.refreeze = part.stands_frozen
                drive.phases = [Phase.FREEZE] if drive.refreeze else []
            case Resize():
                for token in newcomers(part, drive.command.change):
                    self._call(StopRun(token, 0.0))
                untold = drive.command.change.prepare or drive.changed_ranks
                drive.phases = [] if untold else [Phase.UNDO]
            case Checkpoint() if drive.dumps:
                drive.phases = []  # Its ranks were told nothing.
            case _:
                drive.phases = [Phase.UNDO]
        self._next(key, now)

    def _answer(self, key: PartKey, drive: Drive, now: Instant) -> None:
        """Record and tell how the change ended."""
        self.soft.drives.pop(key, None)
        part, joined = self._part(key), self._agent.joined
        assert part.command is not None, key
        changed = MemberChanged(
            node=joined.node,
            identity=joined.identity,
            job=key[0],
            attempt=key[1],
            order=drive.command.order,
            manner=drive.manner,
            at=now,
            step=drive.done_step,
            moved=drive.moved,
            residue=drive.residue,
            pause_ns=drive.pause_ns,
            detail=drive.detail[:DETAIL_MAX],
            trace=drive.command.trace or part.command.trace,
            released=holds_none(part, drive),
        )
        fact = settle(part, drive, changed, self._agent.event + 1)
        self._agent.record(fact)
        self._forget_leavers(key)
        self._tell_answer(part)
        if fact.broken:
            self._agent.stop_part(key, now)
        elif isinstance(drive.command.change, Resize):
            self._watch_leavers(part, now)
            self.started(key, now)  # A rank that has joined says what it can.

    def _forget_leavers(self, key: PartKey) -> None:
        """Take no rank that has left its gang for the slowest one."""
        known, part = self._agent.progress.get(key, {}), self._part(key)
        for rank in [rank for rank in known if f"{key[0]}.{key[1]}.{rank}" not in part.ranks]:
            del known[rank]

    def _tell_answer(self, part: PartState) -> None:
        """Report how the latest change ended, once every rank left is of the gang."""
        fact, change = part.changed, part.change
        if fact is None or change is None or part.leaving:
            return
        if fact.changed.order == change.command.order:
            self._agent.publish_part(part, fact)

    def _watch_leavers(self, part: PartState, now: Instant) -> None:
        for token, rank in part.ranks.items():
            if rank.out and rank.down is None:
                self.soft.leave_by[token] = after(now, LEAVE_WAIT)

    # --- what happens ----------------------------------------------------------------------------

    def ran(self, event: RunHandled, now: Instant) -> None:
        """Take the runtime's answer."""
        key, part = self._agent.part_of(event.token)
        drive = self.soft.drives.get(key)
        if part is None or drive is None or drive.phase is not HANDLED[type(event)]:
            return
        if event.token not in drive.waits:
            return
        del drive.waits[event.token]
        why = handled(drive, event)
        if why:
            self._fail(key, why, now)
        elif not drive.waits:
            self._next(key, now)

    def met(self, event: StoreOpened, now: Instant) -> None:
        """Take it that a gang can meet, or cannot."""
        key = event.job, event.attempt
        drive = self.soft.drives.get(key)
        if drive is None or drive.phase is not Phase.MEET:
            return
        if event.trouble:
            self._fail(key, event.trouble, now)
        else:
            self._next(key, now)

    def said(self, message: Said, now: Instant) -> None:
        """Take what a rank said."""
        token = run_token(message.job, message.attempt, message.rank)
        key, part = self._agent.part_of(token)
        if part is None or part.over is not None or part.command is None:
            return
        drive = self.soft.drives.get(key)
        heard = self.soft.voices.heard(token, message)
        if heard is None and drive is None and self.soft.voices.stands(token):
            self._call_back(part, token)
        match heard:
            case Hello():
                self.soft.greeted[token] = None
                self.soft.standing.pop(token, None)
                if drive is not None and drive.phase in TOLD_IN and token in drive.waits:
                    self._tell(part, drive, token)
            case Can():
                self.abilities.learn(key, part, token, heard, now)
            case Ready():
                self.soft.doors[token] = heard
                self.soft.standing[token] = None
                self.rank_up(key, token, now)
                self.abilities.ready(key, part, now)
            case Loaded():
                self.soft.loads[token] = heard
                self.soft.standing[token] = None
                self.abilities.loaded(key, part, now)
            case (
                Suspended()
                | Past()
                | Released()
                | Resumed()
                | Checkpointed()
                | Sent()
                | Rescaled()
                | Shared()
                | Failed()
            ):
                self._answered(key, token, heard, now)
            case _:
                pass

    def _call_back(self, part: PartState, token: str) -> None:
        """Have a rank go on whose order was withdrawn while it was away."""
        if part.stand is Stand.RUNNING:
            self._call(TellRank(stray(part, part.ranks[token].plan.rank)))

    def _answered(self, key: PartKey, token: str, message: Answer, now: Instant) -> None:
        part = self._part(key)
        match message:
            case Suspended() | Sent() | Released():
                self.soft.standing[token] = None
            case Resumed() | Past() | Rescaled():
                self.soft.standing.pop(token, None)
            case _:
                pass
        drive = self.soft.drives.get(key)
        if drive is not None:
            if token in drive.waits and is_answer(drive, message):
                self._count(key, drive, token, message, now)
        elif token in self.soft.standing:
            self._call_back(part, token)

    def _count(self, key: PartKey, drive: Drive, token: str, message: Answer, now: Instant) -> None:
        """Take one rank's answer in this phase; go on after the last one."""
        del drive.waits[token]
        drive.answers[token] = message
        match message:
            case Past():
                drive.far = max(drive.far, message.step)
                if getattr(drive.command.change, "step", 0):
                    # The rank that named the step counts the next one from here.
                    drive.done_step = max(drive.done_step, message.step)
                self._again(key, now)
                return
            case Failed() if drive.phase is Phase.STOP:
                self._missed(key, failure_text(message), now)
                return
            case Failed() if drive.phase is Phase.RELEASE:
                drive.detail, drive.kept = failure_text(message), True
            case Failed() if drive.phase is Phase.SHARE:
                self._unshared(drive, failure_text(message))
            case Failed() if drive.phase is Phase.WORK:
                self._fail(key, failure_text(message), now)
                return
            case Failed() if drive.phase is Phase.RESUME:
                drive.changed_ranks += message.partly
                # One that goes on already has said hello since the agent started, and no stand.
                if self.soft.may_stand(token):
                    drive.stay[token], drive.detail = None, failure_text(message)
            case Failed():
                pass  # Told to go on, it did so already.
            case _:
                add_answer(drive, message)
                if isinstance(message, Shared):
                    devices = self._part(key).ranks[token].plan.devices
                    more = excess(message, devices, self._agent.joined.gpus)
                    drive.detail = drive.detail or more
        if drive.stay and not drive.waits:
            self._fail(key, drive.detail, now)
        elif not drive.waits:
            self._next(key, now)

    def rank_down(self, key: PartKey, token: str, now: Instant, *, joining: bool) -> None:
        """Take the end of a rank; `joining`: it was not part of the gang yet."""
        for known in (
            self.soft.greeted,
            self.soft.cans,
            self.soft.sizes,
            self.soft.resumed,
            self.soft.standing,
            self.soft.doors,
            self.soft.loads,
            self.soft.leave_by,
        ):
            known.pop(token, None)
        self.soft.voices.drop(token)
        part = self._part(key)
        if token not in part.ranks:
            self._forget_leavers(key)
            self._tell_answer(part)  # It was out of the gang, and perhaps the last of those.
        drive = self.soft.drives.get(key)
        if drive is None:
            return
        if part.grace_s is not None or not part.alive():
            self.forget(key)
            return
        waited = token in drive.waits
        drive.waits.pop(token, None)
        if joining and drive.manner is not Manner.UNCHANGED:
            self._fail(key, f"{token}, which was to join, ended", now)
        elif deserted(part, drive):
            self._fail(key, "the gang ended", now)
        elif waited and not drive.waits:
            self._next(key, now)

    def rank_up(self, key: PartKey, token: str, now: Instant) -> None:
        """Take it that a newcomer has come further."""
        drive = self.soft.drives.get(key)
        if drive is None or drive.phase is not Phase.START or token not in drive.waits:
            return
        if joins(self.soft, self._part(key), drive, token, self._agent.progress.get(key, {})):
            del drive.waits[token]
            if not drive.waits:
                self._next(key, now)

    def started(self, key: PartKey, now: Instant) -> None:
        """Note that a part runs: its ranks are to say what they can do, or have already."""
        self.abilities.started(key, self._part(key), now)

    def forget(self, key: PartKey) -> None:
        """Give up what is under way for a part that ends."""
        self.soft.drives.pop(key, None)
        self.soft.known_by.pop(key, None)

    def adopted(self, listed: Mapping[str, RunStarted | RunExited], now: Instant) -> None:
        """Go on after a restart: try anew what has no answer, and freeze or thaw what is not so."""
        for key, part in list(self._agent.parts.items()):
            if part.over is not None or part.grace_s is not None or not part.alive():
                continue
            self.abilities.expect(key, now)
            if part.changing is not None:
                self._resume_try(key, now)
                continue
            self._watch_leavers(part, now)
            for token in part.alive():
                run = listed.get(token)
                frozen = isinstance(run, RunStarted) and run.frozen
                if part.stands_frozen and not frozen:
                    self._call(FreezeRun(token))
                elif frozen and not part.stands_frozen:
                    self._call(ThawRun(token))

    def _resume_try(self, key: PartKey, now: Instant) -> None:
        """Carry on with a change that an earlier process of this agent had begun."""
        serial = self._agent.serial + 1
        self._agent.record(ChangeTried(job=key[0], attempt=key[1], serial=serial))
        part = self._part(key)
        assert part.change is not None
        if not isinstance(part.change.command.change, Move):
            self._begin(key, now, again=True)
            return
        # Whether the state arrived is not known, and the source still has it.
        command = part.change.command
        stays = part.stand is Stand.SUSPENDED
        back = [Phase.THAW, Phase.STAY, Phase.FREEZE] if stays else [Phase.UNDO]
        drive = Drive(command, part.serial, within(now, command.deadline_ms), back)
        drive.manner, drive.detail = Manner.UNCHANGED, "the agent restarted during the move"
        self.soft.drives[key] = drive
        self._next(key, now)

    # --- time ------------------------------------------------------------------------------------

    def wake_at(self) -> Instant | None:
        """Return when `due` next has something to do, or None: nothing waits."""
        times = [*self.soft.known_by.values(), *self.soft.leave_by.values()]
        for drive in self.soft.drives.values():
            if drive.phase in TIMED:
                times.append(drive.deadline)
            elif drive.phase in {Phase.UNDO, Phase.STAY} and drive.undo_by is not None:
                times.append(drive.undo_by)
        return min(times, default=None)

    def due(self, now: Instant) -> None:
        """Do what the time has come for."""
        for key, drive in list(self.soft.drives.items()):
            late = drive.phase in TIMED and drive.deadline <= now
            if drive.phase in {Phase.UNDO, Phase.STAY}:
                late = drive.undo_by is not None and drive.undo_by <= now
            if late and self.soft.drives.get(key) is drive:
                waits = ", ".join(drive.waits)
                text = f"{drive.phase}: no answer from {waits} in {drive.command.deadline_ms} ms"
                self._missed(key, text, now)
        self.abilities.due(now)
        for token, by in list(self.soft.leave_by.items()):
            if by <= now:
                del self.soft.leave_by[token]
                self._call(StopRun(token, 0.0))

    def _part(self, key: PartKey) -> PartState:
        return self._agent.parts[key]

    def _call(self, *commands: msgspec.Struct) -> None:
        self._agent.add(*(Call(command) for command in commands))
