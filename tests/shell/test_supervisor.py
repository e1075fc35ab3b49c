"""The supervisor over real processes: small shell scripts stand for the services."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skep.wire.runs import RunExited, RunNotStarted, RunPlan, RunStarted
from skep_services.adapters.process_runtime import ProcessRuntime
from skep_services.agent import proc
from skep_services.servers import serving
from skep_services.supervisor import boot, children, home, run, survivors
from skep_services.supervisor.children import Child, ReadyReader, bound_log, exit_text
from skep_services.supervisor.config import Wishes, settle
from skep_services.supervisor.run import Supervisor
from skep_services.supervisor.table import ChildPlan, ClusterPlan
from tests.node_runtimes import until

DEADLINE_S = 120.0

READY = """echo '{"event": "ready"}'"""
SERVE = f"{READY}; exec sleep 1000"
STUBBORN = f"trap '' TERM; {READY}; while :; do sleep 0.05; done"
"""Ignores SIGTERM. Each sleep is short: what is left of it ends by itself."""


class Watched:
    """Children in a folder; `until` waits for what is known of them to fulfil a condition."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[dict[str, Any]] = []
        self.children: list[Child] = []
        self._changed = asyncio.Event()

    def child(self, name: str, script: str, **more: Any) -> Child:
        made = Child(plan(self.folder, name, script, **more), self._say, self._changed.set)
        self.children.append(made)
        return made

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def close(self) -> None:
        await children.stop_all(self.children)

    def _say(self, event: str, **facts: Any) -> None:
        self.said.append({"event": event, **facts})
        self._changed.set()


