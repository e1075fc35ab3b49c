"""How much of the host's memory suspended state may take."""

from __future__ import annotations

from collections.abc import Mapping

from skep.machines.agent.machine import HOST_SHARE
from skep_services.service import ConfigurationError

VARIABLE = "SKEP_HOST_STATE_BYTES"
KEPT_FREE = 8
"""One part in so many of what is available stays free: the jobs that run meanwhile allocate too."""


def host_budget(environment: Mapping[str, str], memory: int) -> int:
    """Return the bytes that suspended state may take on this node.

    Half of its memory, unless the operator says otherwise.

    Args:
        environment: The agent's environment.
        memory: The node's memory (bytes).

    Raises:
        ConfigurationError: SKEP_HOST_STATE_BYTES is no number, or is more than there is.
    """
    text = environment.get(VARIABLE, "")
    if not text:
        return memory // HOST_SHARE
    if text.isascii() and text.isdecimal() and int(text) <= memory:
        return int(text)
    message = f"{VARIABLE} is {text!r}: it must be a number of bytes up to {memory}"
    raise ConfigurationError(message)


def host_bytes_free(path: str = "/proc/meminfo") -> int:
    """Return the bytes that can be filled now without swapping, 0 where that is not known."""
    try:
        with open(path, encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file if ":" in line)
        available = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 0
    return available - available // KEPT_FREE
