"""Jobs whose spec names an image, on a real engine: run as containers, adopted, and changed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import needs
from tests.e2e.conftest import SITE_PACKAGES, Gate, Tenant
from tests.e2e.test_suspend import Job
from tests.node_runtimes import image_of_engine
from tests.support.embedded import Embedded, until

pytestmark = [pytest.mark.e2e, pytest.mark.docker]

OBSERVED = """
import sys
from pathlib import Path

here = not Path("/proc/1/comm").read_text().startswith(("init", "systemd"))
print("skep_job" in sys.modules, here, flush=True)
"""


@pytest.fixture(scope="module")
def image() -> str:
    return image_of_engine()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Embedded]:
    """A cluster whose agent may be killed."""
    cluster = Embedded(tmp_path / "home")
    try:
        cluster.up("--nodes", "1", "--gpus", "1", "--vc", "nlp=1", "--port", "0")
        yield cluster
    finally:
        cluster.down()


def contained(
    tenant: Tenant, image: str, folder: Path, command: Any, **more: Any
) -> dict[str, Any]:
    """Return the spec of a job in a container that works in `folder`."""
    return tenant.spec(command, runtime={"image": image}, workdir=str(folder), **more)


def containers_of(job: str) -> list[str]:
    """Return the names of a job's containers, ended ones included."""
    words = ["docker", "ps", "--all", "--format", "{{.Names}}", "--filter", f"name={job}."]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()


def test_a_gang_of_containers_meets_writes_and_succeeds(
    cluster: Embedded, nlp: Tenant, image: str, tmp_path: Path
) -> None:
    tell = (
        'cat /proc/1/comm; echo "$RANK $WORLD_SIZE $SKEP_DEVICES $COLOUR"; echo "$RANK" > "$RANK"'
    )
    more = {"resources": {"workers": 2, "gpus": 1}, "env": {"COLOUR": "green"}}
    document = cluster.ended(nlp.accepted(contained(nlp, image, tmp_path, tell, **more)))
    assert (document["state"], document["why"]) == ("succeeded", "succeeded")
    for rank in range(2):
        init, words = cluster.log(document["job"], rank).splitlines()
        assert init == "docker-init", "it is the first process of a container of its own"
        assert words.split() == [str(rank), "2", words.split()[2], "green"]
        assert (tmp_path / str(rank)).read_text() == f"{rank}\n"
    until(lambda: not containers_of(document["job"]), "the removal of the containers")


