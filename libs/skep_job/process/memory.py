"""How much memory the process holds, without importing anything the script did not."""

from __future__ import annotations

import os
import sys

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def memory_bytes() -> int:
    """Return the bytes that torch holds on CUDA devices, or the resident set if it uses none.

    CUDA memory is what torch's allocator has given out on all devices the process sees.

    Returns:
        0 if neither is known.
    """
    try:
        held = _cuda_bytes()
        return _resident_bytes() if held is None else held
    except Exception:
        return 0  # A number for a chart is not worth more than that.


def _cuda_bytes() -> int | None:
    # Taken from sys.modules and vars(), because an attribute of a half-imported torch may import.
    cuda = sys.modules.get("torch.cuda")
    is_initialized = vars(cuda).get("is_initialized") if cuda is not None else None
    if cuda is None or is_initialized is None or not is_initialized():
        return None
    # The device that is current in the training thread is not the one that is current here.
    return sum(int(cuda.memory_allocated(device)) for device in range(cuda.device_count()))


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES
