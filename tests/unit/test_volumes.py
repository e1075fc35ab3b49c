"""Volumes: what a cluster file says of them, who gets them where, and what a node sees before."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from skep.cells.clusterfile import parse_cluster
from skep.cells.clustertext import to_yaml
from skep.machines.admission import AdmissionMachine
from skep.machines.base import Record
from skep.wire.admin import SetVcs
from skep.wire.cluster import Cluster
from skep.wire.facts import Admitted, Refused
from skep.wire.parse import parse_tree
from skep.wire.reasons import Reason
from skep.wire.spec import JobSpec
from skep.wire.volumes import (
    SHARED_FOLDERS,
    SYSTEM_FOLDERS,
    Mount,
    Volume,
    overlapping,
    place_problem,
)
from skep_services.adapters.docker_plans import mounts_of, trouble_of
from skep_services.agent import volumes
from skep_services.agent.volumes import Volumes
from skep_services.cli.exits import CommandError
from skep_services.cli.run import volumes_of
from skep_services.launcher import plans, policy
from skep_services.ports import RunPlan
from tests.kit import Driver, bind, spec, submission, vcs

VOLUMES = {
    "datasets": "/mnt/datasets",
    "scratch": {"path": "/mnt/scratch", "mode": "rw", "nfs": "filer:/export/scratch"},
    "models": {"path": "/mnt/models", "vcs": {"nlp": "rw", "cv": "ro"}},
    "bucket": {"path": "/mnt/bucket", "s3": "s3://acme/data", "mount": "rclone", "vcs": ["cv"]},
}


def cluster(entries: dict[str, Any]) -> Any:
    return parse_cluster({"vcs": {"nlp": 4, "cv": 4}, "volumes": entries})


def test_a_cluster_file_says_which_volumes_there_are_and_is_written_again() -> None:
    read = cluster(VOLUMES)
    assert isinstance(read, Cluster)
    assert read.volumes["bucket"] == Volume(
        path="/mnt/bucket", vcs={"cv": "ro"}, s3="s3://acme/data", mount="rclone"
    )
    assert [name for name, one in read.volumes.items() if one.mounted] == ["scratch", "bucket"]
    assert parse_cluster(yaml.safe_load(to_yaml(read))) == read


@pytest.mark.parametrize(
    "entry, path, text",
    [
        ({"x": 3}, "$.volumes.x", "must be a path, or an object"),
        ({"x": "data"}, "$.volumes.x.path", "does not begin with `/`"),
        ({"x": "/"}, "$.volumes.x.path", "the root of all folders"),
        ({"x": "/a/../b"}, "$.volumes.x.path", "`..`"),
        ({"x": "//a"}, "$.volumes.x.path", "a slash too many"),
        ({"x": "/etc/ssl"}, "$.volumes.x.path", "is in /etc, which is the system's"),
        ({"x": "/a:b"}, "$.volumes.x.path", "colon"),
        ({"x": "/a\nb"}, "$.volumes.x.path", "cannot be printed"),
        ({"x": {}}, "$.volumes.x.path", "`path` is required"),
        ({"x": {"path": "/a", "mode": "w"}}, "$.volumes.x.mode", "is no mode"),
        ({"x": {"path": "/a", "vcs": ["x"]}}, "$.volumes.x.vcs", "no virtual cluster `x`"),
        ({"x": {"path": "/a", "vcs": []}}, "$.volumes.x.vcs", "`vcs` is empty"),
        ({"x": {"path": "/a", "vcs": 3}}, "$.volumes.x.vcs", "a list of virtual clusters"),
        ({"x": {"path": "/a", "vcs": {"nlp": "x"}}}, "$.volumes.x.vcs.nlp", "is no mode"),
        ({"x": {"path": "/a", "nfs": "filer"}}, "$.volumes.x.nfs", "SERVER:/EXPORT"),
        ({"x": {"path": "/a", "s3": "s3://b"}}, "$.volumes.x", "not mounted on the nodes"),
        ({"x": {"s3": "s3://b"}}, "$.volumes.x", "not mounted on the nodes"),
        ({"x": {"path": "/a", "mount": "rclone"}}, "$.volumes.x.mount", "`s3` names none"),
        ({"x": {"path": "/a", "pth": "/b"}}, "$.volumes.x.pth", "unknown key"),
        ({"x": "/a", "y": "/a/b"}, "$.volumes.y.path", "or in it, which is volume `x`"),
        ({"a-b": "/a", "a_b": "/b"}, "$.volumes.a_b", "would both be $SKEP_VOLUME_A_B"),
        ({"a b": "/a"}, "$.volumes", "no name for a volume"),
        ({f"v{n}": f"/v{n}" for n in range(65)}, "$.volumes", "65 volumes; at most 64"),
        ([], "$.volumes", "must be volumes by name"),
    ],
)
def test_bad_volumes_are_one_line_each(entry: Any, path: str, text: str) -> None:
    problems = cluster(entry)
    assert isinstance(problems, list)
    assert problems[0].path == path
    assert text in problems[0].text
    assert "\n" not in problems[0].text


# --- a job's -------------------------------------------------------------------------------------


@pytest.fixture
def admission() -> Driver[AdmissionMachine]:
    decide = Driver(AdmissionMachine)
    decide(SetVcs(vcs=vcs(nlp=8, cv=8), volumes=cluster(VOLUMES).volumes))
    return decide


def submitted(
    decide: Driver[AdmissionMachine], number: int, asked: Any, vc: str = "nlp"
) -> Admitted | Refused:
    asked = asked if isinstance(asked, dict) else tuple(asked)
    (effect, *_) = decide(submission(number, vc=vc, raw=spec(vc=vc, volumes=asked)))
    assert isinstance(effect, Record)
    assert isinstance(effect.fact, Admitted | Refused)
    return effect.fact


def test_a_job_gets_its_volumes_where_it_wants_them(admission: Driver[AdmissionMachine]) -> None:
    fact = submitted(admission, 1, {"datasets": "/data", "models": "/models:ro", "scratch": ""})
    assert isinstance(fact, Admitted)
    assert fact.spec.mounts == (
        Mount(name="datasets", path="/mnt/datasets", target="/data"),
        Mount(name="models", path="/mnt/models", target="/models"),
        Mount(name="scratch", path="/mnt/scratch", target="/mnt/scratch", mode="rw", mounted=True),
    )
    fact = submitted(admission, 2, ["models"])
    assert isinstance(fact, Admitted)
    assert fact.spec.mounts[0].mode == "rw"
    kept = AdmissionMachine()
    for piece in admission.machine.snapshot():
        kept.apply(piece)
    assert kept.volumes == admission.machine.volumes


@pytest.mark.parametrize(
    "vc, asked, reason, text",
    [
        ("nlp", ["nope"], Reason.UNKNOWN_VOLUME, "`nlp` may use: datasets, models, scratch"),
        ("nlp", ["bucket"], Reason.VOLUME_NOT_ALLOWED, "`nlp` may not use volume `bucket`"),
        ("cv", {"models": ":rw"}, Reason.VOLUME_READ_ONLY, "`cv` may read volume `models`"),
        ("nlp", {"datasets": "/d:rw"}, Reason.VOLUME_READ_ONLY, "and not write to it"),
        ("nlp", {"datasets": "/a", "models": "/a/b"}, Reason.PLACES_OVERLAP, "would be at /a/b"),
        ("nlp", {"datasets": "/mnt/models", "models": ""}, Reason.PLACES_OVERLAP, "/mnt/models"),
    ],
)
def test_what_a_job_may_not_have(
    admission: Driver[AdmissionMachine], vc: str, asked: Any, reason: Reason, text: str
) -> None:
    fact = submitted(admission, 1, asked, vc)
    assert isinstance(fact, Refused)
    assert (fact.problems[0].reason, text in fact.problems[0].text) == (reason, True), fact


@pytest.mark.parametrize(
    "asked, text",
    [
        ("datasets", "Expected `object | array`"),
        ([3], "Expected `str`"),
        ({"datasets": None}, "Expected `str`"),
        (["a", "a"], "each given once"),
        (["a b"], "names of volumes"),
        ([f"v{n}" for n in range(17)], "at most 16 volumes"),
        ({"a": "data"}, "does not begin with `/`"),
        ({"a": "/"}, "the root of all folders"),
        ({"a": "/x/../etc"}, "`..`"),
        ({"a": "/x/"}, "a slash too many"),
        ({"a": "/etc"}, "/etc is the system's"),
        ({"a": "/usr/lib/x:ro"}, "/usr is the system's"),
        ({"a": "/proc/self"}, "/proc is the system's"),
        ({"a": "/home"}, "would hide /home"),
        ({"a": "/x:y"}, "colon"),
        ({"a": "/x:ro:rw"}, "colon"),
        ({"a": "/" + "x" * 1024}, "more than 1024 characters"),
        ({"a": "/x\0"}, "cannot be printed"),
    ],
)
def test_bad_places_are_one_line_each(asked: Any, text: str) -> None:
    problems = parse_tree({"name": "a", "vc": "nlp", "command": "true", "volumes": asked})
    assert isinstance(problems, list)
    assert text in problems[0].text
    assert "\n" not in problems[0].text


def test_nobody_but_admission_says_what_is_mounted() -> None:
    mounts = [{"name": "a", "path": "/etc", "target": "/etc", "mode": "rw"}]
    found = parse_tree({"name": "a", "vc": "nlp", "command": "true", "mounts": mounts})
    assert isinstance(found, JobSpec)
    assert found.mounts == ()


@pytest.mark.parametrize("place", [*SYSTEM_FOLDERS, *SHARED_FOLDERS, "/", "/usr/x", "/srv/x", "/x"])
def test_the_launcher_and_admission_refuse_the_same_places(place: str) -> None:
    assert plans.is_system(place) == bool(place_problem(place))


def test_places_overlap_by_whole_names() -> None:
    assert overlapping({"a": "/a", "b": "/ab", "c": "/a-b"}) is None
    assert overlapping({"a": "/a", "b": "/a-b", "c": "/a/c"}) == ("a", "c")


def test_volumes_of_a_command_line() -> None:
    words = ["a", "b:/data", "c:/data:ro", "d:ro"]
    assert volumes_of(words) == {"a": "", "b": "/data", "c": "/data:ro", "d": ":ro"}
    with pytest.raises(CommandError, match="a is given twice"):
        volumes_of(["a", "a:/x"])


# --- a node's -------------------------------------------------------------------------------------


def mount(path: Path | str, target: str = "", *, mounted: bool = False) -> Mount:
    return Mount(name="data", path=str(path), target=target or str(path), mounted=mounted)


async def lacking(state: Path, one: Mount, *, accounts: bool = False, image: str = "") -> Any:
    command = bind(mounts=(one,), image=image)
    return await Volumes(state, accounts=accounts).trouble(command)


@pytest.mark.asyncio
async def test_a_node_says_what_it_lacks(tmp_path: Path) -> None:
    state, there = tmp_path / "state", tmp_path / "there"
    for folder in (state, there):
        folder.mkdir()
    (tmp_path / "link").symlink_to(there)
    (tmp_path / "file").touch()
    assert await lacking(state, mount(there)) is None
    assert await lacking(state, mount(there, "/data"), accounts=True) is None
    assert await lacking(state, mount(there, "/data"), image="x") is None
    assert await lacking(state, mount("/proc", mounted=True)) is None
    for one, text, of_node in (
        (mount(there, "/data"), "no-mounts: volume data cannot be at /data", False),
        (mount(tmp_path / "nope"), "No such file or directory", True),
        (mount(tmp_path / "link"), "leads through a link", True),
        (mount(tmp_path / "file"), "is no folder", True),
        (mount(there, mounted=True), "nothing is mounted at", True),
        (mount(tmp_path), "has the folder of Skep's agent in it", True),
    ):
        trouble = await lacking(state, one)
        assert text in trouble.detail
        assert trouble.of_node == of_node


@pytest.mark.asyncio
async def test_a_file_server_that_hangs_holds_up_its_own_jobs_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, asked = threading.Event(), []

    def hangs(path: str) -> str:
        asked.append(path)
        answers.wait()
        return ""

    monkeypatch.setattr(volumes, "looked_at", hangs)
    monkeypatch.setattr(volumes, "ANSWER_S", 0.02)
    node = Volumes(tmp_path / "state", accounts=False)
    command = bind(mounts=(mount("/x"),))
    for _ in range(2):
        trouble = await node.trouble(command)
        assert trouble is not None
        assert "/x did not answer within" in trouble.detail
    assert asked == ["/x"]  # One thread for a place, however many jobs want it.
    answers.set()
    monkeypatch.setattr(volumes, "ANSWER_S", 20.0)
    async with asyncio.timeout(20):
        assert await node.trouble(command) is None


def test_a_container_has_the_volume_and_no_way_around_its_mode(tmp_path: Path) -> None:
    plan = RunPlan(
        token="j1.1.0",
        argv=("true",),
        env={},
        workdir="/data/run",
        log_path=str(tmp_path / "logs" / "rank0.log"),
        log_bytes_max=1,
        image="x",
        mounts=(mount("/mnt/data", "/data"),),
    )
    found = mounts_of(plan, [tmp_path], tmp_path / "said")
    assert found.volumes == plan.mounts
    assert not [each for each in found.folders if not each.startswith(str(tmp_path))]
    for one, text in (
        (mount("/mnt/data", str(tmp_path / "x")), "Skep's own folders are there"),
        (mount("/mnt/data", str(tmp_path.parent)), "Skep's own folders are there"),
        (mount(tmp_path.parent, "/data"), "has a folder of Skep's in it"),
        (mount(tmp_path / "x", "/data"), "has a folder of Skep's in it, or is in one"),
    ):
        wrong = msgspec.structs.replace(plan, mounts=(one,))
        assert text in trouble_of(wrong, [tmp_path])


@pytest.mark.parametrize(
    "given, text",
    [
        ({"x": {"path": "data"}}, "must be a full path"),
        ({"x": {"path": "/tmp/x"}}, "jobs have a folder of their own there"),
        ({"x": {"path": "/var/lib"}}, "has the launcher's folder in it"),
        ({"x": {"path": "/a", "mode": "w"}}, "must be one of ro, rw"),
        ({"x": {"path": "/a", "vcs": {"nlp": "w"}}}, "must be one of ro, rw"),
        ({"x": {"path": "/a", "vcs": "nlp"}}, "of the wrong kind"),
        ({"x": {"path": "/a", "what": 1}}, "not known"),
        ({"x": "/a"}, "a name, and a table with its `path`"),
        ({"x": {"path": "/a"}, "y": {"path": "/a/b"}}, "is in volumes.x"),
    ],
)
def test_bad_policies_of_a_launcher(given: Any, text: str) -> None:
    with pytest.raises(policy.PolicyError, match=text):
        policy.parsed({"volumes": given}, 1 << 30)
