"""The model that comes with Skep: its file is whole, and it decides well on small scenes."""

from __future__ import annotations

from typing import Any

from skep.learn.decide import decide
from skep.learn.modelfile import Model, load
from skep.learn.scene import Scene
from skep.learn.shipped import shipped
from skep.units import Instant, seconds
from skep.wire.learned import SCHEMA
from tests.policy_kit import NOW, job, view


def model() -> Model:
    """Return it."""
    (file,) = shipped().values()
    return load(file.read_bytes())


def test_its_file_is_what_its_name_says_and_tells_where_it_is_from() -> None:
    made = model()
    assert [made.name] == [*shipped()]
    header = made.header
    assert header.schema == SCHEMA
    assert header.seeds
    assert "training traces" in header.trained_on
    assert header.report["tuning"] < 0
    assert header.ranges.job
    assert header.ranges.candidate


def test_it_places_the_shortest_first_and_spreads_none_that_bears_it_badly() -> None:
    new: dict[str, Any] = {
        "submitted_at": Instant(NOW - seconds(60)),
        "slowdown": ((1, 1000), (2, 3000)),
    }
    jobs = [
        job(f"j{number + 1}", 4, needs=needs, **new)
        for number, needs in enumerate((9000, 600, 3000))
    ]
    decided = decide(model(), Scene.of(view(jobs, nodes=2)), NOW / 1e9)
    assert decided.reliable
    assert [(each.job, each.spread) for each in decided.moves] == [("j2", False), ("j3", False)]
    # Four GPUs are free, but two on each node.
    held = [
        job(name, 2, on=((node, 2),), needs=9000, ran=60, since=60)
        for name, node in (("j1", "n1"), ("j2", "n2"))
    ]
    waits = job("j3", 4, needs=3000, **new)
    assert decide(model(), Scene.of(view([*held, waits], nodes=2)), NOW / 1e9).moves == ()


def test_it_gives_free_gpus_to_an_elastic_job_that_gains_by_them() -> None:
    rates = tuple((size, 1000 * size) for size in range(1, 5))
    one = job(
        "j1",
        1,
        on=(("n1", 1),),
        ran=600,
        since=600,
        elastic=(1, 4),
        left=seconds(9000),
        rates=rates,
        can=("resize",),
        pause=seconds(10),
    )
    (move,) = decide(model(), Scene.of(view([one], nodes=1)), NOW / 1e9).moves
    assert (move.job, move.workers) == ("j1", 4)
