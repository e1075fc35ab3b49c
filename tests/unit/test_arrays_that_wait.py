"""Arrays that wait for jobs, a time or a release, and what waits for arrays."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from skep.machines.admission import AdmissionMachine
from skep.machines.allocator import AllocatorMachine
from skep.wire import codec
from skep.wire.admin import SetVcs
from skep.wire.array import ArrayAdmitted, ArrayOver, TasksRetried
from skep.wire.array_gate import ArrayEnded, ArraySeen
from skep.wire.changes import AskHold, AskOver, AskRelease, ChangeAsked
from skep.wire.codec import AskRequest, Facts
from skep.wire.facts import End, Refused
from skep.wire.node import Outcome
from skep.wire.reasons import Reason
from skep.wire.spec import After
from skep_services.gateway.live import Live
from skep_services.gateway.why import explain
from tests.gateway_kit import Cluster, documents, fresh_fold, job_of, texts
from tests.kit import T0, Driver, assert_durable_alike, at, facts_of, joined, spec, submission, vcs

FAILED = Outcome.EXITED
ORDERS = list(permutations(("SUBMIT", "ADMISSION", "ALLOC", "NODE", "ADMIN")))


class House(Cluster):
    """A cluster with one node of 4 GPUs."""

    def __init__(self) -> None:
        super().__init__()
        self.set_vcs(nlp=4)
        self.join(joined("node-1", 4))

    def ask(self, wish: str, job: str, second: float = 4) -> list[Any]:
        """Ask for a change of a job; return what admission answers with."""
        self.submissions += 1
        raw = codec.encode({"ask": wish, "job": job})
        reply = "_INBOX.vc-nlp.x"
        event = AskRequest(vc="nlp", raw=raw, at=at(second), number=self.submissions, reply=reply)
        effects = self.admission(event, second)
        self._record("ADMISSION", "admission", effects, second)
        return [each.message for each in effects if hasattr(each, "message")]

    def state(self, job: str) -> tuple[str, str | None, str]:
        row = job_of(self.fold, job).row
        return row.state.value, row.why, row.needs

    def jobs(self) -> list[str]:
        """Return the unfinished jobs."""
        return list(self.allocator.machine.state.jobs)

    def ends(self, job: str, outcome: Outcome = Outcome.SUCCEEDED) -> None:
        self.runs(job)
        self.exits(job, outcome=outcome)

    def why(self, job: str) -> tuple[list[tuple[str, str, str]], list[str]]:
        told = explain(job_of(self.fold, job), self.fold, Live(self.fold, at(5)), at(5))
        reasons = [(one["reason"], one["text"], one["needs"]) for one in told["reasons"]]
        return reasons, told["would_change"]


def test_no_task_begins_before_what_the_array_waits_for_has_come() -> None:
    house = House()
    first = house.submit(spec(name="prepare"))
    array = house.submit(spec(array="0-2%2", after=After(ok=("prepare",)), begin=60))
    assert house.jobs() == [first]
    assert house.state(array) == ("queued", "waits-for-jobs", first)
    reasons, changes = house.why(array)
    assert reasons == [
        ("waits-for-jobs", "it waits until this job succeeds, which is bound", first),
        ("waits-for-time", "it may not begin before this time", "2023-11-14T22:14:21Z"),
        ("tasks", "3 tasks: 3 to come; at most 2 are jobs at once", ""),
    ]
    assert changes == ["j1 succeeds", "the time 2023-11-14T22:14:21Z comes"]

    house.ends(first)
    assert house.state(array) == ("queued", "waits-for-time", "2023-11-14T22:14:21Z")
    assert not house.jobs()
    house.tick(61)
    assert house.jobs() == ["j3", "j4"]
    job = house.allocator.machine.state.jobs["j3"].spec
    assert (job.task, job.after, job.begin, job.hold) == ("j2[0]", None, None, False)
    assert [line for line in texts(house.fold, array) if "begin" in line] == [
        "waits before its tasks begin: it waits for other jobs to end, as its `after` says (j1)",
        "waits before its tasks begin: it waits for the time that its `begin` says "
        "(2023-11-14T22:14:21Z)",
        "its tasks begin as there is room",
    ]


@pytest.mark.parametrize(
    "kind, outcomes, starts",
    [
        ("ok", (Outcome.SUCCEEDED, Outcome.SUCCEEDED), True),
        ("ok", (Outcome.SUCCEEDED, FAILED), False),
        ("any", (FAILED, Outcome.SUCCEEDED), True),
        ("fail", (FAILED, Outcome.SUCCEEDED), True),
        ("fail", (Outcome.SUCCEEDED, Outcome.SUCCEEDED), False),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_what_waits_for_an_array_waits_for_its_last_task(
    kind: str, outcomes: tuple[Outcome, Outcome], *, starts: bool, late: bool
) -> None:
    """`late`: the other comes when the array has ended already."""
    house = House()
    array = house.submit(spec(name="sweep", array="0-1"))
    fields: dict[str, Any] = {"after": After(**{kind: ("sweep",)})}
    waits = [] if late else [house.submit(spec(**fields)), house.submit(spec(array="7", **fields))]
    tasks = house.jobs()[:2]
    house.ends(tasks[0], outcomes[0])
    for name in waits:
        assert house.state(name) == ("queued", "waits-for-jobs", array)
    house.ends(tasks[1], outcomes[1])
    if late:
        waits = [house.submit(spec(**fields)), house.submit(spec(array="7", **fields))]
    ends = [job_of(house.fold, name).row for name in waits]
    if starts:
        assert len(house.jobs()) == 2
        return
    assert [row.state.value for row in ends] == ["cancelled", "cancelled"]
    assert {row.why for row in ends} == {Reason.DEPENDENCY_NEVER_SATISFIED}
    end = "succeeded" if kind == "fail" else "failed"
    text = f"{array} {end}; it was to run once that {'fails' if kind == 'fail' else 'succeeds'}"
    assert [job_of(house.fold, name).detail for name in waits] == [text, text]
    assert house.why(waits[1])[0][0][2] == text


def test_the_first_end_of_an_array_counts_and_a_new_one_waits_for_the_second() -> None:
    house = House()
    array = house.submit(spec(array="3"))
    house.ends(house.jobs()[0], FAILED)
    house.ask("retry", array)
    waits = house.submit(spec(after=After(ok=(array,))))
    assert house.state(waits) == ("queued", "waits-for-jobs", array)
    again = house.jobs()[0]
    assert again != waits
    house.ends(again)
    assert house.state(waits)[0] == "bound"


def test_an_array_is_held_released_and_cancelled_while_it_waits() -> None:
    house = House()
    array = house.submit(spec(array="0-3", hold=True))
    assert house.state(array) == ("queued", "held", "")
    assert house.why(array)[1] == ["`skep release j1`"]
    house.cancel(f"{array}[3]")
    house.ask("release", array)
    assert len(house.jobs()) == 3
    (answer,) = house.ask("hold", array)
    assert (
        answer.problems[0].text == "tasks of j1 have begun to be jobs: it cannot be held as a whole"
    )

    first = house.jobs()[0]
    waits = house.submit(spec(array="0-3", after=After(any=(first,))))
    house.ask("hold", waits)
    house.ends(first)
    assert house.state(waits) == ("queued", "held", "")
    other = house.submit(spec(after=After(ok=(waits,))))
    house.cancel(waits)
    assert house.state(waits)[:2] == ("cancelled", "cancelled")
    assert house.state(other)[:2] == ("cancelled", Reason.DEPENDENCY_NEVER_SATISFIED)


def test_the_allocator_refuses_to_hold_what_it_has_opened() -> None:
    """Admission may not have heard yet that the tasks of an array may begin."""
    decide = Driver(AllocatorMachine)
    array = ArrayAdmitted(array="j1", spec=spec(array="0-3", hold=True), submitted_at=T0)
    wishes: list[Any] = [AskRelease(job="j1"), AskHold(job="j1"), AskHold(job="j1")]
    asked = [ChangeAsked(number=n, ask=wish, at=T0) for n, wish in enumerate(wishes, start=2)]
    overs, said = [], [array, *asked, asked[0]]
    fact: Any
    for fact in said:
        effects = decide(Facts(service="admission", at=T0, facts=(fact,)))
        overs += [one for one in facts_of(effects) if isinstance(one, AskOver)]
    assert [(one.result.value, one.why) for one in overs] == [
        ("done", None),
        ("refused", Reason.CANNOT),
        ("refused", Reason.CANNOT),
    ]


def test_what_is_read_again_after_a_restart_changes_nothing() -> None:
    decide = Driver(AllocatorMachine)

    def hear(fact: Any) -> list[Any]:
        effects = decide(Facts(service="admission", at=T0, facts=(fact,)))
        return facts_of(effects)

    array = ArrayAdmitted(array="j1", spec=spec(array="0-3"), submitted_at=T0)
    first = ArrayOver(array="j1", succeeded=3, failed=1, cancelled=0, at=T0)
    retry = TasksRetried(array="j1", number=9, tasks="1", at=T0, vc="nlp")
    second = ArrayOver(array="j1", succeeded=4, failed=0, cancelled=0, at=T0, number=9)
    assert [type(fact) for fact in hear(array)] == [ArraySeen]
    assert hear(first) == [ArrayEnded(array="j1", end="failed", at=T0)]
    assert [type(fact) for fact in hear(retry)] == [ArraySeen]
    for known in (array, first, retry):
        assert hear(known) == []
    assert hear(second) == [ArrayEnded(array="j1", end="succeeded", at=T0)]
    for known in (array, first, retry, second):
        assert hear(known) == []
    assert decide.machine.state.ends["j1"].end is End.SUCCEEDED


def test_a_restart_and_a_snapshot_lose_nothing_of_what_waits() -> None:
    house = House()
    first = house.submit(spec())
    array = house.submit(spec(array="0-3", after=After(ok=(first,)), begin=60))
    other = house.submit(spec(after=After(fail=(array,))))
    for driver, kind in ((house.admission, AdmissionMachine), (house.allocator, AllocatorMachine)):
        again: Any = kind()
        for piece in driver.machine.snapshot():
            again.apply(piece)
        assert_durable_alike(driver.machine, again)
        driver.restart()
    assert house.allocator.machine.state.awaited == {first: {array: None}, array: {other: None}}
    house.ends(first)
    house.tick(61)
    assert len(house.jobs()) == 5


def test_names_mean_arrays_and_never_the_jobs_of_their_tasks() -> None:
    decide = Driver(AdmissionMachine)
    decide(SetVcs(vcs=vcs(nlp=8)))
    decide(submission(1, raw=spec(name="sweep", array="0-3")))
    (fact,) = facts_of_submission(decide, 2, After(ok=("sweep",)))
    assert fact.spec.after == After(ok=("j1",))
    (fact,) = facts_of_submission(decide, 3, After(ok=("j1", "sweep")))
    assert problem(fact) == ("$.after.ok[1]", Reason.BAD_VALUE, "`after` names the job sweep twice")
    (fact,) = facts_of_submission(decide, 4, After(ok=("j1[2]",)))
    assert problem(fact) == (
        "$.after.ok[0]",
        Reason.NOT_BUILT,
        "j1[2] is a task: to wait for one task of an array is not built",
    )
    (fact,) = facts_of_submission(decide, 5, After(ok=("j4",)))
    assert problem(fact)[1] is Reason.UNKNOWN_JOB


def facts_of_submission(decide: Driver[AdmissionMachine], number: int, after: After) -> list[Any]:
    effects = decide(submission(number, raw=spec(name=f"n{number}", after=after)))
    return facts_of(effects)


def problem(fact: Any) -> tuple[str, Reason, str]:
    assert isinstance(fact, Refused), fact
    (one,) = fact.problems
    return one.path, one.reason, one.text


@pytest.mark.parametrize("order", ORDERS[::17])
def test_rows_of_what_waits_are_the_same_in_every_order(order: tuple[str, ...]) -> None:
    house = House()
    first = house.submit(spec())
    house.submit(spec(array="0-1", after=After(ok=(first,))))
    house.submit(spec(array="0-1", after=After(fail=(first,))))
    house.submit(spec(array="0-1", hold=True))
    house.ends(first)
    fold = fresh_fold()
    for stream in order:
        for told, event in house.told:
            if told == stream:
                fold.apply(event, at(0))
    assert documents(fold) == documents(house.fold)
