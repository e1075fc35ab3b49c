"""Bugs planted in the machines and in the shell: the simulator must notice each."""

from __future__ import annotations

import json

import pytest

from skep.sim import planted
from skep.sim.planted import NO_FENCE, PLANTS, Finding, Plant, find
from skep.sim.world import Settings


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_a_planted_bug_is_found(plant: Plant) -> None:
    right = vars(plant.owner)[plant.attribute]
    with planted.planted(plant):
        assert vars(plant.owner)[plant.attribute] is plant.wrong
        found = find(plant.name, Settings())
    assert found.invariant in plant.breaks, found.text
    assert vars(plant.owner)[plant.attribute] is right


def test_without_a_bug_nothing_is_found() -> None:
    assert find("none", Settings(), 5) == Finding("none")


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
