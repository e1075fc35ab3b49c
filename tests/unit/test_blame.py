"""Where a job's time went: a small log for each cause, made by hand. Times are seconds."""

from __future__ import annotations

from typing import Any

import pytest

from skep.ledger.blame import fold
from skep.ledger.blame.causes import TEXT, WAITING, Cause
from skep.ledger.blame.lives import CONDITIONS_MAX, STRETCHES_MAX
from skep.ledger.blame.state import Blame
from skep.ledger.blame.told import Share, Told, tell_vc
from skep.units import NS_PER_SECOND, Instant, seconds
from skep.wire.changes import (
    AskOver,
    AskResume,
    AskSuspend,
    AskTaken,
    Goal,
    GpusRegained,
    JobChanged,
    JobChanging,
    Result,
)
from skep.wire.cluster import Chain, Cluster, Level, NodeCell
from skep.wire.commands import Checkpoint, Move, Resize, Resume, Suspend
from skep.wire.commands import Share as ShareGpus
from skep.wire.facts import (
    CellsReserved,
    CellsSet,
    End,
    GpuQuarantined,
    JobBound,
    JobDemoted,
    JobEnded,
    JobFate,
    JobQueued,
    JobRan,
    JobRequeued,
    JobStopping,
    JobWaits,
    Member,
    MemberGone,
    NodeLost,
    ReservationDropped,
)
from skep.wire.moves import JobMoved, SuccessorBound, SuccessorDropped
from skep.wire.node import Outcome
from skep.wire.reasons import Reason
from skep.wire.resizes import GangNarrowed, GangWidened
from skep.wire.trials import After, Before, Kind, TrialBegun, TrialOver, Verdict
from tests.blame_kit import check
from tests.kit import at, spec

REQUESTED, PREEMPTED, BY_POLICY = (Reason.REQUESTED, Reason.PREEMPTED, Reason.PREEMPTED_BY_POLICY)


class Log:
    """A log by hand: each call is a fact at a second."""

    def __init__(self) -> None:
        self.blame = Blame()
        self.attempts: dict[str, int] = {}

    def add(self, second: float, fact: Any) -> Told | None:
        told = fold.apply(self.blame, fact, at(second))
        if told is not None:
            check(told)
        return told

    def queued(self, second: float, job: str, submitted: float | None = None, **given: Any) -> None:
        begun = at(second if submitted is None else submitted)
        self.add(second, JobQueued(job=job, spec=spec(**given), submitted_at=begun))

    def waits(self, second: float, job: str, why: Reason) -> None:
        self.add(second, JobWaits(job=job, why=why))

    def bound(self, second: float, job: str, *gpus: str, owns: bool = True, **given: Any) -> None:
        self.attempts[job] = self.attempts.get(job, 0) + 1
        self.add(
            second,
            JobBound(
                job=job,
                attempt=self.attempts[job],
                order=1,
                members=members(*gpus, owns=owns),
                master_port=1,
                why=Reason.BEST_FIT_ONE_NODE,
                at=at(second),
                **given,
            ),
        )

    def ran(self, second: float, job: str) -> None:
        self.add(second, JobRan(job=job, attempt=self.attempts[job], at=at(second)))

    def runs(self, second: float, job: str, *gpus: str, owns: bool = True) -> None:
        self.bound(second, job, *gpus, owns=owns)
        self.ran(second, job)

    def stopping(self, second: float, job: str, why: Reason) -> None:
        attempt = self.attempts[job]
        self.add(second, JobStopping(job=job, attempt=attempt, order=2, why=why, at=at(second)))

    def requeued(self, second: float, job: str, why: Reason) -> None:
        attempt = self.attempts[job]
        self.add(
            second, JobRequeued(job=job, attempt=attempt, why=why, counted=False, at=at(second))
        )

    def changing(self, second: float, job: str, goal: Goal, change: Any, why: Reason) -> None:
        self.add(
            second,
            JobChanging(
                job=job,
                attempt=self.attempts[job],
                order=3,
                goal=goal,
                change=change,
                nodes=(),
                why=why,
                at=at(second),
            ),
        )

    def changed(
        self,
        second: float,
        job: str,
        goal: Goal,
        why: Reason = REQUESTED,
        result: Result = Result.DONE,
        **more: Any,
    ) -> None:
        attempt = self.attempts[job]
        self.add(
            second,
            JobChanged(
                job=job, attempt=attempt, goal=goal, result=result, why=why, at=at(second), **more
            ),
        )

    def suspended(
        self, second: float, job: str, why: Reason = REQUESTED, *, released: bool = True
    ) -> None:
        self.changing(second, job, Goal.SUSPEND, Suspend(), why)
        self.changed(second, job, Goal.SUSPEND, why, released=released)

    def regained(self, second: float, job: str, *gpus: str) -> None:
        attempt = self.attempts[job]
        self.add(
            second,
            GpusRegained(job=job, attempt=attempt, chain="", at=at(second), members=members(*gpus)),
        )

    def gone(self, second: float, job: str, step_s: float) -> None:
        self.add(
            second,
            MemberGone(
                job=job,
                attempt=self.attempts[job],
                node="n1",
                outcome=Outcome.SUCCEEDED,
                step_ns=seconds(step_s),
            ),
        )

    def ended(
        self, second: float, job: str, end: End = End.SUCCEEDED, why: Reason = Reason.SUCCEEDED
    ) -> Told:
        attempts = self.attempts.get(job, 0)
        told = self.add(
            second, JobEnded(job=job, end=end, why=why, attempts=attempts, at=at(second))
        )
        assert told is not None
        return told

    def trial(
        self, second: float, kind: Kind, job: str, rate: int, after: int, **more: Any
    ) -> None:
        """A trial is begun at a second, and over two seconds later; rates per second."""
        self.add(
            second,
            TrialBegun(
                trial=1,
                kind=kind,
                vc="nlp",
                jobs=(Before(job=job, attempt=1, gpus=1, rate_milli=rate * 1000, **more),),
                families=(),
                at=at(second),
                until=at(second + 600),
                needed_milli=1000,
                why=Reason.BY_POLICY,
            ),
        )
        self.after = TrialOver(
            trial=1,
            jobs=(job,),
            verdict=Verdict.KEPT,
            why=Reason.TRIAL_GAINS,
            at=at(second),
            after=(After(job=job, rate_milli=after * 1000, samples=9),),
        )


