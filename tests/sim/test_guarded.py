"""Random worlds under the guard: how they are drawn, what a row says, and what comes of rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skep_lab.learn import guarded_main as guarded
from skep_lab.learn import protocol
from skep_lab.traces.heldout import HELD_OUT_FROM

TRIED = 7_000
"""A world that is not judged."""


def row(world: int, worse: float, **more: Any) -> dict[str, Any]:
    alone = {"mean_jct_s": 100.0, "p99_jct_s": 1.0, "longest_wait_s": 20_000.0, "unfinished": 0}
    return {
        "world": world,
        "kind": "near",
        "rule": "hold",
        "alone": alone,
        "again": alone | {"mean_jct_s": 103.0},
        "guarded": alone | {"mean_jct_s": 100.0 * (1 + worse), **more},
        "same": worse == 0,
        "stages": [{"stage": "shadow"}, {"stage": "switchback"}],
        "falls": {"advice-late": 2},
    }


def test_worlds_are_the_same_each_time_and_the_judged_ones_are_held_out() -> None:
    drawn = [guarded.draw(number) for number in guarded.JUDGED]
    assert drawn == [guarded.draw(number) for number in guarded.JUDGED]
    assert len({each.setting for each in drawn}) > 400
    assert [each.kind for each in drawn[:10]] == [*guarded.KINDS]
    seeds = {guarded.seed_of(number) for number in guarded.JUDGED}
    assert min(seeds) >= HELD_OUT_FROM > guarded.seed_of(guarded.JUDGED.stop)
    assert not seeds & {protocol.seed_of(number) for number in protocol.HELD_OUT}
    rules = {(each.setting.family, each.rule) for each in drawn}
    assert rules == {
        ("locality", "hold"),
        ("elastic", "look-ahead"),
        ("both", "hold"),
        ("both", "look-ahead"),
    }


def test_what_is_worse_is_counted_by_world_and_in_the_mean() -> None:
    found = guarded.summary([row(0, 0.0), row(1, 0.05), row(2, -0.02)])
    assert found["worse_mean"] == pytest.approx(0.01)
    assert (found["worse_worst"], found["worse_part"]) == pytest.approx((0.05, 1 / 3))
    assert (found["noise_part"], found["otherwise"], found["switchback"]) == (1.0, 2, 3)
    assert found["falls"] == {"advice-late": 6}
    assert guarded.table([row(0, 0.0)]).count("near") == 1


@pytest.mark.parametrize(
    "more, starved",
    [({}, 0), ({"unfinished": 1}, 1), ({"longest_wait_s": 39e3}, 0), ({"longest_wait_s": 41e3}, 1)],
)
def test_a_job_is_starved_that_does_not_end_or_waits_far_longer(
    more: dict[str, Any], starved: int
) -> None:
    assert guarded.summary([row(0, 0.0, **more)])["starved"] == starved


def test_a_file_of_worlds_goes_on_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    played = []

    def play(number: int, _good: bytes | None = None) -> dict[str, Any]:
        played.append(number)
        return row(number, 0.0)

    monkeypatch.setattr(guarded, "play", play)
    words = ["--out", str(tmp_path / "rows"), "--json", "--worlds"]
    assert guarded.main([*words, "2"]) == 0
    assert json.loads(capsys.readouterr().out)["all"]["worlds"] == 2
    assert guarded.main([*words, "4"]) == 0
    assert json.loads(capsys.readouterr().out)["all"]["worlds"] == 4
    assert played == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["good", "broken"])
def test_a_short_world_is_as_with_its_rule(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = guarded.draw(TRIED)._replace(kind=kind, jobs=40)
    monkeypatch.setattr(guarded, "draw", lambda _number: world)
    made = guarded.play(TRIED)
    assert made["same"]
    assert made["guarded"] == made["alone"]
    assert [each["stage"] for each in made["stages"]] == ["shadow"]
    assert ("advice-broken" in made["falls"]) == (kind == "broken")
