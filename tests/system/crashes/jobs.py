"""The jobs that the matrix is played with: what they noted, and how they stand by the facts."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.system.crashes.judge import Begun, Fact, Line, Step, read_lines

SCRIPT = Path(__file__).parents[2] / "e2e" / "jobs" / "trajectory.py"
WARM_SCRIPT = SCRIPT.with_name("warm_trajectory.py")
"""The same, forked: its imports come first."""
PAUSE_S = 0.02
RETRIES = 100
"""The most that a spec may ask for: each cell that kills a rank uses one."""


class Stands(NamedTuple):
    """How a job stands."""

    attempt: int = 0
    nodes: tuple[str, ...] = ()
    ran: bool = False
    suspended: bool = False
    workers: int = 1
    can: tuple[str, ...] = ()
    end: str = ""


def stands(facts: Sequence[Fact]) -> Stands:
    """Return how a job stands by the allocator's facts about it, in order. Pure."""
    now = Stands()
    wanted: Mapping[str, Any] = {}
    successors: dict[int, tuple[str, ...]] = {}
    known: dict[int, tuple[str, ...]] = {}
    for fact in facts:
        match fact["type"]:
            case "job-bound":
                nodes = tuple(member["node"] for member in fact["members"])
                workers = sum(len(member["devices"]) for member in fact["members"])
                now = Stands(fact["attempt"], nodes, workers=workers)
            case "successor-bound":
                successors[fact["attempt"]] = tuple(m["node"] for m in fact["members"])
            case "job-moved":
                now = now._replace(attempt=fact["attempt"], nodes=successors[fact["attempt"]])
            case "job-ran":
                now = now._replace(ran=True)
            case "job-requeued":
                now = Stands(now.attempt)
            case "member-learned":
                known[fact["attempt"]] = tuple(fact["can"])
            case "job-changing":
                wanted = fact["change"]
            case "job-changed" if fact["result"] == "done":
                now = _changed(now, fact, wanted)
            case "job-ended":
                now = now._replace(end=fact["end"])
            case _:
                pass
    return now._replace(can=known.get(now.attempt, ()))


def _changed(now: Stands, fact: Fact, wanted: Mapping[str, Any]) -> Stands:
    match fact["goal"]:
        case "suspend":
            return now._replace(suspended=True)
        case "resume":
            return now._replace(suspended=False)
        case "resize":
            return now._replace(workers=wanted["world"])
        case _:
            return now


GANGS = ("elastic", "sharded")
"""Kinds of jobs that change their size: sums over ranks are added in another order."""


def script(kind: str) -> dict[str, Any]:
    """Return what of a job's specification depends on its kind alone."""
    if kind == "warm":
        return {"script": str(WARM_SCRIPT), "args": ["cooperative"]}
    return {"script": str(SCRIPT), "args": [kind]}


class Job:
    """One job, and the notes of its ranks."""

    def __init__(self, kind: str, folder: Path, number: int) -> None:
        """Prepare; it is not submitted yet."""
        self.kind, self.name = kind, f"{kind}-{number}"
        self.notes = folder / self.name
        self.id = ""
        self.adopted = False
        """A runner of its processes was killed."""
        self.spent = False
        """No warm process is made for it again soon."""
        self.strange: set[int] = set()
        """Warm processes that were there before: they are of other jobs."""
        self._read: dict[Path, tuple[int, list[Line]]] = {}
        self._begun: dict[int, list[Begun]] = {}

    def spec(self, vc: str) -> dict[str, Any]:
        """Return what to submit."""
        more: dict[str, Any] = {"elastic": {"min": 1, "max": 4}} if self.kind in GANGS else {}
        return {
            "name": self.name,
            "vc": vc,
            **script(self.kind),
            "env": {"NOTES": str(self.notes), "PAUSE_S": str(PAUSE_S)},
            "limits": {"retries": RETRIES},
            **more,
        }

    def lines(self) -> dict[int, list[Line]]:
        """Return what its ranks noted so far."""
        found = {}
        for path in self.notes.parent.glob(f"{self.name}.*"):
            rank = path.suffix[1:]
            if rank.isdecimal():
                found[int(rank)] = self._lines(path, int(rank))
        return found

    def _lines(self, path: Path, rank: int) -> list[Line]:
        at, lines = self._read.get(path, (0, []))
        with path.open("rb") as file:
            file.seek(at)
            whole = file.read().rpartition(b"\n")
        text = whole[0] + whole[1]
        news = read_lines(rank, text.decode())
        lines += news
        self._begun.setdefault(rank, []).extend(one for one in news if isinstance(one, Begun))
        self._read[path] = (at + len(text), lines)
        return lines

    def latest(self, rank: int = 0) -> Step | None:
        """Return the last mini-batch of a rank, or None."""
        lines = self._lines_of(rank)
        return next((line for line in reversed(lines) if isinstance(line, Step)), None)

    def begun(self, attempt: int, rank: int = 0) -> list[int]:
        """Return the processes that were a rank of an attempt, in order."""
        self._lines_of(rank)
        return [one.pid for one in self._begun.get(rank, ()) if one.attempt == attempt]

    def _lines_of(self, rank: int) -> list[Line]:
        path = Path(f"{self.notes}.{rank}")
        return self._lines(path, rank) if path.exists() else []

    def processes(self) -> list[int]:
        """Return every process that it ever had."""
        return [
            line.pid for lines in self.lines().values() for line in lines if isinstance(line, Begun)
        ]

    def stop(self, step: int) -> None:
        """Have its training end after a mini-batch."""
        part = self.notes.with_suffix(".part")
        part.write_text(str(step))
        part.rename(self.notes.with_suffix(".stop"))


class Reference:
    """An uninterrupted run of the same script without Skep."""

    def __init__(self, kind: str, folder: Path, steps: int) -> None:
        """Start it; it ends after so many mini-batches."""
        self.kind, self.steps = kind, steps
        self._notes = folder / f"reference-{kind}"
        self._notes.with_suffix(".stop").write_text(str(steps))
        own = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SKEP_", "RANK", "WORLD"))
        }
        run = script(kind)
        self._process = subprocess.Popen(
            [sys.executable, run["script"], *run["args"]],
            env=own | {"NOTES": str(self._notes), "PAUSE_S": "0"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def totals(self) -> list[float]:
        """Wait for its end; return the sum after each mini-batch (0: unused)."""
        _, words = self._process.communicate()
        if self._process.returncode:
            text = f"the uninterrupted run of {self.kind} failed: {words}"
            raise RuntimeError(text)
        lines = read_lines(0, self._notes.with_suffix(".0").read_text())
        return [math.nan, *(line.total for line in lines if isinstance(line, Step))]

    def kill(self) -> None:
        """End it early."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
