"""Deadlines in admission: answers, what is followed, and what becomes of promises."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import msgspec
import pytest

from skep.machines.admission import AdmissionMachine
from skep.machines.base import Effect, Send
from skep.promises.length import SEEN_MAX
from skep.promises.pledges import PledgesKept
from skep.units import NS_PER_SECOND, Instant
from skep.wire.admin import SetVcs
from skep.wire.changes import Goal, JobChanged, Result
from skep.wire.cluster import Chain, Cluster, Level, NodeCell, Quota, VirtualCluster
from skep.wire.codec import RECORD_BYTES_MAX, Facts, encode
from skep.wire.deadline import told
from skep.wire.facts import (
    Admitted,
    CancelAsked,
    CellsSet,
    End,
    JobEnded,
    JobOver,
    JobRan,
    JobRequeued,
    NodeBack,
    NodeDrained,
    NodeLost,
    Refused,
)
from skep.wire.promises import (
    Answer,
    JobSeen,
    Judged,
    LengthSeen,
    NodeAway,
    PromiseBroken,
    PromiseJudged,
    PromiseKept,
    PromiseMade,
    PromiseMoved,
)
from skep.wire.reasons import Reason
from skep.wire.verdict import Verdict
from tests.kit import T0, Driver, at, facts_of, spec, submission

REPLY = "_INBOX.vc-nlp.x"
HOUR = 3600


def cells(nodes: int = 2, policy: str = "deadline") -> Cluster:
    chain = Chain(
        gpu="v100",
        levels=(Level(name="node", fanout=8),),
        node_level="node",
        nodes=tuple(NodeCell(node=f"n{index}") for index in range(nodes)),
    )
    vc = VirtualCluster(cells=(Quota(chain="v100", level="node", count=nodes),), policy=policy)
    return Cluster(chains={"v100": chain}, vcs={"nlp": vc})


def begun(
    nodes: int = 2, policy: str = "deadline", *, cluster: Cluster | None = None
) -> Driver[AdmissionMachine]:
    cluster = cluster or cells(nodes, policy)
    driver = Driver(AdmissionMachine)
    driver.restart()
    driver(SetVcs(vcs=cluster.vcs, chains=cluster.chains))
    driver(said(CellsSet(cluster=cluster, asked=cluster)))
    return driver


@pytest.fixture
def admission() -> Driver[AdmissionMachine]:
    """Return admission of a VC with two nodes of 8 GPUs, whose policy keeps promises."""
    return begun()


def said(*facts: Any) -> Facts:
    return Facts(service="allocator", at=T0, facts=facts)


def submit(driver: Driver[AdmissionMachine], number: int, **job: Any) -> list[Effect]:
    given = {"size": {"run_time": HOUR}, **job}
    return driver(submission(number, raw=spec(**given), reply=REPLY))


def ran(job: str, second: float) -> Facts:
    return said(JobRan(job=job, attempt=1, at=at(second)))


def ended(job: str, second: float, end: End = End.SUCCEEDED) -> Facts:
    return said(JobEnded(job=job, end=end, why=Reason.SUCCEEDED, attempts=1, at=at(second)))


def kinds(effects: list[Effect]) -> list[type]:
    return [type(fact) for fact in facts_of(effects)]


def judged(effects: list[Effect]) -> Judged:
    (verdict,) = [each.message for each in effects if isinstance(each, Send)]
    assert isinstance(verdict, Verdict)
    assert verdict.judged is not None
    return verdict.judged


# --- answers -------------------------------------------------------------------------------------


def test_a_promise_comes_with_the_verdict(admission: Driver[AdmissionMachine]) -> None:
    effects = submit(admission, 1, finish_by="8h")
    assert kinds(effects) == [Admitted, PromiseMade]
    admitted, made = facts_of(effects)
    promise = admitted.spec.promise
    assert promise is not None
    assert (promise.answer, promise.due, promise.workers) == ("accepted", at(8 * HOUR), 1)
    assert promise.begin == made.place.begin == at(8 * HOUR) - promise.lasts
    assert made.declared == HOUR * NS_PER_SECOND
    assert judged(effects).answer is Answer.ACCEPTED
    assert "\n" not in judged(effects).text


def test_a_job_without_a_deadline_is_only_followed(admission: Driver[AdmissionMachine]) -> None:
    effects = submit(admission, 1)
    assert kinds(effects) == [Admitted]
    assert facts_of(effects)[0].spec.promise.answer == "none"
    assert kinds(admission(ran("j1", 5))) == [JobSeen]


def test_a_vc_of_another_policy_promises_nothing() -> None:
    admission = begun(policy="fifo")
    effects = submit(admission, 1, finish_by="8h")
    assert kinds(effects) == [Admitted, PromiseJudged]
    assert judged(effects).why is Reason.KEEPS_NO_PROMISES
    assert facts_of(submit(admission, 2))[0].spec.promise is None
    assert admission(ran("j2", 5)) == []


@pytest.mark.parametrize(
    "job, why",
    [
        ({"finish_by": told(Instant(T0 - NS_PER_SECOND))}, Reason.DEADLINE_PASSED),
        ({"finish_by": "8h", "size": {}, "late": "refuse"}, Reason.LENGTH_UNKNOWN),
        (
            {"finish_by": "8h", "size": {"mini_batches": 9}, "late": "refuse"},
            Reason.PROFILE_REFUSED,
        ),
        ({"finish_by": "10m", "late": "refuse"}, Reason.TOO_LITTLE_EVEN_ALONE),
        ({"qos": "prior", "size": {}, "late": "refuse"}, Reason.LENGTH_UNKNOWN),
    ],
)
def test_a_job_that_cannot_be_on_time_is_refused_where_it_says_so(
    admission: Driver[AdmissionMachine], job: dict[str, Any], why: Reason
) -> None:
    effects = submit(admission, 1, **job)
    assert kinds(effects) == [Refused]
    (problem,) = facts_of(effects)[0].problems
    assert problem.reason is why
    assert problem.path in {"$.finish_by", "$.qos"}
    assert "\n" not in problem.text


def test_a_job_that_is_late_may_become_opportunistic(admission: Driver[AdmissionMachine]) -> None:
    effects = submit(admission, 1, finish_by="10m", late="opportunistic")
    assert kinds(effects) == [Admitted, PromiseJudged]
    assert facts_of(effects)[0].spec.opportunistic


@pytest.mark.parametrize(
    "more, over_quota",
    [
        ({}, "opportunistic"),
        ({"willing": {"profile": "refused"}}, "auto"),
        ({"over_quota": "wait"}, "wait"),
        ({"size": {"mini_batches": 10, "run_time": 60}}, "auto"),
        ({"size": {}}, "auto"),
    ],
)
def test_a_job_that_has_to_be_measured_first_may_have_idle_gpus_if_it_allows_it(
    admission: Driver[AdmissionMachine], more: dict[str, Any], over_quota: str
) -> None:
    asked = {
        "finish_by": "8h",
        "size": {"mini_batches": 10, "family": "bert"},
        "willing": {"profile": "allowed"},
    }
    effects = submit(admission, 1, **(asked | more))
    (fact,) = (each for each in facts_of(effects) if isinstance(each, Admitted))
    assert fact.spec.over_quota == over_quota


def test_an_opportunistic_job_has_no_promise(admission: Driver[AdmissionMachine]) -> None:
    effects = submit(admission, 1, finish_by="8h", opportunistic=True)
    assert judged(effects).why is Reason.BORROWED_GPUS


def test_a_class_beyond_its_budget_counts_as_normal(admission: Driver[AdmissionMachine]) -> None:
    """The VC has 384 GPU-hours a day: 19 for urgent jobs, 134 for prior ones.

    A job counts as it is nine times in ten: with 1.3 times what its owner says, at first.
    """
    first = submit(admission, 1, qos="urgent", gpus=8, size={"run_time": 1.8 * HOUR})
    assert facts_of(first)[0].spec.qos == "urgent"
    second = submit(admission, 2, qos="urgent", gpus=8, size={"run_time": 1.8 * HOUR})
    assert facts_of(second)[0].spec.qos == "normal"
    assert "counts as normal" in judged(second).note
    third = submit(admission, 3, qos="prior", gpus=8, size={"run_time": 1.8 * HOUR})
    assert facts_of(third)[0].spec.qos == "prior"
    admission(ended("j1", 10))
    fourth = submit(admission, 4, qos="urgent", gpus=8, size={"run_time": 1.8 * HOUR})
    assert facts_of(fourth)[0].spec.qos == "urgent"


# --- what becomes of promises --------------------------------------------------------------------


def test_a_job_that_ends_in_time_keeps_its_promise(admission: Driver[AdmissionMachine]) -> None:
    submit(admission, 1, finish_by="8h")
    (seen, moved) = facts_of(admission(ran("j1", 60), 60))
    assert seen == JobSeen(job="j1", runs=True, at=at(60))
    assert isinstance(moved, PromiseMoved)
    assert moved.place.begin == at(60)
    effects = admission(ended("j1", HOUR), HOUR)
    assert facts_of(effects) == [
        JobSeen(job="j1", runs=False, at=at(HOUR)),
        PromiseKept(job="j1", vc="nlp", due=at(8 * HOUR), at=at(HOUR)),
        LengthSeen(job="j1", vc="nlp", milli=983),
        JobOver(job="j1"),
    ]
    assert admission.machine.wake_at() is None


def test_a_job_that_never_runs_breaks_its_promise_when_it_is_due(
    admission: Driver[AdmissionMachine],
) -> None:
    submit(admission, 1, finish_by="8h", late="cancel")
    assert admission.machine.wake_at() == at(8 * HOUR)
    (broken, cancelled) = facts_of(admission.tick())
    assert isinstance(broken, PromiseBroken)
    assert broken.why is Reason.STARTED_TOO_LATE
    assert cancelled == CancelAsked(job="j1")
    assert admission.machine.wake_at() is None


def test_a_job_that_outruns_its_length_loses_its_promise_only_where_others_need_the_gpus(
    admission: Driver[AdmissionMachine],
) -> None:
    submit(admission, 1, finish_by="2h", gpus=8, workers=2)
    admission(ran("j1", 0), 0)
    wake = admission.machine.wake_at()
    assert wake is not None
    (moved,) = facts_of(admission.tick())
    assert isinstance(moved, PromiseMoved)
    submit(admission, 2, finish_by="8h", gpus=8, workers=2, size={"run_time": 5 * HOUR})
    while not isinstance((fact := facts_of(admission.tick())[0]), PromiseBroken):
        assert isinstance(fact, PromiseMoved)
    assert (fact.job, fact.why) == ("j1", Reason.OUTRAN_ITS_LENGTH)


def test_a_lost_attempt_is_judged_again_and_named_as_the_cause(
    admission: Driver[AdmissionMachine],
) -> None:
    submit(admission, 1, finish_by="3h")
    admission(ran("j1", 0), 0)
    lost = JobRequeued(job="j1", attempt=1, why=Reason.NODE_LOST, counted=False, at=at(HOUR))
    (seen, moved) = facts_of(admission(said(lost), HOUR))
    assert seen == JobSeen(job="j1", runs=False, at=at(HOUR), lost=True, why=Reason.NODE_LOST)
    assert isinstance(moved, PromiseMoved)
    admission(ran("j1", HOUR + 10), HOUR + 10)
    again = JobRequeued(job="j1", attempt=2, why=Reason.NODE_LOST, counted=False, at=at(2.5 * HOUR))
    (_, broken) = facts_of(admission(said(again), 2.5 * HOUR))
    assert isinstance(broken, PromiseBroken)
    assert broken.why is Reason.NODE_LOST


def test_a_suspended_job_has_run_for_what_it_ran(admission: Driver[AdmissionMachine]) -> None:
    submit(admission, 1, finish_by="8h")
    admission(ran("j1", 0), 0)

    def changed(goal: Goal, second: float) -> Facts:
        return said(
            JobChanged(
                job="j1",
                attempt=1,
                goal=goal,
                result=Result.DONE,
                why=Reason.PREEMPTED,
                at=at(second),
            )
        )

    admission(changed(Goal.SUSPEND, 600), 600)
    assert admission.machine.pledges.jobs["j1"].served(at(5000)) == 600 * NS_PER_SECOND
    admission(changed(Goal.RESUME, 1000), 1000)
    assert admission.machine.pledges.jobs["j1"].served(at(1100)) == 700 * NS_PER_SECOND


def test_fewer_cells_break_promises_that_have_no_other_place(
    admission: Driver[AdmissionMachine],
) -> None:
    submit(admission, 1, finish_by="2h", gpus=8, workers=2)
    submit(admission, 2, finish_by="4h", gpus=8)
    fewer = cells(1)
    (_, broken) = facts_of(admission(said(CellsSet(cluster=fewer, asked=fewer)), 10))
    assert isinstance(broken, PromiseBroken)
    assert (broken.job, broken.why) == ("j1", Reason.CELLS_CHANGED)
    assert "j2" in admission.machine.pledges.books["nlp"].places


def test_nodes_that_are_away_are_not_promised(admission: Driver[AdmissionMachine]) -> None:
    submit(admission, 1, finish_by="8h")
    assert facts_of(admission(said(NodeLost(node="n1")))) == [NodeAway(node="n1", away=True)]
    assert judged(submit(admission, 2, finish_by="8h", gpus=8, workers=2)).why is (
        Reason.CELLS_TOO_SMALL
    )
    assert facts_of(admission(said(NodeBack(node="n1")))) == [NodeAway(node="n1", away=False)]
    assert judged(submit(admission, 3, finish_by="8h", gpus=8, workers=2)).answer is (
        Answer.ACCEPTED
    )


def test_a_drained_node_that_was_lost_stays_away_until_it_is_undrained(
    admission: Driver[AdmissionMachine],
) -> None:
    drain = NodeDrained(node="n1", drain=True)
    said_of = [
        (drain, [NodeAway(node="n1", away=True, drained=True)]),
        (NodeLost(node="n1"), [NodeAway(node="n1", away=True)]),
        (NodeBack(node="n1"), [NodeAway(node="n1", away=False)]),
    ]
    for fact, noted in said_of:
        assert facts_of(admission(said(fact))) == noted
    again = AdmissionMachine()
    for piece in admission.machine.snapshot():
        again.apply(piece)
    assert again.pledges.summary() == admission.machine.pledges.summary()
    wide = {"finish_by": "8h", "gpus": 8, "workers": 2}
    assert judged(submit(admission, 1, **wide)).why is Reason.CELLS_TOO_SMALL
    undrained = facts_of(admission(said(msgspec.structs.replace(drain, drain=False))))
    assert undrained == [NodeAway(node="n1", away=False, drained=True)]
    assert judged(submit(admission, 2, **wide)).answer is Answer.ACCEPTED


def two_chains() -> Driver[AdmissionMachine]:
    """Return admission of a VC with two nodes of each of two chains with GPUs of one type."""
    (chain,) = cells().chains.values()
    second = msgspec.structs.replace(chain, nodes=(NodeCell(node="m0"), NodeCell(node="m1")))
    owned = tuple(Quota(chain=name, level="node", count=2) for name in ("v100", "v100b"))
    vc = VirtualCluster(cells=owned, policy="deadline")
    return begun(cluster=Cluster(chains={"v100": chain, "v100b": second}, vcs={"nlp": vc}))


def test_a_lost_node_counts_where_two_chains_have_gpus_of_one_type() -> None:
    """Its chain is the first of two: the other one has lost nothing."""
    driver = two_chains()
    driver(said(NodeLost(node="n1")))
    wide = {"finish_by": "2h", "gpus": 8, "workers": 2}
    (_, made) = facts_of(submit(driver, 1, **wide))
    assert made.place.chain == "v100b"
    assert judged(submit(driver, 2, **wide)).why is Reason.BEHIND_PROMISES
    assert judged(submit(driver, 3, finish_by="2h", gpus=8)).answer is Answer.ACCEPTED


def test_no_gang_is_promised_gpus_of_two_chains() -> None:
    driver = two_chains()
    for number in (1, 2, 3):
        submit(driver, number, finish_by="90m", gpus=8)
    driver(ended("j1", 1), 1)  # One node of each chain is promised now.
    gang = judged(submit(driver, 4, finish_by="90m", gpus=8, workers=2))
    assert gang.why is Reason.BEHIND_PROMISES
    for number, chain in ((5, ""), (6, "v100b")):
        (_, made) = facts_of(submit(driver, number, finish_by="90m", gpus=8))
        assert made.place.chain == chain


def test_promises_of_logs_that_counted_both_chains_as_one_are_judged_again() -> None:
    """Nodes were numbered by type of GPU, so the second chain's were the third and the fourth."""
    driver = two_chains()
    (_, made) = facts_of(submit(driver, 1, finish_by="2h", gpus=8, workers=2))
    earlier = msgspec.structs.replace(made.place, nodes=((2, 8), (3, 8)))
    old = msgspec.structs.replace(made, place=earlier)
    driver.machine.apply(old)
    driver.machine.check()
    again = AdmissionMachine()
    for piece in deepcopy(driver.machine.snapshot()):
        for pledge in piece.pledges if isinstance(piece, PledgesKept) else ():
            pledge.booked = True  # As it was when both were one.
        again.apply(piece)
    again.check()
    (moved,) = facts_of(driver.tick(10))
    assert isinstance(moved, PromiseMoved)
    assert moved.why is Reason.CELLS_CHANGED
    driver.machine.check()


