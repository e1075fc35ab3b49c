"""Attaches a tally to PyTorch when, and only when, the script imports PyTorch."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from skep_job.link.orders import Control
from skep_job.observe.fingerprint import Fingerprint
from skep_job.observe.import_watcher import ImportWatcher
from skep_job.observe.step_counter import BACKWARDS_MIN, Tally, after_step
from skep_job.warm import recording

OPTIMIZERS = "torch.optim.optimizer"
LOADERS = "torch.utils.data.dataloader"
AUTOGRAD = "torch.autograd"
WORKERS = "torch.utils.data._utils.worker"
COLLECTIVES = "torch.distributed.distributed_c10d"
RESUMED_CHARS_MAX = 250
"""The bound of the field is 256."""


class TorchHooks:
    """The hooks of one tally. What goes wrong here stops the counting, never the script."""

    def __init__(
        self, tally: Tally, control: Control | None = None, can: Callable[[], list[str]] = list
    ) -> None:
        """`can` says what the job can do, and is asked at the first boundary of either kind."""
        self._tally = tally
        self._can = can
        self.more: tuple[str, ...] = ()
        """What the script's own library can do beside, told with the rest."""
        self._resumed = os.environ.get("SKEP_RESUME_NOTE", "")[:RESUMED_CHARS_MAX]
        self._control = control or Control()
        self._after_step = after_step(tally, self._control)
        self._optimizer_hook: Any = None
        self._loader_iterator: type | None = None
        self._original_next: object = None
        self._counting_next: object = None
        self._autograd: ModuleType | None = None
        self._original_backward: object = None
        self._counting_backward: object = None
        self._watcher = ImportWatcher(
            {
                OPTIMIZERS: self._on_optimizers,
                LOADERS: self._on_loaders,
                AUTOGRAD: self._on_autograd,
                COLLECTIVES: tally.own.hook_waits,
            }
        )
        tally.first_step = self._on_first_step
        self.fingerprint = Fingerprint()
        tally.joins = self.fingerprint.see_optimizer

    def install(self) -> None:
        """Watch for the imports of the modules to hook into."""
        self._watcher.install()

    def remove(self) -> None:
        """Stop watching and let go of the data loaders and of autograd."""
        self._watcher.remove()
        self._release_loaders()
        self._release_autograd()

    def hand_over(self) -> None:
        """Leave the counting to the script, which says itself when a mini-batch is done."""
        self.remove()
        if self._optimizer_hook is not None:
            self._optimizer_hook.remove()
            self._optimizer_hook = None
        self._tally.hand_over()

    def can(self) -> list[str]:
        """Return what can be done with this process without its help."""
        return [*self._can(), *self.more]

    def _on_optimizers(self, module: ModuleType) -> None:
        try:
            self._optimizer_hook = module.register_optimizer_step_post_hook(self._after_step)
        except Exception as error:
            self._tally.fail(f"hooking into {OPTIMIZERS}", error)

    def _on_loaders(self, module: ModuleType) -> None:
        self._tally.own.hook_loaders(module)
        if self._tally.steps or self._tally.backwards:
            return  # A better source is known already.
        try:
            iterator = module._BaseDataLoaderIter
            original = iterator.__next__
            counting = _counting(original, self._tally, self._control, self._on_batch)
            iterator.__next__ = counting
        except Exception as error:
            self._tally.fail(f"hooking into {LOADERS}", error)
            return
        self._loader_iterator = iterator
        self._original_next = original
        self._counting_next = counting

    def _on_autograd(self, module: ModuleType) -> None:
        self._tally.own.hook_backward(module)
        if self._tally.steps:
            return
        try:
            original = module.backward  # `Tensor.backward` calls it too.
            counting = _counting_backward(
                original, self._tally, self._control, self._on_first_backward
            )
            module.backward = counting  # type: ignore[attr-defined]
        except Exception as error:
            self._tally.fail(f"hooking into {AUTOGRAD}", error)
            return
        self._autograd, self._original_backward = module, original
        self._counting_backward = counting

    def _on_batch(self, batch: object) -> None:
        self.fingerprint.see_batch(batch, self._tally.batches)
        if self._tally.batches == 1:
            self._tell()

    def _on_first_backward(self) -> None:
        self._release_loaders()
        self._control.move_clock()
        self._tell()

    def _on_first_step(self) -> None:
        self._release_loaders()
        self._release_autograd()
        self._control.move_clock()
        self._tell()

    def _tell(self) -> None:
        try:
            resumed = {"resumed": self._resumed} if self._resumed else {}
            self._control.say("can", tier="observed", can=self.can(), **resumed)
            recording.record()
        except Exception as error:
            self._tally.fail("looking at what can be done", error)

    def _release_loaders(self) -> None:
        """Give the data loaders their own `__next__` back, unless other code replaced it too."""
        iterator = self._loader_iterator
        if iterator is not None and iterator.__dict__.get("__next__") is self._counting_next:
            iterator.__next__ = self._original_next  # type: ignore[attr-defined]
        self._loader_iterator = None

    def _release_autograd(self) -> None:
        """Give autograd its own `backward` back, unless other code replaced it too."""
        module = self._autograd
        if module is not None and module.__dict__.get("backward") is self._counting_backward:
            module.backward = self._original_backward  # type: ignore[attr-defined]
        self._autograd = None


