"""Tasks dealt to workers: results by place, lost workers, other programs, an early end."""

from __future__ import annotations

import re
import sys
from collections import deque
from pathlib import Path

import msgspec
import pytest

from skep_services.cli import exits, on
from skep_services.cli.exits import CommandError
from skep_services.cli.main import main
from skep_services.engines import deal as dealing
from skep_services.engines import task as tasks_of
from skep_services.engines.deal import Ear, Gone, Output, Part, Ready, Word
from skep_services.engines.processes import Processes
from skep_services.engines.ray_actors import connect
from skep_services.engines.stop import SIGNALS
from skep_services.engines.task import (
    About,
    DiedError,
    DiffersError,
    EngineError,
    FailedError,
    Task,
    UnusableError,
    about,
    difference,
    outcome,
)
from skep_services.simulations import models
from skep_services.simulations.inputs import WrongError
from tests import engine_kit
from tests.engine_kit import Kept, run, task


class Scripted:
    """Workers that do what they are told at once, but for those that `dies` names by number."""

    def __init__(self, *, dies: tuple[int, ...] = (), preempted: tuple[int, ...] = ()) -> None:
        self.dies, self.preempted = dies, preempted
        self.words: deque[Word] = deque()
        self.given: list[tuple[int, str]] = []
        self.killed: bool | None = None
        self.stopped: list[int] = []
        self.program: About | None = None
        self.absent = False

    def hire(self, worker: int) -> None:
        there = Ready(worker, f"w{worker}", self.program)
        self.words.append(Gone(worker, f"w{worker}", "ended with 1") if self.absent else there)

    def give(self, worker: int, task: Task) -> None:
        self.given.append((worker, task.label))
        first = [each for each, _ in self.given].count(worker) == 1
        if worker in self.dies:
            self.words.append(Gone(worker, f"w{worker}", "was killed by SIGKILL"))
        elif worker in self.preempted and first:
            self.words.append(Gone(worker, f"w{worker}", "was stopped by the cluster", True))
            self.words.append(Ready(worker, f"w{worker}"))
        else:
            self.words += [Part(worker, 0.5), Output(worker, outcome(task, lambda _: True))]

    def hear(self, within_s: float) -> list[Word]:
        words, self.words = list(self.words), deque()
        assert words, "it would wait for ever"
        return words

    def stop(self, worker: int) -> None:
        self.stopped.append(worker)

    def close(self, *, kill: bool) -> None:
        self.killed = kill


def dealt(crew: Scripted, count: int, workers: int = 2, work: str = "twice") -> Kept:
    tasks = [task(f"seed {n}", getattr(engine_kit, work), b"%d" % n) for n in range(count)]
    kept = Kept(count)
    ear = Ear(kept.take, kept.tell, kept.said.append)
    dealing.deal(crew, tasks, workers, ear, kept.stop)
    return kept


def test_every_result_has_the_place_of_its_task() -> None:
    crew = Scripted()
    kept = dealt(crew, 5, workers=3)
    assert kept.results == [b"%d%d" % (n, n) for n in range(5)]
    assert kept.parts[-1] == [1.0] * 5
    assert crew.killed is False
    assert {worker for worker, _ in crew.given} == {1, 2, 3}


def test_the_task_of_a_worker_that_died_is_run_by_another_and_the_worker_is_named() -> None:
    crew = Scripted(dies=(2,))
    kept = dealt(crew, 4)
    assert kept.results == [b"%d%d" % (n, n) for n in range(4)]
    assert kept.said == ["w2 was killed by SIGKILL: the run 'seed 1' is run again"]
    assert [label for _, label in crew.given].count("seed 1") == 2


def test_a_task_that_costs_two_workers_ends_all() -> None:
    crew = Scripted(dies=(1, 2, 3))
    with pytest.raises(DiedError, match="'seed 0' ended without a result: w2 was killed"):
        dealt(crew, 1)
    assert crew.killed is True


def test_a_worker_that_the_cluster_stopped_costs_its_task_nothing() -> None:
    crew = Scripted(preempted=(1,), dies=(2,))
    kept = dealt(crew, 1, workers=1)
    assert kept.results == [b"00"]
    assert [worker for worker, _ in crew.given] == [1, 1]


def test_a_worker_that_ends_before_it_is_there_ends_all() -> None:
    crew = Scripted()
    crew.absent = True
    with pytest.raises(DiedError, match="w1 ended with 1 before it ran anything"):
        dealt(crew, 1)


def test_a_task_that_raises_ends_all_and_is_named_with_its_seed() -> None:
    crew = Scripted()
    with pytest.raises(
        FailedError, match=r"^the run 'seed 0' failed on w1: ValueError: no such ce"
    ) as told:
        dealt(crew, 3, work="fails")
    assert "\n" not in str(told.value)
    assert "and more about it" in told.value.trace
    assert crew.killed is True


