"""Builders of messages, and a driver that checks a machine and its replay after every event."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from skep.cells.check import check_cells
from skep.cells.propose import resolve
from skep.cells.state import Cells
from skep.ledger.state import ClusterState
from skep.machines.access import AccessMachine
from skep.machines.admission import AdmissionMachine
from skep.machines.admission.depending import Known
from skep.machines.agent import AgentMachine
from skep.machines.allocator import AllocatorMachine
from skep.machines.base import AnyMachine, Effect, Record, Restarted, Tick
from skep.machines.notifier import NotifierMachine
from skep.machines.searches import SearchesMachine
from skep.units import GIB, Instant, after, seconds
from skep.wire.admin import SetVcs
from skep.wire.bearing import RULES, BadCellBound, BadCellReturned, CarriedHold
from skep.wire.cluster import Cluster, VirtualCluster
from skep.wire.codec import Facts, Submission
from skep.wire.commands import BindJob, RankPlan, StopJob
from skep.wire.facts import Admitted, CancelAsked, CellsSet, EpochBegan, JobFate, Member, NodeAdded
from skep.wire.node import TAKE_OVER_AFTER, Gpu, MemberExited, MemberStarted, NodeJoined, Outcome
from skep.wire.reports import Heartbeat
from skep.wire.spec import JobSpec, Limits, Resources, Topology
from skep_services.adapters.records import Chain

T0 = Instant(1_700_000_000_000_000_000)
"""When every test begins."""

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

M = TypeVar("M", bound=AnyMachine)


def at(second: float) -> Instant:
    """Return the instant `second` seconds into a test."""
    return after(T0, seconds(second))


# --- specs and what leads to jobs ---------------------------------------------------------------


def spec(**changes: Any) -> JobSpec:
    """Return a job of one 1-GPU worker, changed: also by fields of its resources and limits."""
    parts: dict[str, Any] = {}
    hard = changes.pop("hard", None)
    if hard is not None:
        changes["topology"] = Topology(hard=hard)
    for key, part in (("resources", Resources), ("limits", Limits)):
        fields = {name: changes.pop(name) for name in part.__struct_fields__ if name in changes}
        if fields:
            parts[key] = part(**fields)
    if changes.pop("opportunistic", False):
        changes["service_class"] = "opportunistic"
    given = {"name": "train", "vc": "nlp", "command": ("true",), **changes, **parts}
    if "script" in changes:
        given["command"] = None
    return JobSpec(**given)


def submission(number: int, **fields: Any) -> Submission:
    """Return submission `number`: `raw` is a spec, or what a tenant sends in its place."""
    raw = fields.pop("raw", None)
    if raw is None:
        raw = spec()
    if isinstance(raw, JobSpec | dict):
        raw = msgspec.json.encode(raw)
    given = {"vc": "nlp", "at": T0, **fields}
    return Submission(job=f"j{number}", raw=raw, **given)


def admitted(number: int, trace: str = "", **changes: Any) -> Facts:
    """Return admission's word that job `number` may run."""
    fact = Admitted(job=f"j{number}", spec=spec(**changes), submitted_at=at(number), trace=trace)
    return Facts(service="admission", at=at(number), facts=(fact,))


def cancel_asked(number: int) -> Facts:
    """Return admission's word that job `number` is to be cancelled."""
    return Facts(service="admission", at=T0, facts=(CancelAsked(job=f"j{number}"),))


# --- nodes --------------------------------------------------------------------------------------


def added(node: NodeJoined) -> Facts:
    """Return the allocator's record that it uses a node's inventory."""
    return Facts(service="allocator", at=T0, facts=(NodeAdded(joined=node),))


def joined(node: str = "node-1", gpus: int | Mapping[str, int] = 4, **fields: Any) -> NodeJoined:
    """Return a node's join: so many GPUs of type `cpu`, or so many of each type."""
    kinds = {"cpu": gpus} if isinstance(gpus, int) else gpus
    types = [kind for kind, count in kinds.items() for _ in range(count)]
    given = {
        "identity": f"id-{node}",
        "incarnation": 1,
        "address": f"10.0.0.{node[-1]}",
        "ports": (20000, 20099),
        "cpus": 64,
        "memory": 64 * GIB,
        **fields,
    }
    devices = tuple(Gpu(index=index, type=kind) for index, kind in enumerate(types))
    return NodeJoined(node=node, gpus=devices, **given)


