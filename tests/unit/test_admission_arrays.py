"""Arrays in admission: which tasks become jobs when, and how an array ends."""

from typing import Any

import msgspec
import pytest

from skep.machines.admission import AdmissionMachine, Kept, arrays
from skep.machines.admission.arrays import AHEAD
from skep.machines.base import Effect, Record, Restarted, Send, Tick
from skep.wire.admin import SetVcs
from skep.wire.array import ArrayAdmitted, ArrayOver, TasksCancelled, TasksRetried, mark_of
from skep.wire.cluster import PersonLimits, VirtualCluster
from skep.wire.codec import AskRequest, CancelRequest, Facts
from skep.wire.facts import (
    Admitted,
    CancelAsked,
    End,
    JobBegan,
    JobBound,
    JobEnded,
    JobOver,
    Refused,
    Repeated,
    RolesSeen,
)
from skep.wire.reasons import Reason
from skep.wire.roles import Role, Standing
from skep.wire.spec import Problem
from skep.wire.verdict import Verdict
from tests.kit import T0, Driver, assert_durable_alike, facts_of, member, spec, submission, vcs

MARK = mark_of("")
REPLY = "_INBOX.vc-nlp.x"


class House:
    """Admission, and a SUBMIT stream that gives it what it publishes."""

    def __init__(self, *, thorough: bool = True, **vc: Any) -> None:
        self.decide = Driver(AdmissionMachine, thorough=thorough)
        self.decide.restart()
        self.decide(SetVcs(vcs={"nlp": VirtualCluster(gpus=8, **vc)}))
        self.sequence = 0
        self.said: list[Any] = []

    def submit(self, array: str | None = None, **fields: Any) -> list[Effect]:
        self.sequence += 1
        raw = fields.pop("raw", None) or spec(array=array)
        effects = self.decide(submission(self.sequence, raw=raw, reply=REPLY, **fields))
        self.said += facts_of(effects)
        return effects

    def publish(self, effects: list[Effect]) -> list[str]:
        """Store what admission published, and have it read it; return which tasks became jobs."""
        waiting = published(effects)
        jobs = []
        while waiting:
            send = waiting.pop(0)
            assert send.subject == "skep.v1.submit.nlp"
            more = self.submit(raw=send.message, key=send.headers["Nats-Msg-Id"])
            waiting += published(more)
            jobs += [fact.spec.task for fact in facts_of(more) if isinstance(fact, Admitted)]
        return jobs

    def begin(self, array: str) -> list[str]:
        """Submit an array; return which of its tasks became jobs."""
        return self.publish(self.submit(array))

    def hear(self, *facts: Any) -> list[Effect]:
        effects = self.decide(Facts(service="allocator", at=T0, facts=facts))
        self.said += facts_of(effects)
        return effects

    def bound(self, job: str) -> list[Effect]:
        fact = JobBound(
            job=job,
            attempt=1,
            members=(member("node-1"),),
            master_port=20000,
            order=1,
            why=Reason.ARRIVAL,
            at=T0,
        )
        return self.hear(fact)

    def end(self, job: str, end: End = End.SUCCEEDED) -> list[Effect]:
        return self.hear(JobEnded(job=job, end=end, why=Reason.SUCCEEDED, attempts=1, at=T0))

    def job_of(self, task: str) -> str:
        found = (fact for fact in reversed(self.said) if isinstance(fact, Admitted))
        return next(fact.job for fact in found if fact.spec.task == task)

    def cancel(self, name: str, person: str = "") -> list[Effect]:
        raw = msgspec.json.encode({"job": name})
        reply = f"_INBOX.vc-nlp.{person}.x" if person else REPLY
        return self.decide(CancelRequest(vc="nlp", raw=raw, at=T0, reply=reply, person=person))

    def retry(self, name: str, person: str = "") -> list[Effect]:
        self.sequence += 1
        raw = msgspec.json.encode({"ask": "retry", "job": name})
        reply = f"_INBOX.vc-nlp.{person}.x" if person else REPLY
        number = self.sequence
        asked = AskRequest(vc="nlp", raw=raw, at=T0, reply=reply, number=number, person=person)
        return self.decide(asked)


