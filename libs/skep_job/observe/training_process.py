"""Observes whichever process of a job's command turns out to train.

A command may be a shell script that starts a launcher that starts ranks that start loaders'
workers. Each Python among them waits for PyTorch's optimizers or data loaders to be imported, and
reports from its first mini-batch on: launchers, workers and tools never do. By then it is also
known which of the ranks the process is.
"""

from __future__ import annotations

import os
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
