"""The allocator's hands: stopping what must end, telling nodes, repeating what is unanswered.

Everything here reads the allocator's state and changes it only through its `record`. `Soft` holds
what a crash may forget: timers, heartbeats and advice.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from skep.base.timers import TimerHeap
from skep.cells.holds import Request
from skep.cells.nodes import Attempt, NodeState
from skep.cells.patrol import Patrol
from skep.cells.state import Cells
from skep.ledger import attempt_names, size_facts
from skep.ledger.job_state import GIVES_WAY, JobState, Part, State, Successor
from skep.ledger.state import Place
from skep.machines.allocator import cellwork, changes, resizes, suspects, watch
from skep.machines.allocator.views import Planned
from skep.machines.base import Record, Send
from skep.units import Duration, Instant, after, seconds
from skep.wire import subjects
from skep.wire.advice import JobPace, ScalePoint
from skep.wire.changes import Goal
from skep.wire.cluster import Cluster
from skep.wire.commands import (
    AGENT_PYTHON,
    BindJob,
    ChangeJob,
    ClearNode,
    JoinAgain,
    RefuseNode,
    StopJob,
)
from skep.wire.facts import GhostGone, JobStopping, MemberGone, NodeAdded, NodeBack, NodeLost
from skep.wire.moves import SuccessorDropped
from skep.wire.node import JOIN_DELAY_MAX, NodeJoined, Outcome
from skep.wire.reasons import Reason
from skep.wire.reports import Heartbeat
from skep.wire.spec import JobSpec
from skep.wire.trials import OpenTrial

if TYPE_CHECKING:
    from skep.machines.allocator.lending import Line
    from skep.machines.allocator.machine import AllocatorMachine

RESEND_AFTER = seconds(2)
"""How long a command may stay unanswered before it is repeated: many times an agent's usual answer
(a few milliseconds), and far below a person's patience."""
NODE_CHECK_EVERY = seconds(1)
"""How often nodes are looked for that fell silent, and the watch over the cells goes on."""
NODE_LOST_AFTER = seconds(40)
"""Silence after which a node's jobs are given up: far beyond an agent's restart (a second) and a
bus election (4 to 9 s), well within what a user would wait."""
TAKE_OVER_AFTER = seconds(5)
"""Silence after which another agent may take a node's name: five heartbeats."""
GRACE_S = 10.0
"""What a job gets between SIGTERM and SIGKILL: long enough to write a checkpoint of some 100 MB."""
PREEMPT_GRACE_S = 5.0
READY_WITHIN = seconds(600)
"""What a successor gets to import, build and warm up: compiling a large model takes minutes."""
YIELDS_WITHIN = seconds(15)
"""How long who waits for GPUs waits for the end of a change of size, before the gang is stopped."""
LOSS_FACTS_MAX = 1000
"""With so many facts a decision gives up no further node: one record has to hold them."""
assert NODE_CHECK_EVERY * 3 <= TAKE_OVER_AFTER < NODE_LOST_AFTER


Reminder = tuple[str, str, int]
"""Look at an attempt again: a node's name, or empty for the time limit; the job; the attempt.
Without a job, look again whether the node is clear. With minus the attempt and no node: the end of
the patience of whoever waits for its GPUs."""


class Telling:
    """What of open trials was told, and looked at; and whose rate nobody can be sure of."""

    def __init__(self) -> None:
        """Start with nothing told."""
        self.told: tuple[OpenTrial, ...] = ()
        """The open trials as the introspector was told last."""
        self.again = Instant(0)
        """When it is told again."""
        self.at: Instant | None = None
        """When a trial is to be looked at, or they are to be told again."""
        self.touched = True
        """Whether something was recorded that may matter to one, and was not looked at."""
        self.stale = True
        """Likewise, and was not told."""
        self.unsure: dict[str, Instant] = {}
        """Jobs that were just resized, or whose GPUs others came to or left: until when a rate told
        may be of before; 0: as of this decision."""
        self.unsettled: dict[str, tuple[Instant, Instant]] = {}
        """Jobs that have shared GPUs, and may be alone: since when, and when that is looked at; 0:
        as of this decision."""
        self.settled: dict[str, int] = {}
        """By job that has shared GPUs: the attempt, if what was told of it last is of it alone."""
        self.alone: dict[str, tuple[int, int]] = {}
        """Likewise if it shares some again: the attempt, and its rate alone before, in
        thousandths."""


