"""A batch script or a command with Slurm's options, as the spec of a job.

The spec's command is `skep_job.slurm.batch`, which runs the script on the first worker as Slurm
does, and starts on all of them what the script gives to `srun`. What it has to know is the plan, in
a variable: command lines are seen by everyone on a node.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from skep.slurm import values
from skep.slurm.layout import Layout, asks_for_gpus, layout
from skep.slurm.options import SBATCH, SRUN, Given, RefusedError, sort_out
from skep.wire.spec import NAME_CHARS_MAX, PRIORITY_MAX, WARN_SIGNALS

PLAN, SCRIPT = "SKEP_SLURM_PLAN", "SKEP_SLURM_SCRIPT"
BATCH = ("python3", "-m", "skep_job.slurm.batch")
CAUGHT = ("TERM", "INT", "HUP")
"""Signals that the batch process outlives, as they end jobs."""
OUTPUT, OUTPUT_ARRAY = "slurm-%j.out", "slurm-%A_%a.out"

OF_THE_TERMINAL = """
_ COLUMNS CUDA_VISIBLE_DEVICES DISPLAY HOME HOSTNAME INVOCATION_ID JOURNAL_STREAM LINES LOGNAME
LS_COLORS MAIL OLDPWD PS1 PWD SHELL SHLVL TERM TMPDIR TRACEPARENT USER WAYLAND_DISPLAY
"""
NOT_EXPORTED = tuple(OF_THE_TERMINAL.split())
NOT_EXPORTED_PREFIXES = ("SBATCH_", "SKEP_", "SLURM_", "SSH_", "XDG_", "DBUS_", "COVERAGE_")
"""What belongs to the terminal, its machine or the cluster that is spoken to, not to a job."""
LATE, LATE_PREFIXES = frozenset({"PATH"}), ("PYTHON", "LD_")
"""What the batch process itself would go wrong by: it gives these to the script alone."""

HANDS_IN = re.compile(r"^[^#\n]*\bsbatch\s", re.MULTILINE)

SWITCHES = {
    "distribution": ("block", "block:block", "block:cyclic", "*"),
    "gpu-bind": ("none", "closest", "verbose,closest", "verbose,none"),
    "mpi": ("none",),
    "open-mode": ("append", "truncate"),
    "exclusive": ("",),
}
"""Options that have these values and no others."""
WHY_NOT = {
    "distribution": "tasks are spread over the nodes in blocks",
    "gpu-bind": "tasks of a node see all of its GPUs: choose one by SLURM_LOCALID",
    "mpi": "`srun` starts processes, and MPI finds no server of its own here: use mpirun",
    "open-mode": "append or truncate",
    "exclusive": "a node is shared, or one job has all of its GPUs",
}


class Submission(NamedTuple):
    """Where a job is submitted from.

    `partitions` are names of virtual clusters by those of partitions; `*` stands for all others.
    `looks_secret` says which of some variables look like secrets: these are not passed on.
    """

    folder: str
    environment: Mapping[str, str]
    partitions: Mapping[str, str]
    looks_secret: Callable[[Mapping[str, str]], Sequence[str]]
    host: str
    node_gpus: Callable[[], Sequence[int]]
    """Returns how many GPUs each node of the cluster has."""
    key: str
    """A text that nobody can guess, by which the workers of a job know one another."""
    gpus: int = 0
    """What a node has of a job that asks for no GPU; 0: such a job is refused."""
    qualities: Mapping[str, int] = {}
    """Priorities by names of QOS; `*` stands for all others."""


class Mapped(NamedTuple):
    """The spec of a job, and what is to be said about it."""

    tree: dict[str, Any]
    notes: list[str]


def batch_job(given: Given, script: str, words: Sequence[str], at: Submission) -> Mapped:
    """Return the job of a batch script.

    Args:
        given: The options of script, environment and command line, in this order.
        script: Its text.
        words: Its name and its arguments.
        at: Where it is submitted.

    Raises:
        RefusedError: Something is refused; the error has a line for each reason.
    """
    if not given and HANDS_IN.search(script):
        text = "it hands in other scripts, and says nothing of itself"
        msg = (
            f"{text}: run it, as `sh {words[0]}`, with the commands of `skep slurm install` in PATH"
        )
        raise RefusedError(msg)
    name = words[0].rpartition("/")[2] or "sbatch"
    usual = OUTPUT_ARRAY if "array" in given else OUTPUT
    plan = {"output": given.get("output", usual), "error": given.get("error", "")}
    mapped = _mapped(given, name, plan, at, batch=True)
    mapped.tree["command"] = [*BATCH, *words[1:]]
    mapped.tree["env"][SCRIPT] = script
    return mapped


def command_job(given: Given, words: Sequence[str], at: Submission) -> Mapped:
    """Return the job of `srun COMMAND`: every task of it runs the command.

    Args:
        given: The options.
        words: The command.
        at: Where it is submitted.

    Raises:
        RefusedError: Something is refused; the error has a line for each reason.
    """
    if not words:
        msg = "srun: error: srun what? srun [options] COMMAND [ARG...]"
        raise RefusedError(msg)
    plan: dict[str, Any] = {"output": given.get("output", ""), "error": given.get("error", "")}
    plan |= {"step": True, "label": "label" in given}
    plan |= {"kill": given.get("kill-on-bad-exit", "0") != "0"}
    name = words[0].rpartition("/")[2] or "srun"
    mapped = _mapped(given, name, plan, at, batch=False)
    mapped.tree["command"] = [*BATCH, *words]
    return mapped


def _mapped(
    given: Given, name: str, plan: dict[str, Any], at: Submission, *, batch: bool
) -> Mapped:
    notes, refused = sort_out(SBATCH if batch else SRUN, given)

    def of(make: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return make()
        except RefusedError as error:
            refused.extend(error.lines)
            return otherwise

    tree: dict[str, Any] = {
        "name": (given.get("job-name") or name)[:NAME_CHARS_MAX],
        "workdir": _folder(given.get("chdir", ""), at.folder),
    }
    for switch, allowed in SWITCHES.items():
        if switch in given and given[switch] not in allowed:
            refused.append(f"--{switch}={given[switch]}: {WHY_NOT[switch]}")
    asked = of(lambda: _asked(given, at, notes), None)
    limit_s = of(lambda: values.seconds(given.get("time", "0")), None)
    of(lambda: tree.update(_when(given)), None)
    of(lambda: tree.update(_where(given, at)), None)
    env, late, passed_over = of(lambda: exported(given.get("export", "ALL"), at), ({}, {}, []))
    signal = of(lambda: values.signal(given["signal"]) if "signal" in given else None, None)
    if signal is not None and limit_s is None:
        refused.append("--signal: it comes before the time limit: say --time too")
    if refused or asked is None:
        raise RefusedError(*refused)
    if passed_over:
        notes.append(f"not passed on, because they look like secrets: {', '.join(passed_over)}")
    tree["resources"] = _resources(asked)
    if limit_s is not None:
        tree["limits"] = {"time": limit_s}
    if comment := given.get("comment"):
        tree["labels"] = {"comment": comment}
    if asked.nodes > 1:
        tree["distributed"] = True
    plan |= {
        "name": tree["name"],
        "nodes": asked.nodes,
        "tasks": asked.tasks,
        "cpus_per_task": asked.cpus_per_task,
        "cpus": asked.cpus,
        "gpus_per_task": asked.gpus_per_task,
        "tasks_per_node": asked.tasks_per_node if "ntasks-per-node" in given else 0,
        "memory": asked.memory,
        "gpus": asked.gpus,
        "input": given.get("input", ""),
        "append": given.get("open-mode") == "append",
        "partition": given.get("partition", ""),
        "account": given.get("account", ""),
        "folder": at.folder,
        "host": at.host,
        "env": late,
        "key": at.key if asked.nodes > 1 else "",
    }
    if signal is not None:
        plan["signal"] = signal | {"limit_s": limit_s}
        if _is_warning(signal, limit_s):
            tree["limits"]["warn"] = {"signal": signal["name"], "before": signal["before_s"]}
            plan["signal"]["told"] = True
    tree["env"] = env | {PLAN: json.dumps(plan, separators=(",", ":"))}
    return Mapped(tree, notes)


def _is_warning(signal: Mapping[str, Any], limit_s: int | None) -> bool:
    """Return whether Skep itself can give a job its signal, to the batch process of each worker.

    Others the batch process gives by its own clock: those that it has a meaning for, numbers, and
    what Slurm gives at once.
    """
    own = signal["name"] in WARN_SIGNALS and signal["name"] not in CAUGHT
    return own and limit_s is not None and 1 <= signal["before_s"] < limit_s


def _asked(given: Given, at: Submission, notes: list[str]) -> Layout:
    """Return what a job has, with the GPUs that follow from where it is submitted.

    Raises:
        RefusedError: The options contradict one another, or ask for what there is not.
    """
    if "exclusive" in given:
        return _alone(given, at, notes)
    if at.gpus and not asks_for_gpus(given):
        notes.append(f"it asks for no GPU: it gets {at.gpus} on each node, by SKEP_SLURM_GPUS")
        given = {**given, "gpus-per-node": str(at.gpus)}
    return layout(given)


def _alone(given: Given, at: Submission, notes: list[str]) -> Layout:
    """Return what a job has that is alone on its nodes: all of their GPUs, as with Slurm.

    Raises:
        RefusedError: Nodes have different numbers, of which it asks for no, or not for all.
    """
    most = max(at.node_gpus(), default=0)
    if not most:
        msg = "--exclusive: there is no node with GPUs at the moment"
        raise RefusedError(msg)
    known = asks_for_gpus(given)
    asked = layout(given if known else {**given, "gpus-per-node": str(most)})
    if asked.gpus >= most and known:
        return asked
    if min(at.node_gpus()) < most:
        text = "a job is alone on a node whose GPUs it has all, and nodes have different numbers"
        msg = f"--exclusive: {text}: say --gpus-per-node={most}"
        raise RefusedError(msg)
    notes.append(f"--exclusive: it gets all {most} GPUs of each node")
    return asked._replace(gpus=most)


def _folder(wanted: str, folder: str) -> str:
    if not wanted or wanted == ".":
        return folder
    return wanted if wanted.startswith("/") else f"{folder.rstrip('/')}/{wanted}"


def _when(given: Given) -> dict[str, Any]:
    """Return which tasks it has, and what it waits for: keys of the spec, each made here alone."""
    found: dict[str, Any] = {}
    if "array" in given:
        found["array"] = given["array"]
    if given.get("dependency"):
        found["after"] = values.dependencies(given["dependency"])
    if "begin" in given and (begin := values.begin(given["begin"])) is not None:
        found["begin"] = begin
    if "hold" in given:
        found["hold"] = True
    return found


def _where(given: Given, at: Submission) -> dict[str, Any]:
    """Return the virtual cluster and the priority.

    Raises:
        RefusedError: Either is none.
    """
    found: dict[str, Any] = {}
    if partition := given.get("partition"):
        if "," in partition:
            text = "one partition; a job here is of one virtual cluster"
            msg = f"--partition={partition}: {text}"
            raise RefusedError(msg)
        found["vc"] = at.partitions.get(partition) or at.partitions.get("*", partition)
    if "priority" in given:
        text = given["priority"]
        if not values.COUNT.fullmatch(text) or int(text) > PRIORITY_MAX:
            msg = f"--priority={text}: 0 to {PRIORITY_MAX}"
            raise RefusedError(msg)
        found["priority"] = int(text)
    elif given.get("qos", "normal") != "normal":
        found["priority"] = _quality(given["qos"], at)
    return found


def _quality(name: str, at: Submission) -> int:
    """Return the priority that a QOS is.

    Raises:
        RefusedError: It is not said which.
    """
    priority = at.qualities.get(name, at.qualities.get("*"))
    if priority is None:
        text = f"leave it out, or say which priority it is: SKEP_SLURM_QOS={name}=100"
        msg = f"--qos={name}: Skep has priorities, and no QOS: {text}"
        raise RefusedError(msg)
    return priority


def _resources(asked: Layout) -> dict[str, Any]:
    found: dict[str, Any] = {"gpus": asked.gpus, "workers": asked.nodes}
    if asked.gpu_type:
        found["gpu_type"] = asked.gpu_type
    if asked.cpus:
        found["cpus"] = asked.cpus
    if asked.memory:
        found["memory"] = asked.memory
    return found


def exported(wanted: str, at: Submission) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Return the variables of a job: those of its spec, and those that only the script gets.

    Args:
        wanted: `ALL`, `NONE`, `NIL`, or names and assignments with commas between them.
        at: Where it is submitted.

    Returns:
        Both, and the names that were left out because they look like secrets. A variable that is
        named and does not exist is left out, as by Slurm.
    """
    env: dict[str, str] = {}
    passed_over: list[str] = []
    words = [word for word in wanted.split(",") if word]
    if "ALL" in words:
        env = {
            name: value
            for name, value in at.environment.items()
            if name not in NOT_EXPORTED and not name.startswith(NOT_EXPORTED_PREFIXES)
        }
        passed_over = sorted(at.looks_secret(env))
        env = {name: value for name, value in env.items() if name not in passed_over}
    for word in words:
        name, mark, value = word.partition("=")
        if word in ("ALL", "NONE", "NIL"):
            continue
        if mark:
            env[name] = value
        elif name in at.environment:
            env[name] = at.environment[name]
        passed_over = [each for each in passed_over if each != name]
    late = {name: env.pop(name) for name in list(env) if _is_late(name)}
    return env, late, passed_over


def _is_late(name: str) -> bool:
    return name in LATE or name.startswith(LATE_PREFIXES)
