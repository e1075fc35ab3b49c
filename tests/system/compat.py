"""Runs unmodified training scripts of common libraries under Skep, and prints what held.

    python -m tests.system.compat                  in an environment of its own, made and removed
    python -m tests.system.compat --python PATH    in an environment that has the libraries

Every script runs twice as a plain command: undisturbed, and suspended twice at a mini-batch
boundary, the second time with its state moved away. A row says whether the mini-batches were
counted right, whether both runs printed the same hash of their weights, and how much moved.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.job_agent import DEADLINE_S
from tests.support.suspend_kit import Driver, driver

JOBS = Path(__file__).parent / "compat_jobs"
LIBRARIES = ("accelerate", "lightning", "transformers", "numpy")
ASK_VERSIONS = """
import importlib.metadata, json, sys
print(json.dumps({name: importlib.metadata.version(name) for name in sys.argv[1:]}))
"""


class Example(NamedTuple):
    """One way to train."""

    name: str
    library: str
    argv: tuple[str, ...]  # after the interpreter
    counted: int  # mini-batches: the steps of the optimizer that steps most
    processes: int = 1


PLAIN = str(JOBS / "plain.py")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
ACCELERATE = ("-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1")
EXAMPLES = (
    Example("plain", "torch", (PLAIN, "plain"), 200),
    Example("accumulation x4", "torch", (PLAIN, "accumulation"), 50),
    Example("GradScaler, 20 infinities", "torch", (PLAIN, "scaler"), 180),
    Example("GAN 5:1", "torch", (PLAIN, "gan"), 200),
    Example("torch.compile", "torch", (PLAIN, "compile"), 200),
    Example("torchrun, 1 process", "torch", (*TORCHRUN, "1", PLAIN, "ranks"), 200),
    Example("torchrun, 2 processes", "torch", (*TORCHRUN, "2", PLAIN, "ranks"), 100, 2),
    Example(
        "accelerate launch, x2", "accelerate", (*ACCELERATE, f"{JOBS}/with_accelerate.py"), 100
    ),
    Example("Trainer.fit", "lightning", (f"{JOBS}/with_lightning.py",), 200),
    Example("Trainer.train", "transformers", (f"{JOBS}/with_transformers.py",), 200),
)


class Row(NamedTuple):
    """What one example showed."""

    example: str
    library: str
    version: str
    counted: int
    expected: int
    identical: str  # yes or no
    moved_mb: float


def main() -> int:
    """Run every example; return 1 if a row is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", help="an interpreter that has torch and the libraries")
    parser.add_argument("--torch", default="torch==2.13.0", help="what pip is asked for")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default="", help="examples whose name has this in it")
    options = parser.parse_args()
    with environment(options.python, options.torch) as python:
        chosen = [example for example in EXAMPLES if options.only in example.name]
        used = sorted({example.library for example in chosen})
        versions = json.loads(subprocess.check_output([python, "-c", ASK_VERSIONS, *used]))
        rows = []
        for example in chosen:
            rows.append(row(example, python, versions[example.library]))
            if not options.json:
                show(rows[-1], header=len(rows) == 1)
    if options.json:
        print(json.dumps([one._asdict() for one in rows], indent=2))
    return int(any(one.counted != one.expected or one.identical == "no" for one in rows))


@contextlib.contextmanager
def environment(python: str | None, torch: str) -> Iterator[str]:
    """Yield an interpreter with the libraries: the one given, or one of a throw-away venv."""
    if python:
        yield python
        return
    with tempfile.TemporaryDirectory(prefix="skep-compat-") as folder:
        print(f"installing {torch} and {', '.join(LIBRARIES)}", file=sys.stderr)
        venv.create(folder, with_pip=True)
        own = f"{folder}/bin/python"
        pip = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, torch], check=True)
        fixed = Path(folder, "fixed.txt")
        fixed.write_text(f"{torch}\n")  # No library may bring another PyTorch.
        subprocess.run([*pip, "--constraint", str(fixed), *LIBRARIES], check=True)
        yield own


def row(example: Example, python: str, version: str) -> Row:
    """Run one example both ways."""
    _, undisturbed, _ = run(example, python, disturbed=False)
    counted, disturbed, moved = run(example, python, disturbed=True)
    identical = "yes" if disturbed == undisturbed and disturbed else "no"
    return Row(
        example.name, example.library, version, counted, example.counted, identical, moved / 1e6
    )


def run(example: Example, python: str, *, disturbed: bool) -> tuple[int, str, int]:
    """Return the mini-batches counted, the result line printed, and the bytes moved."""
    with driver(parts=example.processes) as job:
        more = {"OMP_NUM_THREADS": "1", "PATH": f"{Path(python).parent}:{os.environ['PATH']}"}
        job.start_command([python, *example.argv], **more)
        moved = 0
        if disturbed:
            job.wait_for_boundaries()
            suspend(job, example.counted // 3, released=False)
            moved = suspend(job, 2 * example.counted // 3, released=True)
        out, err = job.processes[0].communicate(timeout=DEADLINE_S)
        if job.processes[0].returncode:
            print(err[-2_000:], file=sys.stderr)
        job.agent.wait_until(lambda agent: agent.open_connections == 0)
        counts = [bye["steps"] for bye in job.agent.of_type("bye")]
        assert len(counts) == example.processes, f"{len(counts)} processes reported"
        assert len(set(counts)) == 1, f"they counted differently: {counts}"
        lines = [line for line in out.splitlines() if line.startswith("result ")]
        return counts[0], "".join(lines), moved


def suspend(job: Driver, after: int, *, released: bool) -> int:
    """Suspend and resume once; return the bytes that were moved away.

    Several processes stop after mini-batch `after` or a later one, a single one wherever it is.
    """
    job.suspend(after if job.voices > 1 else 0)
    moved = 0
    if released:
        for answer in job.ask("release"):
            assert answer["type"] == "released", answer
            moved += answer["moved"]
    for answer in job.ask("resume"):
        assert answer["type"] == "resumed", answer
    return moved


def show(one: Row, *, header: bool) -> None:
    """Print a line of the table."""
    if header:
        print(f"{'example':26} {'library':22} {'counted':>9}  {'identical':12} {'moved MB':>8}")
    library = f"{one.library} {one.version}"
    counted = f"{one.counted}/{one.expected}"
    print(
        f"{one.example:26} {library:22} {counted:>9}  {one.identical:12} {one.moved_mb:8.1f}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
