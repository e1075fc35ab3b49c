"""A parameter-server job as a gang of a real cluster: `skep_ps.launch` in its command."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Tenant
from tests.support.embedded import Embedded

DEADLINE_S = 240.0
"""Six processes import PyTorch first: on a loaded machine that alone takes a minute."""
DIGITS = Path(__file__).parent.parent.parent / "scripts" / "demo" / "jobs" / "digits_ps.py"

pytestmark = [pytest.mark.torch, pytest.mark.e2e, pytest.mark.needs("sklearn")]


@pytest.mark.nightly
@pytest.mark.parametrize("where", [["--servers", "1"], ["--servers", "2", "--beside"]])
def test_a_gang_trains_on_servers_of_its_own(
    cluster: Embedded, nlp: Tenant, where: list[str]
) -> None:
    command = [sys.executable, "-m", "skep_ps.launch", *where, str(DIGITS), "--epochs", "8"]
    spec = nlp.spec(
        command,
        resources={"workers": 3, "gpus": 1},
        env={"SKEP_PS_TOKEN": "only the ranks of this job know"},
    )
    job = nlp.accepted(spec)
    ended = cluster.ended(job, DEADLINE_S)
    logs = "\n".join(f"--- {rank}\n{cluster.log(job, rank)}" for rank in range(3))
    assert ended["state"] == "succeeded", logs
    workers = 3 if "--beside" in where else 2
    assert logs.count("final accuracy") == workers, logs
    assert "over: every worker is done" in cluster.log(job, 0)
