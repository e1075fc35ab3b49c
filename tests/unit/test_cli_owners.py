"""`skep ps` with owners: the column, and what is asked of the gateway."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skep.units import NS_PER_SECOND
from skep.wire import codec
from skep_services.cli import exits, job_table, jobs
from skep_services.cli.main import main
from skep_services.gateway.rows import Row, State


def rows(*owners: str) -> list[dict[str, Any]]:
    made = [
        Row(job=f"j{number}", vc="nlp", state=State.QUEUED, owner=owner, submitted_at=1)
        for number, owner in enumerate(owners, start=1)
    ]
    return list(msgspec.json.decode(codec.encode(made)))


def columns(*owners: str) -> dict[str, list[str]]:
    found = job_table.job_columns(rows(*owners), 5 * NS_PER_SECOND)
    return {column.title: list(column.cells) for column in found}


def test_a_cluster_without_people_has_no_column_of_owners() -> None:
    assert "OWNER" not in columns("", "")
    assert columns("ann", "")["OWNER"] == ["ann", "-"]


class Answers:
    """A gateway that notes what it is asked."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def get(self, path: str) -> Any:
        self.paths.append(path)
        return {"jobs": []}


@pytest.mark.parametrize(
    "words, asked",
    [
        (["--mine"], "mine=1"),
        (["--owner", "ann"], "owner=ann"),
        (["-a", "--owner", "ann"], "owner=ann"),
    ],
)
def test_ps_asks_for_the_jobs_of_one_person(
    monkeypatch: pytest.MonkeyPatch, words: list[str], asked: str
) -> None:
    gateway = Answers()
    monkeypatch.setattr(jobs, "client_of", lambda *_: gateway)
    assert main(["ps", *words]) == 0
    assert [asked in path.partition("?")[2].split("&") for path in gateway.paths] == [True]


def test_mine_and_another_owner_at_once_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ps", "--mine", "--owner", "ann"]) == exits.USAGE
    assert "not allowed with" in capsys.readouterr().err
