"""Packs on views: begun only where somebody else needs the GPUs, and parted where that is over."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from skep.policy.gandiva import pack
from skep.policy.gandiva.packs import LATE_SLICES, OTHERWISE, Units
from skep.policy.plan import Pack, Plan, Unpack
from skep.policy.registry import make
from skep.policy.view import JobView, Phase, VcView
from skep.units import Instant, seconds
from skep.wire.reasons import Reason
from tests.policy_kit import NOW, job, told
from tests.unit.test_introspective import (
    MOVES,
    RULES,
    TIED,
    came,
    known,
    mates,
    packed,
    plan,
    runs,
    seen,
    stood,
    tried,
    tries,
)

TOGETHER = 1600
"""What mates made together when their pack was kept."""


def stands(name: str, gpus: int = 4) -> JobView:
    """Return a gang of n1 that was suspended a while ago: it is not due yet."""
    since = Instant(NOW - seconds(20))
    gang = replace(
        job(name, gpus, ran=100, can=MOVES),
        phase=Phase.AWAY,
        since=since,
        waiting_since=since,
        nodes=(("n1", gpus),),
    )
    return known(gang, 900)


def packs(*jobs: JobView) -> list[Pack]:
    """Return what is packed on a node of four GPUs where turns change nothing.

    So it is while GPUs that are free have to be kept for somebody.
    """
    units, shown = Units(RULES), seen(jobs, 4)
    units.follow(shown)
    return pack.pack(shown, units.known, Plan(), RULES)


# --- where packs are begun -----------------------------------------------------------------------


def test_who_has_gpus_of_its_own_whenever_the_other_runs_is_not_packed_with_it() -> None:
    """A gang of all GPUs stands in any case while one of them runs: nobody needs their GPUs."""
    there = [stands("j1"), runs("j2", 0, 100), stood("j3", 0, 90)]
    assert packs(*there) == []
    # All four singles have a GPU while the gang stands.
    full = [*there, stood("j4", 0, 300), stood("j5", 0, 400)]
    assert packs(*full) == []
    assert [each.beside for each in packs(*full, stood("j6", 0, 500))] == ["j2"]


def test_where_singles_want_more_than_a_gang_leaves_them_they_are_packed() -> None:
    """A gang of three and a single run beside one another: so the gang wants GPUs as well."""
    there = [runs("j2", 0, 100), stood("j3", 0, 90)]
    assert packs(stands("j1"), *there) == []
    assert packs(stands("j1", 3), *there) == [tried("j3", "j2")]


def test_who_has_just_come_wants_gpus_as_well_wherever_it_goes() -> None:
    there = [stands("j1"), runs("j2", 0, 100), stood("j3", 0, 90), stood("j4", 0, 300)]
    assert packs(*there, came("j5", 1)) == []
    assert packs(*there, came("j5", 1), came("j6", 1)) == [tried("j3", "j2")]
    assert packs(*there, came("j5", 2)) == [tried("j3", "j2")]
    # A new gang of all GPUs cannot run while one of them does.
    assert packs(*there, came("j5", 4)) == []


def test_a_new_gang_that_no_node_holds_wants_what_is_left_there() -> None:
    there = [stands("j1"), runs("j2", 0, 100), stood("j3", 0, 90)]
    assert packs(*there, came("j5", 5)) == [tried("j3", "j2")]


def test_who_goes_on_with_its_very_own_gpus_only_is_packed_with_who_has_them() -> None:
    """It never runs beside that one otherwise, however many others are idle."""
    there = [stands("j1"), runs("j2", 0, 100)]
    assert packs(*there, stood("j3", 0, 90, can=TIED)) == [tried("j3", "j2")]
    for way in ("rebind", "migrate"):
        assert packs(*there, stood("j3", 0, 90, can=(*TIED, way))) == []


# --- where they part -----------------------------------------------------------------------------


def pair(**more: Any) -> list[JobView]:
    """Return two that go well together, on a GPU that they have had for 70 s."""
    return mates(packed("j1", 0, "j2", since=70, **more), packed("j2", 0, "j1", since=70, **more))


def test_a_pack_parts_where_gpus_are_idle_beside_it_although_a_gang_waits() -> None:
    assert tries(seen([*pair(), stands("j3")], 4)) == [Unpack("j2", Reason.OWN_GPUS)]
    # One that fits beside the pack goes on there.
    assert told(plan(seen([*pair(), stands("j3", 3)], 4))) == "+j3@n1"


def test_a_pack_stays_while_others_have_all_gpus_or_want_them() -> None:
    waits, rest = stands("j3"), [runs(f"j{n}", n - 3, 100) for n in (4, 5, 6)]
    assert tries(seen([*pair(), waits, *rest], 4)) == []
    assert tries(seen([*pair(), waits, *rest[:2]], 4)) == [Unpack("j2", Reason.OWN_GPUS)]
    # A gang of three goes beside the pack once the third of them is free.
    assert tries(seen([*pair(), stands("j3", 3), rest[0]], 4)) == []
    # Who has stood on the one that is idle goes on there.
    assert told(plan(seen([*pair(), waits, *rest[:2], stood("j7", 3, 100)], 4))) == "+j7@n1"


def test_a_pack_does_not_part_within_a_slice_of_a_job_having_come() -> None:
    shown = seen([*pair(), stands("j3")], 4)
    calm = Instant(NOW - RULES.slice_ns)
    assert tries(replace(shown, quiet_since=Instant(calm + 1))) == []
    assert tries(replace(shown, quiet_since=calm)) == [Unpack("j2", Reason.OWN_GPUS)]


def goes(total: int, *, since: float = 61) -> VcView:
    """Return a GPU on which two that go well together make so many thousandths of one alone."""
    alone = {"rates": ((1, 1000),), "since": Instant(NOW - seconds(since))}
    first, second = (replace(each, **alone) for each in pair())
    jobs = [replace(first, rate_milli=total // 2), replace(second, rate_milli=total - total // 2)]
    return seen(jobs, 1)


@pytest.mark.parametrize("apart", [-OTHERWISE - 1, OTHERWISE + 1])
def test_a_pack_that_goes_otherwise_than_when_it_was_kept_is_parted_after_its_slice(
    apart: int,
) -> None:
    assert tries(goes(TOGETHER + apart)) == [Unpack("j2", Reason.INTERFERES)]
    assert tries(goes(TOGETHER + apart, since=59)) == []


@pytest.mark.parametrize("apart", [-OTHERWISE, 0, OTHERWISE])
def test_a_pack_that_goes_about_as_when_it_was_kept_stays(apart: int) -> None:
    assert tries(goes(TOGETHER + apart)) == []


def test_what_nobody_measured_is_held_against_nothing() -> None:
    shown = goes(TOGETHER + 2 * OTHERWISE)
    apart = [replace(each, proven_partner="", proven_milli=0) for each in shown.jobs]
    assert tries(replace(shown, jobs=tuple(apart))) == []
    blind = [replace(each, rates=()) for each in shown.jobs]
    assert tries(replace(shown, jobs=tuple(blind))) == []


# --- who is tried, and who has come ---------------------------------------------------------------


def test_for_a_new_job_trials_make_way_after_a_slice_and_for_a_while() -> None:
    """A trial may last for many minutes, and a gang needs all GPUs of its node at once."""

    def shown(waits: float) -> VcView:
        since = Instant(NOW - seconds(waits))
        gang = replace(came("j9", 4), submitted_at=since, waiting_since=since)
        there = [runs(f"j{number}", number - 1, 300) for number in range(1, 5)]
        return seen([replace(there[0], trial=1), *there[1:], gang], 4)

    assert plan(shown(59)).turns == ()
    assert [turn.job for turn in plan(shown(60)).turns] == ["j9"]
    assert plan(shown(60 * LATE_SLICES)).turns == ()
    planner = make("gandiva", {"introspect": True}).planner()
    first = planner(shown(59))
    assert first.look_at is not None
    assert first.look_at <= NOW + seconds(1)
