"""Trials in a simulated cluster: what helps is kept, what hurts is undone, by rates."""

from typing import Any, ClassVar

import pytest

from skep.policy.api import Policy
from skep.policy.plan import Action, Migrate, Pack, Plan, Resize, Turn
from skep.policy.registry import POLICIES
from skep.policy.view import Phase, VcView
from skep.units import NS_PER_SECOND, seconds
from skep.wire.facts import JobEnded
from skep.wire.reasons import Reason
from skep.wire.trials import Kind, TrialBegun, TrialOver, Verdict
from skep_lab.measures.series import series
from skep_lab.measures.summary import measure
from skep_lab.simulator.build import of_types, uniform
from skep_lab.simulator.run import run
from skep_lab.simulator.settings import Costs, Settings
from skep_lab.simulator.truth import Truth
from skep_lab.simulator.world import World
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.situation import Situation, Steady

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
        hosts = [
            job
            for job in view.jobs
            if job.phase is Phase.RUNNING and not job.partners and job.rate_milli
        ]
        actions: list[Action] = []
        for guest in waiting if not view.free else ():
            host = next(
                (each for each in hosts if each.spec.size.family == guest.spec.size.family), None
            )
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
    return Trace(
        name="pairs",
        jobs=tuple(
            TraceJob(
                id=f"t{number}",
                at=seconds(number),
                run_time=seconds(LENGTH),
                gpus=1,
                workers=1,
                model=model,
                mini_batches=LENGTH * 4,
            )
            for number, model in enumerate(models)
        ),
    )


def played(*, noise: float = 0.0, reports: str = "on-change") -> tuple[World, list[Any]]:
    facts: list[Any] = []

    def judge(world: World, decided: list[Any]) -> None:
        facts.extend(decided)
        world.allocator.check()

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
    assert world.allocator.state.tries.open == {}


def test_reports_of_changes_alone_lead_to_the_same_verdicts() -> None:
    once, every = (
        [fact for fact in played(reports=reports)[1] if isinstance(fact, TrialBegun | TrialOver)]
        for reports in ("on-change", "per-second")
    )
    assert once == every != []


def test_without_the_introspector_no_trial_is_begun() -> None:
    _, facts = played(reports="none")
    assert not any(isinstance(fact, TrialBegun) for fact in facts)


# --- moves and growths ---------------------------------------------------------------------------


class Changes(Policy, frozen=True):
    """Tries to move `seeks` and `leaves` to the other node, and to double the others."""

    name: ClassVar[str] = "changes"
    source: ClassVar[str] = "a test"
    sees_rates: ClassVar[bool] = True
    sees_nodes: ClassVar[bool] = True

    def plan(self, view: VcView) -> Plan:
        there = {node.gpu_type: node.node for node in view.nodes}
        turns = tuple(
            Turn(job.job, Reason.ARRIVAL, (there[BEGINS[job.spec.size.family or ""]],))
            for job in view.jobs
            if job.phase in WAITS
        )
        cools = {(each.kind, *each.families) for each in view.cooling}
        actions: list[Action] = []
        for job in view.jobs:
            family = job.spec.size.family or ""
            if job.phase is not Phase.RUNNING or not job.rate_milli or job.trial:
                continue
            if family in ("scales", "flat"):
                if job.workers == 1 and ("grow", family) not in cools:
                    actions.append(
                        Resize(job.job, Reason.BY_POLICY, 2, trial=True, needed_milli=1100)
                    )
            elif ("migrate", family) not in cools and job.nodes[0][0] == there[BEGINS[family]]:
                other = tuple(node for kind, node in there.items() if kind != BEGINS[family])
                actions.append(Migrate(job.job, Reason.BY_POLICY, other, trial=True))
        return Plan(turns=turns, strict=False, actions=tuple(actions))


BEGINS = {"seeks": "slow", "leaves": "fast", "scales": "fast", "flat": "slow"}


class Places(Steady):
    """On one node everything goes half as fast; only `scales` is faster with more workers."""

    def speed(self, job: TraceJob, where: Situation) -> float:
        gains = 1.8 if where.workers > 1 and job.model == "scales" else 1.0
        return gains * (0.5 if where.gpu_type == "slow" else 1.0)


