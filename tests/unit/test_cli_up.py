"""What `skep up` and `skep down` say when something is in the way. Nothing is started here."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import socket
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skep_services.cli import down, exits, up
from skep_services.cli.exits import CommandError
from skep_services.cli.main import main
from skep_services.cli.options import Command
from skep_services.supervisor import config, home
from tests.cli_kit import fake_gateway

Run = Callable[..., tuple[int, str, str]]
OWN = {"pid": os.getpid(), "start_ticks": home.start_ticks(os.getpid())}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SKEP_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SKEP_API", raising=False)
    (tmp_path / "home").mkdir(0o700)
    return tmp_path / "home"


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def refuse(*words: Any) -> Any:
        raise AssertionError(words)

    monkeypatch.setattr(up, "_start_supervisor", refuse)

    def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(words)
        out, err = capfd.readouterr()
        return code, out, err

    return run


@pytest.fixture
def locked(folder: Path) -> Iterator[Path]:
    """The state folder, locked as by somebody else."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def write_cluster(folder: Path, **changes: Any) -> None:
    cluster = config.settle(None, config.Wishes(), str(folder))
    tree = {**msgspec.to_builtins(cluster), **changes}
    home.write_json(home.cluster_path(str(folder)), tree)


# --- up -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, told",
    [
        (("--gpus", "many"), "--gpus many: a number, or auto"),
        (("--gpus", "999999"), "999999 GPUs; a node has 1 to 64"),
        (("--nodes", "0"), "0 nodes"),
        (("--nodes", "x"), "invalid int value"),
        (("--vc", "nlp"), "NAME=GPUS"),
        (("--vc", "a.b=1"), "'a.b' is no name"),
        (("--cluster", "none.yaml"), "No such file"),
        (("--port", "99999"), "--port 99999"),
    ],
)
def test_options_that_cannot_be(folder: Path, run: Run, words: tuple[str, ...], told: str) -> None:
    code, out, err = run("up", *words)
    assert (code, out) == (2, "")
    assert told in err
    assert [path.name for path in folder.iterdir()] in ([], ["lock"])


