"""What only containers can run into: images, the engine's absences, and other people's hands."""

import asyncio
import contextlib
import io
import itertools
import os
import signal
import socket
import sys
import tarfile
import textwrap
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import msgspec
import pytest
import pytest_asyncio

from skep_services.adapters.docker_engine import Ended, Engine, Mounts
from skep_services.adapters.docker_records import Records
from skep_services.adapters.docker_runtime import DockerRuntime
from skep_services.ports import RunExited, RunNotStarted, RunPlan, RunStarted
from skep_services.supervisor import boot
from tests.node_runtimes import (
    DEADLINE_SECONDS,
    Node,
    alive,
    docker_node,
    engine_of,
    refused,
    started,
    until,
)

pytestmark = [pytest.mark.adapters, pytest.mark.docker]

ABSENT = "skep-test-absent:never"
UNTIL_GO = "until [ -e go ]; do sleep 0.02; done"


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with docker_node(tmp_path) as one:
        yield one


@pytest.fixture
def engine(node: Node) -> Iterator[Engine]:
    one = engine_of(node)
    one.ping()  # Connected before a test makes the engine of the agent another.
    yield one
    one.close()


class Link:
    """A way to the engine that can be cut: a socket of its own, and what connects to it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "engine.sock"
        self._listener: socket.socket | None = None
        self._threads: list[threading.Thread] = []
        self._pairs: list[tuple[socket.socket, socket.socket]] = []

    def join(self) -> None:
        """Let the engine be reached."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._run(self._accept, self._listener)

    def cut(self) -> None:
        """Let it be gone, for those too who are connected."""
        if self._listener is None:
            return
        self.path.unlink()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        for pair in self._pairs:
            _end(*pair)
        for thread in self._threads[1:]:
            thread.join()
        for one in itertools.chain(*self._pairs):
            one.close()
        self._threads, self._pairs, self._listener = [], [], None

    def _run(self, work: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            far.connect("/var/run/docker.sock")
            self._pairs.append((near, far))
            self._run(_pump, near, far)
            self._run(_pump, far, near)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(65536):
            target.sendall(piece)
    _end(source, target)


def _end(*ends: socket.socket) -> None:
    for one in ends:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


@pytest_asyncio.fixture
async def link(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Link]:
    one = Link(tmp_path)
    one.join()
    with monkeypatch.context() as patch:
        patch.setenv("DOCKER_HOST", f"unix://{one.path}")
        yield one
        for runtime in node.opened:
            await runtime.close()
        node.opened.clear()
    one.cut()


# --- what cannot be started -----------------------------------------------------------------------


@pytest.mark.asyncio
async def test_absent_image_is_named_with_the_command_that_fetches_it(node: Node) -> None:
    runtime = await node.open()
    node.image = ABSENT
    text = (
        f"image {ABSENT} is not on this node, and is not fetched: docker pull {ABSENT} there, "
        "or `pull: missing` in `runtime`"
    )
    assert await refused(runtime, node.plan("a", "true")) == text
    assert list(await runtime.runs()) == []


@pytest.mark.asyncio
async def test_name_that_is_no_image_is_refused_in_the_engines_words(node: Node) -> None:
    runtime = await node.open()
    node.image = "UPPER/case"
    assert "invalid reference format" in await refused(runtime, node.plan("a", "true"))


@pytest.mark.asyncio
async def test_image_without_a_shell_is_said_to_have_none(node: Node) -> None:
    empty = io.BytesIO()
    tarfile.open(fileobj=empty, mode="w").close()
    client = docker.from_env()
    name = f"skep-test-empty:{uuid.uuid4().hex[:8]}"
    repository, _, tag = name.partition(":")
    client.api.import_image_from_data(empty.getvalue(), repository=repository, tag=tag)
    try:
        runtime = await node.open()
        node.image = name
        text = f"image {name} has no /bin/sh, which starts the command"
        assert await refused(runtime, node.plan("a", "true")) == text
    finally:
        client.images.remove(name)
        client.close()


@pytest.mark.asyncio
async def test_text_the_engine_cannot_take_is_refused(node: Node) -> None:
    runtime = await node.open()
    odd = b"\xff".decode(errors="surrogateescape")
    assert "no UTF-8" in await refused(runtime, node.plan("a", "true", odd))
    assert "name another" in await refused(runtime, node.plan("a", "true", workdir=Path("/")))


@pytest.mark.asyncio
async def test_devices_are_asked_of_the_engine_by_name(node: Node) -> None:
    runtime = await node.open()
    plan = node.plan("a", "true")
    wanted = RunPlan(**{**_fields(plan), "gpus": ("GPU-5f3b",)})
    answer = await runtime.start(wanted)
    assert isinstance(answer, RunNotStarted), "no such device is here"
    assert "GPU" in answer.detail


@pytest.mark.asyncio
async def test_containers_end_with_the_cluster_and_are_nobodys_failure(node: Node) -> None:
    agent = await node.open()
    await started(agent, node.plan("a", "sleep", "1000"))
    await agent.close()
    state = str(node.state)
    assert boot.node_folders(str(node.folder)) == [state]
    assert boot.has_jobs(state)
    assert await boot.stop_jobs([state]) == [state]
    assert not boot.has_jobs(state)
    (end,) = await (await node.open()).runs()
    assert isinstance(end, RunExited)
    assert (end.code, end.asked) == (-signal.SIGTERM, True)


def _fields(plan: RunPlan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in plan.__struct_fields__}


@pytest.mark.needs("root")
@pytest.mark.asyncio
async def test_container_has_the_agents_user_and_no_way_to_more(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = 65534
    node.folder.chmod(0o755)
    node.log_path("a").parent.mkdir()
    node.log_path("a").touch()
    for path in (node.state, node.state / "containers", node.log_path("a")):
        os.chown(path, nobody, nobody)
    provide = Records.provide

    def provide_as_nobody(records: Records, token: str, *, shared: bool = False) -> Path:
        path = provide(records, token, shared=shared)
        os.chown(path, nobody, nobody)
        return path

    monkeypatch.setattr(Records, "provide", provide_as_nobody)
    monkeypatch.setattr(os, "getuid", lambda: nobody)
    monkeypatch.setattr(os, "getgid", lambda: nobody)
    monkeypatch.setattr(os, "getgroups", lambda: [nobody])
    runtime = await node.open()
    script = "id -u; id -G; grep -E 'CapEff|NoNewPrivs' /proc/self/status"
    await started(runtime, node.shell("a", script))
    assert (await node.end_of("a")).code == 0
    words = node.log("a").split()
    assert words == ["65534", "65534", "CapEff:", "0" * 16, "NoNewPrivs:", "1"]


@pytest.mark.asyncio
async def test_a_container_sees_no_secret_of_its_node_and_no_file_of_another(node: Node) -> None:
    """Its own folders stay, although one around the state folder is mounted too."""
    runtime = await node.open()
    own, other = node.state / "checkpoints" / "j1", node.state / "checkpoints" / "j2"
    library = node.state / "lib"
    for folder in (own, other, library):
        folder.mkdir(parents=True)
    for secret in (node.state / "rank-key", other / "weights", node.state / "containers" / "b.run"):
        secret.write_text("mine")
    script = f"""
        cd {node.state}
        cat rank-key checkpoints/j2/weights containers/b.run 2>/dev/null && echo read
        echo forged >rank-key
        echo 1 >lib/skep_job.py && echo replaced
        echo kept >checkpoints/j1/weights
    """
    plan = msgspec.structs.replace(
        node.shell("a", script), folders=(str(own),), folders_to_read=(str(library),)
    )
    await started(runtime, plan)
    assert (await node.end_of("a")).code == 0
    lines = [line for line in node.log("a").splitlines() if "Read-only file system" not in line]
    assert not {"read", "replaced", "mine"} & set(lines)
    assert (own / "weights").read_text() == "kept\n"
    assert (node.state / "rank-key").read_text() == "mine"


@pytest.mark.asyncio
async def test_a_container_around_the_clusters_home_sees_nothing_of_it_but_its_own(
    node: Node,
) -> None:
    home = node.folder / "home"
    own, credentials, key = (
        home / "checkpoints" / "j1" / "weights",
        home / "cluster.json",
        home / "node-2" / "rank-key",
    )
    for path in (own, credentials, key):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{path.name}\n")
    runtime = DockerRuntime(node.state, [home])
    node.opened.append(runtime)
    await runtime.open(node.told)
    plan = node.shell("a", f"cat {own} {credentials} {key} 2>/dev/null")
    await started(runtime, msgspec.structs.replace(plan, folders=(str(own.parent),)))
    await node.end_of("a")
    assert node.log("a") == "weights\n"
    trouble = await refused(runtime, node.plan("b", "true", workdir=key.parent))
    assert trouble == f"workdir {key.parent} is in a state folder of Skep: name another"


@pytest.mark.asyncio
async def test_a_container_reaches_the_agent_and_cannot_take_its_place(node: Node) -> None:
    """A socket that a later agent makes anew is in the same folder, and is reached too."""
    runtime = await node.open()
    folder = node.state / "sock"
    folder.mkdir()
    go = node.folder / "go"
    os.mkfifo(go)
    script = f"""
        import os, socket
        path = "{folder}/jobs.sock"
        def say(text):
            with socket.socket(socket.AF_UNIX) as one:
                one.connect(path)
                one.sendall(text)
        try:
            os.unlink(path)
        except OSError:
            say(b"first")
        else:
            socket.socket(socket.AF_UNIX).bind(path)
        open("go").read()
        say(b"second")
    """
    plan = msgspec.structs.replace(
        node.python("a", textwrap.dedent(script)), folders_to_read=(str(folder),)
    )
    for text in (b"first", b"second"):
        with socket.socket(socket.AF_UNIX) as agent:
            agent.bind(str(folder / "jobs.sock"))
            agent.listen()
            agent.settimeout(DEADLINE_SECONDS)
            if text == b"first":
                await started(runtime, plan)
            else:
                await asyncio.to_thread(go.write_text, "")
            heard, _ = await asyncio.to_thread(agent.accept)
            with heard:
                assert heard.recv(16) == text
        (folder / "jobs.sock").unlink()
    assert (await node.end_of("a")).code == 0


@pytest.mark.asyncio
async def test_what_a_container_does_to_its_records_keeps_it_not_from_being_forgotten(
    node: Node,
) -> None:
    runtime = await node.open()
    said = node.state / "containers" / "a.said"
    script = f"""
        head -c 4000000 /dev/zero >>{said}
        rm {said}; mkfifo {said}; touch {said.parent}/more {said.parent}/a/more
        echo done
    """
    await started(runtime, node.shell("a", script))
    assert (await node.end_of("a")).code == 0
    assert node.log("a").endswith("done\n")
    await runtime.forget("a")
    assert [path.name for path in said.parent.iterdir()] == ["owner"]


@pytest.mark.asyncio
async def test_a_working_folder_within_the_state_folder_is_refused(node: Node) -> None:
    runtime = await node.open()
    aside = node.folder / "aside"
    aside.symlink_to(node.state)
    for workdir in (node.state, node.state / "containers", aside):
        trouble = await refused(runtime, node.plan("a", "true", workdir=workdir))
        assert trouble == f"workdir {workdir} is in a state folder of Skep: name another"


@pytest.mark.asyncio
@pytest.mark.parametrize("theirs", ["", "/mine"])
async def test_python_path_comes_before_that_of_image_and_job(node: Node, theirs: str) -> None:
    runtime = await node.open()
    plan = node.plan(
        "a", "sh", "-c", "echo $PYTHONPATH", env={"PYTHONPATH": theirs} if theirs else {}
    )
    await started(runtime, RunPlan(**{**_fields(plan), "python_path": "/ours"}))
    await started(
        runtime, msgspec.structs.replace(plan, token="b", log_path=str(node.log_path("b")))
    )
    assert (await node.end_of("a")).code == (await node.end_of("b")).code == 0
    assert node.log("a").strip() == ":".join(filter(None, ("/ours", theirs)))
    assert node.log("b").strip() == theirs


# --- no engine ------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_node_without_an_engine_refuses_and_serves_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = f"unix://{tmp_path}/nothing.sock"
    monkeypatch.setenv("DOCKER_HOST", where)
    node = Node(tmp_path, DockerRuntime, "any")
    runtime = await node.open()
    assert list(await runtime.runs()) == []
    detail = await refused(runtime, node.plan("a", "true"))
    assert detail.startswith(f"image any: no container engine answers at {where} (No such file")
    assert list(await runtime.runs()) == []
    await runtime.stop("a", 0.0)
    await runtime.forget("a")
    await runtime.close()


@pytest.mark.asyncio
async def test_agent_without_the_sdk_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    node = Node(tmp_path, DockerRuntime, "any")
    runtime = await node.open()
    assert "pip install 'skep[docker]'" in await refused(runtime, node.plan("a", "true"))
    await runtime.close()


@pytest.mark.asyncio
async def test_run_lives_through_an_absence_of_the_engine(node: Node, link: Link) -> None:
    runtime = await node.open()
    run = await started(runtime, node.shell("a", f"{UNTIL_GO}; exit 3"))
    link.cut()
    assert list(await runtime.runs()) == [run]
    assert "no container engine answers" in await refused(runtime, node.plan("b", "true"))
    link.join()
    (node.folder / "go").touch()
    end = await node.end_of("a")
    # Whether it ended before the engine was back or after, its status is known.
    assert end.code == 3


@pytest.mark.asyncio
async def test_what_ends_with_the_engine_counts_as_told_to_end(
    node: Node, engine: Engine, link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = await node.open()
    # What an engine does that is stopped: it asks its containers to end, and takes no question.
    await started(
        runtime, node.shell("a", "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    )
    await node.words("a")
    link.cut()
    await until(lambda: "out of sight" in caplog.text)
    news = engine.news()
    assert engine.kill("a", signal.SIGTERM)
    assert next(iter(news)) == Ended("a", 0)
    news.close()
    link.join()
    assert (await node.end_of("a")).code == 0
    assert node.ends["a"][0].asked, "it was not Skep, but its work is not done"


@pytest.mark.asyncio
async def test_stop_without_an_engine_is_carried_out_when_it_is_back(
    node: Node, link: Link
) -> None:
    runtime = await node.open()
    await started(runtime, node.plan("a", "sleep", "1000"))
    link.cut()
    await runtime.stop("a", 0.2)
    link.join()
    end = await node.end_of("a")
    assert (end.code, end.asked) == (-signal.SIGKILL, True)


@pytest.mark.asyncio
async def test_agent_that_begins_without_an_engine_believes_its_record(
    node: Node, link: Link
) -> None:
    first = await node.open()
    run = await started(first, node.plan("stays", "sleep", "1000"))
    await started(first, node.shell("ended", "exit 4"))
    ended = await node.end_of("ended")
    await first.close()
    link.cut()
    second = await node.open()
    assert list(await second.runs()) == [run, ended]
    assert await second.start(node.plan("stays", "true")) == run
    link.join()
    await second.stop("stays", 5.0)
    assert (await node.end_of("stays")).asked


# --- other people's hands -------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_container_removed_behind_our_back_has_ended(node: Node, engine: Engine) -> None:
    runtime = await node.open()
    run = await started(runtime, node.plan("a", "sleep", "1000"))
    engine.remove("a")
    end = await node.end_of("a")
    assert end == RunExited("a", -signal.SIGKILL, end.at)
    assert not alive(run.pid)
    assert await runtime.start(node.plan("a", "true")) == run


@pytest.mark.asyncio
async def test_container_removed_while_no_agent_was_there_was_seen_by_nobody(
    node: Node, engine: Engine
) -> None:
    first = await node.open()
    run = await started(first, node.plan("a", "sleep", "1000"))
    await first.close()
    engine.remove("a")
    second = await node.open()
    end = await node.end_of("a")
    assert end == RunExited("a", None, end.at)
    assert await second.start(node.plan("a", "true")) == run, "it is not started again"


@pytest.mark.asyncio
async def test_end_is_on_record_and_its_container_gone(node: Node, engine: Engine) -> None:
    first = await node.open()
    await started(first, node.shell("a", "exit 3"))
    end = await node.end_of("a")
    await until(lambda: engine.look("a") is None)
    await first.close()
    second = await node.open()
    assert list(await second.runs()) == [end]
    await second.forget("a")
    await second.close()
    assert list(await (await node.open()).runs()) == []


@pytest.mark.asyncio
async def test_containers_without_a_record_are_removed(node: Node, engine: Engine) -> None:
    first = await node.open()
    await started(first, node.plan("lost", "sleep", "1000"))
    await started(first, node.plan("kept", "sleep", "1000"))
    await first.close()
    (node.state / "containers" / "lost.run").unlink()
    second = await node.open()
    assert [run.token for run in await second.runs()] == ["kept"]
    await until(lambda: engine.tokens() == ["kept"])


# --- the agent's death ----------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_end_after_a_stop_of_an_agent_that_died_was_asked_for(node: Node) -> None:
    first = await node.open()
    script = "trap 'sleep 0.2; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    await started(first, node.shell("a", script))
    await started(first, node.shell("b", f"echo ready; {UNTIL_GO}"))
    await node.words("a")
    await first.stop("a", 30.0)
    await first.close()
    (node.folder / "go").touch()
    await node.open()
    asked, by_itself = await node.end_of("a"), await node.end_of("b")
    assert (asked.code, asked.asked) == (0, True)
    assert (by_itself.code, by_itself.asked) == (0, False)


@pytest.mark.asyncio
@pytest.mark.parametrize("created", [True, False])
async def test_run_whose_agent_died_while_beginning_it_begins_once(
    node: Node, engine: Engine, created: bool
) -> None:
    first = await node.open()
    plan = node.shell("a", "echo once")
    await started(first, plan)
    await node.end_of("a")
    await until(lambda: engine.look("a") is None)
    await first.close()
    records = node.state / "containers"
    text = (records / "a.run").read_text()
    before_it_ran = text[: text.index(',"pid"')] + "}"
    (records / "a.run").write_text(before_it_ran)
    (records / "a.said").write_text("")
    node.log_path("a").unlink()
    if created:
        engine.create(plan, str(records / "a.said"), Mounts((str(node.folder),)))
    second = await node.open()
    assert list(await second.runs()) == []
    assert isinstance(await second.start(plan), RunStarted)
    await until(lambda: len(node.ends["a"]) == 2)
    assert node.log("a") == "once\n"


@pytest.mark.asyncio
async def test_run_whose_agent_died_before_the_answer_is_adopted(node: Node) -> None:
    first = await node.open()
    run = await started(first, node.plan("a", "sleep", "1000"))
    await first.close()
    record = node.state / "containers" / "a.run"
    text = record.read_text()
    record.write_text(text[: text.index(',"pid"')] + "}")
    second = await node.open()
    assert list(await second.runs()) == [run]


@pytest.mark.asyncio
async def test_command_runs_once_however_often_its_container_is_started(
    node: Node, engine: Engine
) -> None:
    first = await node.open()
    plan = node.shell("a", "echo once")
    await started(first, plan)
    await node.end_of("a")
    await until(lambda: engine.look("a") is None)
    await first.close()
    said = node.state / "containers" / "a.said"
    engine.create(plan, str(said), Mounts((str(node.folder),)))
    engine.start("a")
    await until(lambda: (found := engine.look("a")) is not None and not found.alive)
    assert node.log("a") == "once\n"


@pytest.mark.asyncio
async def test_flood_while_no_agent_was_there_is_cut_when_one_is_back(node: Node) -> None:
    bound = 64 * 1024
    first = await node.open()
    script = f"{UNTIL_GO}; head -c 1000000 /dev/zero; echo done; sleep 1000"
    plan = node.plan("a", "sh", "-c", script, log_bytes_max=bound)
    await started(first, plan)
    await first.close()
    (node.folder / "go").touch()
    await until(lambda: node.log_path("a").stat().st_size > 1_000_000)
    await node.open()
    await until(lambda: node.log_path("a").stat().st_size <= bound)
    assert node.log("a").endswith("done\n")
