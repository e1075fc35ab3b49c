"""The runner behind the process runtime: its death, its own end, and its socket."""

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from skep_services.adapters import ends
from skep_services.adapters import process_runtime as adapter
from skep_services.adapters.process_runtime import ProcessRuntime, RunnerLostError
from skep_services.agent import runner
from skep_services.ports import RunExited
from tests.node_runtimes import (
    DEADLINE_SECONDS,
    PATH,
    Node,
    alive,
    kill,
    process_node,
    process_runtime,
    started,
    until,
)

pytestmark = pytest.mark.adapters


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with process_node(tmp_path) as one:
        yield one


async def open_process(node: Node) -> ProcessRuntime:
    runtime = await node.open()
    assert isinstance(runtime, ProcessRuntime)
    return runtime


# --- death of the agent ---------------------------------------------------------------------------

AGENT = """
import asyncio, sys
from pathlib import Path
from tests.node_runtimes import Node, process_runtime, started

async def main():
    node = Node(Path(sys.argv[1]), process_runtime)
    runtime = await node.open()
    await started(runtime, node.plan("stays", "sleep", "1000"))
    await started(runtime, node.shell("ends", "until [ -e go ]; do sleep 0.02; done; exit 5"))
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.asyncio
async def test_sigkill_of_the_agents_process_group_touches_no_run(node: Node) -> None:
    agent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", AGENT, node.folder),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert agent.stdout is not None
    assert await agent.stdout.readline() == b"ready\n"
    os.killpg(agent.pid, signal.SIGKILL)
    await agent.communicate()
    (node.folder / "go").touch()
    runtime = await node.open()
    assert (await node.end_of("ends")).code == 5
    stays = next(run for run in await runtime.runs() if run.token == "stays")
    assert not isinstance(stays, RunExited)
    assert alive(stays.pid)


# --- death of the runner --------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_survivors_of_a_killed_runner_are_adopted(node: Node) -> None:
    runtime = await open_process(node)
    await started(runtime, node.shell("before", "exit 4"))
    before = await node.end_of("before")
    stays = await started(runtime, node.plan("stays", "sleep", "1000"))
    ends = await started(runtime, node.plan("ends", "sleep", "1000"))
    first = await runtime.ping()
    kill(first)
    assert await runtime.ping() != first
    assert await runtime.runs() == [before, stays, ends]
    assert await runtime.start(node.plan("stays", "true")) == stays
    kill(ends.pid)
    assert (await node.end_of("ends")).code is None, "nobody saw it end"
    await runtime.stop("stays", 10.0)
    assert (await node.end_of("stays")).code is None
    assert not alive(stays.pid)
    assert len(node.ends["before"]) == 1, "an end is told to one agent once"


@pytest.mark.needs("setsid")
@pytest.mark.asyncio
async def test_adopted_tree_is_killed_whole(node: Node) -> None:
    runtime = await open_process(node)
    trap = "trap '' TERM; "
    script = f"{trap}(setsid sh -c '{trap}sleep 1000' & echo $!); sleep 1000 & echo $!; wait"
    await started(runtime, node.shell("a", script))
    children = [int(word) for word in await node.words("a", 2)]
    kill(await runtime.ping())
    await runtime.stop("a", 0.2)
    end = await node.end_of("a")
    assert end.code is None
    assert not any(alive(pid) for pid in children)


@pytest.mark.needs("setsid")
@pytest.mark.asyncio
async def test_leftovers_of_a_run_that_ended_without_runner(node: Node) -> None:
    runtime = await open_process(node)
    run = await started(runtime, node.shell("a", "(setsid sleep 1000 & echo $!); exec sleep 1000"))
    (daemon,) = await node.words("a")
    gone = await started(runtime, node.plan("b", "sleep", "1000"))
    pid = await runtime.ping()
    os.kill(pid, signal.SIGSTOP)
    kill(run.pid)
    kill(gone.pid)
    kill(pid)
    end, other = await node.end_of("a"), await node.end_of("b")
    assert end == RunExited("a", None, end.at, 1, left=end.left)
    assert other == RunExited("b", None, other.at, 0)
    assert not alive(int(daemon))


@pytest.mark.needs("setsid")
@pytest.mark.asyncio
async def test_leftovers_of_an_adopted_run(node: Node) -> None:
    runtime = await open_process(node)
    run = await started(runtime, node.shell("a", "(setsid sleep 1000 & echo $!); exec sleep 1000"))
    (daemon,) = await node.words("a")
    kill(await runtime.ping())
    await runtime.ping()
    kill(run.pid)
    end = await node.end_of("a")
    assert end == RunExited("a", None, end.at, 1, left=end.left)
    assert not alive(int(daemon))


@pytest.mark.asyncio
async def test_starts_under_way_when_the_runner_dies_happen_once(node: Node) -> None:
    runtime = await open_process(node)
    pid = await runtime.ping()
    tokens = [f"t{number}" for number in range(40)]
    starts = [
        asyncio.create_task(started(runtime, node.shell(token, "echo once; exec sleep 1000")))
        for token in tokens
    ]
    await until(lambda: node.log_path("t3").exists())
    kill(pid)
    runs = await asyncio.gather(*starts)
    assert [run.token for run in runs] == tokens
    lost = [run.token for run in runs if run.pid == 0]
    for token in tokens:
        if token not in lost:
            assert await node.words(token) == ["once"]
    for token in lost:
        assert (await node.end_of(token)).code is None


@pytest.mark.asyncio
async def test_lost_record_loses_no_process(node: Node) -> None:
    runtime = await open_process(node)
    run = await started(runtime, node.shell("a", "sleep 1000 & sleep 1000"))
    pid = await runtime.ping()
    os.kill(pid, signal.SIGSTOP)
    (node.state / "runner.jsonl").unlink()
    kill(pid)
    (found,) = await runtime.runs()
    assert not isinstance(found, RunExited)
    assert (found.token, found.pid, found.start_ticks) == ("a", run.pid, run.start_ticks)
    await runtime.stop("a", 5.0)
    assert (await node.end_of("a")).code is None


@pytest.mark.asyncio
async def test_stray_process_of_an_ended_run_is_killed(node: Node) -> None:
    runtime = await open_process(node)
    await started(runtime, node.plan("a", "true"))
    await node.end_of("a")
    marks = {"PATH": PATH, "SKEP_RUN": "a", "SKEP_NODE_STATE": str(node.state)}
    stray = await asyncio.create_subprocess_exec("sleep", "1000", env=marks, start_new_session=True)
    kill(await runtime.ping())
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert await stray.wait() == -signal.SIGKILL
    assert (await node.end_of("a")).code == 0


@pytest.mark.asyncio
async def test_log_of_an_adopted_run_stays_within_its_bound(node: Node) -> None:
    runtime = await open_process(node)
    script = "until [ -e go ]; do sleep 0.02; done; exec yes"
    plan = node.plan("a", "sh", "-c", script, log_bytes_max=65_536)
    await started(runtime, plan)
    kill(await runtime.ping())
    await runtime.ping()
    (node.folder / "go").touch()
    await until(lambda: "log limit reached" in node.log("a"))
    await runtime.stop("a", 0.0)
    await node.end_of("a")


# --- what the runner does for the node ------------------------------------------------------------


HIDING = """
import os, resource, sys
os.setsid()
if os.fork():
    os._exit(0)