def plan(folder: Path, name: str, script: str, port: int = 0, **env: str) -> ChildPlan:
    state = folder / name
    return ChildPlan(
        name=name,
        argv=("/bin/sh", "-c", script),
        env={"PATH": os.environ["PATH"], "SKEP_STATE": str(state), **env},
        state=str(state),
        log_path=str(state / "service.log"),
        port=port,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A state folder; nothing that was started in it outlives the test."""
    yield tmp_path
    for process in proc.processes().values():
        state = proc.environ(process.pid).get(b"SKEP_STATE", b"")
        if state.startswith(os.fsencode(tmp_path)):
            proc.send(process, signal.SIGKILL)


# --- one child ------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_child_that_is_killed_is_back_at_once(folder: Path) -> None:
    watched = Watched(folder)
    child = watched.child("service", SERVE)
    child.start()
    assert await child.wait_ready()
    assert child.facts() == {
        "pid": child.pid,
        "start_ticks": home.start_ticks(child.pid),
        "restarts": 0,
        "state": "ready",
        "exit": None,
        "detail": "",
        "started_at": child.started_at_ns,
    }
    first = child.pid
    killed_at_ns = time.time_ns()
    os.kill(first, signal.SIGKILL)
    await watched.until(lambda: child.restarts == 1 and child.state == "ready")
    assert child.pid != first
    assert (child.exit_code, child.detail) == (-9, "killed by SIGKILL")
    # A busy machine may take a while to run either process; a back-off would be longer.
    assert child.started_at_ns - killed_at_ns < 1_000_000_000
    await watched.close()
    assert child.state == "ended"
    assert proc.process(first) is None


@pytest.mark.asyncio
async def test_child_that_keeps_ending_waits_longer_each_time(folder: Path) -> None:
    watched = Watched(folder)
    child = watched.child("service", "exit 3")
    child.start()
    await watched.until(lambda: child.restarts == 3 and child.state == "backoff")
    ends = [one for one in watched.said if one["event"] == "exited"]
    assert [one["code"] for one in ends[:4]] == [3, 3, 3, 3]
    assert child.facts()["detail"] == "exit code 3"
    await watched.close()
    assert child.state == "ended"


@pytest.mark.asyncio
@pytest.mark.parametrize("code", [64, 72, 73])
async def test_child_that_must_not_go_on_is_left_alone(folder: Path, code: int) -> None:
    watched = Watched(folder)
    child = watched.child("service", f"exit {code}")
    child.start()
    assert not await child.wait_ready()
    assert child.state == "stopped"
    assert child.restarts == 0
    assert child.detail == f"exit code {code}: {children.FINAL_CODES[code]}"
    await watched.close()
    assert child.state == "stopped"


@pytest.mark.asyncio
@pytest.mark.parametrize("more", [1, -1000])
async def test_child_runs_at_its_niceness_where_that_is_permitted(folder: Path, more: int) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    watched = Watched(folder)
    made = msgspec.structs.replace(plan(folder, "service", SERVE), niceness=own + more)
    child = Child(made, watched._say, watched._changed.set)
    watched.children.append(child)
    child.start()
    assert await child.wait_ready(), "nobody is refused for want of permission"
    permitted = [own + 1] if more == 1 else [own, -20]
    assert os.getpriority(os.PRIO_PROCESS, child.pid) in permitted
    await watched.close()


@pytest.mark.asyncio
async def test_child_that_does_not_exist_is_tried_again(folder: Path) -> None:
    watched = Watched(folder)
    made = plan(folder, "service", "")
    child = Child(
        ChildPlan(
            name="service", argv=("/none/such",), env={}, state=made.state, log_path=made.log_path
        ),
        watched._say,
        watched._changed.set,
    )
    watched.children.append(child)
    child.start()
    await watched.until(lambda: len(watched.said) >= 2)
    assert watched.said[0]["error"] == "/none/such: No such file or directory"
    assert child.facts()["restarts"] == 0
    await watched.close()


@pytest.mark.asyncio
async def test_child_that_ignores_sigterm_is_killed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "STOP_WITHIN_S", 0.2)
    watched = Watched(folder)
    child = watched.child("service", STUBBORN)
    child.start()
    assert await child.wait_ready()
    pid = child.pid
    await watched.close()
    assert proc.process(pid) is None
    assert [one["event"] for one in watched.said] == ["started", "killed", "exited"]
    assert child.detail == ""


@pytest.mark.asyncio
async def test_child_is_stopped_wherever_it_is(folder: Path) -> None:
    watched = Watched(folder)
    starting = watched.child("starting", "exec sleep 1000")
    starting.start()
    never = watched.child("never", SERVE)
    await watched.close()
    assert starting.state == "ended"
    assert never.state == "starting"
    waiting = watched.child("waiting", "exit 1")
    waiting.start()
    await watched.until(lambda: waiting.state == "backoff")
    await watched.close()
    assert waiting.state == "ended"


@pytest.mark.asyncio
async def test_child_with_a_port_is_ready_once_something_listens(
    folder: Path, free_port: int
) -> None:
    script = f"import socket; s = socket.create_server(('127.0.0.1', {free_port})); s.accept()"
    serve = shlex.join([sys.executable, "-S", "-c", f"{script}; import signal; signal.pause()"])
    watched = Watched(folder)
    child = watched.child("bus", f"exec {serve}", port=free_port)
    child.start()
    assert await child.wait_ready()
    await watched.close()


# --- logs -----------------------------------------------------------------------------------------


def test_ready_is_a_json_event_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "service.log"
    reader = ReadyReader(str(path), 0)
    assert not reader.look()
    path.write_text('{"event": "ready"}\n')
    assert not ReadyReader(str(path), path.stat().st_size).look()
    with path.open("a") as log:
        log.write('"ready"\n["ready"]\nnot json "ready"\n{"event": "other", "x": "ready"}\n{"eve')
    late = ReadyReader(str(path), 19)
    assert not late.look()
    with path.open("a") as log:
        log.write('nt":"ready"}\n')
    assert late.look()
    assert reader.look()
    monkeypatch.setattr(children, "LINE_BYTES_MAX", 8)
    endless = tmp_path / "endless"
    endless.write_text("x" * 8 + "\n")
    endless_reader = ReadyReader(str(endless), 0)
    assert not endless_reader.look()
    assert endless_reader._position == 8


def test_log_that_is_too_large_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "service.log"
    path.write_bytes(b"x" * 100)
    writer = os.open(path, os.O_WRONLY | os.O_APPEND)
    bound_log(str(path), 100)
    assert path.stat().st_size == 100
    bound_log(str(path), 99)
    os.write(writer, b"next")
    os.close(writer)
    assert path.read_bytes() == b"next"
    assert (tmp_path / "service.log.1").read_bytes() == b"x" * 100
    bound_log(str(tmp_path / "none"), 1)


def test_exit_texts() -> None:
    assert exit_text(1) == "exit code 1"
    assert exit_text(-15) == "killed by SIGTERM"
    assert exit_text(-35) == "killed by signal 35"


# --- the whole ------------------------------------------------------------------------------------


def recorder(folder: Path, name: str) -> str:
    """Return a script that writes into `order` when it begins and when it is asked to end."""
    order = shlex.quote(str(folder / "order"))
    return (
        f"trap 'echo {name} ends >> {order}; kill $!; exit 0' TERM;"
        f"echo {name} begins >> {order}; {READY}; sleep 1000 & wait"
    )


def cluster_plan(folder: Path) -> ClusterPlan:
    return ClusterPlan(
        bus=plan(folder, "nats", recorder(folder, "bus")),
        services=(plan(folder, "admission", recorder(folder, "service")),),
        agents=(plan(folder, "node-1", recorder(folder, "agent")),),
    )


def write_cluster(folder: Path) -> None:
    home.write_json(home.cluster_path(str(folder)), {"version": 1})


def state_of(folder: Path) -> str:
    cluster = home.read_cluster(str(folder)) or {}
    return str((cluster.get("supervisor") or {}).get("state"))


class Steps:
    """What is done between starting and stopping processes; `fail` names a step that fails."""

    def __init__(self, folder: Path, fail: str = "") -> None:
        self._order = folder / "order"
        self._fail = fail

    async def prepare(self) -> None:
        self._note("prepare")

    async def stop_jobs(self) -> None:
        self._note("stop-jobs")

    async def admit(self, reload: Callable[[], None]) -> None:
        assert callable(reload)

    def _note(self, step: str) -> None:
        with self._order.open("a") as file:
            file.write(f"{step}\n")
        if step == self._fail:
            message = f"{step} failed"
            raise RuntimeError(message)


async def supervised(
    folder: Path, steps: Steps, then: Callable[[], Awaitable[None]]
) -> tuple[int, list[str]]:
    """Run a supervisor until `then` is done; return its exit code and the order of things."""
    write_cluster(folder)
    supervisor = Supervisor(
        str(folder), cluster_plan(folder), steps.prepare, steps.stop_jobs, steps.admit
    )
    task = asyncio.create_task(supervisor.run())
    async with asyncio.timeout(DEADLINE_S):
        await then()
        os.kill(os.getpid(), signal.SIGTERM)
        code = await task
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.remove_signal_handler(number)
    return code, (folder / "order").read_text().split("\n")[:-1]


def entries(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(home.pids_path(str(folder))).read_text())
    return found


def all_ready(folder: Path) -> bool:
    if state_of(folder) != "running":
        return False
    return all(one["state"] == "ready" for one in entries(folder).values())


@pytest.mark.asyncio
async def test_cluster_comes_up_and_goes_down_in_order(folder: Path) -> None:
    async def then() -> None:
        await until(lambda: all_ready(folder))
        assert list(entries(folder)) == ["nats", "admission", "node-1"]
        os.kill(os.getpid(), signal.SIGHUP)
        cluster = home.read_cluster(str(folder))
        assert cluster is not None
        assert home.supervisor_alive(cluster)

    code, order = await supervised(folder, Steps(folder), then)
    assert code == 0
    assert order[:2] == ["bus begins", "prepare"]
    assert sorted(order[2:4]) == ["agent begins", "service begins"]
    assert order[4:] == ["agent ends", "stop-jobs", "service ends", "bus ends"]
    assert {one["state"] for one in entries(folder).values()} == {"ended"}
    assert state_of(folder) == "stopped"


@pytest.mark.asyncio
async def test_failed_preparation_leaves_the_bus_and_says_why(folder: Path) -> None:
    async def then() -> None:
        await until(lambda: state_of(folder) == "failed")
        cluster = home.read_cluster(str(folder))
        assert cluster is not None
        assert cluster["supervisor"]["error"] == "RuntimeError: prepare failed"

    code, order = await supervised(folder, Steps(folder, fail="prepare"), then)
    assert code == 1
    assert order == ["bus begins", "prepare", "stop-jobs", "bus ends"]


@pytest.mark.asyncio
async def test_jobs_that_cannot_be_stopped_do_not_stop_the_stop(folder: Path) -> None:
    async def then() -> None:
        await until(lambda: all_ready(folder))

    code, order = await supervised(folder, Steps(folder, fail="stop-jobs"), then)
    assert code == 0
    assert order[-2:] == ["service ends", "bus ends"]


@pytest.mark.asyncio
async def test_logs_are_bounded_while_the_cluster_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounded: dict[str, bool] = {}
    monkeypatch.setattr(run, "LOG_CHECK_EVERY_S", 0.01)
    monkeypatch.setattr(run, "bound_log", lambda path: bounded.update({Path(path).name: True}))

    async def then() -> None:
        await until(lambda: all_ready(folder) and len(bounded) == 2)

    await supervised(folder, Steps(folder), then)
    assert sorted(bounded) == ["service.log", "supervisor.log"]


@pytest.mark.asyncio
async def test_bus_that_is_given_up_fails_the_start(folder: Path) -> None:
    write_cluster(folder)
    whole = ClusterPlan(bus=plan(folder, "nats", "exit 64"), services=(), agents=())
    steps = Steps(folder)
    task = asyncio.create_task(
        Supervisor(str(folder), whole, steps.prepare, steps.stop_jobs, steps.admit).run()
    )
    await until(lambda: state_of(folder) == "failed")
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(DEADLINE_S):
        assert await task == 1


def test_state_that_cannot_be_written_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run.write_state(str(tmp_path), "running")
    assert not (tmp_path / "cluster.json").exists()
    (tmp_path / "cluster.json").write_text("{")
    run.write_state(str(tmp_path), "running")
    line = json.loads(capsys.readouterr().err)
    assert line["event"] == "cluster.json not written"
    assert line["service"] == "supervisor"


# --- survivors ------------------------------------------------------------------------------------


def start(made: ChildPlan) -> subprocess.Popen[bytes]:
    return subprocess.Popen(made.argv, env=dict(made.env), stdout=subprocess.PIPE)


def test_survivors_are_found_by_record_and_by_command(folder: Path) -> None:
    recorded = plan(folder, "recorded", SERVE)
    unrecorded = plan(folder, "unrecorded", STUBBORN)
    another_cluster = plan(folder / "elsewhere", "unrecorded", STUBBORN)
    processes = [start(one) for one in (recorded, unrecorded, another_cluster)]
    first, second, third = processes
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        pids = {
            "recorded": {"pid": first.pid, "start_ticks": home.start_ticks(first.pid)},
            "reused": {"pid": os.getpid(), "start_ticks": 1},
            "gone": {"pid": 0, "start_ticks": 0},
            "odd": 3,
        }
        home.write_json(home.pids_path(str(folder)), pids)
        found = survivors.find(str(folder), [recorded, unrecorded])
        assert {name: one.pid for name, one in found.items()} == {
            "recorded": first.pid,
            "unrecorded": second.pid,
        }
        survivors.stop(found.values(), within_s=0.2)
        assert first.wait(DEADLINE_S) == -signal.SIGTERM
        assert second.wait(DEADLINE_S) == -signal.SIGKILL
        assert third.poll() is None
        Path(home.pids_path(str(folder))).write_text("{")
        assert survivors.find(str(folder), [recorded, unrecorded]) == {}
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_a_server_ends_what_a_killed_one_left_the_bus_last(folder: Path) -> None:
    told = folder / "told"

    def telling(name: str) -> str:
        return f"trap 'echo {name} >> {told}; exit' TERM; {READY}; while :; do sleep 0.05; done"

    bus, service = (plan(folder, name, telling(name)) for name in ("nats", "admission"))
    processes = [start(one) for one in (bus, service)]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        serving.stop_survivors(str(folder), ClusterPlan(bus=bus, services=(service,), agents=()))
        assert told.read_text().split() == ["admission", "nats"]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


# --- jobs that are taken down ---------------------------------------------------------------------


def run_plan(folder: Path, token: str, script: str) -> RunPlan:
    return RunPlan(
        token=token,
        argv=("/bin/sh", "-c", script),
        env={"PATH": os.environ["PATH"], "SKEP_STATE": str(folder)},
        workdir="/",
        log_path=str(folder / f"{token}.log"),
        log_bytes_max=1_000_000,
    )


@pytest.mark.asyncio
async def test_jobs_end_with_the_cluster_and_are_nobodys_failure(folder: Path) -> None:
    assert not boot.has_jobs(str(folder))
    ended: asyncio.Queue[RunExited] = asyncio.Queue()

    async def on_exit(end: RunExited) -> None:
        ended.put_nowait(end)

    agent, trapped = ProcessRuntime(folder), folder / "trapped"
    os.mkfifo(trapped)
    await agent.open(on_exit)
    for token, script in [
        ("j1.1.0", "exit 3"),
        ("j2.1.0", "exec sleep 1000"),
        ("j3.1.0", f"trap 'exit 0' TERM; echo > {trapped}; while :; do sleep 0.05; done"),
    ]:
        assert not isinstance(await agent.start(run_plan(folder, token, script)), RunNotStarted)
    await asyncio.to_thread(trapped.read_bytes)
    async with asyncio.timeout(DEADLINE_S):
        assert (await ended.get()).code == 3
    await agent.close()
    assert boot.has_jobs(str(folder))
    assert await boot.stop_jobs([str(folder), str(folder / "none")]) == [str(folder)]
    assert not boot.has_jobs(str(folder))
    # The next agent hears which ends were the jobs' own.
    agent = ProcessRuntime(folder)
    await agent.open(on_exit)
    ends = {
        one.token: (one.code, one.asked) for one in await agent.runs() if isinstance(one, RunExited)
    }
    assert ends == {"j1.1.0": (3, False), "j2.1.0": (-15, True), "j3.1.0": (0, True)}
    await agent.shutdown(0.0)
    await agent.close()


@pytest.mark.asyncio
async def test_the_processes_of_kept_jobs_stay(folder: Path) -> None:
    async def on_exit(_end: RunExited) -> None: ...

    agent = ProcessRuntime(folder)
    await agent.open(on_exit)
    for token in ("j1.1.0", "j12.1.0"):
        assert not isinstance(
            await agent.start(run_plan(folder, token, "exec sleep 1000")), RunNotStarted
        )
    await agent.close()
    assert await boot.stop_jobs([str(folder)], ("j12",)) == [str(folder)]
    assert await boot.stop_jobs([str(folder)], ("j12",)) == []
    agent = ProcessRuntime(folder)
    await agent.open(on_exit)
    runs = [(one.token, isinstance(one, RunStarted)) for one in await agent.runs()]
    assert sorted(runs) == [("j1.1.0", False), ("j12.1.0", True)]
    await agent.shutdown(0.0)
    await agent.close()


def test_record_of_the_runner_tells_what_still_runs(tmp_path: Path) -> None:
    (tmp_path / "runner.lock").touch()
    lines = [
        {"boot": "x"},
        {"began": "a"},
        {"started": "a"},
        {"began": "b"},
        {"exited": "b"},
        {"began": "c"},
        {"not_started": "c"},
    ]
    record = tmp_path / "runner.jsonl"
    record.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + "torn\n[1]\n")
    assert boot.has_jobs(str(tmp_path))
    with record.open("a") as file:
        file.write('{"forgot": "a"}\n')
    assert not boot.has_jobs(str(tmp_path))
    record.unlink()
    assert not boot.has_jobs(str(tmp_path))


def test_cluster_file_of_another_shape_is_refused(tmp_path: Path) -> None:
    assert boot.read_cluster(str(tmp_path)) is None
    home.write_json(home.cluster_path(str(tmp_path)), {"version": 1, "nats": 3})
    with pytest.raises(ValueError, match=r"cluster\.json: "):
        boot.read_cluster(str(tmp_path))


# --- as a process ---------------------------------------------------------------------------------


def test_supervisor_is_started_by_up_only(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "skep_services.supervisor", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert (done.returncode, b"started by `skep up`" in done.stderr) == (1, True)
    with open(tmp_path / "lock", "w") as lock:
        done = subprocess.run(
            command,
            env={**os.environ, "SKEP_LOCK_FD": str(lock.fileno())},
            pass_fds=(lock.fileno(),),
            capture_output=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 1
    assert b"cluster.json is gone" in done.stderr


def test_names_of_nodes_and_services_never_meet() -> None:
    cluster = settle(None, Wishes(nodes=64), "/state")
    names = [node.name for node in cluster.nodes]
    assert all(a != b for a, b in itertools.combinations(names, 2))