def members(*gpus: str, owns: bool = True) -> tuple[Member, ...]:
    """Return the parts of a gang with a rank on each of these GPUs (`n1/0`)."""
    parts: dict[str, list[tuple[int, ...]]] = {}
    for gpu in gpus:
        node, _, device = gpu.partition("/")
        parts.setdefault(node, []).append((int(device),))
    return tuple(
        Member(
            node=node,
            identity="",
            first_rank=0,
            devices=tuple(ranks),
            levels=(1,) * len(ranks) if owns else (),
        )
        for node, ranks in parts.items()
    )


def resize(world: int) -> Resize:
    return Resize(generation=2, world=world, ranks=(), master_address="", master_port=1)


Shown = dict[Cause, tuple[float, dict[str, float]]]


def shown(told: Told) -> Shown:
    """Return by cause its seconds, and those of its parties."""
    return {share.cause: (share.ns / NS_PER_SECOND, parties(share)) for share in told.shares}


def parties(share: Share) -> dict[str, float]:
    return {party.name or party.kind: party.ns / NS_PER_SECOND for party in share.parties}


def stretches(told: Told) -> list[tuple[Cause, float]]:
    """Return the stretches in their order, with their seconds."""
    return [(span.cause, (span.end - span.begin) / NS_PER_SECOND) for span in told.spans]


# --- waiting --------------------------------------------------------------------------------------


def test_a_job_that_runs_at_once_only_starts_and_runs() -> None:
    log = Log()
    log.queued(2, "j1", submitted=0)
    log.bound(2, "j1", "n1/0", "n1/1")
    log.ran(5, "j1")
    told = log.ended(105, "j1")
    assert stretches(told) == [(Cause.UNDECIDED, 2), (Cause.STARTING, 3), (Cause.RUNNING, 100)]
    assert told.elapsed_ns == seconds(105)
    assert (told.held_gpu_ns, told.useful_gpu_ns, told.lost_gpu_ns) == (
        seconds(206),
        seconds(200),
        0,
    )


def test_a_job_waits_behind_the_holders_of_its_cells_by_their_gpus() -> None:
    log = Log()
    log.queued(0, "j1", gpus=3)
    log.runs(0, "j1", "n1/0", "n1/1", "n1/2")
    log.queued(0, "j2")
    log.runs(0, "j2", "n1/3")
    log.queued(0, "j3", vc="vision")
    log.runs(0, "j3", "n2/0")
    log.queued(10, "j4", gpus=4)
    log.ended(50, "j2")
    log.ended(90, "j1")
    log.runs(100, "j4", "n1/0", "n1/1", "n1/2", "n1/3")
    told = log.ended(120, "j4")
    # 40 s behind both, 40 s behind j1 alone; then there was nobody, and vision's job is no matter.
    assert shown(told) == {
        Cause.WAITS_ALONE: (10, {}),
        Cause.WAITS_BEHIND: (80, {"j1": 70, "j2": 10}),
        Cause.RUNNING: (20, {}),
    }


