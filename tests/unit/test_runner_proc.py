"""Reading /proc."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import skep_services
from skep_services.agent import proc
from skep_services.agent.proc import Process


@pytest.fixture
def sleeper() -> Iterator[Callable[..., int]]:
    """Start processes that sleep in sessions of their own; kill what is left of them."""
    children: list[subprocess.Popen[bytes]] = []

    def start(env: dict[str, str] | None = None, program: str | Path = "sleep") -> int:
        child = subprocess.Popen([program, "1000"], env=env, start_new_session=True)
        children.append(child)
        return child.pid

    yield start
    for child in children:
        child.kill()
        child.wait()


def test_the_runner_needs_the_standard_library_and_the_services_alone() -> None:
    services = Path(skep_services.__file__).parents[1]
    script = "import sys; sys.path.append(sys.argv[1]); import skep_services.agent.runner"
    subprocess.run([sys.executable, "-I", "-S", "-c", script, services], check=True)


def test_own_process_is_found() -> None:
    own = proc.process(os.getpid())
    assert own is not None
    assert (own.ppid, own.pgid, own.sid) == (os.getppid(), os.getpgrp(), os.getsid(0))
    assert own.ticks == proc.start_ticks(os.getpid())
    assert proc.processes()[os.getpid()] == own


def test_name_with_parentheses_and_spaces(sleeper: Callable[..., int], tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    child = sleeper(program=program)
    wait_for(lambda: Path(f"/proc/{child}/comm").read_text() == "a) R 1 (b\n")
    found = proc.process(child)
    assert found is not None
    assert found == Process(child, os.getpid(), child, child, found.ticks)


def test_zombie_is_no_process_but_has_a_start(sleeper: Callable[..., int]) -> None:
    pid = sleeper()
    one = proc.process(pid)
    assert one is not None
    assert proc.send(one, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert proc.process(pid) is None
    assert proc.start_ticks(pid) == one.ticks
    assert pid in proc.children(os.getpid())
    assert proc.environ(pid) == {}
    os.waitpid(pid, 0)
    assert proc.start_ticks(pid) is None
    assert proc.environ(pid) == {}
    assert not proc.send(one, signal.SIGKILL)


def test_signal_goes_to_exactly_one_process(sleeper: Callable[..., int]) -> None:
    one = proc.process(sleeper())
    assert one is not None
    assert not proc.send(one._replace(ticks=one.ticks + 1), signal.SIGKILL)
    assert os.waitpid(one.pid, os.WNOHANG) == (0, 0)
    assert proc.send(one, signal.SIGTERM)
    assert os.waitpid(one.pid, 0) == (one.pid, signal.SIGTERM)


def test_children_without_kernel_support(
    sleeper: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = proc._read

    def missing(path: str) -> bytes:
        if path.endswith("/children"):
            raise FileNotFoundError(path)
        return read(path)

    pid = sleeper()
    assert pid in proc.children(os.getpid())
    monkeypatch.setattr(proc, "_read", missing)
    assert pid in proc.children(os.getpid())


def test_environment(sleeper: Callable[..., int]) -> None:
    pid = sleeper({"A": "1=2", "B": ""})
    wait_for(lambda: proc.environ(pid) == {b"A": b"1=2", b"B": b""})


def test_number_is_carried_by_descendants_only(sleeper: Callable[..., int]) -> None:
    number = proc.random_mark()
    with proc.marked(number):
        marked = sleeper({})
    assert number >= proc.MARK_MIN
    assert proc.mark(marked) == number
    assert proc.mark(sleeper()) is None
    assert proc.mark(os.getpid()) is None
    assert proc.mark(0x7FFFFFFF) is None


def test_number_is_not_carried_where_the_limit_is_in_use(
    sleeper: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda limit: (1_000_000, 1_000_000))
    with proc.marked(proc.random_mark()):
        unmarked = sleeper()
    assert proc.mark(unmarked) is None


def test_tree_follows_parents_and_sessions() -> None:
    processes = {
        pid: Process(pid, ppid, sid, sid, 1)
        for pid, ppid, sid in [
            (1, 0, 1),
            (10, 1, 10),  # the root
            (11, 10, 10),
            (12, 11, 12),  # a child in a session of its own
            (13, 1, 12),  # whose parent died, in that session
            (14, 13, 14),
            (20, 1, 20),  # somebody else
            (21, 20, 20),
        ]
    }
    assert sorted(proc.tree(processes, [10, 99])) == [10, 11, 12, 13, 14]
    assert proc.tree(processes, []) == {}


def wait_for(condition: Callable[[], bool]) -> None:
    """Return once a process shows what it executes, which may be after its parent was told."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
