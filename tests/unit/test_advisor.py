"""What the advisor says about the queue, effect list by effect list."""

from typing import Any

import pytest

from skep.machines import advisor
from skep.machines.advisor import AdvisorMachine
from skep.machines.base import Effect, Restarted, Send, Tick
from skep.units import NS_PER_SECOND, Duration, Instant, seconds
from skep.wire.admin import SetVcs
from skep.wire.advice import ADVISED_MAX, JobAdvice, Outlook, QueueAdvice
from skep.wire.cluster import VirtualCluster
from skep.wire.codec import Facts, Unreadable
from skep.wire.facts import (
    Admitted,
    CellsSet,
    End,
    EpochBegan,
    JobBound,
    JobEnded,
    JobQueued,
    JobRequeued,
    Member,
    NodeAdded,
)
from skep.wire.findings import JobRate, Rates
from skep.wire.moves import JobMoved, SuccessorBound
from skep.wire.node import Gpu, NodeJoined
from skep.wire.reasons import Reason
from skep.wire.spec import JobSpec, Resources, SizeHint

BEGIN = 1_700_000_000 * NS_PER_SECOND


def at(offset: float) -> Instant:
    return Instant(BEGIN + seconds(offset))


def spec(
    steps: int | None = None,
    family: str | None = "resnet",
    gpu_type: str | None = None,
    gpus: int = 1,
    **more: Any,
) -> JobSpec:
    return JobSpec(
        **{"name": "a", "vc": "vision", "script": "a.py"} | more,
        resources=Resources(gpus=gpus, gpu_type=gpu_type),
        size=SizeHint(mini_batches=steps, family=family),
    )


def queued(job: str, wanted: JobSpec, submitted: float = 0.0) -> JobQueued:
    return JobQueued(job=job, spec=wanted, submitted_at=at(submitted))


def bound(job: str, *nodes: str, attempt: int = 1) -> JobBound:
    return JobBound(
        job=job,
        attempt=attempt,
        order=1,
        members=tuple(
            Member(node=node, identity="i", first_rank=number, devices=((0,),))
            for number, node in enumerate(nodes or ("n1",))
        ),
        master_port=20000,
        why=Reason.BEST_FIT_ONE_NODE,
        at=at(0),
    )


def ended(
    job: str, steps: int, ran_s: float, end: End = End.SUCCEEDED, step_s: float = 0.0
) -> JobEnded:
    ran_at = at(-ran_s) if ran_s else Instant(0)
    return JobEnded(
        job=job,
        end=end,
        why=Reason.SUCCEEDED,
        attempts=1,
        at=at(0),
        ran_at=ran_at,
        steps=steps,
        step_ns=seconds(step_s),
    )


def requeued(job: str, attempt: int = 1) -> JobRequeued:
    return JobRequeued(job=job, attempt=attempt, why=Reason.NODE_LOST, counted=False, at=at(0))


def node(name: str, *types: str) -> NodeAdded:
    gpus = tuple(Gpu(index=index, type=kind) for index, kind in enumerate(types))
    joined = NodeJoined(
        node=name,
        identity="i",
        incarnation=1,
        address="127.0.0.1",
        ports=(20000, 20499),
        gpus=gpus,
        cpus=8,
        memory=0,
    )
    return NodeAdded(joined=joined)


def rates(job: str, steps: int, rate_milli: int, attempt: int = 1) -> Rates:
    rate = JobRate(job=job, attempt=attempt, steps=steps, rate_milli=rate_milli)
    return Rates(at=at(0), jobs=(rate,))


def run(job: str, step_s: float, wanted: JobSpec | None = None, *nodes: str) -> tuple[Any, ...]:
    """Return the facts of a job that ran 100 mini-batches."""
    return queued(job, wanted or spec()), bound(job, *nodes), ended(job, 100, 100 * step_s)


