"""The default process group of an elastic gang: made, left, and made again."""

from __future__ import annotations

import gc
from datetime import timedelta
from typing import Any

GROUP_TIMEOUT_S = 1_800.0
"""Of collectives while training: PyTorch's own for gloo."""
START_S = 600.0
"""Ranks of a gang start together, but a cold import may take minutes on a busy node."""


def open_first(backend: str, store: str, prefix: str, rank: int, world: int) -> None:
    """Form the first group of a gang.

    Args:
        backend: The backend; empty: torch's choice for the device.
        store: The host:port of the gang's store; empty: the group is formed as `torchrun`'s ranks
            do it, and the arguments below have no effect.
        prefix: The beginning of the keys in the store.
        rank: The place of this process.
        world: How many ranks there are.

    Raises:
        ValueError: The store is no address.
        RuntimeError: The others do not come.
    """
    import torch.distributed as dist
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    if not store:
        dist.init_process_group(backend_of(backend))
        return
    host, _, port = store.rpartition(":")
    if not port.isdecimal():
        reason = f"SKEP_STORE is {store!r}, expected host:port"
        raise ValueError(reason)
    wait = timedelta(seconds=START_S)
    server = TCPStore(host, int(port), is_master=False, timeout=wait)
    form(backend, PrefixStore(prefix, server), rank, world, START_S)


def backend_of(name: str) -> str:
    """Return the backend of that name, or torch's choice for the device if it is empty."""
    import torch

    return name or ("nccl" if torch.cuda.is_available() else "gloo")


def form(backend: str, store: Any, rank: int, world: int, wait_s: float) -> None:
    """Make the default group; collectives in it then have PyTorch's long timeout again.

    Args:
        backend: The backend; empty: torch's choice for the device.
        store: The store of torch in which the members meet.
        rank: The place of this process.
        world: How many ranks there are.
        wait_s: How long the others may take to come (seconds).

    Raises:
        RuntimeError: The others do not come.
    """
    import torch.distributed as dist

    dist.init_process_group(
        backend_of(backend),
        store=store,
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=wait_s),
    )
    # A short timeout is right for meeting, and wrong for a mini-batch that one rank is slow at.
    set_timeout = getattr(dist.distributed_c10d, "_set_pg_timeout", None)
    if set_timeout is not None:
        set_timeout(timedelta(seconds=GROUP_TIMEOUT_S))


def destroy() -> None:
    """Leave the default group, if there is one."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def warm_up(backend: str, *, split: bool = False) -> None:
    """Make what the first group and the first wrapped model of a process take seconds for.

    Args:
        backend: The backend; empty: torch's choice for the device.
        split: Whether the model will be split by FSDP2, and not copied to every rank.
    """
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(backend_of(backend), store=store, rank=0, world_size=1)
    device = "cuda" if backend_of(backend) == "nccl" else "cpu"
    model: torch.nn.Module = torch.nn.Linear(2, 2).to(device)
    if split:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    else:
        model = DistributedDataParallel(model)
    model(torch.ones(1, 2, device=device)).sum().backward()
    if split:
        torch.optim.Adam(model.parameters()).step()
    del model
    gc.collect(0)
    destroy()
