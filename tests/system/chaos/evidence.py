"""What a run leaves behind: what clients were told, what jobs noted, and the logs. No opinions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skep_services.ports import LogRecord

NS = 1_000_000_000


@dataclass
class Ack:
    """JetStream's acknowledgement: the message's sequence. `at` is monotonic ns."""

    sequence: int
    duplicate: bool
    at: int


@dataclass
class Told:
    """One idempotency key: what was asked for, and everything its client was told.

    `sent_at` (monotonic ns) is the first publish, 0 before. `kind` is the workload's name of what
    the job is to do. `cancels` are the verdicts on its cancellations.
    """

    key: str
    vc: str
    kind: str
    sent_at: int = 0
    acks: list[Ack] = field(default_factory=list)
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    cancel_sent: bool = False
    cancels: list[dict[str, Any]] = field(default_factory=list)

    @property
    def job(self) -> str:
        """Return the job the first verdict names, or an empty string."""
        return str(self.verdicts[0].get("job", "")) if self.verdicts else ""


@dataclass
class Submitted:
    """A message of the SUBMIT stream that is a submission."""

    sequence: int
    vc: str
    key: str


@dataclass
class Run:
    """One process of a job, by its own notes. Times are monotonic ns.

    `steps` are the numbers it noted, in order; `code` is None unless it noted its end. `noted` are
    the times of its notes after the first.
    """

    job: str
    attempt: int
    rank: int
    world: int
    node: str
    slots: tuple[int, ...]
    pid: int
    began: int
    last: int
    from_step: int = 0
    steps: list[int] = field(default_factory=list)
    code: int | None = None
    noted: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Return job, attempt and rank as one word."""
        return f"{self.job}.{self.attempt}.{self.rank}"


@dataclass
class Evidence:
    """Everything the checker decides from.

    `cuts` are the moments (monotonic ns) at which the power of every store was cut, with every
    process dead. `alive` names processes of jobs that live after everything has ended, and
    `unfinished` the acknowledged jobs that had no end in time after the last fault was healed.
    `broken` says which logs or notes cannot be read, and how.
    """

    told: list[Told] = field(default_factory=list)
    submitted: list[Submitted] = field(default_factory=list)
    admission: list[LogRecord] = field(default_factory=list)
    allocator: list[LogRecord] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    alive: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


def read_notes(folder: Path) -> tuple[list[Run], list[str]]:
    """Return the processes that noted anything in a folder, and what is wrong with the files."""
    runs: list[Run] = []
    broken: list[str] = []
    for path in sorted(folder.iterdir()):
        found, wrong = _read_file(path.read_bytes().splitlines(), path.name)
        runs += found
        broken += wrong
    return runs, broken


def _read_file(lines: Iterable[bytes], name: str) -> tuple[list[Run], list[str]]:
    """Return the processes of one rank's file. Two attempts may write at the same time."""
    runs: list[Run] = []
    latest: dict[tuple[int, int], Run] = {}
    broken = []
    for number, line in enumerate(lines, 1):
        try:
            note = json.loads(line)
            key = note["pid"], note["attempt"]
            if note["note"] == "began":
                # In a container that was started again the same pid may come again.
                latest[key] = Run(
                    note["job"],
                    note["attempt"],
                    note["rank"],
                    note["world"],
                    note["node"],
                    tuple(note["slots"]),
                    note["pid"],
                    note["at"],
                    note["at"],
                    note["from_step"],
                )
                runs.append(latest[key])
                continue
            run = latest[key]
            run.last = note["at"]
            run.noted.append(note["at"])
            if note["note"] == "step":
                run.steps.append(note["step"])
            else:
                run.code = note["code"]
        except (ValueError, KeyError, TypeError) as error:
            broken.append(f"{name}, line {number}: {line!r} ({error!r})")
    return runs, broken
