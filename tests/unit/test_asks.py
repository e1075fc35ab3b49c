"""Requests for changes of running jobs: what they must say, and which admission passes on."""

from __future__ import annotations

from typing import Any

import pytest

from skep.machines.admission import AdmissionMachine
from skep.machines.base import Record, Send
from skep.wire import codec, subjects
from skep.wire.admin import SetVcs
from skep.wire.changes import AskMigrate, AskResume, AskSuspend, ChangeAsked, name_of, parse_ask
from skep.wire.codec import AskRequest
from skep.wire.reasons import Reason
from skep.wire.verdict import Verdict
from tests.kit import T0, Driver, added, joined, submission, vcs

REPLY = "_INBOX.vc-nlp.x"


@pytest.fixture
def admission() -> Driver[AdmissionMachine]:
    """Return admission with one node and one job of nlp."""
    driver = Driver(AdmissionMachine)
    driver.restart()
    driver(SetVcs(vcs=vcs(nlp=8, cv=4)))
    driver(added(joined("node-1")))
    driver(submission(1))
    return driver


def request(tree: Any, number: int = 2, vc: str = "nlp", reply: str = "") -> AskRequest:
    raw = tree if isinstance(tree, bytes) else codec.encode(tree)
    return AskRequest(vc=vc, raw=raw, at=T0, number=number, reply=reply)


def problems(raw: bytes) -> list[tuple[str, Reason, str]]:
    found = parse_ask(raw)
    assert isinstance(found, list)
    return [(one.path, one.reason, one.suggestion) for one in found]


@pytest.mark.parametrize(
    "raw, path, reason, suggestion",
    [
        (b"{", "$", Reason.NOT_JSON, "publish"),
        (b"[]", "$", Reason.WRONG_TYPE, "publish"),
        (b'{"job": "j1"}', "$.ask", Reason.MISSING_KEY, ""),
        (b'{"ask": "suspnd", "job": "j1"}', "$.ask", Reason.BAD_VALUE, "did you mean `suspend`?"),
        (b'{"ask": 1, "job": "j1"}', "$.ask", Reason.BAD_VALUE, ""),
        (b'{"ask": "resume"}', "$.job", Reason.MISSING_KEY, ""),
        (b'{"ask": "resume", "job": "me"}', "$.job", Reason.BAD_VALUE, "such as j17"),
        (
            b'{"ask": "suspend", "job": "j1", "relese": true}',
            "$.relese",
            Reason.UNKNOWN_KEY,
            "did you mean `release`?",
        ),
        (b'{"ask": "suspend", "job": "j1", "release": 1}', "$.release", Reason.WRONG_TYPE, ""),
        (b'{"ask": "resume", "job": "j1", "release": true}', "$.release", Reason.UNKNOWN_KEY, ""),
        (b" " * 5000, "$", Reason.TOO_LARGE, ""),
    ],
)
def test_what_is_wrong_with_a_request_is_told(
    raw: bytes, path: str, reason: Reason, suggestion: str
) -> None:
    (found,) = problems(raw)
    assert found[:2] == (path, reason)
    assert suggestion in found[2]


def test_a_request_is_read_as_it_was_made() -> None:
    for ask in (AskSuspend(job="j1", release=True), AskResume(job="j1"), AskMigrate(job="j1")):
        assert parse_ask(codec.encode(ask)) == ask
    assert name_of(AskMigrate(job="j1", to="node-2")) == "migrate"


def test_a_request_comes_with_its_place_in_the_stream() -> None:
    headers = {subjects.REPLY_HEADER: REPLY}
    event = codec.read(subjects.ask("nlp"), b"{}", headers, 7, T0)
    assert event == AskRequest(vc="nlp", raw=b"{}", at=T0, number=7, reply=REPLY)


def test_a_request_about_an_unfinished_job_is_passed_on_once(
    admission: Driver[AdmissionMachine],
) -> None:
    ask = AskSuspend(job="j1", release=True)
    event = request(ask, reply=REPLY)
    yes = Send(REPLY, Verdict(job="j1", accepted=True), {})
    assert admission(event) == [Record(ChangeAsked(number=2, ask=ask, at=T0)), yes]
    assert admission(event) == [yes]
    assert len(admission(request(ask, number=3))) == 1


@pytest.mark.parametrize(
    "tree, path, reason, suggestion",
    [
        (
            {"job": "j1", "workers": 2},
            "$.job",
            Reason.CANNOT,
            "submit it with `elastic: {min: 1, max: 4}`",
        ),
        ({"job": "j5", "workers": 4}, "$.workers", Reason.BAD_VALUE, "use 3"),
        ({"job": "j5", "workers": 1}, "$.workers", Reason.BAD_VALUE, "use 2"),
        ({"job": "j5", "workers": 0}, "$.workers", Reason.BAD_VALUE, ""),
        ({"job": "j5"}, "$.workers", Reason.MISSING_KEY, ""),
        ({"job": "j5", "servers": 5}, "$.servers", Reason.BAD_VALUE, "use 4"),
        ({"job": "j5", "servers": 0}, "$.servers", Reason.BAD_VALUE, ""),
        ({"job": "j5", "workers": 9, "servers": 2}, "$.workers", Reason.BAD_VALUE, "use 3"),
        (
            {"job": "j1", "servers": 2},
            "$.servers",
            Reason.CANNOT,
            "submit it with `ps: {servers: 1, min: 1, max: 4}`",
        ),
    ],
)
def test_a_size_that_the_spec_does_not_allow_is_refused(
    admission: Driver[AdmissionMachine], tree: Any, path: str, reason: Reason, suggestion: str
) -> None:
    resources = {"workers": 2}
    admission(
        submission(
            5,
            raw={
                "name": "e",
                "vc": "nlp",
                "script": "x",
                "resources": resources,
                "elastic": {"min": 2, "max": 3},
                "ps": {"servers": 2, "max": 4},
            },
        )
    )
    fine = {"ask": "resize", "job": "j5", "workers": 3, "servers": 4}
    (effect, _) = admission(request(fine, number=6, reply=REPLY))
    assert isinstance(effect, Record)
    (effect,) = admission(request({"ask": "resize", **tree}, number=7, reply=REPLY))
    assert isinstance(effect, Send)
    (problem,) = effect.message.problems
    assert (problem.path, problem.reason, problem.suggestion) == (path, reason, suggestion)


@pytest.mark.parametrize(
    "tree, vc, reason",
    [
        ({"ask": "resume", "job": "j9"}, "nlp", Reason.UNKNOWN_JOB),
        ({"ask": "resume", "job": "j1"}, "cv", Reason.UNKNOWN_JOB),
        ({"ask": "migrate", "job": "j1", "to": "node-11"}, "nlp", Reason.UNKNOWN_NODE),
        ({"ask": "rseume", "job": "j1"}, "nlp", Reason.BAD_VALUE),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    admission: Driver[AdmissionMachine], tree: Any, vc: str, reason: Reason
) -> None:
    (effect,) = admission(request(tree, vc=vc, reply=f"_INBOX.vc-{vc}.x"))
    assert isinstance(effect, Send)
    verdict = effect.message
    assert (verdict.accepted, verdict.reason) == (False, reason)
    if reason is Reason.UNKNOWN_NODE:
        assert verdict.problems[0].suggestion == "did you mean `node-1`?"
