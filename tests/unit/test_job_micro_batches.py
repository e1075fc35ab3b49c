"""Which sizes keep the global batches of a library's loop, and what a newcomer's library sees."""

from __future__ import annotations

import os
from types import ModuleType, SimpleNamespace

import pytest

from skep_job.elastic import library_group, micro_batches
from skep_job.elastic.agreement import Plan
from skep_job.elastic.parts import rules


def dealt(batches: int, ranks: int, each: int) -> list[set[int]]:
    """Return the micro-batches of each global batch, as accelerate deals them out in turn."""
    turns = -(-batches // ranks)
    of = [[(turn * ranks + rank) % batches for turn in range(turns)] for rank in range(ranks)]
    return [
        {batch for rank in of for batch in rank[first : first + each]}
        for first in range(0, turns, each)
    ]


@pytest.mark.parametrize("batches", [24, 25, 31])
@pytest.mark.parametrize("ranks, each", [(1, 1), (2, 3), (4, 3), (3, 2)])
def test_sizes_that_divide_keep_the_global_batches(batches: int, ranks: int, each: int) -> None:
    total = ranks * each
    before = dealt(batches, ranks, each)
    assert len(before) == micro_batches.steps(batches, ranks, each)
    for size in micro_batches.sizes(total, 1, 8):
        other = micro_batches.accumulation(total, size)
        after = dealt(batches, size, other)
        assert after[:-1] == before[:-1], "the last one of a pass is filled up with the first"
        assert len(after) == len(before) == micro_batches.steps(batches, size, other)


def test_sizes_are_within_what_the_job_allows() -> None:
    assert micro_batches.sizes(12, 1, 100) == (1, 2, 3, 4, 6, 12)
    assert micro_batches.sizes(12, 2, 5) == (2, 3, 4)
    assert micro_batches.sizes(1, 2, 5) == ()


def test_what_is_dropped_may_change_the_steps_of_a_pass() -> None:
    assert micro_batches.steps(5, 2, 1, drop_last=True) == 2
    assert micro_batches.steps(5, 1, 2, drop_last=True) == 3


@pytest.mark.parametrize("total, ranks", [(4, 3), (2, 4)])
def test_ranks_that_cannot_share_a_global_batch_are_refused(total: int, ranks: int) -> None:
    allowed = {4: "1, 2, 4", 2: "1, 2"}[total]
    with pytest.raises(ValueError, match=f"^{ranks} workers cannot share the {total} micro-") as no:
        micro_batches.accumulation(total, ranks)
    assert str(no.value).endswith(f"give the job one of {allowed}")


def test_a_rank_keeps_its_random_generators() -> None:
    assert [micro_batches.random_of(rank, 2) for rank in range(5)] == [0, 1, 0, 1, 0]
    assert [micro_batches.random_of(rank, 4) for rank in range(2)] == [0, 1]


def test_a_rank_refuses_a_size_that_it_did_not_offer() -> None:
    may = rules((1, 4), 100)._replace(offered=(1, 2, 4))
    assert may.objection(Plan(1, 1, 3, 0, "h", 1, 0)) == (
        "world is 3; this job keeps its global batch with 1, 2, 4 ranks"
    )
    assert not may.objection(Plan(1, 1, 4, 0, "h", 1, 0))


def test_accelerate_is_alone_in_a_newcomer_until_it_has_a_seat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    formed = [False]
    distributed = SimpleNamespace(is_initialized=lambda: formed[0])
    monkeypatch.setitem(__import__("sys").modules, "torch.distributed", distributed)
    module = ModuleType("accelerate.state")

    class PartialState:
        def __init__(self) -> None:
            self.world = int(os.environ.get("WORLD_SIZE", "1"))

    vars(module)["PartialState"] = PartialState
    library_group._hook(module)
    assert PartialState().world == 1
    assert os.environ["WORLD_SIZE"] == "2"
    formed[0] = True
    assert PartialState().world == 2
    with library_group.seated(0, 1):
        assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE"} & os.environ.keys()
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == ("0", "1")
    with library_group.seated(3, 4):
        assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == ("3", "4")
