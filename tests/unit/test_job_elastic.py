"""The pure parts of an elastic gang: shares of a batch, and what an order must look like."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from skep_job.elastic.agreement import COMMIT, Plan, StoreLost, folder, read_plan
from skep_job.elastic.data_shares import share
from skep_job.elastic.gang import Gang, GangLost
from skep_job.elastic.parts import Clock, Seat, rules

MESSAGE: dict[str, object] = {
    "type": "rescale",
    "order": 4,
    "generation": 2,
    "world": 3,
    "rank": 1,
    "host": "10.0.0.1",
    "port": 4000,
    "step": 17,
    "leaves": False,
}


@pytest.mark.parametrize(
    "size, world", list(itertools.product([1, 2, 7, 32, 256], [1, 2, 3, 5, 8]))
)
def test_shares_are_the_batch_in_order_and_their_weights_are_one(size: int, world: int) -> None:
    batch = [f"sample {number}" for number in range(size)]
    shares = [share(batch, rank, world) for rank in range(world)]
    assert [sample for each in shares if each.weight for sample in each.indices] == batch
    assert sum(each.weight for each in shares) == pytest.approx(1)
    assert all(each.indices for each in shares), "every rank takes part in the all-reduce"
    lengths = [len(each.indices) for each in shares]
    assert max(lengths) - min(lengths) <= 1


def test_a_plan_is_read_from_an_order() -> None:
    assert read_plan(MESSAGE) == Plan(4, 2, 3, 1, "10.0.0.1", 4000, 17)
    leaves = read_plan({**MESSAGE, "leaves": True, "rank": 0})
    assert (leaves.rank, leaves.leaves) == (-1, True)


@pytest.mark.parametrize(
    "change, why",
    [
        ({"rank": 3}, "rank is 3, expected 0 to 2, or `leaves`"),
        ({"rank": "1"}, "rank is '1', expected a whole number"),
        ({"world": True}, "world is True, expected a whole number"),
        ({"world": 0}, "no such gang: "),
        ({"generation": 0}, "no such gang: "),
        ({"port": 70_000}, "no such gang: "),
        ({"step": -1}, "no such gang: "),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=f"^{why}"):
        read_plan({**MESSAGE, **change})


def test_a_job_says_which_sizes_it_can_have() -> None:
    allowed = rules((2, 8), 6)
    plan = read_plan(MESSAGE)
    assert not allowed.objection(plan)
    assert allowed.objection(plan._replace(world=1)) == (
        "world is 1; this job runs with 2 to 8 ranks"
    )
    assert allowed.objection(plan._replace(world=7)) == (
        "world is 7; the global batch has 6 samples"
    )
    for sizes, batch, patience_s in (
        ((0, 2), 8, 1.0),
        ((3, 2), 8, 1.0),
        ((4, 8), 3, 1.0),
        ((1, 2), 8, 0.0),
    ):
        with pytest.raises(ValueError, match=r"^(elastic|global_batch) is "):
            rules(sizes, batch, patience_s=patience_s)


def test_generations_of_attempts_have_folders_of_their_own() -> None:
    assert folder("j7", 3, 2) == "skep/j7/3/2"


def test_the_parts_of_a_pause_are_no_longer_than_the_pause() -> None:
    clock = Clock()
    clock.part("gather")
    clock.part("copy")
    assert list(clock.parts) == ["gather", "copy"]
    assert sum(clock.parts.values()) <= clock.total()


class Said:
    """What a gang says to its agent."""

    def __init__(self) -> None:
        self.words: list[tuple[str, dict[str, Any]]] = []

    def say(self, kind: str, **fields: Any) -> None:
        self.words.append((kind, fields))


def test_who_has_its_place_says_so_again_to_an_agent_that_did_not_hear_it() -> None:
    gang = Gang(rules((1, 4), 8), lambda: 21, None)  # type: ignore[arg-type]
    gang._orders = said = Said()  # type: ignore[assignment]
    gang.seat = Seat(2, 1, 3)
    assert gang._announced({**MESSAGE, "order": 9})
    assert said.words == [("rescaled", {"order": 9, "generation": 2, "step": 21, "pause_ns": 0})]
    assert not gang.due


class LateStore:
    """What a member has prepared for a change whose store answers when it has been withdrawn."""

    said = True

    def __init__(self, gang: Gang, plan: Plan) -> None:
        self.plan, self._gang = plan, gang

    def result(self, *_: object) -> None:
        self._gang._withdrawn()


def test_a_member_stays_away_from_a_change_that_was_withdrawn_while_it_connected() -> None:
    """The others train on, and its all-reduce is missing until it has given up waiting for them."""
    gang = Gang(rules((1, 4), 8), lambda: 17, None)  # type: ignore[arg-type]
    gang._orders = said = Said()  # type: ignore[assignment]
    gang._plan_due = plan = read_plan(MESSAGE)
    gang._preparing = LateStore(gang, plan._replace(step=17))  # type: ignore[assignment]
    assert not gang.boundary()
    error = "it was withdrawn before this member was connected"
    assert said.words == [("failed", {"order": 4, "what": "rescale", "error": error})]
    assert gang._plan_due is None


class Gathering:
    """A change whose store is lost, or says what it does, once a member is at the step."""

    def __init__(self, verdict: str, given: str = "") -> None:
        self.store, self.verdict_, self.given = None, verdict, given
        self.gave: list[str] = []

    def match(self, *_: object) -> bool:
        return True

    def arrive(self, *_: object) -> dict[int, dict[str, object]]:
        return {}

    def verdict(self) -> str:
        if self.verdict_ == "lost":
            raise StoreLost(self.verdict_)
        return self.verdict_

    def give(self, why: str, *_: object) -> str:
        self.gave.append(why)
        return self.given


@pytest.mark.parametrize(
    "verdict, given, gathers",
    [("another refused", "", 0), (COMMIT, "another cannot write", 1), ("lost", "", 0)],
)
def test_no_member_gathers_before_all_are_known_to(verdict: str, given: str, gathers: int) -> None:
    """Else it meets one that trains on in a collective that is not the same."""
    gang = Gang(rules((1, 4), 8), lambda: 17, None)  # type: ignore[arg-type]
    gang._orders = said = Said()  # type: ignore[assignment]
    gathered: list[object] = []
    gang._snapshot = dict  # type: ignore[assignment, method-assign]
    gang.regroup = SimpleNamespace(
        splits=False, gathers=True, offer=lambda *words: gathered.append(words), close=list
    )
    round_ = Gathering(verdict, given)
    gang._round = lambda _: round_  # type: ignore[assignment, method-assign, return-value]
    gang._plan_due = read_plan(MESSAGE)
    if verdict == "lost":
        with pytest.raises(GangLost, match="the store was lost at the step of a change"):
            gang.boundary()
    else:
        assert not gang.boundary()
        assert [fields["error"] for _, fields in said.words] == [given or verdict]
    assert len(gathered) == len(round_.gave) == gathers
