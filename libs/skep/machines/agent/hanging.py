"""Which parts of a node made mini-batches and make none any more, where their specs want to know.

Soft: what ranks report is kept in memory, and an agent that restarts hears it again. What a part
stood still for, or was changed for, does not count; a checkpoint that was not made changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from skep.machines.agent.idling import runs
from skep.machines.agent.parts import PartKey, PartState
from skep.perf.progress import stall_limit
from skep.units import Duration, Instant, seconds
from skep.wire.reports import HUNG_RANKS_MAX, HungPart, RankProgress, RankStands


def look(
    parts: Mapping[PartKey, PartState],
    progress: Mapping[PartKey, Mapping[int, RankProgress]],
    now: Instant,
) -> tuple[HungPart, ...]:
    """Return the parts that have made no mini-batch for as long as their spec allows.

    Args:
        parts: The parts of the node.
        progress: What their ranks reported.
        now: The time of the decision.
    """
    told = []
    for key, part in parts.items():
        if part.command is None or not part.command.hung_s or not runs(part):
            continue
        # Ranks that never made one are servers, or have yet to begin.
        ranks = [
            rank for rank in progress.get(key, {}).values() if rank.steps and rank.last_step_at
        ]
        if not ranks:
            continue
        latest = max(part.stood_until, *(rank.last_step_at for rank in ranks))
        silent = Duration(now - latest)
        if silent < seconds(part.command.hung_s):
            continue
        stand = [RankStands(rank=rank.rank, stands=rank.stands) for rank in ranks]
        stand.sort(key=lambda one: one.rank)
        ranks_told = tuple(stand[:HUNG_RANKS_MAX])
        told.append(HungPart(job=key[0], attempt=key[1], silent_ns=silent, ranks=ranks_told))
    return tuple(told)


def why_not_stored(part: PartState, ranks: Mapping[int, RankProgress], now: Instant) -> str:
    """Return why a part is not stored that may hang, or an empty text.

    Args:
        part: The part as it stands.
        ranks: What its ranks reported; of one that never made a mini-batch nothing is known.
        now: The time of the decision.
    """
    made = [rank for rank in ranks.values() if rank.steps and rank.last_step_at]
    if not made:
        return ""
    silent = now - max(part.stood_until, *(rank.last_step_at for rank in made))
    if silent <= stall_limit(max(rank.step_ns for rank in made)):
        return ""
    return f"it has made no mini-batch for {silent // seconds(1)} s: what was stored before stays"