def heartbeat(node: str = "node-1", identity: str = "") -> Heartbeat:
    """Return a node's word that it lives."""
    return Heartbeat(node=node, identity=identity or f"id-{node}", at=T0)


def started(job: str, attempt: int = 1, node: str = "node-1", **fields: Any) -> MemberStarted:
    """Return a node's word that its part of an attempt runs."""
    given = {"identity": f"id-{node}", "at": at(5), **fields}
    return MemberStarted(node=node, job=job, attempt=attempt, **given)


def exited(
    job: str,
    attempt: int = 1,
    node: str = "node-1",
    outcome: Outcome = Outcome.SUCCEEDED,
    **fields: Any,
) -> MemberExited:
    """Return a node's word that its part of an attempt is over."""
    given = {"identity": f"id-{node}", "at": at(9), **fields}
    return MemberExited(node=node, job=job, attempt=attempt, outcome=outcome, **given)


def member(
    node: str, *devices: tuple[int, ...], first_rank: int = 0, levels: tuple[int, ...] = ()
) -> Member:
    """Return one node's part of a gang, by the devices of each rank.

    `levels` are those of the VC's cells that cover the ranks; without, they run opportunistically.
    """
    return Member(
        node=node, identity=f"id-{node}", first_rank=first_rank, devices=devices, levels=levels
    )


def vcs(**gpus: int) -> dict[str, VirtualCluster]:
    """Return virtual clusters by name and quota."""
    return {name: VirtualCluster(gpus=count) for name, count in gpus.items()}


def cells_set(
    *inventory: NodeJoined,
    fates: tuple[JobFate, ...] = (),
    carried: tuple[CarriedHold, ...] = (),
    **gpus: int,
) -> CellsSet:
    """Return the fact of the cells that nodes which joined in this order make up for tenants."""
    asked = Cluster(vcs=vcs(**(gpus or {"nlp": 1000})))
    return CellsSet(cluster=resolve(asked, inventory), asked=asked, fates=fates, carried=carried)


# --- commands -----------------------------------------------------------------------------------


def bind(job: str = "j1", attempt: int = 1, order: int = 1, **fields: Any) -> BindJob:
    """Return a command to start one rank on device 0 of node-1, changed."""
    node = fields.get("node", "node-1")
    given = {
        "epoch": 1,
        "settled": order - 1,
        "node": node,
        "identity": f"id-{node}",
        "name": "train",
        "vc": "nlp",
        "argv": ("true",),
        "ranks": (RankPlan(rank=0, local_rank=0, devices=(0,)),),
        "world": 1,
        "node_rank": 0,
        "nodes": 1,
        "master_address": f"10.0.0.{node[-1]}",
        "master_port": 20000,
        "distributed": fields.get("world", 1) > 1,
        **fields,
    }
    return BindJob(job=job, attempt=attempt, order=order, **given)


def plans(*devices: tuple[int, ...], first_rank: int = 0) -> tuple[RankPlan, ...]:
    """Return the ranks of one node, by their devices."""
    return tuple(
        RankPlan(rank=first_rank + i, local_rank=i, devices=each) for i, each in enumerate(devices)
    )


def stop(job: str = "j1", attempt: int = 1, order: int = 2, **fields: Any) -> StopJob:
    """Return a command to end an attempt on node-1, changed."""
    node = fields.get("node", "node-1")
    given = {
        "epoch": 1,
        "settled": order - 1,
        "node": node,
        "identity": f"id-{node}",
        "grace_s": 10.0,
        **fields,
    }
    return StopJob(job=job, attempt=attempt, order=order, **given)


class RecordWriter:
    """Writes records of a service, each continuing the one before it, as its fact log has them."""

    def __init__(self) -> None:
        self._chain = Chain("records", EpochBegan)

    def record(self, facts: Sequence[Any], at: Instant = T0) -> bytes:
        """Return the next record with these facts."""
        record, payload = self._chain.encode(facts, {}, at, 1)
        self._chain.advance(record, payload)
        return payload


