"""The allocator is killed in the middle of what it does with cells: no job and no cell is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.kill_cells import KINDS, kill_cells, table

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]

SEED = 11


def test_no_cell_is_lost_whatever_the_allocator_is_killed_in(tmp_path: Path) -> None:
    report = kill_cells(1, SEED, tmp_path, lived_s=0.0)
    print(table(report))
    assert report["problems"] == []
    assert [row["kind"] for row in report["rounds"]] == list(KINDS)
    recorded = {row["kind"]: row["recorded"] for row in report["rounds"]}
    preempting, launching = recorded["preemption"], recorded["launch"]
    assert (preempting["cells-reserved"], preempting["job-stopping"]) == (1, 4)
    assert "job-bound" not in preempting, "the victims were still there"
    assert launching["member-ran"] == 1, "the other part of the gang was held back"
    assert "job-ran" not in launching