def published(effects: list[Effect]) -> list[Send]:
    """Return what goes to SUBMIT."""
    sends = (each for each in effects if isinstance(each, Send))
    return [each for each in sends if not isinstance(each.message, Verdict)]


def verdict(effects: list[Effect]) -> Verdict:
    (found,) = (
        each.message
        for each in effects
        if isinstance(each, Send) and isinstance(each.message, Verdict)
    )
    return found


def problem(effects: list[Effect]) -> Problem:
    told = verdict(effects)
    assert not told.accepted
    (found,) = told.problems
    return found


def test_an_array_is_one_fact_and_its_first_tasks_are_published() -> None:
    house = House()
    effects = house.submit("0-2%2", key="k")
    assert effects == [
        Record(ArrayAdmitted(array="j1", spec=spec(array="0-2%2"), submitted_at=T0, key="k")),
        Send(REPLY, Verdict(job="j1", accepted=True)),
        Send(
            "skep.v1.submit.nlp",
            {"name": "train", "vc": "nlp", "task": "j1[0]"},
            {"Nats-Msg-Id": f"array/j1/0/1/{MARK}"},
        ),
        Send(
            "skep.v1.submit.nlp",
            {"name": "train", "vc": "nlp", "task": "j1[1]"},
            {"Nats-Msg-Id": f"array/j1/1/1/{MARK}"},
        ),
    ]
    assert house.publish(effects) == ["j1[0]", "j1[1]"]
    first = house.said[1]
    assert isinstance(first, Admitted)
    assert (first.job, first.spec.task, first.spec.array) == ("j2", "j1[0]", None)
    assert first.spec.env["SKEP_ARRAY_INDEX"] == "0"


def test_never_more_than_so_many_at_once_and_each_task_once() -> None:
    house = House()
    ended: list[str] = []
    begun = house.begin("0-9%3")
    assert len(begun) == 3
    while len(ended) < 10:
        task = next(each for each in begun if each not in ended)
        house.bound(house.job_of(task))
        begun += house.publish(house.end(house.job_of(task)))
        ended.append(task)
        assert len(begun) - len(ended) <= 3
    assert begun == [f"j1[{index}]" for index in range(10)]
    assert house.said[-1] == ArrayOver(array="j1", succeeded=10, failed=0, cancelled=0, at=T0)
    assert house.decide.machine.arrays.arrays == {}


def test_only_some_wait_in_the_queue_and_more_come_as_they_begin() -> None:
    house = House()
    begun = house.begin("0-99")
    assert len(begun) == AHEAD
    assert house.publish(house.bound(house.job_of("j1[0]"))) == [f"j1[{AHEAD}]"]
    assert JobBegan(job=house.job_of("j1[0]")) in house.said
    assert house.publish(house.bound(house.job_of("j1[0]"))) == []


def test_what_was_published_and_lost_is_published_again_and_admitted_once() -> None:
    house = House()
    lost = [each for each in house.submit("0-1") if isinstance(each, Send)][1:]
    assert house.decide.machine.wake_at() is not None
    assert house.decide(Tick(), 1.0) == []
    again = house.decide(Tick(), 6.0)
    assert again == lost
    assert house.publish(again) == ["j1[0]", "j1[1]"]
    assert house.publish(again) == []
    assert [type(each) for each in house.said[-2:]] == [Repeated, Repeated]
    assert house.decide.machine.wake_at() is None


def test_a_restart_publishes_again_what_may_begin() -> None:
    house = House()
    sends = house.submit("0-4%2")[2:]
    house.publish(sends[:1])
    assert house.decide.restart() == sends[1:]


@pytest.mark.parametrize(
    "key, fields",
    [
        (f"array/j1/5/1/{MARK}", {}),  # It is not its turn.
        (f"array/j1/77/1/{MARK}", {}),
        (f"array/j9/0/1/{MARK}", {}),
        (f"array/j1/x/1/{MARK}", {}),
        ("array/", {}),
        (f"array/j1/0/1/{MARK}", {"owner": "ann"}),
    ],
)
def test_nobody_else_begins_a_task(key: str, fields: dict[str, Any]) -> None:
    house = House()
    house.submit("0-9%1")
    effects = house.submit(raw={"task": "j1[5]"}, key=key, **fields)
    (fact,) = facts_of(effects)
    assert isinstance(fact, Refused)
    text = "keys that begin with `array/` begin tasks, and no such task is to begin"
    assert [each.text for each in fact.problems] == [text]