def changed(*truths: Truth, noise: float = 0.0) -> tuple[World, list[Any]]:
    facts: list[Any] = []

    def judge(world: World, decided: list[Any]) -> None:
        facts.extend(decided)
        for truth in truths:
            truth.note(world.agents.works, decided)
        world.allocator.check()

    trace = Trace(
        name="changes",
        jobs=tuple(
            TraceJob(
                id=f"t{number}",
                at=seconds(number),
                run_time=seconds(LENGTH),
                gpus=1,
                workers=1,
                workers_min=1,
                workers_max=2,
                model=model,
                mini_batches=LENGTH * 4,
            )
            for number, model in enumerate(BEGINS)
        ),
    )
    settings = Settings(
        costs=Costs(start_s=2, migrate_s=3, resize_s=2),
        hints="none",
        policies={"all": ("changes", {})},
        noise=noise,
    )
    world = World(trace, of_types({"slow": 1, "fast": 1}, 4), settings, Places(), judge=judge)
    assert world.run()
    return world, facts


def test_moves_and_growths_stay_where_rates_say_so_and_are_put_back_where_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(POLICIES, Changes.name, Changes)
    truth, other = Truth(Places()), Truth(Steady())
    world, facts = changed(truth, other)
    seeks, leaves, scales, flat = "j1", "j2", "j3", "j4"
    begun = {fact.jobs[0].job: fact for fact in facts if isinstance(fact, TrialBegun)}
    over = {fact.jobs[0]: fact for fact in facts if isinstance(fact, TrialOver)}
    assert {job: (fact.kind, over[job].verdict) for job, fact in begun.items()} == {
        seeks: (Kind.MIGRATE, Verdict.KEPT),
        leaves: (Kind.MIGRATE, Verdict.UNDONE),
        scales: (Kind.GROW, Verdict.KEPT),
        flat: (Kind.GROW, Verdict.UNDONE),
    }
    assert len([fact for fact in facts if isinstance(fact, TrialBegun)]) == len(begun)
    gains = {job: fact.gain_milli for job, fact in over.items()}
    assert gains == pytest.approx({seeks: 1000, leaves: -500, scales: 700, flat: -100}, abs=10)
    assert all(fact.at - begun[job].at < seconds(60) for job, fact in over.items())
    ended = {
        fact.job: (fact.at - fact.ran_at) / NS_PER_SECOND
        for fact in facts
        if isinstance(fact, JobEnded)
    }
    # Whoever was put back lost a minute at the other pace; whoever gained is done the sooner.
    assert ended[leaves] < LENGTH + 60
    assert ended[scales] < LENGTH / 1.8 + 60
    assert ended[flat] == pytest.approx(2 * LENGTH, abs=20)
    assert world.allocator.state.tries.undoing == {}
    pauses = world.allocator.state.move_costs.pauses
    assert pauses["all seeks"] == [seconds(3)]
    assert pauses["vc:all"] == [seconds(3)] * 3
    assert truth.counts == {
        "grow judged": 2,
        "grow wrong": 0,
        "migrate judged": 2,
        "migrate wrong": 0,
    }
    # Were all places alike, those two would have been kept for nothing.
    assert other.counts == {**truth.counts, "grow wrong": 1, "migrate wrong": 1}


def test_a_gpu_that_jobs_share_is_busy_once() -> None:
    """Each of two packed jobs keeps its GPU busy all the time; the GPU is one."""
    settings = Settings(
        costs=Costs(start_s=2, suspend_s=1, resume_s=1),
        policies={"all": ("packs", {})},
        hints="none",
        sample_every_s=10,
    )
    result = run(jobs(), uniform(1, 2), settings, Pairs())
    assert max(sample.busy for sample in result.samples) > 2, "the sum over jobs"
    for sample in result.samples:
        assert sample.busy_gpus is not None
        assert sample.busy_gpus <= sample.allocated <= 2
    over_time = series(result)
    assert all(map(float.__le__, over_time.busy, over_time.allocated))
    found = measure(result)
    assert found.busy is not None
    assert 0 < found.busy <= found.allocated <= 1
