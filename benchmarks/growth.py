"""What a cluster's streams and files grow by with each job, and how small an archive is.

An embedded cluster runs short jobs of one attempt, one GPU and one line of output. Bytes of streams
are those that JetStream counts, without its own files. `per_100k_jobs_mb` scales what was measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks._sample import say
from skep.wire import subjects
from skep_services.adapters.nats_access import BOOTSTRAP
from skep_services.adapters.nats_api import stream_info
from tests.support.bare_client import bare_client
from tests.support.embedded import Embedded

STREAMS = (*subjects.STREAMS, subjects.KEPT)
SCALE = 100_000
BATCH = 50


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--keep-every", type=int, default=200, help="facts between two snapshots")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure."""
    with tempfile.TemporaryDirectory(prefix="skep-growth-") as folder:
        home = Path(folder, "home")
        cluster = Embedded(home, {"SKEP_KEEP_EVERY": str(arguments.keep_every)})
        try:
            cluster.up("--nodes", "2", "--gpus", "8", "--vc", "nlp=16", "--port", "0")
            before, files = asyncio.run(_streams(cluster)), _files(home)
            for first in range(0, arguments.jobs, BATCH):
                for job in asyncio.run(_submit(cluster, min(BATCH, arguments.jobs - first))):
                    cluster.ended(job)
                say(f"{first + BATCH} of {arguments.jobs} jobs")
            after, files_after = asyncio.run(_streams(cluster)), _files(home)
            archived = json.loads(cluster.skep("log", "archive", "--older", "0", "--json"))
        finally:
            cluster.down()
    grown = {name: after[name] - before[name] for name in STREAMS}
    grown |= {name: files_after[name] - files.get(name, 0) for name in files_after}
    moved = archived["moved"]
    return {
        "bytes_per_job": {
            name: round(size / arguments.jobs) for name, size in sorted(grown.items())
        },
        "per_100k_jobs_mb": {
            name: round(size / arguments.jobs * SCALE / 1e6) for name, size in sorted(grown.items())
        },
        "archived_bytes": {one["stream"]: one["bytes"] for one in moved if one["messages"]},
        "packed_bytes": {one["stream"]: one["packed"] for one in moved if one["messages"]},
    }


async def _submit(cluster: Embedded, count: int) -> list[str]:
    spec = {"name": "short", "vc": "nlp", "command": ["echo", "done"]}
    async with bare_client(cluster.about, "vc-nlp") as client:
        return [(await client.submit(spec, "")).job for _ in range(count)]


async def _streams(cluster: Embedded) -> dict[str, int]:
    bus = await cluster.bus(BOOTSTRAP)
    try:
        return {name: (await stream_info(bus.link, name)).state.bytes for name in STREAMS}
    finally:
        await bus.close()


def _files(home: Path) -> dict[str, int]:
    """Return the bytes of what else grows, by what it is."""
    found = {"job logs": 0, "service logs": 0, "journals": 0, "gateway view": 0}
    # Of the view only rows count: its write-ahead log, events and spans are bounded.
    for path in home.rglob("*"):
        if path.is_symlink() or not path.is_file() or "store" in path.parts:
            continue
        size = path.stat().st_size
        if "logs" in path.parts:
            found["job logs"] += size
        elif path.suffix == ".log":
            found["service logs"] += size
        elif path.name.startswith(("journal", "runner.jsonl")):
            found["journals"] += size
        elif path.name == "read-model.sqlite":
            found["gateway view"] += _rows(path)
    return found


def _rows(path: Path) -> int:
    """Return the bytes of the rows that the gateway keeps for ever: jobs and their specs."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as file:
        jobs = "SELECT coalesce(sum(length(line) + length(doc) + length(name)), 0) FROM jobs"
        specs = "SELECT coalesce(sum(length(spec)), 0) FROM specs"
        return sum(int(file.execute(ask).fetchone()[0]) for ask in (jobs, specs))