def advice(told: float, *jobs: tuple[str, float | None, bool]) -> list[Effect]:
    """Return advice of (job, remaining seconds, whether it is there for its shortness)."""
    return [
        Send(
            "skep.v1.advice.queue",
            QueueAdvice(
                at=at(told),
                expires_at=at(told + 15),
                jobs=tuple(
                    JobAdvice(
                        job=job,
                        why=Reason.PREDICTED_SHORTEST if shortest else Reason.ARRIVAL,
                        remaining=None if remaining is None else seconds(remaining),
                    )
                    for job, remaining, shortest in jobs
                ),
            ),
        )
    ]


class Service:
    """A machine that is checked after every event, with a tick as asked for."""

    def __init__(self) -> None:
        self.machine = AdvisorMachine()

    def hears(self, told: float, *facts: Any, recorded: float | None = None) -> list[Effect]:
        stamp = at(told if recorded is None else recorded)
        return self.sees(told, Facts(service="allocator", at=stamp, facts=facts))

    def sees(self, told: float, event: Any) -> list[Effect]:
        effects = self.machine.decide(event, at(told))
        self.machine.check()
        return effects

    def ticks(self) -> list[Effect]:
        due = self.machine.wake_at()
        assert due is not None
        effects = self.machine.decide(Tick(), due)
        self.machine.check()
        return effects

    def due(self) -> float | None:
        due = self.machine.wake_at()
        return None if due is None else (due - BEGIN) / NS_PER_SECOND


@pytest.fixture
def service() -> Service:
    return Service()


def test_nothing_is_said_while_nothing_waits(service: Service) -> None:
    assert service.sees(0, Restarted(epoch=1)) == []
    assert service.sees(0, Tick()) == []
    assert service.sees(0, Unreadable(subject="x", text="y")) == []
    assert service.hears(0, *run("j1", 1.0)) == []
    assert service.due() is None


def test_nothing_is_said_while_nothing_can_be_predicted(service: Service) -> None:
    assert service.hears(0, queued("j1", spec(100)), queued("j2", spec(10))) == []
    assert service.due() is None


def test_queued_jobs_are_advised_shortest_first_by_earlier_runs(service: Service) -> None:
    waiting = queued("j2", spec(100)), queued("j3", spec(None)), queued("j4", spec(10))
    expected = advice(0, ("j4", 5.0, True), ("j3", None, False), ("j2", 50.0, True))
    assert service.hears(0, *run("j1", 0.5), *waiting) == expected
    assert service.machine.remaining("j2") == seconds(50.0)
    assert service.machine.remaining("j3") is None
    assert service.machine.remaining("j9") is None


def test_nothing_is_said_if_no_waiting_job_has_a_prediction(service: Service) -> None:
    assert service.hears(0, *run("j1", 0.5), queued("j2", spec(5, family="other"))) == []
    assert service.due() is None
    assert service.hears(1, queued("j3", spec(5, family=None))) == []
    assert service.hears(2, queued("j4", spec(None))) == []
    assert service.due() is None


def test_a_change_is_advised_at_most_every_half_second(service: Service) -> None:
    service.hears(0, *run("j1", 0.5), queued("j2", spec(100)))
    assert service.hears(0.1, queued("j3", spec(50))) == []
    assert service.due() == 0.5
    assert service.ticks() == advice(0.5, ("j3", 25.0, True), ("j2", 50.0, True))


def test_advice_that_did_not_change_is_sent_again_before_it_expires(service: Service) -> None:
    service.hears(0, *run("j1", 0.5), queued("j2", spec(100)))
    assert service.due() == 5.0
    assert service.ticks() == advice(5.0, ("j2", 50.0, True))
    assert service.due() == 10.0


def test_an_order_that_came_out_the_same_waits_for_its_time(service: Service) -> None:
    service.hears(0, *run("j1", 0.5), queued("j2", spec(100)))
    assert service.hears(1, *run("j3", 0.5)) == []
    assert service.due() == 5.0


