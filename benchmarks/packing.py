"""Pack jobs on one device and measure whether it was worth it, by mini-batch rates alone.

    python -m benchmarks packing [--seconds 2] [--svg FILE]

Two ways to share, each with real PyTorch processes:

    fake   a fake GPU (`skep_job.devices.fake_gpus`), pairs of the models of Gandiva's Table 1 and
           of Gavel's on a V100; what the model fitted to the published measurements says stands
           beside
    core   one CPU core: jobs that compute all, 40 % and 20 % of the time

Each pair runs alone, then together, then alone again; a pair whose rates alone differ by more than
15 % is judged by nobody (the machine was busy otherwise). Results are the sum of rates relative to
running alone, and whether packing is kept (above 1.1) or undone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from benchmarks._sample import say
from skep.perf.interference import TABLE_1, Load, by_utilisation, normalised
from skep.perf.loads import GAVEL
from skep_job.devices import fake_gpus
from skep_services import svg

GIB = 2**30
STEP_MS = 20.0
WORTH_IT = 1.1
"""Packing is kept above this: rates of a quiet machine differ by a few percent."""
SPREAD_MAX = 0.15
WIDTH, BAR, LEFT = 860, 22, 330

FAKE_JOB = textwrap.dedent("""
    import torch
    torch.set_num_threads(1)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    def mini_batch():
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
""")
CORE_JOB = textwrap.dedent("""
    import os, time, torch
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {int(os.environ["CORE"])})
    busy = float(os.environ["BUSY"])
    weights = torch.randn(256, 256)
    def mini_batch():
        began = time.thread_time()
        while time.thread_time() - began < busy * 0.01:
            torch.tanh(weights @ weights)
        if busy < 1:
            time.sleep((1 - busy) * 0.01)
""")
LOOP = textwrap.dedent("""
    import sys, time
    for _ in range(5):
        mini_batch()
    print("ready", flush=True)
    for line in sys.stdin:
        began, steps = time.monotonic(), 0
        while time.monotonic() - began < float(line):
            mini_batch()
            steps += 1
        print(steps / (time.monotonic() - began), flush=True)