class Soft:
    """Timers, heartbeats and advice: rebuilt after a restart, never part of the truth."""

    def __init__(self) -> None:
        """Start knowing nothing."""
        self.timers = TimerHeap[Reminder]()
        """When each reminder falls due."""
        self.last_heard: dict[str, Instant] = {}
        """When each node was heard, or could first have been."""
        self.speaking: dict[str, None] = {}
        """Nodes whose heartbeat was really heard: `last_heard` also holds the benefit of doubt."""
        self.inventory_at: dict[str, Instant] = {}
        """When each node's inventory was taken, or could last have been."""
        self.check_at: Instant | None = None
        self.losing = False
        """Whether further nodes may have to be given up first: until then no job is placed."""
        self.joined_at = Instant(0)
        """When a node last joined, or came with another inventory."""
        self.resolve_at: Instant | None = None
        """When the cells follow the nodes that joined since they last did."""
        self.advice_until = Instant(0)
        self.changes = 0
        """How often something came free, or may have: what could not be placed is tried again."""
        self.failed: dict[tuple[str, bool], tuple[str, int]] = {}
        """By queue: the head that could not be placed, and `changes` then."""
        self.returned: dict[tuple[str, bool], None] = {}
        """Queues that a job came back to in this decision, because its claim was cancelled."""
        self.returning: dict[str, None] = {}
        """Suspended jobs without GPUs, of VCs without a policy, for which others leave theirs."""
        self.ripe: dict[str, None] = {}
        """Jobs with a reservation of which something may have changed since it was looked at."""
        self.vacant: Cells | None = None
        """The cells with nothing on them, for telling what can never be placed on them."""
        self.fits_vacant: dict[Request, bool] = {}
        """Whether they would hold a request (of no job), as far as that was asked."""
        self.story: deque[Any] = deque(maxlen=watch.STORY_KEPT)
        """The latest facts, for whoever has to find out how something came about."""
        self.patrol: Patrol | None = None
        self.patrol_at = Instant(0)
        """When the watch next goes on with its round."""
        self.seen: dict[Place, None] = {}
        """What was found broken in this round."""
        self.looked = -1, -1
        """`changes` and the latest request when suspended jobs were last looked at."""
        self.reshare: dict[str, None] = {}
        """Jobs whose partners on their GPUs may have changed since they were told their share."""
        self.uncovered: dict[str, int] = {}
        """By job that borrows GPUs: `changes` when its VC's cells could not cover it."""
        self.unlent: dict[Any, tuple[int, tuple[Reason, str] | None]] = {}
        """By VC and what was asked for: `changes` when nothing idle served it, and what was said of
        that."""
        self.anew: dict[str, None] = {}
        """Jobs that stood without GPUs, and are stopped to begin anew: their turn is kept."""
        self.lines: dict[str, Line] = {}
        """By VC without a policy: the jobs that may have idle GPUs while they wait."""
        self.planned: dict[str, Planned] = {}
        """By VC whose policy is another than first come, first served: what is kept of its view."""
        self.unmade: dict[str, str] = {}
        """VCs whose policy cannot be made, and why: another version took its options."""
        self.planned_for: Cluster | None = None
        """The cluster that `planned` was made for."""
        self.touched: dict[str, None] = {}
        """Jobs of any VC about which something was recorded since the views were last brought up
        to date."""
        self.left: dict[str, tuple[Duration, int]] = {}
        """By job: how long it still had to run, as predicted, when it had been served so long."""
        self.paces: dict[str, tuple[JobPace, Instant]] = {}
        """By job that runs or is suspended: how it went when that was last told, and when."""
        self.telling = Telling()
        self.scales: dict[tuple[str, str], tuple[ScalePoint, ...]] = {}
        """By family and type of GPU: how it scales, as it was last told."""

    def wake_at(self) -> Instant | None:
        """Return the earliest timer."""
        timer = self.timers.first_due()
        first = None if timer is None else Instant(timer)
        if self.check_at is not None and (first is None or self.check_at < first):
            first = self.check_at
        if self.resolve_at is not None and (first is None or self.resolve_at < first):
            first = self.resolve_at
        if self.telling.at is not None and (first is None or self.telling.at < first):
            first = self.telling.at
        for each in self.planned.values():
            if each.look_at is not None and (first is None or each.look_at < first):
                first = each.look_at
        return first

    def remind(self, at: Instant, reminder: Reminder) -> None:
        """Ask for a reminder, in place of the same one asked for earlier."""
        self.timers.set_timer(reminder, at)

    def call_off(self, reminder: Reminder) -> None:
        """Do without a reminder."""
        self.timers.cancel(reminder)


