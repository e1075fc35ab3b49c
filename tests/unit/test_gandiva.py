"""Gandiva's reactive mode: turns by weight, priorities, gangs, and who goes to GPUs left by others.

What a test counts is the policy's own time: nothing here waits for a clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from skep.policy.gandiva.shares import OWED_SLICES_MAX, height, owed, shares
from skep.policy.plan import Plan, Suspend
from skep.policy.registry import make
from skep.policy.schedulers.gandiva import Gandiva
from skep.policy.view import JobView, Phase, VcView
from skep.units import Duration, Instant, seconds
from tests.policy_kit import NOW, begin, job, leave, told, view

SLICE = seconds(60)
MOVES = ("suspend", "release", "rebind", "migrate")
STAYS = ("suspend", "release", "rebind")


def away(name: str, gpus: int = 1, *, on: Sequence[tuple[str, int]], **more: Any) -> JobView:
    """Return a job that was suspended 100 s ago, after 100 s."""
    since = Instant(NOW - seconds(100))
    fields = {"ran": 100, "can": MOVES, **more}
    stood = {"phase": Phase.AWAY, "waiting_since": since}
    return replace(job(name, gpus, **fields), since=since, nodes=tuple(on), **stood)


def runs(name: str, gpus: int = 1, *, since: float = 90, **more: Any) -> JobView:
    """Return a job that runs since so many seconds, and did not wait before."""
    each = job(name, gpus, ran=since, since=since, **more)
    return replace(each, waiting_since=each.since)


def plan(seen: VcView, **options: Any) -> Plan:
    return make("gandiva", options).plan(seen)


class Loop:
    """A VC under the policy, in which everybody stops at a mini-batch boundary of his own."""

    def __init__(
        self,
        jobs: Sequence[JobView],
        boundary: Mapping[str, float] = {},
        nodes: int = 1,
        size: int = 1,
        **options: Any,
    ) -> None:
        self.policy = make("gandiva", options)
        self.boundary = {name: seconds(wait) for name, wait in boundary.items()}
        self.seen = view(jobs, nodes=nodes, size=size)
        self.leaves: dict[str, tuple[int, Suspend]] = {}
        self.suspensions = 0

    def until(self, end: float) -> dict[str, float]:
        """Go on until so many seconds have passed; return what part of them each has run."""
        last = Instant(NOW + seconds(end))
        while self.seen.now < last:
            plan_ = self.policy.plan(self.seen)
            self.suspensions += len(plan_.actions)
            for action in plan_.actions:
                assert isinstance(action, Suspend)
                at = self.seen.now + self.boundary.get(action.job, Duration(0))
                self.leaves[action.job] = at, action
            before, self.seen = self.seen, self._noted(begin(plan_, self.seen), plan_)
            if self.seen != before:
                continue  # Something happened: that asks for a plan.
            times = [at for at, _ in self.leaves.values()]
            if plan_.look_at is not None:
                times.append(plan_.look_at)
            now = Instant(min([*times, last]))
            self.seen = replace(self.seen, now=now)
            for name in [name for name, (at, _) in self.leaves.items() if at <= now]:
                self._stop(name)
        return {each.job: each.ran(self.seen.now) / seconds(end) for each in self.seen.jobs}

    def _noted(self, seen: VcView, plan_: Plan) -> VcView:
        noted = {action.job: action.owed for action in plan_.actions if isinstance(action, Suspend)}
        jobs = [
            replace(each, owed=noted[each.job], owed_at=seen.now, owed_ran=each.served)
            if each.job in noted
            else each
            for each in seen.jobs
        ]
        return replace(seen, jobs=tuple(jobs))

    def _stop(self, name: str) -> None:
        """Have a job reach its boundary: it ran until now."""
        _, action = self.leaves.pop(name)
        nodes = {each.job: each.nodes for each in self.seen.jobs}
        self.seen = leave(self.seen, action)
        jobs = [
            replace(each, since=self.seen.now, nodes=nodes[name]) if each.job == name else each
            for each in self.seen.jobs
        ]
        self.seen = replace(self.seen, jobs=tuple(jobs))


def test_six_jobs_on_four_gpus_have_two_thirds_each() -> None:
    loop = Loop([job(f"j{number + 1}", can=STAYS) for number in range(6)], size=4)
    had = loop.until(18_000)
    assert list(had.values()) == pytest.approx([4 / 6] * 6, rel=0.01)
    # Each runs for a slice at least before it yields.
    assert loop.suspensions <= 4 * 18_000 / 60


def test_who_runs_on_to_his_boundary_has_no_more_than_the_others() -> None:
    """One needs 20 s to its boundary each time; its next turn is as much shorter."""
    jobs = [job(f"j{number + 1}", can=STAYS) for number in range(3)]
    had = Loop(jobs, {"j1": 20.0}).until(18_000)
    assert list(had.values()) == pytest.approx([1 / 3] * 3, rel=0.02)


@pytest.mark.parametrize("gpus, light, heavy", [(1, 1 / 8, 3 / 8), (2, 1 / 4, 3 / 4), (3, 0.5, 1)])
def test_two_classes_share_by_weight(gpus: int, light: float, heavy: float) -> None:
    """Nobody has more than all of the time: what is over goes to the others."""
    jobs = [job(f"j{n + 1}", can=STAYS, labels={"user": "ab"[n % 2]}) for n in range(4)]
    had = Loop(jobs, size=gpus, weights=[["b", 3]]).until(18_000)
    wanted = [light, heavy] * 2
    policy = Gandiva(weights=(("b", 3),))
    due = shares(view(jobs, nodes=1, size=gpus), policy.weigh)
    assert [due[each.job] for each in jobs] == pytest.approx(wanted)
    assert list(had.values()) == pytest.approx(wanted, rel=0.03)


def test_a_gangs_ranks_are_in_one_slice_on_all_their_nodes() -> None:
    """Two gangs of two, each on both nodes: whoever goes leaves both at once for the other."""
    across = [("n1", 1), ("n2", 1)]
    there = runs("j1", 2, workers=2, on=across, since=100, can=STAYS)
    waits = away("j2", 2, workers=2, on=across, can=STAYS)
    seen = view([there, waits], size=1)
    swap = plan(seen)
    assert told(swap) == "-j1 +j2@n1,n2"
    after = leave(begin(swap, seen), swap.actions[0])
    assert told(plan(after)) == "+j2@n1,n2"
    had = Loop([there, waits], nodes=2).until(18_000)
    assert had["j1"] - 100 / 18_000 == pytest.approx(0.5, rel=0.02)


def test_a_job_that_never_ran_comes_first_and_within_a_slice() -> None:
    there = job("j1", on=[("n1", 1)], ran=5000, since=20, can=STAYS)
    seen = view([there, away("j2", on=[("n1", 1)], can=STAYS), job("j3")], nodes=1, size=1)
    waits = plan(seen)
    assert (told(waits), waits.look_at) == ("", NOW + seconds(40))
    due = replace(there, since=Instant(NOW - SLICE))
    assert told(plan(replace(seen, jobs=(due, *seen.jobs[1:])))) == "-j1 +j3@n1"


def test_new_jobs_starve_nobody() -> None:
    """Who is owed two slices comes before one that never ran."""
    there = job("j1", on=[("n1", 1)], ran=100, since=100, can=STAYS)
    long_ago = Instant(NOW - seconds(1000))
    starved = replace(away("j2", on=[("n1", 1)], can=STAYS), waiting_since=long_ago, since=long_ago)
    seen = view([there, starved, job("j3")], nodes=1, size=1)
    assert told(plan(seen)) == "-j1 +j2@n1"


def test_a_higher_priority_is_never_suspended_for_a_lower() -> None:
    high = job("j1", on=[("n1", 1)], ran=9000, since=9000, priority=5)
    waits = plan(view([high, job("j2"), away("j3", on=[("n1", 1)])], nodes=1, size=1))
    assert told(waits) == ""
    low = job("j1", on=[("n1", 1)], ran=1, since=1)
    assert told(plan(view([low, job("j2", priority=5)], nodes=1, size=1))) == "-j1 +j2@n1"


def test_a_lower_priority_leaves_a_server_full_of_higher_ones() -> None:
    """If it can migrate: to a free GPU, else to take turns with its equals."""
    high = job("j1", on=[("n1", 1)], ran=90, since=90, priority=5)
    assert told(plan(view([high, away("j2", on=[("n1", 1)])], size=1))) == "+j2@n2"
    equal = runs("j3", on=[("n2", 1)], can=STAYS)
    assert told(plan(view([high, away("j2", on=[("n1", 1)]), equal], size=1))) == "-j3 +j2@n2"
    stays = away("j2", on=[("n1", 1)], can=STAYS)
    assert told(plan(view([high, stays, equal], size=1))) == ""


def test_a_departure_lowers_the_height() -> None:
    """Who is suspended goes to the GPU that was vacated: one of that server first, then any."""
    there = [job("j1", on=[("n1", 1)], ran=10, since=10), away("j2", on=[("n1", 1)])]
    other = job("j3", on=[("n2", 1)], ran=10, since=10)
    full = view([*there, other], size=1)
    assert (height(full), told(plan(full))) == (2, "")
    vacated = view(there, size=1)
    assert told(plan(vacated)) == "+j2@n2"
    moved = replace(there[1], nodes=(("n2", 1),), phase=Phase.RUNNING)
    assert height(view([there[0], moved], size=1)) == 1
    at_home = view([*there, away("j4", on=[("n2", 1)])], size=1)
    assert told(plan(at_home)) == "+j4@n2"
    stays = replace(there[1], can=STAYS)
    assert told(plan(view([there[0], stays], size=1))) == ""


def test_who_needs_the_very_gpus_it_had_takes_turns_with_who_has_them() -> None:
    """A CUDA job goes on where it was: another's GPU would stay idle."""
    tied = ("suspend", "release")
    jobs = [runs(f"j{n}", on=[("n1", 1)], can=tied, devices=(("n1", (n - 1,)),)) for n in (1, 2)]
    waits = away("j3", on=[("n1", 1)], can=tied, devices=(("n1", (1,)),))
    assert told(plan(view([*jobs, waits], nodes=1, size=2))) == "-j2 +j3@n1"
    assert told(plan(view([jobs[1], waits], nodes=1, size=2))) == "-j2 +j3@n1"
    assert told(plan(view([jobs[0], waits], nodes=1, size=2))) == "+j3@n1"


