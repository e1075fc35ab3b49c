"""The folders in a node's memory in which gangs keep copies of their state."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from skep_services.agent.replicas import KEEP_S, AccountReplicas, Replicas, replica_bytes
from skep_services.service import ConfigurationError
from tests.kit import bind, plans


def names(of: Replicas) -> list[str]:
    return asyncio.run(of.names())


def test_an_operator_bounds_the_copies_of_a_node() -> None:
    assert replica_bytes({}, 4000) == 1000
    assert replica_bytes({"SKEP_REPLICA_BYTES": "0"}, 4000) == 0
    assert replica_bytes({"SKEP_REPLICA_BYTES": "4000"}, 4000) == 4000
    for text in ("4001", "-1", "half", "9" * 30):
        with pytest.raises(ConfigurationError, match="a number of bytes up to 4000"):
            replica_bytes({"SKEP_REPLICA_BYTES": text}, 4000)


def test_a_gang_is_told_its_folder_and_one_process_is_not(tmp_path: Path) -> None:
    of = Replicas(tmp_path / "state", 500, within=tmp_path)
    gang = bind(ranks=plans((0,)), world=2, nodes=2)
    told = of.variables(gang, "10.0.0.9")
    folder = of.root / "j1"
    assert told == {
        "SKEP_REPLICAS": str(folder),
        "SKEP_REPLICA_BYTES": "500",
        "SKEP_HOST": "10.0.0.9",
    }
    assert of.provide(gang) == (str(folder),)
    assert (of.root.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o700, 0o700)
    alone = bind(ranks=plans((0,)))
    assert of.variables(alone, "10.0.0.9") == {}
    assert of.provide(alone) == ()
    none = Replicas(tmp_path / "state", 0, within=tmp_path)
    assert none.variables(gang, "10.0.0.9") == {}
    assert Replicas(tmp_path / "other", 500, within=tmp_path).root != of.root, "one for each node"


def test_a_folder_that_is_not_the_agents_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    of = Replicas(tmp_path / "state", 500, within=tmp_path)
    of.root.symlink_to(tmp_path)
    assert of.provide(bind(ranks=plans((0,)), world=2, nodes=2)) == ()
    assert "no copies are kept in memory: remove it" in caplog.text


def test_copies_go_with_success_and_once_no_attempt_comes(tmp_path: Path) -> None:
    of = Replicas(tmp_path / "state", 500, within=tmp_path)
    for job in ("j1", "j2", "j3"):
        of.provide(bind(job=job, ranks=plans((0,)), world=2, nodes=2))
        (of.root / job / "a00001-s000000000001-r0of2.safetensors").touch()
    (of.root / "foreign").mkdir()
    of.remove("j1")
    assert not (of.root / "j1").exists()
    again = Replicas(tmp_path / "state", 500, within=tmp_path)
    assert again.unneeded(names(again), lambda job: False, 100.0) == [], (
        "an agent that has just begun"
    )
    assert again.unneeded(names(again), lambda job: job == "j2", 100.0 + KEEP_S) == []
    assert again.unneeded(names(again), lambda job: job == "j2", 101.0 + KEEP_S) == ["j3"]
    again.remove("j3")
    assert again.unneeded(names(again), lambda job: False, 102.0 + 2 * KEEP_S) == ["j2"]
    again.remove("j2")
    assert [path.name for path in of.root.iterdir()] == ["foreign"]
    (of.root / "foreign").rmdir()
    of.provide(bind(job="j4", ranks=plans((0,)), world=2, nodes=2))
    of.remove("j4")
    assert not of.root.exists()


def test_copies_go_when_a_cluster_is_taken_down(tmp_path: Path) -> None:
    of = Replicas(tmp_path / "state", 500, within=tmp_path)
    for job in ("j1", "j2"):
        of.provide(bind(job=job, ranks=plans((0,)), world=2, nodes=2))
    of.remove_all(["j2"])
    assert [path.name for path in of.root.iterdir()] == ["j2"]
    of.remove_all(())
    assert not of.root.exists()
    of.remove_all(())


def test_what_another_user_put_in_its_place_is_not_removed(tmp_path: Path) -> None:
    of = Replicas(tmp_path / "state", 500, within=tmp_path)
    (tmp_path / "elsewhere" / "j1").mkdir(parents=True)
    of.root.symlink_to(tmp_path / "elsewhere")
    of.remove_all(())
    of.remove("j1")
    assert of.unneeded(names(of), lambda job: False, 10 * KEEP_S) == []
    assert (tmp_path / "elsewhere" / "j1").exists()


def test_a_job_with_the_id_of_another_one_does_not_get_its_copies(tmp_path: Path) -> None:
    of = Replicas(tmp_path / "state", 500, within=tmp_path)
    gang = bind(ranks=plans((0,)), world=2, nodes=2)
    (folder,) = map(Path, of.provide(gang))
    (folder / "file").touch()
    of.provide(gang)
    assert (folder / "file").exists(), "the next attempt of the same job"
    of.provide(gang, fresh=True)
    assert not (folder / "file").exists()


@pytest.mark.asyncio
async def test_which_jobs_have_copies_is_told_when_it_changes(tmp_path: Path) -> None:
    of = Replicas(tmp_path / "state", 500, within=tmp_path)
    told: list[tuple[str, ...]] = []

    async def tell(jobs: tuple[str, ...]) -> None:
        told.append(jobs)

    of.tell = tell
    await of.look()
    for job in ("j10", "j9"):
        of.provide(bind(job=job, ranks=plans((0,)), world=2, nodes=2))
    (of.root / "foreign").mkdir()
    await of.look()
    await of.look()
    await of.drop("j9")
    await of.drop("j9")
    assert told == [("j9", "j10"), ("j10",)]
    again = Replicas(tmp_path / "state", 500, within=tmp_path)
    again.tell = tell
    await again.look()
    assert told[2:] == [("j10",)], "after a restart"


@pytest.mark.asyncio
async def test_a_job_that_begins_while_others_copies_go_keeps_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    of = Replicas(tmp_path / "state", 500, within=tmp_path)
    for job in ("j1", "j2"):
        of.provide(bind(job=job, ranks=plans((0,)), world=2, nodes=2))
    living: set[str] = set()
    looked = asyncio.Event()
    remove = of.remove

    def slowly(job: str) -> None:
        living.add("j2")
        remove(job)

    async def tell(jobs: tuple[str, ...]) -> None:
        if jobs == ("j2",):
            looked.set()

    def long_ago(jobs: list[str], lives: object, now: float) -> list[str]:
        return sorted(jobs)

    monkeypatch.setattr(of, "remove", slowly)
    monkeypatch.setattr(of, "unneeded", long_ago)
    of.tell = tell
    watching = asyncio.create_task(of.watch(living.__contains__))
    await asyncio.wait_for(looked.wait(), 30)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert [path.name for path in of.root.iterdir()] == ["j2"]
    assert [record.getMessage() for record in caplog.records] == [
        "copies of the state of j1 are removed from memory"
    ]


@pytest.mark.asyncio
async def test_nothing_is_said_of_a_job_without_copies(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    of = Replicas(tmp_path / "state", 500, within=tmp_path)
    of.provide(bind(job="j1", ranks=plans((0,)), world=2, nodes=2))
    await of.drop("j2")
    assert caplog.text == ""
    await of.drop("j1")
    assert "copies of the state of j1 are removed" in caplog.text


class Launcher:
    """What has folders made for accounts."""

    def __init__(self) -> None:
        self.has = ["j1", "j2"]

    async def copies(self) -> list[str]:
        return list(self.has)

    async def remove_copies(self, job: str) -> None:
        self.has.remove(job)


@pytest.mark.asyncio
async def test_a_launcher_makes_and_removes_the_folders_of_accounts(tmp_path: Path) -> None:
    of = AccountReplicas(Launcher(), tmp_path, 500)
    told: list[tuple[str, ...]] = []

    async def tell(jobs: tuple[str, ...]) -> None:
        told.append(jobs)

    of.tell = tell
    gang = bind(ranks=plans((0,)), world=2, nodes=2)
    assert await of.prepare(gang, fresh=False) == (str(tmp_path / "copies" / "j1"),)
    assert of.variables(gang, "10.0.0.9")["SKEP_REPLICAS"] == str(tmp_path / "copies" / "j1")
    await of.look()
    await of.prepare(gang, fresh=True)
    await of.look()
    await of.drop("j2")
    assert told == [("j1", "j2"), ("j2",), ()]
    contained = msgspec.structs.replace(gang, image="trains:1")
    assert await of.prepare(contained, fresh=False) == ()
    assert of.variables(contained, "10.0.0.9") == {}


@pytest.mark.asyncio
async def test_a_launcher_that_keeps_no_copies_is_asked_for_none(tmp_path: Path) -> None:
    launcher = Launcher()
    of = AccountReplicas(launcher, tmp_path, 0)
    assert await of.prepare(bind(ranks=plans((0,)), world=2, nodes=2), fresh=True) == ()
    assert await of.names() == []
    await of.drop("j1")
    assert launcher.has == ["j1", "j2"]
