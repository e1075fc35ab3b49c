"""What people bring to jobs in containers, on a real engine: files, input, ports, notebooks."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.e2e.test_notebook import DEADLINE_S, opened, page, stand_in, words
from tests.node_runtimes import image_of_engine
from tests.support.embedded import Embedded

pytestmark = [pytest.mark.e2e, pytest.mark.docker, pytest.mark.nightly]

WITHOUT_PYTHON = "FROM {}\nRUN rm -f /usr/bin/python3 /usr/local/bin/python3\n"


@pytest.fixture(scope="module")
def image() -> str:
    return image_of_engine()


class Shell:
    """The command, in a folder of this test."""

    def __init__(self, cluster: Embedded, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder

    def __call__(
        self, *asked: str, given: str = "", code: int = 0
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            words(*asked),
            env=self.cluster.environment,
            cwd=self.folder,
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
        assert done.returncode == code, done
        return done

    def begun(self, image: str, *command: str) -> str:
        """Return a job in a container that has started."""
        job: str = self("run", "-d", "--vc", "nlp", "--image", image, "--", *command).stdout.strip()
        self.cluster.started(job)
        return job


@pytest.fixture
def shell(cluster: Embedded, tmp_path: Path) -> Shell:
    folder = tmp_path / "work"
    folder.mkdir()
    return Shell(cluster, folder)


def test_files_go_into_a_container_and_out_of_it(shell: Shell, image: str, tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    (given / "a").write_bytes(b"x" * 300_000)
    (given / "b").write_text("b")
    job = shell.begun(image, "sleep", "600")
    told = json.loads(shell("cp", "--json", str(given), f"{job}:in").stdout)["copied"]
    assert [one["to"] for one in told] == ["in/a", "in/b"]
    assert shell("exec", job, "--", "cat", "in/a").stdout == "x" * 300_000
    shell("cp", f"{job}:in", str(tmp_path / "out"))
    assert (tmp_path / "out" / "a").read_bytes() == b"x" * 300_000
    assert shell("cp", f"{job}:in/b", "-").stdout == "b"
    shell("exec", job, "--", "ln", "-s", "/etc/passwd", "link")
    for path, said in (
        ("link", "link is a link or no folder, or leads through one: no link is followed"),
        ("nosuch", "the job's folder has no nosuch"),
    ):
        assert shell("cp", f"{job}:{path}", "-", code=1).stderr == f"skep cp: {said}\n"
    assert "no path in the job's folder" in shell("cp", str(given), f"{job}:../x", code=2).stderr


def test_an_image_without_python_takes_no_files(shell: Shell, image: str, tmp_path: Path) -> None:
    bare = "skep-test-without-python"
    made = WITHOUT_PYTHON.format(image)
    subprocess.run(
        ["docker", "build", "-q", "-t", bare, "-"],
        input=made.encode(),
        check=True,
        capture_output=True,
    )
    try:
        job = shell.begun(bare, "sleep", "600")
        (tmp_path / "a").touch()
        why = f"skep cp: the image of {job} has no python3, which a copy in a container needs\n"
        assert shell("cp", str(tmp_path / "a"), f"{job}:", code=1).stderr == why
        shell("cancel", job)
        shell("wait", job, code=1)
    finally:
        subprocess.run(["docker", "rmi", "-f", bare], check=True, capture_output=True)


def test_every_attempt_in_a_container_reads_what_was_piped_in(shell: Shell, image: str) -> None:
    counts = "wc -c; case $SKEP_RUN in *.1.0) exit 1;; esac"
    asked = ("--vc", "nlp", "--workers", "2", "--retries", "1", "--image", image, "--stdin")
    done = shell("run", *asked, "--", "sh", "-c", counts, given="x" * 100_000)
    of_rank_0 = [line for line in done.stdout.splitlines() if line.startswith("[0]")]
    assert of_rank_0 == ["[0] 100000"] * 2
    assert set(done.stdout.splitlines()) - set(of_rank_0) == {"[1] 0"}


def test_a_notebook_runs_in_an_image(
    shell: Shell, cluster: Embedded, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("--vc", "nlp", "--image", image)
    bare = shell("notebook", *asked, code=1).stderr.splitlines()[-1]
    assert f"failed: image {image}: " in bare
    assert "has neither jupyterlab nor jupyter_server: install" in bare
    # The folder of the job is what the container sees.
    stand_in(cluster, shell.folder, monkeypatch)
    monkeypatch.chdir(shell.folder)
    made, told = opened(cluster, *asked, "--env", f"PYTHONPATH={shell.folder}")
    assert page(told["url"]) == (200, b"a page")
    made.send_signal(signal.SIGINT)
    made.communicate(timeout=DEADLINE_S)
    shell("cancel", told["job"])
