"""What the command prints of estimates, and of how often they held."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skep_services.cli import render
from skep_services.cli.calibration import observed, picture
from skep_services.cli.main import main
from tests.cli_kit import SECOND, FakeGateway, Told, fake_gateway, row

Run = Callable[..., tuple[int, str, str]]
NOON = round(time.mktime((2026, 3, 2, 12, 0, 0, 0, 0, -1))) * SECOND
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGateway]:
    with fake_gateway() as made:
        monkeypatch.setenv("SKEP_API", made.url)
        monkeypatch.setenv("SKEP_TOKEN", "op")
        yield made


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> tuple[int, str, str]:
        code = main(words)
        out, err = capfd.readouterr()
        return code, out, err

    return run


def times(p10: int, p50: int, p90: int) -> dict[str, int]:
    return {"p10": NOON + p10, "p50": NOON + p50, "p90": NOON + p90}


def estimate(*, start: Any = None, end: Any = None) -> dict[str, Any]:
    return {"start": start, "end": end, "basis": "measured-rate"}


@pytest.mark.parametrize(
    "ahead, text",
    [
        (times(50 * MINUTE, HOUR, 2 * HOUR), "13:00 (12:50-14:00)"),
        (times(30 * SECOND, MINUTE, 2 * MINUTE), "12:01:00 (12:00:30-12:02:00)"),
        (times(HOUR, 13 * HOUR, 40 * HOUR), "Tue 01:00 (Mon 13:00-Wed 04:00)"),
        (times(9 * HOUR, 11 * HOUR, 13 * HOUR), "23:00 (21:00-Tue 01:00)"),
        (times(HOUR, 200 * HOUR, 210 * HOUR), "Mar 10 (Mon 13:00-11)"),
        (times(30 * HOUR, 31 * HOUR, 200 * HOUR), "Tue 19:00 (18:00-Mar 10)"),
        (times(0, 9000 * HOUR, 90_000 * HOUR), "2027-03 (12:00:00-2036-06)"),
    ],
)
def test_an_instant_is_as_exact_as_it_is_near(ahead: dict[str, int], text: str) -> None:
    assert render.between(ahead, NOON) == text


def test_what_is_not_known_is_a_dash() -> None:
    assert render.between(None, NOON) == "-"


def test_ps_shows_when_jobs_end_and_stays_within_the_terminal(
    gateway: FakeGateway, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns()
    end = {"p10": now + HOUR, "p50": now + 2 * HOUR, "p90": now + 3 * HOUR}
    rows = [row("j1", estimate=estimate(end=end)), row("j2"), row("j3", estimate=estimate())]
    gateway.on("GET /v1/jobs", {"jobs": rows, "total": 3})
    code, out, _ = run("ps")
    lines = out.splitlines()
    assert code == 0
    assert render.between(end, now) in lines[1]
    monkeypatch.setattr(render, "terminal_width", lambda *_: 60)
    _, out, _ = run("ps")
    assert "ENDS" not in out
    assert all(len(line) <= 60 for line in out.splitlines())


def test_show_says_when_a_job_starts_and_ends_and_by_what(gateway: FakeGateway, run: Run) -> None:
    now = time.time_ns()
    soon = {"p10": now + HOUR, "p50": now + 2 * HOUR, "p90": now + 3 * HOUR}
    waits = row("j1", state="queued", bound_at=None, started_at=None)
    waits["estimate"] = estimate(start=soon, end=soon)
    gateway.on("GET /v1/jobs/j1", waits)
    _, out, _ = run("show", "j1")
    told = render.between(soon, now)
    assert f"starts      {told}, eight times in ten" in out
    assert f"ends        {told}, eight times in ten (measured-rate)" in out
    waits["estimate"] = {"start": None, "end": None, "basis": "length-unknown"}
    _, out, _ = run("show", "j1")
    assert "starts      when is not known" in out
    assert "ends        when is not known (length-unknown)" in out


ROWS = [
    {
        "vc": "nlp",
        "family": family,
        "what": "start",
        "outcomes": 10,
        "held": 8,
        "covered": 0.8,
        "error": 0.125,
        "widened": 1.5,
        "ranks": [1] * 10,
    }
    for family in (None, "resnet")
]


def test_calibration_is_a_table_and_a_picture(
    gateway: FakeGateway, run: Run, tmp_path: Path
) -> None:
    gateway.on("GET /v1/calibration", {"estimates": ROWS, "left_out": 3})
    code, out, err = run("calibration", "--vc", "nlp", "--family", "resnet")
    assert code == 0
    assert out.splitlines()[1].split() == [
        "nlp", "(all)", "start", "10", "8", "80.0%", "12.5%", "1.50x",
    ]  # fmt: skip
    assert "80% of outcomes should lie from P10 to P90" in err
    assert "3 more rows" in err
    assert gateway.last("GET /v1/calibration").query == {"vc": "nlp", "family": "resnet"}
    drawn = tmp_path / "coverage.svg"
    run("calibration", "--svg", str(drawn))
    assert drawn.read_text(encoding="utf-8") == picture(ROWS)
    assert observed([1] * 10) == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert observed([0] * 10) == [0.0] * 5
    _, out, _ = run("calibration", "--json")
    assert '"covered":0.8' in out.replace(" ", "")


def test_calibration_fits_a_terminal_of_80_columns(
    gateway: FakeGateway, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render, "terminal_width", lambda *_: 80)
    named = {"vc": "a-long-name", "family": "resnet50-imagenet", "outcomes": 12_345}
    rows = [
        {**ROWS[0], **named, "what": f"predicted-speed more-{each}"} for each in ("gpus", "nodes")
    ]
    gateway.on("GET /v1/calibration", {"estimates": rows, "left_out": 0})
    _, out, _ = run("calibration")
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "more-gp" in out
    assert "more-no" in out


def test_calibration_without_outcomes_and_with_unknown_names(
    gateway: FakeGateway, run: Run
) -> None:
    gateway.on("GET /v1/calibration", {"estimates": [], "left_out": 0})
    code, out, err = run("calibration")
    assert (code, out) == (0, "")
    assert "no estimate was judged yet" in err
    refusal = {"error": {"reason": "unknown-vc", "text": "there is no virtual cluster x"}}
    gateway.routes["GET /v1/calibration"] = lambda _: Told(404, refusal)
    code, _, err = run("calibration", "--vc", "x")
    assert (code, err.splitlines()) == (3, ["skep calibration: there is no virtual cluster x"])
