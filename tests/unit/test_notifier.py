"""The notifier: what it decides to tell, bundles, tries again and gives up."""

from typing import Any

import pytest

from skep.machines.base import Call, Effect
from skep.machines.notifier import (
    BUNDLE_MAX,
    RETRY_AFTER,
    WAITING_MAX,
    Deliver,
    Delivered,
    NotifierMachine,
)
from skep.wire.changes import Goal, JobChanged, Result
from skep.wire.codec import Facts
from skep.wire.facts import End, JobEnded, JobQueued, JobRan
from skep.wire.notice_targets import shown, target_trouble
from skep.wire.notices import JobUnwatched, JobWatched, MessageTried, NoticeLost, NoticeMade
from skep.wire.parse import parse_tree
from skep.wire.reasons import Reason
from skep.wire.spec import Notify, Promised
from tests.kit import T0, Driver, at, facts_of, spec


def notifier() -> Driver[NotifierMachine]:
    driver = Driver(NotifierMachine)
    driver.restart(0)
    return driver


def told(*facts: Any, second: float = 0) -> Facts:
    return Facts(service="allocator", at=at(second), facts=facts)


def queued(number: int, *on: str, to: tuple[str, ...] = ("team",), **more: Any) -> JobQueued:
    notify = Notify(to=to, on=on or ("end",))  # type: ignore[arg-type]
    return JobQueued(job=f"j{number}", spec=spec(notify=notify, **more), submitted_at=T0)


def over(number: int, end: End = End.SUCCEEDED, second: float = 1, **more: Any) -> JobEnded:
    why = {End.SUCCEEDED: Reason.SUCCEEDED, End.FAILED: Reason.EXITED_NONZERO}
    return JobEnded(
        job=f"j{number}",
        end=end,
        why=why.get(end, Reason.CANCELLED),
        attempts=1,
        at=at(second),
        **more,
    )


def sent(effects: list[Effect]) -> list[Deliver]:
    return [each.command for each in effects if isinstance(each, Call)]


def lines(effects: list[Effect]) -> list[str]:
    return [fact.text for fact in facts_of(effects) if isinstance(fact, NoticeMade)]


def done(message: Deliver, trouble: str = "", *, final: bool = False) -> Delivered:
    return Delivered(message.number, message.vc, message.target, trouble, final)


def test_the_end_of_a_job_is_told_once_to_each_target() -> None:
    decide = notifier()
    decide(told(queued(1, to=("team", "team", "anna@example.org"))))
    effects = decide(told(over(1, End.FAILED, detail="exit 3")), 2)
    assert lines(effects) == [
        "j1 (train) in nlp failed: a process exited with a status other than 0 (exit 3)",
        "j1 (train) in nlp failed: a process exited with a status other than 0 (exit 3)",
    ]
    assert [(each.number, each.target) for each in sent(effects)] == [
        (1, "team"),
        (2, "anna@example.org"),
    ]
    assert isinstance(facts_of(effects)[2], JobUnwatched)
    assert decide(told(over(1))) == [], "what is read again is not told again"
    for message in sent(effects):
        assert sent(decide(done(message))) == []
    assert decide.machine.wake_at() is None
    assert [each.state for each in decide.machine.shown("nlp")] == ["sent", "sent"]
    assert decide.machine.shown("vision") == []


def test_only_what_a_job_wants_is_told() -> None:
    decide = notifier()
    decide(told(queued(1, "start", "fail", "suspend"), queued(2, "fail"), queued(3, "start")))
    ran = [JobRan(job=f"j{number}", attempt=1, at=at(1)) for number in (1, 2, 3)]
    assert lines(decide(told(*ran))) == ["j1 (train) in nlp runs", "j3 (train) in nlp runs"]
    assert lines(decide(told(JobRan(job="j1", attempt=2, at=at(2))))) == [], "the first time only"
    changed: dict[str, Any] = {
        "job": "j1",
        "attempt": 2,
        "why": Reason.IDLE,
        "at": at(3),
        "detail": "for 1800 s",
    }
    stood = JobChanged(goal=Goal.SUSPEND, result=Result.DONE, released=True, **changed)
    assert lines(decide(told(stood))) == [
        "j1 (train) in nlp is suspended, and holds no GPUs: the job did nothing for as long as its "
        "VC, or its owner, allows (for 1800 s)"
    ]
    undone = JobChanged(goal=Goal.SUSPEND, result=Result.UNDONE, **changed)
    assert lines(decide(told(undone, over(1), over(3, End.CANCELLED)))) == []
    assert lines(decide(told(over(2, End.FAILED)))) == [
        "j2 (train) in nlp failed: a process exited with a status other than 0"
    ]
    assert decide.machine.jobs == {}


