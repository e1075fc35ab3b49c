"""The cross-check's bare loops and quirks agree where no data is needed."""

from __future__ import annotations

import random
import time
from typing import Any

import msgspec

from skep.units import Duration, in_seconds, seconds
from skep.wire.cluster import Cluster, Quota, VirtualCluster
from skep_lab.simulator.build import ALL, uniform
from skep_lab.simulator.run import run
from skep_lab.simulator.settings import AT_ONCE, COMPAT, FIRST_NODE, NO_REST, Settings
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.situation import Steady
from tests.system.crosscheck import gavel, pollux, pollux_jobs, quirks, rounds
from tests.system.crosscheck import reference as bare
from tests.system.crosscheck.helios import AGAIN_S, LATE_S, Srtf
from tests.system.crosscheck.report import report
from tests.system.crosscheck.rows import ROWS

MODELS = ("small", "large")
RATES = gavel.Rates(
    {
        gpu: {
            (model, gpus): rate * gpus / (3 if model == "large" else 1)
            for model in MODELS
            for gpus in (1, 2, 4, 8)
        }
        for gpu, rate in (("v100", 7.31), ("p100", 3.17), ("k80", 1.73))
    }
)


def drawn(count: int, sizes: tuple[int, ...], within: int) -> list[bare.Job]:
    """Return jobs that come and end in whole seconds, many at the same instant."""
    rng = random.Random(f"crosscheck {count}")
    return [
        bare.Job(rng.choice(sizes), at, rng.randrange(1, 40) * 50)
        for at in sorted(rng.randrange(within // 50) * 50 for _ in range(count))
    ]


def as_trace(jobs: list[bare.Job], **fields: Any) -> Trace:
    return Trace(
        name="drawn",
        jobs=tuple(
            TraceJob(
                id=f"c{number}",
                at=seconds(job.submit),
                run_time=seconds(job.left),
                gpus=job.gpus,
                **fields,
            )
            for number, job in enumerate(jobs)
        ),
    )


def ended(
    trace: Trace, cluster: Cluster, policy: tuple[str, dict[str, Any]], *more: str
) -> list[float]:
    settings = Settings(
        policies={ALL: policy}, can=("checkpoint",), compat=frozenset({AT_ONCE, *more})
    )
    with quirks.registered(RATES):
        result = run(trace, cluster, settings, Steady())
    return [in_seconds(job.ended) for job in result.jobs if job.ended is not None]


def test_strict_first_fit_is_what_the_bare_loop_says() -> None:
    jobs = drawn(150, (1, 1, 1, 2, 4), 3000)
    trace = as_trace(jobs, within="node", hard=True)
    cluster = uniform(12, 4, racks=3)
    owned = VirtualCluster(cells=(Quota(chain="v100", level="rack", count=3),))
    cluster = msgspec.structs.replace(cluster, vcs={ALL: owned})
    ours = ended(trace, cluster, ("first-fit", {"per_switch": 4}))
    bare.fifo(jobs, bare.Nodes(3, 4, 4))
    assert ours == [job.end for job in jobs]


def test_queues_that_are_lists_are_what_the_bare_loop_says() -> None:
    jobs = drawn(120, (1, 2, 3, 8), 2000)
    trace = msgspec.structs.replace(
        as_trace(jobs),
        jobs=tuple(msgspec.structs.replace(job, workers=job.gpus) for job in as_trace(jobs).jobs),
    )
    options = {"thresholds": [3250, 7200], "late": True}
    ours = ended(trace, uniform(4, 4), ("queues-as-lists", options))
    every = frozenset({"running-first", "late-demotion", "three-queues"})
    bare.least_attained(jobs, 16, every)
    assert ours == [job.end for job in jobs]


def test_a_job_may_lose_its_gpus_within_a_second_as_in_other_simulators() -> None:
    """Events follow each other within a second here: the bare loop knows no rule about that."""
    rng = random.Random("no rest")
    long = [bare.Job(rng.choice((1, 2)), 0.0, rng.randrange(40, 60) * 100) for _ in range(10)]
    short = [
        bare.Job(rng.choice((1, 2)), 4000 + at / 8, rng.randrange(1, 40))
        for at in sorted(rng.randrange(8 * 2000) for _ in range(200))
    ]
    jobs = [*long, *short]
    whole = as_trace(jobs)
    trace = msgspec.structs.replace(
        whole, jobs=tuple(msgspec.structs.replace(job, workers=job.gpus) for job in whole.jobs)
    )
    policy = "queues-as-lists", {"thresholds": [3250, 7200]}
    ours = ended(trace, uniform(4, 2), policy, NO_REST)
    rests = ended(trace, uniform(4, 2), policy)
    bare.least_attained(jobs, 8, frozenset({"running-first", "three-queues"}))
    assert [round(end, 6) for end in ours] == [round(job.end, 6) for job in jobs]
    assert ours != rests


def test_helios_srtf_is_what_the_bare_loop_says() -> None:
    rng = random.Random("helios")
    jobs = [
        bare.Job(rng.choice((1, 1, 2, 4, 8)), float(at), float(rng.randrange(1, 400)))
        for at in sorted(rng.randrange(3000) for _ in range(200))
    ]
    late = [
        msgspec.structs.replace(job, run_time=Duration(job.run_time + seconds(LATE_S)))
        for job in as_trace(jobs).jobs
    ]
    trace = msgspec.structs.replace(as_trace(jobs), jobs=tuple(late))
    settings = Settings(
        policies={ALL: (Srtf.name, {})},
        can=("checkpoint",),
        compat=frozenset({AT_ONCE, FIRST_NODE, NO_REST}),
        again_s=AGAIN_S,
    )
    with quirks.registered(RATES):
        result = run(trace, uniform(3, 8), settings, Steady())
    bare.by_count(jobs, 3, 8, AGAIN_S)
    ours = [(in_seconds(job.ended or 0), job.preempted) for job in result.jobs]
    assert ours == [(job.end, job.preempted) for job in jobs]
    assert sum(job.preempted for job in jobs) > 20


def test_gavels_rounds_are_carried_out_as_its_book_says() -> None:
    rng = random.Random(7)
    kinds = [(rng.choice(MODELS), rng.choice((1, 2, 4, 8))) for _ in range(60)]
    arrivals = sorted(rng.randrange(2000) for _ in kinds)
    jobs = [
        (float(at), kind, rng.randrange(500, 40_000))
        for at, kind in zip(arrivals, kinds, strict=True)
    ]
    trace = Trace(
        name="rounds",
        jobs=tuple(
            TraceJob(
                id=f"g{number}",
                at=seconds(at),
                gpus=kind[1],
                workers=kind[1],
                model=kind[0],
                mini_batches=steps,
                run_time=seconds(steps / RATES.of["v100"][kind]),
            )
            for number, (at, kind, steps) in enumerate(jobs)
        ),
    )
    for fifo in (True, False):
        shares = rounds.Draws() if fifo else rounds.las()[0]
        theirs = rounds.loop(jobs, RATES.of, shares, only_shared=fifo)
        policy = "gavel-rounds", {"shares": "fifo" if fifo else "las"}
        settings = Settings(
            policies={ALL: policy}, can=("checkpoint",), compat=frozenset({AT_ONCE})
        )
        with quirks.registered(RATES):
            result = quirks.run_in(
                gavel.Whole, trace, gavel.cluster(), settings, RATES, clock=time.process_time
            )
        ours = [in_seconds(job.ended or 0) for job in result.jobs]
        assert max(abs(one - other) for one, other in zip(ours, theirs, strict=True)) < 0.001


def test_pollux_jobs_train_by_epochs_in_whole_seconds_between_ticks() -> None:
    """Two GPUs halve a step; a tick is a full minute, and a start takes 30 s."""
    rows = [
        {"placement": where, "local_bsz": size, "step_time": step_s, "sync_time": "0"}
        for where, size, step_s in (("1", "8", "1"), ("2", "4", "0.5"), ("4", "2", "0.25"))
    ]
    epochs = [pollux_jobs.Epoch(10.4, 10.4, 1.0, 0.0), pollux_jobs.Epoch(20.8, 20.8, 1.0, 0.0)]
    bert = pollux_jobs.Application("bert", rows, (), {8: epochs})
    each = TraceJob(id="", at=seconds(0), run_time=seconds(60), gpus=1, model="bert", batch_size=8)
    trace = Trace(
        name="ticks",
        jobs=tuple(
            msgspec.structs.replace(
                each,
                id=f"p{number}",
                at=Duration(seconds(at) + pollux.SHIFT),
                gpus=gpus,
                workers=gpus,
            )
            for number, (at, gpus) in enumerate(((107, 1), (107, 2), (120, 4)))
        ),
    )
    result = pollux.carried_out(trace, "pollux-tiresias", {"bert": bert})
    ends = [in_seconds(Duration((job.ended or 0) - pollux.SHIFT)) for job in result.jobs]
    assert ends == [150 + 20, 150 + 10, 150 + 6], "round(10.4), round(5.2), round(2.6): twice each"


def test_every_switch_of_a_row_is_told() -> None:
    for row in ROWS:
        assert all(name in quirks.QUIRKS for name in row.switches)
        assert row.compat == {name for name in row.switches if name in COMPAT}


def test_the_report_says_what_differs() -> None:
    row = {
        "name": "some-fifo",
        "theirs": {"jct_s": 1000.0},
        "ours": {"jct_s": 1100.0, "cpu_s": 1.0},
        "switched": {"jct_s": 1050.0, "cpu_s": 2.0},
        "switches": {"odd": "it is odd"},
        "difference_percent": 10.0,
        "difference_switched_percent": 5.0,
        "agrees": False,
        "exact": False,
        "why": "It is.",
        "right": "ours.",
    }
    text = report([row])
    assert "| some-fifo | 1,000.000 | 1,100.000 | +10.00 % | 1,050.000 | +5.00 %, DIFFERS |" in text
    assert "**some-fifo**: It is. Right: ours.\n- `odd`: it is odd" in text
    assert "| equal |" in report([row | {"exact": True}])
