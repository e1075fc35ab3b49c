"""What the ranks of a gang have to do after the same mini-batch, agreed on without a clock.

Ranks that average gradients are in step, but an order or a timer reaches one a moment before the
other, and a rank that stops alone hangs all. So every few mini-batches, four times a second if they
are short, the ranks reduce a few numbers over a process group of their own. A rank that has
something due says so there, and all see the same: an order is done once every rank has it, a
checkpoint or the end as soon as one asks for it, a copy in memory once every rank is ready for it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from skep_job.link.orders import Control, Message, describe
from skep_job.observe.reporter import complain
from skep_job.state.checkpoint_folder import Checkpoints, Entry

EVERY_NS = 250_000_000
"""How often ranks agree: an order waits that long at most, or for one mini-batch."""
STRIDE_MAX = 64
"""Mini-batches between two agreements, however short they are."""
HELD = "checkpoint", "move"
"""Kinds of orders that are done once every rank has them."""
OFFERS = 16
"""Checkpoints of a rank that the others are told of: far more than are kept."""


class Agreed(NamedTuple):
    """What all ranks do at this boundary."""

    order: Message | None = None
    checkpoint: bool = False
    end: bool = False
    copy: bool = False
    """Whether the state is copied to the memory of the gang's nodes."""
    copied: int = -1
    """The mini-batches after which the last copy of every rank was made; below 0: of not every one,
    or these are not the same."""


class Together:
    """The agreement of one rank with the others; of a single process with itself."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._group: Any = None
        self._many = False
        """Whether there were others when the ranks were last found; the reporter's thread reads it.
        While they are about to be others there is no group, and yet nothing to be done alone."""
        self._stride = 1
        self._left = 1  # boundaries until the next agreement
        self._since_ns = 0

    @property
    def alone(self) -> bool:
        """Whether there are no other ranks to agree with."""
        return self._group is None

    def begin(self) -> None:
        """Find the other ranks. Called by all of them at the same place of the script."""
        self._many = False
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available():
            return
        if not distributed.is_initialized() or distributed.get_world_size() < 2:
            return
        self._group = distributed.new_group(backend="gloo")
        self._many = True
        self._stride = self._left = 1  # Whoever has just joined counts from here too.
        for kind in HELD:
            self._control.at_once(kind, self._hold)
        self._since_ns = time.monotonic_ns()

    def leave(self) -> None:
        """Let go of the group: the ranks are about to be others."""
        self._group = None

    def left_over(self) -> Message | None:
        """Return, once, the order that came while there were other ranks, which have left since.

        Returns:
            None if there is no such order.
        """
        held = self._control.held
        if held is None or self._many:
            return None
        self._control.held = None
        return held

    def boundary(
        self,
        *,
        checkpoint: bool,
        end: bool,
        copy: bool = False,
        copied: int = -1,
        own_gradients: Callable[[], bool] = lambda: False,
    ) -> Agreed:
        """Return what is to be done after this mini-batch, the same on every rank.

        Args:
            checkpoint: Whether this rank has a checkpoint to write.
            end: Whether this rank was told to end.
            copy: Whether this rank is ready to copy its state to memory.
            copied: The mini-batches after which this rank has made its last copy; below 0: it
                failed, or is on its way.
            own_gradients: Says whether this rank has gradients of its own, which no other knows:
                then nothing is done, and it is asked again after the next mini-batch.
        """
        self._left -= 1
        if self._left > 0:
            return Agreed()
        held = self._control.held
        order = _order(held)
        now = time.monotonic_ns()
        step_ns = (now - self._since_ns) // self._stride
        mine = [order, -order, int(checkpoint), int(end), step_ns, -int(copy), copied, -copied]
        mine.append(int(own_gradients()))
        numbers = self._reduce(mine, "MAX")
        if numbers is None:
            return Agreed(None, checkpoint, end)
        highest, lowest = numbers[0], -numbers[1]
        self._stride = min(max(EVERY_NS // max(numbers[4], 1), 1), STRIDE_MAX)
        self._left = self._stride
        self._since_ns = time.monotonic_ns()
        if numbers[8] > 0:
            self._stride = self._left = 1
            return Agreed()
        agreed = Agreed(None, numbers[2] > 0, numbers[3] > 0, numbers[5] < 0)
        if numbers[6] == -numbers[7]:
            agreed = agreed._replace(copied=numbers[6])
        if 0 < lowest == highest:
            self._control.held = None
            return agreed._replace(order=held)
        return agreed

    def common(self, entries: list[Entry], checkpoints: Checkpoints) -> Iterator[Entry]:
        """Yield, the newest first, those of this rank's entries that every rank has.

        Without a process group that can be seen only where all files are in one folder.

        Args:
            entries: This rank's checkpoints, the newest first.
            checkpoints: The folder that they are in.
        """
        if self._group is None:
            yield from (entry for entry in entries if checkpoints.is_whole(entry))
            return
        offers = [[each.attempt, each.step] for each in entries[:OFFERS]]
        offers += [[-1, -1]] * (OFFERS - len(offers))
        everybody = self._gather([number for offer in offers for number in offer])
        for entry in entries[:OFFERS]:
            wanted = (entry.attempt, entry.step)
            pairs = [list(zip(each[::2], each[1::2], strict=True)) for each in everybody]
            if all(wanted in each for each in pairs):
                yield entry

    def of_all(self, numbers: list[int]) -> list[list[int]]:
        """Return what every rank gives, by rank; this one's alone where there are no others."""
        return [numbers] if self._group is None else self._gather(numbers)

    def all_well(self, well: bool) -> bool:
        """Return whether all ranks are well.

        Args:
            well: Whether this rank is.

        Returns:
            False also where the other ranks cannot be asked any more.
        """
        if self._group is None:
            return well
        numbers = self._reduce([int(well)], "MIN")
        return numbers == [1]

    def _hold(self, message: Message) -> object:
        """Keep an order until all ranks have it; on the reporter's thread.

        The mini-batch that it names does not matter: each node names its own, and a rank that is
        past it would leave the others alone in a collective.
        """
        if not self._many:
            return False  # The last one of a gang that has shrunk, since it asked for these.
        if self._control.stands:
            return False  # It stands where the others do.
        self._control.held = message
        return True

    def _reduce(self, numbers: list[int], how: str) -> list[int] | None:
        import torch
        from torch import distributed

        tensor = torch.tensor(numbers, dtype=torch.int64)
        try:
            distributed.all_reduce(tensor, getattr(distributed.ReduceOp, how), self._group)
        except Exception as error:
            complain(f"the other ranks cannot be asked any more: {describe(error)}")
            self._group = None
            return None
        return [int(number) for number in tensor.tolist()]

    def _gather(self, numbers: list[int]) -> list[list[int]]:
        import torch
        from torch import distributed

        mine = torch.tensor(numbers, dtype=torch.int64)
        world = distributed.get_world_size(self._group)
        all_ = [torch.empty_like(mine) for _ in range(world)]
        distributed.all_gather(all_, mine, self._group)
        return [[int(number) for number in each.tolist()] for each in all_]


def _order(message: Message | None) -> int:
    """Return a number above 0 for each kind of order, 0 for none.

    Each node numbers its orders by itself.
    """
    return 0 if message is None else 1 + HELD.index(message["type"])
