"""Gandiva's introspective mode on views: what it tries, with whom, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from skep.policy.gandiva import grow
from skep.policy.gandiva.packs import Units
from skep.policy.gandiva.rules import Rules
from skep.policy.gandiva.shares import shares
from skep.policy.plan import Action, Migrate, Pack, Plan, Resize, Suspend, Unpack
from skep.policy.registry import NoPolicy, make
from skep.policy.schedulers.gandiva import Gandiva
from skep.policy.view import JobView, Phase, TrialView, VcView
from skep.units import Duration, Instant, seconds
from skep.wire.reasons import Reason
from tests.policy_kit import NOW, job, told, view

GIB = 2**30
SOON = Instant(NOW + 1)
RULES = Rules(seconds(60))
MOVES = ("suspend", "release", "rebind", "migrate")
TIED = ("suspend", "release")
"""A job on CUDA goes on with the very GPUs that it had."""


def known(each: JobView, use: int, **more: Any) -> JobView:
    """Return a job that was measured: it uses so many thousandths of its GPUs' time."""
    return replace(each, **{"rate_milli": 4000, "utilisation": use, "memory": 4 * GIB, **more})


def runs(name: str, gpu: int, use: int, *, since: float = 30, **more: Any) -> JobView:
    """Return a measured job on one GPU of n1; its slice is not over."""
    there = job(name, on=[("n1", 1)], ran=500, since=since, can=MOVES, devices=(("n1", (gpu,)),))
    return known(replace(there, waiting_since=there.since), use, **more)


def stood(name: str, gpu: int, use: int, **more: Any) -> JobView:
    """Return a measured job that was suspended a while ago on a GPU of n1: it is not due yet."""
    since = Instant(NOW - seconds(20))
    each = replace(
        job(name, ran=100, can=MOVES),
        phase=Phase.AWAY,
        since=since,
        waiting_since=since,
        nodes=(("n1", 1),),
        devices=(("n1", (gpu,)),),
    )
    return known(each, use, **more)


def packed(name: str, gpu: int, *beside: str, **more: Any) -> JobView:
    """Return a job on a GPU of n1 that it shares."""
    return runs(name, gpu, 300, partners=beside, **more)


def seen(jobs: Sequence[JobView], size: int, **more: Any) -> VcView:
    """Return one node with GPUs of 16 GiB; who shares a GPU has none of its own."""
    holds = {each.job for each in jobs if not each.partners}
    leads = [each for each in jobs if each.partners and each.job < min(each.partners)]
    made = view([each for each in jobs if each.job in holds] + leads, nodes=1, size=size)
    nodes = tuple(replace(node, gpu_memory=16 * GIB) for node in made.nodes)
    ordered = tuple(sorted(jobs, key=lambda each: each.sequence))
    return replace(made, jobs=ordered, **{"nodes": nodes, **more})


def plan(shown: VcView, **options: Any) -> Plan:
    return make("gandiva", {"introspect": True, **options}).plan(shown)


def tried(guest: str, host: str) -> Pack:
    """Return a pack that is kept if it makes at least 5 % more than one alone."""
    return Pack(guest, host, Reason.BEST_PACKING, trial=True, needed_milli=1050)


def tries(shown: VcView, **options: Any) -> list[Action]:
    return list(plan(shown, **options).actions)


# --- packing -----------------------------------------------------------------------------------


def test_the_idlest_who_waits_goes_beside_the_idlest_who_runs() -> None:
    jobs = [runs("j1", 0, 500), runs("j2", 0, 100), stood("j3", 0, 200), stood("j4", 0, 90)]
    jobs[1] = replace(jobs[1], devices=(("n1", (1,)),))
    jobs[2:] = [replace(each, devices=(("n1", (1,)),)) for each in jobs[2:]]
    both = [("j4", "j2"), ("j3", "j1")]
    assert [
        (each.job, each.beside) for each in tries(seen(jobs, 2)) if isinstance(each, Pack)
    ] == both
    assert plan(seen(jobs, 2)).actions[0] == tried("j4", "j2")
    tied = [replace(each, can=TIED) for each in jobs]
    assert [each.job for each in tries(seen(tied, 2))] == ["j4"]
    assert make("gandiva", {}).plan(seen(jobs, 2)).actions == ()
    # What a move takes is no price of a turn.
    paused = [replace(each, pause=seconds(40)) for each in jobs]
    assert tries(seen(paused, 2))[0] == tried("j4", "j2")


