"""The allocator's behaviour: `machine` decides, `jobs` says how lives go, `dispatch` acts."""

from skep.machines.allocator.keep import Kept
from skep.machines.allocator.machine import AllocatorMachine

__all__ = ["AllocatorMachine", "Kept"]
