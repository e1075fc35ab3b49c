"""The walks of the documents pass through the files that they name."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from skep.machines.admission import AdmissionMachine
from skep.wire import codec
from skep.wire.admin import SetVcs
from tests.kit import TRACE, Driver, admitted, allocator, at, joined, spec, vcs

ROOT = Path(__file__).parents[2]
WALKS = (ROOT / "docs" / "explanation" / "walks.md").read_text().split("\n## ")[1:]


def files(walk: int) -> list[str]:
    """Return the files of a walk, in order."""
    return re.findall(r"\| `([a-z_/]+\.py)` \|", WALKS[walk])


def passed(work: Callable[[], Any]) -> set[str]:
    """Return the project's files in which a function was called."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            found.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return {str(Path(name).relative_to(ROOT)) for name in found if name.startswith(str(ROOT))}


def placed() -> set[str]:
    """Return the files of the decision that places a job."""
    decide = allocator(nlp=4)
    decide(joined())
    return passed(lambda: decide.machine.decide(admitted(1), decide.now))


def test_every_file_is_there() -> None:
    named = [file for walk in range(len(WALKS)) for file in files(walk)]
    assert len(named) > 60
    assert [file for file in named if not (ROOT / file).exists()] == []


def submitted() -> set[str]:
    """Return the files of the decisions that admit a job and place it."""
    admission = Driver(AdmissionMachine)
    admission(SetVcs(vcs=vcs(nlp=4)))
    raw = codec.encode(spec())
    event = codec.Submission(job="j1", vc="nlp", raw=raw, at=at(1), trace=TRACE)
    return placed() | passed(lambda: admission.machine.decide(event, admission.now))


def alone(name: str) -> list[str]:
    """Return what a function of this module finds in a process of its own.

    What other tests have loaded, and what follows their calls, changes nothing there.
    """
    program = f"from tests.unit import test_walks as walks; print(*walks.{name}())"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return done.stdout.split()


def test_a_submission_passes_the_files_of_its_walk() -> None:
    through = alone("submitted")
    pure = [file for file in files(0) if file.startswith("libs/") and "/agent/" not in file]
    assert [file for file in pure if file not in through] == []


def test_a_request_for_cells_passes_the_files_of_its_walk() -> None:
    through = alone("placed")
    assert [file for file in files(2) if file not in through] == []
