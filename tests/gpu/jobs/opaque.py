"""Fills device memory through the driver alone, and reads it again and again: no PyTorch, no loop
that Skep could see. `opaque.py NOTES UNTIL BYTES`; where there is no driver it only writes notes.
"""

import ctypes
import os
import sys
import time
from typing import Any

PATTERN = 0xA5
WINDOW = 1 << 20


class Memory:
    """Some memory of the first device."""

    def __init__(self, driver: Any, size: int) -> None:
        self.driver, self.size = driver, size
        self.at, context = ctypes.c_uint64(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.call("cuMemAlloc_v2", ctypes.byref(self.at), ctypes.c_size_t(size))
        self.call("cuMemsetD8_v2", self.at, ctypes.c_ubyte(PATTERN), ctypes.c_size_t(size))

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.driver, name)(*arguments)
        if status:
            sys.exit(f"{name} returned {status}")

    def intact(self) -> bool:
        """Return whether the first and the last bytes are what was written."""
        here = (ctypes.c_ubyte * WINDOW)()
        for offset in (0, self.size - WINDOW):
            there = ctypes.c_uint64(self.at.value + offset)
            self.call("cuMemcpyDtoH_v2", here, there, ctypes.c_size_t(WINDOW))
            if bytes(here) != bytes([PATTERN]) * WINDOW:
                return False
        return True


notes, until, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
memory: Memory | None = None
try:
    memory = Memory(ctypes.CDLL("libcuda.so.1"), size)
except OSError:
    pass  # A dry run.
with open(notes, "a", buffering=1) as file:
    while not os.path.exists(until):
        word = "intact" if memory is None or memory.intact() else "lost"
        file.write(f"1 {os.getpid()} {time.monotonic():.4f} {word}\n")
        # tidy: allow sleep because it paces notes
        time.sleep(0.01)
