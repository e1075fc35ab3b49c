"""A backup that is taken under load is a whole cluster elsewhere: every job and every fact."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from skep.wire import subjects
from skep.wire.commands import RESTORE_STEP
from skep_services.backups.restoring import verify
from skep_services.ports import Delivery
from skep_services.supervisor import home as folder
from tests.e2e.conftest import Gate, Tenant
from tests.support.embedded import SKEP, Embedded, until

pytestmark = pytest.mark.slow
KEY = "the-same-key"
JOBS_MIN = 30


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    cluster = Embedded(tmp_path_factory.mktemp("loaded"))
    try:
        cluster.up("--nodes", "2", "--gpus", "2", "--vc", "nlp=4", "--port", "0")
        yield cluster
    finally:
        cluster.down()


def failed(*words: str) -> str:
    """Return the one line that a command which must fail says."""
    done = subprocess.run([*SKEP, *words], check=False, text=True, capture_output=True)
    assert done.returncode == 1, done
    [line] = done.stderr.splitlines()
    return line


def messages(cluster: Embedded) -> dict[str, list[Delivery]]:
    return {name: asyncio.run(cluster.records(name)) for name in subjects.STREAMS}


def test_a_backup_under_load_is_a_whole_cluster_elsewhere(
    loaded: Embedded, tmp_path: Path, gate: Gate
) -> None:
    nlp = Tenant(loaded, "nlp")
    held = nlp.accepted(nlp.spec(["sh", "-c", gate.wait]))
    keyed = nlp.accepted(nlp.spec(["true"]), KEY)
    gate.reached()
    stop, submitted = threading.Event(), list[str]()

    def load() -> None:
        while not stop.is_set():
            submitted.append(nlp.accepted(nlp.spec(["true"])))

    loader = threading.Thread(target=load)
    loader.start()
    secret, path = tmp_path / "passphrase", tmp_path / "one.backup"
    secret.write_text("correct horse\n")
    sealed = ["--encrypt", "--passphrase-file", str(secret)]
    try:
        until(lambda: len(submitted) >= JOBS_MIN, "jobs under way")
        told = json.loads(loaded.skep("backup", str(path), *sealed, "--json"))
    finally:
        stop.set()
        loader.join()
    assert told["encrypted"]
    password = loaded.about["nats"]["users"]["operator"]
    assert password.encode() not in path.read_bytes()
    loaded.skep("backup", "--check", str(path), *sealed[1:])
    gate.open()
    loaded.ended(held)

    other = Embedded(tmp_path / "other")
    loaded.skep("restore", str(path), "--home", str(other.home), *sealed[1:])
    taken = verify(path, "correct horse").streams
    before = messages(loaded)
    try:
        other.up("--port", "0")
        after = messages(other)
        for name, one in taken.items():
            if name in (subjects.KEPT, subjects.SECRETS, subjects.CODE):
                continue
            cut = one.cut or one.last
            was = [each for each in before[name] if each.sequence <= cut]
            now = [each for each in after[name] if each.sequence <= cut]
            # The place, the subject, the content, the headers and the time: everything.
            assert now == was, name
        jobs = {each.sequence for each in before[subjects.SUBMIT]}
        there = {int(row["job"][1:]) for row in other.get("/v1/jobs?state=all&limit=1000")["jobs"]}
        restored = {number for number in jobs if number <= taken[subjects.SUBMIT].last}
        assert restored <= there
        assert len(restored) >= JOBS_MIN
        # What ran there was lost with its nodes, and is begun anew here; keys are known.
        assert other.ended(held)["state"] == "succeeded"
        again = Tenant(other, "nlp")
        assert again.submit(again.spec(["true"]), KEY).verdict["job"] == keyed
        fresh = again.accepted(again.spec(["true"]))
        assert int(fresh[1:]) > max(restored)
        for number in restored:
            other.ended(f"j{number}")
        checked = json.loads(other.skep("log", "check", "--json"))
        # Nodes that lived on learn of the restore by it.
        begun = [each["epoch"] for each in checked["logs"] if each["epoch"]]
        assert min(begun) > RESTORE_STEP
    finally:
        other.down()


def test_what_is_wrong_is_one_line(loaded: Embedded, tmp_path: Path) -> None:
    path = tmp_path / "plain.backup"
    loaded.skep("backup", str(path))
    home = str(tmp_path / "new")
    for name, content in {
        "damaged": path.read_bytes()[:-200] + b"?" * 200,
        "cut": path.read_bytes()[:-10],
        "newer": path.read_bytes().replace(b'"skep-backup":1', b'"skep-backup":7', 1),
        "none": b"hello\n",
    }.items():
        broken = tmp_path / f"{name}.backup"
        broken.write_bytes(content)
        line = failed("restore", str(broken), "--home", home)
        assert str(broken) in line
    assert not Path(home).exists()
    assert "not empty" in failed("restore", str(path), "--home", str(loaded.home))
    assert "No such file" in failed("restore", str(tmp_path / "gone"), "--home", home)
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(
        ["plain.backup", "damaged.backup", "cut.backup", "newer.backup", "none.backup"]
    )


@pytest.mark.nightly
def test_a_cluster_that_does_not_run_is_backed_up(tmp_path: Path) -> None:
    cluster = Embedded(tmp_path / "home")
    path, other = tmp_path / "one.backup", Embedded(tmp_path / "other")
    try:
        cluster.up("--nodes", "1", "--gpus", "1", "--vc", "nlp=1", "--port", "0")
        nlp = Tenant(cluster, "nlp")
        job = nlp.accepted(nlp.spec(["true"]))
        cluster.ended(job)
    finally:
        cluster.down()
    cluster.skep("backup", str(path))
    cluster.skep("restore", str(path), "--home", str(other.home))
    about = folder.read_cluster(str(other.home))
    assert about is not None
    assert about["supervisor"]["state"] == "stopped"
    try:
        other.up("--port", "0")
        assert other.ended(job)["state"] == "succeeded"
    finally:
        other.down()
