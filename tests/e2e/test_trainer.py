"""A trainer beside a real cluster: killed at any moment, it comes to the same model."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Tenant
from tests.support.embedded import Embedded, until

pytestmark = [pytest.mark.e2e, pytest.mark.needs("lab")]

JOBS = 18
SETTINGS = {"generations": 3, "population": 2, "traces": 1, "tuning": 1, "every": 2, "blocks": 3}
WITHIN_S = 180.0


def begin(cluster: Embedded, state: Path) -> subprocess.Popen[bytes]:
    """Begin a trainer for the latest jobs of `nlp`; kernels are interpreted, as in all tests."""
    words = [
        "--state",
        str(state),
        "--vc",
        "nlp",
        "--once",
        "--every",
        "1",
        "--window",
        str(JOBS),
        "--nice",
        "0",
    ]
    words += [f"--set={key}={value}" for key, value in SETTINGS.items()]
    command = [sys.executable, "-m", "skep_services.trainer", *words]
    environment = {**cluster.environment, "NUMBA_DISABLE_JIT": "1"}
    return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)


def kill(cluster: Embedded, state: Path, moment: Callable[[], bool]) -> None:
    """Begin a trainer, and kill it at a moment."""
    process = begin(cluster, state)
    try:
        until(lambda: moment() or process.poll() is not None, "the trainer is so far", WITHIN_S)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def finished(cluster: Embedded, state: Path) -> dict[str, Any]:
    """Have a trainer come to its end; return what it keeps."""
    process = begin(cluster, state)
    try:
        assert process.wait(WITHIN_S) == 0
    finally:
        process.kill()
    found: dict[str, Any] = json.loads((state / "trainer.json").read_text())
    return found


@pytest.mark.nightly
def test_a_trainer_that_is_killed_loses_nothing_and_delays_nothing(
    cluster: Embedded, nlp: Tenant, tmp_path: Path
) -> None:
    jobs = [
        nlp.accepted(nlp.spec("sleep 0.3", size={"run_time": 1 + at % 3})) for at in range(JOBS)
    ]
    assert [cluster.ended(job)["state"] for job in jobs] == ["succeeded"] * JOBS

    state = tmp_path / "killed"
    kill(cluster, state, (state / "round").exists)
    curve = state / "round" / "run" / "curve.jsonl"
    kill(cluster, state, lambda: curve.exists() and len(curve.read_bytes().splitlines()) > 1)
    job = nlp.accepted(nlp.spec("sleep 0.3"), key="meanwhile")  # Nothing waits for a trainer.
    assert cluster.ended(job)["state"] == "succeeded"

    after, whole = finished(cluster, state), finished(cluster, tmp_path / "whole")
    (first, *later), (only,) = after["rounds"], whole["rounds"]
    assert first["outcome"] in ("candidate", "not-better"), first
    assert first["report"]["jobs"] == JOBS
    # The round under way was the one of before that job; the next one is that of the whole run.
    assert [later[-1]["sequence"], later[-1]["model"]] == [only["sequence"], only["model"]]
    assert later[-1] == only
