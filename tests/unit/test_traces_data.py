"""The public traces themselves, where they are at hand: as many rows as are documented."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skep.units import seconds
from skep_services.trace_files import load

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("SKEP_SHARED_DATA", ROOT.parent / "shared" / "data"))


@pytest.mark.parametrize(
    "file, jobs, left_out",
    [
        ("tiresias/60_job.csv", 60, 0),
        ("muri/trace3.csv.gz", 992, 0),
        ("anchors/philly_103959.csv", 1934, 0),
        ("anchors/gavel_gen_seed0_lam600_multigpu_400jobs.trace", 400, 0),
        ("gavel/traces_physical_cluster/max_min_fairness.trace", 96, 0),
        ("pollux/workloads/workload-1.csv", 160, 0),
        ("elasticflow/traces/elasticVpollux_e.csv", 195, 0),
        ("chronus/trace_job_Philly_SLO.csv.gz", 30_940 - 205, 205),
        ("alibaba/gpu-v2023/openb_pod_list_default.csv.gz", 3630, 8152 - 3630),
    ],
)
def test_public_traces_have_their_rows(file: str, jobs: int, left_out: int) -> None:
    if not (DATA / file).exists():
        pytest.skip(f"{file} is not in the folder of public data (SKEP_SHARED_DATA)")
    trace = load(str(DATA / file), lenient=True, measured=str(DATA))
    assert (len(trace.jobs), len(trace.problems)) == (jobs, left_out)


def test_muris_milliseconds() -> None:
    file = DATA / "muri/trace3.csv.gz"
    if not file.exists():
        pytest.skip(f"{file.name} is not in the folder of public data (SKEP_SHARED_DATA)")
    trace = load(str(file))
    for job in trace.jobs[:50]:
        # The bottleneck of a mini-batch, and the sum of its parts at most.
        mini_batch_s = job.run_time / 1e9 / job.mini_batches
        assert max(job.demands) * 0.9 <= mini_batch_s <= sum(job.demands) * 1.5 + 0.5
    assert trace.jobs[0].run_time == seconds(927_475)