def test_accounts_are_bounded() -> None:
    """Who had idle GPUs for a day pays for two slices of it."""
    day = job("j1", on=[("n1", 1)], ran=86_400, since=86_400)
    assert owed(day, 0.5, NOW, SLICE) == -2 * SLICE
    assert owed(away("j2", on=[("n1", 1)]), 0.5, NOW, SLICE) == 50 * 10**9
    assert shares(view([day, job("j2", priority=1)], nodes=1, size=1), lambda _: 1.0) == {
        "j2": 1.0,
        "j1": 0.0,
    }


def test_what_somebody_larger_leaves_is_for_several() -> None:
    """Else the next plan would suspend others for the second."""
    large = runs("j1", 4, on=[("n1", 4)], can=STAYS)
    waits = [job(f"j{n}", 2, priority=5) for n in (2, 3)]
    assert told(plan(view([large, *waits, job("j4")], nodes=1))) == "-j1 +j2@n1 +j3@n1"


def test_an_equal_leaves_only_where_no_lower_one_can() -> None:
    """Whatever their sizes: else it would take the lower one's GPUs itself."""
    equal = runs("j1", 2, on=[("n1", 2)], priority=5, can=STAYS)
    lower = runs("j2", 4, on=[("n2", 4)], can=STAYS)
    blocked = runs("j3", 2, on=[("n1", 2)], priority=9, can=STAYS)
    waits = job("j4", 2, priority=5)
    assert told(plan(view([equal, lower, blocked, waits]))) == "-j2 +j4@n2"
    assert told(plan(view([equal, blocked, waits], nodes=1))) == "-j1 +j4@n1"