def restarted(machine: AllocatorMachine, now: Instant) -> None:
    """Take up every command that may not have been sent, and give every node time to speak."""
    soft = machine.soft = Soft()
    for name in machine.state.nodes:
        soft.last_heard[name] = now
    if machine.state.nodes:
        soft.check_at = after(now, machine.node_check_every)
    soft.ripe = dict.fromkeys(machine.state.reserved)
    cellwork.state_bad_cells(machine)
    # Nodes may have joined that the cells had yet to follow.
    cellwork.resolve(machine, machine.state.asked)
    for job in machine.state.jobs.values():
        if job.lent and job.state is State.STOPPING:
            soft.anew[job.job] = None
        for name in job.parts:
            command(machine, name, job.job, job.attempt, now)
        if job.state is State.RUNNING:
            limit(machine, job, now)
            soft.reshare[job.job] = None
            if job.mixed:
                soft.telling.unsettled[job.job] = Instant(0), Instant(0)
        if job.successor is not None:
            for name in job.successor.members:
                command(machine, name, job.job, job.successor.attempt, now)
            soft.remind(after(now, READY_WITHIN), ("", job.job, job.successor.attempt))
    for name, node in machine.state.nodes.items():
        for attempt in node.ghosts:
            command(machine, name, *attempt, now)
        clear(machine, name, now)


def awake(machine: AllocatorMachine, now: Instant) -> None:
    """Hold nobody's silence against him if this process itself slept, or its clock was set.

    Its own timer being late shows that: a laptop that wakes up finds every node silent for hours.
    """
    soft = machine.soft
    if soft.check_at is not None and now - soft.check_at > TAKE_OVER_AFTER:
        soft.last_heard = dict.fromkeys(soft.last_heard, now)
        soft.speaking = {}


def tick(machine: AllocatorMachine, now: Instant) -> None:
    """Do what has fallen due."""
    soft = machine.soft
    for node, name, attempt in soft.timers.pop_due(now):
        if node and not name:
            clear(machine, node, now)
        elif node:
            command(machine, node, name, attempt, now)
        else:
            job = machine.state.jobs.get(name)
            if job is not None and attempt < 0:
                _hurry(machine, job, -attempt, now)
            elif job is not None and job.succeeds(attempt):
                machine.give_up_move(job, now, "the successor took too long")
            elif job is not None and job.attempt == attempt and job.state is State.RUNNING:
                stop(machine, job, Reason.TIME_LIMIT, now, f"limit {job.spec.limits.time} s")
    if soft.resolve_at is not None and soft.resolve_at <= now:
        cellwork.resolve(machine, machine.state.asked)
    if soft.check_at is not None and soft.check_at <= now:
        soft.check_at = after(now, machine.node_check_every)
        _look_for_lost_nodes(machine, now)
        suspects.convict(machine, now)
        watch.go_round(machine, now)


def _hurry(machine: AllocatorMachine, job: JobState, attempt: int, now: Instant) -> None:
    """Stop who was to make room once it had changed its size, or went on, and has not."""
    claimers = machine.state.cells.claimers(attempt_names.holder(job.job, attempt))
    open_still = job.change is None or job.change.goal in (Goal.RESIZE, Goal.RESUME)
    alive = job.state in (State.RUNNING, State.SUSPENDED)
    if job.attempt == attempt and alive and claimers and open_still:
        stop(machine, job, Reason.PREEMPTED, now, f"for {attempt_names.job_of(claimers[0])}")