def test_as_many_are_packed_as_there_are_too_many() -> None:
    jobs = [*(runs(f"j{n}", n - 1, 100 * n) for n in (1, 2, 3)), stood("j4", 0, 50)]
    five = [*jobs, stood("j5", 1, 60)]
    assert told(plan(seen(jobs, 3))) == "-j4"
    assert [each.job for each in tries(seen(five, 3))] == ["j4", "j5"]
    assert tries(seen(jobs[:3], 3)) == []


@pytest.mark.parametrize("home", [(), (("n1", 2),)])
def test_where_a_gang_has_stood_for_long_nothing_is_tried(
    home: tuple[tuple[str, int], ...],
) -> None:
    def shown(stands: float) -> VcView:
        since = Instant(NOW - seconds(stands))
        gang = replace(
            job("j9", gpus=2, ran=100 if home else 0, can=MOVES),
            waiting_since=since,
            since=since,
            nodes=home,
            phase=Phase.AWAY if home else Phase.WAITING,
        )
        there = [runs("j1", 0, 100, since=5), runs("j2", 1, 200, since=5), stood("j3", 0, 50)]
        return seen([*there, gang], 2)

    assert tries(shown(239)) == [tried("j3", "j1")]
    assert tries(shown(240)) == []


def test_on_a_crowded_server_whose_jobs_cannot_leave_it_they_are_packed_too() -> None:
    there = [replace(each, can=TIED) for each in (runs("j1", 0, 100), stood("j2", 0, 100))]
    shown = view(there, nodes=2, size=1)
    nodes = tuple(replace(node, gpu_memory=16 * GIB) for node in shown.nodes)
    assert told(plan(replace(shown, nodes=nodes))) == "-j2"


@pytest.mark.parametrize(
    "guest, host",
    [
        ({"utilisation": -1}, {}),
        ({"memory": 0}, {}),
        ({}, {"rate_milli": 0}),
        ({"memory": 13 * GIB}, {}),
        ({"trial": 7}, {}),
        ({}, {"trial": 7}),
        ({}, {"can": ("suspend",)}),
        ({"devices": (("n1", (1,)),), "can": TIED}, {}),
    ],
)
def test_nobody_is_packed_who_was_not_measured_does_not_fit_or_is_tried(
    guest: dict[str, Any], host: dict[str, Any]
) -> None:
    waits, there = stood("j2", 0, 100), runs("j1", 0, 100)
    assert tries(seen([there, waits], 1)) == [tried("j2", "j1")]
    assert tries(seen([replace(there, **host), replace(waits, **guest)], 1)) == []


def test_without_knowing_the_gpus_memory_nobody_is_packed() -> None:
    shown = seen([runs("j1", 0, 100), stood("j2", 0, 100)], 1)
    blind = replace(shown, nodes=tuple(replace(node, gpu_memory=0) for node in shown.nodes))
    assert tries(blind) == []


def test_what_cools_down_is_left_alone_and_the_next_is_tried() -> None:
    jobs = [runs("j1", 0, 100), stood("j2", 0, 100), stood("j3", 0, 200)]
    cools = TrialView("pack", ("a/j1", "a/j2"), SOON)
    assert [each.job for each in tries(seen(jobs, 1))] == ["j2"]
    assert [each.job for each in tries(seen(jobs, 1, cooling=(cools,)))] == ["j3"]
    over = replace(cools, until=NOW)
    assert [each.job for each in tries(seen(jobs, 1, cooling=(over,)))] == ["j2"]


def test_two_that_were_tried_often_enough_are_left_alone_and_others_like_them_are_not() -> None:
    jobs = [runs("j1", 0, 100), stood("j2", 0, 100), stood("j3", 0, 200)]
    often = TrialView("pack", (), SOON, ("j1", "j2"))
    assert tries(seen(jobs, 1, cooling=(often,))) == [tried("j3", "j1")]
    assert tries(seen(jobs[:2], 1, cooling=(often,))) == []


@pytest.mark.parametrize("more", [{"measured": False}, {"trial_after": SOON}])
def test_what_would_not_be_begun_is_not_proposed_and_the_next_is_tried(
    more: dict[str, Any],
) -> None:
    jobs = [runs("j1", 0, 100), stood("j2", 0, 100, **more), stood("j3", 0, 200)]
    assert tries(seen(jobs, 1)) == [tried("j3", "j1")]
    moved = replace(jobs[1], measured=True, trial_after=Instant(0), move_after=SOON)
    assert tries(seen([jobs[0], moved, jobs[2]], 1)) == [tried("j2", "j1")]
    shown = plan(seen(jobs, 1, trial_after=SOON))
    assert (shown.actions, shown.look_at) == ((), SOON)