def test_an_opportunistic_job_waits_behind_all_that_hold_gpus_of_its_type() -> None:
    log = Log()
    chain = {
        name: Chain(
            gpu=gpu,
            levels=(Level(name="node", fanout=8),),
            node_level="node",
            nodes=(NodeCell(node=node),),
        )
        for name, gpu, node in (("old", "p100", "n1"), ("new", "v100", "n2"))
    }
    cluster = Cluster(chains=chain)
    log.add(0, CellsSet(cluster=cluster, asked=cluster))
    for job, vc, gpu, where in (("j1", "nlp", "n1/0", "old"), ("j2", "vision", "n2/0", "new")):
        log.queued(0, job, vc=vc)
        log.bound(0, job, gpu, owns=job == "j1", chain=where)
        log.ran(0, job)
    log.queued(0, "j3", opportunistic=True, vc="nlp")
    log.queued(0, "j4", opportunistic=True, gpu_type="v100")
    for job in ("j3", "j4"):
        log.runs(60, job, f"n3/{job[1]}", owns=False)
    assert shown(log.ended(60, "j3"))[Cause.WAITS_BEHIND] == (60, {"j1": 30, "j2": 30})
    assert shown(log.ended(60, "j4"))[Cause.WAITS_BEHIND] == (60, {"j2": 60})


def test_of_many_holders_five_are_named_and_the_rest_is_others() -> None:
    log = Log()
    for number in range(1, 11):
        log.queued(0, f"j{number}", gpus=number)
        log.runs(0, f"j{number}", *(f"n{number}/{gpu}" for gpu in range(number)))
    log.queued(0, "j20")
    log.runs(110, "j20", "m/0")
    told = log.ended(110, "j20")
    waited, named = shown(told)[Cause.WAITS_BEHIND]
    assert waited == 110
    assert list(named) == ["j10", "j9", "j8", "j7", "j6", "others"]
    assert named["j10"] == pytest.approx(20, abs=1e-6)
    assert named["others"] == pytest.approx(30, abs=1e-6)


@pytest.mark.parametrize("why", sorted(WAITING))
def test_a_recorded_reason_is_the_cause(why: Reason) -> None:
    log = Log()
    log.queued(0, "j1")
    log.waits(10, "j1", why)
    log.waits(40, "j1", Reason.WAITS_FOR_CELLS)
    log.runs(45, "j1", "n1/0")
    assert shown(log.ended(45, "j1")) == {Cause.WAITS_ALONE: (15, {}), WAITING[why]: (30, {})}


def test_victims_of_a_reservation_are_named_and_know_for_which_job() -> None:
    log = Log()
    for job, gpus in (("j1", 3), ("j2", 1)):
        log.queued(0, job, opportunistic=True, gpus=gpus)
        log.runs(0, job, *(f"n{job[1]}/{gpu}" for gpu in range(gpus)), owns=False)
    log.queued(10, "j3", vc="vision", gpus=4)
    log.add(10, reserved(10, "j3", "j1", "j2"))
    log.stopping(12, "j1", PREEMPTED)
    log.stopping(12, "j2", PREEMPTED)
    log.requeued(18, "j1", PREEMPTED)
    log.requeued(18, "j2", PREEMPTED)
    log.runs(18, "j3", "n1/0", "n1/1", "n1/2", "n2/0")
    log.queued(20, "j4")
    log.runs(20, "j4", "n3/0", owns=False)
    assert shown(log.ended(48, "j3")) == {
        Cause.WAITS_FOR_ROOM: (8, {"j1": 6, "j2": 2}),
        Cause.RUNNING: (30, {}),
    }
    log.runs(60, "j1", "n1/0", "n1/1", "n1/2", owns=False)
    told = log.ended(61, "j1")
    assert stretches(told) == [
        (Cause.WORK_LOST, 12),
        (Cause.STOPPING, 6),
        (Cause.PREEMPTED, 30),
        (Cause.WAITS_BEHIND, 12),  # j3 is over: from then on others are in the way.
        (Cause.RUNNING, 1),
    ]
    assert shown(told)[Cause.WORK_LOST] == (12, {"j3": 12})
    assert shown(told)[Cause.STOPPING] == (6, {"j3": 6})
    assert shown(told)[Cause.PREEMPTED] == (30, {"j3": 30})
    assert shown(told)[Cause.WAITS_BEHIND] == (12, {"j4": 12})
    assert (told.lost_gpu_ns, told.useful_gpu_ns) == (seconds(36), seconds(3))


