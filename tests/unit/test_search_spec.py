"""A search's spec and the requests about searches: every problem with path and suggestion."""

from __future__ import annotations

import json
from typing import Any

import pytest

from skep.perf.learning import promise
from skep.wire.reasons import Reason
from skep.wire.search import SearchSpec, parse_search_tree
from skep.wire.search_facts import AskTrial, BeginSearch, CancelSearch, TellTrial, parse_request
from tests.search_kit import tree

ASHA = {"method": "asha", "rungs": {"first": 10, "last": 90}}


def test_times_are_seconds_and_trials_are_the_vcs_jobs() -> None:
    parsed = parse_search_tree(tree(turn="2m", budget={"trials": 3, "gpu_time": "1h"}))
    assert isinstance(parsed, SearchSpec)
    assert (parsed.turn, parsed.budget.gpu_time, parsed.job.vc) == (120, 3600, "nlp")
    assert isinstance(parse_search_tree(tree(**ASHA)), SearchSpec)


@pytest.mark.parametrize(
    "changes, path, reason, suggestion",
    [
        ({"metrik": "x"}, "$.metrik", Reason.UNKNOWN_KEY, "did you mean `metric`?"),
        ({"budget": {}}, "$.budget.trials", Reason.MISSING_KEY, ""),
        ({"vc": ""}, "$.vc", Reason.BAD_VALUE, ""),
        ({"vc": "two words"}, "$.vc", Reason.BAD_VALUE, ""),
        ({"name": ""}, "$.name", Reason.BAD_VALUE, ""),
        ({"budget": {"trials": 0}}, "$.budget.trials", Reason.BAD_VALUE, ""),
        ({"job": {"script": "a.py", "gpu": 1}}, "$.job.gpu", Reason.UNKNOWN_KEY, ""),
        ({"job": {"script": "a.py", "vc": "cv"}}, "$.job.vc", Reason.WRONG_VC, "leave it out"),
        (
            {"space": {"lr": {"lgo": [1, 2]}}},
            "$.space.lr.lgo",
            Reason.UNKNOWN_KEY,
            "did you mean `log`?",
        ),
        ({"space": {"lr": {}}}, "$.space.lr", Reason.MISSING_KEY, ""),
        ({"space": {"lr": {"log": [0, 1]}}}, "$.space.lr.log", Reason.BAD_VALUE, ""),
        ({"space": {}}, "$.space", Reason.MISSING_KEY, "such as `{lr: {log: [0.0001, 0.1]}}`"),
        ({"exclusive": 2}, "$.exclusive", Reason.BAD_VALUE, "use 0 to 1"),
        ({"turn": "soon"}, "$.turn", Reason.BAD_VALUE, ""),
        (
            {"method": "asha"},
            "$.rungs",
            Reason.MISSING_KEY,
            "such as `{first: 100, last: 2700, eta: 3}`",
        ),
        ({"space": {"n": {"integer": [0, 10**400]}}}, "$.space.n.integer", Reason.BAD_VALUE, ""),
        ({"steps": 10**400}, "$.steps", Reason.BAD_VALUE, ""),
        ({"budget": {"trials": 1, "gpu_time": 10**400}}, "$.budget.gpu_time", Reason.BAD_VALUE, ""),
        ({**ASHA, "rungs": {"first": 0, "last": 90}}, "$.rungs.first", Reason.BAD_VALUE, ""),
        ({**ASHA, "rungs": {"first": -1, "last": 90}}, "$.rungs.first", Reason.BAD_VALUE, ""),
        ({**ASHA, "rungs": {"first": 10, "last": 20}}, "$.rungs.last", Reason.BAD_VALUE, ""),
    ],
)
def test_what_is_wrong_is_told(
    changes: dict[str, Any], path: str, reason: Reason, suggestion: str
) -> None:
    problems = parse_search_tree(tree(**changes))
    assert isinstance(problems, list)
    found = [(each.path, each.reason) for each in problems]
    assert (path, reason) in found
    told = problems[found.index((path, reason))]
    assert not suggestion or told.suggestion == suggestion


@pytest.mark.parametrize(
    "request_, kind",
    [
        ({"do": "begin", "spec": tree()}, BeginSearch),
        ({"do": "cancel", "search": "s1"}, CancelSearch),
        ({"do": "ask", "search": "s1", "params": {"lr": 0.1}}, AskTrial),
        ({"do": "tell", "search": "s1", "trial": 1, "value": 0.5}, TellTrial),
    ],
)
def test_requests_are_read(request_: dict[str, Any], kind: type) -> None:
    assert isinstance(parse_request(json.dumps(request_).encode()), kind)


@pytest.mark.parametrize(
    "raw, path, reason",
    [
        (b"x", "$", Reason.NOT_JSON),
        (b"[]", "$", Reason.WRONG_TYPE),
        (b"{}", "$.do", Reason.MISSING_KEY),
        (b'{"do":"cancle"}', "$.do", Reason.BAD_VALUE),
        (b'{"do":"begin"}', "$.spec", Reason.MISSING_KEY),
        (b'{"do":"cancel","search":"j1"}', "$.search", Reason.BAD_VALUE),
        (b'{"do":"cancel","search":"s1","now":1}', "$.now", Reason.UNKNOWN_KEY),
        (b'{"do":"tell","search":"s1","trial":1}', "$.value", Reason.MISSING_KEY),
        (b'{"do":"tell","search":"s1","trial":1,"value":1e200}', "$.value", Reason.BAD_VALUE),
        (
            b'{"do":"tell","search":"s1","trial":1,"value":1,"step":1%s}' % (b"0" * 80),
            "$.step",
            Reason.BAD_VALUE,
        ),
    ],
)
def test_wrong_requests_are_refused(raw: bytes, path: str, reason: Reason) -> None:
    problems = parse_request(raw)
    assert isinstance(problems, list)
    assert (problems[0].path, problems[0].reason) == (path, reason)


def test_a_power_law_is_followed_and_never_trusted_beyond_its_gain() -> None:
    steps = list(range(10, 200, 10))
    rising = promise(steps, [0.9 - 2 / step for step in steps], 1000)
    assert rising is not None
    assert 0.889 < rising.value < 0.9
    steep = promise([1, 2, 3, 4], [0.0, 0.1, 0.2, 0.3], 10**9)
    assert steep is not None
    assert steep.value <= 0.4, "the level now, and as much again as was gained"


def test_a_curve_that_soars_is_doubted_before_its_gain_is_known() -> None:
    soars = promise([1, 2, 3], [0.18, 0.25, 0.31], 99)
    assert soars is not None
    assert soars.value + 2 * soars.spread > 0.5, "it is not hopeless: it has gained all it shows"
    lies = promise([1, 2, 3], [0.10, 0.11, 0.10], 99)
    assert lies is not None
    assert lies.value + 2 * lies.spread < 0.2


def test_no_curve_promises_nothing_and_a_falling_one_what_it_has() -> None:
    assert promise([1, 2], [0.1, 0.2], 100) is None
    falling = promise([1, 2, 3, 4], [0.9, 0.8, 0.7, 0.6], 100)
    assert falling is not None
    assert falling.value == 0.7
    flat = promise([1, 2, 3], [0.5, 0.5, 0.5], 100)
    assert flat is not None
    assert (flat.chance(0.5), flat.chance(0.6)) == (1.0, 0.0)
