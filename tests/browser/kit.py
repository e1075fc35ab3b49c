"""What tests of the page submit, ask and confirm."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.embedded import Embedded

expect = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed").expect

ATTACK = "<img src=x onerror=window.attacked=1><script>window.attacked=1</script>"
WAIT = ["sh", "-c", "echo begun; sleep 600"]
JOBS = Path(__file__).parents[1] / "e2e/jobs"
CURVE = JOBS / "curve.py"


def submit(cluster: Embedded, command: list[str] | None = None, **more: Any) -> str:
    """Submit a job with one GPU as the operator; return its id."""
    what = {} if "script" in more else {"command": command or WAIT}
    spec = {"name": "test", "vc": "lab", "resources": {"gpus": 1}, **what, **more}
    reply = cluster.ask("POST", "/v1/jobs", json.dumps(spec).encode())
    assert reply.status in {201, 202}, reply
    job: str = reply.body["job"]
    return job


def running(cluster: Embedded, command: list[str] | None = None, **more: Any) -> str:
    """Submit a job, and return its id once it runs."""
    job = submit(cluster, command, **more)
    cluster.started(job)
    return job


def state(cluster: Embedded, job: str) -> str:
    """Return the state of a job as the API has it."""
    told: str = cluster.get(f"/v1/jobs/{job}")["state"]
    return told


def confirm(page: Any, verb: str, line: str = "", name: str | re.Pattern[str] = "") -> None:
    """Confirm what is asked, after a look at the line that does the same."""
    dialog = page.get_by_role("dialog", **({"name": name} if name else {}))
    expect(dialog).to_contain_text(line)
    dialog.get_by_role("button", name=verb, exact=True).click()


def act(page: Any, verb: str, line: str = "") -> None:
    """Press the button of an action, and confirm it."""
    page.get_by_role("button", name=verb, exact=True).click()
    confirm(page, verb, line)


def leaves(cluster: Embedded, folder: Path, script: str) -> str:
    """Run a script that writes into `out/`; return the job once it has ended."""
    code = folder / "code"
    code.mkdir()
    (code / "run.sh").write_text(f"mkdir out\n{script}\n")
    spec = {"name": "leaves", "vc": "lab", "code": str(code), "outputs": ["out/"]}
    path = folder / "spec.json"
    path.write_text(json.dumps({**spec, "command": ["sh", "run.sh"]}))
    told = json.loads(cluster.skep("submit", str(path), "--json"))
    job: str = told["job"] if "job" in told else told["jobs"][0]["job"]
    assert cluster.ended(job)["state"] == "succeeded", told
    return job
