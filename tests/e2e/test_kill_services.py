"""A sample of the kills around services: `python -m tests.system.kill_services` has all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.kill_services import kill_services

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]


@pytest.mark.parametrize("only", ["replica/updating", "searches/scaling", "everything/stopping"])
def test_a_service_is_whole_again_or_over_whatever_is_killed(only: str, tmp_path: Path) -> None:
    report = kill_services(only, tmp_path)
    assert report == {"cases": 1, "failed": 0, "left": []}
