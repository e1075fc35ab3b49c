"""The model of an elastic job: DistributedDataParallel while there are several ranks, else itself.

Gradients are summed over the ranks, each weighted by its share of the global batch, so that a loss
that is a mean over the rank's samples gives the gradient of the mean over the global batch, however
many ranks there are and however uneven their shares.
"""

# Annotations stay objects here: PyTorch looks at those of a communication hook.

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from skep_job.elastic.parts import Seat


class ElasticModel(nn.Module):
    """A thin wrapper around `module`; with `no_sync` as DistributedDataParallel has it.

    Under `no_sync` all micro-batches of a mini-batch must be of one size, because the weight is
    that of the last.
    """

    def __init__(
        self, module: nn.Module, weight: Callable[[], float], options: dict[str, Any]
    ) -> None:
        super().__init__()
        self.module = module
        self._weight = weight
        self._options = options
        self._inner: list[DistributedDataParallel] = []  # A list: it is no submodule.
        self.unsynced = False
        """Whether the gradients are this rank's alone, accumulated under `no_sync`."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Run the model on this rank's share."""
        if self.unsynced and torch.is_grad_enabled():
            # The gradients of this forward are reduced, and the accumulated ones with them.
            self.unsynced = not self._inner[0].require_backward_grad_sync
        return (self._inner[0] if self._inner else self.module)(*inputs, **named)

    def train(self, mode: bool = True) -> "ElasticModel":
        """Set the mode of all there is."""
        super().train(mode)
        for inner in self._inner:
            inner.train(mode)  # type: ignore[no-untyped-call]
        return self

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients without an all-reduce.

        Until they are reduced, the gang does not change its size and stores no checkpoint: what
        has been accumulated is on each rank of this gang, and on no single one.
        """
        if not self._inner:
            yield
            return
        with self._inner[0].no_sync():
            self.unsynced = True
            yield

    def release(self) -> None:
        """Let go of the process group."""
        self._inner.clear()

    def rebuild(self, seat: "Seat", *, first: bool) -> None:
        """Take up the group that is there. The `first` time every rank gets rank 0's values."""
        self._inner.clear()
        if seat.world == 1:
            return
        inner = DistributedDataParallel(self.module, init_sync=first, **self._options)
        inner.register_comm_hook(None, self._weigh)
        inner.train(self.training)  # type: ignore[no-untyped-call]
        self._inner.append(inner)

    def _weigh(
        self,
        _state: None,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        tensor = bucket.buffer().mul_(self._weight())
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        future: torch.futures.Future[Any] = work.get_future()
        return future.then(_first)


def _first(future: torch.futures.Future[Any]) -> torch.Tensor:
    tensor: torch.Tensor = future.value()[0]
    return tensor
