"""Running jobs are suspended, resumed, moved and made room with, on a cluster of real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Tenant
from tests.support.embedded import Embedded, until

pytestmark = pytest.mark.e2e

DEADLINE_S = 120.0
SCRIPT = Path(__file__).parent / "jobs" / "steady.py"


class Job:
    """A training job, and what it noted."""

    def __init__(self, tenant: Tenant, folder: Path, name: str, **more: Any) -> None:
        self.cluster = tenant.cluster
        self.notes, self.end = folder / f"{name}.notes", folder / f"{name}.end"
        arguments = [str(self.notes), "--until", str(self.end)]
        if more.pop("cooperative", False):
            arguments.append("--cooperative")
        plain = more.pop("plain", "")
        what = {"script": str(SCRIPT), "args": arguments}
        if plain:
            what = {"command": [plain, str(SCRIPT), *arguments]}
        spec = {"name": name, "vc": tenant.vc, **what, **more}
        self.job = tenant.accepted(spec)

    @property
    def row(self) -> dict[str, Any]:
        """Return what the gateway says of it."""
        row: dict[str, Any] = self.cluster.get(f"/v1/jobs/{self.job}")
        return row

    def steps(self) -> list[list[str]]:
        """Return attempt, process and loss of every mini-batch."""
        text = self.notes.read_text() if self.notes.exists() else ""
        return [line.split() for line in text.splitlines() if line.count(" ") == 2]

    def trains(self, more: int = 20) -> None:
        """Return once it has made some more mini-batches."""
        before = len(self.steps())
        until(lambda: len(self.steps()) >= before + more, f"{self.job} to train", DEADLINE_S)

    def can(self, ability: str) -> None:
        """Return once it has said that it can do something."""
        until(lambda: ability in self.row["can"], f"{self.job} to be able to {ability}", DEADLINE_S)

    def is_in(self, state: str) -> None:
        """Return once it is in a state."""
        until(lambda: self.row["state"] == state, f"{self.job} to be {state}", DEADLINE_S)

    def ask(self, *words: str) -> dict[str, Any]:
        """Ask for a change on the command line, and return what came of it."""
        command = (sys.executable, "-m", "skep_services", words[0], "--wait", "--json")
        done = subprocess.run(
            [*command, *words[1:], self.job],
            env=self.cluster.environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        answer: dict[str, Any] = json.loads(done.stdout)["jobs"][0]
        assert done.returncode == (0 if answer.get("result") == "done" else 1), (
            answer,
            done.stderr,
        )
        return answer


def held(cluster: Embedded) -> dict[tuple[str, int], str]:
    """Return which job holds each GPU that is held."""
    gpus = cluster.get("/v1/gpus")["gpus"]
    return {(gpu["node"], gpu["index"]): gpu["job"] for gpu in gpus if gpu["taken"]}


def test_an_unmodified_script_stands_still_and_goes_on_in_place(
    cluster: Embedded, nlp: Tenant, tmp_path: Path
) -> None:
    job = Job(nlp, tmp_path, "steady", resources={"gpus": 2})
    job.can("release")
    job.trains()
    assert job.ask("suspend")["state"] == "suspended"
    stood = job.steps()
    assert set(held(cluster).values()) == {job.job}
    why = cluster.get(f"/v1/jobs/{job.job}/why")
    assert [one["reason"] for one in why["reasons"]] == ["suspended", "holds"]

    # Nothing is trained until it is resumed, also not by giving its GPUs to others.
    assert job.ask("suspend", "--release")["result"] == "done"
    assert held(cluster) == {}
    assert job.steps() == stood
    assert job.ask("resume")["state"] == "running"
    job.trains()
    assert set(held(cluster).values()) == {job.job}
    assert job.steps()[: len(stood)] == stood
    assert {(attempt, pid) for attempt, pid, _ in job.steps()} == {tuple(stood[0][:2])}

    assert job.ask("migrate")["error"]["reason"] == "cannot"  # Known, so it is said at once.
    job.end.touch()
    assert cluster.ended(job.job)["state"] == "succeeded"


@pytest.mark.nightly
def test_a_cooperative_job_moves_to_another_node(
    cluster: Embedded, nlp: Tenant, tmp_path: Path
) -> None:
    job = Job(nlp, tmp_path, "mover", cooperative=True)
    job.can("migrate")
    job.trains()
    before = job.row["place"].partition(":")[0]
    other = next(node for node in ("node-1", "node-2") if node != before)
    assert job.ask("checkpoint")["result"] == "done"
    assert job.ask("migrate", "--to", other)["state"] == "running"
    job.trains()
    row = job.row
    assert row["place"].startswith(f"{other}:")
    assert [one["outcome"] for one in row["attempts"]] == ["moved", None]
    until(lambda: list(held(cluster)) == [(other, held_index(row))], "the source to be free")

    # One trained after the other: never both, and nothing twice or left out.
    attempts = [attempt for attempt, _, _ in job.steps()]
    assert attempts == sorted(attempts), attempts
    assert set(attempts) == {"1", "2"}
    alone = Job(nlp, tmp_path, "alone", cooperative=True)
    until(lambda: len(alone.steps()) >= len(attempts), "the same job to come so far", DEADLINE_S)
    count = len(attempts)
    assert [loss for *_, loss in alone.steps()][:count] == [loss for *_, loss in job.steps()][
        :count
    ]
    for one in (job, alone):
        one.end.touch()
        assert cluster.ended(one.job)["state"] == "succeeded"


def held_index(row: dict[str, Any]) -> int:
    """Return the one GPU of a job's place."""
    return int(row["place"].partition(":")[2])


