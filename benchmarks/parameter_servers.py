"""Measure how long workers stand still when a parameter-server job changes.

One job of two workers on one server: a server is added, another one, one is removed, a worker is
added, one is removed, each while training goes on; then the same job is saved, ended and started
again with one server more, as a job without hot scaling would have to be. The pause of a change is
the longest that any worker waited between the last step before it and its going on; the pause of a
restart is from the last step before it to the end of the first one after it.

With --svg FILE the pauses are also drawn. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from math import log10
from pathlib import Path
from typing import Any

from skep_services import svg
from tests.support.ps.jobs import TRAINER, Job, Zygote
from tests.support.ps.trainer import CLASSES, DATA

SIZES = (1_000_000, 25_000_000)
CHANGES = ("+1 server", "+1 server (2nd)", "-1 server", "+1 worker", "-1 worker")
FOREVER = "1000000000"
STEPS_BETWEEN = 5


def change(job: Job, name: str) -> None:
    """Begin one of CHANGES."""
    if name.startswith("+1 server"):
        job.server(name.replace(" ", "-"))
    elif name == "-1 server":
        job.remove("server", 1)
    elif name == "+1 worker":
        job.worker("w2", 2, *options_of(job))
    else:
        job.remove("worker", 2)


def options_of(job: Job) -> list[str]:
    """Return what every worker of the job is started with."""
    return ["--until", FOREVER, "--hidden", job.environment["HIDDEN"]]


def hot(zygote: Zygote, folder: Path, hidden: int) -> dict[str, Any]:
    """Return the figures of every change, and of the restart after them."""
    job = Job(zygote, folder, HIDDEN=str(hidden), SKEP_PS_WAIT_S="120")
    try:
        job.coordinator(1, 2)
        job.server("s1")
        for rank in range(2):
            job.worker(f"w{rank}", rank, *options_of(job))
        job.begun()
        changes = {}
        for number, name in enumerate(CHANGES, start=1):
            began = time.monotonic()
            change(job, name)
            outcome = job.scaled(number)[-1]
            changes[name] = {
                **figures(outcome),
                "asked_to_done_s": round(time.monotonic() - began, 2),
            }
        return {"changes": changes, "restart": restart(job, hidden)}
    finally:
        job.end()


def figures(outcome: dict[str, Any]) -> dict[str, Any]:
    """Return what is told of one change, in milliseconds."""
    if not outcome["done"]:
        return outcome
    pauses = [ns / 1e6 for ns in outcome["pauses_ns"].values() if ns]
    moved = outcome["bytes"]
    return {
        "pause_ms": round(max(pauses, default=0.0), 2),
        "pauses_ms": [round(pause, 2) for pause in pauses],
        "copy_ms": round(outcome["copy_ns"] / 1e6, 2),
        "moved_mb": round(moved / 1e6, 1),
        "gb_per_s": round(moved / outcome["copy_ns"], 2) if moved else None,
        "phases_ms": {name: round(ns / 1e6, 2) for name, ns in outcome["phases_ns"].items()},
        "clock_margin": outcome["clock_margin"],
        "elements": outcome["elements"],
    }


def restart(job: Job, hidden: int) -> dict[str, Any]:
    """Save, end, and start the job anew from cold processes with one server more."""
    began = time.time()
    stop = job.folder / "stop.new"
    stop.write_text("save")
    stop.replace(job.folder / "stop")
    before = [job.result(name) for name in ("w0", "w1")]
    for name in ("s1", "+1-server", "+1-server-(2nd)", "coordinator"):
        job.ended(name)
    ended = time.time()
    (job.folder / "stop").unlink()
    until = str(before[0]["version"] + 20)
    commands = [
        ("", ["-m", "skep_ps.coordinator", "--servers", "3", "--workers", "2"]),
        *[("", ["-m", "skep_ps.server"])] * 3,
        *(
            (
                str(rank),
                [
                    str(TRAINER),
                    "--folder",
                    str(job.folder),
                    "--name",
                    f"again{rank}",
                    "--load",
                    str(job.folder / "checkpoint.pt"),
                    "--until",
                    until,
                    "--hidden",
                    str(hidden),
                ],
            )
            for rank in range(2)
        ),
    ]
    with (job.folder / "again.log").open("wb") as log:
        processes = [
            subprocess.Popen(
                [sys.executable, *command],
                stdout=log,
                stderr=log,
                env={**os.environ, **job.environment, "RANK": rank},
            )
            for rank, command in commands
        ]
        for process in processes:
            process.wait(300)
    after = [json.loads((job.folder / f"again{rank}.json").read_text()) for rank in range(2)]
    steps_ms = [ns / 1e6 for ns in before[0]["steps_ns"]]
    last = min(result["last_step_at"] for result in before)
    return {
        "pause_ms": round((max(result["first_step_at"] for result in after) - last) * 1000),
        "save_and_end_ms": round((ended - began) * 1000),
        "step_ms_median": round(statistics.median(steps_ms), 2),
        "step_ms_max": round(max(steps_ms[STEPS_BETWEEN:]), 2),
    }


def drawn(results: dict[str, Any]) -> str:
    """Return the pauses as bars, on a logarithmic scale."""
    left, right, row, top = 190, 760, 26, 60
    most = 30_000.0

    def width(milliseconds: float) -> float:
        # From 0.1 ms to 30 s, five and a half decades.
        return max((log10(max(milliseconds, 0.1)) + 1) / (log10(most) + 1), 0) * (right - left)

    parts: list[str] = []
    y = top
    for size, result in results.items():
        parts.append(svg.text(16, y + 14, size))
        y += row
        bars = {
            **{name: each.get("pause_ms", 0) for name, each in result["changes"].items()},
            "checkpoint and restart": result["restart"]["pause_ms"],
        }
        for name, pause in bars.items():
            colour = "#c33" if name.startswith("check") else "#47a"
            parts += [
                svg.text(left - 8, y + 14, name, anchor="end"),
                svg.box(left, y, width(pause), row - 8, colour),
                svg.text(left + width(pause) + 6, y + 14, f"{pause:g} ms"),
            ]
            y += row
        y += 14
    title = "How long workers stand still when a job changes (logarithmic)"
    return svg.page(860, y + 10, title, parts)


def options(parser: argparse.ArgumentParser) -> None:
    """Add what may be chosen."""
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="parameters")
    parser.add_argument("--svg", type=Path, help="draw the pauses into this file")


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Return the pauses of every change for each size of the model."""
    results = {}
    zygote = Zygote()
    try:
        for size in given.sizes:
            hidden = max((size - CLASSES) // (DATA + CLASSES + 1), 1)
            with tempfile.TemporaryDirectory(prefix="skep-bench-ps-") as folder:
                results[f"{size / 1e6:g} M parameters"] = hot(zygote, Path(folder), hidden)
    finally:
        zygote.close()
    if given.svg:
        given.svg.write_text(drawn(results))
    return results