""")


class Pair(NamedTuple):
    """Two jobs to pack; `said` is the sum of rates by the fitted model, 0 for none."""

    name: str
    code: str
    environments: tuple[Mapping[str, str], Mapping[str, str]]
    said: float


class Job:
    """One process that runs mini-batches for as long as it is told to."""

    def __init__(self, code: str, environment: Mapping[str, str]) -> None:
        """Start it, and wait until it is ready."""
        argv = [sys.executable, "-m", "skep_job", _script(code + LOOP)]
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )
        self._hear()

    def go(self, seconds: float) -> None:
        """Have it run."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()

    def rate(self) -> float:
        """Return the mini-batches per second of the latest run."""
        return float(self._hear())

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    def _hear(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "a job ended before its time"
        return line


def options(parser: argparse.ArgumentParser) -> None:
    """Add what may be chosen."""
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--svg", type=Path, help="also draw the sums as bars")


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Return the rates of each pair, and whether packing it is worth it."""
    with tempfile.TemporaryDirectory() as folder:
        fake_gpus.create(folder, 0, 16 * GIB)
        rows = []
        for pair in (*_fake_pairs(folder), *_core_pairs()):
            rows.append(_measure(pair, given.seconds))
            say(f"{pair.name}: {rows[-1]['sum']}")
    if given.svg:
        given.svg.write_text(picture(rows), encoding="utf-8")
    return {"pairs": rows}


def _measure(pair: Pair, seconds: float) -> dict[str, Any]:
    jobs = [Job(pair.code, environment) for environment in pair.environments]
    before = [_alone(job, seconds) for job in jobs]
    for job in jobs:
        job.go(seconds)
    together = [job.rate() for job in jobs]
    after = [_alone(job, seconds) for job in jobs]
    for job in jobs:
        job.end()
    both = list(zip(before, after, strict=True))
    spread = max(abs(a - b) / max(a, b) for a, b in both)
    total = sum(rate / ((a + b) / 2) for rate, (a, b) in zip(together, both, strict=True))
    # More than each at its full rate cannot be: then the rates alone were taken on a busy machine.
    judged = spread <= SPREAD_MAX and total <= len(jobs) * (1 + SPREAD_MAX)
    return {
        "pair": pair.name,
        "alone": [round((a + b) / 2, 2) for a, b in both],
        "together": [round(rate, 2) for rate in together],
        "sum": round(total, 2),
        "model": round(pair.said, 2) if pair.said else None,
        "verdict": ("keep" if total > WORTH_IT else "undo") if judged else "not judged",
        "spread_alone": round(spread, 3),
    }


def _alone(job: Job, seconds: float) -> float:
    job.go(seconds)
    return job.rate()


def _fake_pairs(folder: str) -> list[Pair]:
    def named(load: Load) -> dict[str, str]:
        told = {**msgspec.structs.asdict(load), "step_ms": STEP_MS, "memory": GIB}
        return {
            "SKEP_FAKE_GPUS": folder,
            "SKEP_DEVICES": "0",
            "SKEP_FAKE_LOAD": json.dumps(told),
            "SKEP_SOCK": f"{folder}/nobody",
            "SKEP_JOB": "j1",
            "SKEP_GEN": "1",
        }

    pairs = []
    for first, second in (
        ("VAE", "VAE"),
        ("SuperResolution", "SuperResolution"),
        ("VAE", "MI-LSTM"),
        ("RHN", "RHN"),
        ("LSTM", "LSTM"),
        ("ResNet-50", "ResNext-50"),
    ):
        loads = [by_utilisation(TABLE_1[name][0]) for name in (first, second)]
        pairs.append(
            Pair(
                f"fake P40: {first} + {second}",
                FAKE_JOB,
                (named(loads[0]), named(loads[1])),
                normalised(loads),
            )
        )
    v100 = {name: Load(0.5, *numbers) for name, numbers in GAVEL["v100"].items()}
    for first, second in (
        ("A3C", "Recommendation (batch size 512)"),
        ("ResNet-50 (batch size 64)", "ResNet-50 (batch size 64)"),
        ("LM (batch size 20)", "ResNet-50 (batch size 32)"),
    ):
        loads = [v100[name] for name in (first, second)]
        pairs.append(
            Pair(
                f"fake V100: {first} + {second}",
                FAKE_JOB,
                (named(loads[0]), named(loads[1])),
                normalised(loads),
            )
        )
    return pairs


def _core_pairs() -> list[Pair]:
    core = str(max(os.sched_getaffinity(0)))

    def named(busy: float) -> dict[str, str]:
        return {"CORE": core, "BUSY": str(busy)}

    return [
        Pair(f"one core: {a:.0%} + {b:.0%}", CORE_JOB, (named(a), named(b)), 0.0)
        for a, b in ((1.0, 1.0), (1.0, 0.2), (0.4, 0.4), (0.2, 0.2))
    ]


def _script(code: str) -> str:
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
        file.write(code)
    return file.name


def picture(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return bars of the sums, with the line at which packing begins to be worth it."""
    height = 60 + (BAR + 8) * len(rows) + 30
    scale = (WIDTH - LEFT - 60) / 2.0
    parts = []
    for index, row in enumerate(rows):
        y = 50 + index * (BAR + 8)
        colour = {"keep": "#2a9d8f", "undo": "#e76f51"}.get(row["verdict"], svg.FAINT)
        parts += [
            svg.text(LEFT - 8, y + 16, row["pair"], anchor="end"),
            svg.box(LEFT, y, row["sum"] * scale, BAR, colour),
            svg.text(LEFT + row["sum"] * scale + 6, y + 16, f"{row['sum']:.2f}"),
        ]
        if row["model"]:
            parts.append(svg.box(LEFT + row["model"] * scale - 1, y - 2, 2, BAR + 4, svg.TEXT))
    at = LEFT + WORTH_IT * scale
    parts += [
        svg.box(at, 44, 1, height - 74, svg.FAINT),
        svg.text(at, height - 12, "worth it", fill=svg.FAINT, anchor="middle"),
    ]
    return svg.page(WIDTH, height, "Rates of two jobs on one device, relative to alone", parts)
