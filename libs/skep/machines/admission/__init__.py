"""Admission's behaviour: `machine` decides, `hardware` says what can never run."""

from skep.machines.admission.machine import KEY_CHARACTERS_MAX, AdmissionMachine, Kept

__all__ = ["KEY_CHARACTERS_MAX", "AdmissionMachine", "Kept"]
