"""The book of promises: places by hand, and what is answered to a deadline."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skep.promises.book import Book
from skep.promises.cells import Kind, lost_parts, own_parts, spare_nodes
from skep.promises.judge import judge
from skep.promises.length import LEAST, START, TOLD, Span, Unknown, due, left, spread, ways
from skep.units import NS_PER_SECOND, Duration, Instant, seconds
from skep.wire.cluster import Chain, Cluster, Level, NodeCell, Pin, Quota, VirtualCluster
from skep.wire.deadline import told
from skep.wire.promises import Answer, Lasts, Place
from skep.wire.reasons import Reason
from skep.wire.spec import JobSpec
from tests.kit import T0, at, spec

V100 = Kind("v100")
FAR = at(1_000_000)


def book(*sizes: int) -> Book:
    return Book({V100: sizes})


def find(
    there: Book, gpus: int, workers: int, lasts: float, due_s: float = 1e6, *, late: bool = False
) -> Place | None:
    return there.find(V100, (gpus, workers), seconds(lasts), T0, at(due_s), late=late)


def named(letter: str, count: int) -> tuple[NodeCell, ...]:
    return tuple(NodeCell(node=f"{letter}{index}") for index in range(count))


def placed(there: Book, job: str, gpus: int, begin: float, end: float, *nodes: int) -> None:
    place = Place(
        gpu_type="v100",
        gpus=gpus,
        begin=at(begin),
        end=at(end),
        nodes=tuple((node, gpus) for node in nodes),
    )
    assert there.fits(place)
    there.put(job, place)
    there.check()


def times(place: Place | None) -> tuple[float, float] | None:
    if place is None:
        return None
    return (place.begin - T0) / NS_PER_SECOND, (place.end - T0) / NS_PER_SECOND


# --- places --------------------------------------------------------------------------------------


def test_an_empty_book_has_a_place_now_and_one_at_the_last_moment() -> None:
    there = book(8)
    assert times(find(there, 8, 1, 100, 1000)) == (0, 100)
    assert times(find(there, 8, 1, 100, 1000, late=True)) == (900, 1000)
    assert find(there, 8, 1, 100, 99) is None
    assert find(there, 9, 1, 100) is None
    assert find(there, 8, 2, 100) is None


def test_a_hole_between_two_promises_is_found_from_both_sides() -> None:
    there = book(8)
    placed(there, "j1", 8, 0, 100, 0)
    placed(there, "j2", 8, 300, 400, 0)
    assert times(find(there, 8, 1, 200, 400)) == (100, 300)
    assert times(find(there, 8, 1, 200, 400, late=True)) == (100, 300)
    assert times(find(there, 8, 1, 201)) == (400, 601)
    assert times(find(there, 1, 1, 50, 400, late=True)) == (250, 300)


def test_sums_are_not_enough_for_a_gang_that_may_not_be_split() -> None:
    there = book(4, 4)
    placed(there, "j1", 2, 0, 100, 0)
    placed(there, "j2", 2, 0, 100, 1)
    assert times(find(there, 4, 1, 10)) == (100, 110)
    assert times(find(there, 2, 2, 10)) == (0, 10)


def test_a_gang_has_as_few_nodes_as_possible_those_that_fit_best() -> None:
    there = book(8, 8, 4)
    placed(there, "j1", 4, 0, 100, 0)
    two = find(there, 2, 2, 10)
    assert two is not None
    assert two.nodes == ((2, 4),)
    three = find(there, 4, 3, 10)
    assert three is not None
    assert three.nodes == ((1, 8), (2, 4))


def test_what_is_taken_out_is_free_again() -> None:
    there = book(8)
    placed(there, "j1", 8, 0, 100, 0)
    assert times(find(there, 8, 1, 10)) == (100, 110)
    there.take("j1")
    there.check()
    assert times(find(there, 8, 1, 10)) == (0, 10)


def test_a_part_whose_node_is_away_gets_nothing_new() -> None:
    there = book(8, 8)
    placed(there, "j1", 8, 0, 100, 1)
    there.lose(V100, (1,))
    there.check()
    assert find(there, 8, 2, 10) is None
    assert times(find(there, 8, 1, 10)) == (0, 10)
    there.lose(V100, ())
    assert times(find(there, 8, 2, 10)) == (100, 110)


def test_a_place_fits_only_if_all_of_it_is_free() -> None:
    there = book(4)
    placed(there, "j1", 2, 0, 100, 0)
    placed(there, "j2", 2, 100, 200, 0)

    def of(gpus: int, begin: float, end: float, node: int = 0) -> Place:
        return Place(
            gpu_type="v100", gpus=gpus, begin=at(begin), end=at(end), nodes=((node, gpus),)
        )

    assert there.fits(of(2, 0, 200))
    assert not there.fits(of(3, 50, 60))
    assert there.fits(of(4, 200, 300))
    assert not there.fits(of(1, 0, 1, node=1))


# --- cells ---------------------------------------------------------------------------------------


def test_cells_are_parts_of_nodes() -> None:
    chain = Chain(
        gpu="v100",
        levels=(Level(name="node", fanout=8), Level(name="rack", fanout=2)),
        node_level="node",
        nodes=tuple(NodeCell(node=f"n{index}") for index in range(8)),
    )
    owns = VirtualCluster(
        cells=(
            Quota(chain="c", level="rack", count=1),
            Quota(chain="c", level="node", count=1),
            Quota(chain="c", level="gpu", count=2),
        ),
        pinned=("p",),
    )
    cluster = Cluster(
        chains={"c": chain}, pins={"p": Pin(chain="c", level="node", index=7)}, vcs={"a": owns}
    )
    assert own_parts(cluster, "a") == {V100: (8, 8, 8, 1, 1), Kind("v100", "p"): (8,)}
    assert own_parts(cluster, "b") == {}
    assert spare_nodes(cluster, "c") == 3
    assert lost_parts(cluster, "a", "c", 1) == (V100, frozenset({2}))
    assert lost_parts(cluster, "a", "c", 4) == (V100, frozenset({0, 1, 2, 3, 4}))


def test_a_node_that_is_lost_takes_parts_of_its_own_chain() -> None:
    """Both chains have GPUs of one type: four nodes of 8, and two of 4 with parts of 2."""
    levels = (Level(name="half", fanout=2), Level(name="node", fanout=2))
    small = Chain(gpu="v100", levels=levels, node_level="node", nodes=named("s", 2))
    large = Chain(
        gpu="v100", levels=(Level(name="node", fanout=8),), node_level="node", nodes=named("l", 4)
    )
    owned = (
        Quota(chain="large", level="node", count=2),
        Quota(chain="small", level="half", count=3),
    )
    vc = VirtualCluster(cells=owned)
    cluster = Cluster(chains={"large": large, "small": small}, vcs={"a": vc})
    other = Kind("v100", chain="small")
    assert own_parts(cluster, "a") == {V100: (8, 8), other: (2, 2, 2)}
    assert lost_parts(cluster, "a", "large", 1) == (V100, frozenset({1}))
    assert lost_parts(cluster, "a", "small", 1) == (other, frozenset({1, 2}))


# --- lengths -------------------------------------------------------------------------------------


def test_few_lengths_say_nothing_and_many_widen_what_is_taken() -> None:
    assert spread([3000] * 9) == TOLD
    low, middle, high = spread([1000] * 15 + [2500] * 5)
    assert (low, middle, high) == (LEAST[0], 1000, 2500)
    assert spread([1000] * 20)[2] == LEAST[2]


def test_a_job_that_outran_its_length_still_needs_some_time() -> None:
    lasts = Lasts(p10=Duration(80), p50=Duration(100), p90=Duration(130))
    assert left(lasts, 30) == Lasts(p10=Duration(50), p50=Duration(70), p90=Duration(100))
    assert left(lasts, 500).p90 == Duration(13)


class Known(Unknown):
    """A mini-batch takes a second on one GPU, and half of that on twice as many."""

    def step(self, spec: JobSpec, gpu_type: str, gpus: int, nodes: int) -> Span | None:
        del spec, nodes
        each = 1e9 / gpus * (2 if gpu_type == "k80" else 1)
        return Span(each * 0.9, each, each * 1.2)


def test_without_a_length_or_a_speed_there_is_no_way() -> None:
    def why(**more: Any) -> Reason:
        return ways(read(**more), [V100], {V100: 8}, Unknown(), TOLD)[1]

    assert why() is Reason.LENGTH_UNKNOWN
    assert why(size={"mini_batches": 10}) is Reason.PROFILE_REFUSED
    willing = {"profile": "allowed"}
    assert why(size={"mini_batches": 10}, willing=willing) is Reason.NOT_PROFILED


def read(**more: Any) -> JobSpec:
    return msgspec.convert(msgspec.to_builtins(spec(**more)), JobSpec)


@pytest.mark.parametrize(
    "qos, within", [("prior", 1030), ("normal", 2060), ("urgent", round(1.25 * (1000 / 8 + 30), 6))]
)
def test_a_class_says_when_a_job_is_to_end(qos: str, within: float) -> None:
    job = read(size={"mini_batches": 1000}, elastic={"min": 1, "max": 8}, qos=qos)
    found, _ = ways(job, [V100], {V100: 8}, Known(), TOLD)
    when = due(job, found, T0)
    assert when == at(within)


# --- answers -------------------------------------------------------------------------------------


def ruling(there: Book, job: JobSpec, within_s: float, speeds: Any = None) -> Any:
    largest = {kind: parts[0].size for kind, parts in there.parts.items()}
    found, why = ways(job, largest, largest, speeds or Unknown(), TOLD)
    return judge(there, job, found, why, at(within_s), T0)


def declared(run_time: float, **more: Any) -> JobSpec:
    return read(size={"run_time": run_time}, **more)


def test_a_job_that_fits_is_promised_the_last_place_before_its_deadline() -> None:
    answer = ruling(book(8), declared(1000, gpus=8), 5000)
    assert answer.judged.answer is Answer.ACCEPTED
    assert times(answer.place) == (5000 - 1330, 5000)
    assert answer.judged.why is Reason.IN_TIME


@pytest.mark.parametrize(
    "within_s, answer, why",
    [
        (0, Answer.REFUSED, Reason.DEADLINE_PASSED),
        (1029, Answer.LATE, Reason.TOO_LITTLE_EVEN_ALONE),
        (1030, Answer.AT_RISK, Reason.TOO_LITTLE_EVEN_ALONE),
        (1329, Answer.AT_RISK, Reason.TOO_LITTLE_EVEN_ALONE),
        (1330, Answer.ACCEPTED, Reason.IN_TIME),
    ],
)
def test_answers_by_what_is_left(within_s: float, answer: Answer, why: Reason) -> None:
    judged = ruling(book(8), declared(1000), within_s).judged
    assert (judged.answer, judged.why) == (answer, why)
    assert "\n" not in judged.text


def test_a_job_behind_promises_is_told_which_and_when_it_would_be_on_time() -> None:
    there = book(8)
    placed(there, "j7", 8, 0, 3000, 0)
    judged = ruling(there, declared(1000, gpus=4), 2000).judged
    assert (judged.answer, judged.why) == (Answer.LATE, Reason.BEHIND_PROMISES)
    assert judged.behind == ("j7",)
    assert judged.p50 == at(4030)
    assert judged.p90 == at(4330)
    (later, idle) = judged.helps
    assert later.why is Reason.AT_A_LATER_TIME
    assert later.value == told(Instant((at(4330) // (60 * NS_PER_SECOND) + 1) * 60 * NS_PER_SECOND))
    assert idle.why is Reason.AS_OPPORTUNISTIC


def test_cells_that_are_too_small_are_said() -> None:
    judged = ruling(book(4, 4), declared(1000, gpus=8), 50_000).judged
    assert (judged.answer, judged.why) == (Answer.REFUSED, Reason.CELLS_TOO_SMALL)


def test_the_cheapest_size_that_is_on_time_is_taken() -> None:
    job = read(size={"mini_batches": 1000}, elastic={"min": 1, "max": 8})
    slow = ruling(book(8), job, 5000, Known())
    fast = ruling(book(8), job, 400, Known())
    assert slow.way.total == 1
    assert fast.way.total == 4


@pytest.mark.parametrize("workers", [1, 2])
def test_a_gang_that_fits_a_node_is_predicted_on_one(workers: int) -> None:
    """However many workers it begins with: several nodes may be slower, or not measured."""

    class Near(Known):
        def step(self, spec: JobSpec, gpu_type: str, gpus: int, nodes: int) -> Span | None:
            return super().step(spec, gpu_type, gpus, nodes) if nodes == 1 else None

    job = read(size={"mini_batches": 1000}, elastic={"min": 1, "max": 8}, workers=workers)
    way = ruling(book(8), job, 400, Near()).way
    assert (way.gpus, way.workers) == (4, 1)


def test_more_gpus_are_offered_and_then_work() -> None:
    job = read(size={"mini_batches": 1000}, elastic={"min": 1, "max": 8}, willing={"gpus": "1..2"})
    judged = ruling(book(8), job, 400, Known()).judged
    assert judged.answer is Answer.LATE
    assert judged.helps[0].why is Reason.WITH_MORE_GPUS
    assert judged.helps[0].key == "willing.gpus"
    changed = read(
        size={"mini_batches": 1000},
        elastic={"min": 1, "max": 8},
        willing={"gpus": judged.helps[0].value},
    )
    assert ruling(book(8), changed, 400, Known()).judged.answer is Answer.ACCEPTED


@pytest.mark.parametrize(
    "elastic, key, value", [(None, "resources.workers", "4"), ((1, 2), "elastic.max", "4")]
)
def test_more_workers_are_offered_where_the_spec_bounds_them(
    elastic: tuple[int, int] | None, key: str, value: str
) -> None:
    more = {} if elastic is None else {"elastic": {"min": elastic[0], "max": elastic[1]}}
    job = read(size={"mini_batches": 1000}, **more)
    judged = ruling(book(8), job, 400, Known()).judged
    assert (judged.helps[0].key, judged.helps[0].value) == (key, value)


def test_another_type_is_offered() -> None:
    there = Book({V100: (8,), Kind("k80"): (1,)})
    job = read(size={"mini_batches": 1000}, gpu_type="k80")
    judged = ruling(there, job, 1500, Known()).judged
    assert judged.answer is Answer.LATE
    assert (judged.helps[0].why, judged.helps[0].value) == (Reason.WITH_ANOTHER_TYPE, "v100")
    willing = read(size={"mini_batches": 1000}, gpu_type="k80", willing={"types": "v100"})
    assert ruling(there, willing, 1500, Known()).judged.answer is Answer.ACCEPTED


def test_a_book_is_as_before_after_it_was_asked() -> None:
    there = book(8)
    placed(there, "j1", 8, 0, 100, 0)
    before = dict(there.places)
    for within_s in (1, 1200, 5000):
        first = ruling(there, declared(1000, gpus=4), within_s)
        assert first == ruling(there, declared(1000, gpus=4), within_s)
    assert there.places == before
    there.check()
    assert seconds(30) == START
