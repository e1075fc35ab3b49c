"""Reports over HTTP, from an export, as a table, as CSV and as a picture."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import NamedTuple

import pytest

from skep.ledger.report import By
from skep.units import seconds
from skep_services.cli import report as command
from skep_services.cli.main import main
from skep_services.cli.reportplot import LINES_SHOWN, picture
from skep_services.simulations.logged import LoggedRun
from tests.blame_kit import live_like
from tests.gateway_kit import opened, submitted

SEED = 1


class Now(NamedTuple):
    """What a judge is given: only the time counts here."""

    now: int


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the log of a live-like run of 200 jobs."""
    path = tmp_path_factory.mktemp("log") / "week.jsonl.gz"
    logged = LoggedRun(path)
    for record in live_like(200, SEED)[0]:
        logged(Now(record.at), record.facts)
    logged.close()
    return path


def told(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


@pytest.mark.asyncio
async def test_a_report_is_answered_and_outlives_the_gateway(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        await house.with_nodes(nodes=1)
        first = await submitted(house, labels={"user": "ada", "project": "lm"})
        second = await submitted(house, labels={"user": "bo"})
        house.cluster.runs(first, second=5)
        house.cluster.exits(first, second=25)
        house.cluster.runs(second, second=10)
        await house.caught_up()
        house.cluster.clock.advance(seconds(40))
        answers = {by: (await house.op.get(f"/v1/report?by={by}"))["report"] for by in By}
        for answer in answers.values():
            for figure in ("submitted", "held_gpu_ns", "useful_gpu_ns", "waited_ns"):
                whole = sum(line[figure] for line in answer["lines"])
                assert whole == answer["total"][figure] == answers[By.VC]["total"][figure]
        users = {line["name"]: line for line in answers[By.USER]["lines"]}
        assert set(users) == {"ada", "bo"}
        assert (users["ada"]["completed"], users["bo"]["completed"]) == (1, 0)
        assert users["ada"]["useful_gpu_ns"] == 20 * 10**9
        assert {line["name"] for line in answers[By.PROJECT]["lines"]} == {"lm", ""}
        [day] = answers[By.DAY]["lines"]
        assert day["name"] == answers[By.DAY]["first_day"] == answers[By.DAY]["last_day"]
        await house.restart()
        assert (await house.op.get("/v1/report?by=user"))["report"] == answers[By.USER]
        assert (await house.nlp.get("/v1/report?by=user"))["report"] == answers[By.USER]
        assert (await house.vision.get("/v1/report"))["report"]["lines"] == []
        later = await house.op.get("/v1/report?from=2099-01-01")
        assert later["report"]["total"]["submitted"] == 0
        for path, status, reason in (
            ("/v1/report?by=color", 400, "bad-value"),
            ("/v1/report?from=yesterday", 400, "bad-value"),
        ):
            assert (await house.op.get(path, status))["error"]["reason"] == reason
        error = (await house.vision.get("/v1/report?vc=nlp", 403))["error"]
        assert error["reason"] == "wrong-vc"


def test_an_export_gives_the_same_by_each(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = [
        json.loads(told(["report", "--log", str(log), "--by", by, "--json"], capsys)) for by in By
    ]
    totals = [answer["report"]["total"] for answer in answers]
    assert totals[0]["submitted"] == 200
    assert all(total == totals[0] for total in totals)
    text = told(["report", "--log", str(log), "--by", "vc"], capsys)
    assert text.splitlines()[-1].split()[0] == "total"


def test_csv_has_exact_times_and_no_formulas(log: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    assert main(["report", "--log", str(log), "--by", "vc", "--csv", str(path)]) == 0
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    assert sum(int(row["submitted"]) for row in rows) == 200
    assert all(int(row["held_gpu_ns"]) >= int(row["useful_gpu_ns"]) for row in rows)
    line = dict.fromkeys(command.COUNTS, 0) | {"name": "=1+1", "vc": ""}
    line |= {f"{part}_gpu_ns": 0 for part in ("held", *command.PARTS)}
    line |= {"waited_ns": 0, "start_wait_ns": 0}
    assert "'=1+1" in command.csv_of({"by": "project", "lines": [line]})


def test_pictures_show_the_largest(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(told(["report", "--log", str(log), "--json"], capsys))["report"]
    assert picture(found).count("<rect") > len(found["lines"])
    many = [dict(found["lines"][0], name=f"p<{number}>") for number in range(LINES_SHOWN + 5)]
    drawn = picture({**found, "lines": many})
    assert "5 others" in drawn
    assert "p<" not in drawn
    days = json.loads(told(["report", "--log", str(log), "--by", "day", "--json"], capsys))
    assert picture(days["report"]).startswith("<svg")


@pytest.mark.parametrize(
    "words, said",
    [
        (["--from", "yesterday"], "write a day such as"),
        (["--from", "2026-02-01", "--to", "2026-01-01"], "is behind"),
        (["--log", "/nowhere/week.jsonl"], "No such file"),
    ],
)
def test_what_is_wrong_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *words]) != 0
    [line] = capsys.readouterr().err.splitlines()
    assert said in line


def test_an_export_that_is_cut_short_is_one_line(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(log.read_bytes()[:-100])
    assert main(["report", "--log", str(path)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "cut short or damaged" in line
    path.write_bytes(b"")
    assert main(["report", "--log", str(path)]) == 1
