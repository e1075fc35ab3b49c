"""Which runs may start from a warm process, within the operator's bounds. Pure but for the reading.

A warm process holds the modules of an environment in memory, and runs their code for its owner. So
there are none unless the operator says how many (`SKEP_WARM_PROCESSES`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from skep.wire.commands import AGENT_PYTHON, BindJob
from skep.wire.runs import Warm
from skep_services.service import ConfigurationError

PROCESSES, BYTES, IDLE = "SKEP_WARM_PROCESSES", "SKEP_WARM_BYTES", "SKEP_WARM_IDLE_S"
PROCESSES_MAX = 64
BYTES_DEFAULT = 2 * 1024**3
"""Of one warm process: PyTorch takes 300 MB, most of which its ranks share with it."""
IDLE_DEFAULT_S = 600
IDLE_MAX_S = 7 * 24 * 3600
OPT_OUT = "SKEP_WARM"
"""Variable of a job: `0` keeps it from warm processes."""
MODULE = "skep_job"
SCRIPT_AT = 3


def bounds(environment: Mapping[str, str]) -> Warm | None:
    """Return the bounds of this node's warm processes; None: there are to be none.

    Args:
        environment: The agent's environment.

    Raises:
        ConfigurationError: A setting is no number, or out of its range.
    """
    processes = _number(environment, PROCESSES, 0, 0, PROCESSES_MAX)
    size = _number(environment, BYTES, BYTES_DEFAULT, 1, 2**60)
    idle_s = _number(environment, IDLE, IDLE_DEFAULT_S, 1, IDLE_MAX_S)
    return Warm(processes=processes, bytes=size, idle_s=idle_s) if processes else None


def warm_of(command: BindJob, inherited: Mapping[str, str], *, accounts: bool) -> Warm | None:
    """Return how a rank of a job may start from a warm process; None: it is executed.

    Args:
        command: The job's part on this node.
        inherited: The agent's environment.
        accounts: A launcher gives the job an account: then nothing of the agent's may run as it.
    """
    argv = command.argv
    script = len(argv) > 3 and argv[0] == AGENT_PYTHON and argv[2] == MODULE
    other = command.image or command.resume is not None or command.stdin
    # A secret would be known to a process that outlives the job.
    secret = command.secrets or command.secret_files or command.env.get(OPT_OUT) == "0"
    if accounts or not script or other or secret:
        return None
    found = bounds(inherited)
    if found is None:
        return None
    return Warm(
        processes=found.processes,
        bytes=found.bytes,
        idle_s=found.idle_s,
        whose=(command.vc, command.owner),
        script=os.path.normpath(os.path.join(command.workdir, argv[SCRIPT_AT])),
    )


def _number(environment: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = environment.get(name, "")
    if not text:
        return default
    if text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most:
        return int(text)
    message = f"{name} is {text!r}: it must be a whole number from {least} to {most}"
    raise ConfigurationError(message)
