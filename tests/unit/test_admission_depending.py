"""What a submission may wait for: names become ids, and what can never be is refused."""

from __future__ import annotations

from typing import Any

import pytest

from skep.machines.admission import AdmissionMachine, depending
from skep.machines.base import Effect, Record
from skep.wire.admin import SetVcs
from skep.wire.changes import AskHold, AskRelease, parse_ask
from skep.wire.codec import Facts
from skep.wire.facts import Admitted, End, JobEnded, Refused
from skep.wire.parse import parse_tree
from skep.wire.reasons import Reason
from skep.wire.search import parse_search_tree
from skep.wire.spec import AFTER_MAX, After
from tests.kit import T0, Driver, spec, submission, vcs


def tenants() -> Driver[AdmissionMachine]:
    decide = Driver(AdmissionMachine)
    decide(SetVcs(vcs=vcs(nlp=8, cv=8)))
    return decide


def submit(decide: Driver[AdmissionMachine], number: int, **changes: Any) -> Admitted | Refused:
    """Submit a job; return what is decided of it."""
    vc = changes.get("vc", "nlp")
    (fact,) = _facts(decide(submission(number, vc=vc, raw=spec(**changes))))
    assert isinstance(fact, Admitted | Refused)
    return fact


def end(decide: Driver[AdmissionMachine], job: str, how: End = End.SUCCEEDED) -> None:
    fact = JobEnded(job=job, end=how, why=Reason.SUCCEEDED, attempts=1, at=T0)
    decide(Facts(service="allocator", at=T0, facts=(fact,)))


def _facts(effects: list[Effect]) -> list[Any]:
    return [effect.fact for effect in effects if isinstance(effect, Record)]


def problem(fact: Admitted | Refused) -> tuple[str, Reason, str]:
    assert isinstance(fact, Refused), fact
    (one,) = fact.problems
    return one.path, one.reason, one.text


def test_names_become_ids() -> None:
    decide = tenants()
    submit(decide, 1, name="prepare")
    submit(decide, 2, name="train")
    fact = submit(decide, 3, name="eval", after=After(ok=("train", "j1")))
    assert isinstance(fact, Admitted)
    assert fact.spec.after == After(ok=("j2", "j1"))
    end(decide, "j2")
    fact = submit(decide, 4, name="plot", after=After(any=("train",)))  # It ended recently.
    assert isinstance(fact, Admitted)
    assert fact.spec.after == After(any=("j2",))
    submit(decide, 5, name="train")
    fact = submit(decide, 6, after=After(any=("train",)))  # The unfinished one comes first.
    assert isinstance(fact, Admitted)
    assert fact.spec.after == After(any=("j5",))
    decide.check_replay()


@pytest.mark.parametrize(
    "after, expected",
    [
        (
            After(ok=("nothing",)),
            ("$.after.ok[0]", Reason.UNKNOWN_JOB, "`nlp` has no job with the name `nothing`"),
        ),
        (
            After(any=("j1", "twin")),
            (
                "$.after.any[1]",
                Reason.AMBIGUOUS_NAME,
                "2 jobs of `nlp` have the name `twin`: j2, j3",
            ),
        ),
        (
            After(fail=("j99",)),
            (
                "$.after.fail[0]",
                Reason.UNKNOWN_JOB,
                "`nlp` has no job j99 that is unfinished or ended recently",
            ),
        ),
        (
            After(any=("j4",)),  # Another tenant's.
            (
                "$.after.any[0]",
                Reason.UNKNOWN_JOB,
                "`nlp` has no job j4 that is unfinished or ended recently",
            ),
        ),
        (
            After(ok=("j1",), any=("train",)),
            ("$.after.any[0]", Reason.BAD_VALUE, "`after` names the job train twice"),
        ),
    ],
)
def test_what_cannot_be_is_refused(after: After, expected: tuple[str, Reason, str]) -> None:
    decide = tenants()
    submit(decide, 1, name="train")
    submit(decide, 2, name="twin")
    submit(decide, 3, name="twin")
    submit(decide, 4, vc="cv")
    assert problem(submit(decide, 5, after=after)) == expected


