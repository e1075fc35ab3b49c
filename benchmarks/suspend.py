"""Measure what suspending a training job costs.

    python -m benchmarks suspend                       by phase, for several sizes of state
    python -m benchmarks suspend --rounds 3            and six jobs on four slots, in turns

A suspension by phase: `boundary` (order sent to stopped), `offload` (state to the host's memory),
`freeze` (the process stopped); `thaw`, `take_back`, `first_step` (from resumed to the end of the
next mini-batch). `lost` is what a switch costs the slot: the wait for the boundary is training. All
times are milliseconds, of a real process under a real socket, with as many repetitions as asked.

With `--rounds`, six jobs share four slots: `sliced` has two of the four give way at every quantum,
in turns, with release; `control` has the same four run as long undisturbed. Both are counted in
mini-batches, alternate, and are compared pair by pair; 95 % interval by Student's t. On a machine
with fewer cores than slots, or with neighbours, `cost_percent_of_cpu` (the jobs' own processor time
per mini-batch) says more than `cost_percent` (mini-batches in equal time). `switch` compares each
switch with the seconds around it (`switch_loss`), which a machine's drifting pace does not touch.

`--svg PATH` draws the phases as bars.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._sample import extremes, say
from skep_services import svg
from tests.support.job_agent import Message
from tests.support.suspend_kit import Driver, driver
from tests.support.switch_loss import NS, Window, lost_s

MB = 1_000_000
SIZES_MB = (12, 100, 300)
TIMES = 7
QUANTUM_S = 60.0
JOBS, SLOTS = 6, 4
PHASES = ("boundary", "offload", "freeze", "thaw", "take_back", "first_step")
LABELS = ("stop", "offload", "freeze", "thaw", "restore", "first step")
COLOURS = ("#bbb", "#3b7dd8", "#7fb2f0", "#f2b880", "#e07b39", "#9a5")
STUDENT_T = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
"""The 97.5 % points for so many degrees of freedom."""

TRAIN = """
import sys, time
import torch
torch.set_num_threads(1)
width, count = 1024, max(1, round(float(sys.argv[1]) * 1e6 / 4 / 4 / 1024**2))
if float(sys.argv[1]) < 50:
    width, count = 512, max(1, round(float(sys.argv[1]) * 1e6 / 4 / 4 / 512**2))
model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(count)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)  # Weights, gradients, two moments.
x = torch.randn(8, width)
while True:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    if len(sys.argv) > 2:
        print(time.monotonic_ns(), flush=True)
"""


def options(parser: argparse.ArgumentParser) -> None:
    """Add what may be chosen."""
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES_MB, metavar="MB")
    parser.add_argument("--times", type=int, default=TIMES, help="suspensions of each size")
    parser.add_argument("--rounds", type=int, default=0, help="pairs of six jobs on four slots")
    parser.add_argument("--quantum", type=float, default=QUANTUM_S, metavar="SECONDS")
    parser.add_argument("--share-mb", type=int, default=100, help="state of each of the six jobs")
    parser.add_argument("--svg", type=Path, help="where to draw the phases")


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Return each phase for each size, and with `--rounds` what taking turns costs."""
    result: dict[str, Any] = {"unit": "ms"}
    with tempfile.TemporaryDirectory(prefix="skep-bench-") as folder:
        script = Path(folder) / "train.py"
        script.write_text(TRAIN)
        sizes = {size: phases(script, size, given.times) for size in given.sizes}
        result["sizes"] = sizes
        result["switch_percent_of_quantum"] = {
            size: round(100 * figures["lost"]["median"] / 1e3 / given.quantum, 3)
            for size, figures in sizes.items()
        }
        if given.rounds:
            result["sharing"] = sharing(script, given)
    if given.svg:
        given.svg.write_text(chart(sizes))
    return result


# --- one job, by phase ----------------------------------------------------------------------------


class Steps:
    """Reads from a job when its mini-batches ended (monotonic ns)."""

    def __init__(self, job: Driver) -> None:
        self.ends: list[int] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._read, args=(job,), daemon=True).start()

    def after(self, begin: int) -> int:
        """Wait for the first mini-batch that ends after `begin`; return its end."""
        with self._changed:
            self._changed.wait_for(lambda: self.ends and self.ends[-1] > begin)
            return next(end for end in self.ends if end > begin)

    def median_ms(self) -> float:
        """Return how long a mini-batch takes."""
        with self._changed:
            ends = self.ends[-50:]
        return statistics.median((b - a) / 1e6 for a, b in itertools.pairwise(ends))

    def _read(self, job: Driver) -> None:
        stream = job.processes[0].stdout
        assert stream is not None
        for line in stream:
            with self._changed:
                self.ends.append(int(line))
                self._changed.notify_all()


