"""A sample of the crash matrix: nothing that was confirmed is lost, whoever dies in a change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.crash_matrix import crash_matrix
from tests.system.crashes import table
from tests.system.crashes.cells import chosen

pytestmark = [pytest.mark.torch, pytest.mark.e2e]

SEED = 3
SAMPLE = (
    "suspend/answered/allocator",
    "resume/ordered/everything",
    "migrate/sending/source-agent",
    "grow/starting/newcomer",
    "checkpoint-sharded/taken/survivor",
)


@pytest.mark.nightly
@pytest.mark.parametrize("sample", [SAMPLE[:1], SAMPLE[1:]])
def test_whoever_dies_in_a_change_the_job_goes_on_to_the_bit(
    sample: tuple[str, ...], tmp_path: Path
) -> None:
    wanted = [cell for only in sample for cell in chosen(only)]
    assert len(wanted) == len(sample)
    report = crash_matrix(wanted, SEED, lambda row, _: print(row), tmp_path)
    print(f"seed {SEED}", table.markdown(report["cells"]), sep="\n")
    assert report["problems"] == []
    assert [row for row in report["cells"] if not row["ok"]] == []
    assert report["ran"] == len(sample)
