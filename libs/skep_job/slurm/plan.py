"""What a batch process is told of its job, the variables of Slurm, and names of files with `%`."""

from __future__ import annotations

import json
import os
import pwd
import re
import socket
from collections.abc import Mapping
from typing import Any

PLAN, SCRIPT = "SKEP_SLURM_PLAN", "SKEP_SLURM_SCRIPT"
SOCKET = "SKEP_SLURM_SOCKET"
START_UP = "start_up"
PATTERN = re.compile(r"%(?:%|(\d{1,2})?([AaJjNnstuxb]))")
WIDTH_MAX = 10
"""As in Slurm: a number is filled up with zeros to so many digits at most."""
TORCHRUN = [
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "NODE_RANK",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
]
"""Variables that a worker has, and a script of Slurm's does not expect: it makes its own."""
MIB = 2**20


class PlanError(Exception):
    """The plan cannot be used."""


def read(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the plan.

    Args:
        environment: The variables of the worker.

    Raises:
        PlanError: There is none, or it is no plan.
    """
    try:
        plan: dict[str, Any] = json.loads(environment[PLAN])
        for name in ("nodes", "tasks", "gpus"):
            if not isinstance(plan[name], int) or plan[name] < 1:
                msg = f"{PLAN}: {name} is {plan[name]!r}"
                raise PlanError(msg)
    except KeyError as error:
        msg = f"{PLAN} lacks {error}: this program runs what `sbatch` hands in"
        raise PlanError(msg) from None
    except (ValueError, TypeError) as error:
        msg = f"{PLAN} is no plan: {error}"
        raise PlanError(msg) from None
    return plan


def number_of(environment: Mapping[str, str]) -> str:
    """Return the job's number in Slurm's commands: 17 of `j17`."""
    return "".join(filter(str.isdecimal, environment.get("SKEP_JOB", "0").partition("[")[0]))


def user(environment: Mapping[str, str]) -> str:
    """Return the name of the user that the job runs as."""
    if named := environment.get("USER") or environment.get("LOGNAME"):
        return named
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def file_name(pattern: str, environment: Mapping[str, str], name: str, **now: str) -> str:
    """Return the name of a file of output, its `%` spelled out as by Slurm.

    Args:
        pattern: What `--output` says; with a backslash in it, nothing is spelled out.
        environment: The variables that the script has.
        name: The job's name.
        now: The `step` and the `task` and the `node`, where there are any.
    """
    if "\\" in pattern:
        return pattern.replace("\\", "")
    job = number_of(environment)
    array = environment.get("SLURM_ARRAY_JOB_ID", job)
    step = now.get("step", "")
    meant = {
        "A": array,
        "a": environment.get("SLURM_ARRAY_TASK_ID", "4294967294"),
        "b": str(int(environment.get("SLURM_ARRAY_TASK_ID", "0")) % 10),
        "J": f"{job}.{step}" if step else job,
        "j": job,
        "N": environment.get("SLURMD_NODENAME", socket.gethostname()),
        "n": now.get("node", "0"),
        "s": step or "batch",
        "t": now.get("task", "0"),
        "u": user(environment),
        "x": name.replace("/", "_"),
    }

    def spelled(match: re.Match[str]) -> str:
        width, letter = match[1], match[2]
        if letter is None:
            return "%"
        value = meant[letter]
        numeric = value.isdecimal() and letter not in "NuxbJ"
        return value.zfill(min(int(width), WIDTH_MAX)) if width and numeric else value

    return PATTERN.sub(spelled, pattern)


def script_environment(
    environment: Mapping[str, str], plan: Mapping[str, Any], names: list[str], folder: str
) -> dict[str, str]:
    """Return the variables of the script.

    Args:
        environment: Those of the first worker.
        plan: The plan.
        names: The names of the workers' machines.
        folder: The folder whose `bin` has `srun` and the like.
    """
    env = {
        name: value
        for name, value in environment.items()
        if name not in (PLAN, SCRIPT) and name not in TORCHRUN
    }
    watched = environment.get("PYTHONPATH", "")
    late = dict(plan.get("env") or {})
    if watched and "PYTHONPATH" in late:
        late["PYTHONPATH"] = f"{watched}:{late['PYTHONPATH']}"
    env.update(late)
    env["PATH"] = f"{folder}/bin:{env.get('PATH', '/usr/local/bin:/usr/bin:/bin')}"
    env[SOCKET] = f"{folder}/steps"
    return {**env, **_job(environment, plan, names), **_array(environment)}


def _job(
    environment: Mapping[str, str], plan: Mapping[str, Any], names: list[str]
) -> dict[str, str]:
    job, nodes, tasks = number_of(environment), plan["nodes"], plan["tasks"]
    devices = environment.get("CUDA_VISIBLE_DEVICES") or environment.get("SKEP_DEVICES", "")
    cpus = plan.get("cpus") or -(-tasks // nodes)
    found = {
        "SLURM_JOB_ID": job,
        "SLURM_JOBID": job,
        "SLURM_JOB_NAME": plan.get("name", ""),
        "SLURM_JOB_PARTITION": plan.get("partition") or environment.get("SKEP_VC", ""),
        "SLURM_JOB_USER": user(environment),
        "SLURM_JOB_UID": str(os.getuid()),
        "SLURM_JOB_GID": str(os.getgid()),
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_NNODES": str(nodes),
        "SLURM_JOB_NODELIST": ",".join(names),
        "SLURM_NODELIST": ",".join(names),
        "SLURMD_NODENAME": names[0],
        "SLURM_NTASKS": str(tasks),
        "SLURM_NPROCS": str(tasks),
        "SLURM_TASKS_PER_NODE": repeated([len(each) for each in spread(tasks, nodes)]),
        "SLURM_JOB_CPUS_PER_NODE": repeated([cpus] * nodes),
        "SLURM_CPUS_ON_NODE": str(cpus),
        "SLURM_GPUS_ON_NODE": str(plan["gpus"]),
        "SLURM_JOB_GPUS": devices,
        "SLURM_SUBMIT_DIR": plan.get("folder", ""),
        "SLURM_SUBMIT_HOST": plan.get("host", ""),
        "SLURM_CLUSTER_NAME": "skep",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_GTIDS": "0",
        "SLURM_RESTART_COUNT": str(max(0, int(environment.get("SKEP_GEN", "1")) - 1)),
    }
    if plan.get("account"):
        found["SLURM_JOB_ACCOUNT"] = plan["account"]
    if plan.get("cpus_per_task"):
        found["SLURM_CPUS_PER_TASK"] = str(plan["cpus_per_task"])
    if plan.get("gpus_per_task"):
        found["SLURM_GPUS_PER_TASK"] = str(plan["gpus_per_task"])
    if plan.get("tasks_per_node"):
        found["SLURM_NTASKS_PER_NODE"] = str(plan["tasks_per_node"])
    if plan.get("memory"):
        found["SLURM_MEM_PER_NODE"] = str(plan["memory"] // MIB)
    return found


OF_ARRAY, OURS = "SKEP_ARRAY_", ("COUNT", "MIN", "MAX")
"""How the variables of a task of an array begin, and those that have the same names by Slurm."""


def _array(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what Slurm calls the variables of a task of an array."""
    here = {
        name.removeprefix(OF_ARRAY): value
        for name, value in environment.items()
        if name.startswith(OF_ARRAY)
    }
    if "ID" not in here:
        return {}
    return {
        "SLURM_ARRAY_JOB_ID": "".join(filter(str.isdecimal, here["ID"])),
        "SLURM_ARRAY_TASK_ID": here.get("INDEX", ""),
        **{f"SLURM_ARRAY_TASK_{name}": here[name] for name in OURS if name in here},
    }


def spread(tasks: int, nodes: int) -> list[range]:
    """Return the tasks of each node: blocks, of which the first are larger by one at most."""
    each, more = divmod(tasks, nodes)
    found, first = [], 0
    for node in range(nodes):
        size = each + (node < more)
        found.append(range(first, first + size))
        first += size
    return found


def repeated(counts: list[int]) -> str:
    """Return counts as Slurm writes them: `4(x2),3`."""
    parts: list[tuple[int, int]] = []
    for count in counts:
        if parts and parts[-1][0] == count:
            parts[-1] = (count, parts[-1][1] + 1)
        else:
            parts.append((count, 1))
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in parts)