def test_a_reservation_that_is_dropped_is_a_wait_again() -> None:
    log = Log()
    for job in ("j1", "j2"):
        log.queued(0, job, opportunistic=job == "j1")
    log.runs(0, "j1", "n1/0", owns=False)
    log.add(5, reserved(5, "j2", "j1"))
    log.add(8, ReservationDropped(job="j2", attempt=1, why=PREEMPTED))
    log.add(9, reserved(9, "j2", "j1"))
    cluster = Cluster()
    fate = JobFate(job="j2", fate="released")
    log.add(11, CellsSet(cluster=cluster, asked=cluster, fates=(fate,)))
    log.runs(20, "j2", "n1/1")
    assert stretches(log.ended(20, "j2")) == [
        (Cause.WAITS_ALONE, 5),
        (Cause.WAITS_FOR_ROOM, 3),
        (Cause.WAITS_ALONE, 1),
        (Cause.WAITS_FOR_ROOM, 2),
        (Cause.WAITS_ALONE, 9),
    ]
    assert log.blame.lives["j1"].takers == {}


def reserved(second: float, job: str, *victims: str) -> CellsReserved:
    return CellsReserved(
        job=job,
        attempt=1,
        chain="",
        members=(),
        victims=victims,
        at=at(second),
        why=Reason.BEST_FIT_ONE_NODE,
    )


def test_a_job_whose_earlier_attempt_is_in_the_way_names_no_other() -> None:
    log = Log()
    log.queued(0, "j1")
    log.add(5, reserved(5, "j1", "j1"))
    log.runs(9, "j1", "n1/1")
    assert shown(log.ended(9, "j1")) == {Cause.WAITS_ALONE: (5, {}), Cause.WAITS_FOR_ROOM: (4, {})}


def test_a_job_that_its_policy_holds_back_names_those_that_hold_gpus() -> None:
    log = Log()
    for job in ("j1", "j2"):
        log.queued(0, job)
    log.runs(0, "j1", "n1/0")
    log.waits(0, "j2", Reason.HELD_BY_POLICY)
    log.ended(30, "j1")
    log.runs(40, "j2", "n1/0")
    assert shown(log.ended(40, "j2")) == {Cause.HELD_BY_POLICY: (40, {"j1": 30})}


def test_a_demoted_job_is_in_no_way_any_more() -> None:
    log = Log()
    for job in ("j1", "j2"):
        log.queued(0, job)
    log.runs(0, "j1", "n1/0")
    log.add(10, JobDemoted(job="j1", attempt=1, why=PREEMPTED, at=at(10)))
    log.runs(30, "j2", "n1/1")
    assert shown(log.ended(30, "j2")) == {
        Cause.WAITS_ALONE: (20, {}),
        Cause.WAITS_BEHIND: (10, {"j1": 10}),
    }


# --- suspended, stopped and lost ------------------------------------------------------------------


def test_what_its_tenant_suspends_is_suspended_until_it_is_asked_back() -> None:
    log = Log()
    log.queued(0, "j1")
    log.runs(0, "j1", "n1/0")
    log.suspended(10, "j1")
    log.queued(10, "j2")
    log.runs(10, "j2", "n1/0")
    log.add(30, AskTaken(job="j1", number=7, ask=AskResume(job="j1")))
    log.ended(70, "j2")
    log.regained(70, "j1", "n1/1")
    log.changing(70, "j1", Goal.RESUME, Resume(), REQUESTED)
    log.changed(72, "j1", Goal.RESUME)
    told = log.ended(100, "j1")
    assert stretches(told) == [
        (Cause.RUNNING, 10),
        (Cause.SUSPENDED, 20),
        (Cause.WAITS_BEHIND, 40),
        (Cause.CHANGING, 2),
        (Cause.RUNNING, 28),
    ]
    assert shown(told)[Cause.WAITS_BEHIND] == (40, {"j2": 40})
    assert told.held_gpu_ns == seconds(40)


