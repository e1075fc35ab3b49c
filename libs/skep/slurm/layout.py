"""How many nodes, tasks, GPUs, processors and bytes a job of Slurm's options has.

A node is a worker of the job: Skep gives it its GPUs on one machine, and two workers may be on the
same one. Tasks are what `srun` starts; they are spread over the workers in blocks.
"""

from __future__ import annotations

from typing import NamedTuple

from skep.slurm import values
from skep.slurm.options import Given, RefusedError
from skep.wire.spec import GPUS_PER_WORKER_MAX, WORKERS_MAX

TASKS_MAX = WORKERS_MAX * GPUS_PER_WORKER_MAX
"""A process for each GPU of the largest gang."""
NO_GPU = (
    "it asks for no GPU, and a job of Skep's has one at least: add --gres=gpu:1 (of each node), in "
    "a script as `#SBATCH --gres=gpu:1`; SKEP_SLURM_GPUS=1 says so for all that ask for none"
)
ASKS = ("gpus", "gpus-per-node", "gpus-per-task", "gres")


class Layout(NamedTuple):
    """What a job has: `gpus`, `cpus` and `memory` (bytes) are those of a node; 0: nothing said."""

    nodes: int
    tasks: int
    gpus: int
    gpu_type: str | None
    cpus: int
    cpus_per_task: int
    gpus_per_task: int
    memory: int

    @property
    def tasks_per_node(self) -> int:
        """Return the most tasks that a node has."""
        return -(-self.tasks // self.nodes)


def layout(given: Given) -> Layout:
    """Return what the options ask for.

    Raises:
        RefusedError: They contradict one another, or ask for no GPU or too many.
    """

    def number(option: str) -> int | None:
        return values.count(option, given[option]) if option in given else None

    tasks, per_node = number("ntasks"), number("ntasks-per-node")
    nodes = values.nodes(given["nodes"]) if "nodes" in given else None
    if nodes is None:
        nodes = -(-tasks // per_node) if tasks and per_node else 1
    tasks = _tasks(given, nodes, tasks, per_node, number("ntasks-per-gpu"))
    if nodes > WORKERS_MAX or tasks > TASKS_MAX:
        msg = f"--nodes, --ntasks: at most {WORKERS_MAX} nodes, {TASKS_MAX} tasks"
        raise RefusedError(msg)
    gpus, kind = _gpus(given, nodes, tasks)
    on_node = -(-tasks // nodes)
    per_task, per_gpu = number("cpus-per-task"), number("cpus-per-gpu")
    cpus = per_task * on_node if per_task else (per_gpu or 0) * gpus
    return Layout(
        nodes=nodes,
        tasks=tasks,
        gpus=gpus,
        gpu_type=_kind(given, kind),
        cpus=cpus,
        cpus_per_task=per_task or (cpus // on_node if cpus else 0),
        gpus_per_task=gpus // on_node if "gpus-per-task" in given else 0,
        memory=_memory(given, cpus or on_node, gpus),
    )


def asks_for_gpus(given: Given) -> bool:
    """Return whether options say anything about GPUs."""
    rest = [option for option in ASKS if option in given and option != "gres"]
    return bool(rest) or bool("gres" in given and values.gres(given["gres"]))


def _tasks(
    given: Given, nodes: int, tasks: int | None, per_node: int | None, per_gpu: int | None
) -> int:
    if tasks and per_node and tasks > per_node * nodes:
        msg = f"--ntasks={tasks}: {nodes} nodes of {per_node} tasks have {per_node * nodes}"
        raise RefusedError(msg)
    if tasks or per_node:
        return tasks or (per_node or 1) * nodes
    total = values.gpus("gpus", given["gpus"]).number if "gpus" in given else 0
    of_node = max((each.number for _, each in _of_node(given)), default=0)
    total = total or of_node * nodes
    if per_gpu:
        if not total:
            msg = "--ntasks-per-gpu: say how many GPUs: --gpus or --gpus-per-node"
            raise RefusedError(msg)
        return per_gpu * total
    if "gpus-per-task" in given and total:
        each = max(1, values.gpus("gpus-per-task", given["gpus-per-task"]).number)
        return max(1, total // each)
    return nodes


def _of_node(given: Given) -> list[tuple[str, values.Gpus]]:
    """Return what the options say about the GPUs of a node, each with its option."""
    found = []
    if "gres" in given and (by_gres := values.gres(given["gres"])) is not None:
        found.append((f"--gres={given['gres']}", by_gres))
    if "gpus-per-node" in given:
        text = given["gpus-per-node"]
        found.append((f"--gpus-per-node={text}", values.gpus("gpus-per-node", text)))
    return found


def _gpus(given: Given, nodes: int, tasks: int) -> tuple[int, str | None]:
    """Return the GPUs of a node and their type, about which all options have to agree.

    Raises:
        RefusedError: They do not, or there are none, or too many.
    """
    said = _of_node(given)
    if "gpus" in given:
        total = values.gpus("gpus", given["gpus"])
        if total.number % nodes:
            msg = f"--gpus={given['gpus']}: {nodes} nodes have the same number each"
            raise RefusedError(msg)
        said.append((f"--gpus={given['gpus']}", values.Gpus(total.number // nodes, total.kind)))
    if "gpus-per-task" in given:
        text, on_node = given["gpus-per-task"], -(-tasks // nodes)
        each = values.gpus("gpus-per-task", text)
        said.append((f"--gpus-per-task={text}", values.Gpus(each.number * on_node, each.kind)))
    counts = {option: found.number for option, found in said}
    kinds = list(dict.fromkeys(found.kind for _, found in said if found.kind))
    if not any(counts.values()):
        raise RefusedError(NO_GPU)
    if len(dict.fromkeys(counts.values())) > 1:
        told = ", ".join(f"{option} is {count} a node" for option, count in counts.items())
        msg = f"the GPUs of a node: {told}"
        raise RefusedError(msg)
    if len(kinds) > 1:
        msg = f"GPUs of one type, not of {' and '.join(kinds)}"
        raise RefusedError(msg)
    gpus = max(counts.values())
    if gpus > GPUS_PER_WORKER_MAX:
        text = f"{next(iter(counts))}: {gpus} GPUs on one node, of at most {GPUS_PER_WORKER_MAX}"
        msg = f"{text}; say --nodes"
        raise RefusedError(msg)
    return gpus, kinds[0] if kinds else None


def _kind(given: Given, kind: str | None) -> str | None:
    if "constraint" not in given:
        return kind
    wanted = values.gpu_types(given["constraint"])
    if kind is not None and kind != wanted:
        msg = f"--constraint={given['constraint']}: the GPUs are to be {kind}"
        raise RefusedError(msg)
    return wanted


def _memory(given: Given, cpus: int, gpus: int) -> int:
    ways = [each for each in ("mem", "mem-per-cpu", "mem-per-gpu") if each in given]
    if len(ways) > 1:
        msg = f"one of {', '.join(f'--{each}' for each in ways)}"
        raise RefusedError(msg)
    if not ways:
        return 0
    times = {"mem": 1, "mem-per-cpu": cpus, "mem-per-gpu": gpus}[ways[0]]
    return values.memory(ways[0], given[ways[0]]) * times
