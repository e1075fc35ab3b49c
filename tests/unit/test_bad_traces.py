"""What is said of a bad trace, from the command line, for every form that is read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from skep_lab.traces.read import FORMATS
from tests.system import bad_traces
from tests.system.bad_traces import FORMS, ROWS, Said, Spoilt


@pytest.fixture(autouse=True)
def place() -> Iterator[None]:
    with bad_traces.place():
        yield


def test_every_form_is_spoilt() -> None:
    assert {"gavel" if name == "shockwave" else name for name in FORMS} == set(FORMATS)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_wrong_is_said_with_its_row_and_every_row_is_accounted_for(form: str) -> None:
    for case in bad_traces.spoilt(form):
        for said in bad_traces.play(form, case):
            judge(case, said)


def judge(case: Spoilt, said: Said) -> None:
    where = f"{case.name}, {said.command}: {said.said}"
    assert case.said in said.said, where
    assert said.code == (1 if case.lost else 0), where
    if case.lost == ROWS:
        assert said.lenient_code == 1, "nothing can be read"
        return
    assert said.lenient_code == 0, where
    problems = said.told["problems"]
    if case.lost:
        assert f"(row {case.row})" in said.said, where
        rows = [row for each in problems for row in each.get("rows", [each.get("row")])]
        assert rows == [case.row], where
    assert said.told["jobs"] == ROWS - case.lost, where
    assert said.told["jobs"] + sum(each.get("count", 1) for each in problems) == ROWS, where