def test_who_hurts_his_neighbour_leaves_him_before_others_are_packed() -> None:
    pair = [
        packed("j1", 0, "j2", since=61, rates=((1, 10_000),)),
        packed("j2", 0, "j1", since=61, rates=((1, 9_000),)),
    ]
    more = [runs("j3", 1, 100), stood("j4", 1, 100)]
    assert tries(seen([*pair, *more], 2)) == [Unpack("j2", Reason.INTERFERES)]
    calm = [replace(each, rates=()) for each in pair]
    assert tries(seen([*calm, *more], 2)) == [tried("j4", "j3")]


def test_turns_come_before_packs() -> None:
    """Who is due has the GPU for itself."""
    due = replace(stood("j2", 0, 100), waiting_since=Instant(NOW - seconds(100)))
    due = replace(due, since=due.waiting_since)
    shown = seen([runs("j1", 0, 100, since=90), due], 1)
    assert told(plan(shown)) == "-j1 +j2@n1"


def test_a_pack_counts_once_and_stays_while_others_take_turns() -> None:
    pair = [packed("j1", 0, "j2", since=900), packed("j2", 0, "j1", since=900)]
    due = replace(stood("j4", 1, 900), waiting_since=Instant(NOW - seconds(200)))
    shown = seen([*pair, runs("j3", 1, 900, since=200), due], 2)
    assert told(plan(shown)) == "-j3 +j4@n1"
    # What is free is given away: the pack has one GPU and not two.
    assert told(plan(seen([*pair, job("j3")], 2))) == "+j3@n1"


def mates(first: JobView, second: JobView) -> list[JobView]:
    """Return two of which it is known that they go well together."""
    return [
        replace(first, proven_partner=second.job, proven_milli=1600),
        replace(second, proven_partner=first.job, proven_milli=1600),
    ]


def test_who_goes_well_together_stands_and_goes_on_together() -> None:
    pair = mates(packed("j1", 0, "j2", since=70), packed("j2", 0, "j1", since=70))
    due = replace(stood("j3", 0, 900), waiting_since=Instant(NOW - seconds(200)))
    assert told(plan(seen([*pair, due], 1))) == "-j1 -j2 +j3@n1"
    away = mates(stood("j1", 0, 300), stood("j2", 0, 300))
    # Who leads has a turn, and the other follows it: without a trial, in overload or not.
    assert told(plan(seen(away, 1))) == "+j1@n1"
    leads = replace(runs("j1", 0, 300, since=1), proven_partner="j2", proven_milli=1600)
    shown = seen([leads, away[1], due], 1)
    assert tries(shown) == [Pack("j2", "j1", Reason.BEST_PACKING)]
    # What keeps it from that for long is not waited for: it has a turn of its own.
    late = replace(leads, since=Instant(NOW - seconds(40)))
    assert tries(seen([late, away[1], due], 1))[0] == tried("j2", "j1")


def test_a_pack_takes_no_turn_while_one_of_it_leaves() -> None:
    late = seconds(90)
    one, other = mates(packed("j1", 0, "j2", since=90), packed("j2", 0, "j1", since=90))
    waits = Instant(NOW - late)
    due = replace(stood("j3", 0, 300), waiting_since=waits, since=waits)
    assert told(plan(seen([one, other, due], 1))) == "-j1 -j2 +j3@n1"
    leaves = replace(other, phase=Phase.STOPPING)
    assert told(plan(seen([one, leaves, due], 1))) == ""


def test_a_pack_has_its_gpus_for_longer_than_one_alone() -> None:
    """Each of two that make 1.6 together makes as much as the third: 5/9 of the time at 0.8."""
    policy = Gandiva(introspect=True)
    pair = mates(packed("j1", 0, "j2"), packed("j2", 0, "j1"))
    units, both = Units(RULES), seen([*pair, stood("j3", 0, 900)], 1)

    def shared(shown: VcView) -> dict[str, float]:
        units.follow(shown)
        turning = tuple(job for _, job in units.changes.values() if job is not None)
        return shares(replace(shown, jobs=turning), policy.weigh)

    assert shared(both) == pytest.approx({"j1": 5 / 9, "j3": 4 / 9})
    alone = replace(runs("j1", 0, 300), proven_partner="j9", proven_milli=1600)
    units = Units(RULES)
    assert shared(seen([alone, stood("j3", 0, 900)], 1)) == pytest.approx({"j1": 0.5, "j3": 0.5})


