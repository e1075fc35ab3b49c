"""Gangs of real processes that grow and shrink while they train."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.elastic_gang import SCRIPT, ElasticGang, Member, Store, elastic_gang
from tests.support.job_agent import environment, python

pytestmark = [pytest.mark.torch, pytest.mark.e2e]

LOSS_TOLERANCE = 1e-6
"""Relative. Sums over ranks are added in another order than sums within one process."""


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    return uninterrupted()


def uninterrupted(**options: Any) -> dict[str, Any]:
    """Return what the same job says in one process that no agent knows."""
    outcome = python([SCRIPT, json.dumps(options)], environment())
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
    order = ordered(gang, places, at)
    for member in places:
        member.wait_told("rescaled", order=order)


def ordered(gang: ElasticGang, places: dict[Member, int], at: int, **how: Any) -> int:
    """Order a change, have the old members go on once they know of it; return the order."""
    old = [member for member in places if not member.answers("ready") or member.answers("rescaled")]
    for member in old:
        member.wait_holding(at)
    order = gang.rescale(places, at + 2, **how)
    for member in old:
        member.go("due")
    return order


def why_not(member: Member, order: int) -> str:
    """Return why it did not take part in a change."""
    return str(member.wait_told("failed", order=order)["error"])


@pytest.mark.slow
def test_a_gang_grows_and_shrinks_and_nobody_who_stays_restarts(whole: dict[str, Any]) -> None:
    with elastic_gang(hold=[3, 8, 14, 20]) as gang:
        first = gang.start(0, 1)
        second, third = gang.newcomer(1), gang.newcomer(2)
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
        can = third.answers("can")[-1]
        assert (can["tier"], "resize" in can["can"]) == ("cooperative", True)


@pytest.mark.nightly
def test_a_gang_that_accumulates_gradients_changes_once_they_are_reduced() -> None:
    """Within `no_sync` no rank has the gradients of all; after it a newcomer gets them."""
    how: dict[str, Any] = {
        "window": 4,
        "samples": 192,
    }  # Within `no_sync` all shares have to be of one size.
    whole = uninterrupted(**how)
    with elastic_gang(hold=[3, 12], **how) as gang:
        first, second = gang.start(0, 2), gang.start(1, 2)
        third = gang.newcomer(2)
        change(gang, {first: 0, second: 1, third: 2}, 3)  # After 5: within the second window.
        change(gang, {first: -1, second: -1, third: 0}, 12)  # After 14, within the fourth.
        assert [member.end() for member in gang.members] == [0, 0, 0]
        check_result(third, whole)
        assert order_of(gang.members) == order_of_whole(whole)
        steps = [message["step"] for message in third.answers("rescaled")]
        assert steps == [7, 15]


@pytest.mark.nightly
def test_newcomers_and_stores_may_fail_at_any_moment_of_a_change(whole: dict[str, Any]) -> None:
    with elastic_gang(hold=[2, 6, 10, 14, 18], patience_s=3.0) as gang:
        first, second = stay = gang.start(0, 2), gang.start(1, 2)
        old = {first: 0, second: 1}

        dead = gang.newcomer(2)
        dead.process.kill()
        dead.end()
        order = ordered(gang, old, 2, world=3)
        for member in stay:
            assert why_not(member, order) == "not every member was there within 3 s"

        dies = gang.newcomer(2, die="copy")
        order = ordered(gang, {**old, dies: 2}, 6)
        for member in stay:
            assert why_not(member, order).startswith("rank 2 did not get the state: ")

        # After the commit: the old group is gone, and is formed again.
        dies = gang.newcomer(2, die="enter")
        order = ordered(gang, {**old, dies: 2}, 10)
        for member in stay:
            assert why_not(member, order) == "not every member was in the new gang within 3 s"

        gang.store.kill()
        order = ordered(gang, old, 14, world=3)
        for member in stay:
            assert why_not(member, order).startswith("the store was lost: ")

        # None of this is in the way of the next change, at another store.
        gang.store.close()
        gang.store = Store()
        third = gang.newcomer(2)
        change(gang, {**old, third: 2}, 18)
        members = [*stay, third]
        assert [member.end() for member in members] == [0, 0, 0]
        check_result(first, whole)
        assert order_of(members) == order_of_whole(whole)
        assert [member.said("pid") for member in stay] == [member.pid for member in stay]


@pytest.mark.nightly
def test_orders_that_cross_or_do_not_fit_leave_the_gang_as_it_is(whole: dict[str, Any]) -> None:
    with elastic_gang(hold=[2, 6, 10, 14, 18], patience_s=8.0) as gang:
        first, second = stay = gang.start(0, 2), gang.start(1, 2)
        third = gang.newcomer(2)
        old, grown = {first: 0, second: 1}, {first: 0, second: 1, third: 2}

        for member in stay:
            member.wait_holding(2)
        # A size that the script does not allow, and a step that one rank has passed already.
        order = gang.rescale(old, 4, world=9)
        for member in stay:
            assert why_not(member, order) == "world is 9; this job runs with 1 to 4 ranks"
        order = gang.rescale({first: 0}, 4, world=3)
        gang.rescale({second: 1}, 1, world=3, generation=gang.generation)
        first.go("due")
        second.go()
        assert second.wait_told("past", order=order + 1)["step"] >= 2
        assert why_not(first, order) == "rank 1 has passed step 1"

        # Members that were told different things.
        for member in stay:
            member.wait_holding(6)
        order = gang.rescale({first: 0}, 8, world=3)
        gang.rescale({second: 1}, 8, world=4, generation=gang.generation)
        for member in stay:
            member.go("due")
        assert why_not(first, order).startswith("members disagree about world: ")
        assert why_not(second, order + 1).startswith("members disagree about world: ")

        # A second change before the first one's step; the newcomer of the first stays ready.
        for member in stay:
            member.wait_holding(10)
        overtaken = gang.rescale(grown, 12)
        order = gang.rescale(grown, 13)
        for member in stay:
            member.go("due")
        for member in grown:
            member.wait_told("rescaled", order=order)
        assert not any(member.answers("rescaled")[0]["order"] == overtaken for member in grown)

        # A newcomer that is told of a change long decided, and a gang that is.
        fourth = gang.newcomer(3)
        order = gang.rescale({**grown, fourth: 3}, 0, generation=1, world=4)
        assert why_not(fourth, order)
        for member in grown:
            assert "is not above" in why_not(member, order)
        for hold in (14, 18):
            for member in grown:
                member.wait_holding(hold)
            for member in grown:
                member.go()
        assert [member.end() for member in grown] == [0, 0, 0]
        check_result(first, whole)
        assert order_of(list(grown)) == order_of_whole(whole)


@pytest.mark.nightly
def test_ranks_agree_in_the_store_where_nobody_knows_how_far_the_others_are() -> None:
    whole = uninterrupted(epochs=14)
    with elastic_gang(pace_s=0.04, epochs=14) as gang:
        first, second = stay = gang.start(0, 2), gang.start(1, 2)
        third = gang.newcomer(2)
        for member in stay:
            member.wait_told("can")
            member.wait_told("stats")
        grown = {first: 0, second: 1, third: 2}
        order = gang.rescale(grown, agree=True)
        steps = {member.wait_told("rescaled", order=order)["step"] for member in grown}
        assert len(steps) == 1
        # One that is not told keeps the others waiting until their agent gives up.
        order = gang.rescale({first: 0, second: 1}, agree=True, world=2)
        for member in stay:
            member.order("resume", order=order + 1)
        for member in stay:
            member.wait_told("resumed", order=order + 1)
            assert member.wait_told("failed", order=order)["error"]
        gang.overtake()
        order = gang.rescale({first: 0, second: 1, third: -1}, agree=True)
        for member in grown:
            member.wait_told("rescaled", order=order)
        assert [member.end() for member in gang.members] == [0, 0, 0]
        check_result(first, whole)
        assert order_of(gang.members) == order_of_whole(whole)


@pytest.mark.nightly
@pytest.mark.parametrize("moment", ["arrive", "enter", "store"])
def test_a_gang_that_is_lost_ends_and_restarts_at_another_size(
    whole: dict[str, Any], moment: str
) -> None:
    with elastic_gang(hold=[3, 6], patience_s=2.0, agree_ns=-1) as gang:
        store = gang.store
        first = gang.start(0, 2)
        second = gang.start(1, 2, die=f"store:{store.pid}" if moment == "store" else moment)
        third = gang.newcomer(2)
        for member in (first, second):
            member.wait_holding(3)
        gang.checkpoint(4, first, second)
        for member in (first, second):
            member.go("order")
        for member in (first, second):
            member.wait_told("checkpointed")
        order = ordered(gang, {first: 0, second: 1, third: 2}, 6)
        # No deadline of the agent's ends them: they see by themselves that the gang is lost.
        assert first.end() == 1
        assert second.end() == (1 if moment == "store" else -9)
        assert third.wait_told("failed", order=order)
        assert third.process.poll() is None or moment != "arrive"
        told = "".join(first.errors)
        assert ("GangLost" in told) == (moment != "arrive"), told
        for member in gang.members:
            member.close()

        gang.attempt += 1
        gang.store = Store()
        again = [gang.start(rank, 3, hold=[]) for rank in range(3)]
        assert [member.end() for member in again] == [0, 0, 0]
        store.close()
        check_result(again[0], whole)
        expected = order_of_whole(whole)
        seen = order_of(again)
        assert min(seen) == 4
        assert seen == {step: expected[step] for step in seen}