def test_an_observed_script_finds_skep_job_in_any_image(
    cluster: Embedded, nlp: Tenant, image: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(OBSERVED)
    spec = contained(nlp, image, tmp_path, None, script=str(script))
    document = cluster.ended(nlp.accepted({k: v for k, v in spec.items() if v is not None}))
    log = cluster.log(document["job"])
    assert (document["state"], log) == ("succeeded", "True True\n"), log


def test_an_image_that_does_not_exist_is_named_with_what_to_do(
    cluster: Embedded, nlp: Tenant, image: str, tmp_path: Path
) -> None:
    absent = "skep-test-absent:never"
    document = cluster.ended(nlp.accepted(contained(nlp, absent, tmp_path, ["true"])))
    assert (document["state"], document["why"]) == ("failed", "not-started")
    assert f"image {absent} is not on this node" in str(document)
    assert f"docker pull {absent}" in str(document)


def test_a_container_that_ignores_sigterm_is_cancelled_all_the_same(
    cluster: Embedded, nlp: Tenant, image: str, tmp_path: Path
) -> None:
    command = "trap '' TERM; : > here; while :; do sleep 0.1; done"
    job = nlp.accepted(contained(nlp, image, tmp_path, command))
    until((tmp_path / "here").exists, "the job")
    nlp.cancel(job)
    assert cluster.ended(job)["state"] == "cancelled"
    until(lambda: not containers_of(job), "the removal of the container")


def test_a_container_around_the_clusters_folder_sees_no_credentials(
    cluster: Embedded, nlp: Tenant, image: str
) -> None:
    home = cluster.home
    job = nlp.accepted(contained(nlp, image, home.parent, f"ls {home}; ls {home}/node-*"))
    (member,) = cluster.ended(job)["attempts"][0]["members"]
    own = {"checkpoints", member["node"], "containers", "lib", "logs", "sock"}
    assert set(cluster.log(job).split()) == own


def test_a_container_outlives_its_agent_and_is_adopted(
    own: Embedded, image: str, tmp_path: Path
) -> None:
    cluster, nlp, gate = own, Tenant(own, "nlp"), Gate(tmp_path)
    job = nlp.accepted(contained(nlp, image, tmp_path, gate.wait))
    document = cluster.started(job)
    gate.reached()
    (member,) = document["attempts"][0]["members"]
    before = containers_of(job)
    agent = cluster.entry(member["node"])["pid"]
    cluster.kill(member["node"])
    cluster.wait_back(member["node"], agent)
    assert containers_of(job) == before
    assert len(before) == 1
    gate.open()
    document = cluster.ended(job)
    assert (document["state"], len(document["attempts"])) == ("succeeded", 1)
    assert cluster.log(job) == "here\n"


def test_a_container_that_ends_while_its_agent_is_dead_has_succeeded(
    own: Embedded, image: str, tmp_path: Path
) -> None:
    cluster, nlp, gate = own, Tenant(own, "nlp"), Gate(tmp_path)
    job = nlp.accepted(contained(nlp, image, tmp_path, gate.wait))
    document = cluster.started(job)
    gate.reached()
    (member,) = document["attempts"][0]["members"]
    cluster.kill(member["node"])
    gate.open()
    document = cluster.ended(job)
    assert (document["state"], len(document["attempts"])) == ("succeeded", 1)


@pytest.mark.nightly
@pytest.mark.torch
def test_what_trains_in_a_container_is_changed_as_processes_are(
    cluster: Embedded, nlp: Tenant, image: str, tmp_path: Path
) -> None:
    command = ["docker", "run", "--rm", image, "python3", "-c", "import sys; print(sys.version)"]
    version = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if not version.startswith(f"3.{sys.version_info.minor}."):
        needs.skip(f"the machine's PyTorch is for another Python than the image's {version}")
    inside = {
        "runtime": {"image": image},
        "workdir": str(tmp_path),
        "env": {"PYTHONPATH": SITE_PACKAGES},
    }
    observed = Job(nlp, tmp_path, "observed", plain="python3", **inside)
    mover = Job(nlp, tmp_path, "mover", cooperative=True, **inside)

    # Nothing of Skep is in the command, and nothing of it in the image.
    observed.can("release")
    observed.trains()
    assert observed.ask("suspend", "--release")["state"] == "suspended"
    (name,) = containers_of(observed.job)
    state = ["docker", "inspect", "--format", "{{.State.Status}}", name]
    assert subprocess.run(state, capture_output=True, text=True, check=True).stdout == "paused\n"
    assert observed.ask("resume")["state"] == "running"
    observed.trains()

    mover.can("migrate")
    assert mover.ask("suspend")["state"] == "suspended"
    assert mover.ask("resume")["state"] == "running"
    assert mover.ask("checkpoint")["result"] == "done"
    before = mover.row["place"].partition(":")[0]
    other = next(node for node in ("node-1", "node-2") if node != before)
    assert mover.ask("migrate", "--to", other)["state"] == "running"
    mover.trains()
    assert [one["outcome"] for one in mover.row["attempts"]] == ["moved", None]

    for job in (observed, mover):
        job.end.touch()
        assert cluster.ended(job.job)["state"] == "succeeded"
    attempts = [attempt for attempt, *_ in mover.steps()]
    assert attempts == sorted(attempts), "one trained after the other"