@pytest.mark.nightly
def test_who_makes_room_stands_aside_and_comes_back_by_itself(
    cluster: Embedded, nlp: Tenant, vision: Tenant, tmp_path: Path
) -> None:
    wide = {"gpus": 4, "workers": 1}
    borrower = Job(vision, tmp_path, "borrower", service_class="opportunistic", resources=wide)
    other = Job(vision, tmp_path, "other", service_class="opportunistic", resources=wide)
    for job in (borrower, other):
        job.can("release")
        job.trains()
    owner = Job(nlp, tmp_path, "owner", resources=wide)
    owner.trains()
    victim = next(job for job in (borrower, other) if job.row["state"] == "suspended")
    assert victim.row["released"]
    why = cluster.get(f"/v1/jobs/{victim.job}/why")
    assert [one["reason"] for one in why["reasons"]] == [
        "preempted",
        "waits-for-its-gpus",
        "in-place",
    ]
    assert owner.job in why["would_change"][0]
    owner.end.touch()
    assert cluster.ended(owner.job)["state"] == "succeeded"
    victim.is_in("running")
    victim.trains()
    assert {attempt for attempt, *_ in victim.steps()} == {"1"}
    for job in (borrower, other):
        job.end.touch()
        assert cluster.ended(job.job)["state"] == "succeeded"


@pytest.mark.nightly
def test_a_job_goes_on_with_another_gpu_of_its_node(
    cluster: Embedded, nlp: Tenant, vision: Tenant, tmp_path: Path
) -> None:
    job = Job(nlp, tmp_path, "wanderer")
    job.can("rebind")
    job.trains()
    node, _, first = job.row["place"].partition(":")
    # Others come until somebody has its GPU.
    assert job.ask("suspend", "--release")["result"] == "done"
    others: list[Job] = []
    while (node, int(first)) not in held(cluster):
        tenant = (nlp, vision)[len(others) % 2]
        others.append(Job(tenant, tmp_path, f"other-{len(others)}", over_quota="opportunistic"))
        others[-1].trains()
    stood = job.steps()
    assert job.ask("resume")["state"] == "running"
    job.trains()
    row = job.row
    there, _, device = row["place"].partition(":")
    assert (there, device != first, row["attempt"]) == (node, True, 1)
    assert held(cluster)[node, int(device)] == job.job
    assert {pid for _, pid, _ in job.steps()} == {stood[0][1]}, "the very same process"
    events = cluster.get(f"/v1/jobs/{job.job}/events")["events"]
    assert f"goes on with {row['place']}, borrowed" in [one["text"] for one in events]

    # To the last bit what it would have trained where it began.
    alone = Job(vision, tmp_path, "alone", over_quota="opportunistic")
    count = len(job.steps())
    until(lambda: len(alone.steps()) >= count, "the same job to come so far", DEADLINE_S)
    assert [loss for *_, loss in alone.steps()][:count] == [loss for *_, loss in job.steps()][
        :count
    ]
    for one in (job, alone, *others):
        one.end.touch()
        assert cluster.ended(one.job)["state"] == "succeeded"
