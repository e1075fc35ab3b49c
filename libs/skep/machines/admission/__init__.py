"""Admission's behaviour: `machine` decides, `hardware` says what can never run.

`promising` answers to deadlines.
"""

from skep.machines.admission.machine import KEY_CHARACTERS_MAX, AdmissionMachine, Kept
from skep.machines.admission.promising import HEARD
from skep.wire.array_gate import ArrayBroken, ArrayEligible
from skep.wire.facts import CellsSet, JobBound, JobEnded, NodeAdded

__all__ = ["HEARD_OF_ALLOC", "KEY_CHARACTERS_MAX", "AdmissionMachine", "Kept"]

HEARD_OF_ALLOC = (CellsSet, JobBound, JobEnded, NodeAdded, ArrayEligible, ArrayBroken, *HEARD)
"""The allocator's facts that it decides on."""