def test_a_resume_that_comes_to_nothing_leaves_it_suspended() -> None:
    log = Log()
    log.queued(0, "j1")
    log.runs(0, "j1", "n1/0")
    log.suspended(10, "j1", released=False)
    ask = AskResume(job="j1")
    log.add(20, AskTaken(job="j1", number=7, ask=ask))
    log.changing(20, "j1", Goal.RESUME, Resume(), REQUESTED)
    log.changed(25, "j1", Goal.RESUME, Reason.NOT_TAKEN, Result.UNDONE)
    log.add(25, AskOver(job="j1", number=7, ask=ask, result=Result.UNDONE))
    told = log.ended(40, "j1", End.CANCELLED, Reason.CANCELLED)
    assert stretches(told) == [
        (Cause.RUNNING, 10),
        (Cause.SUSPENDED, 10),
        (Cause.CHANGING, 5),
        (Cause.SUSPENDED, 15),
    ]
    assert told.held_gpu_ns == seconds(40)  # It kept its GPUs.


def test_what_its_policy_suspends_is_preempted_by_those_that_run() -> None:
    log = Log()
    for job in ("j1", "j2"):
        log.queued(0, job)
    log.runs(0, "j1", "n1/0")
    log.suspended(60, "j1", BY_POLICY)
    log.runs(60, "j2", "n1/0")
    log.suspended(120, "j2", BY_POLICY)
    log.regained(120, "j1")
    log.changing(120, "j1", Goal.RESUME, Resume(), BY_POLICY)
    log.changed(121, "j1", Goal.RESUME, BY_POLICY)
    told = log.ended(130, "j1")
    assert shown(told) == {
        Cause.PREEMPTED: (60, {"j2": 60}),
        Cause.RUNNING: (69, {}),
        Cause.CHANGING: (1, {}),
    }
    ask = AskSuspend(job="j2")
    log.add(125, AskOver(job="j2", number=9, ask=ask, result=Result.DONE))
    told = log.ended(140, "j2", End.CANCELLED, Reason.CANCELLED)
    assert [cause for cause, _ in stretches(told)][-2:] == [Cause.PREEMPTED, Cause.SUSPENDED]


@pytest.mark.parametrize("end, lost", [(End.FAILED, 30), (End.SUCCEEDED, 0), (End.CANCELLED, 0)])
def test_work_since_the_last_checkpoint_is_lost_with_a_failed_attempt(
    end: End, lost: float
) -> None:
    log = Log()
    log.queued(0, "j1")
    log.runs(0, "j1", "n1/0")
    log.changing(50, "j1", Goal.CHECKPOINT, Checkpoint(), REQUESTED)
    log.changed(60, "j1", Goal.CHECKPOINT, pause_ns=seconds(2))
    told = log.ended(90, "j1", end, Reason.EXITED_NONZERO)
    assert shown(told)[Cause.CHANGING] == (2, {})
    assert shown(told)[Cause.RUNNING][0] == 88 - lost
    expected = (lost, {"exited-nonzero": lost}) if lost else None
    assert shown(told).get(Cause.WORK_LOST) == expected


def test_a_lost_node_is_named() -> None:
    log = Log()
    log.queued(0, "j1", workers=2)
    log.runs(0, "j1", "n1/0", "n2/0")
    log.add(50, NodeLost(node="n2"))
    log.stopping(50, "j1", Reason.NODE_LOST)
    log.requeued(51, "j1", Reason.NODE_LOST)
    log.runs(60, "j1", "n1/0", "n3/0")
    told = log.ended(70, "j1")
    assert shown(told)[Cause.WORK_LOST] == (50, {"n2": 50})
    assert shown(told)[Cause.WAITS_ALONE] == (9, {})


def test_a_node_that_could_not_start_a_part_is_named() -> None:
    log = Log()
    log.queued(0, "j1", workers=2)
    log.runs(0, "j1", "n1/0", "n2/0")
    gone = MemberGone(job="j1", attempt=1, node="n2", outcome=Outcome.NODE_FAULT)
    log.add(20, gone)
    log.requeued(20, "j1", Reason.NODE_FAULT)
    told = log.ended(20, "j1", End.CANCELLED, Reason.CANCELLED)
    assert shown(told) == {Cause.WORK_LOST: (20, {"n2": 20})}


def test_work_of_a_suspended_attempt_is_lost_with_it() -> None:
    log = Log()
    log.queued(0, "j1")
    log.runs(0, "j1", "n1/0")
    log.suspended(40, "j1")
    log.add(50, NodeLost(node="n1"))
    log.requeued(50, "j1", Reason.NODE_LOST)
    told = log.ended(50, "j1", End.CANCELLED, Reason.CANCELLED)
    assert stretches(told) == [(Cause.WORK_LOST, 40), (Cause.SUSPENDED, 10)]


