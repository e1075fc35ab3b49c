"""The allocator's behaviour: `machine` decides, `skep.ledger` has the state, `outbox` commands."""

from skep.ledger.snapshot import Kept
from skep.machines.allocator.machine import AllocatorMachine

__all__ = ["AllocatorMachine", "Kept"]
