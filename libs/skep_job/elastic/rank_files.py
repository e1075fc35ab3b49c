"""The files that the ranks of a library's run have written, from rank to rank.

Names of files and their bytes, as tensors of uint8. Every function is called by all ranks alike.
"""

from __future__ import annotations

import sys
from typing import Any

from skep_job.observe.reporter import complain
from skep_job.state.transfer import Broken


def of_all_ranks(found: dict[str, Any], group: Any = None) -> dict[str, Any]:
    """Return the files of every rank: a library reads on each what it wrote on the first.

    Args:
        found: The files of this rank. Called by all ranks.
        group: A process group of gloo's; None: one is made.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return found
    if distributed.get_world_size() < 2:
        return found
    import torch

    group = group or distributed.new_group(backend="gloo")
    mine = {name: data.numel() for name, data in found.items()}
    all_: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(all_, mine, group=group)
    whole = dict(found)
    for rank, sizes in enumerate(all_):
        for name, size in sizes.items():
            if all(name in each for each in all_) or any(name in each for each in all_[:rank]):
                continue  # Everybody has it, or it has been sent.
            data = found[name] if name in mine and rank == distributed.get_rank() else None
            data = torch.empty(size, dtype=torch.uint8) if data is None else data
            if size:
                distributed.broadcast(data, rank, group=group)
            whole.setdefault(name, data)
    complain(f"the checkpoint is of {len(all_)} ranks, {len(whole)} files")
    return whole


def with_others(files: dict[str, Any], failed: str, group: Any) -> dict[str, Any]:
    """Return the files of a rank; on the first one, those too that only others have.

    Args:
        files: What the library has written on this rank. Called by all ranks of the group.
        failed: Why this rank has none; empty: it has them.
        group: A process group of gloo's, of all ranks.

    Raises:
        Broken: A rank has none; on every rank alike.
    """
    from torch import distributed

    world = distributed.get_world_size(group)
    first = distributed.get_rank(group) == 0
    written: list[Any] = [None] * world
    distributed.all_gather_object(written, (failed, sorted(files)), group=group)
    for rank, (why, _) in enumerate(written):
        if why:
            reason = f"rank {rank} cannot write its files: {why}"
            raise Broken(reason)
    firsts = set(written[0][1])
    mine = {name: data for name, data in files.items() if name not in firsts}
    gathered: list[Any] | None = [None] * world if first else None
    distributed.gather_object(mine, gathered, 0, group=group)
    for each in gathered or []:
        files = {**each, **files}
    return files