def test_a_job_that_moved_takes_its_work_along() -> None:
    log = Log()
    log.queued(0, "j1")
    log.runs(0, "j1", "n1/0")
    log.changing(30, "j1", Goal.MIGRATE, Move(targets=()), REQUESTED)
    log.add(30, successor(30, "j1", "n2/0"))
    log.add(40, SuccessorDropped(job="j1", attempt=2, order=6, why=REQUESTED, at=at(40)))
    log.add(40, successor(40, "j1", "n3/0"))
    log.add(48, JobMoved(job="j1", attempt=2, source=1, order=7, at=at(48)))
    log.attempts["j1"] = 2
    log.changed(50, "j1", Goal.MIGRATE, pause_ns=seconds(3))
    told = log.ended(90, "j1", End.FAILED, Reason.EXITED_NONZERO)
    assert shown(told)[Cause.WORK_LOST] == (87, {"exited-nonzero": 87})
    assert told.held_gpu_ns == seconds(90 + 18)  # Its successor held a GPU while it got ready.


def successor(second: float, job: str, *gpus: str) -> SuccessorBound:
    return SuccessorBound(
        job=job,
        attempt=2,
        order=5,
        members=members(*gpus),
        master_port=1,
        at=at(second),
        chain="",
        secret="",
    )


# --- slowed ---------------------------------------------------------------------------------------


def test_a_pack_that_was_measured_slows_by_what_was_measured() -> None:
    log = Log()
    for job in ("j1", "j2"):
        log.queued(0, job)
    log.runs(0, "j1", "n1/0")
    log.trial(100, Kind.PACK, "j1", 10, 8)
    log.runs(100, "j2", "n1/0", owns=False)
    log.add(160, log.after)
    log.ended(200, "j2")
    told = log.ended(250, "j1")
    assert shown(told) == {
        Cause.RUNNING: (230, {}),
        Cause.SLOWED_BY_PACKING: (20, {"j2": 20}),  # 100 s at 8 instead of 10 a second.
    }
    # Half of the GPU was the other's for 100 s.
    assert (told.held_gpu_ns, told.slowed_gpu_ns) == (seconds(200), seconds(10))


def test_without_a_measurement_it_just_runs() -> None:
    log = Log()
    for job in ("j1", "j2"):
        log.queued(0, job)
    log.runs(0, "j1", "n1/0")
    log.runs(100, "j2", "n1/0", owns=False)
    log.ended(200, "j2")
    assert shown(log.ended(250, "j1")) == {Cause.RUNNING: (250, {})}


def test_a_guest_is_compared_with_its_rate_alone() -> None:
    log = Log()
    for job in ("j1", "j2"):
        log.queued(0, job)
    log.runs(0, "j1", "n1/0")
    log.trial(0, Kind.PACK, "j2", 0, 5, solo_milli=10_000)
    log.runs(0, "j2", "n1/0", owns=False)
    log.add(10, log.after)
    assert shown(log.ended(100, "j2"))[Cause.SLOWED_BY_PACKING] == (50, {"j1": 50})


@pytest.mark.parametrize(
    "broken, cause", [(False, Cause.SLOWED_BY_PLACEMENT), (True, Cause.SLOWED_BY_NODE)]
)
def test_a_better_place_shows_how_bad_the_one_before_was(*, broken: bool, cause: Cause) -> None:
    log = Log()
    log.queued(0, "j1", workers=2)
    log.runs(0, "j1", "n1/0", "n2/0")
    if broken:
        log.add(5, GpuQuarantined(node="n2", device=0, quarantine=True, why=Reason.DEVICE_TROUBLE))
    log.trial(100, Kind.MIGRATE, "j1", 6, 10)
    log.add(100, successor(100, "j1", "n3/0", "n3/1"))
    log.add(100, JobMoved(job="j1", attempt=2, source=1, order=7, at=at(100)))
    log.add(150, log.after)
    told = log.ended(200, "j1")
    named = {"n2": 40.0} if broken else {"n1": 20.0, "n2": 20.0}
    assert shown(told) == {Cause.RUNNING: (160, {}), cause: (40, named)}


def test_a_difference_within_chance_is_none() -> None:
    log = Log()
    log.queued(0, "j1")
    log.runs(0, "j1", "n1/0")
    log.trial(100, Kind.MIGRATE, "j1", 96, 100)
    log.add(100, successor(100, "j1", "n2/0"))
    log.add(100, JobMoved(job="j1", attempt=2, source=1, order=7, at=at(100)))
    log.add(150, log.after)
    assert shown(log.ended(200, "j1")) == {Cause.RUNNING: (200, {})}


