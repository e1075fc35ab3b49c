"""The previous release is upgraded service by service under running jobs: none of them notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import needs
from tests.system.upgrade import NODES, SERVICES, TAG, AbsentError, Upgrade

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_no_job_is_lost_or_restarted_by_an_upgrade(tmp_path: Path) -> None:
    try:
        run = Upgrade(tmp_path, TAG)
    except AbsentError as error:
        needs.skip(str(error))
    try:
        report = run.run()
    finally:
        run.cluster.down()
    assert report["problems"] == []
    assert [row["service"] for row in report["rows"]] == [*SERVICES, *NODES]
    assert report["submitted"] > len(SERVICES)