def phases(script: Path, size_mb: int, times: int) -> dict[str, dict[str, float]]:
    """Suspend a job of this size `times` times; return each phase's figures (ms)."""
    found: dict[str, list[float]] = {name: [] for name in (*PHASES, "lost")}
    moved, residue = 0, 0
    with driver() as job:
        job.start([script, size_mb, "tell"])
        steps = Steps(job)
        job.wait_for_boundaries()
        steps.after(steps.after(0))
        for _ in range(times):
            steps.after(time.monotonic_ns())
            steps.after(steps.after(time.monotonic_ns()))
            step_ms = steps.median_ms()
            took, released = suspend_once(job, steps)
            moved, residue = released["moved"], released["residue"]
            for name, value in took.items():
                found[name].append(value)
            idle = sum(took[name] for name in PHASES if name != "boundary") - step_ms
            found["lost"].append(max(idle, 0.0))
    figures = {name: extremes(values, 2) for name, values in found.items()}
    host = {"moved": round(moved / MB, 1), "resident_after": round(residue / MB, 1)}
    return {**figures, "megabytes": host}


def suspend_once(job: Driver, steps: Steps) -> tuple[dict[str, float], Message]:
    """Go once through all phases; return their lengths (ms) and what was released."""
    pid = job.processes[0].pid
    took = {}
    took["boundary"], _ = timed(lambda: only(job.ask("suspend"), "suspended"))
    took["offload"], released = timed(lambda: only(job.ask("release"), "released"))
    took["freeze"], _ = timed(lambda: send_and_see(pid, signal.SIGSTOP, "T"))
    took["thaw"], _ = timed(lambda: send_and_see(pid, signal.SIGCONT, "SR"))
    took["take_back"], _ = timed(lambda: only(job.ask("resume"), "resumed"))
    now = time.monotonic_ns()
    # The mini-batch after which it stood tells its end only now; the one after that is meant.
    took["first_step"] = (steps.after(steps.after(now)) - now) / 1e6
    assert released is not None
    return took, released


def timed(act: Callable[[], Message | None]) -> tuple[float, Message | None]:
    """Return how long `act` takes (ms), and what it returns."""
    begin = time.monotonic_ns()
    outcome = act()
    return (time.monotonic_ns() - begin) / 1e6, outcome


def only(answers: list[Message], kind: str) -> Message:
    """Return the one answer; asserts that it is of this kind."""
    assert [answer["type"] for answer in answers] == [kind], answers
    return answers[0]


def send_and_see(pid: int, number: signal.Signals, states: str) -> None:
    """Send a signal, and wait until the process is in one of the states of /proc."""
    os.kill(pid, number)
    while Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in states:
        pass


# --- six jobs on four slots -----------------------------------------------------------------------


class Round(NamedTuple):
    """What all jobs together did in a round."""

    mini_batches: int
    cpu_s: float


