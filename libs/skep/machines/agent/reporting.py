"""What an agent reports of its running parts: how far each rank is, and what one of them tells."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from skep.machines.agent.devices import with_use
from skep.machines.agent.parts import PartKey, PartState
from skep.wire.reports import JobProgress, RankProgress


def progress_of(
    parts: Mapping[PartKey, PartState],
    progress: Mapping[PartKey, Mapping[int, RankProgress]],
    used: Mapping[int, int],
) -> tuple[JobProgress, ...]:
    """Return how far every part is.

    Args:
        parts: The parts by job and attempt.
        progress: The latest report of each rank, by job and attempt, and by the number of the rank.
        used: The utilisation of each device of the node, in thousandths; negative: unknown.

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
            told = tuple(with_use(part, _spoken(part, alive, rank), used) for rank in alive)
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


def _spoken(part: PartState, alive: Mapping[int, RankProgress], rank: int) -> RankProgress:
    """Return a rank's progress, with what it tells of the training only if it is the lowest here.

    One rank's words are enough, as they all train the same model; of a gang that has become
    smaller, or of one on several nodes, it need not be rank 0.
    """
    told = alive[rank]
    if not told.values:
        return told
    gang = [one.plan.rank for one in part.ranks.values() if not one.out and one.plan.rank in alive]
    if rank == min(gang, default=rank):
        return told
    return msgspec.structs.replace(told, values={}, values_step=0)
