"""`skep alerts` and `skep history`: what they ask for, and what they show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skep_services.cli.main import main
from skep_services.gateway.columns import ALERTS, HISTORY
from tests.cli_kit import T0, FakeGateway, Told, fake_gateway

HOUR = 3600 * 1_000_000_000


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeGateway]:
    with fake_gateway() as made:
        monkeypatch.setenv("SKEP_API", made.url)
        monkeypatch.setenv("SKEP_TOKEN", "secret")
        monkeypatch.setenv("SKEP_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("TZ", "UTC")
        yield made


def alert(code: str, severity: str, about: str, text: str) -> list[object]:
    return [f"{code}/{about}", code, severity, "job", about, "nlp", T0, text, "`skep why`"]


def test_alerts_are_listed_the_worst_first(
    gateway: FakeGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        alert("job-stalled", "warning", "j1", "j1 makes no \x1b[31m mini-batches"),
        alert("limit-near", "info", "VC nlp", "nlp is near"),
        alert("node-lost", "critical", "node-1", "node-1 is lost"),
    ]
    table = {"columns": [*ALERTS, "later"], "rows": [[*row, 1] for row in rows]}
    answer = {"cursor": "a-1", "at": T0, "tables": {"alerts": table}}
    gateway.routes["GET /v1/state"] = lambda _: Told(value=answer)
    assert main(("alerts", "--vc", "nlp")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["critical", "warning", "info"]
    assert "\x1b" not in lines[2]
    assert gateway.asked[0].query == {"tables": "alerts", "vc": "nlp"}
    assert main(("alerts", "--severity", "warning", "--json")) == 0
    told = json.loads(capsys.readouterr().out)["alerts"]
    assert [row["code"] for row in told] == ["node-lost", "job-stalled"]
    table["rows"] = []
    assert main(("alerts",)) == 0
    assert "there are no alerts" in capsys.readouterr().err


def test_history_is_an_hour_a_line(
    gateway: FakeGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = T0 // HOUR * HOUR
    row: dict[str, Any] = dict.fromkeys(HISTORY, 0) | {
        "useful": None,
        "waited_p50_s": None,
        "waited_p90_s": None,
    }
    used = row | {"held": 4.0, "used": 2.0, "useful": 500, "started": 2, "waited_p90_s": 90.0}
    rows = [row | {"at": begin}, used | {"at": begin + HOUR // 12}, used | {"at": begin + HOUR}]
    answer = {"step_s": 300, "columns": HISTORY, "rows": [[*one.values()] for one in rows]}
    gateway.routes["GET /v1/history"] = lambda _: Told(value=answer)
    assert main(("history", "--hours", "2")) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    names = ("HELD", "USED", "USEFUL", "WAIT")
    held, taken, useful, wait = (lines[0].index(word) for word in names)
    assert [line[held + 1] for line in lines[1:]] == ["2.0", "4.0"]
    assert [line[taken + 1] for line in lines[1:]] == ["1.0", "2.0"]
    assert [line[useful + 1] for line in lines[1:]] == ["50%", "50%"]
    assert [line[wait + 1] for line in lines[1:]] == ["1m30s", "1m30s"]
    assert gateway.asked[0].query == {"hours": "2"}
    assert main(("history", "--json")) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rows"][1]["started"] == 2
    assert gateway.asked[1].query == {"hours": "24"}
