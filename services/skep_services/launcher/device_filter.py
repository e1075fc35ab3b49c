"""Which devices the processes of a control group may open.

In version 1 that is text for the devices controller. Version 2 asks a small program at each open
(BPF_PROG_TYPE_CGROUP_DEVICE); it is assembled here, one comparison after the other:

    for each rule:  kind differs, or major differs, or minor differs -> next rule;  return 1
    return 0

Linux, Documentation/bpf/prog_cgroup_device; the numbers are of linux/bpf.h. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Sequence

ANY = -1
ALWAYS = (
    (1, 3),  # null
    (1, 5),  # zero
    (1, 7),  # full
    (1, 8),  # random
    (1, 9),  # urandom
    (5, 0),  # tty
    (5, 2),  # ptmx
    (136, ANY),  # pts
)
"""What every program may open, as containers may."""

SYS_BPF = {"x86_64": 321, "aarch64": 280}
BPF_PROG_LOAD, BPF_PROG_ATTACH = 5, 8
BPF_PROG_TYPE_CGROUP_DEVICE, BPF_CGROUP_DEVICE = 15, 6
BPF_F_ALLOW_MULTI = 2
CHARACTER = 2
"""BPF_DEVCG_DEV_CHAR, in the low half of the context's first word."""

LDX_W, AND_IMM, JNE_IMM, MOV_IMM, EXIT = 0x61, 0x54, 0x55, 0xB7, 0x95
ENOSYS = 38


def legacy_rules(nodes: Sequence[tuple[int, int]]) -> list[str]:
    """Return what is written to `devices.allow`, after everything was denied.

    Args:
        nodes: The major and minor numbers of the devices of a job.
    """
    return [f"c {major}:{'*' if minor == ANY else minor} rw" for major, minor in (*ALWAYS, *nodes)]


def program(nodes: Sequence[tuple[int, int]]) -> bytes:
    """Return the instructions that let a group open these devices and those of ALWAYS."""
    code = [
        _instruction(LDX_W, 2, 1, 0, 0),  # r2 = kind and access
        _instruction(AND_IMM, 2, 0, 0, 0xFFFF),  # r2 = kind
        _instruction(LDX_W, 3, 1, 4, 0),  # r3 = major
        _instruction(LDX_W, 4, 1, 8, 0),  # r4 = minor
    ]
    for major, minor in (*ALWAYS, *nodes):
        checks = [(2, CHARACTER), (3, major)] + ([] if minor == ANY else [(4, minor)])
        for place, (register, wanted) in enumerate(checks):
            skipped = len(checks) - place - 1 + 2
            code.append(_instruction(JNE_IMM, register, 0, skipped, wanted))
        code += [_instruction(MOV_IMM, 0, 0, 0, 1), _instruction(EXIT, 0, 0, 0, 0)]
    code += [_instruction(MOV_IMM, 0, 0, 0, 0), _instruction(EXIT, 0, 0, 0, 0)]
    return b"".join(code)


def _instruction(operation: int, target: int, source: int, offset: int, value: int) -> bytes:
    return struct.pack("<BBhi", operation, source << 4 | target, offset, value)


def attach(folder: str, nodes: Sequence[tuple[int, int]]) -> int:
    """Let the processes of a group of version 2 open these devices only.

    Args:
        folder: The group.
        nodes: The major and minor numbers of the devices of a job.

    Returns:
        0, or the number of the error.
    """
    number = SYS_BPF.get(platform.machine())
    if number is None:
        return ENOSYS
    libc = ctypes.CDLL(None, use_errno=True)

    def call(command: int, attributes: bytes) -> int:
        held = ctypes.create_string_buffer(attributes, len(attributes))
        found: int = libc.syscall(number, command, held, len(attributes))
        return found if found >= 0 else -ctypes.get_errno()

    code = program(nodes)
    instructions = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    loaded = call(
        BPF_PROG_LOAD,
        struct.pack(
            "<IIQQIIQII16sI",
            BPF_PROG_TYPE_CGROUP_DEVICE,
            len(code) // 8,
            ctypes.addressof(instructions),
            ctypes.addressof(licence),
            0,
            0,
            0,
            0,
            0,
            b"skep_devices",
            0,
        )
        + struct.pack("<I", BPF_CGROUP_DEVICE),
    )
    if loaded < 0:
        return -loaded
    group = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        attached = call(
            BPF_PROG_ATTACH,
            struct.pack("<IIII", group, loaded, BPF_CGROUP_DEVICE, BPF_F_ALLOW_MULTI),
        )
    finally:
        os.close(group)
        os.close(loaded)
    return max(0, -attached)
