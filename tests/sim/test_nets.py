"""Bugs planted in the machines and in the shell: the simulator must notice each."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from skep.sim import planted
from skep.sim.planted import NO_FENCE, PLANTS, Finding, Plant, find
from skep.sim.world import Settings

SHOWED = {
    "GPUs of a lost node count as free": 1,
    "a move that is undone stays": 11,
    "a stop for an unknown attempt is not kept": 5,
    "a change is told once and never again": 11,
    "cells are split without regard to what others own": 34,
    "who goes on with other GPUs is not told with which": 62,
    "a job that was suspended goes on when its move fails": 27,
    "a gang is smaller while those who leave are still there": 6,
    "position acknowledged before the effect": 1,
    "no floor at the agent": 9,
    "a suspended job goes on with GPUs that others use": 77,
    "a gang on several nodes moves without standing first": 73,
    "a gang that could not change its size has changed it": 44,
}
"""Where a bug that not every history shows was found: where to look first. It is found all the same
once it shows elsewhere."""

QUICK = {
    "GPUs of a lost node count as free",
    "a move that is undone stays",
    "a name taken back is used before it is clear",
    "a trial without a verdict stays open",
    "no floor at the agent",
}
"""Bugs that are found within two seconds. The tests of the others are slow."""

NIGHTLY = {
    "lost timer: commands not repeated",
    "lost timer: commands forgotten in a restart",
    "a stop for an unknown attempt is not kept",
    "a change is told once and never again",
    "processes are never stopped",
    "a suspended job goes on with GPUs that others use",
}
"""Bugs that show only as something that never ends, or late: the simulator waits for it long."""


def marks(plant: Plant) -> Sequence[pytest.MarkDecorator]:
    if plant.name in QUICK:
        return ()
    return (pytest.mark.nightly if plant.name in NIGHTLY else pytest.mark.slow,)


@pytest.mark.parametrize(
    "plant", [pytest.param(plant, id=plant.name, marks=marks(plant)) for plant in PLANTS]
)
def test_a_planted_bug_is_found(plant: Plant) -> None:
    right = vars(plant.owner)[plant.attribute]
    with planted.planted(plant):
        assert vars(plant.owner)[plant.attribute] is plant.wrong
        found = find(plant.name, Settings(), first=SHOWED.get(plant.name, 0))
    assert found.invariant in plant.breaks, found.text
    assert vars(plant.owner)[plant.attribute] is right


def test_without_a_bug_nothing_is_found() -> None:
    assert find("none", Settings(), 5) == Finding("none")


@pytest.mark.slow
def test_the_table_tells_what_was_found_and_what_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    harmless = Plant("harmless", Plant, "breaks", vars(Plant)["breaks"], ())
    monkeypatch.setattr(planted, "PLANTS", (harmless,))
    assert planted.main(["--seeds-max", "4"]) == 1
    fence, last = capsys.readouterr().out.splitlines()
    assert fence.startswith(NO_FENCE)
    assert " in history " in fence
    assert last.endswith("NOT FOUND")
    monkeypatch.setattr(planted, "PLANTS", ())
    assert planted.main(["--seeds-max", "4", "--json"]) == 0
    (finding,) = json.loads(capsys.readouterr().out)
    assert (finding["bug"], bool(finding["invariant"])) == (NO_FENCE, True)
