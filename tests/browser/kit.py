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


def begin_search(cluster: Embedded, steps: int = 100_000, key: str = "", **changes: Any) -> str:
    """Begin a search of two trials of some mini-batches, both at a time; return its id.

    Args:
        cluster: Where it runs, as the operator's.
        steps: The mini-batches of each trial; each takes 20 ms.
        key: A submission is repeated with the same key; empty: it has none.
        changes: Further keys of the search, or other values.
    """
    spec = {
        "name": "rates",
        "vc": "lab",
        "metric": "accuracy",
        "direction": "maximize",
        "job": {"script": str(CURVE), "args": ["{rate}", str(steps)]},
        "space": {"rate": {"log": [0.001, 1.0]}},
        "budget": {"trials": 2},
        "parallel": 2,
        **changes,
    }
    headers = {"Idempotency-Key": key} if key else None
    reply = cluster.ask("POST", "/v1/searches", json.dumps(spec).encode(), headers=headers)
    assert reply.status == 201, reply
    search: str = reply.body["search"]
    return search


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