def test_damaged_results_are_not_taken() -> None:
    one = task("seed 3", engine_kit.twice, b"x")
    sent = outcome(one, lambda _: True)
    assert tasks_of.result_of(one, sent, "w1") == b"xx"
    for wrong in (sent[:-1], sent + b".", sent[:-1] + b"y", b"", b"?" + sent[1:]):
        with pytest.raises(EngineError, match="'seed 3': its result came damaged from w1"):
            tasks_of.result_of(one, wrong, "w1")


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"python": "3.1.4"}, "Python 3.1.4, and this command"),
        ({"skep": "0.0.1"}, "Skep 0.0.1, and this command"),
        ({"skep": ""}, "has no Skep: install skep"),
        ({"program": "other"}, "has other code"),
    ],
)
def test_other_programs_are_refused_in_one_line(changes: dict[str, str], said: str) -> None:
    crew = Scripted()
    crew.program = msgspec.structs.replace(about(), **changes)
    with pytest.raises(DiffersError, match=f"w1 cannot be used: .*{said}") as told:
        dealt(crew, 1)
    assert "\n" not in str(told.value)


def test_patch_versions_of_python_are_no_difference() -> None:
    here = about()
    patch = msgspec.structs.replace(here, python=here.python.rpartition(".")[0] + ".99")
    assert difference(here, patch) == ""


def test_processes_come_to_the_same_in_order_and_are_told_apart() -> None:
    tasks = [task(f"seed {n}", engine_kit.twice, b"%d" % n, b"-") for n in range(5)]
    here, there = (run(Processes(number), tasks) for number in (1, 2))
    assert here.results == there.results == [b"%d-%d-" % (n, n) for n in range(5)]
    assert here.said == there.said == []


def test_a_process_that_is_killed_is_named_and_its_task_is_run_again(tmp_path: Path) -> None:
    path = str(tmp_path / "died").encode()
    tasks = [task("seed 0", engine_kit.dies_once, path), task("seed 1", engine_kit.twice, b"1")]
    kept = run(Processes(2), tasks)
    assert kept.results == [b"alive", b"11"]
    assert [re.sub(r"\d{2,}", "N", line) for line in kept.said] == [
        "process N was killed by SIGKILL: the run 'seed 0' is run again"
    ]


def test_a_task_that_kills_its_process_ends_all() -> None:
    tasks = [task(f"seed {n}", engine_kit.dies) for n in range(2)]
    with pytest.raises(
        DiedError, match=r"'seed \d' ended without a result: process \d+ was killed"
    ):
        run(Processes(2), tasks)


def test_tasks_that_watch_end_early_and_tell_and_the_deaf_are_killed(tmp_path: Path) -> None:
    there = [tmp_path / name for name in "ab"]
    tasks = [
        task("a", engine_kit.waits, str(there[0]).encode()),
        task("b", engine_kit.deaf, str(there[1]).encode(), watches=False),
        task("c", engine_kit.twice, b"never"),
    ]
    kept = run(Processes(2), tasks, lambda: all(each.exists() for each in there))
    assert kept.results == [b"cut", None, None]


def test_workers_leave_it_to_the_command_to_hear_signals() -> None:
    """A terminal sends them to all its processes, `timeout` and systemd to all that they began."""
    signals = bytes(SIGNALS)
    kept = run(Processes(2), [task(name, engine_kit.hears, signals) for name in "ab"])
    assert kept.results == [signals, signals]


def test_measurements_have_the_same_digest_in_whatever_order_they_are_kept() -> None:
    one = {("a", 1): {2.0, 1.0}, "b": [1, {"c": 2}]}
    other = {"b": [1, {"c": 2}], ("a", 1): {1.0, 2.0}}
    assert models._plain(one) == models._plain(other)
    assert models.measured_digest("steady") == models.measured_digest("papers") == ""
    with pytest.raises(WrongError):
        models.measured_digest("no-such")


SIM = ("sim", "run", "--trace", "sched2:jobs=5", "--cluster", "1x8")


@pytest.mark.parametrize(
    "words, code, said",
    [
        (("--on", "mars"), exits.USAGE, "--on mars: write processes, ray, HOST:PORT"),
        (("--on", "ray", "--processes", "2"), exits.USAGE, "with --on ray it is --workers"),
        (("--workers", "2"), exits.USAGE, "--workers and --listen go with --on"),
        (("--on", "ray", "--listen", "x"), exits.USAGE, "--listen goes with --on skep"),
        (("--on", "ray", "--workers", "-1"), exits.USAGE, "1 or more"),
        (("--on", "ray://x:y"), exits.USAGE, "write ray://HOST:PORT"),
        (("--on", "ray://127.0.0.1"), exits.USAGE, "write ray://HOST:PORT"),
        (("--on", "skep"), exits.UNREACHABLE, "no cluster here"),
    ],
)
def test_wrong_words_are_refused_in_one_line(
    words: tuple[str, ...],
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SKEP_API", raising=False)
    assert main([*SIM, *words, "--home", str(tmp_path)]) == code
    assert any(said in line for line in capsys.readouterr().err.splitlines())


@pytest.mark.parametrize(
    "text, found",
    [
        ("10.0.0.5", ("10.0.0.5", 0)),
        ("head.lan:7000", ("head.lan", 7000)),
        ("[fe80::1]:7000", ("fe80::1", 7000)),
        ("0.0.0.0:7000", None),
        ("head:70000", None),
        ("a:b:c", None),
        (":7000", None),
    ],
)
def test_where_to_listen_is_one_address(text: str, found: tuple[str, int] | None) -> None:
    if found is not None:
        assert on._listen(text) == found
    else:
        with pytest.raises(CommandError, match="the address by which nodes reach this machine"):
            on._listen(text)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        UnusableError, match=r"Ray is not installed here; pip install 'skep\[ray\]'"
    ):
        connect("ray://127.0.0.1:1")