def test_what_happens_while_a_message_is_sent_is_one_message() -> None:
    decide = notifier()
    decide(told(*[queued(number) for number in range(1, 300)]))
    (first,) = sent(decide(told(over(1))))
    assert sent(decide(told(*[over(number) for number in range(2, 300)]))) == []
    assert sent(decide(done(first), 3)) == [], "for some seconds more is gathered"
    assert decide.machine.wake_at() == at(8)
    (second,) = sent(decide.tick(8))
    assert len(second.notices) == BUNDLE_MAX
    assert [each.job for each in second.notices[:2]] == ["j2", "j3"]


def test_a_message_is_tried_again_and_given_up_in_the_end() -> None:
    decide = notifier()
    decide(told(queued(1)))
    (message,) = sent(decide(told(over(1))))
    second = 10.0
    for pause in RETRY_AFTER:
        effects = decide(done(message, "no route"), second)
        (tried,) = facts_of(effects)
        assert isinstance(tried, MessageTried)
        second += pause
        assert decide.machine.wake_at() == at(second)
        assert sent(decide.tick(second)) == [message], "the same number and notices"
    (tried,) = facts_of(decide(done(message, "no route"), second))
    assert tried.again_at == 0
    (shown_now,) = decide.machine.shown(None)
    assert (shown_now.state, shown_now.tries, shown_now.trouble) == ("failed", 7, "no route")
    assert decide.machine.wake_at() is None


def test_a_refusal_that_is_final_is_not_tried_again() -> None:
    decide = notifier()
    decide(told(queued(1)))
    (message,) = sent(decide(told(over(1))))
    decide(done(message, "127.0.0.1 is no public address", final=True))
    assert decide.machine.wake_at() is None
    assert [each.state for each in decide.machine.shown(None)] == ["failed"]


def test_a_notifier_that_comes_back_sends_what_was_under_way_under_the_same_number() -> None:
    decide = notifier()
    decide(told(queued(1), queued(2), queued(3, to=("other",))))
    first, third = sent(decide(told(over(1), over(3))))
    decide(told(over(2)))
    decide(done(third))
    again = sent(decide.restart(20))
    assert again == [first], "one message for each target, and none that was taken"
    decide(done(first))
    assert [each.job for each in sent(decide.tick(30))[0].notices] == ["j2"]


def test_what_is_compacted_is_the_same() -> None:
    decide = notifier()
    late = Promised(answer="accepted", due=at(100))
    decide(told(queued(1), queued(2, "start"), queued(3, "late", promise=late, finish_by=9)))
    (message,) = sent(decide(told(over(1), JobRan(job="j2", attempt=1, at=at(1)))))
    decide(done(message, "not now"))
    again = NotifierMachine()
    for fact in decide.machine.snapshot():
        again.apply(fact)
    for name in ("started", "queues", "lately", "number", "due"):
        assert getattr(again, name) == getattr(decide.machine, name), name
    assert again.jobs.keys() == decide.machine.jobs.keys()
    again.check()


def test_a_job_that_is_late_is_told_once() -> None:
    decide = notifier()
    late = Promised(answer="accepted", due=at(100))
    decide(told(queued(1, "late", promise=late, finish_by=9)))
    decide(told(queued(2, "late", promise=late, finish_by=9), over(2, second=50)))
    assert decide.machine.wake_at() == at(100)
    (message,) = sent(decide.tick(100))
    assert [each.text for each in message.notices] == [
        "j1 (train) in nlp is late: its `finish_by` has passed"
    ]
    decide(done(message))
    assert decide.machine.wake_at() is None


