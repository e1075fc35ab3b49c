"""Writes checkpoints of split state, of state on GPUs, and copies for other nodes, on a thread.

    boundary            what a mini-batch may change is copied; the training goes on
    forward, backward   the rest is copied beside it: only an optimizer's step changes that
    optimizer's step    waits until the copy is made
    after that          a thread writes the copy to the disk

The copy is made by the stager of `torch.distributed.checkpoint`, which keeps its memory from one
checkpoint to the next. A script that changes a parameter without an optimizer while it is copied
gets no checkpoint, and is told so. State on GPUs that is not split is copied as a whole at the
boundary: that is quick, and no script can change it meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from skep_job.state.piece import local_of
from skep_job.state.snapshot import Snapshot
from skep_job.state.state_tree import Tensors

SMALL_BYTES = 64 * 1024
"""Tensors up to this size are copied at the boundary."""

Done = Callable[[Any, int], None]
"""Takes what the writer returned or raised, and for how long the training stood still (ns)."""


class Changed(RuntimeError):  # noqa: N818  a name for what happened
    """The script changed the state while it was copied."""


class Later:
    """One checkpoint at a time. Public methods are for the training thread."""

    def __init__(self, stager: Callable[[], Any] | None = None) -> None:
        """`stager` makes what copies tensors; None: PyTorch's."""
        self._make_stager = stager or _stager
        self._pool: ThreadPoolExecutor | None = None
        self._stager: Any = None
        self._writing: Future[None] | None = None
        self._copied = threading.Event()
        self._copied.set()
        self._waited_ns = 0
        self._lasts = False

    @property
    def busy(self) -> bool:
        """Whether something is copied or written."""
        return self._writing is not None and not self._writing.done()

    def begin(
        self,
        state: Snapshot,
        tracked: dict[str, Any],
        write: Callable[[Snapshot], Any],
        done: Done,
        since_ns: int,
        *,
        lasts: bool = True,
        at_once: bool = False,
    ) -> None:
        """Begin to copy and write a state.

        Args:
            state: The state; its tensors are the job's own.
            tracked: The tracked things by name.
            write: It writes a copy of the state, on a thread of this object's.
            done: It is told on that thread what came of it.
            since_ns: Since when the training stands still, as `time.monotonic_ns` says it.
            lasts: Whether `settle` waits until it is written, and not only until it is copied.
            at_once: Whether all of it is copied before this returns.
        """
        self._lasts = True
        self.settle()
        self._lasts = lasts
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "skep-checkpoint")
            self._stager = self._make_stager()
            _before_steps(self._await_copy)  # For good: the thread must not take it away.
        steady = _of_optimizers(tracked)
        late = {
            name: tensor
            for name, tensor in state.tensors.items()
            if (tensor.data_ptr() in steady or (at_once and tensor.device.type != "cpu"))
            and tensor.numel() * tensor.element_size() > SMALL_BYTES
        }
        copied = {n: t.detach().clone() for n, t in state.tensors.items() if n not in late}
        ready = _on_host(self._stager, late) if at_once else None
        if ready is None:
            self._copied.clear()
        self._waited_ns = 0
        versions = {name: tensor._version for name, tensor in late.items()}

        def work() -> None:
            outcome: Any
            try:
                staged = ready if ready is not None else self._staged(late, versions)
                tensors = {n: staged[n] if n in staged else copied[n] for n in state.tensors}
                outcome = write(Snapshot(state.plain, tensors))
            except BaseException as error:
                outcome = error
            done(outcome, stood_ns + self._waited_ns)

        stood_ns = time.monotonic_ns() - since_ns
        self._writing = self._pool.submit(work)

    def _staged(self, late: Tensors, versions: dict[str, int]) -> Tensors:
        """Return copies, of the versions that the tensors had at the boundary. Raises `Changed`."""
        try:
            staged = _on_host(self._stager, late)
            _check_unchanged(late, versions)
        finally:
            self._copied.set()
        return staged

    def settle(self) -> None:
        """Wait until the job's own tensors are not read any more, and what lasts is written."""
        if self._writing is not None and not self._lasts:
            self._copied.wait()
        elif self._writing is not None:
            self._writing.result()
            self._writing = None

    def _await_copy(self, *_: object) -> None:
        if not self._copied.is_set():
            since_ns = time.monotonic_ns()
            self._copied.wait()
            self._waited_ns += time.monotonic_ns() - since_ns


class _Clones:
    """What copies tensors where PyTorch has no stager yet."""

    def stage(self, tensors: Tensors) -> Tensors:
        """Return copies in the host's memory."""
        return {name: each.detach().to("cpu", copy=True) for name, each in tensors.items()}


def _stager() -> Any:
    import torch

    try:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    except ImportError:
        return _Clones()
    cuda = torch.cuda.is_available()
    try:
        return DefaultStager(
            StagingOptions(
                use_pinned_memory=cuda,
                use_shared_memory=False,
                use_async_staging=False,  # It is on a thread of its own already.
                use_non_blocking_copy=cuda,
            )
        )
    except (AssertionError, TypeError, ValueError):
        return _Clones()  # The options have other names in this version.


def _on_host(stager: Any, tensors: Tensors) -> Tensors:
    """Return copies in the host's memory, which are complete."""
    staged: Tensors = stager.stage(tensors)
    import torch

    # The stager waits for the current device only.
    for device in {each.device for each in tensors.values() if each.device.type == "cuda"}:
        torch.cuda.synchronize(device)
    return staged


def _before_steps(wait: Callable[..., None]) -> None:
    """Have `wait` called before every step of any optimizer."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    register_optimizer_step_pre_hook(wait)


def _of_optimizers(tracked: dict[str, Any]) -> set[int]:
    """Return the addresses of what only an optimizer's step changes: parameters and its state."""
    found: set[int] = set()
    for part in tracked.values():
        for group in getattr(part, "param_groups", None) or ():
            for parameter in group["params"]:
                tensors = [parameter, *part.state.get(parameter, {}).values()]
                found |= {
                    local_of(each).data_ptr() for each in tensors if hasattr(each, "data_ptr")
                }
    return found


def _check_unchanged(tensors: Tensors, versions: dict[str, int]) -> None:
    changed = [name for name, tensor in tensors.items() if tensor._version != versions[name]]
    if changed:
        reason = (
            f"the script changed {changed[0]} while it was copied, and not by an optimizer's step; "
            "do that within run.uninterruptible(), or store without checkpoint_every"
        )
        raise Changed(reason)