def test_a_job_that_starts_leaves_and_one_put_back_returns_to_its_place(service: Service) -> None:
    waiting = [queued(f"j{number}", spec(100)) for number in (2, 3)]
    service.hears(0, *run("j1", 0.5), *waiting)
    assert service.hears(1, bound("j2")) == advice(1, ("j3", 50.0, True))
    service.sees(1.5, rates("j2", 60, 0))
    both = advice(2, ("j2", 50.0, True), ("j3", 50.0, True))
    assert service.hears(2, requeued("j2")) == both
    assert service.hears(3, ended("j2", 0, 0, End.CANCELLED)) == advice(3, ("j3", 50.0, True))
    assert service.hears(4, bound("j3")) == []
    assert service.due() is None


def test_a_running_job_goes_on_at_its_own_rate(service: Service) -> None:
    service.hears(0, *run("j1", 0.5), queued("j2", spec(100)), bound("j2"))
    assert service.machine.remaining("j2") == seconds(50.0)
    service.sees(1, rates("j2", 80, 1000))
    assert service.machine.remaining("j2") == seconds(20.0)
    service.sees(1, rates("j2", 10, 1, attempt=2))
    service.sees(1, rates("j3", 10, 1))
    assert service.machine.remaining("j2") == seconds(20.0)


def test_a_running_job_teaches_its_family_once_it_is_steady(service: Service) -> None:
    service.hears(0, queued("j1", spec()), bound("j1"), queued("j2", spec(100)))
    assert service.sees(1, rates("j1", 19, 1000)) == []
    assert service.sees(2, rates("j1", 20, 0)) == []
    assert service.sees(3, rates("j1", 21, 1000)) == advice(3, ("j2", 100.0, True))
    service.sees(4, rates("j1", 30, 2000))  # Once per run: the rate of a moment is no news.
    assert service.machine.remaining("j2") == seconds(100.0)
    service.hears(5, ended("j1", 100, 25.0))
    assert service.machine.remaining("j2") == seconds(25.0)


def test_a_run_without_a_family_teaches_nothing(service: Service) -> None:
    service.hears(0, *run("j1", 0.5, spec(family=None)), queued("j2", spec(100, family=None)))
    assert service.due() is None


def test_a_failed_run_teaches_what_its_mini_batches_took(service: Service) -> None:
    run_in_vain = queued("j1", spec()), bound("j1"), ended("j1", 50, 9999.0, End.FAILED, 0.25)
    service.hears(0, *run_in_vain, queued("j2", spec(100)))
    assert service.machine.remaining("j2") == seconds(25.0)


def test_a_run_whose_start_is_not_known_teaches_what_its_mini_batches_took(
    service: Service,
) -> None:
    facts = queued("j1", spec()), bound("j1"), ended("j1", 50, 0.0, End.SUCCEEDED, 0.25)
    service.hears(0, *facts, queued("j2", spec(100)))
    assert service.machine.remaining("j2") == seconds(25.0)


def test_runs_count_for_the_gpu_type_they_ran_on(service: Service) -> None:
    service.hears(0, node("n1", "a100"), node("n2", "k80"), node("n3", "a100", "k80"))
    service.hears(0, *run("j1", 0.5, None, "n1"), *run("j2", 2.0, None, "n2"))
    service.hears(0, *run("j3", 8.0, None, "n3"), *run("j4", 8.0, None, "n1", "n2"))
    service.hears(
        0,
        queued("j5", spec(100, gpu_type="a100")),
        queued("j6", spec(100, gpu_type="k80")),
        queued("j7", spec(100)),
    )
    assert service.machine.remaining("j5") == seconds(50.0)
    assert service.machine.remaining("j6") == seconds(200.0)
    assert service.machine.remaining("j7") == seconds(500.0)


def test_a_run_on_an_unknown_node_counts_for_the_type_it_asked_for(service: Service) -> None:
    service.hears(0, *run("j1", 0.5, spec(gpu_type="a100")), *run("j2", 2.0))
    service.hears(0, queued("j3", spec(100, gpu_type="a100")))
    assert service.machine.remaining("j3") == seconds(50.0)