def test_bounds_lose_what_is_too_much_and_say_so() -> None:
    decide = notifier()
    decide(told(*[queued(number) for number in range(1, WAITING_MAX + 3)]))
    facts = facts_of(decide(told(*[over(number) for number in range(1, WAITING_MAX + 3)])))
    lost = [fact for fact in facts if isinstance(fact, NoticeLost)]
    assert [fact.job for fact in lost] == [f"j{WAITING_MAX + 1}", f"j{WAITING_MAX + 2}"]
    assert decide.machine.waiting("nlp") == WAITING_MAX
    assert "lost" in {each.state for each in decide.machine.shown(None)}


def test_what_is_long_ago_is_not_told() -> None:
    decide = notifier()
    day = 86_400.0
    (fact, *_) = facts_of(decide(told(queued(1), over(1, second=1)), day + 2)[1:])
    assert isinstance(fact, NoticeLost)
    assert fact.why == "it is more than a day ago"


def test_jobs_that_tell_nobody_cost_nothing() -> None:
    decide = notifier()
    plain = JobQueued(job="j1", spec=spec(), submitted_at=T0)
    assert decide(told(plain, JobRan(job="j1", attempt=1, at=at(1)), over(1))) == []


def test_a_job_that_is_queued_again_is_known() -> None:
    decide = notifier()
    assert len(facts_of(decide(told(queued(1), queued(1))))) == 1
    assert isinstance(decide.machine.jobs["j1"], JobWatched)


# --- what a spec may say -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "notify, line",
    [
        ({"on": ["end"]}, "$.notify.to: `to` is required"),
        ({"to": []}, "$.notify.to: `to` must be 1 to 8 targets"),
        ({"to": ["a"] * 9}, "$.notify.to: `to` must be 1 to 8 targets"),
        (
            {"to": ["a"], "on": []},
            "$.notify.on: `on` must be one or more of `end`, `fail`, `start`, `suspend` and `late`",
        ),
        ({"to": ["a"], "on": ["ended"]}, "$.notify.on: Invalid enum value 'ended'"),
        (
            {"to": ["a"], "on": ["late"]},
            "$.notify.on: `late` tells that `finish_by` has passed, and the job has none",
        ),
        ({"to": ["a"], "at": 1}, "$.notify.at: unknown key `at`"),
        (
            {"to": ["a b"]},
            "$.notify.to[0]: 'a b' is no name of a target, no mail address and no https:// URL",
        ),
        (
            {"to": ["ok", "anna@example.org,eve@example.org"]},
            "$.notify.to[1]: 'anna@example.org,eve@example.org' is no name of a target, no mail",
        ),
        (
            {"to": ["anna@example.org?smtp=evil.test"]},
            "$.notify.to[0]: 'anna@example.org?smtp=evil.test' is no name of a target",
        ),
        (
            {"to": ["file:///etc/passwd"]},
            "$.notify.to[0]: a webhook's URL begins with https:// or http://, not `file`",
        ),
        (
            {"to": ["https://user:password@example.org/"]},
            "$.notify.to[0]: a webhook's URL has no user and password: name a target of the",
        ),
        ({"to": ["https:///path"]}, "$.notify.to[0]: a webhook's URL needs a host"),
        ({"to": ["https://example.org:99999/"]}, "$.notify.to[0]: no URL: Port out of range"),
        (
            {"to": ["https://example.org/\u0000"]},
            "$.notify.to[0]: a URL has printable ASCII characters only",
        ),
        (
            {"to": ["https://example.org/" + "a" * 500]},
            "$.notify.to[0]: a target has at most 512 characters, and this has 520",
        ),
    ],
)
def test_whom_a_job_cannot_tell_is_refused(notify: dict[str, Any], line: str) -> None:
    problems = parse_tree({"name": "a", "vc": "v", "command": "true", "notify": notify})
    assert isinstance(problems, list)
    assert f"{problems[0].path}: {problems[0].text}".startswith(line)


def test_urls_are_shown_without_what_may_be_secret() -> None:
    assert shown("https://hooks.example.org/T00/B00/secret") == "https://hooks.example.org/..."
    assert shown("team") == "team"
    assert target_trouble("team") == target_trouble("a.b+c@example.co.uk") == ""