def test_a_submission_may_not_say_that_it_is_a_task() -> None:
    house = House()
    assert problem(house.submit(raw=spec(task="j1[0]"))).path == "$.task"


def test_cancelling_an_array_ends_what_waits_and_what_runs() -> None:
    house = House()
    house.begin("0-9%2")
    effects = house.cancel("j1")
    assert facts_of(effects) == [
        TasksCancelled(array="j1", tasks="2-9", whole=True),
        CancelAsked(job="j2"),
        CancelAsked(job="j3"),
    ]
    assert verdict(effects).accepted
    assert facts_of(house.cancel("j1")) == []
    house.end("j2", End.CANCELLED)
    assert house.publish(house.end("j3")) == []
    assert house.said[-1] == ArrayOver(array="j1", succeeded=1, failed=0, cancelled=9, at=T0)
    assert problem(house.cancel("j1")).reason is Reason.ALREADY_ENDED


def test_many_jobs_are_cancelled_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "CANCELS_MAX", 30)
    house = House(thorough=False)
    count = 35
    tasks = house.begin(f"0-{count - 1}")
    for task in tasks:  # It grows meanwhile.
        tasks += house.publish(house.bound(house.job_of(task)))
    assert len(tasks) == count
    assert len(facts_of(house.cancel("j1"))) == 1 + 30
    assert house.decide.machine.wake_at() == 0
    assert len(facts_of(house.decide.restart())) == 5
    assert house.decide.machine.wake_at() is None


def test_one_task_is_cancelled_whether_or_not_it_is_a_job() -> None:
    house = House()
    house.begin("0-3%1")
    assert facts_of(house.cancel("j1[2]")) == [TasksCancelled(array="j1", tasks="2")]
    assert facts_of(house.cancel("j1[0]")) == [CancelAsked(job="j2")]
    assert problem(house.cancel("j1[2]")).text == "task 2 of j1 has already ended"
    assert problem(house.cancel("j1[7]")).text == "array j1 has no task 7"
    assert problem(house.cancel("j2[0]")).text == "j2 is no array"
    assert house.publish(house.end("j2", End.CANCELLED)) == ["j1[1]"]
    assert house.publish(house.end(house.job_of("j1[1]"))) == ["j1[3]"]


def test_a_retry_begins_what_failed_as_jobs_of_their_own() -> None:
    house = House()
    house.begin("0-3")
    for task, end in enumerate([End.SUCCEEDED, End.FAILED, End.CANCELLED, End.FAILED]):
        house.end(house.job_of(f"j1[{task}]"), end)
    assert house.said[-1] == ArrayOver(array="j1", succeeded=1, failed=2, cancelled=1, at=T0)
    assert house.said[-1].end == "failed"
    effects = house.retry("j1")
    fact = TasksRetried(array="j1", number=house.sequence, tasks="1,3", at=T0, vc="nlp")
    assert facts_of(effects) == [fact]
    assert house.publish(effects) == ["j1[1]", "j1[3]"]
    house.end(house.job_of("j1[1]"))
    house.end(house.job_of("j1[3]"))
    over = ArrayOver(array="j1", succeeded=3, failed=0, cancelled=1, at=T0, number=fact.number)
    assert house.said[-1] == over
    refusal = problem(house.retry("j1"))
    assert refusal.reason is Reason.NOTHING_FAILED
    assert refusal.text == "`nlp` has no array j1 with tasks that failed"
    keys = [each.key for each in house.said if isinstance(each, Admitted)]
    assert keys[-2:] == [f"array/j1/1/2/{MARK}", f"array/j1/3/2/{MARK}"]


def test_a_retry_that_is_read_again_is_done_once() -> None:
    house = House()
    house.begin("0")
    house.end("j2", End.FAILED)
    house.retry("j1")
    house.decide.restart()
    house.sequence -= 1
    assert facts_of(house.retry("j1")) == []


