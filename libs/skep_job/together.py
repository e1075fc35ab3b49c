"""What the ranks of a gang have to do after the same mini-batch, agreed on without a clock.

Ranks that average gradients are in step, but an order or a timer reaches one a moment before the
other, and a rank that stops alone hangs all. So every few mini-batches, as often as half a second
is, they reduce four numbers over a process group of their own; whoever has something due says so
there, and all see the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from skep_job.checkpoints import Checkpoints, Entry
from skep_job.control import Control


class Agreed(NamedTuple):
    """What all ranks do at this boundary."""

    checkpoint: bool = False
    end: bool = False


class Together:
    """The agreement of one rank with the others; of a single process with itself."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self.alone = True
        """Whether there are no other ranks to agree with."""

    def begin(self) -> None:
        """Find the other ranks. Called by all ranks at the same place of the script."""

    def boundary(self, *, checkpoint: bool, end: bool) -> Agreed:
        """Return what is to be done after this mini-batch, the same on every rank."""
        return Agreed(checkpoint, end)

    def common(self, entries: list[Entry], checkpoints: Checkpoints) -> Iterator[Entry]:
        """Yield, the newest first, those of this rank's entries that every rank has."""
        yield from (entry for entry in entries if checkpoints.is_whole(entry))

    def all_well(self, well: bool) -> bool:
        """Return whether all ranks are well."""
        return well
