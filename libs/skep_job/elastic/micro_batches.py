"""Which numbers of ranks can make the same global batches out of the same micro-batches.

A global batch is `ranks * accumulation` micro-batches of one size. Libraries that deal these out
in turn (accelerate's BatchSamplerShard) have the same samples in every global batch, on whichever
ranks. So a number of ranks that divides that product keeps the global batch.
"""

from __future__ import annotations


def sizes(micro_batches: int, least: int, most: int) -> tuple[int, ...]:
    """Return the numbers of ranks that divide the micro-batches of one global batch.

    Args:
        micro_batches: Micro-batches of a global batch: ranks times accumulation.
        least: The smallest number of ranks that the job allows.
        most: The largest.
    """
    return tuple(n for n in range(least, min(most, micro_batches) + 1) if micro_batches % n == 0)


def accumulation(micro_batches: int, ranks: int) -> int:
    """Return how many micro-batches each rank accumulates for one global batch.

    Args:
        micro_batches: Micro-batches of a global batch.
        ranks: The number of ranks.

    Raises:
        ValueError: The number of ranks does not divide them.
    """
    each, rest = divmod(micro_batches, ranks)
    if rest or not each:
        allowed = ", ".join(map(str, sizes(micro_batches, 1, micro_batches)))
        reason = (
            f"{ranks} workers cannot share the {micro_batches} micro-batches of one global batch "
            f"equally; give the job one of {allowed}"
        )
        raise ValueError(reason)
    return each


def steps(batches: int, ranks: int, each: int, *, drop_last: bool = False) -> int:
    """Return the steps of an optimizer in one pass over the data.

    Args:
        batches: Micro-batches of one pass, over all ranks.
        ranks: The number of ranks.
        each: Micro-batches that a rank accumulates.
        drop_last: Whether the micro-batches that are not enough for every rank are left out. Else
            the pass is filled up with its first ones.
    """
    turns = batches // ranks if drop_last else -(-batches // ranks)
    return max(-(-turns // each), 1)


def random_of(rank: int, ranks: int) -> int:
    """Return which rank's random generators a rank goes on with, after a change of the size.

    Each goes on with its own. One that there was not has those of the rank that it would be if
    the ranks were dealt out in turn.

    Args:
        rank: A rank of the new gang.
        ranks: How many ranks the old gang had.
    """
    return rank % ranks
