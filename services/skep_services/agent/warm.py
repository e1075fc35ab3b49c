"""Which runs may start from a template, within the operator's bounds. Pure but for the reading.

A template holds the modules of an environment in memory, and runs their code for its owner. So
there are none unless the operator says how many (`SKEP_WARM_TEMPLATES`).
"""

from __future__ import annotations

from collections.abc import Mapping

from skep.wire.commands import AGENT_PYTHON, BindJob
from skep.wire.runs import Warm
from skep_services.service import ConfigurationError

TEMPLATES, BYTES, IDLE = "SKEP_WARM_TEMPLATES", "SKEP_WARM_BYTES", "SKEP_WARM_IDLE_S"
TEMPLATES_MAX = 64
BYTES_DEFAULT = 2 * 1024**3
"""Of one template: PyTorch takes 250 MB, with CUDA 500 MB; most of it is shared with its ranks."""
IDLE_DEFAULT_S = 600
IDLE_MAX_S = 7 * 24 * 3600
OPT_OUT = "SKEP_WARM"
"""Variable of a job: `0` keeps it from templates."""
MODULE = "skep_job"


def bounds(environment: Mapping[str, str]) -> Warm | None:
    """Return the bounds of this node's templates; None: there are to be none.

    Args:
        environment: The agent's environment.

    Raises:
        ConfigurationError: A setting is no number, or out of its range.
    """
    templates = _number(environment, TEMPLATES, 0, 0, TEMPLATES_MAX)
    size = _number(environment, BYTES, BYTES_DEFAULT, 1, 2**60)
    idle_s = _number(environment, IDLE, IDLE_DEFAULT_S, 1, IDLE_MAX_S)
    return Warm(templates=templates, bytes=size, idle_s=idle_s) if templates else None


def warm_of(command: BindJob, inherited: Mapping[str, str], *, accounts: bool) -> Warm | None:
    """Return how a rank of a job may start from a template; None: it is executed.

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
        templates=found.templates,
        bytes=found.bytes,
        idle_s=found.idle_s,
        whose=(command.vc, command.owner),
    )


def _number(environment: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = environment.get(name, "")
    if not text:
        return default
    if text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most:
        return int(text)
    message = f"{name} is {text!r}: it must be a whole number from {least} to {most}"
    raise ConfigurationError(message)