class Sharing:
    """Six jobs, of which at most four run."""

    def __init__(self, jobs: list[Driver]) -> None:
        self.jobs = jobs
        self.told = [Steps(job) for job in jobs]
        self.steps = [0] * len(jobs)
        self.switch_ms: list[float] = []
        self.switched_at: list[int] = []
        self._pool = ThreadPoolExecutor(JOBS)

    def stop(self, which: Sequence[int]) -> None:
        """Suspend these at the same time and have them give back their memory."""

        def one(number: int) -> None:
            self.steps[number] = only(self.jobs[number].ask("suspend"), "suspended")["step"]
            only(self.jobs[number].ask("release"), "released")

        list(self._pool.map(one, which))

    def go(self, which: Sequence[int]) -> None:
        """Let these go on, all at the same time."""
        list(self._pool.map(lambda number: only(self.jobs[number].ask("resume"), "resumed"), which))

    def control(self, seconds: float) -> Round:
        """Run the first four undisturbed."""
        return self._counted(lambda: self._quanta([range(SLOTS)], seconds))

    def sliced(self, quantum_s: float) -> Round:
        """Run every job for two quanta of three."""
        shifts = [[(first + n) % JOBS for n in range(SLOTS)] for first in range(0, JOBS, 2)]
        return self._counted(lambda: self._quanta(shifts, quantum_s))

    def _counted(self, run: Callable[[], None]) -> Round:
        before, cpu_before = sum(self.steps), self._cpu_s()
        run()
        return Round(sum(self.steps) - before, round(self._cpu_s() - cpu_before, 2))

    def _cpu_s(self) -> float:
        """Return the processor time all jobs have had so far."""
        ticks = 0
        for job in self.jobs:
            stat = Path(f"/proc/{job.processes[0].pid}/stat").read_text().rpartition(") ")[2]
            ticks += sum(map(int, stat.split()[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def lost_s(self, quantum_s: float) -> list[float]:
        """Return what each switch cost, in seconds of all slots' work."""
        ends = sorted(end for steps in self.told for end in steps.ends)
        felt = min(Window().felt, quantum_s / 4)
        window = Window(felt, min(Window().pace, quantum_s - 2 * felt))
        return [lost_s(ends, at, window) for at in self.switched_at]

    def _quanta(self, shifts: Sequence[Sequence[int]], quantum_s: float) -> None:
        # The time of the switches is within the quanta: both kinds of round last as long.
        end = time.monotonic()
        running: Sequence[int] = []
        for shift in shifts:
            begin = time.monotonic()
            self.stop([number for number in running if number not in shift])
            self.go([number for number in shift if number not in running])
            if running:
                self.switch_ms.append((time.monotonic() - begin) * 1e3)
                self.switched_at.append(round(begin * NS))
            running = shift
            end += quantum_s
            time.sleep(max(0.0, end - time.monotonic()))
        self.stop(running)


def sharing(script: Path, given: argparse.Namespace) -> dict[str, object]:
    """Run the rounds; return the cost of sharing in percent of the mini-batches."""
    say(f"about {given.rounds * 6 * given.quantum / 60:.1f} min of rounds")
    rounds = []
    with six(script, given.share_mb) as jobs:
        both = Sharing(jobs)
        both.stop(range(JOBS))
        both.control(min(5.0, given.quantum))  # Warm: not counted.
        for number in range(given.rounds):
            order = ("control", "sliced") if number % 2 == 0 else ("sliced", "control")
            counted = {}
            for kind in order:
                counted[kind] = (
                    both.control(3 * given.quantum)
                    if kind == "control"
                    else both.sliced(given.quantum)
                )
            rounds.append(counted)
    costs = [
        100 * (1 - pair["sliced"].mini_batches / pair["control"].mini_batches) for pair in rounds
    ]
    cpu = [100 * (per_batch(pair["sliced"]) / per_batch(pair["control"]) - 1) for pair in rounds]
    return {
        "jobs": JOBS,
        "slots": SLOTS,
        "cores": len(os.sched_getaffinity(0)),
        "state_mb": given.share_mb,
        "quantum_s": given.quantum,
        "rounds": [{kind: one._asdict() for kind, one in pair.items()} for pair in rounds],
        "switch_of_two_jobs_ms": extremes(both.switch_ms, 2),
        "switch": cost_of_switches(both.lost_s(given.quantum), given.quantum),
        "cost_percent": interval(costs),
        "cost_percent_of_cpu": interval(cpu),
    }


def cost_of_switches(lost: Sequence[float], quantum_s: float) -> dict[str, object]:
    """Return what a switch costs: seconds of all slots' work, and percent of quanta."""
    return {
        "switches": len(lost),
        "lost_s": interval(lost),
        "percent_of_quantum": interval([100 * each / quantum_s for each in lost]),
        "percent_of_60_s": interval([100 * each / QUANTUM_S for each in lost]),
    }


def per_batch(one: Round) -> float:
    """Return the processor time of a mini-batch."""
    return one.cpu_s / one.mini_batches


@contextlib.contextmanager
def six(script: Path, size_mb: int) -> Iterator[list[Driver]]:
    """Yield six running jobs, each with an agent's socket of its own."""
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(driver()) for _ in range(JOBS)]
        for job in jobs:
            job.start([script, size_mb, "tell"])
        for job in jobs:
            job.wait_for_boundaries()
        yield jobs


def interval(values: Sequence[float]) -> dict[str, float | None]:
    """Return the mean and the half-width of its 95 % interval (None for a single value)."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return {"mean": round(mean, 3), "plus_minus": None}
    t = STUDENT_T.get(len(values) - 1, 1.96)
    half = t * statistics.stdev(values) / math.sqrt(len(values))
    return {"mean": round(mean, 3), "plus_minus": round(half, 3)}


# --- the picture ----------------------------------------------------------------------------------


def chart(sizes: dict[int, dict[str, dict[str, float]]]) -> str:
    """Return bars of the median phases, one bar per size."""
    width, left, right, row = 900, 110, 780, 56
    totals = [sum(figures[name]["median"] for name in PHASES) for figures in sizes.values()]
    scale = (right - left) / max(totals)
    parts = svg.legend(width - 16, list(zip(LABELS, COLOURS, strict=True)))
    for number, (size, figures) in enumerate(sizes.items()):
        y, x = 80 + number * row, float(left)
        parts.append(svg.text(left - 10, y + 22, f"{size} MB", anchor="end"))
        for name, colour in zip(PHASES, COLOURS, strict=True):
            length = figures[name]["median"] * scale
            parts.append(svg.box(x, y, length, row - 22, colour))
            x += length
        parts.append(svg.text(x + 8, y + 22, f"{totals[number]:.0f} ms"))
    note = "medians; until the boundary, and in the first step, the job trains"
    parts.append(svg.text(16, 54, note, fill=svg.FAINT))
    title = "A suspension by phase"
    return svg.page(width, 100 + len(sizes) * row, title, parts)