def test_a_node_that_joins_again_with_other_gpus_is_taken_at_its_word(service: Service) -> None:
    service.hears(0, node("n1", "a100"), node("n1", "a100", "k80"), *run("j1", 0.5))
    service.hears(0, node("n1", "k80"), *run("j2", 2.0))
    service.hears(0, queued("j3", spec(100, gpu_type="k80")))
    assert service.machine.remaining("j3") == seconds(200.0)


def test_jobs_change_places_only_within_their_queue_and_priority(service: Service) -> None:
    effects = service.hears(
        0,
        *run("j1", 0.5),
        queued("j2", spec(100)),
        queued("j3", spec(90, vc="speech")),
        queued("j4", spec(80, service_class="opportunistic")),
        queued("j5", spec(70, priority=1)),
        queued("j6", spec(60)),
        queued("j7", spec(50, vc="speech")),
        queued("j8", spec(40, service_class="opportunistic")),
        queued("j9", spec(30, priority=1)),
    )
    order = ["j9", "j5", "j6", "j7", "j8", "j2", "j3", "j4"]
    assert [effect.message.jobs for effect in effects if isinstance(effect, Send)] == [
        tuple(
            JobAdvice(
                job=job, why=Reason.PREDICTED_SHORTEST, remaining=service.machine.remaining(job)
            )
            for job in order
        )
    ]


def test_a_job_that_waited_for_an_hour_is_overtaken_by_nobody(service: Service) -> None:
    service.hears(0, *run("j1", 0.5))
    first = service.hears(3599, queued("j2", spec(100)), queued("j3", spec(10), 3000))
    assert first == advice(3599, ("j3", 5.0, True), ("j2", 50.0, True))
    assert service.due() == 3604.0
    assert service.ticks() == advice(3604, ("j2", 50.0, False), ("j3", 5.0, True))


def test_only_the_first_jobs_are_advised(service: Service) -> None:
    jobs = [queued(f"j{number}", spec(10_000 - number)) for number in range(2, ADVISED_MAX + 9)]
    (effect,) = service.hears(0, *run("j1", 0.5), *jobs)
    assert isinstance(effect, Send)
    advised = [each.job for each in effect.message.jobs]
    assert advised == [f"j{number}" for number in range(ADVISED_MAX + 1, 1, -1)]


def test_no_advice_is_given_while_old_records_are_read(service: Service) -> None:
    facts = *run("j1", 0.5), queued("j2", spec(100))
    assert service.hears(100, *facts, recorded=60.0) == []
    assert service.due() == 101.0
    assert service.hears(100.5, queued("j3", spec(10)), recorded=70.0) == []
    assert service.due() == 101.5
    assert service.hears(101, bound("j3"), recorded=100.9) == []
    assert service.ticks() == advice(101.5, ("j2", 50.0, True))


def test_advice_is_not_repeated_while_old_records_are_read(service: Service) -> None:
    service.hears(0, *run("j1", 0.5), queued("j2", spec(100)))
    service.hears(4.5, recorded=-60.0)
    assert service.due() == 5.5


def test_what_others_record_is_not_the_queue(service: Service) -> None:
    admitted = Admitted(job="j2", spec=spec(100), submitted_at=at(0))
    service.hears(0, *run("j1", 0.5))
    assert service.sees(0, Facts(service="admission", at=at(0), facts=(admitted,))) == []
    assert service.due() is None


def test_facts_about_unknown_jobs_change_nothing(service: Service) -> None:
    service.hears(0, bound("j1"), requeued("j1"), ended("j1", 100, 10.0))
    service.hears(0, EpochBegan(epoch=1, owner="x"))
    assert service.due() is None


def test_facts_told_twice_change_nothing(service: Service) -> None:
    waiting = queued("j2", spec(100))
    service.hears(0, *run("j1", 0.5), waiting, waiting, requeued("j2"), queued("j3", spec(10)))
    service.hears(0, bound("j3"), bound("j3"))
    assert service.due() == 0.5
    assert service.ticks() == advice(0.5, ("j2", 50.0, True))