def test_ended_jobs_are_known_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depending, "ENDED_KEPT", 2)
    decide = tenants()
    for number in (1, 2, 3):
        submit(decide, number, name=f"train-{number}")
        end(decide, f"j{number}")
    assert isinstance(submit(decide, 4, after=After(ok=("train-2", "j3"))), Admitted)
    assert problem(submit(decide, 5, after=After(ok=("j1",))))[1] is Reason.UNKNOWN_JOB
    again = AdmissionMachine()
    for piece in decide.machine.snapshot():
        again.apply(piece)
    again.check()
    assert again.known.summary() == decide.machine.known.summary()


def test_how_a_job_ended_makes_no_difference_here() -> None:
    """Else it would for a pipeline how fast its jobs are submitted."""
    decide = tenants()
    submit(decide, 1)
    end(decide, "j1", End.FAILED)
    assert isinstance(submit(decide, 2, after=After(ok=("j1",))), Admitted)


# --- what is wrong with a text -------------------------------------------------------------------

WRONG = [
    ({"after": {}}, "$.after", "`after` must be jobs by id or name, such as `ok: [j3]`"),
    ({"after": {"okay": ["j1"]}}, "$.after.okay", "unknown key `okay`"),
    ({"after": {"ok": "j1"}}, "$.after.ok", "Expected `array`, got `str`"),
    ({"after": {"ok": [3]}}, "$.after.ok", "Expected `str`, got `int` - at `$.after.ok[0]`"),
    ({"after": {"ok": [""]}}, "$.after.ok[0]", "`ok[0]` must be the id or the name of a job"),
    ({"after": {"ok": ["a\nb"]}}, "$.after.ok[0]", "`ok[0]` must be the id or the name of a job"),
    ({"after": {"ok": ["j1"], "any": ["j1"]}}, "$.after.any[0]", "`after` names j1 twice"),
    (
        {"after": {"ok": [f"j{number}" for number in range(1, AFTER_MAX + 2)]}},
        "$.after",
        "`after` must be at most 64 jobs in all, and there are 65",
    ),
    ({"begin": 0}, "$.begin", "`begin` must be a length of a second to a year"),
    ({"begin": "400d"}, "$.begin", "`begin` must be a length of a second to a year"),
    (
        {"begin": "soon"},
        "$.begin",
        "`begin` must be a time with its zone, such as `2026-11-24T08:00+00:00`, or a length such"
        " as `90m`, `8h`",
    ),
    (
        {"begin": "2026-11-24T08:00"},
        "$.begin",
        "`begin` has no time zone: `2026-11-24T08:00` is another instant in each",
    ),
    ({"begin": [1]}, "$.begin", "Expected `int | str | null`, got `array`"),
    ({"hold": "yes"}, "$.hold", "Expected `bool`, got `str`"),
    (
        {"begin": "2h", "finish_by": "8h"},
        "$.finish_by",
        "a job with `begin` cannot have `finish_by`: it is not known when it starts",
    ),
]


@pytest.mark.parametrize("changes, path, text", WRONG)
def test_bad_input_is_refused_in_one_line(changes: dict[str, Any], path: str, text: str) -> None:
    found = parse_tree({"name": "train", "vc": "nlp", "command": "true", **changes})
    assert isinstance(found, list)
    assert [(one.path, one.text) for one in found] == [(path, text)]


def test_times_have_one_form() -> None:
    tree = {"name": "train", "vc": "nlp", "command": "true"}
    for given, normal in (("2h", 7200), ("2026-11-24T09:00+01:00", "2026-11-24T08:00:00Z")):
        found = parse_tree({**tree, "begin": given})
        assert not isinstance(found, list)
        assert found.begin == normal


def test_trials_of_a_search_wait_for_nothing_else() -> None:
    job = {"command": "true", "hold": True}
    tree = {"name": "s", "vc": "nlp", "job": job, "metric": "loss", "budget": {"trials": 2}}
    found = parse_search_tree({**tree, "space": {"lr": {"choice": [1]}}})
    assert isinstance(found, list)
    assert [(one.path, one.reason) for one in found] == [("$.job.hold", Reason.BAD_VALUE)]


def test_hold_and_release_are_asked_for_by_name() -> None:
    assert parse_ask(b'{"ask":"hold","job":"j1"}') == AskHold(job="j1")
    assert parse_ask(b'{"ask":"release","job":"j1"}') == AskRelease(job="j1")
    wrong = parse_ask(b'{"ask":"hold","job":"j1","until":"5m"}')
    assert isinstance(wrong, list)
    assert [one.text for one in wrong] == ["unknown key `until`"]
