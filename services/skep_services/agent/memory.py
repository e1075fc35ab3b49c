"""How much of the host's memory suspended state may take."""

from __future__ import annotations

from collections.abc import Mapping

from skep.machines.agent.machine import HOST_SHARE
from skep_services.service import ConfigurationError

VARIABLE = "SKEP_HOST_STATE_BYTES"
DIGITS_MAX = 20
TEXT_MAX = 100
"""What of a wrong value an error shows."""
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
    return bytes_said(environment, VARIABLE, memory // HOST_SHARE, memory)


def bytes_said(
    environment: Mapping[str, str], variable: str, usual: int, most: int, hint: str = ""
) -> int:
    """Return the bytes that a variable allows.

    Args:
        environment: The agent's environment.
        variable: Its name.
        usual: The bytes where it is not set.
        most: The most that it may say (bytes).
        hint: What is added to the error.

    Raises:
        ConfigurationError: It is no number, or is more than `most`.
    """
    text = environment.get(variable, "")
    if not text:
        return usual
    if text.isascii() and text.isdecimal() and len(text) < DIGITS_MAX and int(text) <= most:
        return int(text)
    message = f"{variable} is {text[:TEXT_MAX]!r}: it must be a number of bytes up to {most}{hint}"
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