def test_owners_that_are_wrong_get_wider_intervals(admission: Driver[AdmissionMachine]) -> None:
    for number in range(1, 21):
        submit(admission, number)
        admission(ran(f"j{number}", 0), 0)
        admission(ended(f"j{number}", 2 * HOUR), 0)
    effects = submit(admission, 21, finish_by="90m")
    assert judged(effects).answer is Answer.LATE
    assert judged(submit(admission, 22, finish_by="3h")).answer is Answer.ACCEPTED


def test_a_snapshot_holds_the_book(admission: Driver[AdmissionMachine]) -> None:
    for number in range(1, 30):
        submit(admission, number, finish_by="8h", qos="prior", gpus=1 + number % 8)
        if number % 3:
            admission(ran(f"j{number}", number), number)
        if number % 5 == 0:
            admission(ended(f"j{number}", 100 + number), 100 + number)
    admission(said(NodeLost(node="n0")))
    again = AdmissionMachine()
    for piece in admission.machine.snapshot():
        again.apply(piece)
    again.check()
    assert again.pledges.summary() == admission.machine.pledges.summary()
    assert again.pledges.books["nlp"].places


def test_a_snapshot_of_many_tenants_fits_into_records() -> None:
    """Each of 300 has a full day of both classes, and as many lengths as are kept."""
    names = [f"tenant-{index:03}-{'x' * 40}" for index in range(300)]
    (one,) = cells(1).vcs.values()
    nodes = tuple(NodeCell(node=f"n{index}") for index in range(300))
    (chain,) = cells().chains.values()
    cluster = Cluster(
        chains={"v100": msgspec.structs.replace(chain, nodes=nodes)}, vcs=dict.fromkeys(names, one)
    )
    driver = begun(cluster=cluster)
    pledges = driver.machine.pledges
    for name in names:
        for milli in range(SEEN_MAX):
            pledges.apply(LengthSeen(job="j1", vc=name, milli=9000 + milli))
        hours = pledges.used.setdefault(name, {})
        hours.update({T0 // 3600 // NS_PER_SECOND - hour: [10**17, 10**17] for hour in range(25)})
    pieces = driver.machine.snapshot()
    assert max(len(encode(piece)) for piece in pieces) < RECORD_BYTES_MAX / 2
    again = AdmissionMachine()
    for piece in pieces:
        again.apply(piece)
    assert again.pledges.summary() == pledges.summary()


# --- what must not end the service ---------------------------------------------------------------


def test_running_jobs_lose_promises_for_which_no_cells_are_left(
    admission: Driver[AdmissionMachine],
) -> None:
    for number in (1, 2):
        submit(admission, number, finish_by="2h", gpus=8)
        admission(ran(f"j{number}", 1), 1)
    fewer = cells(1)
    effects = admission(said(CellsSet(cluster=fewer, asked=fewer)), 10)
    broken = [fact for fact in facts_of(effects) if isinstance(fact, PromiseBroken)]
    assert [fact.why for fact in broken] == [Reason.CELLS_CHANGED]


def test_lengths_of_jobs_that_owners_call_instant_are_bounded(
    admission: Driver[AdmissionMachine],
) -> None:
    for number in range(1, 13):
        submit(admission, number, size={"run_time": 1e-310})
        admission(ran(f"j{number}", 0), 0)
        (_, length, over) = facts_of(admission(ended(f"j{number}", HOUR), 0))
        assert isinstance(length, LengthSeen)
        assert (length.milli, type(over)) == (10_000, JobOver)
    effects = submit(admission, 20, size={"run_time": "365d"}, finish_by="8h")
    assert judged(effects).why is Reason.TOO_LITTLE_EVEN_ALONE


def test_a_deadline_that_passes_before_it_is_read_is_late(
    admission: Driver[AdmissionMachine],
) -> None:
    raw = spec(size={"run_time": 60}, finish_by="1m")
    effects = admission(submission(1, raw=raw, reply=REPLY), 200)
    assert kinds(effects) == [Admitted, PromiseJudged]
    assert judged(effects).why is Reason.DEADLINE_PASSED


def test_what_happened_while_admission_was_away_is_read_before_promises_are_judged(
    admission: Driver[AdmissionMachine],
) -> None:
    submit(admission, 1, finish_by="2h", late="cancel")
    assert facts_of(admission.restart(3 * HOUR)) == []
    assert facts_of(admission.tick(3 * HOUR + 1)) == []
    seen = facts_of(admission(ran("j1", 10), 3 * HOUR + 2))
    assert [type(fact) for fact in seen] == [JobSeen, PromiseMoved]
    over = kinds(admission(ended("j1", HOUR), 3 * HOUR + 2))
    assert over == [JobSeen, PromiseKept, LengthSeen, JobOver]