def limit(machine: AllocatorMachine, job: JobState, now: Instant) -> None:
    """Arm the time limit of an attempt that runs; what it was suspended for does not count."""
    if isinstance(job.spec.limits.time, int):
        # A clock that was set back since, or while it stood, would make the limit as much longer.
        began_at = min(after(job.ran_at, Duration(job.suspended_ns)), now)
        ends_at = after(began_at, seconds(job.spec.limits.time))
        machine.soft.remind(ends_at, ("", job.job, job.attempt))


# --- nodes -------------------------------------------------------------------------------------


def heartbeat(machine: AllocatorMachine, event: Heartbeat, now: Instant) -> None:
    """Note that a node lives; one that was lost must first confirm what it still holds."""
    node = machine.state.nodes.get(event.node)
    if node is None:
        return
    if node.joined.identity != event.identity:
        if _silent(machine, node, now):
            # Its join takes the name over. It may be on its way, or have come too early for that.
            _ask_to_join(machine, event)
        elif event.node in machine.soft.speaking:
            _refuse(machine, event.node, event.identity)
        return
    machine.soft.last_heard[event.node] = now
    machine.soft.speaking[event.node] = None
    if event.incarnation > node.joined.incarnation:
        # Its latest join came while another had the name, or has not come yet.
        _ask_to_join(machine, event)
    elif 0 < event.incarnation < node.joined.incarnation and not _taken_lately(machine, node, now):
        # The agent never said what is known of its node.
        _ask_to_join(machine, event)
    if node.lost:
        _back(machine, event.node, now)
    elif event.trouble:
        suspects.troubled(machine, event)


def _ask_to_join(machine: AllocatorMachine, event: Heartbeat) -> None:
    again = JoinAgain(epoch=machine.state.epoch, node=event.node, identity=event.identity)
    machine.effects.append(Send(subjects.command(event.node), again))


def joined(machine: AllocatorMachine, event: NodeJoined, now: Instant) -> None:
    """Take in a node, or refuse a second agent of its name while the first is alive."""
    node = machine.state.nodes.get(event.node)
    replaced = node is not None and node.joined.identity != event.identity
    if node is not None and replaced:
        if not _silent(machine, node, now):
            if event.node in machine.soft.speaking:
                _refuse(machine, event.node, event.identity)
            return  # Whoever has the name may speak yet; if not, the newcomer is asked again.
        _replace(machine, node, now)
    elif (
        node is not None
        and event.incarnation < node.joined.incarnation
        and _taken_lately(machine, node, now)
    ):
        return  # Published by an earlier process of this agent, stored after a later one's.
    machine.soft.last_heard[event.node] = machine.soft.inventory_at[event.node] = now
    if machine.soft.check_at is None:
        machine.soft.check_at = after(now, machine.node_check_every)
    if node is None or node.joined != event:
        machine.record(NodeAdded(joined=event, clear=machine.state.order if replaced else 0))
        cellwork.follow_join(machine, now)
    if node is not None and node.lost:
        _back(machine, event.node, now)
    elif node is not None:
        for attempt in list(node.holdings):
            command(machine, event.node, *attempt, now)
        clear(machine, event.node, now)


def _taken_lately(machine: AllocatorMachine, node: NodeState, now: Instant) -> bool:
    """Return whether a node's inventory is so new that an earlier join may still be on its way."""
    return now - machine.soft.inventory_at.setdefault(node.joined.node, now) <= JOIN_DELAY_MAX


def _silent(machine: AllocatorMachine, node: NodeState, now: Instant) -> bool:
    """Return whether nothing was heard of a node for so long that another may take its name."""
    heard = machine.soft.last_heard.get(node.joined.node, now)
    return node.lost or now - heard > TAKE_OVER_AFTER


def _replace(machine: AllocatorMachine, node: NodeState, now: Instant) -> None:
    """Give up everything on a node whose agent was replaced by one with another state folder.

    The newcomer has other processes and says what GPUs it has. If it had the name before, its old
    processes may still run: it gets no work until it has confirmed that they are gone.
    """
    name = node.joined.node
    if not node.lost:
        _lose(machine, name, now)
    machine.soft.speaking.pop(name, None)
    for job, attempt in list(node.ghosts):
        machine.record(GhostGone(job=job, attempt=attempt, node=name))


