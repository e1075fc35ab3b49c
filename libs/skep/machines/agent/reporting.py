"""What an agent reports of its running parts: how far each rank is, and what one of them tells."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from skep.machines.agent.devices import with_use
from skep.machines.agent.parts import PartKey, PartState
from skep.units import Instant, after, seconds
from skep.wire.reports import JobProgress, RankProgress

PROFILES_EVERY = seconds(5.0)
"""How often fingerprint and timing of a part, and the own times of its ranks, are told: half a
kilobyte that rarely changes.
A report may be lost, and the introspector may be started anew."""

Progress = Mapping[PartKey, Mapping[int, RankProgress]]
"""The latest report of each rank, by job and attempt, and by the number of the rank."""


class ProfileTimes:
    """When the profile of each part is to be told again."""

    def __init__(self) -> None:
        """Begin without parts."""
        self._at: dict[PartKey, Instant] = {}

    def due(self, progress: Progress, now: Instant) -> dict[PartKey, None]:
        """Return the parts whose profile is told now, if there is any; they are told again later.

        Args:
            progress: Parts that are not in it are forgotten.
            now: The time.
        """
        have = {
            key: None
            for key, ranks in progress.items()
            if self._at.get(key, now) <= now and any(_has_profile(one) for one in ranks.values())
        }
        kept = {key: at for key, at in self._at.items() if key in progress}
        self._at = kept | dict.fromkeys(have, after(now, PROFILES_EVERY))
        return have


def progress_of(
    parts: Mapping[PartKey, PartState],
    progress: Progress,
    used: Mapping[int, int],
    profiles: Collection[PartKey] = (),
) -> tuple[JobProgress, ...]:
    """Return how far every part is.

    Args:
        parts: The parts by job and attempt.
        progress: What the ranks reported.
        used: The utilisation of each device of the node, in thousandths; negative: unknown.
        profiles: The parts of which fingerprint, timing and own times are told.

    Returns:
        One entry for each part with a living rank that has reported.
    """
    jobs = []
    for key, ranks in progress.items():
        part = parts[key]
        assert part.command is not None, key
        over = {rank.plan.rank for rank in part.ranks.values() if rank.down is not None}
        alive = {rank: told for rank, told in ranks.items() if rank not in over}
        if alive:
            shows = key in profiles
            told = tuple(with_use(part, _spoken(part, alive, rank, shows), used) for rank in alive)
            jobs.append(
                JobProgress(
                    job=key[0],
                    attempt=key[1],
                    world=part.command.world,
                    ranks=told,
                    trace=part.command.trace,
                )
            )
    return tuple(jobs)


def _spoken(
    part: PartState, alive: Mapping[int, RankProgress], rank: int, shows: bool
) -> RankProgress:
    """Return a rank's progress, with what it tells of the training only if it is the lowest here.

    One rank's words are enough, as they all train the same model; of a gang that has become
    smaller, or of one on several nodes, it need not be rank 0.
    """
    told = alive[rank]
    if not told.values and not _has_profile(told):
        return told
    gang = [one.plan.rank for one in part.ranks.values() if not one.out and one.plan.rank in alive]
    lowest = rank == min(gang, default=rank)
    if not (shows and lowest):
        told = msgspec.structs.replace(told, fingerprint=None, timing=None)
    if not shows:
        told = msgspec.structs.replace(told, own=None)
    return told if lowest else msgspec.structs.replace(told, values={}, values_step=0)


def _has_profile(told: RankProgress) -> bool:
    return not (told.fingerprint is None and told.timing is None and told.own is None)