def test_a_higher_priority_takes_the_gpu_of_a_pack() -> None:
    pair = [packed("j1", 0, "j2"), packed("j2", 0, "j1")]
    shown = plan(seen([*pair, job("j3", priority=5)], 1))
    assert told(shown) == "-j1 -j2 +j3@n1"
    assert all(isinstance(each, Suspend) for each in shown.actions)
    assert tries(seen([*pair, job("j3")], 1)) == []


def test_who_shares_gets_gpus_of_its_own_once_some_are_free_and_it_is_quiet() -> None:
    pair = [packed("j1", 0, "j2"), packed("j2", 0, "j1")]
    assert tries(seen(pair, 2)) == [Unpack("j2", Reason.OWN_GPUS)]
    assert tries(seen(pair, 1)) == []
    last = Instant(NOW - seconds(10))
    early = plan(seen(pair, 2, quiet_since=last))
    assert (early.actions, early.look_at) == ((), last + seconds(60))
    on_trial = [replace(each, trial=3) for each in pair]
    assert tries(seen(on_trial, 2)) == []


def test_who_hurts_his_neighbour_leaves_him() -> None:
    """The rates of both alone are known: together they make less than turns would."""
    pair = [packed("j1", 0, "j2", rates=((1, 10_000),)), packed("j2", 0, "j1", rates=((1, 9_000),))]
    pair = [replace(each, since=Instant(NOW - seconds(61))) for each in pair]
    assert tries(seen(pair, 1)) == [Unpack("j2", Reason.INTERFERES)]
    # Who has just gone on was measured while he stood.
    again = [pair[0], replace(pair[1], since=Instant(NOW - seconds(10)))]
    assert tries(seen(again, 1)) == []
    fine = [replace(each, rates=((1, 6_000),)) for each in pair]
    assert tries(seen(fine, 1)) == []
    # Turns lose little, whatever it takes to move one of them.
    paused = [replace(each, pause=seconds(40)) for each in pair]
    assert tries(seen(paused, 1)) == [Unpack("j2", Reason.INTERFERES)]


# --- migration -----------------------------------------------------------------------------------


SLOW = ((1, 1000), (2, 1500))
PAYS = round(1000 * 3600 / 3590)
"""What has to be gained for a pause of 10 s in the hour that is left."""


def gang(name: str, *on: tuple[str, int], **more: Any) -> JobView:
    """Return a gang that runs there, half as fast again on one node as on two, for an hour yet."""
    gpus = sum(each for _, each in on)
    there = job(name, gpus, on=on, ran=500, since=30, needs=4100, can=(*MOVES, "resize"))
    return replace(there, **{"slowdown": SLOW, "rate_milli": 4000, **more})


def test_a_scattered_gang_goes_where_it_is_together_once_there_is_room() -> None:
    apart = gang("j1", ("n1", 2), ("n2", 2))
    tried = Migrate("j1", Reason.CLOSER, ("n3",), trial=True, needed_milli=PAYS)
    assert tries(view([apart], nodes=3)) == [tried]
    assert tries(view([apart, gang("j2", ("n3", 1), can=TIED)], nodes=3)) == []
    assert tries(view([apart], nodes=3, cooling=(TrialView("migrate", ("a/j1",), SOON),))) == []


def test_who_may_not_be_moved_keeps_nobody_from_it() -> None:
    apart = [gang("j1", ("n1", 2), ("n2", 2)), gang("j2", ("n1", 2), ("n2", 2))]
    assert [each.job for each in tries(view(apart, nodes=3))] == ["j1"]
    mores: list[dict[str, Any]] = [{"move_after": SOON}, {"trial_after": SOON}, {"rate_milli": 0}]
    for more in mores:
        shown = view([replace(apart[0], **more), apart[1]], nodes=3)
        assert [each.job for each in tries(shown)] == ["j2"]
    assert tries(view(apart, nodes=3, move_after=SOON)) == []


@pytest.mark.parametrize(
    "more",
    [
        {"slowdown": ()},
        {"slowdown": ((1, 1000), (2, 1010))},
        {"trial": 1},
        {"partners": ("j9",)},
        {"can": ("suspend",)},
        {"pause": seconds(2000)},
        {"slowdown": ((2, 1000), (3, 1500))},
    ],
)
def test_a_gang_stays_where_a_move_would_not_pay_or_cannot_be(more: dict[str, Any]) -> None:
    assert tries(view([gang("j1", ("n1", 2), ("n2", 2), **more)], nodes=3)) == []


