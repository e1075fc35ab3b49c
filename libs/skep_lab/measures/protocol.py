"""How predictions are judged on public measurements, fixed before any of it was looked at.

- Held out: a profile's placements are measured (`profiles`), everything else is predicted.
- Leave one model out: what other families teach comes from the other models of the same data set.
- Tuning and judging: of each data set's models in alphabetical order, the first, third, fifth ...
  are for tuning, and the others for judging. Options of the method (`Shape`, `Prior`s, bounds) are
  chosen by errors of tuning models only. Judged models may teach others, as they would in life.
- The figure of a form on a data set is the mean over the six profiles of the mean over models of
  the mean relative error |predicted - measured| / measured of held-out points.
- The bar: on at least six of seven data sets the blend is best, or at most one point worse than the
  best. It is applied to the judged models; the same over all models is printed beside it.
- Calibration: of nominal P10 to P90, the part of held-out points within, averaged by model and then
  over models and profiles. The bar: 75 to 88 %.
"""

from __future__ import annotations

from collections.abc import Iterable

JUDGED_SETS = (
    "pollux-t4",
    "elasticflow-a100",
    "elasticflow-t4",
    "gavel-v100",
    "gavel-p100",
    "gavel-k80",
    "deepshare",
)
EXTRA_SETS = ("dl2",)
POINTS_CLOSE = 1.0
"""The blend may be worse than the best form by so many percentage points."""
SETS_NEEDED = 6
COVERED = (75.0, 88.0)
"""Within which the mean coverage of a nominal 80 % has to be, in percent."""


def tuned_on(models: Iterable[str]) -> tuple[str, ...]:
    """Return the models of a data set that options may be tuned on."""
    return tuple(sorted(models)[0::2])


def judged_on(models: Iterable[str]) -> tuple[str, ...]:
    """Return the models of a data set that say whether the bar is reached."""
    return tuple(sorted(models)[1::2])
