"""What of a mini-batch is a rank's own time, by clocks that are set here and on real ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from skep_job.observe.own_time import PENDING_MAX, SAMPLES_MIN, Own, OwnTime

GANG = Path(__file__).parents[1] / "system" / "library_jobs" / "own_times.py"


MS = 1_000_000


class Clocks:
    """A wall clock and the CPU time of the thread."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0

    def run(self, wall: int, cpu: int = 0) -> None:
        """Let so many milliseconds pass."""
        self.wall += wall * MS
        self.cpu += cpu * MS


class Work:
    """Stands for a collective that others keep waiting."""

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks

    def wait(self, wall: int) -> str:
        self.clocks.run(wall)
        return "over"


def hooked() -> tuple[OwnTime, Clocks, Any]:
    """Return a measurement, its clocks, and what it has hooked into."""
    clocks = Clocks()
    own = OwnTime(lambda: clocks.wall, lambda: clocks.cpu)
    own.turn(on=True)

    class Batches:
        def __next__(self) -> str:
            clocks.run(7)
            return "rows"

    def backward(wall: int, cpu: int, then: Any = None) -> str:
        clocks.run(wall, cpu)
        if then is not None:
            then()
        return "gradients"

    torch = ModuleType("torch")
    vars(torch).update(_BaseDataLoaderIter=Batches, backward=backward, Work=type("W", (Work,), {}))
    own.hook_loaders(torch)
    own.hook_backward(torch)
    own.hook_waits(torch)
    return own, clocks, torch


def test_what_a_rank_waits_for_others_is_not_its_own() -> None:
    own, clocks, torch = hooked()
    assert own.medians() is None
    for _ in range(SAMPLES_MIN + 1):
        assert next(torch._BaseDataLoaderIter()) == "rows"
        clocks.run(20)  # The forward pass.
        work = torch.Work(clocks)
        assert torch.backward(50, 11, lambda work=work: work.wait(400)) == "gradients"
        assert work.wait(900) == "over"
        own.end(clocks.wall)
    assert own.medians() == Own(own_ns=(7 + 20 + 11) * MS, load_ns=7 * MS)


def test_of_short_mini_batches_some_are_measured_and_of_a_rank_alone_none() -> None:
    own, clocks, torch = hooked()
    for number in range(2000):
        if number == 1000:
            assert own.medians() == Own(own_ns=MS, load_ns=0)
            assert len(own._samples) == 50, "one in 20 ms: that is one in 20 mini-batches"
            own.turn(on=False)
            own.turn(on=False)
        clocks.run(1)
        own.end(clocks.wall)
    assert len(own._samples) == 50
    assert torch.backward(50, 5) == "gradients"


