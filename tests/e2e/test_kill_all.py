"""Everything is killed once submissions are acknowledged: each is known, and ends once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.embedded import Embedded
from tests.system.kill_all import KillAll, is_good

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

JOBS = 60


def test_what_was_acknowledged_survives_the_death_of_everything(tmp_path: Path) -> None:
    cluster = Embedded(tmp_path / "home")
    try:
        report = KillAll(cluster, tmp_path / "runs", JOBS).run()
    finally:
        cluster.down()
    assert is_good(report), report
    assert report["acknowledged"] == report["one_attempt"] == report["executed_once"] == JOBS
    assert report["jobs_nobody_submitted"] == 0
    assert len(report["killed"]) == 11
