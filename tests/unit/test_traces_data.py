"""The public traces themselves, where they are at hand: as many rows as are documented."""

from __future__ import annotations

import math
from statistics import fmean, median, pstdev

import pytest

from skep.units import in_seconds, seconds
from skep_lab.traces.generators.draw import PHILLY, size_class
from skep_services.trace_files import load
from tests import needs


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
    trace = load(needs.data_file(file), lenient=True, measured=str(needs.DATA))
    assert (len(trace.jobs), len(trace.problems)) == (jobs, left_out)


def test_muris_milliseconds() -> None:
    trace = load(needs.data_file("muri/trace3.csv.gz"))
    for job in trace.jobs[:50]:
        # The bottleneck of a mini-batch, and the sum of its parts at most.
        mini_batch_s = job.run_time / 1e9 / job.mini_batches
        assert max(job.demands) * 0.9 <= mini_batch_s <= sum(job.demands) * 1.5 + 0.5
    assert trace.jobs[0].run_time == seconds(927_475)


def test_the_fit_to_philly_is_that_of_its_jobs() -> None:
    file = needs.data_file("philly/philly.csv.gz")
    runs: dict[int, list[float]] = {size: [] for size in PHILLY}
    for job in load(file).jobs:
        runs[size_class(job.gpus)].append(in_seconds(job.run_time))
    assert sum(map(len, runs.values())) == 82_247
    for size in (1, 4, 8, 16):
        assert PHILLY[size].median_s == pytest.approx(median(runs[size]), rel=2e-3)
        assert PHILLY[size].mean_s == pytest.approx(fmean(runs[size]), rel=1e-4)
    logarithms = [math.log(run_s) for run_s in runs[2]]
    assert PHILLY[2].median_s == pytest.approx(math.exp(fmean(logarithms)), rel=5e-3)
    assert PHILLY[2].sigma == pytest.approx(pstdev(logarithms), rel=1e-3)
