"""Admission's behaviour: `machine` decides, `hardware` says what can never run.

`promising` answers to deadlines.
"""

from skep.machines.admission.machine import KEY_CHARACTERS_MAX, AdmissionMachine, Kept
from skep.machines.admission.promising import HEARD

__all__ = ["HEARD", "KEY_CHARACTERS_MAX", "AdmissionMachine", "Kept"]