@pytest.mark.parametrize("name", ["x1", "j01", "j"])
def test_what_is_no_job_id_is_passed_over(service: Service, name: str) -> None:
    service.hears(0, *run("j1", 0.5), queued(name, spec(100)))
    assert service.machine.remaining(name) is None


def test_jobs_and_nodes_beyond_the_bounds_are_not_followed(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advisor, "JOBS_MAX", 1)
    monkeypatch.setattr(advisor, "NODES_MAX", 1)
    service.hears(0, node("n1", "a100"), node("n2", "k80"))
    service.hears(0, *run("j1", 0.5, None, "n2"), queued("j2", spec(9)), queued("j3", spec(9)))
    assert service.machine.remaining("j2") == seconds(4.5)
    assert service.machine.remaining("j3") is None


def test_a_fact_of_its_own_log_changes_nothing(service: Service) -> None:
    service.machine.apply(EpochBegan(epoch=1, owner="x"))
    service.machine.check()


def test_a_prediction_is_a_duration_that_can_be_sent(service: Service) -> None:
    service.hears(0, *run("j1", 3600.0), queued("j2", spec(10**9)))
    assert service.machine.remaining("j2") == Duration(10 * 365 * 24 * 3600 * NS_PER_SECOND)


def planned(**policies: str) -> CellsSet:
    """Return the word that VCs have these policies."""
    cluster = SetVcs(
        vcs={vc: VirtualCluster(gpus=4, policy=policy) for vc, policy in policies.items()}
    ).cluster
    return CellsSet(cluster=cluster, asked=cluster)


def outlooks(service: Service, seconds_: range, **more: Any) -> list[tuple[int, Outlook]]:
    """Return what is told while j1 makes two mini-batches a second."""
    told = []
    for second in seconds_:
        fields = {"attempt": 1, "rate_milli": 2000, "workers": 1, **more}
        rate = JobRate(job="j1", steps=2 * second, **fields)
        effects = service.sees(second, Rates(at=at(second), jobs=(rate,)))
        told += [
            (second, each.message)
            for each in effects
            if isinstance(each, Send) and isinstance(each.message, Outlook)
        ]
    return told


def test_how_a_job_goes_is_told_where_its_vc_has_a_policy_and_again_to_a_new_allocator(
    service: Service,
) -> None:
    wanted = queued("j1", spec(1000)), bound("j1")
    service.hears(0, node("n1", "v100"), planned(vision="fifo"), *wanted)
    assert outlooks(service, range(1, 40)) == []
    service.hears(40, planned(vision="optimus"))
    ((_, told),) = outlooks(service, range(41, 80))
    assert [(pace.job, pace.attempt, pace.rate_milli) for pace in told.jobs] == [("j1", 1, 2000)]
    assert [(each.family, each.gpu_type) for each in told.families] == [("resnet", "v100")]
    service.hears(80, EpochBegan(epoch=2, owner="allocator-2"))
    (again,) = outlooks(service, range(81, 100))
    assert again[0] == 85
    assert again[1].families == told.families
    service.hears(100, planned(vision="fifo"))
    assert outlooks(service, range(101, 140)) == []


def test_the_pace_of_a_job_that_moved_is_that_of_its_new_attempt(service: Service) -> None:
    service.hears(0, planned(vision="optimus"), queued("j1", spec(1000)), bound("j1"))
    members = bound("j1", "n1", "n2").members
    service.hears(
        1,
        SuccessorBound(
            job="j1",
            attempt=2,
            order=2,
            members=members,
            at=at(1),
            master_port=1,
            chain="c",
            secret="",
        ),
    )
    service.hears(2, JobMoved(job="j1", attempt=2, source=1, order=3, at=at(2)))
    assert outlooks(service, range(3, 40)) == []
    ((_, told),) = outlooks(service, range(40, 80), attempt=2)
    assert told.jobs[0].attempt == 2
    assert told.families[0].points[0].nodes == 2
