"""Admission: a job is a trial of a search exactly if its key is one of that search's."""

import pytest

from skep.machines.admission import AdmissionMachine
from skep.machines.base import Record
from skep.wire.admin import SetVcs
from skep.wire.facts import Admitted, Refused
from skep.wire.reasons import Reason
from skep.wire.search_facts import SearchRequest
from tests.kit import T0, Driver, facts_of, spec, submission, vcs


@pytest.fixture
def admission() -> Driver[AdmissionMachine]:
    driver = Driver(AdmissionMachine)
    driver.restart()
    driver(SetVcs(vcs=vcs(nlp=8)))
    return driver


@pytest.mark.parametrize("search, key", [("s17", "search/s17/3/1"), ("", ""), ("", "night")])
def test_a_trial_has_its_search_s_key(
    admission: Driver[AdmissionMachine], search: str, key: str
) -> None:
    trial = spec(search=search)
    effects = admission(submission(1, raw=trial, key=key))
    fact = Admitted(job="j1", spec=trial, submitted_at=T0, key=key, trace="")
    assert effects == [Record(fact)]


@pytest.mark.parametrize(
    "search, key",
    [
        ("s17", ""),
        ("s17", "night"),
        ("s17", "search/s18/3/1"),
        ("", "search/s17/3/1"),
        ("", "search/s17"),
        ("s17", "search/s17"),
        ("", "search/"),
    ],
)
def test_whoever_else_names_a_search_is_refused(
    admission: Driver[AdmissionMachine], search: str, key: str
) -> None:
    (fact,) = facts_of(admission(submission(1, raw=spec(search=search), key=key)))
    assert isinstance(fact, Refused)
    (problem,) = fact.problems
    assert (problem.path, problem.reason) == ("$.search", Reason.BAD_VALUE)


def test_what_is_asked_of_searches_is_none_of_its_concern(
    admission: Driver[AdmissionMachine],
) -> None:
    assert admission(SearchRequest(vc="nlp", raw=b"{}", at=T0, number=1)) == []
    assert admission.machine.last_sequence == 0


@pytest.mark.parametrize(
    "kind, key, path",
    [
        ("inference", "", "$.kind"),
        ("inference", "night", "$.kind"),
        ("training", "service/v17/3/1", "header Nats-Msg-Id"),
    ],
)
def test_only_a_service_has_jobs_that_serve(
    admission: Driver[AdmissionMachine], kind: str, key: str, path: str
) -> None:
    (fact,) = facts_of(admission(submission(1, raw=spec(kind=kind), key=key)))
    assert isinstance(fact, Refused)
    assert [problem.path for problem in fact.problems] == [path]
    replica = spec(kind="inference")
    (fact,) = facts_of(admission(submission(2, raw=replica, key="service/v17/4/1")))
    assert isinstance(fact, Admitted)