def _refuse(machine: AllocatorMachine, name: str, identity: str) -> None:
    text = f"another agent named {name} is alive: give this one another name"
    refusal = RefuseNode(epoch=machine.state.epoch, node=name, identity=identity, text=text)
    machine.effects.append(Send(subjects.command(name), refusal))


def _back(machine: AllocatorMachine, name: str, now: Instant) -> None:
    machine.record(NodeBack(node=name))
    for attempt in list(machine.state.nodes[name].ghosts):
        command(machine, name, *attempt, now)
    clear(machine, name, now)


def _look_for_lost_nodes(machine: AllocatorMachine, now: Instant) -> None:
    machine.soft.losing = False
    for name, node in machine.state.nodes.items():
        heard = machine.soft.last_heard.setdefault(name, now)
        if not node.lost and now - heard > machine.node_lost_after:
            _lose(machine, name, now)
            # It follows from the facts alone, so it is the same if the log is decided again.
            if sum(isinstance(each, Record) for each in machine.effects) > LOSS_FACTS_MAX:
                machine.soft.losing, machine.soft.check_at = True, now
                return


def _lose(machine: AllocatorMachine, name: str, now: Instant) -> None:
    """Give up what runs on a node; its GPUs stay taken until it confirms that they are free."""
    machine.record(NodeLost(node=name))
    node = machine.state.nodes[name]
    for job_name, attempt in list(node.holdings):
        if (job_name, attempt) in node.ghosts:
            continue
        job = machine.state.jobs[job_name]
        if job.succeeds(attempt):
            machine.give_up_move(job, now, f"{name} was lost")
            continue
        if job.state is not State.STOPPING:
            stop(machine, job, Reason.NODE_LOST, now, name)
        machine.record(
            MemberGone(
                job=job_name,
                attempt=attempt,
                node=name,
                free=False,
                outcome=Outcome.UNKNOWN,
                detail="node lost",
            )
        )
        machine.settle(job, now)


# --- commands ----------------------------------------------------------------------------------


def stop(
    machine: AllocatorMachine, job: JobState, why: Reason, now: Instant, detail: str = ""
) -> None:
    """End an attempt, and what was to be changed of it: told to every node with a part of it."""
    abandon(machine, job, now)
    machine.record(
        JobStopping(
            job=job.job,
            attempt=job.attempt,
            order=machine.state.order + 1,
            why=why,
            at=now,
            detail=detail,
            trace=job.trace,
        )
    )
    for name in job.parts:
        command(machine, name, job.job, job.attempt, now)


def abandon(machine: AllocatorMachine, job: JobState, now: Instant) -> None:
    """End whatever was to be changed of an attempt."""
    drop(machine, job, now, Reason.OVERTAKEN)
    changes.overtake(machine, job, now)


def drop(
    machine: AllocatorMachine, job: JobState, now: Instant, why: Reason, detail: str = ""
) -> None:
    """Stop a successor, if there is one."""
    successor = job.successor
    if successor is None:
        return
    machine.record(
        SuccessorDropped(
            job=job.job,
            attempt=successor.attempt,
            why=why,
            at=now,
            order=machine.state.order + 1,
            detail=detail,
        )
    )
    machine.soft.call_off(("", job.job, successor.attempt))
    for name in successor.members:
        command(machine, name, job.job, successor.attempt, now)


def command(
    machine: AllocatorMachine, name: str, job_name: str, attempt: int, now: Instant
) -> None:
    """Tell a node what it has not answered about an attempt, and look again later.

    Says nothing if nothing is owed, so a reminder may come late or twice.
    """
    node = machine.state.nodes[name]
    key: Attempt = (job_name, attempt)
    message = _owed(machine, node, key)
    if message is not None and not node.lost:
        machine.effects.append(Send(subjects.command(name), message, _headers(machine, job_name)))
        machine.soft.remind(after(now, RESEND_AFTER), (name, job_name, attempt))