# --- driving a machine --------------------------------------------------------------------------

SOFT: dict[type, tuple[str, ...]] = {
    AdmissionMachine: (
        "_hardware",
        "_effects",
        "_judged",
        "_owns",
        "_quiet_until",
        "promising",
        "queued",
    ),
    ClusterState: ("_delta", "awaited"),
    SearchesMachine: ("_soft", "_effects"),
    AccessMachine: ("_soft", "_effects"),
    NotifierMachine: ("under_way", "open_at", "_effects"),
    AgentMachine: (
        "profile_times",
        "progress",
        "told",
        "settled",
        "unsure",
        "clearing",
        "copies",
        "report_at",
        "used",
        "trouble",
        "idling",
        "changes",
        "_effects",
    ),
}
"""What a crash may forget. Everything else must come back from the facts alone. Who has how many
queued jobs is counted anew by `check`."""
HIDDEN = (
    "_advised",
    "_came",
    "changed",
    "_checks",
    "_lanes",
    "_named",
    "_named_ended",
    "_touched",
    "_cancels",
    "_sent",
    "_again_at",
    "_soft",
    "effects",
)
"""The same, of what a machine is made of: a queue's advice is soft, and which jobs came to it
lately, and whether a node is to be shown anew; a heap of timers, and free intervals of a book, are
made from what is compared; so are the names of jobs that others may wait for. Of arrays it is soft
what is to be looked at, and what was published."""


def durable(machine: Any) -> Any:
    """Return what must survive a crash, comparable, the order of every dict included."""
    known = _truth(machine)
    soft = SOFT.get(type(known), ("_effects",))
    return [(name, _plain(value)) for name, value in vars(known).items() if name not in soft]


def _truth(machine: Any) -> Any:
    """Return the object whose fields are durable, apart from those in SOFT."""
    return machine.state if isinstance(machine, AllocatorMachine) else machine


def _plain(value: Any) -> Any:
    if isinstance(value, Cells):
        # What of it is kept in no promised order is compared as a set by its own summary.
        return _plain(value._summary())
    if isinstance(value, Known):
        return _plain(value.summary())
    if isinstance(value, dict):
        return [(key, _plain(inner)) for key, inner in value.items()]
    if isinstance(value, msgspec.Struct):
        fields = value.__struct_fields__
        return type(value), [(name, _plain(getattr(value, name))) for name in fields]
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if hasattr(value, "__dict__") and not isinstance(value, str | type):
        return [(name, _plain(v)) for name, v in vars(value).items() if name not in HIDDEN]
    return value


def assert_durable_alike(one: Any, other: Any) -> None:
    """Assert that `durable` says the same of both, at a fraction of the cost where it does."""
    here, there = _truth(one), _truth(other)
    if not _alike_but(SOFT.get(type(here), ("_effects",)), vars(here), vars(there)):
        assert durable(one) == durable(other)  # This one shows the difference.
        raise AssertionError


def _alike(one: Any, other: Any) -> bool:
    """Return whether `_plain` is the same of both. A fact's parts are often the very same."""
    if one is other:
        return True
    if isinstance(one, Cells):
        return isinstance(other, Cells) and _alike(one._summary(), other._summary())
    if isinstance(one, Known):
        return isinstance(other, Known) and one.summary() == other.summary()
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and len(one) == len(other)
            and all(
                key == name and _alike(inner, its)
                for (key, inner), (name, its) in zip(one.items(), other.items(), strict=True)
            )
        )
    if isinstance(one, msgspec.Struct):
        return type(one) is type(other) and all(
            _alike(getattr(one, name), getattr(other, name)) for name in one.__struct_fields__
        )
    if isinstance(one, list | tuple):
        return (
            isinstance(other, list | tuple)
            and len(one) == len(other)
            and all(map(_alike, one, other))
        )
    if hasattr(one, "__dict__") and not isinstance(one, str | type):
        return hasattr(other, "__dict__") and _alike_but(HIDDEN, vars(one), vars(other))
    return bool(one == other)


