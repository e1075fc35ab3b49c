"""Logs of earlier versions lead to the state they led to when they were written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fold_kit import LOGS, digests, stored, stored_digest


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.gz")), ids=lambda path: path.name)
def test_a_stored_log_replays_to_its_digests(path: Path) -> None:
    log = stored(path)
    for number, (now, then) in enumerate(
        zip(digests(log.records, stored_digest), log.digests, strict=True)
    ):
        assert now == then, (path.name, number, log.records[number])
