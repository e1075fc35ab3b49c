"""Gandiva's introspective mode on views: what it tries, with whom, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from skep.policies.registry import make
from skep.units import Instant, seconds
from skep.view.plan import Action, Pack, Plan, Suspend, Unpack
from skep.view.view import JobView, Phase, TrialView, VcView
from skep.wire.reasons import Reason
from tests.policy_kit import NOW, job, told, view

GIB = 2**30
MOVES = ("suspend", "release", "rebind", "migrate")


def known(each: JobView, use: int, **more: Any) -> JobView:
    """Return a job that was measured: it uses so many thousandths of its GPUs' time."""
    return replace(each, **{"rate_milli": 4000, "utilisation": use, "memory": 4 * GIB, **more})


def runs(name: str, gpu: int, use: int, *, since: float = 30, **more: Any) -> JobView:
    """Return a measured job on one GPU of n1; its slice is not over."""
    there = job(name, on=[("n1", 1)], ran=500, since=since, can=MOVES,
                devices=(("n1", (gpu,)),))  # fmt: skip
    return known(replace(there, waiting_since=there.since), use, **more)


def stood(name: str, gpu: int, use: int, **more: Any) -> JobView:
    """Return a measured job that was suspended a while ago on a GPU of n1: it is not due yet."""
    since = Instant(NOW - seconds(20))
    each = replace(job(name, ran=100, can=MOVES), phase=Phase.AWAY, since=since,
                   waiting_since=since, nodes=(("n1", 1),), devices=(("n1", (gpu,)),))  # fmt: skip
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


def tries(shown: VcView, **options: Any) -> list[Action]:
    return list(plan(shown, **options).actions)


# --- packing -----------------------------------------------------------------------------------


def test_the_idlest_who_waits_goes_beside_the_idlest_who_runs() -> None:
    jobs = [runs("j1", 0, 500), runs("j2", 0, 100), stood("j3", 0, 200), stood("j4", 0, 90)]
    jobs[1] = replace(jobs[1], devices=(("n1", (1,)),))
    jobs[2:] = [replace(each, devices=(("n1", (1,)),)) for each in jobs[2:]]
    assert tries(seen(jobs, 2)) == [Pack("j4", "j2", Reason.BEST_PACKING, trial=True)]
    assert make("gandiva", {}).plan(seen(jobs, 2)).actions == ()
    paused = [replace(each, pause=seconds(1.2)) for each in jobs]
    assert tries(seen(paused, 2))[0] == Pack("j4", "j2", Reason.BEST_PACKING, trial=True,
                                             needed_milli=980)  # fmt: skip


def test_as_many_are_packed_as_there_are_too_many() -> None:
    jobs = [*(runs(f"j{n}", n - 1, 100 * n) for n in (1, 2, 3)), stood("j4", 0, 50)]
    five = [*jobs, stood("j5", 1, 60)]
    assert told(plan(seen(jobs, 3))) == "-j4"
    assert [each.job for each in tries(seen(five, 3))] == ["j4", "j5"]
    assert tries(seen(jobs[:3], 3)) == []


@pytest.mark.parametrize("guest, host", [
    ({"utilisation": -1}, {}), ({"memory": 0}, {}), ({}, {"rate_milli": 0}),
    ({"memory": 13 * GIB}, {}), ({"trial": 7}, {}), ({}, {"trial": 7}),
    ({}, {"can": ("suspend",)}), ({"devices": (("n1", (1,)),)}, {}),
])  # fmt: skip
def test_nobody_is_packed_who_was_not_measured_does_not_fit_or_is_tried(
    guest: dict[str, Any], host: dict[str, Any]
) -> None:
    waits, there = stood("j2", 0, 100), runs("j1", 0, 100)
    assert tries(seen([there, waits], 1)) == [Pack("j2", "j1", Reason.BEST_PACKING, trial=True)]
    assert tries(seen([replace(there, **host), replace(waits, **guest)], 1)) == []


def test_without_knowing_the_gpus_memory_nobody_is_packed() -> None:
    shown = seen([runs("j1", 0, 100), stood("j2", 0, 100)], 1)
    blind = replace(shown, nodes=tuple(replace(node, gpu_memory=0) for node in shown.nodes))
    assert tries(blind) == []


def test_what_cools_down_is_left_alone_and_the_next_is_tried() -> None:
    jobs = [runs("j1", 0, 100), stood("j2", 0, 100), stood("j3", 0, 200)]
    later = Instant(NOW + 1)
    cools = TrialView("pack", ("a/j1", "a/j2"), later)
    assert [each.job for each in tries(seen(jobs, 1))] == ["j2"]
    assert [each.job for each in tries(seen(jobs, 1, cooling=(cools,)))] == ["j3"]
    over = replace(cools, until=NOW)
    assert [each.job for each in tries(seen(jobs, 1, cooling=(over,)))] == ["j2"]


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
    came = Instant(NOW - seconds(10))
    early = plan(seen(pair, 2, quiet_since=came))
    assert (early.actions, early.look_at) == ((), came + seconds(60))
    on_trial = [replace(each, trial=3) for each in pair]
    assert tries(seen(on_trial, 2)) == []


def test_who_hurts_his_neighbour_leaves_him() -> None:
    """The rates of both alone are known: together they make less than turns would."""
    pair = [packed("j1", 0, "j2", rates=((1, 10_000),)), packed("j2", 0, "j1", rates=((1, 9_000),))]
    assert tries(seen(pair, 1)) == [Unpack("j2", Reason.INTERFERES)]
    fine = [replace(each, rates=((1, 6_000),)) for each in pair]
    assert tries(seen(fine, 1)) == []