def test_nobody_goes_elsewhere_to_gpus_that_others_have_yet_to_leave() -> None:
    """It could not yet, and would take the GPUs at home that are a gang's turn."""
    gang = away("j1", 4, workers=4, on=[("n1", 1), ("n2", 3)], waiting_since=Instant(NOW - 10))
    small = away("j2", on=[("n1", 1)])
    leaves = job("j3", 4, workers=4, phase=Phase.STOPPING, on=[("n2", 4)])
    stays = runs("j4", 3, since=10, on=[("n1", 3)], can=MOVES)
    gone = view([gang, small, leaves, stays], nodes=2, size=4)
    first = replace(small, owed_at=Instant(NOW - 1), owed=-int(SLICE))
    told_ = told(plan(replace(gone, jobs=(gang, first, leaves, stays))))
    assert told_ == "+j1@n1,n2"


def test_of_those_who_starve_the_one_that_has_stood_for_longest_comes_first() -> None:
    """Accounts end at two slices: who came first would be next every time."""
    since = Instant(NOW - seconds(1000))
    first = away("j1", on=[("n1", 1)])
    last = replace(away("j2", on=[("n1", 1)]), waiting_since=since, since=since)
    first = replace(first, owed=int(2 * SLICE), owed_at=first.since, owed_ran=first.served)
    last = replace(last, owed=int(2 * SLICE), owed_at=since, owed_ran=last.served)
    assert told(plan(view([first, last], nodes=1, size=1))).split()[0] == "+j2@n1"


