"""The allocator's behaviour: `machine` decides, `skep.ledger` has the state, `outbox` commands."""

from skep.ledger.snapshot import Kept
from skep.machines.allocator.machine import AllocatorMachine
from skep.wire.array import ArrayAdmitted, ArrayOver, TasksRetried
from skep.wire.changes import ChangeAsked
from skep.wire.facts import Admitted, CancelAsked

__all__ = ["HEARD_OF_ADMISSION", "AllocatorMachine", "Kept"]

HEARD_OF_ADMISSION = (Admitted, CancelAsked, ChangeAsked, ArrayAdmitted, TasksRetried, ArrayOver)
"""Admission's facts that it decides on."""
