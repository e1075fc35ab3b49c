"""Gangs whose loop a library has: what one rank cannot do, no rank does, and all train on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.elastic_gang import ElasticGang, Member, elastic_gang

pytestmark = [pytest.mark.torch, pytest.mark.e2e, pytest.mark.nightly]

SCRIPT = Path(__file__).parent / "jobs" / "library_train.py"
STEPS = 36
PATIENCE_S = 3.0


def release(members: list[Member], at: int, word: str) -> None:
    for member in members:
        member.wait_holding(at)
        member.go(word)


def stored(gang: ElasticGang, members: list[Member], at: int, answer: str) -> list[str]:
    """Have all store their state while they hold; return the errors, if they are to fail."""
    for member in members:
        member.wait_holding(at)
    gang.checkpoint(at + 1, *members)
    order = gang._order
    release(members, at, "order")
    return [str(each.wait_told(answer, order=order).get("error")) for each in members]


def test_what_one_rank_cannot_do_no_rank_does() -> None:
    holds = [2, 6, 10, 14, 18, 22, 26]
    options = {"steps": STEPS, "hold": holds, "fails": [3, 16], "patience_s": PATIENCE_S}
    with elastic_gang(SCRIPT, **options) as gang:
        first, second = stay = [gang.start(0, 2), gang.start(1, 2)]

        # The first rank cannot write: no rank waits for its files.
        for error in stored(gang, stay, 2, "failed"):
            assert "rank 0 cannot write its files: OSError: [Errno 28]" in error

        for member in stay:
            member.wait_holding(6)
        files = [member.said("files") for member in stay]
        stored(gang, stay, 6, "checkpointed")
        for member in stay:
            member.wait_holding(10)
        assert [member.said("files") for member in stay] == files, "a checkpoint leaves none open"

        # One rank hears nothing of a change: it trains on, and the other one too.
        order = gang.rescale({first: 0}, 12, world=3)
        first.go("due")
        second.go("go")
        assert "not every member was there within" in str(
            first.wait_told("failed", order=order)["error"]
        )

        # The first rank cannot write what the newcomer is to have.
        third = gang.newcomer(2, hold=[26])
        for member in stay:
            member.wait_holding(14)
        assert [member.said("files") for member in stay] == files
        members = [*stay, third]
        places = {member: rank for rank, member in enumerate(members)}
        order = gang.rescale(places, 16)
        release(stay, 14, "due")
        for member in members:
            error = str(member.wait_told("failed", order=order)["error"])
            assert "cannot give its state: " in error
            assert "rank 0 cannot write its files" in error

        for at, ranks in ((18, places), (22, {first: 0, second: 1, third: -1})):
            for member in stay:
                member.wait_holding(at)
            order = gang.rescale(ranks, at + 2)
            release(stay, at, "due")
            for member in members:
                member.wait_told("rescaled", order=order)
        assert third.end() == 0
        release(stay, 26, "go")
        assert [member.end() for member in stay] == [0, 0]
        for member in stay:
            assert member.said("weight") == STEPS * (STEPS + 1) / 2
            worlds = [world for _, _, _, world in member.said("seen")]
            assert worlds == [2] * 20 + [3] * 4 + [2] * 12
