"""What the ranks of a gang agree on, when the gang becomes another one."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from skep_job.cooperate.gang_barrier import Together
from skep_job.elastic.parts import Seat
from skep_job.elastic.run import _Follower
from skep_job.link.orders import Control


class Distributed(SimpleNamespace):
    """As much of `torch.distributed` as is asked who is there."""

    world = 1

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def get_world_size(self) -> int:
        return self.world

    def new_group(self, **_: Any) -> object:
        return object()


def test_a_gang_that_shrank_to_one_rank_does_its_orders_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else they wait for ranks that have left, and the checkpoint is never written."""
    monkeypatch.setitem(sys.modules, "torch.distributed", others := Distributed())
    control, done = Control(), []
    control.on("checkpoint", lambda message: done.append(message["order"]))
    control.cooperative = True
    together = Together(control)
    for order, world in ((1, 1), (2, 3), (3, 1)):
        others.world = world
        together.leave()
        together.begin()
        assert together.alone == (world == 1)
        control.take({"type": "checkpoint", "order": order})
        assert (control.held is not None) == (world > 1), "it waits for the others"
        control.held = None
        if control.due:
            control.boundary(5, cooperative=True)
    assert done == [1, 3]


def test_an_order_that_came_while_the_others_left_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed", others := Distributed())
    control = Control()
    control.on("checkpoint", lambda _: None)
    control.cooperative = True
    others.world = 2
    together = Together(control)
    together.begin()
    # As a gang does that changes its size, through what follows it.
    follower = _Follower(together.leave, together.begin)
    follower.release()
    control.take({"type": "checkpoint", "order": 1})
    assert control.held is not None
    assert together.left_over() is None, "nothing is done alone while they are about to be others"
    others.world = 1
    follower.rebuild(Seat(2, 0, 1), first=False)
    held = together.left_over()
    assert held is not None
    assert held["order"] == 1
    assert together.left_over() is None
    control.take({"type": "checkpoint", "order": 2})
    assert control.due, "it waits for nobody"


@pytest.mark.parametrize("copied, whole", [((5, 5), 5), ((5, 10), -1), ((-1, 10), -1)])
def test_a_boundary_is_whole_if_it_is_the_last_copy_of_all(
    monkeypatch: pytest.MonkeyPatch, copied: tuple[int, int], whole: int
) -> None:
    """Else one whose copy failed on a rank counts, once that rank has a newer one."""
    monkeypatch.setitem(sys.modules, "torch.distributed", others := Distributed())
    others.world = 2
    rows: list[list[int]] = []
    agreed = []
    for number in copied + copied:  # First each one says what it has, then it hears of both.
        together = Together(Control())
        together.begin()

        def reduce(numbers: list[int], how: str) -> list[int]:
            assert how == "MAX"
            rows.append(numbers)
            return [max(each) for each in zip(*rows, strict=True)]

        monkeypatch.setattr(together, "_reduce", reduce)
        agreed.append(together.boundary(checkpoint=False, end=False, copied=number).copied)
    assert agreed[-2:] == [whole, whole]


def test_nothing_is_stored_while_a_rank_has_gradients_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All ask again after the next mini-batch, also those that could store; no order is lost."""
    monkeypatch.setitem(sys.modules, "torch.distributed", others := Distributed())
    others.world = 2
    control = Control()
    together = Together(control)
    together.begin()
    own = [True, True, False]
    asked: list[list[int]] = []

    def reduce(numbers: list[int], _how: str) -> list[int]:
        asked.append(numbers)
        return numbers

    monkeypatch.setattr(together, "_reduce", reduce)
    control.held = {"type": "checkpoint", "order": 4}
    agreed = [
        together.boundary(checkpoint=True, end=True, own_gradients=lambda: own.pop(0))
        for _ in range(3)
    ]
    assert [(each.checkpoint, each.end, each.order is not None) for each in agreed] == [
        (False, False, False),
        (False, False, False),
        (True, True, True),
    ]
    assert len(asked) == 3


def test_nodes_that_name_other_mini_batches_and_numbers_agree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else each node stores its part after another mini-batch, and no rank can read the whole.

    What was withdrawn on one node is not done there, and so nowhere.
    """
    monkeypatch.setitem(sys.modules, "torch.distributed", others := Distributed())
    others.world = 2
    ranks = [Control(), Control()]
    barriers = [Together(control) for control in ranks]
    for control, together in zip(ranks, barriers, strict=True):
        control.on("checkpoint", lambda _: None)
        control.cooperative = True
        together.begin()

    def at_a_boundary() -> list[object]:
        """Return the order that each rank does; both have said theirs before one hears."""
        rows: list[list[int]] = []

        def reduce(numbers: list[int], _how: str) -> list[int]:
            rows.append(numbers)
            return [max(each) for each in zip(*rows, strict=True)]

        done: list[object] = []
        for together in (*barriers, *barriers):
            kept = together._control.held
            monkeypatch.setattr(together, "_reduce", reduce)
            together._left = 1
            order = together.boundary(checkpoint=False, end=False).order
            done.append(None if order is None else order["order"])
            if len(done) <= len(barriers):
                together._control.held = kept
        return done[len(barriers) :]

    ranks[0].take({"type": "checkpoint", "order": 1, "step": 7})
    assert not ranks[0].due
    assert at_a_boundary() == [None, None]
    ranks[1].take({"type": "checkpoint", "order": 12, "step": 9})
    assert at_a_boundary() == [1, 12]
    ranks[0].take({"type": "checkpoint", "order": 2})
    ranks[1].take({"type": "checkpoint", "order": 13})
    ranks[1].take({"type": "resume", "order": 14})
    assert at_a_boundary() == [None, None]
