"""Measure how long training stands still when a gang changes its size.

    python -m benchmarks elastic [--megabytes 12.5 300] [--rounds 3] [--no-torchrun] [--svg FILE]

Gangs of real processes on this machine, over gloo. Each round goes from two ranks to three and back
to two. `pause_ms` is what the slowest of the ranks that stay stood still: from the end of the last
mini-batch at the old size until the first at the new one may begin; `gap_ms` is the same between
the ends of two mini-batches, so that the first mini-batch at the new size is in it, as in the
figures of `torchrun`. `parts_ms` are the slowest's parts: gather (everybody is at the step), copy
(the state goes to the newcomer), verdict, destroy and init (of the process group), outcome,
rebuild (of the wrapped model). `warm_s` is what the newcomer took before, while training went on.

`torchrun` is PyTorch's own elastic launcher on the same machine in the same run, at its fastest:
`--nnodes=2:3`, one agent per node, `last_call_timeout=1`, and a store that is not shared (with a
shared one the third node waits for ever). `times_slower` is its gap, less a usual mini-batch of
ours, over our pause; `gap_times_ours` compares the gaps as they are. It stops all workers and
starts them again; they load a checkpoint that rank 0 wrote to memory before.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks._sample import extremes
from skep_services import svg
from tests.support.elastic_gang import ElasticGang, Member, elastic_gang
from tests.support.job_agent import environment

JOB = Path(__file__).parent / "jobs" / "elastic.py"
BYTES_PER_PARAMETER = 12
"""A float32 parameter and the two moments that Adam keeps of it."""
MARGIN = 3
"""Mini-batches between an order and its step: the ranks' clocks are told far more often."""
DEADLINE_S = 180.0
COLOURS = ("#4878a8", "#e49444", "#85b6b2", "#d1615d", "#a87c9f", "#6a9f58", "#967662")


