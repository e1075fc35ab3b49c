"""Gangs whose state is split over their ranks: FSDP2, tensor parallel, pipelines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system import reshard

pytestmark = [pytest.mark.torch, pytest.mark.e2e, pytest.mark.nightly]


def test_jobs_of_one_size_go_on_to_the_same_bits(tmp_path: Path) -> None:
    found = reshard.fixed(tmp_path)
    for how, plays in found.items():
        assert all(play["same_losses"] for play in plays.values()), (how, plays)
        assert plays["restarted"]["from"] == 8
        assert plays["moved"]["from"] > 4


def test_a_gang_changes_its_size_and_learns_the_same(tmp_path: Path) -> None:
    found = reshard.curve(tmp_path)
    assert found["all_changed"]
    assert found["steps"] == 32
    assert found["bit_equal_until"] == 8  # With the same split nothing is added in another order.
    assert found["within_bound"], found


def test_a_checkpoint_is_gone_on_from_by_any_number_of_ranks(tmp_path: Path) -> None:
    found = reshard.restart(tmp_path)
    assert found["4 -> 4"]["same_bits"]
    assert found["4 -> 4"]["same_digest"]
    for play in found.values():
        assert play["from"] == 8
        assert play["largest_relative_difference"] <= reshard.BOUND


def test_tensor_parallel_gangs_are_split_anew(tmp_path: Path) -> None:
    for play in reshard.tensor(tmp_path).values():
        assert play["all_changed"]
        assert play["largest_relative_difference"] <= reshard.BOUND


def test_what_cannot_be_is_said_and_nothing_is_lost(tmp_path: Path) -> None:
    found = reshard.bad(tmp_path)
    assert found["shard missing"]["goes_on_after"] == found["shard damaged"]["goes_on_after"] == 4
    assert found["disk full"]["goes_on_after"] == 8
    assert found["shard missing"]["said"].endswith("the file of rank 1 of 4 is not there")
    assert "are not those that were written" in found["shard damaged"]["said"]
    assert "No space left on device" in found["disk full"]["said"]
    refused = found["dimension"]["said"]
    assert "cannot be split over 3 ranks: its dimension 0 has 32 elements" in refused
    assert "has no split over so many ranks" in found["split of the script fails"]["said"]
    assert "members disagree about torch" in found["version of a newcomer"]["said"]
    for name in ("split of the script fails", "version of a newcomer"):
        assert found[name]["goes_on_to_the_same_losses"]
    for name in ("dimension", "other number of devices"):
        assert found[name]["largest_relative_difference"] <= reshard.BOUND
    versions = found["versions of PyTorch at the start"]
    assert "rank 1: 2.12.1" in versions["said"]
    assert 0 not in versions["ended"]


def test_a_lost_rank_or_node_costs_one_boundary_at_most(tmp_path: Path) -> None:
    found = reshard.lost(tmp_path, 3)
    assert found["not_well"] == []
    assert found["nodes_lost"] >= 1
    assert found["from_memory"] == 3