def test_fewer_workers_than_asked_for_are_slower_by_what_was_measured() -> None:
    log = Log()
    log.queued(0, "j1", workers=2)
    log.runs(0, "j1", "n1/0", "n1/1")
    log.trial(50, Kind.GROW, "j1", 10, 0)  # At 10 a second with both.
    log.changing(100, "j1", Goal.RESIZE, resize(1), REQUESTED)
    log.changed(100, "j1", Goal.RESIZE)
    log.add(100, GangNarrowed(job="j1", attempt=1, node="n1", workers=1, at=at(100)))
    log.gone(200, "j1", 0.2)  # A mini-batch took 0.2 s at the end.
    told = log.ended(200, "j1")
    assert shown(told) == {Cause.RUNNING: (150, {}), Cause.SLOWED_BY_SIZE: (50, {})}
    assert told.held_gpu_ns == seconds(300)


def test_gpus_for_ranks_that_are_to_join_are_held() -> None:
    log = Log()
    log.queued(0, "j1")
    log.runs(0, "j1", "n1/0")
    [more] = members("n2/0")
    log.add(50, GangWidened(job="j1", attempt=1, member=more, at=at(50)))
    log.changing(50, "j1", Goal.RESIZE, resize(2), REQUESTED)
    log.changed(60, "j1", Goal.RESIZE, pause_ns=seconds(1))
    told = log.ended(100, "j1")
    assert shown(told) == {Cause.RUNNING: (99, {}), Cause.CHANGING: (1, {})}
    assert told.held_gpu_ns == seconds(150)


# --- bounds, other clocks, and logs that begin anywhere -------------------------------------------


def test_old_stretches_are_summed_up() -> None:
    log = Log()
    log.queued(0, "j1")
    log.runs(0, "j1", "n1/0")
    for turn in range(100):
        log.suspended(10 * turn + 6, "j1")
        log.regained(10 * turn + 9, "j1")
        log.changing(10 * turn + 9, "j1", Goal.RESUME, Resume(), REQUESTED)
        log.changed(10 * turn + 10, "j1", Goal.RESUME)
    told = log.ended(1000, "j1", End.FAILED, Reason.EXITED_NONZERO)
    assert len(told.spans) <= STRETCHES_MAX
    assert told.earlier_ns > seconds(800)
    assert shown(told) == {
        Cause.SUSPENDED: (300, {}),
        Cause.CHANGING: (100, {}),
        Cause.WORK_LOST: (600, {"exited-nonzero": 600}),
    }


def test_what_is_summed_up_is_divided_by_rates_all_the_same() -> None:
    log = Log()
    log.queued(0, "j1")
    log.runs(0, "j1", "n1/0")
    log.trial(0, Kind.MIGRATE, "j1", 5, 10)
    for turn in range(20):
        log.suspended(20 * turn + 10, "j1", released=False)
        log.changing(20 * turn + 20, "j1", Goal.RESUME, Resume(), REQUESTED)
        log.changed(20 * turn + 20, "j1", Goal.RESUME)
    log.add(400, successor(400, "j1", "n2/0"))
    log.add(400, JobMoved(job="j1", attempt=2, source=1, order=7, at=at(400)))
    log.add(410, log.after)
    told = log.ended(420, "j1")
    assert told.earlier_ns > 0
    assert shown(told)[Cause.SLOWED_BY_PLACEMENT] == (100, {"n1": 100})


def test_conditions_are_bounded() -> None:
    log = Log()
    log.queued(0, "j1")
    log.runs(0, "j1", "n0/0")
    for number in range(1, 2 * CONDITIONS_MAX):
        log.add(number, successor(number, "j1", f"n{number}/0"))
        moved = JobMoved(job="j1", attempt=number + 1, source=1, order=7, at=at(number))
        log.add(number, moved)
    assert len(log.blame.lives["j1"].conditions) == CONDITIONS_MAX
    assert shown(log.ended(100, "j1")) == {Cause.RUNNING: (100, {})}


def test_a_clock_that_is_set_back_takes_nothing_away() -> None:
    log = Log()
    log.queued(0, "j1", submitted=20)
    log.bound(5, "j1", "n1/0")
    log.ran(50, "j1")
    told = log.ended(30, "j1")
    assert (told.submitted_at, told.until) == (at(20), at(30))
    assert stretches(told) == [(Cause.STARTING, 10)]


def test_what_is_summed_up_is_taken_back_too() -> None:
    log = Log()
    log.queued(0, "j1")
    log.runs(0, "j1", "n1/0")
    for turn in range(40):
        log.suspended(20 * turn + 10, "j1", released=False)
        log.changing(20 * turn + 20, "j1", Goal.RESUME, Resume(), REQUESTED)
        log.changed(20 * turn + 20, "j1", Goal.RESUME)
    told = log.ended(55, "j1")
    assert (told.until, told.spans) == (at(55), ())
    assert told.elapsed_ns == told.earlier_ns == seconds(55)
    log.queued(60, "j2", submitted=90)
    assert log.ended(80, "j2").elapsed_ns == 0


