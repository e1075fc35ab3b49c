"""Preemptive orders that are kept from view to view plan as one does that reads every job."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from skep.policy.parts import Preemptive
from skep.policy.registry import make
from skep.policy.schedulers.las import Las, ran_until
from skep.policy.view import HOLDING, QUEUED, JobView, Phase, VcView
from skep.units import Duration, Instant, after, seconds
from skep.wire.reasons import Reason
from tests.policy_kit import NOW, brief, job, told, view, without_nodes
from tests.policy_reference import preempt_from_nothing

NODES, SIZE = 5, 4
SEEDS = range(12)
STEPS = 60
ROUND_S = 60

POLICIES: list[tuple[str, dict[str, Any]]] = [
    ("srtf", {}),
    ("srtf", {"places": False}),
    ("srsf", {}),
    ("tiresias-l", {"thresholds": [100, 700]}),
    ("tiresias-l", {"thresholds": [100, 700], "places": False}),
    ("tiresias-l", {"thresholds": [100, 700], "starvation": 0.3}),
    ("tiresias-g", {"samples": [10, 100, 1000, 10000], "quantum": 50}),
    ("las", {"round_s": ROUND_S}),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name, options", POLICIES)
def test_plans_from_view_to_view_are_those_made_from_nothing(
    name: str, options: dict[str, Any], seed: int
) -> None:
    rng, policy = random.Random(seed), make(name, options)
    planner = policy.planner()
    vc = _Vc(rng, crowd=rng.choice([5, 40]), bad=rng.choice([0, 0, 3]))
    for step in range(STEPS):
        seen = vc.seen() if policy.sees_nodes else without_nodes(vc.seen())
        if isinstance(policy, Las):
            seen = replace(seen, now=Instant(seen.now // seconds(ROUND_S) * seconds(ROUND_S)))
        plan = planner(seen)
        wanted = _from_nothing(policy, seen, plan.look_at)
        if isinstance(policy, Las):
            wanted = replace(wanted, behind=Reason.WAITS_BEHIND)
        text = f"seed {seed}, step {step}: {brief(seen)} -> {told(plan)} and not {told(wanted)}"
        assert plan == wanted, text
        if plan.look_at is not None:
            assert plan.look_at > seen.now, text
        vc.goes_on({turn.job: turn.nodes for turn in plan.turns}, [a.job for a in plan.actions])


def _from_nothing(policy: Any, seen: VcView, look_at: Instant | None) -> Any:
    if isinstance(policy, Las):
        why, because = Reason.LEAST_TIME, Reason.SLICE_OVER

        def key(each: JobView) -> Any:
            return ran_until(each, seen.now), each.phase in QUEUED

        return preempt_from_nothing(seen, key, why, because, look_at)
    assert isinstance(policy, Preemptive)
    return preempt_from_nothing(seen, policy.key(seen), policy.why(), Reason.OUTRANKED, look_at)


class _Vc:
    """A VC whose jobs come, run, leave and end at random, more or less as a plan says."""

    def __init__(self, rng: random.Random, crowd: int, bad: int) -> None:
        self._rng, self._crowd, self._bad = rng, crowd, bad
        self._now, self._number = NOW, 0
        self._jobs: dict[str, JobView] = {}
        self._views: dict[tuple[str, ...], VcView] = {}

    def seen(self) -> VcView:
        """Return the view of now."""
        made = view(
            list(self._jobs.values()),
            nodes=NODES,
            size=SIZE,
            pins={"big": {"n1": SIZE}},
            now=self._now,
        )
        return replace(made, gpus=made.gpus - self._bad)

    def goes_on(self, turns: dict[str, tuple[str, ...]], leaving: list[str]) -> None:
        """Let time pass, and something happen."""
        rng = self._rng
        for name in leaving:
            if rng.random() < 0.8:
                self._change(name, phase=Phase.STOPPING, **self._ran(name))
        for name, nodes in turns.items():
            if rng.random() < 0.8:
                self._begin(name, nodes)
        self._now = after(self._now, Duration(rng.choice([0, 1, seconds(1), seconds(45)])))
        for name, each in list(self._jobs.items()):
            self._happens(name, each, rng.random())
        for _ in range(rng.choice([0, 1, 3]) if len(self._jobs) < self._crowd else 0):
            self._come()

    def _happens(self, name: str, each: JobView, chance: float) -> None:
        if each.phase is Phase.STARTING and chance < 0.6:
            self._change(
                name,
                phase=Phase.RUNNING,
                since=self._now,
                starts=each.starts + 1,
                began_at=each.began_at or self._now,
            )
        elif each.phase is Phase.STOPPING and chance < 0.5:
            away = chance < 0.25
            can = ("migrate", "release") if chance < 0.1 else ("release",)
            self._change(
                name,
                phase=Phase.AWAY if away else Phase.WAITING,
                can=can,
                nodes=each.nodes if away else (),
                waiting_since=self._now,
            )
        elif each.phase is Phase.RUNNING and chance < 0.05:
            del self._jobs[name]
        elif each.phase is Phase.RUNNING and chance < 0.08:
            self._change(name, phase=Phase.SUSPENDED, **self._ran(name))
        elif each.phase is Phase.SUSPENDED and chance < 0.3:
            self._change(name, phase=Phase.RUNNING, since=self._now, stood=True)
        elif each.phase in QUEUED and chance < 0.01:
            del self._jobs[name]

    def _come(self) -> None:
        rng = self._rng
        self._number += 1
        workers = rng.choice([1, 1, 1, 2, 3, 4, 8])
        pin = "big" if workers <= SIZE and rng.random() < 0.1 else ""
        came = job(
            f"j{self._number}",
            workers * rng.choice([1, 1, 2]) if workers <= 2 else workers,
            workers=workers,
            needs=rng.choice([None, 3, 50, 50, 400, 900]),
            hard=workers <= SIZE and rng.random() < 0.3,
            priority=rng.choice([0, 0, 0, 5]),
            cpus=rng.choice([0, 0, 8]),
            pin=pin,
        )
        waits = {"submitted_at": self._now, "waiting_since": self._now, "began_at": Instant(0)}
        self._jobs[came.job] = replace(came, **waits)

    def _begin(self, name: str, nodes: tuple[str, ...]) -> None:
        """Give a job GPUs where it is to have them, or elsewhere, if there are any."""
        each = self._jobs[name]
        if each.at_home:
            nodes = tuple(node for node, _ in each.nodes)
        free = {node.node: node.free_for(each.pin) for node in self.seen().nodes}
        left, place, per = each.gpus, dict[str, int](), each.gpus // each.workers
        for node in nodes or free:
            gpus = min(left, free[node] // per * per)
            if gpus > 0:
                place[node], left = gpus, left - gpus
        if not left and (not each.at_home or tuple(place.items()) == each.nodes):
            self._change(name, phase=Phase.STARTING, nodes=tuple(place.items()))

    def _ran(self, name: str) -> dict[str, Any]:
        each = self._jobs[name]
        return {"served": each.ran(self._now), "since": self._now}

    def _change(self, name: str, **fields: Any) -> None:
        assert fields.get("phase") not in HOLDING or fields.get("nodes", True)
        self._jobs[name] = replace(self._jobs[name], **fields)
