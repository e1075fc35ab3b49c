"""Fair share on production machines in days: parts near to weights. `fair_month` plays a month."""

from __future__ import annotations

import pytest

from skep_lab.studies.fairness import WEIGHTS, Setting, play

DAYS = Setting(days=10, nodes=2, lent_nodes=0, half_life_days=2.0)


@pytest.mark.parametrize("seed", [1, 2])
def test_parts_come_near_to_the_weights_within_days(seed: int) -> None:
    outcome = play(seed, DAYS)

    # A gang of 8 of 16 GPUs for half a day is 9 % of what counts with a half-life of two days.
    assert outcome.decayed_error < 0.08, (seed, outcome)
    assert outcome.ended > 0.3 * outcome.jobs
    assert sum(part.weight for part in outcome.parts) == pytest.approx(1)
    assert [part.person for part in outcome.parts] == list(WEIGHTS)
