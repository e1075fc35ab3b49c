"""One rank of a gang that says what of its mini-batches is its own: `own_times.py KIND HOW RANK N`.

KIND is `ddp` or `fsdp`. Of the last rank the forward pass sleeps or works, or its data loader
sleeps, for 20 ms (HOW: `forward`, `work`, `load`), or nothing does (`none`).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator

from skep_job.observe.step_counter import Tally
from skep_job.observe.torch_hooks import TorchHooks

tally = Tally()
tally.own.turn(on=True)
TorchHooks(tally).install()

import torch  # noqa: E402  the hooks wait for this import
from torch import Tensor, distributed, nn  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset  # noqa: E402

KIND, HOW, RANK, WORLD = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
LAGS_S, STEPS = 0.02, 400 if HOW == "none" else 40
"""One mini-batch in 20 ms is measured, and enough of them are to be."""
SLOW = RANK == WORLD - 1


class Rows(IterableDataset[Tensor]):
    """Rows of which a mini-batch takes its time, where the loader is slow."""

    def __iter__(self) -> Iterator[Tensor]:
        """Yield them."""
        for _ in range(STEPS):
            if SLOW and HOW == "load":
                # tidy: allow sleep because the loading itself is slow
                time.sleep(LAGS_S)
            yield torch.ones(16, 64)


def lag() -> None:
    """Be slow in the forward pass."""
    if SLOW and HOW == "forward":
        # tidy: allow sleep because the training itself is slow
        time.sleep(LAGS_S)
    until = time.perf_counter() + (LAGS_S if SLOW and HOW == "work" else 0)
    while time.perf_counter() < until:
        pass


def main() -> None:
    """Train, and print the medians."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=os.environ["INIT"], rank=RANK, world_size=WORLD
    )
    net = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)], nn.BatchNorm1d(64))
    model: nn.Module = net
    if KIND == "fsdp":
        from torch.distributed.fsdp import fully_shard

        fully_shard(net, mesh=distributed.init_device_mesh("cpu", (WORLD,)))
    else:
        model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    for rows in DataLoader(Rows(), batch_size=None):
        lag()
        model(rows).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    own = tally.own.medians()
    told = own.told() if own is not None else {}
    print(json.dumps({**told, "step_ns": tally.count().step_ns, "failure": tally.failure}))
    distributed.barrier()


main()
