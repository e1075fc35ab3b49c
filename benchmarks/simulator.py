"""How fast the simulated cluster is, and how much memory it takes.

An event is a start or an end of a job. Everything that decides is what runs in production, first
come, first served in cells; jobs are Philly's mix of sizes, arrivals such that four fifths of the
GPUs are busy. `hived` is five days of HiveD's eleven tenants in cells, whose jobs borrow idle GPUs;
`hived-whole` its 141,950 jobs. The whole Philly trace is played if its data is there
(SKEP_SHARED_DATA, or `shared/data` beside the repository), and Muri's third trace under `las`,
whose rounds of 360 s suspend and move most jobs again and again. Each figure comes of a process of
its own.

    python -m benchmarks simulator [--quick] [--only NAME] [--profile]
"""

from __future__ import annotations

import argparse
import cProfile
import csv
import gzip
import os
import pstats
import random
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from skep.units import seconds
from skep.wire.cluster import Cluster
from skep_lab.experiments.hived import fits_in
from skep_lab.simulator.build import ALL, uniform
from skep_lab.simulator.run import run as simulate
from skep_lab.simulator.settings import AT_ONCE, FIRST_NODE, Costs, Settings
from skep_lab.traces.generators.hived import Options, assign, generate
from skep_lab.traces.generators.hived import cluster as hived_cluster
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.traces.read import read
from skep_lab.workloads.situation import Steady

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("SKEP_SHARED_DATA", ROOT.parent / "shared" / "data"))
NODE_GPUS = 8
PHILLY_NODES = 279
"""HiveD's cluster: 2,232 GPUs (section 5)."""
MURI_NODES = 8
"""Muri's cluster (section 6.1)."""
SIZES, WEIGHTS = (1, 2, 4, 8, 16, 32), (93.2, 2.2, 2.3, 2.0, 0.2, 0.1)
"""Philly's mix of GPUs per job."""
MEAN_S, SIGMA, LOAD = 3600.0, 1.5, 0.8
DEEP_JOBS = 5_000
HIVED_NODES, HIVED_DAYS = 200, 5.0


