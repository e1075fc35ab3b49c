"""A small world for transcripts: the real machines, a network without delay, processes by name.

Commands, one a line:

    vcs nlp=8 cv=4              the operator sets the tenants
    up node-1 4                 an agent with so many GPUs starts
    submit nlp gpus=2 key=k1    a tenant publishes a spec: its fields, and the header's `key`
    publish nlp {"name": 1}     a tenant publishes whatever follows
    cancel nlp j1               a tenant cancels
    steps j1.1.0 5              a process reports so many mini-batches
    exit j1.1.0 3               a process ends by itself
    drain node-1 | undrain node-1
    quarantine node-1 0         the operator counts a GPU as bad
    wait 5                      seconds pass; timers ring
    cut node-1 | mend node-1    the node is out of reach; in reach again
    crash allocator             a process dies and starts again from its facts
    doom allocator              it will die once: after its next facts, before anything is sent

What follows from a command is listed in order: who records, tells, calls or publishes what.
Heartbeats, reports and the calls that only tidy up are left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec

from skep.cells.check import check_cells
from skep.machines import agent as calls
from skep.machines.admission import AdmissionMachine
from skep.machines.agent import AgentMachine
from skep.machines.allocator import AllocatorMachine
from skep.machines.base import Call, Effect, Record, Restarted, Send, Tick
from skep.units import Instant, after, in_seconds, seconds
from skep.wire.admin import DrainNode, QuarantineGpu, SetVcs
from skep.wire.bearing import RULES
from skep.wire.cluster import Cluster, VirtualCluster
from skep.wire.codec import CancelRequest, Facts
from skep.wire.facts import EpochBegan, Member
from skep.wire.node import NodeJoined
from skep.wire.reports import Heartbeat, NodeReport, RankProgress
from skep.wire.runs import RunExited, RunStarted
from skep.wire.verdict import Verdict
from tests.kit import T0, joined, spec, submission, vcs

HIDDEN = {
    "spec",
    "trace",
    "identity",
    "argv",
    "env",
    "name",
    "vc",
    "command",
    "plan",
    "epoch",
    "submitted_at",
    "master_address",
    "workdir",
    "key",
    "subject",
    "address",
    "ports",
    "cpus",
    "memory",
    "pid",
    "start_ticks",
    "incarnation",
    "order",
    "headers",
    "asked",
}
"""Fields that say nothing about the story, or the same in every line."""
SHOWN_ORDERS = ("BindJob", "StopJob", "JobBound", "JobStopping", "FloorRaised")
QUIET = (Heartbeat, NodeReport, calls.ForgetRun, calls.ListRuns)


class World:
    """The processes of a small cluster; `lines` is what happened since it was last emptied."""

    def __init__(self) -> None:
        self.now = T0
        self.machines: dict[str, Any] = {}
        self.facts: dict[str, list[Any]] = {}
        self.epochs: dict[str, int] = {}
        self.joins: dict[str, NodeJoined] = {}
        self.running: dict[str, RunStarted] = {}
        self.ended: dict[str, RunExited] = {}
        self.cut: list[str] = []
        self.doomed: list[str] = []
        self.inbox: deque[tuple[str, Any]] = deque()
        self.outbox: dict[str, list[Any]] = {}
        self.sequence = 0
        self.lines: list[str] = []
        for service in ("admission", "allocator"):
            self.start(service)

    # --- commands --------------------------------------------------------------------------------

    def run(self, line: str) -> list[str]:
        """Carry out a command and return what followed."""
        self.lines = []
        word, _, rest = line.partition(" ")
        getattr(self, f"do_{word}")(*([rest] if word == "publish" else rest.split()))
        self.settle()
        return self.lines

    def do_vcs(self, *quotas: str) -> None:
        event = SetVcs(vcs=vcs(**{name: int(gpus) for name, gpus in map(_pair, quotas)}))
        self.tell("admission", event)
        self.tell("allocator", event)

    def do_up(self, node: str, gpus: str) -> None:
        self.joins[node] = joined(node, int(gpus))
        self.start(node)

    def do_submit(self, vc: str, *fields: str) -> None:
        given = {name: _value(text) for name, text in map(_pair, fields)}
        key = str(given.pop("key", ""))
        self.publish(vc, spec(vc=vc, **given), key)

    def do_publish(self, rest: str) -> None:
        vc, _, raw = rest.partition(" ")
        self.publish(vc, raw.encode(), "")

    def publish(self, vc: str, raw: Any, key: str) -> None:
        self.sequence += 1
        reply = f"_INBOX.vc-{vc}.x"
        event = submission(self.sequence, vc=vc, raw=raw, at=self.now, key=key, reply=reply)
        self.tell("admission", event)

    def do_cancel(self, vc: str, job: str) -> None:
        raw = msgspec.json.encode({"job": job})
        reply = f"_INBOX.vc-{vc}.x"
        self.tell("admission", CancelRequest(vc=vc, raw=raw, at=self.now, reply=reply))

    def do_steps(self, token: str, steps: str) -> None:
        job, attempt, rank = token.split(".")
        progress = RankProgress(rank=int(rank), steps=int(steps), last_step_at=self.now)
        self.tell(self.node_of(token), calls.RankStats(job, int(attempt), progress))

    def do_exit(self, token: str, code: str) -> None:
        self.end(token, int(code))

    def do_drain(self, node: str) -> None:
        self.tell("allocator", DrainNode(node=node))

    def do_undrain(self, node: str) -> None:
        self.tell("allocator", DrainNode(node=node, drain=False))

    def do_quarantine(self, node: str, device: str) -> None:
        self.tell("allocator", QuarantineGpu(node=node, device=int(device)))

    def do_wait(self, length_s: str) -> None:
        target = after(self.now, seconds(float(length_s)))
        while (due := self.next_due()) is not None and due[0] <= target:
            self.now = max(self.now, due[0])
            self.tell(due[1], Tick())
            self.settle()
        self.now = target

    def do_cut(self, node: str) -> None:
        self.cut.append(node)

    def do_mend(self, node: str) -> None:
        self.cut.remove(node)
        for call in self.outbox.pop(node, []):
            self.publish_event(node, call)

    def do_crash(self, who: str) -> None:
        self.start(who)

    def do_doom(self, who: str) -> None:
        self.doomed.append(who)

    # --- processes -------------------------------------------------------------------------------

    def start(self, who: str) -> None:
        """Make a machine from its facts, win its next epoch, and let it begin."""
        make = {"admission": AdmissionMachine, "allocator": AllocatorMachine}.get(who)
        self.machines[who] = make() if make else AgentMachine(self.joins[who])
        self.epochs[who] = self.epochs.get(who, 0) + 1
        began = EpochBegan(epoch=self.epochs[who], owner=who, rules=RULES)
        self.facts.setdefault(who, []).append(began)
        for fact in self.facts[who]:
            self.machines[who].apply(fact)
        # What a service reads from streams is read again; whatever else was on its way is lost.
        lost = Heartbeat if make else object
        self.inbox = deque(
            (whom, event)
            for whom, event in self.inbox
            if whom != who or not isinstance(event, lost)
        )
        self.inbox.appendleft((who, Restarted(self.epochs[who])))
        for exited in self.ended.values():
            if self.node_of(exited.token) == who:
                self.tell(who, exited)

    def tell(self, who: str, event: Any) -> None:
        self.inbox.append((who, event))

    def settle(self) -> None:
        """Let every event reach its machine, and what follows from it, until nothing moves."""
        for _ in range(1_000):
            if not self.inbox:
                return
            who, event = self.inbox.popleft()
            effects = self.machines[who].decide(event, self.now)
            self.machines[who].check()
            if who == "allocator":
                check_cells(self.machines[who].state.cells)
            self.follow(who, effects)
        raise AssertionError("the world does not come to rest")

    def next_due(self) -> tuple[Instant, str] | None:
        wakes = [(machine.wake_at(), who) for who, machine in self.machines.items()]
        return min(((wake, who) for wake, who in wakes if wake is not None), default=None)

    # --- effects ---------------------------------------------------------------------------------

    def follow(self, who: str, effects: list[Effect]) -> None:
        """Carry out effects as the shell does: facts, then words, then calls."""
        facts = [effect.fact for effect in effects if isinstance(effect, Record)]
        self.facts[who] += facts
        for fact in facts:
            self.lines.append(f"{who} records {show(fact)}")
        follower = {"admission": "allocator", "allocator": "admission"}.get(who)
        if facts and follower:
            self.tell(follower, Facts(service=who, at=self.now, facts=tuple(facts)))
        if facts and who in self.doomed:
            self.doomed.remove(who)
            self.lines.append(f"{who} dies before it sends anything, and starts again")
            self.start(who)
            return
        for effect in effects:
            if isinstance(effect, Send):
                self.send(who, effect)
        for effect in effects:
            if isinstance(effect, Call):
                self.call(who, effect.command)

    def send(self, who: str, effect: Send) -> None:
        _, _, kind, *rest = effect.subject.split(".")
        target = rest[0] if kind == "cmd" else "allocator" if kind == "heartbeat" else ""
        lost = who in self.cut or target in self.cut
        if not isinstance(effect.message, QUIET):
            told = "the tenant" if isinstance(effect.message, Verdict) else target
            self.lines.append(f"{who} tells {told} {show(effect.message)}{' (lost)' * lost}")
        if target and not lost:
            self.tell(target, effect.message)

    def call(self, who: str, command: Any) -> None:
        if not isinstance(command, QUIET):
            verb = "publishes" if isinstance(command, calls.PublishEvent) else "calls"
            what = command.message if isinstance(command, calls.PublishEvent) else command
            self.lines.append(f"{who} {verb} {show(what)}")
        match command:
            case calls.StartRank():
                run = RunStarted(command.token, 100, 1, self.now)
                if command.token not in self.ended:
                    run = self.running.setdefault(command.token, run)
                self.tell(who, run)
            case calls.StopRun():
                self.end(command.token, -15, asked=True)
            case calls.ForgetRun():
                self.ended.pop(command.token, None)
            case calls.ListRuns():
                alive = [run for token, run in self.running.items() if self.node_of(token) == who]
                ended = [run for token, run in self.ended.items() if self.node_of(token) == who]
                self.tell(who, calls.RunsListed((*alive, *ended)))
            case calls.PublishEvent() if who in self.cut:
                self.outbox.setdefault(who, []).append(command)
            case calls.PublishEvent():
                self.publish_event(who, command)
            case _:
                raise AssertionError(command)

    def publish_event(self, who: str, command: calls.PublishEvent) -> None:
        self.tell("allocator", command.message)
        self.tell(who, calls.Published(command.event))

    # --- runs ------------------------------------------------------------------------------------

    def end(self, token: str, code: int, *, asked: bool = False) -> None:
        if self.running.pop(token, None) is not None:
            self.ended[token] = RunExited(token, code, self.now, asked=asked)
            self.tell(self.node_of(token), self.ended[token])

    def node_of(self, token: str) -> str:
        """Return the node whose agent has this rank."""
        job, attempt, _ = token.split(".")
        key = job, int(attempt)
        for node in self.joins:
            part = self.machines[node].parts.get(key)
            if part is not None and token in part.ranks:
                return node
        raise AssertionError(token)


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _value(text: str) -> Any:
    if text in {"yes", "no"}:
        return text == "yes"
    return int(text) if text.lstrip("-").isdecimal() else text


def show(message: Any) -> str:
    """Return a message as a line: its kind, and the fields that differ from their defaults."""
    kind = type(message).__name__
    return " ".join([kind, *_fields(message, kind)])


def _fields(message: Any, kind: str) -> Iterator[str]:
    for field in msgspec.structs.fields(type(message)):
        value = getattr(message, field.name)
        hidden = field.name in HIDDEN and not (field.name == "order" and kind in SHOWN_ORDERS)
        usual = value == field.default or (value == {} and field.default_factory is dict)
        if hidden or (not field.required and usual):
            continue
        if field.name == "at" or field.name.endswith("_at"):
            value = f"+{in_seconds(value - T0):g}s" if value else "never"
        yield f"{field.name}={_plain(value)}"


def _plain(value: Any) -> str:
    if isinstance(value, Member):
        level = f"@{value.levels[0]}" if value.levels else ""
        return f"{value.node}:{','.join(str(d) for rank in value.devices for d in rank)}{level}"
    if isinstance(value, Cluster):
        return _cluster(value)
    if isinstance(value, msgspec.Struct):
        return f"({show(value)})"
    if isinstance(value, tuple):
        return f"[{' '.join(_plain(each) for each in value)}]"
    if isinstance(value, dict):
        return "{" + " ".join(f"{key}:{_plain(each)}" for key, each in value.items()) + "}"
    text = str(value)
    return repr(text) if " " in text else text


def _cluster(cluster: Cluster) -> str:
    """Return the nodes of each chain, and the cells of each tenant."""
    chains = [
        f"{name}:[{' '.join(cell.node for cell in chain.nodes)}]"
        for name, chain in cluster.chains.items()
    ]
    owners = [f"{name}:[{' '.join(_cells(vc))}]" for name, vc in cluster.vcs.items()]
    return " ".join(["{" + " ".join(chains) + "}", "{" + " ".join(owners) + "}"])


def _cells(vc: VirtualCluster) -> Iterator[str]:
    for quota in vc.cells:
        yield f"{quota.count}x{quota.chain}/{quota.level}"
    if vc.gpus:
        yield f"gpus={vc.gpus}"