def test_a_start_that_a_node_dates_ahead_counts_when_it_was_recorded() -> None:
    log = Log()
    log.queued(0, "j1")
    log.bound(0, "j1", "n1/0")
    log.add(4, JobRan(job="j1", attempt=1, at=at(900)))
    assert stretches(log.ended(10, "j1")) == [(Cause.STARTING, 4), (Cause.RUNNING, 6)]


def test_a_log_may_begin_anywhere() -> None:
    log = Log()
    log.attempts["j1"] = 3
    log.ran(1, "j1")
    log.suspended(2, "j1")
    log.regained(3, "j1", "n1/0")
    log.changed(3, "j1", Goal.RESUME)
    log.waits(4, "j1", Reason.WAITS_FOR_GPUS)
    log.add(4, reserved(4, "j1", "j9"))
    log.add(4, ReservationDropped(job="j1", attempt=1, why=PREEMPTED))
    log.runs(5, "j1", "n1/0")
    log.stopping(6, "j1", PREEMPTED)
    log.requeued(7, "j1", PREEMPTED)
    log.trial(7, Kind.PACK, "j1", 1, 1)
    log.add(8, log.after)
    over = JobEnded(job="j1", end=End.FAILED, why=PREEMPTED, attempts=1, at=at(9))
    assert log.add(9, over) is None
    assert log.blame.lives == {}


def test_facts_without_a_record_count_by_their_own_time() -> None:
    blame = Blame()
    job = JobQueued(job="j1", spec=spec(), submitted_at=at(0))
    over = JobEnded(job="j1", end=End.FAILED, why=PREEMPTED, attempts=0, at=at(9))
    assert fold.apply(blame, job, at(0)) is None
    told = fold.apply(blame, over, Instant(0))
    assert told is not None
    assert told.elapsed_ns == seconds(9)


def test_a_job_is_told_of_before_its_end() -> None:
    log = Log()
    log.queued(0, "j1")
    log.runs(0, "j1", "n1/0")
    log.queued(10, "j2")
    told = fold.told_of(log.blame, "j2", at(40))
    assert told is not None
    assert (told.end, shown(told)) == ("", {Cause.WAITS_BEHIND: (30, {"j1": 30})})
    again = fold.told_of(log.blame, "j2", at(40))
    assert again == told  # To ask changes nothing.
    early = fold.told_of(log.blame, "j2", at(2))
    assert early is not None
    assert early.elapsed_ns == 0
    assert fold.told_of(log.blame, "j3", at(40)) is None


def test_a_vc_comes_to_its_jobs() -> None:
    log = Log()
    log.queued(0, "j1", gpus=2)
    log.runs(0, "j1", "n1/0", "n1/1")
    log.queued(0, "j2")
    log.ended(60, "j1")
    log.runs(60, "j2", "n1/0")
    log.ended(100, "j2", End.CANCELLED, Reason.CANCELLED)
    log.queued(100, "j3", vc="vision")
    log.runs(100, "j3", "n2/0")
    log.ended(130, "j3", End.FAILED, Reason.EXITED_NONZERO)
    told = tell_vc("nlp", log.blame.totals["nlp"])
    assert {share.cause: share.ns // NS_PER_SECOND for share in told.shares} == {
        Cause.WAITS_BEHIND: 60,
        Cause.RUNNING: 100,
    }
    assert sum(share.ns for share in told.shares) == told.elapsed_ns == seconds(160)
    assert (told.jobs, told.unfinished) == (2, 0)
    assert (told.held_gpu_ns, told.useful_gpu_ns) == (seconds(160), seconds(120))
    assert told.cancelled_gpu_ns == seconds(40)
    assert log.blame.totals["vision"].lost_gpu_ns == seconds(30)


def test_every_cause_has_a_text() -> None:
    assert set(TEXT) == set(Cause)
    assert len(set(TEXT.values())) == len(Cause)


def test_a_share_command_is_no_stop() -> None:
    log = Log()
    log.queued(0, "j1")
    log.runs(0, "j1", "n1/0")
    log.changing(10, "j1", Goal.SHARE, ShareGpus(share=0.5), Reason.PACKED)
    log.changed(12, "j1", Goal.SHARE, Reason.PACKED)
    assert shown(log.ended(20, "j1")) == {Cause.RUNNING: (20, {})}
