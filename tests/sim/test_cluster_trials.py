"""Packs on trial in a simulated cluster: what helps is kept, what hurts is undone, by rates."""

from typing import Any, ClassVar

import pytest

from skep.machines.allocator import AllocatorMachine
from skep.policies.policy import Policy
from skep.policies.registry import POLICIES
from skep.sim.cluster.build import uniform
from skep.sim.cluster.settings import Costs, Settings
from skep.sim.cluster.world import World
from skep.traces.job import Trace, TraceJob
from skep.units import NS_PER_SECOND, seconds
from skep.view.plan import Action, Pack, Plan, Turn
from skep.view.view import Phase, VcView
from skep.wire.facts import JobEnded
from skep.wire.reasons import Reason
from skep.wire.trials import TrialBegun, TrialOver, Verdict
from skep.workloads.situation import Situation, Steady

WAITS = (Phase.WAITING, Phase.AWAY)
BESIDE = {"small": 0.8, "heavy": 0.35}
"""How fast two jobs of a model go on one GPU, relative to one alone."""
LENGTH = 2000


class Packs(Policy, frozen=True):
    """Places in order of arrival; who waits is tried beside whoever is alike and alone."""

    name: ClassVar[str] = "packs"
    source: ClassVar[str] = "a test"
    sees_rates: ClassVar[bool] = True

    def plan(self, view: VcView) -> Plan:
        waiting = [job for job in view.jobs if job.phase in WAITS]
        hosts = [job for job in view.jobs
                 if job.phase is Phase.RUNNING and not job.partners and job.rate_milli]  # fmt: skip
        actions: list[Action] = []
        for guest in waiting if not view.free else ():
            host = next((each for each in hosts
                         if each.spec.size.family == guest.spec.size.family), None)  # fmt: skip
            if host is not None:
                hosts.remove(host)
                actions.append(Pack(guest.job, host.job, Reason.BEST_PACKING, trial=True))
        turns = tuple(Turn(job.job, Reason.ARRIVAL) for job in waiting)
        return Plan(turns=turns, strict=False, actions=tuple(actions))


class Pairs(Steady):
    """Two small jobs hardly slow each other, two heavy ones do more than in turns."""

    def speed(self, job: TraceJob, where: Situation) -> float:
        return BESIDE[job.model] if where.partners else 1.0


@pytest.fixture(autouse=True)
def _policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, Packs.name, Packs)


def jobs() -> Trace:
    models = ("small", "heavy", "small", "heavy")
    return Trace(name="pairs", jobs=tuple(
        TraceJob(id=f"t{number}", at=seconds(number), run_time=seconds(LENGTH), gpus=1, workers=1,
                 model=model, mini_batches=LENGTH * 4)
        for number, model in enumerate(models)
    ))  # fmt: skip


def played(*, noise: float = 0.0, reports: str = "on-change") -> tuple[World, list[Any]]:
    facts: list[Any] = []

    def judge(allocator: AllocatorMachine, decided: list[Any]) -> None:
        facts.extend(decided)
        allocator.check()

    settings = Settings(
        costs=Costs(start_s=2, suspend_s=1, resume_s=1),
        policies={"all": ("packs", {})},
        noise=noise,
        hints="none",
        reports=reports,  # type: ignore[arg-type]
    )
    world = World(jobs(), uniform(1, 2), settings, Pairs(), judge=judge)
    assert world.run()
    return world, facts


def verdicts(facts: list[Any]) -> dict[tuple[str, ...], tuple[Verdict, Reason]]:
    return {fact.jobs: (fact.verdict, fact.why) for fact in facts if isinstance(fact, TrialOver)}


def test_two_that_go_together_stay_packed_and_two_that_hurt_each_other_are_parted() -> None:
    world, facts = played()
    begun = [fact for fact in facts if isinstance(fact, TrialBegun)]
    assert [tuple(each.job for each in fact.jobs) for fact in begun] == [("j3", "j1"), ("j4", "j2")]
    assert verdicts(facts) == {
        ("j3", "j1"): (Verdict.KEPT, Reason.TRIAL_GAINS),
        ("j4", "j2"): (Verdict.UNDONE, Reason.TRIAL_LOSES),
    }
    over = {fact.trial: fact for fact in facts if isinstance(fact, TrialOver)}
    assert over[1].gain_milli == pytest.approx(600, abs=5)
    assert over[2].gain_milli == pytest.approx(-300, abs=5)
    assert all(fact.at - begun[fact.trial - 1].at < seconds(120) for fact in over.values())
    ended = {fact.job: fact.at for fact in facts if isinstance(fact, JobEnded)}
    assert len(ended) == len(jobs().jobs)
    # j1 and j3 make 0.8 each at once; j4 has to wait for the GPU of j2 and then runs alone.
    alike = LENGTH / 0.8 * NS_PER_SECOND
    assert ended["j3"] - begun[0].at < 1.1 * alike
    assert ended["j4"] - ended["j2"] < seconds(LENGTH)
    assert world.allocator.tries.open == {}


def test_reports_of_changes_alone_lead_to_the_same_verdicts() -> None:
    once, every = (
        [fact for fact in played(reports=reports)[1] if isinstance(fact, TrialBegun | TrialOver)]
        for reports in ("on-change", "per-second")
    )
    assert once == every != []


def test_without_the_introspector_no_trial_is_begun() -> None:
    _, facts = played(reports="none")
    assert not any(isinstance(fact, TrialBegun) for fact in facts)
