"""A whole cluster as an account without rights: a launcher beside it starts the tenants' jobs."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from skep_services.launcher.policy import REPLACED
from tests.launcher_kit import LauncherUnderTest, launcher
from tests.support.embedded import SKEP, Embedded, until

pytestmark = [
    pytest.mark.needs("root", "useradd", "runuser"),
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.prefix.startswith(REPLACED),
        reason="jobs have a /tmp of their own: no environment there",
    ),
]

AGENT, NLP, VISION = ACCOUNTS = ("skep-test-agent", "skep-test-nlp", "skep-test-vision")
POLICY = f"""
[accounts]
mode = "names"
vcs = {{nlp = "{NLP}", vision = "{VISION}"}}
"""
TRIES = """
import os, signal, sys
home, jobs, victim = sys.argv[1:4]
def attempt(what, call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        print(f"{what}: refused: {error.strerror}")
    else:
        print(f"{what}: DONE")
for name in ("cluster.json", "pids.json", "node-1/rank-key"):
    attempt(name, open, os.path.join(home, name))
attempt("the log of another tenant", open, f"{jobs}/logs/{victim}/1/rank0.log")
attempt("the checkpoints of another tenant", os.listdir, f"{jobs}/checkpoints/{victim}")
for pid in sys.argv[4:]:
    attempt(f"a signal to {pid}", os.kill, int(pid), signal.SIGTERM)
    attempt(f"the environment of {pid}", open, f"/proc/{pid}/environ")
print("account", os.getuid())
"""


class PlainCluster(Embedded):
    """A cluster whose every process is of the agent's account."""

    def skep(self, *words: str) -> str:
        command = ["runuser", "-u", AGENT, "--", *SKEP, *words]
        done = subprocess.run(
            command, env=self.environment, check=False, text=True, capture_output=True, cwd="/"
        )
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout


@pytest.fixture
def served() -> Iterator[LauncherUnderTest]:
    for name in ACCOUNTS:
        subprocess.run(["userdel", name], check=False, capture_output=True)
        subprocess.run(["useradd", "--no-create-home", name], check=True)
    try:
        with launcher(POLICY, AGENT) as one:
            yield one
    finally:
        for name in ACCOUNTS:
            subprocess.run(["userdel", name], check=True, capture_output=True)


@contextmanager
def plain_cluster(served: LauncherUnderTest, *options: str) -> Iterator[PlainCluster]:
    """Yield a cluster of one node whose jobs the launcher starts."""
    home = served.folder / "home"
    home.mkdir()
    os.chown(home, pwd.getpwnam(AGENT).pw_uid, -1)
    more = {
        "SKEP_LAUNCHER": str(served.socket),
        "HOME": str(served.folder),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    cluster = PlainCluster(home / "cluster", more)
    try:
        cluster.up("--nodes", "1", "--gpus", "2", *options, "--port", "0")
        yield cluster
    finally:
        cluster.down()


@pytest.mark.nightly
def test_copies_in_memory_are_the_accounts_own_and_go_with_the_job(
    served: LauncherUnderTest,
) -> None:
    with plain_cluster(served, "--vc", "nlp=2") as cluster:
        keeps = ["sh", "-c", "echo state > $SKEP_REPLICAS/copy; sleep 1000"]
        wanted = {"workers": 2}
        job = submit(cluster, served.folder, "nlp", keeps, resources=wanted)
        cluster.started(job)
        folder = served.jobs / "copies" / job
        until((folder / "copy").exists, "a copy")
        found = folder.stat()
        assert (found.st_uid, found.st_mode & 0o777) == (pwd.getpwnam(NLP).pw_uid, 0o700)
        assert found.st_dev != served.jobs.stat().st_dev, "it is in memory"
        cluster.skep("cancel", job)
        until(lambda: not folder.exists(), "the copies to go")


def test_tenants_cannot_reach_one_another_or_the_cluster(served: LauncherUnderTest) -> None:
    home = served.folder / "home"
    with plain_cluster(served, "--vc", "nlp=1", "--vc", "vision=1") as cluster:
        victim = submit(cluster, served.folder, "vision", ["sleep", "1000"])
        cluster.started(victim)
        agent = cluster.pids()["node-1"]["pid"]
        assert owner(agent) == AGENT
        sleeping = next(pid for pid in pids() if is_sleep(pid))
        assert owner(sleeping) == VISION
        script = served.folder / "tries.py"
        script.write_text(TRIES)
        words = [str(home / "cluster"), str(served.jobs), victim, str(agent), str(sleeping)]
        attacker = submit(
            cluster, served.folder, "nlp", ["/usr/bin/env", "python3", str(script), *words]
        )
        assert cluster.ended(attacker)["state"] == "succeeded"
        said = cluster.skep("logs", attacker).splitlines()
        print(*said, sep="\n")
        assert said[-1] == f"account {pwd.getpwnam(NLP).pw_uid}"
        assert len(said) == 10
        assert not [line for line in said[:-1] if "refused" not in line]
        given = served.folder / "given"
        given.write_text("of vision")
        os.chown(given, pwd.getpwnam(VISION).pw_uid, -1)
        given.chmod(0o600)
        reads = submit(cluster, served.folder, "nlp", ["wc", "-c"], stdin=str(given))
        assert cluster.ended(reads)["state"] == "failed"
        assert "Permission denied" in cluster.skep("logs", reads)
        cluster.skep("cancel", victim)
        assert cluster.ended(victim)["state"] == "cancelled"
        assert not Path(f"/proc/{sleeping}").exists()


def submit(cluster: PlainCluster, folder: Path, vc: str, command: list[str], **more: Any) -> str:
    """Submit a job; return its id."""
    spec = folder / "spec.json"
    tree = {"name": "x", "vc": vc, "command": command, "workdir": "/", **more}
    spec.write_text(json.dumps(tree))
    spec.chmod(0o644)
    return cluster.skep("submit", "--quiet", str(spec)).strip()


def owner(pid: int) -> str:
    return pwd.getpwuid(Path(f"/proc/{pid}").stat().st_uid).pw_name


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def is_sleep(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x001000\x00"
    except OSError:
        return False
