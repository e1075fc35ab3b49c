"""What every workload model promises, over random jobs, situations and tables."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skep_lab.traces.job import TraceJob
from skep_lab.workloads.models import Models
from skep_lab.workloads.names import gpu_type
from skep_lab.workloads.pollux import Measured, Pollux, Step
from skep_lab.workloads.situation import Situation
from skep_lab.workloads.table import Work, fewest
from tests.workload_kit import at, job, small

NAMES = (
    "ResNet-50 (batch size 64)",
    "resnet50",
    "A3C",
    "bert",
    "vgg16",
    "seq2seq",
    "gpt2",
    "MoE",
    "DLRM",
    "m5",
    "gnmt",
    "LM",
    "VAE",
    "ResNet-50",
    "Transformer",
    "imagenet",
    "nothing",
    "",
)
KINDS = ("", "v100", "k80", "t4", "a100", "p40", "cpu")
TABLES, AGAIN = small(types=("v100", "k80")), small(types=("v100", "k80"))
PAPERS = Models()

names = st.sampled_from(NAMES)
kinds = st.sampled_from(KINDS)
spreads = st.lists(st.integers(1, 8), min_size=1, max_size=8).map(
    lambda gpus: tuple(sorted(gpus, reverse=True))
)
others = st.lists(names, max_size=4).map(lambda models: tuple(sorted(models)))


@st.composite
def jobs(draw: st.DrawFn) -> TraceJob:
    return job(
        draw(names),
        draw(st.integers(1, 20)),
        servers=draw(st.integers(0, 5)),
        batch_size=draw(st.sampled_from((0, 1, 32, 500))),
        gpu_type=draw(kinds),
        mini_batches=draw(st.sampled_from((0, 100))),
    )


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    spread = draw(spreads)
    return at(
        *spread,
        gpu_type=draw(kinds),
        workers=draw(st.integers(1, 12)),
        servers=draw(st.integers(0, 5)),
        partners=draw(others),
        neighbours=draw(others),
    )


@given(jobs(), situations(), st.sampled_from((TABLES, PAPERS)))
def test_speeds_are_no_less_than_nothing_and_pure(
    one: TraceJob, where: Situation, models: Models
) -> None:
    speed = models.speed(one, where)
    assert 0 <= speed < float("inf")
    assert models.speed(one, where) == speed
    if models is TABLES:
        assert AGAIN.speed(one, where) == speed
    assert 0 <= models.utilisation(one, where) <= 1
    assert models.mini_batch_s(one, where) >= 0
    assert models.memory(one) >= 0


@given(jobs(), st.sampled_from((TABLES, PAPERS)))
def test_a_job_goes_as_in_the_trace_where_it_was(one: TraceJob, models: Models) -> None:
    # Without a type it ran on the fastest of the cluster's, which is the V100 in these tables.
    kind = one.gpu_type or ("v100" if models is TABLES else "")
    where = at(*fewest(one.gpus, models.node_gpus), gpu_type=kind, servers=one.servers)
    assert models.speed(one, where) == 1


@given(jobs(), situations(), names, st.sampled_from((TABLES, PAPERS)))
def test_partners_and_neighbours_never_speed_a_job_up(
    one: TraceJob, where: Situation, another: str, models: Models
) -> None:
    speed = models.speed(one, where)
    packed = where._replace(partners=tuple(sorted((*where.partners, another))))
    crowded = where._replace(neighbours=tuple(sorted((*where.neighbours, another))))
    assert models.speed(one, packed) <= speed * (1 + 1e-12)
    assert models.speed(one, crowded) <= speed * (1 + 1e-12)


@given(jobs(), situations())
def test_the_order_of_partners_does_not_matter(one: TraceJob, where: Situation) -> None:
    other = where._replace(partners=where.partners[::-1], neighbours=where.neighbours[::-1])
    speed = TABLES.speed(one, where)
    assert abs(TABLES.speed(one, other) - speed) <= 1e-12 * speed


@st.composite
def measured(draw: st.DrawFn) -> Measured:
    splits = draw(st.lists(spreads, min_size=2, max_size=8, unique=True))
    times = st.floats(0.01, 10)
    return {split: {8: Step(draw(times), 0.0), 16: Step(draw(times), 0.0)} for split in splits}


@given(measured(), spreads)
def test_going_apart_gains_only_where_that_was_measured(
    table: Measured, spread: tuple[int, ...]
) -> None:
    work = Work("bert", 10, 1, each=True)
    pollux = Pollux({"bert": table})
    seen = [split for split in table if sum(split) == sum(spread) and len(split) <= len(spread)]
    if spread in table or not seen:
        return
    most = max(map(len, seen))
    best = min(pollux.step(work, split).step_s for split in seen if len(split) == most)
    assert pollux.step(work, spread).step_s >= best


def test_types_in_these_tests_are_written_as_tables_do() -> None:
    assert tuple(map(gpu_type, KINDS)) == KINDS
