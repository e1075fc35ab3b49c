"""Observes whichever process of a job's command turns out to train.

A command may be a shell script that starts a launcher that starts ranks that start loaders'
workers. Each Python among them waits for PyTorch's optimizers or data loaders to be imported, and
reports from its first mini-batch on: launchers, workers and tools never do. By then it is also
known who the process is among the ranks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import ModuleType

from skep_job.observe.import_watcher import ImportWatcher
from skep_job.process import ending

OPTIMIZERS = "torch.optim.optimizer"
LOADERS = "torch.utils.data.dataloader"


def watch() -> None:
    """Observe this process from the import of PyTorch on."""
    ending.arm()
    watcher = ImportWatcher({})

    def observe(_: ModuleType) -> None:
        watcher.remove()
        from skep_job.link.orders import describe
        from skep_job.observe.observation import boot_at_first_step
        from skep_job.observe.reporter import complain

        try:
            outcome = boot_at_first_step(os.environ)
            why = outcome.why if outcome is not None else ""
        except Exception as error:
            why = describe(error)
        if why:
            complain(f"not observed: {why}")

    watcher.add({OPTIMIZERS: observe, LOADERS: observe})
    watcher.install()


def parts(environ: Mapping[str, str]) -> tuple[int, int]:
    """Return which process of its Skep rank this one is, and of how many.

    `torchrun --nproc-per-node 4` makes four processes of one of Skep's ranks; SKEP_WORLD, which the
    agent sets and no launcher changes, tells the two apart.
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


def _own(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else default