def stands(name: str, gpus: int, *on: tuple[str, int], since: float = 100, **more: Any) -> JobView:
    """Return a job that was suspended so many seconds ago, and may go on elsewhere."""
    at = Instant(NOW - seconds(since))
    each = job(name, gpus, ran=100, on=on, phase=Phase.AWAY, **{"can": MOVES, **more})
    return replace(each, since=at, waiting_since=at)


def singles(*on: str, since: float = 90) -> list[JobView]:
    """Return jobs of one GPU, j1 and so on, on nodes."""
    each = [job(f"j{n}", ran=since, since=since, on=[(node, 1)]) for n, node in enumerate(on, 1)]
    return [replace(one, waiting_since=one.since, can=MOVES) for one in each]


def test_a_scattered_gang_is_brought_together_at_its_turn() -> None:
    jobs = singles("n1", "n1", "n2", "n2")
    apart = stands("j5", 2, ("n1", 1), ("n2", 1), family="f")
    together = told(plan(view([*jobs, apart], size=2)))
    assert together == "-j1 -j2 +j5@n1"
    reactive = told(make("gandiva", {}).plan(view([*jobs, apart], size=2)))
    assert reactive == "-j2 -j3 +j5@n1,n2"
    # Those that left for it have homes there, and do not go back before it has come.
    left = [replace(each, phase=Phase.AWAY, waiting_since=NOW, since=NOW) for each in jobs[:2]]
    assert told(plan(view([*left, *jobs[2:], apart], size=2))) == "+j5@n1"


@pytest.mark.parametrize(
    "more",
    [
        {"can": ("suspend", "release", "rebind")},
        {"slowdown": ((1, 1000), (2, 1010))},
        {"left": Duration(seconds(5))},
        {"trial": 1},
    ],
)
def test_a_scattered_gang_has_its_turn_at_home_where_no_move_pays(more: dict[str, Any]) -> None:
    apart = replace(stands("j5", 2, ("n1", 1), ("n2", 1)), **more)
    seen = view([*singles("n1", "n1", "n2", "n2"), apart], size=2)
    assert told(plan(seen)) == "-j2 -j3 +j5@n1,n2"


def test_a_job_beside_a_larger_one_has_its_turn_where_jobs_of_its_size_are() -> None:
    """Once it has lost its patience: alone on a server it would leave the rest of it idle."""
    large = replace(job("j9", 4, ran=90, since=90, on=[("n1", 4)]), can=MOVES)
    large = replace(large, waiting_since=large.since)
    jobs = [*singles("n2", "n2", "n2", "n2"), large]
    lost = stands("j5", 1, ("n1", 1), since=1000)
    assert told(plan(view([*jobs, lost]))) == "-j1 +j5@n2"
    first = replace(jobs[0], phase=Phase.AWAY, waiting_since=NOW, since=NOW)
    assert told(plan(view([first, *jobs[1:], lost]))) == "+j5@n2"
    assert told(plan(view([*jobs, stands("j5", 1, ("n1", 1))]))) == "-j9 +j5@n1"
    assert told(make("gandiva", {}).plan(view([*jobs, lost]))) == "-j9 +j5@n1"


def came(name: str, gpus: int, **more: Any) -> JobView:
    """Return a job that has just come: nobody's slice is over for it yet."""
    return replace(job(name, gpus, **more), submitted_at=NOW, waiting_since=NOW)


def small(name: str, node: str, **more: Any) -> JobView:
    return gang(name, (node, 1), **more)


def test_a_server_is_cleared_for_a_gang_that_then_fits_as_a_whole() -> None:
    there = [small("j1", "n1"), small("j2", "n2"), small("j3", "n2")]
    waits = came("j4", 4, hard=True)
    moved = Migrate("j1", Reason.MAKES_WHOLE, ("n2",), trial=True, needed_milli=980, defrag=True)
    assert tries(view([*there, waits])) == [moved]
    assert tries(view(there)) == []  # Nobody would have anything of it.
    assert tries(view([*there, waits]), defrag_free=1) == []
    assert tries(view([*there, came("j4", 6, workers=2, hard=True)])) == []
    leaves = replace(there[0], trial=4)
    assert tries(view([leaves, *there[1:], waits])) == []
    stays = replace(there[0], can=TIED)
    assert tries(view([stays, *there[1:], waits])) == []


