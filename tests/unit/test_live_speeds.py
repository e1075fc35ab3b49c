"""What the live study of speeds makes of answers and outcomes."""

from __future__ import annotations

from typing import Any

from tests.system.live_speeds.bench import Outcome, Predicted
from tests.system.live_speeds.deadlines import put, suggestion
from tests.system.live_speeds.tables import Judged, summary, table
from tests.system.live_speeds.trainings import MODELS, PROFILED, UNSEEN, Place, spec

GIB = 2**30


def judged(p50: float, measured: float, stratum: str = "near") -> Judged:
    told = Predicted("m", Place(3), 32, 0.8 * p50, p50, 1.25 * p50, stratum, "own", True)
    return Judged(told, Outcome("m", Place(3), 32, "node-1:0", 1.0, measured, 1.0, 9, 1.0, 1.0))


def test_a_suggested_change_is_put_into_the_spec() -> None:
    body = {"error": {"problems": [{"suggestion": "use `elastic.max: 2`"}]}}
    what: dict[str, Any] = {"elastic": {"min": 1, "max": 1}}
    put(what, *suggestion(body))
    put(what, "finish_by", "2026-11-26T08:00:00Z")
    put(what, "willing.gpus", "1..4")
    assert what == {
        "elastic": {"min": 1, "max": 2},
        "finish_by": "2026-11-26T08:00:00Z",
        "willing": {"gpus": "1..4"},
    }


def test_errors_and_coverage_are_counted() -> None:
    rows = [judged(100, 100), judged(100, 120), judged(100, 200, "more-nodes")]
    found = summary(rows)
    assert found["all"]["held_percent"] == 66.7
    assert found["all"]["error_max_percent"] == 50.0
    assert [each["outcomes"] for each in found["by_stratum"].values()] == [2, 1]
    assert table(("a", "b"), [("x", 1)]) == "| a | b |\n| --- | ---: |\n| x | 1 |"


def test_what_is_predicted_was_not_profiled_and_memory_spreads_a_gang() -> None:
    assert not set(PROFILED) & set(UNSEEN)
    across = spec(MODELS[0], Place(4, 2), 8 * GIB, [])["resources"]
    assert across["memory"] * 2 <= 8 * GIB < across["memory"] * 3
    assert "topology" not in across
    within = spec(MODELS[0], Place(3), 8 * GIB, [])["resources"]
    assert within["topology"] == {"within": "node", "hard": True}
