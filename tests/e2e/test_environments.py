"""Environments that nodes build, on a cluster of its own; pip installs a wheel made here."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.embedded import SKEP, Embedded

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]

DEADLINE_S = 180.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    made = Embedded(tmp_path_factory.mktemp("own") / "home")
    made.environment["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    try:
        made.up("--nodes", "2", "--gpus", "1", "--vc", "nlp=2", "--port", "0")
        yield made
    finally:
        made.down()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    with zipfile.ZipFile(tmp_path / "small-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("small.py", "VALUE = 42\n")
        about = "small-1.0.dist-info"
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: small\nVersion: 1.0\n")
        wheel.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{about}/RECORD", "")
    place = f"--no-index\n--find-links {tmp_path}\n"
    (tmp_path / "requirements.txt").write_text(f"{place}small==1.0\n")
    (tmp_path / "missing.txt").write_text(f"{place}small==2.0\n")
    return tmp_path


def skep(cluster: Embedded, place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SKEP, *words],
        env=cluster.environment,
        cwd=place,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_a_gang_has_what_was_submitted_on_each_of_its_nodes(
    cluster: Embedded, project: Path
) -> None:
    program = "import small, sys; print(small.VALUE, sys.prefix != sys.base_prefix)"
    words = ("run", "--environment", "requirements.txt", "--workers", "2", "--hold", "-d")
    held = skep(cluster, project, *words, "--", "python", "-c", program)
    assert held.returncode == 0, held.stderr
    job = held.stdout.strip()
    # It waits; whatever becomes of the file, it has what was submitted.
    (project / "requirements.txt").write_text("no-such-package\n")
    assert skep(cluster, project, "release", job).returncode == 0
    assert cluster.ended(job, DEADLINE_S)["state"] == "succeeded"
    assert cluster.log(job).splitlines()[-1] == "42 True"
    listed = skep(cluster, project, "cache", "ls").stdout.splitlines()
    assert [line.split("/")[0] for line in listed[1:]] == ["node-1", "node-2"]
    name = listed[1].split()[0]
    assert skep(cluster, project, "cache", "rm", name).stdout.startswith(f"{name} removed, ")


def test_what_cannot_be_installed_ends_the_job_with_the_installers_words(
    cluster: Embedded, project: Path
) -> None:
    failed = skep(
        cluster, project, *("run", "--environment", "missing.txt"), "--", "python", "-c", "1"
    )
    assert failed.returncode == 1
    last = failed.stderr.strip().splitlines()[-1]
    assert "the job's environment cannot be built: " in last
    assert "small==2.0" in last
