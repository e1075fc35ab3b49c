"""What a model is shown of a VC, and that its rows say what the view does."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from skep.learn import columns as c
from skep.learn.features import times
from skep.learn.scene import Scene
from skep.policy.sight import changes, job_sight, sight_of
from skep.policy.view import Phase, VcView
from skep.units import NS_PER_SECOND, Duration, seconds
from skep.wire.bounds import INSTANT_MAX, MESSAGE_BYTES_MAX
from skep.wire.codec import encode
from skep.wire.learned import CURVE_MAX, SEEN_MAX, PhaseName, RoomSight, Sight
from tests.policy_kit import NOW, job, view

HOUR = 3600.0


def seen() -> VcView:
    """Return a VC with a job of each kind that matters."""
    return view(
        [
            job("j1", 4, on=[("n1", 4)], needs=7200, ran=1800, since=600),
            job("j2", 2, workers=2, on=[("n2", 2)], elastic=(1, 8), rates=((1, 900), (2, 1500))),
            job("j3", 8, workers=2),
            job("j4", 2, phase=Phase.AWAY, on=[("n2", 2)], needs=100, ran=40),
        ],
        nodes=3,
    )


def test_a_phase_has_one_name_and_one_number() -> None:
    assert tuple(Phase) == c.PHASES
    assert get_args(PhaseName) == c.PHASES
    assert (c.PHASES[c.WAITING], c.PHASES[c.AWAY], c.PHASES[c.STOPPING]) == (
        "waiting",
        "away",
        "stopping",
    )


def test_a_sight_says_what_the_view_does() -> None:
    made = sight_of(seen(), 7)
    assert (made.number, made.whole, made.gpus, made.free, made.node_gpus) == (7, True, 12, 6, 4)
    assert made.room == (
        RoomSight(gpus=4, free=0, count=1),
        RoomSight(gpus=4, free=2, count=1),
        RoomSight(gpus=4, free=4, count=1),
    )
    first, second, third, fourth = made.jobs
    assert (first.each, first.workers, first.least, first.most) == (1, 4, 4, 4)
    assert (second.least, second.most, second.resizable, second.nodes) == (1, 8, True, 1)
    assert (third.each, third.workers, third.phase, third.nodes) == (4, 2, "waiting", 0)
    assert fourth.phase == "away"
    raw = msgspec.json.encode(made)
    assert msgspec.json.decode(raw, type=Sight) == made


def test_doubt_is_how_far_rates_may_be_below_what_is_predicted() -> None:
    rates = ((1, 900), (2, 1500), (4, 2000))
    for low, doubt in (
        ((), 0),
        (rates, 1),
        (((1, 900), (2, 1500), (4, 1500)), 250),
        (((1, 600), (2, 1500), (4, 1900)), 334),
        (((8, 5),), 0),
    ):
        one = job("j1", 1, elastic=(1, 4), rates=rates, rates_low=low)
        assert job_sight(one).doubt == doubt


def test_rows_say_how_long_jobs_ran_and_have_left() -> None:
    whole = seen()
    scene = Scene.of(whole)
    found = times(scene.raw, NOW / NS_PER_SECOND)
    for row, each in enumerate(whole.jobs):
        left = each.remaining(NOW)
        assert scene.names[row] == each.job
        assert found.ran[row] == pytest.approx(each.ran(NOW) / NS_PER_SECOND)
        assert found.known[row] == (left is not None)
        assert found.remaining[row] == pytest.approx((left or 0) / NS_PER_SECOND)
        assert found.age[row] == pytest.approx((NOW - each.submitted_at) / NS_PER_SECOND)


def test_differences_name_changed_new_and_gone_jobs() -> None:
    before = seen()
    jobs = list(before.jobs)
    jobs[1] = msgspec.structs.replace(jobs[1], left=Duration(5))
    later = view([*jobs[1:], job("j9")], nodes=3, now=NOW + 1)
    made = changes(sight_of(before, 1), sight_of(later, 2))
    assert [each.job for each in made.jobs] == ["j2", "j9"]
    assert (made.gone, made.whole, made.number, made.at) == (("j1",), False, 2, NOW + 1)
    assert made.room == sight_of(later, 2).room


def test_what_is_shown_has_bounds() -> None:
    rates = tuple((size, 10 * size) for size in range(1, 200))
    wide = job_sight(job("j1", 40, on=[("n1", 40)], workers=40, elastic=(1, 199), rates=rates))
    assert len(wide.rates) == CURVE_MAX
    assert {1, 39, 40, 41, 199, 32, 64, 128} <= {size for size, _ in wide.rates}
    runs = job(f"j{SEEN_MAX + 5}", 1, on=[("n1", 1)])
    crowd = view([*(job(f"j{at}") for at in range(1, SEEN_MAX + 3)), runs])
    names = [each.job for each in sight_of(crowd, 0).jobs]
    assert len(names) == SEEN_MAX
    assert (names[0], names[-1]) == ("j1", runs.job)


def test_arrivals_are_known_after_two_hours() -> None:
    scene, at = Scene(), 0.0
    for number in range(6):  # A job every half hour.
        at = NOW / NS_PER_SECOND + number * HOUR / 2
        came = job(f"j{number + 1}", 2, needs=60)
        came = msgspec.structs.replace(came, submitted_at=seconds(at))
        now = view([came], now=seconds(at + 1))
        assert scene.follow(msgspec.structs.replace(sight_of(now, number), whole=True))
    row = scene.cluster(at + 1, times(scene.raw, at + 1))
    assert row[c.HISTORY] == pytest.approx(2.5 * HOUR)
    assert (row[c.ARRIVED], row[c.ARRIVED_BEFORE], row[c.ARRIVED_WORK]) == (2, 2, 240)


def test_a_gap_asks_for_a_whole_sight() -> None:
    scene = Scene()
    part = Sight(vc="a", number=4, whole=False, at=NOW, gpus=4, free=4, node_gpus=4)
    assert not scene.follow(part)
    assert scene.follow(sight_of(seen(), 3))
    assert not scene.follow(msgspec.structs.replace(part, number=5))
    assert scene.follow(part)
    assert len(scene.names) == 4
    assert not scene.follow(part)
    fewer = msgspec.structs.replace(part, number=5, gone=("j1", "j3"))
    assert scene.follow(fewer)
    scene.check()
    scene.names.reverse()
    with pytest.raises(AssertionError):
        scene.check()


def test_differences_that_come_to_too_many_jobs_are_not_followed() -> None:
    scene = Scene.of(seen())
    one = job_sight(job("j1", 1))
    for number in (1, 2):
        many = tuple(
            msgspec.structs.replace(one, job=f"j{number}{at}", sequence=at)
            for at in range(SEEN_MAX)
        )
        sight = msgspec.structs.replace(sight_of(seen(), number), whole=False, jobs=many)
        follows = scene.follow(sight)
        assert not follows
        assert len(scene.names) <= 2 * SEEN_MAX
        scene.check()
    assert scene.follow(sight_of(seen(), 3)), "a whole one is"


def test_the_largest_sight_fits_the_bus() -> None:
    curve = tuple((workers, 10**9) for workers in range(1000, 1000 + CURVE_MAX))
    one = msgspec.structs.replace(
        job_sight(job("j1", 1)),
        phase="suspended",
        submitted_at=NOW,
        since=NOW,
        expected=Duration(INSTANT_MAX),
        left=Duration(INSTANT_MAX),
        rates=curve,
        slowdown=curve,
    )
    named = tuple(
        msgspec.structs.replace(one, job=f"j{10**9 + at}", sequence=10**9 + at)
        for at in range(SEEN_MAX)
    )
    whole = msgspec.structs.replace(sight_of(seen(), 1), jobs=named)
    assert len(encode(whole)) < MESSAGE_BYTES_MAX