def test_other_threads_pauses_and_errors_change_nothing() -> None:
    own, clocks, torch = hooked()
    for _ in range(SAMPLES_MIN + 1):
        thread = threading.Thread(target=torch.Work(clocks).wait, args=(0,))
        thread.start()
        thread.join()
        with pytest.raises(ZeroDivisionError):
            torch.backward(50, 5, lambda: 1 // 0)
        clocks.run(10)
        own.end(clocks.wall)
        clocks.run(10**6)  # It stood still on request.
        own.pass_over(10**6 * MS)
    assert own.medians() == Own(own_ns=15 * MS, load_ns=0)


def test_the_calls_of_a_rank_alone_are_torch_s_own() -> None:
    """They cost it nothing; once others are there they are measured."""

    def backward() -> str:
        return "gradients"

    own, torch = OwnTime(), ModuleType("torch")
    vars(torch).update(backward=backward)
    own.hook_backward(torch)
    own.turn(on=False)
    assert torch.backward is backward
    own.turn(on=True)
    assert torch.backward is not backward
    assert torch.backward() == "gradients"


def test_a_torch_of_another_form_is_left_alone() -> None:
    own = OwnTime()
    own.turn(on=True)
    other = ModuleType("torch")
    own.hook_waits(other)
    own.hook_backward(other)
    own.hook_loaders(other)
    for now in range(SAMPLES_MIN + 2):
        own.end(now * 100 * MS)
    assert own.medians() is None


class Event:
    """Stands for an event of a device that is always far behind, or never."""

    made: int = 0
    done = True

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        Event.made += 1

    def record(self) -> None:
        self.recorded = True

    def query(self) -> bool:
        return Event.done

    def elapsed_time(self, other: Event) -> float:
        assert self.recorded
        assert other.recorded
        return 1.5


@pytest.mark.parametrize("done", [True, False])
def test_on_a_device_events_say_it_and_their_number_is_bounded(
    monkeypatch: pytest.MonkeyPatch, *, done: bool
) -> None:
    monkeypatch.setattr(Event, "made", 0)
    monkeypatch.setattr(Event, "done", done)
    cuda = SimpleNamespace(
        Event=Event, is_initialized=lambda: True, is_current_stream_capturing=lambda: False
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    own, clocks, torch = hooked()
    for _ in range(3 * PENDING_MAX):
        next(torch._BaseDataLoaderIter())
        torch.backward(50, 5)
        torch.backward(50, 5)
        own.end(clocks.wall)
    assert own.medians() == (Own(own_ns=1_500_000, load_ns=7 * MS) if done else None)
    assert Event.made == 2 * PENDING_MAX


def test_no_event_is_asked_during_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    capturing = False

    class Strict(Event):
        def record(self) -> None:
            assert not capturing
            super().record()

        def query(self) -> bool:
            assert not capturing
            return super().query()

    cuda = SimpleNamespace(
        Event=Strict, is_initialized=lambda: True, is_current_stream_capturing=lambda: capturing
    )
    monkeypatch.setattr(Event, "done", False)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    own, clocks, torch = hooked()
    for number in range(3 * SAMPLES_MIN):
        capturing = number % 3 == 2
        next(torch._BaseDataLoaderIter())
        torch.backward(50, 5)
        own.end(clocks.wall)
        monkeypatch.setattr(Event, "done", number > SAMPLES_MIN)
    capturing = False
    for _ in range(SAMPLES_MIN):
        torch.backward(50, 5)
        own.end(clocks.wall)
    assert own.medians() is not None, "the captures did not end the measurement"


@pytest.mark.torch
@pytest.mark.parametrize("thread_is_measured", [False, True])
def test_a_collective_that_is_written_in_python_does_not_call_itself(
    monkeypatch: pytest.MonkeyPatch, *, thread_is_measured: bool
) -> None:
    import torch.distributed as dist

    class Plain(dist.Work):
        pass

    class Further(dist.Work):
        def wait(self, *args: Any) -> bool:
            return super().wait(*args)

    for place, name in ((dist.Work, "wait"), (dist, "_broadcast_coalesced")):
        monkeypatch.setattr(place, name, getattr(place, name))  # As it was before, afterwards.
    own = OwnTime()
    own.turn(on=True)
    own.hook_waits(dist)
    assert getattr(dist.Work.wait, "_skep_own_time", False)
    if thread_is_measured:
        own.end(1)
    for kind in (Plain, Further):
        with pytest.raises(RuntimeError, match="timed out"):
            kind().wait(timedelta(milliseconds=1))


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["none", "forward", "load", "work"])
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_real_ranks_say_which_of_them_is_slow(kind: str, how: str, tmp_path: Path) -> None:
    environment = {**os.environ, "INIT": f"file://{tmp_path}/meet", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(GANG), kind, how, str(rank), "2"],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [json.loads(rank.communicate(timeout=120)[0].splitlines()[-1]) for rank in ranks]
    first, second = (each["own_ns"] for each in said)
    slow_ns = 0 if how == "none" else 20_000_000
    assert slow_ns * 0.7 <= second - first + (5_000_000 if how == "none" else 0)
    assert second - first < slow_ns + 30_000_000
    assert (said[1]["load_ns"] > 15_000_000) is (how == "load")
    assert said[0]["step_ns"] > second * 0.5, "all of them are as slow as the slowest"