def lasting(stands: float, *ran: float, small: int = 2) -> VcView:
    """Return a gang of n1 that has stood for so long, and who has its GPUs since so long.

    Those are owed as much as it is. It has half of the time, so it is to stand for six slices.
    """
    since = Instant(NOW - seconds(stands))
    gang = replace(away("j1", 4, on=[("n1", 4)], can=STAYS), waiting_since=since, since=since)
    there = [
        runs(f"j{number}", small, since=each, on=[("n1", small)], can=STAYS)
        for number, each in enumerate(ran, 2)
    ]
    owed_ = int(OWED_SLICES_MAX * SLICE)
    due = [
        replace(
            each,
            owed=owed_,
            owed_at=each.since,
            served=Duration(10 * SLICE),
            owed_ran=Duration(10 * SLICE),
        )
        for each in there
    ]
    return view([gang, *due], nodes=1)


def test_a_gang_that_stood_for_too_long_takes_gpus_of_smaller_ones_that_ran_for_a_while() -> None:
    """Of smaller ones there is hardly a time at which all have had their slice."""
    six = 6 * 60
    assert told(plan(lasting(six, 70, 15))) == "-j2 -j3 +j1@n1"
    assert told(plan(lasting(six - 1, 70, 15))) == ""
    assert told(plan(lasting(six, 70, 14))) == ""
    # Who is as large has its slice.
    assert told(plan(lasting(six, 59, small=4))) == ""
    assert told(plan(lasting(six, 60, small=4))) == "-j2 +j1@n1"


def test_it_is_looked_again_when_a_gang_will_have_stood_for_too_long() -> None:
    stands = plan(lasting(6 * 60 - 5, 70, 30))
    assert (told(stands), stands.look_at) == ("", NOW + seconds(5))
    both = plan(lasting(6 * 60, 5, 5))
    assert (told(both), both.look_at) == ("", NOW + seconds(10))
    # Each has to have run for a quarter of a slice, whoever would be first.
    for ran in ((70, 14), (14, 70), (70, 30, 14, 14)):
        last = plan(lasting(7 * 60, *ran, small=4 // len(ran)))
        assert (told(last), last.look_at) == ("", NOW + seconds(1))
    # With books kept from plan to plan it is let be until then, too.
    policy, seen = make("gandiva", {}).planner(), lasting(6 * 60 - 1, 30, 20)
    assert told(policy(seen)) == ""
    later = replace(seen, now=Instant(NOW + seconds(1)))
    assert told(policy(later)) == "-j2 -j3 +j1@n1"