def options(parser: argparse.ArgumentParser) -> None:
    """Add what may be chosen."""
    parser.add_argument("--megabytes", type=float, nargs="+", default=[12.5, 300.0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-torchrun", action="store_true")
    parser.add_argument("--svg", type=Path, help="draw the pauses into this file")


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Return the pauses for each size of the state, Skep's and torchrun's."""
    results = []
    for megabytes in given.megabytes:
        result: dict[str, Any] = {"megabytes": megabytes}
        result["skep"] = measure_skep(megabytes, given.rounds)
        if not given.no_torchrun:
            result["torchrun"] = measure_torchrun(megabytes)
            for way in ("2->3", "3->2"):
                ours, theirs = result["skep"][way], result["torchrun"][way]
                theirs["gap_times_ours"] = round(theirs["gap_ms"] / ours["gap_ms"]["median"], 1)
                stands = theirs["gap_ms"] - ours["step_ms"]
                theirs["times_slower"] = round(stands / ours["pause_ms"]["median"], 1)
        results.append(result)
    if given.svg is not None:
        given.svg.write_text(picture(results), encoding="utf-8")
    return {"sizes": results}


# --- ours -----------------------------------------------------------------------------------------


def measure_skep(megabytes: float, rounds: int) -> dict[str, Any]:
    """Return the pauses of `rounds` changes each way."""
    options = {"parameters": int(megabytes * 1e6 / BYTES_PER_PARAMETER)}
    with elastic_gang(script=JOB, **options) as gang:
        first, second = gang.start(0, 2), gang.start(1, 2)
        stay, warm = [first, second], []
        for _ in range(rounds):
            since = time.monotonic()
            third = gang.newcomer(2)
            warm.append(time.monotonic() - since)
            change(gang, {first: 0, second: 1, third: 2})
            change(gang, {first: 0, second: 1, third: -1})
        for member in stay:
            member.process.send_signal(signal.SIGUSR1)
        for member in stay:
            member.end()
        pauses = [member.said("pauses") for member in stay]
    report: dict[str, Any] = {"warm_s": extremes(warm)}
    for way, first_index in (("2->3", 0), ("3->2", 1)):
        of_way = [[pauses[rank][n] for rank in (0, 1)] for n in range(first_index, 2 * rounds, 2)]
        slowest = [max(each, key=lambda pause: pause["total_ns"]) for each in of_way]
        middle = sorted(slowest, key=lambda pause: pause["total_ns"])[len(slowest) // 2]
        report[way] = {
            "pause_ms": extremes([pause["total_ns"] / 1e6 for pause in slowest]),
            "gap_ms": extremes([max(pause["gap_ns"] for pause in each) / 1e6 for each in of_way]),
            "step_ms": round(statistics.median(p["step_ns"] for p in slowest) / 1e6, 2),
            "parts_ms": {name: round(ns / 1e6, 2) for name, ns in middle["parts_ns"].items()},
            "bytes": max(pause["bytes"] for each in of_way for pause in each),
        }
    return report


def change(gang: ElasticGang, places: dict[Member, int]) -> None:
    """Order one change and wait until every member has done it; more margin if it is missed."""
    margin = MARGIN
    while True:
        steps = [member.answers("stats")[-1]["steps"] for member in places if has_seat(member)]
        order = gang.rescale(places, max(steps) + margin)
        answers = [
            member.wait_any(("rescaled", "failed", "past"), order=order)["type"]
            for member in places
        ]
        if all(answer == "rescaled" for answer in answers):
            return
        margin *= 2


def has_seat(member: Member) -> bool:
    """Return whether a process trains."""
    return bool(member.answers("rescaled")) or not member.answers("ready")


# --- torchrun -------------------------------------------------------------------------------------


class Node:
    """One `torchrun` agent, and when its worker ended which mini-batch at which size."""

    def __init__(self, port: int, megabytes: float, folder: Path, number: int) -> None:
        parameters = int(megabytes * 1e6 / BYTES_PER_PARAMETER)
        options = {"parameters": parameters, "folder": str(folder)}
        self.steps: list[tuple[float, int]] = []
        self.changed = threading.Condition()
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--nnodes=2:3",
                "--nproc-per-node=1",
                "--max-restarts=9",
                "--rdzv-backend=c10d",
                f"--rdzv-endpoint=127.0.0.1:{port}",
                "--rdzv-id=bench",
                "--local-addr=127.0.0.1",
                "--rdzv-conf=last_call_timeout=1,is_host=" + ("1" if number == 0 else "0"),
                str(JOB),
                json.dumps(options),
            ],
            env=environment(TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1", OMP_NUM_THREADS="1"),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def wait(self, world: int, count: int) -> None:
        """Return after `count` more mini-batches at this size."""
        with self.changed:
            begin = len(self.steps)
            reached = self.changed.wait_for(
                lambda: sum(w == world for _, w in self.steps[begin:]) >= count, DEADLINE_S
            )
            if not reached:
                reason = f"torchrun did not train with {world} ranks within {DEADLINE_S:g} s"
                raise TimeoutError(reason)

    def end(self) -> None:
        """Kill the agent and its worker, which is in a session of its own."""
        pids = [self.process.pid, *children(self.process.pid)]
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.startswith("{"):
                continue
            said = json.loads(line)
            with self.changed:
                self.steps.append((said["at"], said["world"]))
                self.changed.notify_all()


def measure_torchrun(megabytes: float) -> dict[str, Any]:
    """Return the gap between mini-batches at two and at three nodes, and back."""
    from tests.support.ports import free_port  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="skep-", dir=memory_folder()) as folder:
        port = free_port()
        nodes = [Node(port, megabytes, Path(folder), number) for number in (0, 1)]
        try:
            nodes[0].wait(2, 5)
            nodes.append(Node(port, megabytes, Path(folder), 2))
            nodes[0].wait(3, 5)
            nodes[2].end()
            nodes[0].wait(2, 5)
        finally:
            for node in nodes:
                node.end()
    steps = nodes[0].steps
    edges = [index for index in range(1, len(steps)) if steps[index][1] != steps[index - 1][1]]
    gaps = {f"{steps[i - 1][1]}->{steps[i][1]}": steps[i][0] - steps[i - 1][0] for i in edges}
    return {way: {"gap_ms": round(gaps[way] * 1e3, 1)} for way in ("2->3", "3->2")}


def children(pid: int) -> list[int]:
    """Return the processes that `pid` has started, and theirs."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    found = [int(text) for text in path.read_text().split()] if path.exists() else []
    return [*found, *(each for child in found for each in children(child))]


def memory_folder() -> str | None:
    """Return a folder in memory, so that the checkpoints cost `torchrun` as little as they can."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108


# --- the picture -----------------------------------------------------------------------------


def picture(results: list[dict[str, Any]]) -> str:
    """Return bars of the pauses by part."""
    rows = [
        (f"{r['megabytes']:g} MB {way}", r["skep"][way], r.get("torchrun", {}).get(way))
        for r in results
        for way in ("2->3", "3->2")
    ]
    longest = max(sum(row["parts_ms"].values()) for _, row, _ in rows)
    names = list(dict.fromkeys(name for _, row, _ in rows for name in row["parts_ms"]))
    parts = []
    for index, (label, row, theirs) in enumerate(rows):
        y, x = 90 + 44 * index, 130.0
        parts.append(svg.text(16, y + 16, label))
        for name, ms in row["parts_ms"].items():
            width = ms / longest * 520
            parts.append(svg.box(x, y, width, 22, COLOURS[names.index(name) % len(COLOURS)]))
            x += width
        words = f"{row['pause_ms']['median']:g} ms"
        if theirs is not None:
            words += f" (torchrun: {theirs['gap_ms'] / 1e3:.1f} s, {theirs['times_slower']:g}x)"
        parts.append(svg.text(x + 8, y + 16, words))
    for index, name in enumerate(names):
        parts.append(svg.box(130 + 90 * index, 52, 14, 14, COLOURS[index % len(COLOURS)]))
        parts.append(svg.text(149 + 90 * index, 64, name))
    height = 110 + 44 * len(rows)
    return svg.page(940, height, "Training stands still when a gang changes its size", parts)
