"""Synergy's profiles: mini-batch times of a V100, and penalties of placement.

Mohan et al., OSDI'22; constants of its simulator. Every placement penalty among them is 1, and they
are taken as they are: the models are known, and lose nothing anywhere. Only the table of the fewest
CPUs per GPU (`models`) is read, because a situation has no CPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from skep_lab.workloads.names import normalised
from skep_lab.workloads.table import Place, Spread, Table, Work


class Profile(NamedTuple):
    """Seconds of a mini-batch, its samples, and how many times as long it takes apart."""

    iter_s: float
    batch: int
    penalty: float


class Synergy(Table):
    """Profiles by model."""

    name = "synergy"
    origin = "Synergy (OSDI'22): V100; mini-batch times, placement penalties (all 1)"

    def __init__(self, profiles: Mapping[str, Profile]) -> None:
        self.profiles = profiles

    def models(self) -> tuple[str, ...]:
        return tuple(sorted(self.profiles))

    def locality(self, work: Work, place: Place, fewest: Spread) -> float | None:
        profile = self.profiles.get(work.model)
        if profile is None:
            return None
        return 1 / profile.penalty if len(place.spread) > len(fewest) else 1.0

    def seconds(self, work: Work, place: Place) -> float | None:
        profile = self.profiles.get(work.model)
        return None if profile is None else profile.iter_s


class _Row(msgspec.Struct):
    iter_time: float
    batch: int
    placement_penalty: float


def parse(text: str | bytes) -> Synergy:
    """Return the table in `model_profiles.json`.

    Raises:
        ValueError: It is another text.
    """
    raw = msgspec.json.decode(text, type=dict[str, dict[str, _Row]])
    profiles = {}
    for key, row in raw.get("models", {}).items():
        model, _, gpus = key.rpartition("_")
        if gpus == "1":
            profiles[normalised(model).model] = Profile(
                row.iter_time, row.batch, max(row.placement_penalty, 1.0)
            )
    return Synergy(profiles)