def _counting_backward(
    original: Callable[..., Any], tally: Tally, control: Control, first: Callable[[], None]
) -> Callable[..., Any]:
    """Return `original`, `torch.autograd.backward`, with its calls counted.

    Its end is the boundary of scripts that update by hand: the graph is gone, and the gradients are
    there. Only the backward pass of scalars counts, and none that is made within another one, as
    activation checkpoints do. `first` is called when they begin to count.
    """
    inside = False

    @functools.wraps(original)
    def counting_backward(*args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if inside or tally.steps or tally.failure is not None or tally.source == "cooperative":
            return original(*args, **kwargs)
        inside = True
        try:
            outcome = original(*args, **kwargs)
        finally:
            inside = False
        try:
            if tally.steps or not _are_scalars(args[0] if args else kwargs["tensors"]):
                return outcome  # An optimizer has stepped within it, for example.
            if not tally.backwards and _is_worker():
                return outcome
            if not tally.end_backward():
                return outcome
            if tally.backwards == BACKWARDS_MIN:
                first()
        except Exception as error:  # Nothing may reach the user's training loop.
            tally.fail("backward hook", error)
        if control.due:
            control.boundary(tally.reached())
        return outcome

    counting_backward._torchdynamo_disable = True  # type: ignore[attr-defined]
    return counting_backward


def _are_scalars(tensors: Any) -> bool:
    if isinstance(tensors, (list, tuple)):
        return all(tensor.numel() == 1 for tensor in tensors)
    return bool(tensors.numel() == 1)


def _is_worker() -> bool:
    """Return whether this process is a worker of a data loader."""
    return getattr(sys.modules.get(WORKERS), "_worker_info", None) is not None


def _counting(
    original: Callable[[Any], Any], tally: Tally, control: Control, seen: Callable[[object], None]
) -> Callable[[Any], Any]:
    """Return `original`, a loader's `__next__`, with its batches counted.

    Asking for the next batch is the boundary of scripts that update by hand. `seen` is called with
    each batch.
    """

    @functools.wraps(original)
    def counting_next(self: Any) -> Any:
        if tally.failure is not None or tally.steps or tally.backwards:
            return original(self)
        if tally.source == "cooperative":  # Another call around this one kept it in place.
            return original(self)
        if control.due:
            tally.end_batch()
            control.boundary(tally.batches)
        try:
            batch = original(self)
        except StopIteration:
            tally.end_batch()
            raise
        tally.begin_batch()
        seen(batch)
        return batch

    return counting_next
