"""The allocator and admission are killed amid a pipeline: no job is lost, repeated or early."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.embedded import Embedded
from tests.system.kill_dag import KillDag, expected

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]


def test_a_pipeline_resolves_whichever_service_is_killed(tmp_path: Path) -> None:
    cluster = Embedded(tmp_path / "home")
    try:
        report = KillDag(cluster, tmp_path, jobs=18).run(kills=2)
    finally:
        cluster.down()

    assert report["problems"] == []
    ends = expected(18)
    assert report["ends"] == {end: ends.count(end) for end in sorted(set(ends))}