def _alike_but(hidden: tuple[str, ...], one: dict[str, Any], other: dict[str, Any]) -> bool:
    names = [name for name in one if name not in hidden]
    return names == [name for name in other if name not in hidden] and all(
        _alike(one[name], other[name]) for name in names
    )


class Driver(Generic[M]):
    """A machine, its time and its facts. After every event: check(), and replay equals the machine.

    `thorough` False leaves the replay, and the cells, to `check_replay`, for long runs.
    """

    def __init__(self, make: Callable[[], M], *, thorough: bool = True) -> None:
        self.make = make
        self.machine = make()
        self.facts: list[Any] = []
        self.now = T0
        self.epoch = 0
        self.thorough = thorough

    def __call__(
        self, event: Any, second: float | None = None, *, slept: bool = False
    ) -> list[Effect]:
        """Return the effects of `event`, at `second` seconds into the test if given.

        A test goes straight to the moment it is about: unless the process `slept`, an allocator's
        timer rang in time until then.
        """
        if second is not None:
            self.now = at(second)
        elif isinstance(event, MemberStarted):
            self.now = max(self.now, event.at)
        soft = getattr(getattr(self.machine, "tx", None), "soft", None)
        if soft is not None and soft.check_at is not None and not slept:
            soft.check_at = max(soft.check_at, Instant(self.now - TAKE_OVER_AFTER))
        effects = self.machine.decide(event, self.now)
        self.facts += [effect.fact for effect in effects if isinstance(effect, Record)]
        self.machine.check()
        if self.thorough:
            self.check_cells()
            self.check_replay()
        return effects

    def check_cells(self) -> None:
        """Assert the invariants of the cells that the machine may have."""
        cells = getattr(getattr(self.machine, "state", None), "cells", None)
        if isinstance(cells, Cells):
            check_cells(cells)

    def check_replay(self) -> None:
        """Assert that the recorded facts alone rebuild the machine."""
        again = self.make()
        for fact in self.facts:
            again.apply(fact)
        again.check()
        self.check_cells()
        assert_durable_alike(again, self.machine)

    def restart(self, second: float | None = None) -> list[Effect]:
        """Crash: rebuild the machine from its facts, win the next epoch, and let it begin."""
        self.machine = self.make()
        self.epoch += 1
        self.facts.append(EpochBegan(epoch=self.epoch, owner=f"owner-{self.epoch}", rules=RULES))
        for fact in self.facts:
            self.machine.apply(fact)
        return self(Restarted(self.epoch), second)

    def tick(self, second: float | None = None) -> list[Effect]:
        """Let the machine's timer ring, at `second` or when it asked for it."""
        wake = self.machine.wake_at()
        assert wake is not None
        if second is None:
            self.now = max(self.now, wake)
        return self(Tick(), second)


def allocator(*nodes: NodeJoined, **quotas: int) -> Driver[AllocatorMachine]:
    """Return an allocator in its first epoch that knows these nodes and tenants."""
    driver = Driver(AllocatorMachine)
    driver.restart(0)
    driver(SetVcs(vcs=vcs(**(quotas or {"nlp": 1000}))))
    for node in nodes:
        driver(node)
    return driver


def agent(node: str = "node-1") -> Driver[AgentMachine]:
    """Return a node's agent at its first start, before it heard what runs."""
    driver = Driver(lambda: AgentMachine(joined(node)))
    driver.restart(0)
    return driver


def facts_of(effects: list[Effect]) -> list[Any]:
    """Return the facts that effects record."""
    return [effect.fact for effect in effects if isinstance(effect, Record)]


def plain(effects: list[Effect]) -> list[Effect]:
    """Return effects without the facts of who bears bad hardware."""
    return [
        effect
        for effect in effects
        if not (
            isinstance(effect, Record) and isinstance(effect.fact, BadCellBound | BadCellReturned)
        )
    ]


def others(effects: list[Effect]) -> list[Effect]:
    """Return the effects that are not facts."""
    return [effect for effect in effects if not isinstance(effect, Record)]
