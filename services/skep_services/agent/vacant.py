"""Whether a run has anything on its devices. One that has nothing can leave them by being frozen.

No help of the driver is needed for that: a notebook whose kernels have not touched their GPU, or
any run on CPU slots, which are no devices. What is not known counts as use.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from skep_services.adapters.devices import Devices
from skep_services.agent import proc

DEVICE_FILES = "/dev/nvidia"
"""How the files begin that a process with something on a GPU has open."""


def trouble_of(devices: Devices, wanted: Sequence[int], token: str) -> str:
    """Return what a run has on its devices, in words; empty: nothing. It takes some milliseconds.

    Args:
        devices: The node's devices.
        wanted: Those of the run, by index.
        token: The run.
    """
    real = bool(devices.nodes(wanted))
    seen = {one.index: one for one in devices.look()}
    for index in wanted:
        state = seen.get(index)
        if state is None and real:
            return f"device {index} does not tell which processes use it"
        for one in () if state is None else state.processes:
            whose = "its" if proc.run_named(proc.environ(one.pid)) == token else "another's"
            return f"{whose} process {one.pid} uses device {index}"
    return _opened(token) if real else ""


def _opened(token: str) -> str:
    """Return which process of a run has a device's file open, in words; empty: none."""
    for pid in proc.processes():
        if proc.run_named(proc.environ(pid)) != token:
            continue
        try:
            files = os.scandir(f"/proc/{pid}/fd")
        except OSError:
            continue  # It has ended.
        with files:
            if any(_leads_to(each.path).startswith(DEVICE_FILES) for each in files):
                return f"its process {pid} has a device open"
    return ""


def _leads_to(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""  # It was closed.
