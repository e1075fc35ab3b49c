"""Views for tests of policies, and a cluster that carries a plan out at once and perfectly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from skep.policy.api import Policy
from skep.policy.capacity import FreeCapacity
from skep.policy.plan import Action, Plan, Preempt, Resize, Suspend
from skep.policy.view import HOLDING, JobView, NodeView, Phase, PinView, VcView
from skep.units import NS_PER_SECOND, Duration, Instant, seconds
from skep.wire.spec import Elastic, JobSpec, Resources, SizeHint, Topology

NOW = Instant(1_000_000 * NS_PER_SECOND)
"""No round and no slice begins here by chance: 1,000,000 s is not a multiple of 360 s or 600 s."""


def job(
    name: str,
    gpus: int = 1,
    *,
    workers: int | None = None,
    phase: Phase = Phase.WAITING,
    on: Sequence[tuple[str, int]] = (),
    needs: float | None = None,
    ran: float = 0,
    since: float = 0,
    hard: bool = False,
    priority: int = 0,
    family: str | None = None,
    task: tuple[int, int] | None = None,
    labels: dict[str, str] | None = None,
    cpus: int = 0,
    elastic: tuple[int, int] | None = None,
    pin: str = "",
    **more: Any,
) -> JobView:
    """Return a job that came in the order of its name's number: `j3` is the third.

    `task` is its batch size and its mini-batches.
    `ran` is seconds in all; with `since` it has had its GPUs for so many of them.
    """
    number, workers = int(name[1:]), workers or gpus
    spec = JobSpec(
        name=name,
        vc="a",
        command=("true",),
        resources=Resources(
            gpus=gpus // workers,
            workers=workers,
            cpus=cpus,
            topology=Topology(within="node", hard=True) if hard else None,
            pinned=pin,
        ),
        priority=priority,
        size=SizeHint(family=family, batch_size=task and task[0], mini_batches=task and task[1]),
        labels=labels or {},
        elastic=elastic and Elastic(min=elastic[0], max=elastic[1]),
    )
    submitted = Instant(NOW - seconds(100_000) + number)
    phase = Phase.RUNNING if on and phase is Phase.WAITING else phase
    fields: dict[str, Any] = {
        "submitted_at": submitted,
        "waiting_since": submitted,
        "since": Instant(NOW - seconds(since)),
        "served": seconds(max(ran - since, 0) if on else ran),
        "began_at": Instant(submitted + 1) if ran or on else Instant(0),
        "expected": None if needs is None else seconds(needs),
        "nodes": tuple(on),
        "can": ("suspend", "release", "resize"),
    }
    fields |= {"phase": phase, "gpus": gpus, "workers": workers, **more}
    return JobView(job=name, sequence=number, spec=spec, **fields)


def view(
    jobs: Sequence[JobView],
    *,
    nodes: int = 2,
    size: int = 4,
    pins: Mapping[str, Mapping[str, int]] = {},
    **more: Any,
) -> VcView:
    """Return a VC of `nodes` whole nodes, `n1` and so on, with `size` GPUs each.

    Of those so many are in its pinned cells: by pin, by node.
    """
    jobs = sorted(jobs, key=lambda each: each.sequence)
    names = [f"n{number + 1}" for number in range(nodes)]
    held = {
        name: [
            (j.job, gpus) for j in jobs if j.phase in HOLDING for n, gpus in j.nodes if n == name
        ]
        for name in names
    }
    rest = {name: size - sum(cell.get(name, 0) for cell in pins.values()) for name in names}
    free = {pin: dict(cell) for pin, cell in {"": rest, **pins}.items()}
    for j in jobs:
        for name, gpus in j.nodes if j.phase in HOLDING else ():
            if name in names:
                free[j.pin][name] -= gpus
    assert all(gpus >= 0 for there in free.values() for gpus in there.values()), free
    there = tuple(
        NodeView(
            node=name,
            chain="v100",
            gpu_type="v100",
            gpus=size,
            free=free[""][name],
            pins=tuple((pin, free[pin][name]) for pin, cell in pins.items() if name in cell),
            jobs=tuple(held[name]),
            cpus=8 * size,
            cpus_free=8 * size,
        )
        for name in names
    )
    fields: dict[str, Any] = {"nodes": there, "now": NOW, "node_gpus": size}
    return VcView(
        vc="a",
        jobs=tuple(jobs),
        gpus=nodes * size,
        free=sum(gpus for cell in free.values() for gpus in cell.values()),
        pins=tuple(
            PinView(pin, sum(cell.values()), sum(free[pin].values())) for pin, cell in pins.items()
        ),
        **(fields | more),
    )


def without_nodes(seen: VcView) -> VcView:
    """Return what a policy sees that does not ask for nodes."""
    return msgspec.structs.replace(seen, nodes=())


def shown(policy: Policy, seen: VcView) -> Plan:
    """Return the plan for what the policy asks to see."""
    return policy.plan(seen if policy.sees_nodes else without_nodes(seen))


def told(plan: Plan) -> str:
    """Return a plan as a line: `-` who goes, `+` who is placed, `?` who is held."""
    parts = []
    for action in plan.actions:
        text = f"-{action.job}"
        if isinstance(action, Resize):
            text = f"{action.job}={action.workers}"
        parts.append(text)
    parts.extend(
        f"+{turn.job}" + (f"@{','.join(turn.nodes)}" if turn.nodes else "") for turn in plan.turns
    )
    parts.extend(f"?{hold.job}" for hold in plan.holds)
    return " ".join(parts)


def carry_out(plan: Plan, seen: VcView) -> VcView:
    """Return the view after a plan, everything in it done in no time."""
    jobs = {each.job: each for each in seen.jobs}
    for action in plan.actions:
        each = jobs[action.job]
        free = {node.node: node.free_for(each.pin) for node in _again(seen, jobs).nodes}
        jobs[action.job] = _changed(each, action, seen.now, free)
    return _serve(plan, seen, jobs)


def begin(plan: Plan, seen: VcView) -> VcView:
    """Return the view as the allocator decides: who is stopped has his GPUs while turns are taken.

    `leave` then has him be gone.
    """
    jobs = {each.job: each for each in seen.jobs}
    for action in plan.actions:
        assert isinstance(action, Preempt | Suspend), action
        ran = Duration(jobs[action.job].ran(seen.now))
        stopping = {"phase": Phase.STOPPING, "served": ran, "since": seen.now}
        jobs[action.job] = msgspec.structs.replace(jobs[action.job], **stopping)
    return _serve(plan, seen, jobs)


def leave(seen: VcView, action: Action) -> VcView:
    """Return the view after who was stopped by an action has left."""
    jobs = {each.job: each for each in seen.jobs}
    running = msgspec.structs.replace(jobs[action.job], phase=Phase.RUNNING)
    jobs[action.job] = _changed(running, action, seen.now, {})
    return _again(seen, jobs)


def _serve(plan: Plan, seen: VcView, jobs: dict[str, JobView]) -> VcView:
    after = _again(seen, jobs)
    for turn in plan.turns:
        job_ = jobs[turn.job]
        if turn.workers:
            each = job_.gpus // job_.workers
            job_ = msgspec.structs.replace(job_, workers=turn.workers, gpus=turn.workers * each)
        room = FreeCapacity(after, [each for each in jobs.values() if each.phase in HOLDING])
        place = room.fit(job_, turn.nodes or None)
        if place is None:
            if plan.strict:
                break
            continue
        jobs[turn.job] = msgspec.structs.replace(
            job_,
            phase=Phase.RUNNING,
            nodes=place,
            since=seen.now,
            began_at=job_.began_at or seen.now,
        )
        after = _again(seen, jobs)
    return after


def _again(seen: VcView, jobs: dict[str, JobView]) -> VcView:
    pins: dict[str, dict[str, int]] = {pin.pin: {} for pin in seen.pins}
    before = {each.job: each for each in seen.jobs}
    for node in seen.nodes:
        there = [(before[name], gpus) for name, gpus in node.jobs]
        for pin, free in node.pins:
            pins[pin][node.node] = free + sum(gpus for each, gpus in there if each.pin == pin)
    return view(
        list(jobs.values()),
        nodes=len(seen.nodes),
        size=seen.node_gpus,
        pins=pins,
        now=seen.now,
        ended=seen.ended,
    )


def _changed(job_: JobView, action: Action, now: Instant, free: dict[str, int]) -> JobView:
    match action:
        case Preempt() | Suspend():
            assert job_.phase in (Phase.RUNNING, Phase.STARTING), job_
            return msgspec.structs.replace(
                job_,
                phase=Phase.AWAY if isinstance(action, Suspend) else Phase.WAITING,
                served=Duration(job_.ran(now)),
                waiting_since=now,
                nodes=(),
            )
        case Resize(workers=workers):
            gpus = job_.gpus // job_.workers * workers
            has = dict(job_.nodes)
            left, nodes = gpus, []
            for node in [*has, *(each for each in free if each not in has)]:
                more = min(has.get(node, 0) + free[node], left)
                left -= more
                nodes.append((node, more))
            assert left == 0, action
            place = tuple(pair for pair in nodes if pair[1])
            return msgspec.structs.replace(job_, workers=workers, gpus=gpus, nodes=place)
        case _:
            raise AssertionError(action)


def brief(seen: VcView) -> str:
    """Return a view as a line, for messages of tests that fail."""
    return "; ".join(
        f"{j.job} {j.gpus}/{j.workers} {j.phase} {dict(j.nodes)} p{j.spec.priority}"
        f" {j.spec.labels.get('user')} ran {j.ran(seen.now) // NS_PER_SECOND}"
        for j in seen.jobs
    )
