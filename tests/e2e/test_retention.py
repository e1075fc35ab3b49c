"""Old messages leave the bus of a live cluster, and nothing that anybody asks for is missing."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skep.wire import subjects
from tests.e2e.conftest import Gate, Tenant
from tests.support.embedded import Embedded

# Each test goes on with the cluster as the one before left it, so all of them are nightly.
pytestmark = [pytest.mark.slow, pytest.mark.nightly]
JOBS = 40
RENEWED = ("allocator", "admission", "searches", "advisor", "gateway", "introspector", "node-1")


@pytest.fixture(scope="module")
def aged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    """A cluster whose services take snapshots often."""
    cluster = Embedded(tmp_path_factory.mktemp("aged"), {"SKEP_KEEP_EVERY": "20"})
    try:
        cluster.up("--nodes", "1", "--gpus", "4", "--vc", "nlp=4", "--port", "0")
        yield cluster
    finally:
        cluster.down()


def seen(cluster: Embedded) -> dict[str, Any]:
    """Return what people see of what has ended."""
    rows = cluster.get("/v1/jobs?state=ended&limit=1000")["jobs"]
    keys = ("job", "name", "vc", "state", "submitted_at", "ended_at", "why")
    table = {row["job"]: [row.get(key) for key in keys] for row in rows}
    report = cluster.get("/v1/report?by=vc")["report"]["total"]
    lost = [cluster.get(f"/v1/jobs/{job}/blame")["shares"] for job in sorted(table)[:3]]
    return {"jobs": table, "completed": report["completed"], "blame": lost}


def renew(cluster: Embedded, name: str) -> None:
    entry = cluster.entry(name)
    os.kill(entry["pid"], signal.SIGKILL)
    cluster.wait_back(name, entry["pid"])


def test_services_start_behind_what_was_archived(aged: Embedded, gate: Gate) -> None:
    nlp = Tenant(aged, "nlp")
    held = nlp.accepted(nlp.spec(["sh", "-c", gate.wait]))
    jobs = [nlp.accepted(nlp.spec(["true"])) for _ in range(JOBS)]
    for job in jobs:
        aged.ended(job)
    gate.reached()
    before = seen(aged)
    assert before["completed"] == JOBS
    told = json.loads(aged.skep("log", "archive", "--older", "0", "--json"))
    moved = {each["stream"]: each for each in told["moved"]}
    for name in (subjects.ALLOC, subjects.ADMISSION, subjects.NODE):
        assert moved[name]["messages"] > JOBS / 4, moved
        assert moved[name]["keep_from"] == moved[name]["messages"] + 1, moved
    assert json.loads(aged.skep("log", "check", "--json"))["ok"]
    for name in RENEWED:
        renew(aged, name)
    assert seen(aged) == before
    # A view that is lost is made again, out of the archive and the stream.
    for path in (aged.home / "gateway").glob("read-model.sqlite*"):
        path.unlink()
    renew(aged, "gateway")
    assert seen(aged) == before
    gate.open()
    assert aged.ended(held)["state"] == "succeeded"
    after = nlp.accepted(nlp.spec(["true"]))
    assert aged.ended(after)["state"] == "succeeded"
    blamed = json.loads(aged.skep("blame", jobs[0], "--json"))
    assert blamed["end"] == "succeeded"


def test_an_archive_is_in_the_backup(aged: Embedded, tmp_path: Path) -> None:
    path, other = tmp_path / "one.backup", Embedded(tmp_path / "other")
    before = seen(aged)
    aged.skep("backup", str(path))
    assert json.loads(aged.skep("backup", "--check", str(path), "--json"))["ok"]
    aged.skep("restore", str(path), "--home", str(other.home))
    try:
        other.up("--port", "0")
        assert seen(other) == before
        assert json.loads(other.skep("log", "check", "--json"))["ok"]
    finally:
        other.down()


def test_an_export_has_what_was_archived(aged: Embedded, tmp_path: Path) -> None:
    path = tmp_path / "week.jsonl.gz"
    aged.skep("replay", "--export", str(path))
    told = json.loads(aged.skep("report", "--log", str(path), "--json"))
    assert told["report"]["total"]["completed"] == seen(aged)["completed"]