def test_a_server_is_cleared_for_a_scattered_gang_that_gains_more_than_others_lose() -> None:
    apart = gang("j1", ("n1", 1), ("n2", 1))
    rest = [gang("j2", ("n1", 3)), gang("j3", ("n2", 3)), small("j4", "n3"), gang("j5", ("n4", 3))]
    shown = view([apart, *rest], nodes=4)
    assert tries(shown) == [Migrate("j1", Reason.CLOSER, ("n3",), trial=True, needed_milli=PAYS)]
    large = gang("j1", ("n1", 2), ("n2", 2))
    rest = [gang("j2", ("n1", 2)), gang("j3", ("n2", 2)), small("j4", "n3"), gang("j5", ("n4", 3))]
    moved = Migrate("j4", Reason.MAKES_WHOLE, ("n4",), trial=True, needed_milli=980, defrag=True)
    assert tries(view([large, *rest], nodes=4)) == [moved]
    ends = replace(large, expected=seconds(530))
    assert tries(view([ends, *rest], nodes=4)) == []


# --- growing -------------------------------------------------------------------------------------


RATES = ((1, 4000), (2, 7600), (3, 9000), (4, 9500))


def elastic(name: str, node: str, workers: int = 1, asked: int = 1, **more: Any) -> JobView:
    there = gang(name, (node, workers), **{"rates": RATES, **more})
    spec = job(name, asked, elastic=(1, 4)).spec
    return replace(there, spec=spec, **more)


def test_idle_gpus_go_to_who_gains_the_most_by_them() -> None:
    alone = view([elastic("j1", "n1")], nodes=1)
    assert tries(alone) == [Resize("j1", Reason.MOST_GAIN, 2, trial=True, needed_milli=PAYS)]
    flat = ((1, 4000), (2, 4800), (3, 5000))
    two = view([elastic("j1", "n1", rates=flat), elastic("j2", "n1")], nodes=1)
    assert [(each.job, each.workers) for each in tries(two) if isinstance(each, Resize)] == [
        ("j2", 2),
        ("j1", 2),
    ]
    full = view([elastic("j1", "n1"), gang("j2", ("n1", 3))])
    assert tries(full) == []  # Only up to the GPUs of its server.


def test_nobody_grows_before_it_is_quiet_or_while_somebody_waits() -> None:
    last = Instant(NOW - seconds(20))
    early = plan(view([elastic("j1", "n1")], nodes=1, quiet_since=last))
    assert (early.actions, early.look_at) == ((), last + seconds(60))
    soon = view([elastic("j1", "n1")], nodes=1, quiet_since=last)
    assert len(tries(soon, grow_after_s=10)) == 1
    waits = view([elastic("j1", "n1"), came("j2", 4, hard=True)], nodes=1)
    assert tries(waits) == []


@pytest.mark.parametrize(
    "more",
    [
        {"rates": ((1, 4000), (2, 4010))},
        {"trial": 1},
        {"can": MOVES},
        {"rate_milli": 0},
        {"expected": seconds(505)},
        {"pause": seconds(3000)},
    ],
)
def test_nobody_grows_who_would_not_gain_or_cannot(more: dict[str, Any]) -> None:
    assert tries(view([elastic("j1", "n1", **more)], nodes=1)) == []
    cools = (TrialView("grow", ("a/j1",), SOON),)
    assert tries(view([elastic("j1", "n1")], nodes=1, cooling=cools)) == []
    assert tries(view([elastic("j1", "n1", trial_after=SOON)], nodes=1)) == []
    assert tries(view([elastic("j1", "n1", move_after=SOON)], nodes=1)) != []


def test_where_nobody_knows_twice_as_many_are_tried() -> None:
    shown = view([elastic("j1", "n1", rates=((1, 4000),))], nodes=1)
    assert [each.workers for each in tries(shown) if isinstance(each, Resize)] == [2]


def test_who_has_grown_gives_back_what_a_new_job_needs_before_anybody_is_suspended() -> None:
    grown, other = elastic("j1", "n1", workers=3), gang("j2", ("n1", 1))
    new = came("j3", 1)
    shown = plan(view([grown, other, new], nodes=1))
    assert shown.actions == (Resize("j1", Reason.GPUS_NEEDED, 2),)
    assert [turn.job for turn in shown.turns] == ["j3"]
    two = plan(view([grown, other, new, job("j4", 1)], nodes=1))
    assert two.actions == (Resize("j1", Reason.GPUS_NEEDED, 1),)
    # At once, also while the growth is tried; but never below what it asked for.
    tried = plan(view([replace(grown, trial=2), other, new], nodes=1))
    assert tried.actions == shown.actions
    assert tries(view([elastic("j1", "n1", workers=3, asked=3), other, new], nodes=1)) == []