def test_only_the_latest_ended_arrays_may_be_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "ENDED_KEPT", 2)
    house = House()
    for _ in range(3):
        house.begin("0")
        house.end(f"j{house.sequence}", End.FAILED)
    assert problem(house.retry("j1")).reason is Reason.NOTHING_FAILED
    assert verdict(house.retry("j3")).accepted


def test_a_job_of_an_array_is_changed_and_an_array_is_not() -> None:
    house = House()
    house.begin("0")
    raw = b'{"ask":"suspend","job":"j1"}'
    told = problem(house.decide(AskRequest(vc="nlp", raw=raw, at=T0, reply=REPLY, number=9)))
    assert told.text == "j1 is an array, and only its jobs can be changed"


def test_an_array_counts_as_so_many_jobs() -> None:
    house = House(jobs_max=10, limits=PersonLimits(queued=6))
    assert problem(house.submit("0-10")).text == (
        "`nlp` has 0 unfinished jobs and may have 10: 11 tasks are too many"
    )
    assert problem(house.submit("0-9")).text == (
        "the virtual cluster as a whole has 0 jobs in `nlp` that have not begun, and may have 6: "
        "10 tasks are too many"
    )
    house.begin("0-5%1")
    assert problem(house.submit(raw=spec())).reason is Reason.ABOVE_PERSON_LIMIT
    house.bound("j4")
    assert verdict(house.submit(raw=spec())).accepted


def test_an_array_that_asks_to_be_refused_over_quota_is() -> None:
    house = House()
    wide = spec(array="0-8", over_quota="refuse")
    assert problem(house.submit(raw=wide)).reason is Reason.OVER_QUOTA
    assert verdict(house.submit(raw=spec(array="0-7", over_quota="refuse"))).accepted
    assert problem(house.submit(raw=spec(over_quota="refuse"))).reason is Reason.OVER_QUOTA


def test_an_array_is_its_persons_and_others_leave_it_alone() -> None:
    house = House(thorough=False)
    for name in ("ann", "bob"):
        roles = Standing(granted={"nlp": Role.SUBMITTER})
        house.decide.machine.apply(RolesSeen(person=name, standing=roles))
    effects = house.submit("0-1%1", owner="ann")
    (send,) = published(effects)
    assert send.subject == "skep.v1.submit.nlp.ann"
    for wish in (house.cancel, house.retry):
        told = problem(wish("j1", person="bob"))
        assert told.reason is Reason.NOT_ITS_OWNER
    assert problem(house.cancel("j1[1]", person="bob")).reason is Reason.NOT_ITS_OWNER
    assert problem(house.cancel("j1[1]", person="eve")).reason is Reason.NO_ROLE
    assert problem(house.retry("j1", person="eve")).reason is Reason.NO_ROLE
    assert verdict(house.cancel("j1", person="ann")).accepted


def test_a_snapshot_rebuilds_arrays() -> None:
    house = House()
    house.begin("9,5,0-3%2")
    house.begin("0-1")
    for task in ("j1[9]", "j1[5]"):
        house.publish(house.end(house.job_of(task), End.FAILED))
    house.publish(house.retry("j1"))
    house.bound(house.job_of("j1[0]"))
    for task in ("j4[0]", "j4[1]"):
        house.end(house.job_of(task), End.FAILED)
    machine = house.decide.machine
    pieces = msgspec.json.encode(machine.snapshot())
    again = AdmissionMachine()
    for piece in msgspec.json.decode(pieces, type=list[Kept]):
        again.apply(piece)
    again.check()
    assert_durable_alike(again, machine)
    sends = machine.decide(Restarted(epoch=2), T0)
    assert again.decide(Restarted(epoch=2), T0) == sends


def test_ten_thousand_tasks_are_accepted_as_one_and_end_as_one() -> None:
    house = House(thorough=False)
    effects = house.submit("0-9999")
    assert len(effects) == 2 + AHEAD
    assert facts_of(house.cancel("j1"))[0].tasks == "0-9999"
    assert house.decide.machine.outstanding_jobs == {"nlp": 0}
    assert vcs(nlp=8)["nlp"].jobs_max >= 10_000
    assert JobOver(job="j1").end == ""