def clear(machine: AllocatorMachine, name: str, now: Instant) -> None:
    """Have a node's new owner end what is left of an earlier time there, if that is owed."""
    node = machine.state.nodes[name]
    if node.clearing and not node.lost:
        message = ClearNode(
            order=node.clearing, epoch=machine.state.epoch, node=name, identity=node.joined.identity
        )
        machine.effects.append(Send(subjects.command(name), message))
        machine.soft.remind(after(now, RESEND_AFTER), (name, "", 0))


def _headers(machine: AllocatorMachine, job_name: str) -> dict[str, str]:
    job = machine.state.jobs.get(job_name)
    return {subjects.TRACE_HEADER: job.trace} if job is not None and job.trace else {}


def _owed(
    machine: AllocatorMachine, node: NodeState, key: Attempt
) -> BindJob | StopJob | ChangeJob | None:
    """Return the command a node has not answered about an attempt, or None."""
    name = node.joined.node
    if key in node.ghosts:
        return _stop_command(machine, node, key, node.ghosts[key], 0.0)
    job = machine.state.jobs.get(key[0])
    if job is not None and job.succeeds(key[1]):
        assert job.successor is not None
        listens = name in job.successor.doors
        return None if listens else _bind_command(machine, job, name, job.successor)
    if job is None or job.attempt != key[1] or job.parts.get(name, Part.GONE) is Part.GONE:
        return None
    if job.state is State.STOPPING:
        grace_s = PREEMPT_GRACE_S if job.stopped_why in GIVES_WAY else GRACE_S
        return _stop_command(machine, node, key, job.order, grace_s)
    if job.parts[name] is Part.BOUND:
        return _bind_command(machine, job, name, job)
    return changes.owed(machine, job, node, machine.state.epoch)


def _stop_command(
    machine: AllocatorMachine, node: NodeState, key: Attempt, order: int, grace_s: float
) -> StopJob:
    return StopJob(
        order=order,
        epoch=machine.state.epoch,
        settled=node.settled(machine.state.order),
        node=node.joined.node,
        identity=node.joined.identity,
        job=key[0],
        attempt=key[1],
        grace_s=grace_s,
        joins=node.holdings[key].came,
    )


def _bind_command(
    machine: AllocatorMachine, job: JobState, name: str, made: JobState | Successor
) -> BindJob:
    node, member = machine.state.nodes[name], made.members[name]
    first = next(member for member in made.members.values() if member.first_rank == 0)
    joins, world = 0, job.size
    if isinstance(made, JobState) and (joins := size_facts.came(machine.state, made, name)):
        world = 1 + max(one.numbers[-1] for one in made.members.values())
    ranks = resizes.plans(member, world)
    return BindJob(
        order=joins or made.order,
        epoch=machine.state.epoch,
        settled=node.settled(machine.state.order),
        node=name,
        identity=member.identity,
        job=job.job,
        attempt=made.attempt,
        name=job.spec.name,
        vc=job.spec.vc,
        argv=argv(job.spec),
        ranks=ranks,
        world=world,
        node_rank=list(made.members).index(name),
        nodes=len(made.members),
        master_address=machine.state.nodes[first.node].joined.address,
        master_port=made.port,
        env=job.spec.env,
        workdir=job.spec.workdir or "",
        trace=job.trace,
        image=job.spec.runtime.image if job.spec.runtime is not None else "",
        awaits=f"generation-{joins}" if joins else _awaited(made),
        share=0.0 if isinstance(made, Successor) else made.told[0],
        beside=() if isinstance(made, Successor) else made.told[1],
        joins=joins,
        servers=job.spec.ps.servers if job.spec.ps is not None else 0,
        secret=job.secret,
        distributed=job.spec.is_distributed,
        python=job.spec.python or "",
    )


def argv(spec: JobSpec) -> tuple[str, ...]:
    """Return the command line of every worker of a job."""
    if spec.script is not None:
        module = "skep_job" if spec.ps is None else "skep_job.ps.launch"
        return (AGENT_PYTHON, "-m", module, spec.script, *spec.args)
    if isinstance(spec.command, str):
        return ("/bin/sh", "-c", spec.command)
    assert spec.command is not None, spec
    return spec.command


def _awaited(made: JobState | Successor) -> str:
    return made.secret if isinstance(made, Successor) else ""