print(os.getpid(), flush=True)
if "number" in sys.argv:
    resource.setrlimit(resource.RLIMIT_RTTIME, (-1, -1))
os.execve("/bin/sleep", ["sleep", "1000"], {})
"""


async def run_with_hidden_daemon(node: Node, runtime: ProcessRuntime, *words: str) -> int:
    (node.folder / "hide.py").write_text(HIDING)
    hide = f"{sys.executable} -IS {node.folder}/hide.py {' '.join(words)}"
    wait = f"until [ -s {node.log_path('a')} ]; do sleep 0.02; done; sleep 0.1"
    await started(runtime, node.shell("a", f"{hide} & {wait}"))
    await node.end_of("a")
    return int((await node.words("a"))[0])


@pytest.mark.asyncio
async def test_daemon_without_session_and_environment_ends_with_its_run(node: Node) -> None:
    runtime = await open_process(node)
    await started(runtime, node.plan("other", "sleep", "1000"))
    daemon = await run_with_hidden_daemon(node, runtime)
    assert not alive(daemon)
    assert node.ends["a"][0].leftovers == 1


@pytest.mark.asyncio
async def test_daemon_that_hides_is_killed_with_the_last_run_it_may_belong_to(node: Node) -> None:
    runtime = await open_process(node)
    await started(runtime, node.plan("other", "sleep", "1000"))
    daemon = await run_with_hidden_daemon(node, runtime, "number")
    assert alive(daemon), "it may be the other's"
    await runtime.stop("other", 10.0)
    await node.end_of("other")
    assert not alive(daemon)


@pytest.mark.asyncio
async def test_hidden_daemon_of_an_adopted_run_is_killed(node: Node) -> None:
    runtime = await open_process(node)
    (node.folder / "hide.py").write_text(HIDING)
    hide = f"{sys.executable} -IS {node.folder}/hide.py"
    await started(runtime, node.shell("a", f"{hide}; exec sleep 1000"))
    (daemon,) = await node.words("a")
    kill(await runtime.ping())
    await runtime.stop("a", 5.0)
    await node.end_of("a")
    assert not alive(int(daemon))


@pytest.mark.asyncio
async def test_jobs_run_at_usual_priority_with_usual_signals_and_no_descriptors(node: Node) -> None:
    runtime = await open_process(node)
    script = """
