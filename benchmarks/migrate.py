"""Measure how long training stands still when it moves to another process.

    warm   the successor has imported, built, done a step without meaning, and listens; the source
           sends its state over TCP (loopback)
    cold   the job is told to end, writes a checkpoint, and a new process begins from it

Both in the same run, in turns, with states of 12, 100 and 300 MB. The pause is from the end of the
source's last mini-batch to the end of the successor's first, in phases as in Gandiva's Figure 12.
Milliseconds, medians. `--svg FILE` draws them. The checkpoint is on tmpfs if there is one.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

from skep_job.link.frames import FrameReader, encode  # noqa: E402
from skep_services import svg  # noqa: E402  the path is put right first

DEADLINE_S = 300.0
STEPS_BETWEEN = 5
"""Mini-batches that a process trains before it is moved."""
TOKEN = "bench"  # noqa: S105
COLOURS = {
    "boundary": "#bbbbbb",
    "send and load": "#2f6fb0",
    "save and exit": "#2f6fb0",
    "start": "#d9822b",
    "load": "#e8b23a",
    "resume": "#8a63b8",
    "first step": "#3a9a5b",
}


class Agent:
    """Listens where one process reports; keeps what it says with the time of its arrival."""

    def __init__(self, folder: Path) -> None:
        """Listen in `folder`."""
        self.path = folder / "agent.sock"
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._heard: list[tuple[int, dict[str, Any]]] = []
        self._changed = threading.Condition()
        self._peer: socket.socket | None = None
        threading.Thread(target=self._read, daemon=True).start()

    def hear(self, kind: str) -> tuple[int, dict[str, Any]]:
        """Return the first message of a type, and when it came (monotonic ns)."""
        with self._changed:
            found = self._changed.wait_for(lambda: self._find(kind), DEADLINE_S)
        if not found:
            raise TimeoutError(kind)
        return found

    def tell(self, **message: object) -> int:
        """Send an order; return when."""
        assert self._peer is not None
        now = time.monotonic_ns()
        self._peer.sendall(encode(message))
        return now

    def _find(self, kind: str) -> tuple[int, dict[str, Any]] | None:
        return next((each for each in self._heard if each[1]["type"] == kind), None)

    def _read(self) -> None:
        peer, _ = self._listener.accept()
        self._peer = peer
        frames = FrameReader()
        while data := peer.recv(65_536):
            now = time.monotonic_ns()
            with self._changed:
                self._heard += [(now, message) for message in frames.feed(data)]
                self._changed.notify_all()


class Job:
    """One process of the training."""

    def __init__(self, folder: Path, megabytes: int, attempt: int, awaits: str = "") -> None:
        """Start it."""
        home = folder / str(attempt)
        home.mkdir()
        self.agent = Agent(home)
        names = {
            "SKEP_SOCK": str(self.agent.path),
            "SKEP_JOB": "j1",
            "SKEP_GEN": str(attempt),
            "SKEP_CHECKPOINTS": str(folder / "checkpoints"),
            "SKEP_AWAITS": awaits,
            "SKEP_HOST": "127.0.0.1",
            "PYTHONPATH": str(ROOT / "libs"),
        }
        self.started_at = time.monotonic_ns()
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "benchmarks" / "jobs" / "migrate.py"), str(megabytes)],
            env=os.environ | names,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        self._lines: Iterator[str] = iter(self.process.stdout)
        self.last: dict[str, int] = {}

    def next(self, word: str) -> int:
        """Return when the next line of this word was written."""
        for line in self._lines:
            name, at = line.split()
            self.last[name] = int(at)
            if name == word:
                return int(at)
        raise EOFError(word)

    def rest(self) -> int:
        """Read to the end of the process; return when it was gone."""
        for line in self._lines:
            name, at = line.split()
            self.last[name] = int(at)
        self.process.wait()
        return time.monotonic_ns()

    def kill(self) -> None:
        """End it without a word."""
        self.process.kill()
        self.process.wait()


def options(parser: argparse.ArgumentParser) -> None:
    """Add what may be chosen."""
    parser.add_argument("--megabytes", type=int, nargs="*", default=[12, 100, 300])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--svg", type=Path, help="draw the phases into this file")


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Return the phases of both kinds of move for each size."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108  asked, not assumed
    sizes = {}
    for megabytes in given.megabytes:
        with tempfile.TemporaryDirectory(prefix="skep-", dir=base) as folder:
            sizes[str(megabytes)] = measure(Path(folder), megabytes, given.repeats)
    if given.svg is not None:
        given.svg.write_text(picture(sizes), encoding="utf-8")
    return {"unit": "ms", "tmpfs": base is not None, "megabytes": sizes}


def measure(folder: Path, megabytes: int, repeats: int) -> dict[str, Any]:
    """Return the phases of both kinds of move for one size."""
    rounds: dict[str, list[dict[str, float]]] = {"warm": [], "cold": []}
    attempt = 1
    job = Job(folder, megabytes, attempt)
    moved = 0
    try:
        for _ in range(repeats):
            successor, phases, moved = move_warm(folder, megabytes, job, attempt + 1)
            rounds["warm"].append(phases)
            job.kill()
            job, phases = restart_cold(folder, megabytes, successor, attempt + 2)
            rounds["cold"].append(phases)
            attempt += 2
    finally:
        job.kill()
    told: dict[str, Any] = {"bytes": moved}
    for kind, all_ in rounds.items():
        told[kind] = {name: _median(r[name] for r in all_) for name in all_[0]}
        told[f"{kind}_pauses"] = [round(each["pause"], 1) for each in all_]
    told["cold_over_warm"] = round(told["cold"]["pause"] / told["warm"]["pause"], 1)
    return told


def move_warm(
    folder: Path, megabytes: int, source: Job, attempt: int
) -> tuple[Job, dict[str, float], int]:
    """Move to a process that is ready; return it."""
    successor = Job(folder, megabytes, attempt, awaits=TOKEN)
    _, ready = successor.agent.hear("ready")
    for _ in range(STEPS_BETWEEN):
        source.next("step")
    # Its lines are read on from the side, so that the last of them is known.
    reader = threading.Thread(target=source.rest)
    reader.start()
    ordered = source.agent.tell(
        type="move", order=attempt, host="127.0.0.1", port=ready["port"], token=TOKEN
    )
    source.agent.hear("sent")
    loaded, message = successor.agent.hear("loaded")
    resumed = successor.agent.tell(type="resume", order=attempt)
    first = successor.next("step")
    stopped = source.last["step"]
    source.process.kill()
    reader.join()
    phases = {
        "boundary": stopped - ordered,
        "send and load": loaded - stopped,
        "resume": successor.last["begun"] - loaded,
        "first step": first - successor.last["begun"],
        "pause": first - stopped,
    }
    assert resumed >= loaded
    return successor, _ms(phases), int(message["bytes"])


def restart_cold(
    folder: Path, megabytes: int, job: Job, attempt: int
) -> tuple[Job, dict[str, float]]:
    """Have a job write a checkpoint and end, and begin another from it; return that."""
    for _ in range(STEPS_BETWEEN):
        job.next("step")
    ordered = time.monotonic_ns()
    job.process.terminate()
    gone = job.rest()
    stopped = job.last["step"]
    later = Job(folder, megabytes, attempt)
    first = later.next("step")
    built, _ = later.agent.hear("can")
    begun = later.last["begun"]
    phases = {
        "boundary": stopped - ordered,
        "save and exit": gone - stopped,
        "start": built - gone,
        "load": begun - built,
        "first step": first - begun,
        "pause": first - stopped,
    }
    return later, _ms(phases)


def picture(sizes: dict[str, Any]) -> str:
    """Return a chart: for each size a warm and a cold bar, in phases."""
    longest = max(each[kind]["pause"] for each in sizes.values() for kind in ("warm", "cold"))
    left, right, top = 150, 800, 90
    names = [name for name in COLOURS if name != "boundary"]
    parts = []
    for index, name in enumerate(names):
        x = 20 + 140 * index
        parts += [svg.box(x, 46, 12, 12, COLOURS[name]), svg.text(x + 17, 57, name)]
    y = float(top)
    for megabytes, each in sizes.items():
        for kind in ("warm", "cold"):
            parts.append(svg.text(left - 10, y + 15, f"{megabytes} MB, {kind}", anchor="end"))
            at = float(left)
            for name in names:
                width = each[kind].get(name, 0.0) / longest * (right - left)
                parts.append(svg.box(at, y, width, 20, COLOURS[name]))
                at += width
            parts.append(svg.text(at + 6, y + 15, f"{each[kind]['pause']:.0f} ms"))
            y += 26
        y += 12
    return svg.page(880, round(y) + 10, "How long training stands still when it moves", parts)


def _median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 1)


def _ms(phases: dict[str, int]) -> dict[str, float]:
    return {name: ns / 1e6 for name, ns in phases.items()}
