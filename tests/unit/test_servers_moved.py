"""A server on another machine, what it keeps and for how long, and versions that cannot meet."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509

from skep_services import replaying
from skep_services.cli.main import main
from skep_services.servers import files, meeting, moving, noderun, plan, serving, setup, status
from skep_services.servers.files import FilesError, Member, NodeFile, ServerFile
from skep_services.servers.units import server_unit
from skep_services.supervisor import home as folder
from skep_services.supervisor import retention
from skep_services.supervisor.config import Retention

OLD = Member(name="server-2", hosts=("old", "10.0.0.2"))


@pytest.fixture
def home(tmp_path: Path) -> str:
    """Return a folder as a restore leaves it: of the second of three servers that are gone."""
    others = [Member(name=f"server-{n}", hosts=(f"gone-{n}",)) for n in (1, 3)]
    file = ServerFile(cluster="lab", name="server-2", size=3, members=[*others, OLD], revision=7)
    setup.create(str(tmp_path / "home"), file)
    return str(tmp_path / "home")


def hosts_of(home: str) -> list[str]:
    own = x509.load_pem_x509_certificates(
        Path(files.tls_path(home, files.CERTIFICATE)).read_bytes()
    )
    names = own[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(one.value) for one in names]


def test_a_restored_server_is_the_first_one_on_its_new_machine(home: str) -> None:
    authority = setup.authority(home).fingerprint
    moving.adopt(home, ("new", "10.9.0.1"), 1)
    file = files.read_server(home)
    assert (file.name, file.size, file.revision) == ("server-1", 1, 8)
    assert [one.hosts for one in file.members] == [("new", "10.9.0.1", "old", "10.0.0.2")]
    assert file.whole
    assert not file.awaits_streams
    assert {"new", "10.9.0.1", "old"} <= set(hosts_of(home))
    assert setup.authority(home).fingerprint == authority


def test_three_restored_servers_wait_for_the_streams(home: str) -> None:
    moving.adopt(home, ("new",), 3)
    first = files.read_server(home)
    assert first.awaits_streams
    other = msgspec.structs.replace(first, name="server-2", members=[*first.members, OLD])
    # A list of the same revision changes nothing; the one behind the restore does.
    told = meeting.Servers(revision=8, members=other.members)
    assert meeting.newer(other, told).awaits_streams
    moving.streams_came(home)
    came = files.read_server(home)
    assert (came.awaits_streams, came.revision) == (False, 9)
    told = meeting.Servers(revision=9, members=other.members)
    assert not meeting.newer(other, told).awaits_streams
    moving.streams_came(home)
    assert files.read_server(home) == came


def test_a_server_that_waits_makes_no_streams(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def alone(_home: str, file: ServerFile) -> ServerFile:
        return file

    monkeypatch.setattr(serving, "look_around", alone)
    monkeypatch.setattr(serving, "connect", None)
    file = moving.adopt(home, ("new",), 3)
    with pytest.raises(serving.AwaitedError, match="skep restore FILE --bus"):
        asyncio.run(serving._prepare(home, file))


def test_the_commands_of_a_server_log_in_by_its_identities(home: str) -> None:
    shared = setup.read_secrets(home)
    setup.write_cluster(home, files.read_server(home), shared)
    with pytest.raises(replaying.UnreachableError):
        replaying.link_options(home)
    cluster = folder.read_cluster(home)
    assert cluster is not None
    cluster["supervisor"] = {"pid": os.getpid(), "start_ticks": folder.start_ticks(os.getpid())}
    folder.write_json(folder.cluster_path(home), cluster)
    options = replaying.link_options(home, "bootstrap")
    assert options.servers[0] == "tls://old:4222"
    assert options.credentials == Path(files.creds_path(home, "bootstrap"))
    assert options.tls is not None


# --- retention ------------------------------------------------------------------------------------


def server(size: int = 1, **given: Any) -> ServerFile:
    members = [Member(name=f"server-{n}", hosts=(f"head-{n}",)) for n in range(1, size + 1)]
    return ServerFile(cluster="lab", name="server-1", size=size, members=members, **given)


@pytest.mark.parametrize(
    "file, wrong",
    [
        (server(retention=Retention(archive_days=-1)), "archive_days must be 0"),
        (server(archive="here"), "a whole path"),
        (server(archive="/a b"), "a whole path"),
        (server(archive="/%h/x"), "a whole path"),
        (server(3, retention=Retention(archive_days=30)), "a folder that all of them share"),
    ],
)
def test_what_cannot_be_archived_is_refused(file: ServerFile, wrong: str, tmp_path: Path) -> None:
    files.write(files.server_path(str(tmp_path)), file)
    with pytest.raises(FilesError, match=wrong):
        files.read_server(str(tmp_path))


def test_servers_share_an_archive(tmp_path: Path) -> None:
    file = server(3, retention=Retention(archive_days=30), archive="/mnt/archive")
    files.check_retention(file, "")
    made = plan.server_plan(file, str(tmp_path), "/nats-server")
    assert {child.env["SKEP_ARCHIVE"] for child in made.services} == {"/mnt/archive"}
    assert (
        "ReadWritePaths=-/mnt/archive" in server_unit(("skep",), "/var/lib/skep", file.archive).text
    )
    alone = plan.server_plan(server(), str(tmp_path), "/nats-server")
    assert not any("SKEP_ARCHIVE" in child.env for child in alone.services)


def test_a_cluster_file_says_how_long_things_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, home = tmp_path / "cluster.yaml", str(tmp_path / "home")
    source.write_text("vcs: {vision: {gpus: 4}}\nretention: {archive_days: 30}\n")
    words = ("server", "init", "--host", "head", "--cluster", str(source), "--home", home)
    assert main((*words, "--servers", "3")) == 1
    assert "a folder that all of them share" in capsys.readouterr().err
    assert main(words) == 0
    assert files.read_server(home).retention == Retention(archive_days=30)
    source.write_text("vcs: {vision: {gpus: 4}}\nretention: {archive_years: 1}\n")
    assert main((*words[:-1], str(tmp_path / "other"))) == 2
    assert f"{source}:2: retention: Object contains unknown field" in capsys.readouterr().err


def test_a_node_removes_old_logs(tmp_path: Path) -> None:
    file = NodeFile(cluster="lab", name="a", address="a", bus="tls://h:4222", gateways="https://h")
    assert plan.node_plan(file, str(tmp_path)).env["SKEP_JOB_LOG_DAYS"] == "0"
    file.job_log_days = 90
    assert plan.node_plan(file, str(tmp_path)).env["SKEP_JOB_LOG_DAYS"] == "90"
    file.job_log_days = -1
    files.write(files.node_path(str(tmp_path)), file)
    with pytest.raises(FilesError, match="job_log_days must be 0"):
        files.read_node(str(tmp_path))


@pytest.mark.asyncio
async def test_the_archive_is_told_to_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen"
    told = ("sh", "-c", f"echo $SKEP_ARCHIVE > {seen}")
    monkeypatch.setattr(retention, "command", lambda _home, _days: told)
    assert await retention.archive("", 30, {"SKEP_ARCHIVE": "/mnt/archive"}) == 0
    assert seen.read_text() == "/mnt/archive\n"


# --- versions that cannot meet --------------------------------------------------------------------


@contextmanager
def gateways_of(monkeypatch: pytest.MonkeyPatch, **versions: str) -> Iterator[None]:
    """Have gateways answer with versions; an empty one does not answer."""

    def health(url: str, _context: object) -> tuple[str, dict[str, Any]]:
        version = versions[url.removeprefix("https://").partition(":")[0].replace("-", "_")]
        return (status.OK, {"version": version}) if version else (status.AWAY, {})

    with monkeypatch.context() as patch:
        patch.setattr(status, "_health", health)
        patch.setattr(status, "OWN", "0.3.0")
        yield


def test_a_server_does_not_start_beside_versions_that_it_cannot_meet(
    home: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    async def run(_home: str, file: ServerFile) -> int:
        ran.append(file.name)
        return 0

    monkeypatch.setattr(serving, "_run", run)
    with gateways_of(monkeypatch, gone_1="0.5.0", gone_3=""):
        assert serving.run(home) == serving.EXIT_CONFIGURATION
    said = json.loads(capsys.readouterr().err)
    assert "server-2 runs skep 0.3.0, the cluster skep 0.5.0" in said["error"]
    assert not ran
    with gateways_of(monkeypatch, gone_1="0.4.0", gone_3=""):
        assert serving.run(home) == 0
    assert ran == ["server-2"]


def test_a_node_does_not_start_beside_versions_that_it_cannot_meet(
    home: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    urls = "https://gone-1:8470,https://gone-3:8470"
    file = NodeFile(cluster="lab", name="a", address="a", bus="tls://h:4222", gateways=urls)
    files.write(files.node_path(home), file)
    with gateways_of(monkeypatch, gone_1="", gone_3="0.1.0"):
        assert noderun.run(home, lambda _: None) == serving.EXIT_CONFIGURATION
    error = json.loads(capsys.readouterr().err)["error"]
    assert "node a runs skep 0.3.0, the cluster skep 0.1.0" in error
    assert "upgrade the servers first" in error