def test_who_has_grown_gives_back_down_to_a_size_that_it_offers() -> None:
    """Four GPUs: it has three or four, and the new job needs one that is not free."""
    other, new = gang("j2", ("n1", 1)), came("j3", 1)
    grown = replace(elastic("j1", "n1", workers=3), sizes=(1, 3, 4))
    assert plan(view([grown, other, new], nodes=1)).actions == (
        Resize("j1", Reason.GPUS_NEEDED, 1),
    )
    # Where its spec asks for two, which it does not offer, it gives back nothing.
    stays = replace(elastic("j1", "n1", workers=3, asked=2), sizes=(1, 3, 4))
    made = plan(view([stays, other, new], nodes=1))
    assert not [each for each in made.actions if isinstance(each, Resize)]


def test_a_new_job_goes_where_it_would_had_nobody_grown_and_who_has_grown_there_shrinks() -> None:
    """Else a gang would be scattered over what is free."""
    grown, other = elastic("j1", "n1", workers=3), gang("j2", ("n2", 2))
    shown = plan(view([grown, other, came("j3", 3)]))
    assert shown.actions == (Resize("j1", Reason.GPUS_NEEDED, 1),)
    assert [(turn.job, turn.nodes) for turn in shown.turns] == [("j3", ("n1",))]
    # Who has all that it asked for has not grown.
    scattered = plan(view([elastic("j1", "n1", workers=3, asked=3), other, came("j3", 3)]))
    assert told(scattered) == "+j3@n2,n1"
    # Who was somewhere before has not just come: it goes to what is free.
    since = Instant(NOW - seconds(20))
    stands = replace(
        job("j3", 2, ran=100, can=MOVES),
        phase=Phase.AWAY,
        since=since,
        waiting_since=since,
        nodes=(("n1", 2),),
    )
    assert told(plan(view([grown, other, stands]))) == "+j3@n2"


def test_who_has_grown_where_nobody_comes_or_there_is_room_does_not_shrink() -> None:
    grown, other = elastic("j1", "n1", workers=3), gang("j2", ("n2", 2))
    more = [elastic("j4", "n3", workers=2), gang("j5", ("n3", 2))]
    assert told(plan(view([grown, other, *more, came("j6", 3)], nodes=3))) == "j1=1 +j6@n1"
    assert told(plan(view([grown, other, *more, came("j6", 1)], nodes=3))) == "+j6@n1"
    # It is as large as it was in the next plan.
    policy = make("gandiva", {"introspect": True}).planner()
    policy(view([grown, other, came("j6", 1)]))
    placed = job("j6", on=[("n1", 1)], since=1)
    assert told(policy(view([grown, other, placed, came("j7", 3)]))) == "j1=2 +j7@n1,n2"


def test_nobody_gives_back_more_than_a_new_job_needs_beyond_what_is_free() -> None:
    grown, other = elastic("j1", "n1", workers=4), gang("j2", ("n2", 3))
    assert told(plan(view([grown, other, came("j3", 1)]))) == "j1=3 +j3@n1"
    # Several have it from one.
    assert told(plan(view([grown, other, came("j3", 1), came("j4", 1)]))) == "j1=2 +j3@n1 +j4@n1"
    # What is left of a worker's GPUs is for the next.
    large = replace(elastic("j5", "n1", workers=2), gpus=4, nodes=(("n1", 4),))
    more = [large, elastic("j6", "n1", workers=2), gang("j7", ("n1", 2))]
    news = [came("j8", 1), came("j9", 1)]
    assert told(plan(view([*more, *news], nodes=1, size=8))) == "j5=1 +j8@n1 +j9@n1"
    # A gang goes whole to where others have grown.
    assert told(plan(view([grown, gang("j2", ("n2", 2)), came("j3", 3)]))) == "j1=1 +j3@n1"


def test_a_new_gang_on_several_nodes_takes_what_is_free_of_each_first() -> None:
    there = [elastic("j1", "n1", workers=3), gang("j2", ("n2", 2))]
    assert told(plan(view([*there, came("j3", 5)]))) == "j1=1 +j3@n1,n2"
    assert told(plan(view([*there, came("j3", 4)]))) == "j1=2 +j3@n1,n2"
    # If that is enough nobody gives anything back.
    full = [elastic("j1", "n1", workers=2), gang("j2", ("n2", 2)), gang("j4", ("n1", 1))]
    assert told(plan(view([*full, came("j3", 3)]))) == "+j3@n1,n2"


