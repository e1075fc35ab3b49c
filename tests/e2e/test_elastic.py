"""Gangs of real processes that grow and shrink while they train."""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import Any

import pytest

from tests.elastic_gang import SCRIPT, ElasticGang, Member, elastic_gang
from tests.job_agent import environment, python

pytestmark = [
    pytest.mark.torch,
    pytest.mark.e2e,
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None,
        reason="PyTorch is not installed: pip install 'skep[train]'",
    ),
]

LOSS_TOLERANCE = 1e-6
"""Relative. Sums over ranks are added in another order than sums within one process."""


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    """The same job uninterrupted, in one process that no agent knows."""
    outcome = python([SCRIPT, "{}"], environment())
    assert outcome.returncode == 0, outcome.stderr
    lines = [json.loads(line) for line in outcome.stdout.splitlines()]
    return {name: value for line in lines for name, value in line.items()}


def order_of(members: list[Member]) -> dict[int, list[int]]:
    """Return the samples of each mini-batch, as its ranks saw them in the order of ranks."""
    parts: dict[int, dict[int, list[int]]] = {}
    worlds: dict[int, int] = {}
    for member in members:
        for step, rank, world, samples in member.said("seen"):
            parts.setdefault(step, {})[rank] = samples
            assert worlds.setdefault(step, world) == world
    for step, ranks in parts.items():
        assert sorted(ranks) == list(range(worlds[step])), step
    return {
        step: [sample for r in sorted(ranks) for sample in ranks[r]]
        for step, ranks in parts.items()
    }


def order_of_whole(whole: dict[str, Any]) -> dict[int, list[int]]:
    return {step: samples for step, _, _, samples in whole["seen"]}


def check_result(member: Member, whole: dict[str, Any]) -> None:
    assert member.said("loss") == pytest.approx(whole["loss"], rel=LOSS_TOLERANCE)
    assert member.said("lr") == whole["lr"]
    assert member.said("steps") == whole["steps"]


def change(gang: ElasticGang, places: dict[Member, int], at: int) -> None:
    """Order a change while its old members hold before mini-batch `at`, two steps ahead."""
    old = [member for member in places if not member.answers("ready") or member.answers("rescaled")]
    for member in old:
        member.wait_holding(at)
    order = gang.rescale(places, at + 2)
    for member in old:
        member.go("due")
    for member in places:
        member.wait_told("rescaled", order=order)


def newcomer(gang: ElasticGang, rank: int, **options: Any) -> Member:
    member = gang.start(rank, 0, awaits=True, **options)
    member.wait_told("ready")
    return member


def test_a_gang_grows_and_shrinks_and_nobody_who_stays_restarts(whole: dict[str, Any]) -> None:
    with elastic_gang(hold=[3, 8, 14, 20]) as gang:
        first = gang.start(0, 1)
        second, third = newcomer(gang, 1), newcomer(gang, 2)
        change(gang, {first: 0, second: 1}, 3)
        change(gang, {first: 0, second: 1, third: 2}, 8)
        change(gang, {first: -1, second: 0, third: 1}, 14)
        assert first.end() == 0
        change(gang, {second: -1, third: 0}, 20)
        assert [member.end() for member in gang.members] == [0, 0, 0]

        check_result(third, whole)
        assert order_of(gang.members) == order_of_whole(whole)
        pids = [member.said("pid") for member in gang.members]
        assert pids == [member.pid for member in gang.members]
        steps = [message["step"] for message in third.answers("rescaled")]
        assert steps == [10, 16, 22]
        assert not any(member.answers("failed", "past") for member in gang.members)
        print(json.dumps([member.said("pauses") for member in gang.members]), file=sys.stderr)