def drawn(gpus: int, jobs: int, vcs: int = 1, load: float = LOAD) -> Trace:
    """Return random jobs that keep such a part of so many GPUs busy: the same ones every time."""
    rng = random.Random(f"bench {gpus} {jobs}")
    sizes = [size for size in SIZES if size <= gpus // vcs // 2]
    weights = WEIGHTS[: len(sizes)]
    mean = sum(map(lambda size, weight: size * weight, sizes, weights)) / sum(weights)
    every_s = mean * MEAN_S / (load * gpus)
    at, made = 0.0, []
    for number in range(jobs):
        at += rng.expovariate(1 / every_s)
        lasts = rng.lognormvariate(-SIGMA * SIGMA / 2, SIGMA) * MEAN_S
        vc = f"vc{rng.randrange(vcs)}" if vcs > 1 else ""
        made.append(
            TraceJob(
                id=f"b{number}",
                at=seconds(at),
                run_time=seconds(max(1.0, lasts)),
                gpus=rng.choices(sizes, weights)[0],
                vc=vc,
            )
        )
    return Trace(name=f"drawn for {gpus} GPUs", jobs=tuple(made))


def philly() -> Trace:
    """Return the whole Philly trace in one VC."""
    with gzip.open(DATA / "philly" / "philly.csv.gz", "rt") as file:
        rows = [row for row in csv.DictReader(file) if row["timestamp"]]
    rows.sort(key=lambda row: row["timestamp"])
    first = datetime.fromisoformat(rows[0]["timestamp"])
    return Trace(
        name="philly",
        jobs=tuple(
            TraceJob(
                id=f"p{number}",
                gpus=int(row["num_gpus"]),
                at=seconds((datetime.fromisoformat(row["timestamp"]) - first).total_seconds()),
                run_time=seconds(float(row["duration"])),
            )
            for number, row in enumerate(rows)
        ),
    )


def helios() -> tuple[Trace, Cluster]:
    """Return two weeks of Philly and its VCs as Helios' simulator had them."""
    with (DATA / "philly" / "philly_vc_nodes.csv").open() as file:
        vcs = {row["vc"]: int(row["node num"]) for row in csv.DictReader(file)}
    with (DATA / "anchors" / "philly_oct01_14.csv").open() as file:
        rows = list(csv.DictReader(file))
    jobs = tuple(
        TraceJob(
            id=row["job_id"],
            at=seconds(float(row["submit_time"])),
            vc=row["vc"],
            run_time=seconds(float(row["duration"])),
            gpus=int(row["num_gpu"]),
        )
        for row in rows
    )
    return Trace(name="philly oct 1-14", jobs=jobs), uniform(sum(vcs.values()), NODE_GPUS, vcs=vcs)


def hived(days: float) -> tuple[Trace, Cluster, Settings]:
    """Return HiveD's tenants on 200 nodes, their cells, and what its experiments set."""
    drawn, owned = generate(0, Options(days=days)), assign(HIVED_NODES)
    jobs = tuple(job for job in drawn.jobs if fits_in(job, owned[job.vc]))
    settings = Settings(
        costs=Costs(checkpoint_every_s=1.0), over_quota="opportunistic", can=("checkpoint",)
    )
    return Trace(name=drawn.name, jobs=jobs), hived_cluster(HIVED_NODES, owned), settings


def muri() -> Trace:
    """Return Muri's third trace."""
    with gzip.open(DATA / "muri" / "trace3.csv.gz", "rt", newline="") as lines:
        return read(lines, "muri trace3", "muri")


def measured(trace: Trace, cluster: Cluster, settings: Settings | None = None) -> dict[str, Any]:
    """Return what one run took, and its means."""
    result = simulate(trace, cluster, settings or Settings(), Steady(), clock=time.process_time)
    done = [job for job in result.jobs if job.ended is not None]
    jct = sum((job.ended or 0) - job.job.at for job in done) / max(1, len(done)) / 1e9
    return {
        "gpus": result.gpus,
        "jobs": len(result.jobs),
        "done": len(done),
        "events": result.events,
        "cpu_s": round(result.cpu_s, 2),
        "events_per_cpu_s": round(result.events / result.cpu_s),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "mean_jct_s": round(jct, 2),
        "mean_wait_s": round(sum(job.waited for job in done) / max(1, len(done)) / 1e9, 2),
        "makespan_s": max((job.ended or 0 for job in done), default=0) / 1e9,
        "decisions": result.decisions[:16],
    }


def case(name: str, *, quick: bool) -> dict[str, Any]:
    """Return the figures of one case."""
    jobs = 1_000 if quick else 10_000
    match name:
        case "512" | "2232" | "65536":
            gpus = int(name)
            return measured(drawn(gpus, jobs), uniform(gpus // NODE_GPUS, NODE_GPUS))
        case "vcs":
            vcs = {f"vc{number}": 27 for number in range(10)}
            return measured(drawn(2160, jobs, 10), uniform(270, NODE_GPUS, vcs=vcs))
        case "deep":
            # Ten times what the GPUs can do: almost all of it waits.
            return measured(drawn(512, min(jobs, DEEP_JOBS), load=10.0), uniform(64, NODE_GPUS))
        case "hived" | "hived-whole":
            return measured(*hived(1.0 if quick else 0.0 if name == "hived-whole" else HIVED_DAYS))
        case "philly":
            return measured(philly(), uniform(PHILLY_NODES, NODE_GPUS))
        case "muri-las":
            las = Settings(policies={ALL: ("las", {})})
            return measured(muri(), uniform(MURI_NODES, NODE_GPUS), las)
        case _:
            quirks = Settings(compat=frozenset({AT_ONCE, FIRST_NODE}))
            return measured(*helios(), quirks)


CASES = ("512", "2232", "65536", "vcs", "deep", "hived")
ALONE = ("hived-whole",)
"""Cases that take minutes: only if asked for."""
WITH_DATA = ("philly", "helios", "muri-las")


def options(parser: argparse.ArgumentParser) -> None:
    """Add what may be chosen."""
    parser.add_argument("--quick", action="store_true", help="1,000 jobs each, no whole trace")
    parser.add_argument(
        "--only", choices=(*CASES, *ALONE, *WITH_DATA), help="one case, in this process"
    )
    parser.add_argument("--profile", action="store_true", help="with --only: where the time goes")


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of all cases, or of one."""
    if given.only in WITH_DATA and not DATA.is_dir():
        text = f"{DATA} is absent: SKEP_SHARED_DATA names where the data is"
        raise SystemExit(text)
    if not given.only:
        return measure(quick=given.quick)
    profile = cProfile.Profile()
    found: dict[str, Any] = (
        profile.runcall(case, given.only, quick=given.quick)
        if given.profile
        else case(given.only, quick=given.quick)
    )
    if given.profile:
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(40)
    return {given.only: found}


def measure(*, quick: bool) -> dict[str, Any]:
    """Return the figures of all cases, each from a process of its own."""
    names = CASES if quick or not DATA.is_dir() else (*CASES, *WITH_DATA)
    told: dict[str, Any] = {}
    if not DATA.is_dir():
        told["absent"] = f"{DATA}: the whole Philly trace is not played"
    for name in names:
        # Memory is the largest that a process ever had: each case gets one of its own.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            told[name] = process.submit(case, name, quick=quick).result()
    return told
