"""Time-slicing is fair where a suspended job can return to any slot, and is not where it cannot.

Counted in quanta, that is slots given: how long one takes on a machine does not matter.
"""

from __future__ import annotations

from collections import Counter

import pytest

from skep.ledger.job_state import State
from skep.machines.allocator import AllocatorMachine
from skep.wire.changes import AskResume, AskSuspend
from tests.kit import Driver, admitted, allocator, joined, started
from tests.support.slices import Shift, counts, jain, spread, turns
from tests.unit.test_allocator_changes import ask, changed, known, told

JOBS, SLOTS, QUANTA = 6, 4, 12


def test_turns_on_any_slot_are_alike_for_all() -> None:
    shifts = turns(JOBS, SLOTS, QUANTA, rebind=True)
    assert counts(shifts, JOBS) == [8] * JOBS
    for shift in shifts:
        assert sorted(shift.values()) == list(range(SLOTS)), "no slot is idle, none has two"


def test_turns_on_ones_own_slot_only_are_not() -> None:
    shifts = turns(JOBS, SLOTS, QUANTA, rebind=False)
    had = counts(shifts, JOBS)
    # Two slots have two jobs each; the other two have one, which never has to give way.
    assert had == [6, 6, 12, 12, 6, 6]
    assert jain(had) == pytest.approx(8 / 9)
    assert spread(had) == 0.5


@pytest.mark.parametrize(
    "shares, index, least",
    [((2.0, 2.0, 2.0), 1.0, 1.0), ((3.0, 0.0, 0.0), 1 / 3, 0.0), ((0.0, 0.0), 1.0, 1.0)],
)
def test_the_measures_of_fairness(shares: tuple[float, ...], index: float, least: float) -> None:
    assert jain(shares) == pytest.approx(index)
    assert spread(shares) == least


class Slicing:
    """Six jobs under an allocator, on a node with four GPUs."""

    def __init__(self, can: tuple[str, ...]) -> None:
        self.can = can
        self.decide: Driver[AllocatorMachine] = allocator(joined(gpus=SLOTS))
        self.asked = 100
        self.given: Counter[str] = Counter()
        for number in range(1, JOBS + 1):
            self._do(admitted(number, gpus=1))

    def quantum(self, runs: Shift) -> None:
        """Ask for the turns of one quantum, and count who has a slot in it."""
        jobs = self.decide.machine.state.jobs
        wanted = [f"j{number + 1}" for number in runs]
        for job in [job for job in jobs if job not in wanted]:
            if jobs[job].state in (State.RUNNING, State.SUSPENDED):
                self._ask(AskSuspend(job=job, release=True))
        for job in wanted:
            if jobs[job].state is State.SUSPENDED:
                self._ask(AskResume(job=job))
        running = [job for job in jobs if jobs[job].state is State.RUNNING]
        devices = [jobs[job].members["node-1"].devices for job in running]
        assert len(set(devices)) == len(devices) <= SLOTS
        self.given.update(running)

    def _ask(self, wish: AskSuspend | AskResume) -> None:
        self.asked += 1
        self._do(ask(self.asked, wish))

    def _do(self, event: object) -> None:
        """Have the node do at once what it is told, and what follows from its answers."""
        for command in told(self.decide(event)):
            self._do(changed(command))
        for job in list(self.decide.machine.state.jobs.values()):
            if job.state is State.BOUND:
                self._do(started(job.job))
                self._do(known(job.job, can=self.can))


def shares(shifts: list[Shift], *can: str) -> list[int]:
    slicing = Slicing(("suspend", "release", *can))
    for shift in shifts:
        slicing.quantum(shift)
    assert all(job.attempt == 1 for job in slicing.decide.machine.state.jobs.values())
    return [slicing.given[f"j{number}"] for number in range(1, JOBS + 1)]


def test_the_allocator_gives_six_jobs_on_four_gpus_the_same_share() -> None:
    assert shares(turns(JOBS, SLOTS, QUANTA, rebind=True), "rebind") == [8] * JOBS


def test_who_returns_to_its_own_gpu_only_has_another_share_or_leaves_gpus_idle() -> None:
    own = turns(JOBS, SLOTS, QUANTA, rebind=False)
    assert shares(own) == counts(own, JOBS) == [6, 6, 12, 12, 6, 6]
    # Asked for in the same turns as above, some wait for their GPU while another one is idle.
    assert sum(shares(turns(JOBS, SLOTS, QUANTA, rebind=True))) < SLOTS * QUANTA
