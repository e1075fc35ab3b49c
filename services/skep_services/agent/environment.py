"""What a job's process gets: arguments, environment, folders. Pure but for the base values."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from skep.machines.agent import StartRank
from skep.wire.commands import AGENT_PYTHON
from skep.wire.runs import RunPlan
from skep_services.adapters.devices import Devices
from skep_services.agent.runner_log import LOG_BYTES_MIN
from skep_services.service import ConfigurationError

LOG_BYTES_MAX = 64 * 1024 * 1024
"""One rank's log, unless SKEP_LOG_BYTES_MAX says otherwise: enough for a million lines, and 16
flooding ranks cannot fill a usual disk."""
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "USER", "LOGNAME", "SHELL", "TMPDIR",
             "LD_LIBRARY_PATH", "COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG")  # fmt: skip
"""Variables of the agent that jobs see. Everything else, credentials above all, stays here."""


def log_path(state: Path, job: str, attempt: int, rank: int) -> Path:
    """Return where a rank's output goes."""
    return state / "logs" / job / str(attempt) / f"rank{rank}.log"


def log_bytes_max(environment: Mapping[str, str]) -> int:
    """Return how large one rank's log may become; raises ConfigurationError."""
    text = environment.get("SKEP_LOG_BYTES_MAX", "")
    if not text:
        return LOG_BYTES_MAX
    if text.isascii() and text.isdecimal() and len(text) < 16 and int(text) >= LOG_BYTES_MIN:
        return int(text)
    message = f"SKEP_LOG_BYTES_MAX is {text!r}: it must be a number of bytes from {LOG_BYTES_MIN}"
    raise ConfigurationError(message)


def run_plan(
    start: StartRank, state: Path, devices: Devices, inherited: Mapping[str, str]
) -> RunPlan:
    """Return the process to execute for one rank of a gang."""
    command, plan = start.command, start.plan
    argv = tuple(command.argv)
    if argv[0] == AGENT_PYTHON:
        argv = (sys.executable, *argv[1:])
    return RunPlan(
        token=start.token,
        argv=argv,
        env={
            **_base(inherited),
            "OMP_NUM_THREADS": "1",
            **command.env,
            **_rank_variables(start, state),
            **devices.visible(plan.devices),
        },
        workdir=command.workdir or str(state),
        log_path=str(log_path(state, command.job, command.attempt, plan.rank)),
        log_bytes_max=log_bytes_max(inherited),
    )


def _base(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the agent's harmless variables, its own interpreter's folder first in PATH."""
    kept = {name: inherited[name] for name in INHERITED if name in inherited}
    own = str(Path(sys.executable).parent)
    kept["PATH"] = f"{own}:{kept.get('PATH', '/usr/local/bin:/usr/bin:/bin')}"
    return {**kept, "PYTHONUNBUFFERED": "1"}


def _rank_variables(start: StartRank, state: Path) -> dict[str, str]:
    """Return what `torchrun` would set, and what the job's end of Skep reads."""
    command, plan = start.command, start.plan
    local = len(command.ranks)
    return {
        "RANK": str(plan.rank),
        "LOCAL_RANK": str(plan.local_rank),
        "WORLD_SIZE": str(command.world),
        "LOCAL_WORLD_SIZE": str(local),
        "GROUP_RANK": str(command.node_rank),
        "GROUP_WORLD_SIZE": str(command.nodes),
        "NODE_RANK": str(command.node_rank),
        "ROLE_RANK": str(plan.rank),
        "ROLE_WORLD_SIZE": str(command.world),
        "MASTER_ADDR": command.master_address,
        "MASTER_PORT": str(command.master_port),
        "TORCHELASTIC_RUN_ID": f"{command.job}.{command.attempt}",
        "TORCHELASTIC_RESTART_COUNT": str(command.attempt - 1),
        "SKEP_JOB": command.job,
        "SKEP_NAME": command.name,
        "SKEP_VC": command.vc,
        "SKEP_GEN": str(command.attempt),
        "SKEP_SOCK": str(state / "jobs.sock"),
        "SKEP_TOKEN": start.token,
        **({"TRACEPARENT": command.trace} if command.trace else {}),
    }
