"""The waterfall of `skep trace`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skep_services.cli import trace
from skep_services.cli.main import main
from tests.cli_kit import T0, fake_gateway

MS = 1_000_000


def span(
    name: str, start_ms: float, end_ms: float, parent: str = "", service: str = "allocator"
) -> dict[str, Any]:
    return {
        "trace_id": "a" * 32,
        "span_id": name,
        "parent_id": parent,
        "name": name,
        "service": service,
        "start_ns": T0 + round(start_ms * MS),
        "end_ns": T0 + round(end_ms * MS),
        "attributes": {},
    }


def names(spans: list[dict[str, Any]]) -> list[str]:
    return [line.name for line in trace.in_tree_order(spans)]


def test_children_stand_under_their_parents_by_start() -> None:
    spans = [
        span("late", 5, 9),
        span("grandchild", 2, 3, "child"),
        span("root", 0, 10),
        span("second", 4, 5, "root"),
        span("child", 1, 4, "root"),
        span("orphan", 7, 8, "unknown"),
    ]
    assert names(spans) == ["root", "  child", "    grandchild", "  second", "late", "orphan"]


def test_spans_in_a_circle_are_shown_once() -> None:
    spans = [span("a", 0, 1, "b"), span("b", 1, 2, "a"), span("self", 2, 3, "self")]
    assert sorted(name.strip() for name in names(spans)) == ["a", "b", "self"]


def test_time_that_no_span_covers_is_a_line_of_its_own() -> None:
    lines = trace.with_gaps(
        trace.in_tree_order([span("a", 0, 10), span("b", 5, 30), span("c", 60, 100)]), 100 * MS
    )
    assert [line.name for line in lines] == ["a", "b", "(nothing recorded)", "c"]
    assert (lines[2].start_ns - T0, lines[2].end_ns - T0) == (30 * MS, 60 * MS)
    short = trace.in_tree_order([span("a", 0, 10), span("b", 10.5, 11)])
    assert len(trace.with_gaps(short, 11 * MS)) == 2


def test_linear_waterfall() -> None:
    spans = [span("submit", 0, 50, service="gateway"), span("bind", 50, 100)]
    text = trace.waterfall(spans, 76, "auto", colour=False).splitlines()
    assert text[0].startswith("SERVICE    SPAN        START       TOOK  |0s")
    assert "|25ms" in text[0]
    first, second = (line.rpartition("50ms  ")[2] for line in text[1:])
    assert first.rstrip() == "█" * (len(first.rstrip()))
    assert second.lstrip() == "█" * len(second.lstrip())
    assert len(second) <= len(first) * 2
    assert max(map(len, text)) <= 76


def test_logarithmic_waterfall_shows_milliseconds_before_hours() -> None:
    spans = [
        span("submit", 0, 2, service="gateway"),
        span("admit", 2, 4, service="admission"),
        span("bind", 4, 6),
        span("run", 6, 3_600_000, service="agent"),
    ]
    text = trace.waterfall(spans, 120, "auto", colour=False).splitlines()
    bars = [len(line) - len(line.rstrip("█")) for line in text[1:]]
    assert bars[0] > 5
    assert "|1m40s" in text[0]
    linear = trace.waterfall(spans, 120, "linear", colour=False).splitlines()
    assert [len(line) - len(line.rstrip("█")) for line in linear[1:4]] == [1, 1, 1]
    assert trace.waterfall(spans, 120, "log", colour=False).splitlines() == text


def test_odd_spans_do_no_harm() -> None:
    long_name = span("x" * 100, 0, 0)
    backwards = span("back\x1b", 5, 3)
    text = trace.waterfall([long_name, backwards], 40, "auto", colour=True)
    assert "x" * 43 + "…" in text
    assert "back�" in text
    assert "\x1b[36m" in text


def test_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with fake_gateway() as gateway:
        monkeypatch.setenv("SKEP_API", gateway.url)
        monkeypatch.setenv("TZ", "UTC")
        answer = {"trace_id": "a" * 32, "spans": [span("submit", 0, 50)]}
        gateway.on("GET /v1/jobs/j1/trace", answer)
        assert main(["trace", "j1"]) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"trace {'a' * 32}  50ms  1 span  from 20")
        assert main(["trace", "j1", "--json"]) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[0]) == answer
        gateway.on("GET /v1/jobs/j1/trace", {"trace_id": "", "spans": []})
        assert main(["trace", "j1"]) == 0
        assert "no spans of j1 yet" in capsys.readouterr().err
        assert main(["trace", "j2"]) == 3
