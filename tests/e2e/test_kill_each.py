"""Each service is killed in turn while jobs run: it costs time, and no job and no mini-batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.embedded import Embedded
from tests.system.kill_each import SERVICES, KillEach, table

pytestmark = pytest.mark.e2e

RECOVERY_MS_MAX = 15_000
"""Far above what is measured (one second, `skep up` five), for machines that do much else. A job
that is given up with its node (after 40 s) or never starts is beyond it."""


@pytest.mark.nightly
def test_no_job_is_lost_or_repeated_whichever_service_is_killed(tmp_path: Path) -> None:
    cluster = Embedded(tmp_path / "home")
    try:
        report = KillEach(cluster, tmp_path, plain=True).run()
    finally:
        cluster.down()
    print(table(report))
    assert report["problems"] == []
    assert len(report["rows"]) == len(SERVICES) + 2
    assert report["ended_once"] == report["jobs"] == len(SERVICES) + 5
    for row in report["rows"]:
        assert row["new_job_ms"] < RECOVERY_MS_MAX, row
    for training in report["trainings"]:
        assert (training["state"], training["attempts"]) == ("succeeded", 1)