import os, signal
print(os.nice(0), os.sched_getscheduler(0), signal.getsignal(signal.SIGINT) != signal.SIG_IGN)
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), sorted(os.listdir("/proc/self/fd"))[:-1])
"""
    await started(runtime, node.python("a", script))
    assert (await node.end_of("a")).code == 0
    assert node.log("a") == f"{os.nice(0)} 0 True\nset() ['0', '1', '2']\n"


@pytest.mark.asyncio
async def test_folder_of_any_depth_and_private_socket(tmp_path: Path) -> None:
    async with process_node(tmp_path / ("deep" * 20) / ("deeper" * 20)) as node:
        node.folder.mkdir(parents=True)
        runtime = await node.open()
        await started(runtime, node.plan("a", "true"))
        await node.end_of("a")
        assert (node.state / "runner.sock").stat().st_mode & 0o777 == 0o600
        assert node.state.stat().st_mode & 0o777 == 0o700


@pytest.mark.asyncio
async def test_idle_runner_ends_and_another_takes_over(node: Node) -> None:
    runtime = process_runtime(node.state, idle_s=0.05)
    await runtime.open(node.told)
    pid = await runtime.ping()
    await started(runtime, node.plan("a", "true"))
    await node.end_of("a")
    await runtime.close()
    await until(lambda: not alive(pid))
    assert not (node.state / "runner.sock").exists()
    runtime = await open_process(node)
    assert [run.token for run in await runtime.runs()] == ["a"]
    assert await runtime.ping() != pid


@pytest.mark.asyncio
async def test_sigterm_ends_the_runner_with_its_last_run(node: Node) -> None:
    runtime = await open_process(node)
    await started(runtime, node.plan("a", "sleep", "1000"))
    pid = await runtime.ping()
    os.kill(pid, signal.SIGTERM)
    os.kill(pid, signal.SIGINT)
    await started(runtime, node.plan("b", "true"))
    await node.end_of("b")
    assert await runtime.ping() == pid
    await runtime.stop("a", 5.0)
    assert (await node.end_of("a")).code == -signal.SIGTERM
    await until(lambda: not alive(pid))
    assert len(await runtime.runs()) == 2


@pytest.mark.asyncio
async def test_sigterm_ends_a_runner_whose_folder_was_deleted_with_all_it_holds(node: Node) -> None:
    """Also with what is frozen: nobody can thaw or end it any more."""
    runtime = await open_process(node)
    await started(runtime, node.plan("a", "sleep", "1000"))
    frozen = await started(runtime, node.plan("b", "sleep", "1000"))
    await runtime.freeze("b")
    pid = await runtime.ping()
    shutil.rmtree(node.state)
    os.kill(pid, signal.SIGTERM)
    await until(lambda: not alive(pid))
    assert not alive(frozen.pid)


@pytest.mark.asyncio
async def test_shutdown_stops_every_run_and_refuses_others(node: Node) -> None:
    runtime = await open_process(node)
    pid = await runtime.ping()
    for token in ("a", "b"):
        await started(runtime, node.shell(token, "trap '' TERM; echo ready; sleep 1000"))
        await node.words(token)
    other = await node.open()
    ending = asyncio.create_task(runtime.shutdown(0.5))
    while not ending.done():
        answer = await other.start(node.plan("late", "true"))
        if getattr(answer, "detail", "") == "this node is shutting down":
            break
    await ending
    await until(lambda: not alive(pid))
    assert {(await node.end_of(token)).code for token in ("a", "b")} == {-signal.SIGKILL}


# --- what the agent hears of trouble --------------------------------------------------------------


@pytest.mark.asyncio
async def test_end_that_was_not_taken_is_told_again(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ends, "TELL_AGAIN_SECONDS", 0.01)
    heard: asyncio.Queue[RunExited] = asyncio.Queue()

    async def forgetful(end: RunExited) -> None:
        heard.put_nowait(end)
        if heard.qsize() == 1:
            message = "not taken"
            raise ValueError(message)

    runtime = process_runtime(node.state)
    node.opened.append(runtime)
    await runtime.open(forgetful)
    await started(runtime, node.plan("a", "true"))
    async with asyncio.timeout(DEADLINE_SECONDS):
        await until(lambda: heard.qsize() == 2)
    assert heard.get_nowait() == heard.get_nowait()
    assert "the end of run a was not taken" in caplog.text


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "program, text",
    [
        ("/nowhere/python", "cannot be started: "),
        ("false", "does not start: "),
        ("true", "cannot be reached: .*No such file"),
    ],
)
async def test_runner_that_does_not_start_is_reported(
    node: Node, monkeypatch: pytest.MonkeyPatch, program: str, text: str
) -> None:
    monkeypatch.setattr(adapter, "CONNECT_ATTEMPTS_MAX", 2)
    runtime = ProcessRuntime(node.state, interpreter=[program])
    with pytest.raises(RunnerLostError, match=text):
        await runtime.open(node.told)
    await runtime.close()


@pytest.mark.asyncio
async def test_runner_that_hangs_at_its_start_is_reported(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "LAUNCH_SECONDS_MAX", 0.2)
    runtime = ProcessRuntime(node.state, interpreter=["sh", "-c", "exec sleep 1000"])
    with pytest.raises(RunnerLostError, match="did not start within"):
        await runtime.open(node.told)


@pytest.mark.asyncio
async def test_runner_that_cannot_use_its_folder_says_why(node: Node) -> None:
    (node.state / "runner.lock").mkdir(parents=True)
    runtime = process_runtime(node.state)
    with pytest.raises(RunnerLostError, match="Is a directory"):
        await runtime.open(node.told)
    (node.state / "runner.lock").rmdir()


@pytest.mark.asyncio
async def test_runner_that_fails_after_its_start_is_quoted(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "CONNECT_ATTEMPTS_MAX", 3)
    (node.state / "runner.jsonl").mkdir(parents=True)
    runtime = process_runtime(node.state)
    with pytest.raises(RunnerLostError, match="Is a directory"):
        await runtime.open(node.told)
    await runtime.close()
    (node.state / "runner.jsonl").rmdir()


@pytest.mark.asyncio
async def test_runner_that_dies_of_what_it_is_asked_is_given_up(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "SHORT_LIVES_MAX", 2)
    runtime = await open_process(node)

    async def ask_for_trouble() -> None:
        while True:
            kill(await runtime.ping())

    with pytest.raises(RunnerLostError, match="dies again and again"):
        await ask_for_trouble()


@pytest.mark.asyncio
async def test_every_call_fails_once_the_runner_cannot_be_replaced(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = await open_process(node)
    run = await started(runtime, node.plan("a", "sleep", "1000"))
    monkeypatch.setattr(adapter, "CONNECT_ATTEMPTS_MAX", 1)
    pid = await runtime.ping()
    os.kill(pid, signal.SIGSTOP)
    asked = asyncio.create_task(runtime.ping())
    await asyncio.sleep(0)
    kill(pid)
    with pytest.raises(RunnerLostError):
        await asked
    with pytest.raises(RunnerLostError):
        await runtime.runs()
    monkeypatch.undo()
    assert alive(run.pid)


@pytest.mark.asyncio
async def test_requests_that_make_no_sense_get_an_answer(node: Node) -> None:
    await node.open()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(node.state / "runner.sock"))
    with connection, connection.makefile("rb") as replies:

        def ask(text: bytes) -> Any:
            # In two pieces, which the runner has to put together.
            frame = runner.LENGTH.pack(len(text)) + text
            connection.sendall(frame[:5])
            connection.sendall(frame[5:])
            (size,) = runner.LENGTH.unpack(replies.read(runner.LENGTH.size))
            return json.loads(replies.read(size))

        assert ask(b'{"id": 1, "do": "dance"}') == {"id": 1, "error": "there is no request 'dance'"}
        assert ask(b'{"id": 2, "do": "stop"}') == {"id": 2, "error": "KeyError: 'token'"}
        assert ask(b"{")["error"].startswith("JSONDecodeError")
        assert ask(b"[]")["error"].startswith("TypeError")
        connection.sendall(runner.LENGTH.pack(runner.MESSAGE_BYTES_MAX + 1))
        assert replies.read() == b"", "a message without end is cut off"
