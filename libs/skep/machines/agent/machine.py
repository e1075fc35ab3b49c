"""The agent: starts and ends the processes of one node, and tells the cluster what became of them.

    BindJob --BindTaken--> ranks start --PartStarted--> run --PartOver--> forgotten when settled

Its facts are a local journal: memory and outbox in one. A part of an attempt is taken once, ever;
commands at or below the floor, or for an attempt it knows, start nothing. What happened is told
again until the stream has it. The processes themselves live under a runtime that outlasts the
agent; after a restart the agent asks the runtime what is there and goes on.
"""

from __future__ import annotations

import msgspec

from skep.ids import attempt_of_run, run_token
from skep.machines.agent import hanging
from skep.machines.agent.change_phases import apply_change
from skep.machines.agent.change_progress import joining, newcomers
from skep.machines.agent.changes import Changes
from skep.machines.agent.devices import also_used, in_the_way, troubles
from skep.machines.agent.idling import Idling
from skep.machines.agent.parts import (
    NODE_FAULT,
    PEER_GRACE_S,
    BuildsSeen,
    CopiesSeen,
    DevicesSeen,
    ExitProcess,
    ForgetRun,
    ListRuns,
    PartKey,
    PartState,
    Published,
    PublishEvent,
    Rank,
    RankSaid,
    RankStats,
    RemoveCopies,
    RunDumped,
    RunEvicted,
    RunFrozen,
    RunHandled,
    RunRestored,
    RunSignalled,
    RunsListed,
    RunThawed,
    StartRank,
    StopRun,
    StoreOpened,
    SweepDevices,
    ToldFact,
    exited_part,
    part_facts,
    told_message,
)
from skep.machines.agent.reporting import ProfileTimes, progress_of
from skep.machines.base import Call, Effect, Record, Restarted, Send, Tick
from skep.units import Instant, after, seconds
from skep.wire import subjects
from skep.wire.bounds import COPIES_MAX
from skep.wire.codec import Unreadable
from skep.wire.commands import (
    BindJob,
    ChangeJob,
    ClearNode,
    Command,
    DropCopies,
    JoinAgain,
    RefuseNode,
    Resize,
    StopJob,
    is_restored,
)
from skep.wire.facts import (
    AgentFact,
    AgentStarted,
    BindTaken,
    ClearDone,
    EpochBegan,
    FloorRaised,
    PartOver,
    PartStarted,
    PartStepped,
    RankDown,
    RankUp,
    StopTaken,
)
from skep.wire.node import NodeCleared, NodeEvent, NodeJoined
from skep.wire.part_facts import (
    ChangeTaken,
    ChangeTried,
    PartChanged,
    PartFact,
    PartKnown,
    PartLoaded,
    PartReady,
    RankJoins,
    Stand,
)
from skep.wire.reports import Building, DeviceTrouble, Heartbeat, NodeReport, RankProgress
from skep.wire.runs import RunExited, RunNotStarted, RunStarted
from skep.wire.talk import Idle

Answered = (
    RunStarted
    | RunNotStarted
    | RunExited
    | RunHandled
    | RunsListed
    | StoreOpened
    | RankSaid
    | RankStats
    | DevicesSeen
    | BuildsSeen
    | CopiesSeen
    | Published
)
"""What an agent learns from its node: answers to its calls, its ranks and its devices."""

AgentEvent = Command | Answered | Unreadable
"""What an agent takes from outside."""

RESTORED = "the cluster was restored from a backup: this node begins anew"
REPORT_EVERY = seconds(1)
HOST_SHARE = 2
"""What suspended state may take of a node's memory, unless the operator says: one part in so many.
The rest is for the jobs that run meanwhile."""
FORGET_AT_ONCE = 32
"""Settled parts are forgotten in batches: one small fact for many, not one for each."""