def test_cluster_files(folder: Path, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("nodes: [{name: a}]\n---\nnodes: []\n")
    assert "holds 2 documents" in run("up", "--cluster", str(path))[2]
    path.write_text("nodes: [{name: a}]\nnode: 3\n")
    assert "$.node: unknown key `node`" in run("up", "--cluster", str(path))[2]
    path.write_text("nodes: [{name: a, gpus: 2}]\nvcs: {x: 2}\nport: 9000\n")
    assert "leave --nodes" in run("up", "--cluster", str(path), "--nodes", "3")[2]
    arguments = up_arguments("--cluster", str(path), "--vc", "y=1", "--port", "0")
    wishes = up._wishes(arguments)
    assert wishes.vcs == dict([config.parse_vc("y=1")])
    assert wishes.port == 0
    wishes = up._wishes(up_arguments("--cluster", str(path)))
    assert (wishes.port, [node.name for node in wishes.node_list or ()]) == (9000, ["a"])


def up_arguments(*words: str) -> Any:
    from skep_services.cli.main import parser_of

    return parser_of("up", up.COMMANDS["up"]).parse_args(list(words))


def test_folder_that_cannot_be_used(tmp_path: Path, run: Run) -> None:
    (tmp_path / "file").touch()
    code, _, err = run("up", "--home", str(tmp_path / "file" / "home"))
    assert code == 1
    assert "choose another: --home DIR" in err


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for a bus server, version 2.14.6."""
    fake = tmp_path / "fake-server"
    fake.write_text("#!/bin/sh\necho nats-server: v2.14.6\n")
    fake.chmod(0o755)
    monkeypatch.setenv("NATS_SERVER_BIN", str(fake))
    return fake


def test_a_bus_server_older_than_the_store_is_refused(folder: Path, run: Run, server: Path) -> None:
    note = folder / "nats" / "server-version"
    note.parent.mkdir()
    note.write_text("2.15.1\n")
    code, _, err = run("up", "--port", "0")
    assert code == 1
    for words in (str(folder), "opened by nats-server 2.15.1", "2.14.6", f"remove {note}"):
        assert words in err
    assert not (folder / "cluster.json").exists(), "nothing was changed"
    server.write_text("#!/bin/sh\necho nats-server: v2.12.8\n")
    note.unlink()
    code, _, err = run("up", "--port", "0")
    assert code == 1
    assert "2.12.8" in err
    assert "too old: Skep needs 2.14.0" in err
    assert not note.exists()


def test_a_disk_without_room_is_told_with_the_file_and_what_to_do(
    folder: Path, run: Run, server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    code, _, err = run("up", "--port", "0")
    assert code == 1
    assert f"{folder}/nats/server-version cannot be written: No space left" in err
    assert "--home DIR" in err


def test_folder_that_somebody_else_works_on(locked: Path, run: Run) -> None:
    assert "another `skep up` or `skep down` is at work" in run("up")[2]
    write_cluster(locked)
    assert run("up")[0] == 1
    (locked / "cluster.json").write_text("{")
    assert "cannot be read" in run("up")[2]


def test_cluster_that_is_up_already(locked: Path, run: Run) -> None:
    write_cluster(locked, supervisor={**OWN, "state": "running", "error": ""})
    code, out, err = run("up")
    assert (code, out) == (0, "")
    assert "is up already: http://127.0.0.1:8470" in err
    assert json.loads(run("up", "--json")[1])["already"] is True
    code, _, err = run("up", "--nodes", "3")
    assert code == 1
    assert "`skep down` first" in err


def test_damaged_cluster_file(folder: Path, run: Run) -> None:
    home.write_json(home.cluster_path(str(folder)), {"version": 1, "nodes": 3})
    code, _, err = run("up")
    assert code == 1
    assert "begin anew: skep down --wipe" in err
    (folder / "cluster.json").write_text("{")
    assert run("down")[0] == 1
    assert run("down", "--wipe")[0] == 0
    assert not folder.exists()


def find_ports(cluster: config.Cluster, wishes: config.Wishes) -> None:
    for each in up._find_ports(cluster, wishes):
        each.close()


def test_ports_that_are_taken(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        wishes = config.Wishes(port=port)
        cluster = config.settle(None, wishes, str(folder))
        with pytest.raises(CommandError, match="is taken: choose another"):
            find_ports(cluster, wishes)
        first_bus = cluster.nats.url
        find_ports(cluster, config.Wishes())
        assert "is taken by another program: the API is on" in capsys.readouterr().err
        assert not cluster.gateway.url.endswith(f":{port}")
        # The bus keeps its port while that is free.
        assert cluster.nats.url == first_bus
        cluster.nats.url = f"nats://127.0.0.1:{port}"
        find_ports(cluster, config.Wishes())
        assert cluster.nats.url != f"nats://127.0.0.1:{port}"
    anything = config.settle(None, config.Wishes(port=0), str(folder))
    find_ports(anything, config.Wishes(port=0))
    assert not anything.gateway.url.endswith(":0")


def test_ports_are_kept_until_the_servers_listen(folder: Path) -> None:
    """From when they are chosen on, so that nothing else is given them meanwhile."""
    wishes = config.Wishes(port=0)
    cluster = config.settle(None, wishes, str(folder))
    held = up._find_ports(cluster, wishes)
    try:
        for url in (cluster.nats.url, cluster.nats.tenants, cluster.gateway.url):
            port = int(url.rpartition(":")[2])
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", port))
            with socket.create_server(("127.0.0.1", port)) as server:  # It reuses addresses.
                assert server.getsockname()[1] == port
    finally:
        for each in held:
            each.close()


def test_quotas_asked_for_are_published_again(folder: Path) -> None:
    published = Path(home.published_path(str(folder)))
    cluster = config.settle(None, config.Wishes(), str(folder))
    published.write_text("x")
    up._write(str(folder), cluster, config.Wishes())
    assert published.exists()
    up._write(str(folder), cluster, config.Wishes(vcs=cluster.vcs))
    assert not published.exists()


# --- progress -------------------------------------------------------------------------------------


class Supervised:
    """A process that stands for the supervisor, and what it would write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(["sleep", "1000"])
        self.progress = up.Progress(str(folder), self.process, quiet=False)

    def say(self, state: str, error: str = "", **changes: Any) -> None:
        running = {"pid": self.process.pid, "state": state, "error": error}
        write_cluster(self.folder, supervisor=running, **changes)

    def children(self, **states: str) -> None:
        entries = {
            name: {"state": state, "restarts": 1, "detail": "exit code 1"}
            for name, state in states.items()
        }
        home.write_json(home.pids_path(str(self.folder)), entries)

    def fails(self) -> CommandError:
        with pytest.raises(CommandError) as caught:
            self.progress.wait_up(1)
        return caught.value


@pytest.fixture
def supervised(folder: Path) -> Iterator[Supervised]:
    made = Supervised(folder)
    yield made
    made.process.kill()
    made.process.wait()


def test_supervisor_that_failed(supervised: Supervised) -> None:
    supervised.say("failed", "DriftedStreamError: stream SUBMIT")
    error = supervised.fails()
    assert (error.code, error.text.splitlines()[0]) == (1, "DriftedStreamError: stream SUBMIT")


def test_supervisor_that_died_before_it_said_anything(supervised: Supervised) -> None:
    write_cluster(supervised.folder)
    assert not supervised.progress._all_ready()
    Path(home.supervisor_log_path(str(supervised.folder))).write_text("a\nImportError: nats\x1b\n")
    supervised.process.kill()
    supervised.process.wait()
    error = supervised.fails()
    assert "the supervisor ended with code -9" in error.text
    assert "    ImportError: nats�" in error.text


def test_service_that_gave_up(supervised: Supervised) -> None:
    supervised.say("starting")
    supervised.children(nats="ready", allocator="stopped")
    error = supervised.fails()
    assert "allocator gave up: exit code 1" in error.text


def test_late_service(
    supervised: Supervised, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(up, "UP_WITHIN_S", 0.2)
    supervised.say("running")
    supervised.children(nats="ready", allocator="backoff")
    error = supervised.fails()
    assert error.code == exits.TIMEOUT
    assert "not ready: allocator" in error.text
    said = capsys.readouterr().err
    assert said.count("allocator ended (exit code 1) and is started again") == 1
    assert said.count("nats is ready") == 1


def test_late_node(supervised: Supervised, monkeypatch: pytest.MonkeyPatch) -> None:
    states = ["silent", "silent", "up"]
    with fake_gateway() as gateway:
        gateway.on("GET /v1/nodes", lambda _: told(states))
        tree = {"url": gateway.url, "tokens": {"operator": "x"}}
        supervised.say("running", gateway=tree)
        supervised.children(nats="ready")
        supervised.progress.wait_up(1)
        monkeypatch.setattr(up, "UP_WITHIN_S", 0.2)
        assert "not every node has joined" in wait_for(supervised, 2).text


def told(states: list[str]) -> Any:
    from tests.cli_kit import Told

    state = states.pop(0) if len(states) > 1 else states[0]
    return Told(200, {"nodes": [{"state": state}]})


def wait_for(supervised: Supervised, nodes: int) -> CommandError:
    with pytest.raises(CommandError) as caught:
        supervised.progress.wait_up(nodes)
    return caught.value


def test_words_after_the_start(supervised: Supervised, capsys: pytest.CaptureFixture[str]) -> None:
    supervised.say("running")
    up._tell_up(str(supervised.folder), up_arguments("--home", "here"), supervised.progress)
    out = capsys.readouterr().out
    assert "2 nodes, 8 GPUs" in out
    assert "skep run --home here -- hostname" in out
    up._tell_up(str(supervised.folder), up_arguments("--json"), supervised.progress)
    assert json.loads(capsys.readouterr().out)["vcs"] == {"default": {"gpus": 8}}


# --- down -----------------------------------------------------------------------------------------


def test_down_of_a_folder_that_somebody_else_works_on(locked: Path, run: Run) -> None:
    write_cluster(locked)
    code, _, err = run("down")
    assert code == 1
    assert "is at work" in err


def test_supervisor_that_does_not_stop_is_killed(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(down, "DOWN_WITHIN_S", 0.1)
    script = "import signal; signal.signal(15, signal.SIG_IGN); print(flush=True); signal.pause()"
    command = [sys.executable, "-S", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        entry = {"pid": process.pid, "start_ticks": home.start_ticks(process.pid)}
        write_cluster(
            folder,
            supervisor={**entry, "state": "running", "error": ""},
            nats={"url": "nats://127.0.0.1:1", "users": Passwords().all()},
        )
        code, out, err = run("down", "--json")
        assert process.wait() == -9
    assert code == 0
    assert json.loads(out) == {
        "home": str(folder),
        "was_up": True,
        "survivors": [],
        "wiped": False,
        "kept": [],
        "lost": [],
    }
    assert "is killed" in err


class Passwords:
    """Passwords of a cluster with the default nodes."""

    def all(self) -> dict[str, str]:
        from skep_services.adapters import nats_access

        return nats_access.new_passwords(["node-1", "node-2"], ["default"])


def test_survivors_and_jobs_of_former_nodes_are_named(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from skep_services.supervisor import boot

    users = Passwords().all()
    write_cluster(folder, nats={"url": "nats://127.0.0.1:1", "users": users})
    with subprocess.Popen(["sleep", "1000"]) as nats, subprocess.Popen(["sleep", "1000"]) as other:
        pids = {
            name: {"pid": process.pid, "start_ticks": home.start_ticks(process.pid)}
            for name, process in (("nats", nats), ("advisor", other))
        }
        home.write_json(home.pids_path(str(folder)), pids)

        async def stop_jobs(states: list[str], keep: tuple[str, ...]) -> list[str]:
            assert keep == ()
            return states

        monkeypatch.setattr(boot, "stop_jobs", stop_jobs)
        monkeypatch.setattr(boot, "has_jobs", lambda _state: True)
        (folder / "old-node").mkdir()
        (folder / "old-node" / "runner.lock").touch()
        code, out, _ = run("down", "--json")
        assert code == 1
        assert (
            "the jobs of old-node  the cluster does not answer" in json.loads(out)["error"]["text"]
        )
        answer = json.loads(run("down", "--json", "--yes")[1])
    assert answer["survivors"] == ["advisor", "nats", f"jobs in {folder / 'old-node'}"]


def test_down_names_the_nodes_whose_jobs_do_not_end(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It once printed an empty error: a time that is over has no words of its own."""
    from skep_services.supervisor import boot

    users = Passwords().all()
    write_cluster(folder, nats={"url": "nats://127.0.0.1:1", "users": users})
    node = folder / "old-node"
    node.mkdir()
    (node / "runner.lock").touch()

    async def never(*_: object) -> bool:
        return await asyncio.Event().wait()

    monkeypatch.setattr(boot, "JOBS_STOP_WITHIN_S", 0.01)
    monkeypatch.setattr(boot, "has_jobs", lambda _: True)
    monkeypatch.setattr(boot, "_stop_jobs_of", never)
    code, _, err = run("down", "--now")
    assert code == exits.TIMEOUT
    assert err.splitlines()[-1] == (
        f"skep down: jobs did not end within 0 s, of the nodes in {node}: type the same again"
    )


def test_no_error_is_without_words(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(_: Namespace) -> int:
        raise TimeoutError

    monkeypatch.setitem(down.COMMANDS, "down", Command(down.options_down, late))
    code, _, err = run("down")
    assert code == exits.UNREACHABLE
    assert err == "skep down: it was not done in time (TimeoutError): try again\n"