def test_what_is_given_back_makes_room_for_whole_workers_and_in_the_vc() -> None:
    there = [elastic("j1", "n1", workers=2), gang("j2", ("n1", 1)), gang("j4", ("n2", 1))]
    assert told(plan(view([*there, came("j6", 4, workers=2)]))) == "j1=1 +j6@n1,n2"
    # Nodes may have more free than is left to the VC.
    other = [gang("j4", ("n1", 3)), gang("j5", ("n2", 3)), came("j6", 2)]
    seen = view([elastic("j1", "n3", workers=2), gang("j2", ("n3", 2)), *other], nodes=3)
    assert told(plan(replace(seen, free=1, gpus=seen.gpus - 1))) == "j1=1 +j6@n1,n2"


def test_who_is_suspended_for_a_new_job_spares_others_from_shrinking() -> None:
    stood = replace(
        came("j6", 5),
        submitted_at=Instant(NOW - seconds(100)),
        waiting_since=Instant(NOW - seconds(100)),
    )
    there = [
        elastic("j1", "n1", workers=3),
        job("j2", 1, on=[("n1", 1)], ran=500, since=300),
        gang("j5", ("n2", 4), since=300),
    ]
    assert told(plan(view([*there, stood]))) == "j1=2 -j5 +j6@n2,n1"


def test_who_has_grown_is_as_large_as_it_is_for_what_is_tried_beside_turns() -> None:
    """Else a server would count as cleared by a move that leaves it as full as it is."""
    there = [
        elastic("j1", "n1", workers=2),
        gang("j6", ("n1", 1)),
        *(gang(f"j{n}", (f"n{n}", 15)) for n in (2, 3)),
    ]
    new = came("j7", 15, hard=True)
    assert tries(view([*there, new], nodes=3, size=16)) == []
    # Who has never grown is moved.
    moved = Migrate("j1", Reason.MAKES_WHOLE, ("n2",), trial=True, needed_milli=980, defrag=True)
    asked = [elastic("j1", "n1"), *there[1:], new]
    assert tries(view(asked, nodes=3, size=16)) == [moved]


def test_turns_see_who_has_grown_as_it_is_once_nobody_comes() -> None:
    units, grown = Units(RULES), elastic("j1", "n1", workers=3)
    units.follow(view([grown, came("j2", 1)]))
    smaller = grow.asked(units.known)
    assert [job.gpus for job in smaller.values()] == [1]
    units.lessen(smaller)
    assert units.known.jobs["j1"] == smaller["j1"]
    units.restore({"j1": grown})
    assert units.known.jobs["j1"] == units.known.grown["j1"] == grown
    assert next(iter(units.changes.values())) == (None, smaller["j1"])
    units.follow(view([grown]))
    assert units.changes["j1"] == (smaller["j1"], grown)


# --- health --------------------------------------------------------------------------------------


def hung(name: str, *, told: float, **more: Any) -> JobView:
    """Return a job of which it was told so many seconds ago that it makes nothing any more."""
    there = {"rate_milli": 0, "steps": 900, "steps_at": Instant(NOW - seconds(told)), "trial": 0}
    return small(name, "n1", **{"since": Instant(NOW - seconds(5000)), **there, **more})


def test_who_makes_nothing_for_long_stands_back_for_who_waits() -> None:
    # It cannot be suspended for another size before its slice is over, and this one was just told.
    waits = replace(stood("j2", 0, 900), gpus=1, can=TIED, devices=(("n1", (0,)),))
    shown = view([hung("j1", told=700, since=Instant(NOW - seconds(5000))), waits], nodes=1, size=1)
    assert [(each.job, each.why) for each in tries(shown)] == [("j1", Reason.NO_PROGRESS)]
    early = plan(view([hung("j1", told=300), waits], nodes=1, size=1))
    assert early.actions == ()
    assert early.look_at is not None
    assert early.look_at <= NOW + seconds(300)
    assert tries(view([hung("j1", told=700)], nodes=1, size=1)) == []
    assert tries(shown, stalled_s=0) == []
    never = view([hung("j1", told=700, steps=0), waits], nodes=1, size=1)
    assert tries(never) == []


def test_who_does_not_use_its_gpus_stands_back_if_that_is_wanted() -> None:
    waits = replace(stood("j2", 0, 900), can=TIED)
    idle = hung("j1", told=400, rate_milli=10, utilisation=0)
    shown = view([idle, waits], nodes=1, size=1)
    assert tries(shown) == []
    assert [each.why for each in tries(shown, idle_s=300)] == [Reason.GPUS_UNUSED]
    assert tries(shown, idle_s=500) == []


@pytest.mark.parametrize(
    "options", [{"defrag_free": 0}, {"defrag_free": 1.5}, {"grow_after_s": -1}, {"stalled_s": -1}]
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(NoPolicy, match=next(iter(options))):
        make("gandiva", options)