class AgentMachine:
    """The behaviour of one node's agent."""

    def __init__(self, joined: NodeJoined) -> None:
        """Start with what the node has; `joined.incarnation` is counted by the machine."""
        self.joined = joined
        self.epoch_floor = 0
        self.floor = 0
        self.event = 0
        self.incarnation = 0
        self.join_event = 0
        self.parts: dict[PartKey, PartState] = {}
        self.progress: dict[PartKey, dict[int, RankProgress]] = {}
        self.profile_times = ProfileTimes()
        self.cleared = 0, 0
        """Up to which order nothing runs here any more, and the event that tells so."""
        self.clearing = 0
        """Up to which order everything is to go: soft, as the command is repeated."""
        self.settled = 0
        """The highest order the allocator says is answered: soft, as every command repeats it."""
        self.told: dict[int, None] = {}
        """Events the stream has: soft, as telling one again is harmless."""
        self.unsure: dict[str, None] = {}
        """Ranks that may have ended or never begun while no agent was there: soft, as every restart
        asks the runtime. Ranks started since are not among them: the list may be older."""
        self.used: dict[int, int] = {}
        self.trouble: tuple[DeviceTrouble, ...] = ()
        self.idling = Idling()
        """Devices' utilisation, in thousandths, and what they say is wrong with them: soft."""
        self.serial = 0
        """Numbers the tries to change a part: what ranks are told is fenced by it."""
        self.host_budget = joined.memory // HOST_SHARE
        """Bytes of the host's memory that suspended state may take."""
        self.changes = Changes(self)
        self.building: tuple[Building, ...] = ()
        """The environments that are being built. Soft."""
        self.copies: tuple[str, ...] = ()
        """The jobs with copies of their state in this node's memory. Soft."""
        self.report_at: Instant | None = None
        self.forget_at_once = FORGET_AT_ONCE
        """Bound of the parts that wait to be forgotten; a simulation makes it small."""
        self._effects: list[Effect] = []

    def decide(self, event: AgentEvent | Restarted | Tick, now: Instant) -> list[Effect]:
        """Return the facts, calls and messages that follow from `event`."""
        self._effects = []
        match event:
            case (
                BindJob()
                | StopJob()
                | ClearNode()
                | RefuseNode()
                | JoinAgain()
                | ChangeJob()
                | DropCopies()
            ):
                self._commanded(event, now)
            case RunStarted() | RunNotStarted() | RunExited() | RunsListed():
                self._told_of_run(event, now)
            case (
                RunFrozen()
                | RunThawed()
                | RunEvicted()
                | RunRestored()
                | RunSignalled()
                | RunDumped()
            ):
                self.changes.ran(event, now)
            case StoreOpened():
                self.changes.met(event, now)
            case RankSaid(message=Idle() as message):
                self.idling.heard(message, now)
            case RankSaid():
                self.changes.said(event.message, now)
            case RankStats():
                self._stats(event, now)
            case DevicesSeen() | BuildsSeen() | CopiesSeen():
                self._seen(event)
            case Published():
                self.told[event.event] = None
                self._forget_settled()
            case Tick():
                due = self.changes.wake_at()
                if due is None or due > now or now >= (self.report_at or now):
                    self._report(now)
                self.changes.due(now)
            case Restarted():
                self._restarted(now)
            case Unreadable():
                pass
        return self._effects

    def _commanded(self, command: Command, now: Instant) -> None:
        """Do what the allocator commands."""
        match command:
            case _ if self._is_of_a_restored_cluster(command):
                self._effects.append(Call(ExitProcess(RESTORED, anew=True)))
            case BindJob():
                self._bind(command, now)
            case StopJob():
                self._stop(command, now)
            case ClearNode():
                self._clear(command, now)
            case RefuseNode():
                if command.identity == self.joined.identity:
                    self._effects.append(Call(ExitProcess(command.text)))
            case JoinAgain():
                if command.identity == self.joined.identity and self.join_event in self.told:
                    self._join()
            case ChangeJob():
                if self._addressed(command):
                    self.changes.take(command, now)
            case DropCopies():
                if self._addressed(command):
                    left = self._without_part()
                    drop = [job for job in command.jobs if job in left]
                    self._effects += [Call(RemoveCopies(job)) for job in drop]

    def _seen(self, event: DevicesSeen | BuildsSeen | CopiesSeen) -> None:
        """Take in what is on the node, for the next heartbeat."""
        match event:
            case DevicesSeen():
                self.used = {each.index: each.utilisation for each in event.devices}
                self.trouble = troubles(event.devices)
            case BuildsSeen():
                self.building = event.building
            case CopiesSeen():
                self.copies = event.jobs

    def _told_of_run(
        self, event: RunStarted | RunNotStarted | RunExited | RunsListed, now: Instant
    ) -> None:
        """Take in what the runner says of the processes of ranks."""
        match event:
            case RunStarted():
                self._run_started(event, now)
            case RunNotStarted():
                text = f"{NODE_FAULT}{event.detail}" if event.of_node else event.detail
                self._down(event.token, None, now, started=False, detail=text)
            case RunExited():
                self._down(
                    event.token,
                    event.code,
                    now,
                    asked=event.asked,
                    detail=event.exceeded,
                    left=event.left,
                )
                self._effects.append(Call(ForgetRun(event.token)))
            case RunsListed():
                self._adopt(event, now)

    def wake_at(self) -> Instant | None:
        """Return when the next heartbeat and report, or the end of a wait, are due.

        Returns:
            The earliest of them; None: the agent has not been started.
        """
        due = self.changes.wake_at()
        return self.report_at if due is None else min(due, self.report_at or due)

    # --- commands ------------------------------------------------------------------------------

    def _is_of_a_restored_cluster(self, command: Command) -> bool:
        """Return whether the cluster was restored from a backup since it last commanded this agent.

        Then it does not know what this agent did since the backup, and gives the same names and
        numbers to other attempts and orders.
        """
        ours = command.identity == self.joined.identity
        return ours and is_restored(command.epoch, self.epoch_floor)

    def _without_part(self) -> list[str]:
        """Return the jobs with copies in this node's memory that have no part here, if it is over.

        An attempt that follows goes on from them.
        """
        here = {job for (job, _), part in self.parts.items() if part.over is None}
        return [job for job in self.copies if job not in here]

    def _addressed(self, command: BindJob | StopJob | ClearNode | ChangeJob | DropCopies) -> bool:
        return command.identity == self.joined.identity and command.epoch >= self.epoch_floor

    def _bind(self, command: BindJob, now: Instant) -> None:
        key = command.job, command.attempt
        known = self.parts.get(key)
        if not self._addressed(command) or command.order <= self.floor:
            return  # Overtaken.
        if known is not None:
            if known.over is None or not command.joins or command.order <= known.order:
                return  # What became of it was told or is being told.
            self._forget(known)  # Its ranks have left a gang that they are to join again.
        trouble = in_the_way(self.parts, command)
        self.record(BindTaken(command=command))
        for token in self.parts[key].ranks:
            if trouble:
                self.record(RankDown(token=token, code=None, started=False, detail=trouble))
            else:
                self.start_rank(key, token)
        if trouble:
            self._finish(key, now)
        self.raise_floor(command.settled)

    def start_rank(self, key: PartKey, token: str) -> None:
        """Have a rank executed, as part of the gang or to join it.

        Args:
            key: The job and the number of its attempt.
            token: The process of the rank.
        """
        part = self.parts[key]
        command, rank, change = part.command, part.ranks[token], part.changing
        assert command is not None, key
        if rank.out and change is not None and isinstance(change.change, Resize):
            command = joining(command, change.change)
        self._effects.append(Call(StartRank(token, command, rank.plan)))

    def _stop(self, command: StopJob, now: Instant) -> None:
        key = command.job, command.attempt
        part = self.parts.get(key)
        floor = self.floor + 1 if part is None else part.order
        if not self._addressed(command) or command.order < floor:
            return  # Overtaken.
        higher = part is not None and command.order > part.order
        # What it means never began: here is only what became of the attempt before.
        never = part is None or (part.over is not None and higher and part.came != command.joins)
        if part is None or higher:  # Also of what is over: it may arrive once more.
            if part is not None and never and command.joins:
                self._forget(part)
            self.record(
                StopTaken(
                    job=command.job,
                    attempt=command.attempt,
                    order=command.order,
                    epoch=command.epoch,
                    grace_ms=round(command.grace_s * 1000),
                    joins=command.joins if never else 0,
                )
            )
        part = self.parts[key]
        if part.over is None:
            self.changes.forget(key)
            self._stop_ranks(part, command.grace_s)
            self._finish(key, now)
        self.raise_floor(command.settled)

    def _clear(self, command: ClearNode, now: Instant) -> None:
        """Have everything end that began before this node's name was this agent's again."""
        if not self._addressed(command):
            return
        if command.order > self.floor:
            self.record(FloorRaised(order=command.order, event=self.event, epoch=command.epoch))
        self.clearing = max(self.clearing, command.order)
        for (job, attempt), part in list(self.parts.items()):
            if part.over is None and part.order <= command.order:
                if part.stop_grace_ms != 0:
                    self.record(
                        StopTaken(
                            job=job,
                            attempt=attempt,
                            order=command.order,
                            epoch=command.epoch,
                            grace_ms=0,
                        )
                    )
                self.changes.forget((job, attempt))
                self._stop_ranks(part, 0.0)
                self._finish((job, attempt), now)
        self._answer_clear()

    def _answer_clear(self) -> None:
        """Say that the node is clear once it is."""
        order = self.clearing
        left = any(part.over is None and part.order <= order for part in self.parts.values())
        if not order or left:
            return
        self.clearing = 0
        if order > self.cleared[0]:
            self.record(ClearDone(order=order, event=self.event + 1))
        done, event = self.cleared
        cleared = NodeCleared(node=self.joined.node, identity=self.joined.identity, order=done)
        self._publish(event, "cleared", cleared)

    def _stop_ranks(self, part: PartState, grace_s: float) -> None:
        for token, rank in part.ranks.items():
            if rank.down is None:
                self._effects.append(Call(StopRun(token, grace_s)))

    def stop_part(self, key: PartKey, now: Instant) -> None:
        """End a part that cannot go on."""
        self._stop_ranks(self.parts[key], PEER_GRACE_S)
        self._finish(key, now)

    # --- what the runtime says -----------------------------------------------------------------

    def _run_started(self, event: RunStarted, now: Instant) -> None:
        key, part = self.part_of(event.token)
        if part is None or part.ranks[event.token].down is not None:
            self._effects.append(Call(StopRun(event.token, 0.0)))
            return  # Nothing waits for it: what it was part of is over, or has mourned it.
        if part.ranks[event.token].up:
            return
        self.record(RankUp(token=event.token, pid=event.pid, start_ticks=event.start_ticks))
        self.changes.rank_up(key, event.token, now)
        if part.grace_s is not None:
            self._effects.append(Call(StopRun(event.token, part.grace_s)))
        elif part.started is None and all(rank.up for rank in part.ranks.values()):
            started = PartStarted(job=key[0], attempt=key[1], event=self.event + 1, at=event.at)
            self.record(started)
            self.publish_part(part, started)
            self.changes.started(key, now)

    def _down(
        self,
        token: str,
        code: int | None,
        now: Instant,
        *,
        started: bool = True,
        asked: bool = False,
        detail: str = "",
        left: tuple[str, ...] = (),
    ) -> None:
        key, part = self.part_of(token)
        if part is None or part.ranks[token].down is not None:
            return
        out = part.ranks[token].out
        change = part.changing
        joins = (
            change is not None
            and isinstance(change.change, Resize)
            and token in newcomers(part, change.change)
        )
        # What was not seen to end may have ended because it was asked to.
        stopped = asked or (code is None and part.stop_grace_ms is not None)
        self.record(
            RankDown(
                token=token, code=code, started=started, detail=detail, stopped=stopped, left=left
            )
        )
        if code != 0 and not stopped and not out:
            self._stop_ranks(part, PEER_GRACE_S)
        self.changes.rank_down(key, token, now, joining=joins)
        self._finish(key, now)

    def part_of(self, token: str) -> tuple[PartKey, PartState | None]:
        """Return which part the rank is of that a token names.

        Returns:
            The job and attempt that the token names, and their part here; None: the rank is not
            known here.
        """
        key = attempt_of_run(token)
        part = self.parts.get(key)
        return key, part if part is not None and token in part.ranks else None

    def _finish(self, key: PartKey, now: Instant) -> None:
        """Say that the part is over once every process is gone."""
        part = self.parts[key]
        if part.over is not None or not part.all_down:
            return
        latest = self.progress.get(key, {})
        exited = exited_part(key, part, self.joined, latest, now)
        over = PartOver(event=self.event + 1, exited=exited)
        self.record(over)
        self.publish_part(part, over)
        self.progress.pop(key, None)
        self.changes.forget(key)
        used = sorted(device for rank in part.ranks.values() for device in rank.plan.devices)
        if any(device in self.used for device in used):
            self.add(Call(SweepDevices(*key, tuple(used), also_used(self.parts, key, used))))
        self._answer_clear()

    # --- start and restart ---------------------------------------------------------------------

    def _restarted(self, now: Instant) -> None:
        """Join, tell again what may not have been heard, and ask what is running."""
        self.told = {}
        self.clearing = 0
        self.unsure = {
            token: None
            for part in self.parts.values()
            for token, rank in part.ranks.items()
            if rank.down is None
        }
        self._join()
        for part in self.parts.values():
            for fact in part.told_facts:
                self.publish_part(part, fact)
        self._effects.append(Call(ListRuns()))
        self.report_at = now

    def _join(self) -> None:
        self.record(AgentStarted(incarnation=self.incarnation + 1, event=self.event + 1))
        self._publish(self.join_event, "joined", self.joined)

    def _adopt(self, event: RunsListed, now: Instant) -> None:
        """Bring journal and runtime together: adopt what runs, mourn what vanished."""
        listed = {run.token: run for run in event.runs}
        for run in event.runs:
            _, part = self.part_of(run.token)
            if part is None or part.over is not None:
                call = StopRun(run.token, 0.0) if isinstance(run, RunStarted) else None
                self._effects.append(Call(call or ForgetRun(run.token)))
        for key, part in list(self.parts.items()):
            unsure = [token for token in self.unsure if token in part.ranks]
            # What is to begin now depends on what of the gang has ended meanwhile.
            for token in sorted(
                unsure, key=lambda token: token not in listed and not part.ranks[token].up
            ):
                if part.ranks[token].down is None:
                    self._adopt_rank(key, token, listed.get(token), now)
            if part.grace_s is not None and part.over is None:
                self._stop_ranks(part, part.grace_s)
        self.unsure = {}
        self.changes.adopted(listed, now)

    def _adopt_rank(
        self, key: PartKey, token: str, run: RunStarted | RunExited | None, now: Instant
    ) -> None:
        part = self.parts[key]
        if isinstance(run, RunStarted):
            self._run_started(run, now)
        elif isinstance(run, RunExited):
            self._down(token, run.code, now, asked=run.asked, left=run.left)
            self._effects.append(Call(ForgetRun(token)))
        elif part.ranks[token].up:
            self._down(token, None, now)
        elif part.grace_s is not None or part.waits_in_vain(token):
            self._down(token, None, now, started=False)
        else:
            self.start_rank(key, token)

    # --- progress ------------------------------------------------------------------------------

    def _stats(self, event: RankStats, now: Instant) -> None:
        key = event.job, event.attempt
        part = self.parts.get(key)
        if part is None or part.over is not None or part.command is None:
            return
        token = run_token(event.job, event.attempt, event.progress.rank)
        if token not in part.ranks:
            return
        self.progress.setdefault(key, {})[event.progress.rank] = event.progress
        self.changes.rank_up(key, token, now)
        if event.progress.steps and part.stepped is None and part.stand is not Stand.AWAITING:
            at = event.progress.last_step_at or now
            stepped = PartStepped(job=key[0], attempt=key[1], event=self.event + 1, at=at)
            self.record(stepped)
            self.publish_part(part, stepped)

    def _report(self, now: Instant) -> None:
        node = self.joined.node
        beat = Heartbeat(
            node=node,
            identity=self.joined.identity,
            at=now,
            incarnation=self.incarnation,
            trouble=self.trouble,
            epoch=self.epoch_floor,
            building=self.building,
            idle=self.idling.look(self.parts, self.progress, self.used, now),
            hung=hanging.look(self.parts, self.progress, now),
            copies=tuple(self._without_part()[:COPIES_MAX]),
        )
        self._effects.append(Send(subjects.heartbeat(node), beat))
        profiles = self.profile_times.due(self.progress, now)
        jobs = progress_of(self.parts, self.progress, self.used, profiles)
        if jobs:
            report = NodeReport(node=node, at=now, jobs=jobs)
            self._effects.append(Send(subjects.report(node), report))
        self.report_at = after(now, REPORT_EVERY)

    # --- facts ---------------------------------------------------------------------------------

    def add(self, *effects: Effect) -> None:
        """Ask for more in this decision."""
        self._effects += effects

    def record(self, fact: AgentFact) -> None:
        """Change durable state by a fact."""
        self.apply(fact)
        self._effects.append(Record(fact))

    def apply(self, fact: AgentFact) -> None:
        """Take over one fact."""
        match fact:
            case EpochBegan():
                pass
            case AgentStarted():
                self.incarnation, self.join_event = fact.incarnation, fact.event
                self.joined = msgspec.structs.replace(self.joined, incarnation=fact.incarnation)
                self.event = max(self.event, fact.event)
            case BindTaken():
                self._apply_bind(fact.command)
            case StopTaken():
                self.epoch_floor = max(self.epoch_floor, fact.epoch)
                key = fact.job, fact.attempt
                if fact.joins:
                    self.parts[key] = PartState(0, None, never=fact.joins)
                part = self.parts.setdefault(key, PartState(0, None))
                part.order, part.stop_grace_ms = fact.order, fact.grace_ms
            case RankUp():
                self._rank(fact.token)[1].up = True
            case RankDown():
                self._apply_down(fact)
            case PartStarted():
                self.parts[fact.job, fact.attempt].started = fact
                self.event = max(self.event, fact.event)
            case PartStepped():
                self.parts[fact.job, fact.attempt].stepped = fact
                self.event = max(self.event, fact.event)
            case PartOver():
                self.parts[fact.exited.job, fact.exited.attempt].over = fact
                self.event = max(self.event, fact.event)
            case FloorRaised():
                self.floor = max(self.floor, fact.order)
                self.event = max(self.event, fact.event)
                self.epoch_floor = max(self.epoch_floor, fact.epoch)
                self.serial = max(self.serial, fact.serial)
                for key in fact.forgotten:
                    self._forget(self.parts.pop(key))
            case ClearDone():
                self.cleared = fact.order, fact.event
                self.event = max(self.event, fact.event)
            case _:
                self._apply_change(fact)

    def _apply_down(self, fact: RankDown) -> None:
        part, rank = self._rank(fact.token)
        rank.down = fact
        if rank.out:
            del part.ranks[fact.token]  # How it ended is of no use to any command.
        elif fact.code != 0 and not part.first_down and not fact.stopped:
            part.first_down = fact.token

    def _apply_bind(self, command: BindJob) -> None:
        self.epoch_floor = max(self.epoch_floor, command.epoch)
        joins = bool(command.joins and command.awaits)
        ranks = {
            run_token(command.job, command.attempt, plan.rank): Rank(plan, out=joins)
            for plan in command.ranks
        }
        stand = Stand.AWAITING if command.awaits and not joins else Stand.RUNNING
        self.parts[command.job, command.attempt] = PartState(
            order=command.order, command=command, ranks=ranks, stand=stand
        )

    def _apply_change(self, fact: PartFact) -> None:
        """Take over a fact about the change of a part."""
        match fact:
            case PartKnown(event=event, known=known):
                self.parts[known.job, known.attempt].known = fact
                self.event = max(self.event, event)
            case PartReady(event=event, ready=ready):
                self.parts[ready.job, ready.attempt].ready = fact
                self.event = max(self.event, event)
            case PartLoaded(event=event, loaded=loaded):
                self.parts[loaded.job, loaded.attempt].loaded = fact
                self.event = max(self.event, event)
            case ChangeTaken(command=command, serial=serial):
                part = self.parts[command.job, command.attempt]
                part.change, part.order, part.serial = fact, command.order, serial
                self.serial = max(self.serial, serial)
                self.epoch_floor = max(self.epoch_floor, command.epoch)
            case ChangeTried():
                self.parts[fact.job, fact.attempt].serial = fact.serial
                self.serial = max(self.serial, fact.serial)
            case RankJoins():
                part = self.parts[attempt_of_run(fact.token)]
                part.ranks.pop(fact.token, None)
                part.ranks[fact.token] = Rank(fact.plan, out=True)
            case PartChanged(event=event, changed=changed):
                apply_change(self.parts[changed.job, changed.attempt], fact)
                self.event = max(self.event, event)

    def _forget(self, part: PartState) -> None:
        for fact in part.told_facts:
            self.told.pop(fact.event, None)

    def _rank(self, token: str) -> tuple[PartState, Rank]:
        _, part = self.part_of(token)
        assert part is not None, token
        return part, part.ranks[token]

    def check(self) -> None:
        """Assert that what is over is told, and that nothing over still reports.

        Raises:
            AssertionError: One of them does not hold.
        """
        for key, part in self.parts.items():
            assert (part.over is None) or part.all_down, key
            assert part.over is not None or not part.all_down, f"{key}: gone but not told"
            assert part.over is None or key not in self.progress, key
            assert bool(part.holds) == part.stands_frozen, f"{key}: {part.holds}, {part.stand}"
        for key, drive in self.changes.soft.drives.items():
            part = self.parts[key]
            assert part.changing is drive.command, f"{key}: a change that is answered goes on"
            assert drive.waits, f"{key}: {drive.phase} waits for no rank"

    def snapshot(self) -> list[AgentFact]:
        """Return the facts that rebuild this state: what a compacted journal holds."""
        facts: list[AgentFact] = [
            AgentStarted(incarnation=self.incarnation, event=self.join_event),
            FloorRaised(
                order=self.floor, event=self.event, epoch=self.epoch_floor, serial=self.serial
            ),
            ClearDone(order=self.cleared[0], event=self.cleared[1]),
        ]
        for key, part in self.parts.items():
            facts += part_facts(key, part)
        return facts

    # --- outbox and floor ------------------------------------------------------------------------

    def _publish(self, number: int, event: str, message: NodeEvent) -> None:
        """Have event `number` put into the stream; it is told again until Published."""
        subject = subjects.node_event(self.joined.node, event)
        key = f"{self.joined.identity}:{number}"
        self._effects.append(Call(PublishEvent(number, subject, key, message)))

    def publish_part(self, part: PartState, fact: ToldFact) -> None:
        """Have what became of a part told, under the number that its fact has.

        Args:
            part: The part that the fact is about.
            fact: What became of it, with the number of the event.
        """
        name, message = told_message(part, fact, self.joined)
        self._publish(fact.event, name, message)

    def raise_floor(self, settled: int) -> None:
        """Take the allocator's word for which orders are answered.

        Args:
            settled: The highest order that the allocator says is answered.
        """
        self.settled = max(self.settled, settled)
        self._forget_settled()

    def _forget_settled(self) -> None:
        """Forget parts that are over and told, and whose orders the allocator saw answered."""
        forgotten = tuple(
            key
            for key, part in self.parts.items()
            if part.over is not None and part.over.event in self.told and part.order <= self.settled
        )
        if len(forgotten) >= self.forget_at_once:
            self.record(
                FloorRaised(
                    order=self.settled,
                    event=self.event,
                    epoch=self.epoch_floor,
                    forgotten=forgotten,
                    serial=self.serial,
                )
            )
