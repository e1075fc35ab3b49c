"""Freezing real process trees, by a control group and by signals."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skep_services.agent import proc, runner_freeze
from skep_services.agent.proc import Process
from tests import needs

DEADLINE_S = 60.0
FAMILY = "sleep 1000 & (setsid sleep 1000 &) ; exec sleep 1000"


@pytest.fixture
def members() -> Iterator[Callable[[], list[Process]]]:
    """Start a family of three, one of them in a session of its own; find its living members."""
    needs.require("setsid")
    number = proc.random_mark()
    with proc.marked(number):
        main = subprocess.Popen(["sh", "-c", FAMILY], start_new_session=True)

    def find() -> list[Process]:
        return [one for one in proc.processes().values() if proc.mark(one.pid) == number]

    deadline = time.monotonic() + DEADLINE_S
    while len([one for one in find() if proc.command_line(one.pid) == "sleep 1000"]) < 3:
        assert time.monotonic() < deadline
        os.sched_yield()
    yield find
    for one in find():
        proc.send(one, signal.SIGKILL)
    main.wait()


def states(found: list[Process]) -> list[str]:
    texts = [Path(f"/proc/{one.pid}/stat").read_text() for one in found]
    return [text.rpartition(")")[2].split()[0] for text in texts]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()


def test_signals_stop_and_continue_all(members: Callable[[], list[Process]]) -> None:
    assert runner_freeze.stop_all(members) == ""
    until(lambda: states(members()) == ["T"] * 3)
    runner_freeze.continue_all(members)
    until(lambda: "T" not in states(members()))


def test_a_tree_that_forks_for_ever_is_given_up_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_freeze, "FREEZE_SECONDS_MAX", 0.01)
    ticks = iter(range(10**9))
    text = runner_freeze.stop_all(lambda: [Process(2**30, 1, 1, 1, next(ticks))])
    assert "fork faster than they are stopped" in text


def test_a_control_group_freezes_without_a_signal(members: Callable[[], list[Process]]) -> None:
    group = runner_freeze.group_for(proc.random_mark())
    if not group:
        needs.skip("control groups of version 2 may not be made here")
    try:
        assert runner_freeze.freeze_group(group, members) == ""
        assert "frozen 1" in Path(group, "cgroup.events").read_text()
        assert "T" not in states(members())
        inside = Path(group, "cgroup.procs").read_text().split()
        assert sorted(map(int, inside)) == sorted(one.pid for one in members())
        assert runner_freeze.freeze_group(group, members) == ""
        assert runner_freeze.thaw_group(group) == ""
        until(lambda: "frozen 0" in Path(group, "cgroup.events").read_text())
    finally:
        runner_freeze.thaw_group(group)
        for one in members():
            proc.send(one, signal.SIGKILL)
        until(lambda: not members() and "populated 0" in Path(group, "cgroup.events").read_text())
        runner_freeze.remove(group)
    assert not Path(group).exists()
    assert runner_freeze.thaw_group(group) == ""
    assert runner_freeze.freeze_group(group, list) != ""


def test_where_there_is_no_place_there_is_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_freeze, "_home", lambda: "")
    assert runner_freeze.group_for(1) == ""
    monkeypatch.setattr(runner_freeze, "_home", lambda: "/proc/self")
    assert runner_freeze.group_for(1) == ""


def test_a_folder_that_is_no_control_group_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_freeze, "_home", lambda: str(tmp_path))
    assert runner_freeze.group_for(1) == ""
    assert list(tmp_path.iterdir()) == []
