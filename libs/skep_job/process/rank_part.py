"""Which process of its rank this one is, and how many ranks are beside it."""

from __future__ import annotations

import sys
from collections.abc import Mapping


def parts(environ: Mapping[str, str]) -> tuple[int, int]:
    """Return which process of its Skep rank this one is, and of how many.

    `torchrun --nproc-per-node 4` makes four processes of one of Skep's ranks; SKEP_WORLD, which the
    agent sets and no launcher changes, tells the two apart.

    Returns:
        The number from 0, and the count; (0, 1) if ranks and processes do not go together.
    """
    rank, world = _own(environ, "RANK", 0), _own(environ, "WORLD_SIZE", 1)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, world = distributed.get_rank(), distributed.get_world_size()
    ranks = _own(environ, "SKEP_WORLD", world)
    if not ranks or world % ranks:
        return 0, 1
    count = world // ranks
    return (rank % count, count) if count > 1 else (0, 1)


def ranks_here(environ: Mapping[str, str]) -> int:
    """Return how many ranks this node has, 1 if nothing says so."""
    return max(_own(environ, "LOCAL_WORLD_SIZE", 1), 1)


def _own(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else default
