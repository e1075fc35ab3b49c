"""`srun` inside a job: asks the batch process for a step, and shows its output."""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import signal
from typing import Any, NoReturn

from skep_job.slurm import frames
from skep_job.slurm.frames import LINE_BYTES_MAX, FrameError
from skep_job.slurm.plan import SOCKET, file_name
from skep_job.slurm.tasks import warn, write

FAILED = 1
IGNORED = (
    "account A|acctg-freq|accel-bind|comment|constraint C|cpu-bind|cpu_bind|cpus-per-task c|"
    "cpus-per-gpu|distribution m|gpu-bind|gpus G|gpus-per-node|gres|gres-flags|hint|job-name J|"
    "mem|mem-bind|mem_bind|mem-per-cpu|mem-per-gpu|partition p|profile|qos q|threads-per-core|"
    "time t|wait W"
)
"""Options about what the job has already: a step has what its job has."""
IGNORED_FLAGS = "exact|exclusive|oversubscribe s|overlap|quiet Q|unbuffered u|verbose v"
REFUSED = {
    "--array": "an array is a job: sbatch --array",
    "--bcast": "put the program where every node sees it",
    "--container": "the job runs as processes; images are `runtime: {image: ...}` in a spec",
    "--container-image": "the job runs as processes; images are `runtime: {image: ...}` in a spec",
    "--multi-prog": "start one step for each program",
    "--pty": "a job here has no terminal",
    "--relative": "a step begins at the first node; --nodelist chooses others",
}
"""Options that change what a step is, and why no step here has them."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as `srun` does."""

    def error(self, message: str) -> NoReturn:
        """End with one line.

        Raises:
            SystemExit: Always.
        """
        raise SystemExit(_wrong(message))


def _wrong(message: str) -> int:
    warn(f"srun: error: {message}")
    return FAILED


class Shown:
    """Output of a step: to the streams of this process, or to files, or both numbered by task."""

    def __init__(self, *, label: bool, digits: int, output: str, error: str) -> None:
        self._label = label
        self._digits = digits
        self._rests: dict[tuple[int, str], bytes] = {}
        self._out = _opened(output) if output else 1
        self._err = _opened(error) if error else self._out if output else 2

    def take(self, message: dict[str, Any]) -> None:
        """Show what a task wrote."""
        if "error" in message:
            warn(f"srun: error: {message['error']}")
        for name in ("out", "err"):
            if name in message:
                self._write(message["task"], name, base64.b64decode(message[name]))
        code = message.get("code", 0)
        if code:
            how = f"Exited with exit code {code}" if code > 0 else f"Ended by signal {-code}"
            warn(f"srun: error: task {message['task']} on node {message['node']}: {how}")

    def close(self) -> None:
        """Show lines that have no end."""
        for (task, name), rest in list(self._rests.items()):
            if rest:
                self._write(task, name, b"\n")

    def _write(self, task: int, name: str, piece: bytes) -> None:
        stream = self._out if name == "out" else self._err
        if not self._label:
            write(stream, piece)
            return
        *lines, rest = (self._rests.get((task, name), b"") + piece).split(b"\n")
        self._rests[task, name] = rest
        prefix = f"{task:{self._digits}}: ".encode()
        write(stream, b"".join(prefix + line + b"\n" for line in lines))


def _opened(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    made = Parser(prog="srun", usage="srun [options] COMMAND [ARG...]", add_help=True)
    made.add_argument("--ntasks", "-n", type=int, dest="tasks")
    made.add_argument("--nodes", "-N", dest="nodes", type=_nodes)
    made.add_argument("--ntasks-per-node", type=int, dest="tasks_per_node")
    made.add_argument("--gpus-per-task", type=_of_task, dest="gpus_per_task")
    made.add_argument("--nodelist", "-w")
    made.add_argument("--label", "-l", action="store_true")
    made.add_argument("--kill-on-bad-exit", "-K", nargs="?", const="1", default="0", dest="kill")
    made.add_argument("--output", "-o", default="")
    made.add_argument("--error", "-e", default="")
    made.add_argument("--chdir", "-D", default="")
    made.add_argument("--export", default="ALL")
    made.add_argument("--jobid")
    made.add_argument("--mpi", default="none", choices=("none",))
    made.add_argument("--input", "-i", default="none", choices=("none", "/dev/null"))
    for each in IGNORED.split("|"):
        made.add_argument(*_names(each), dest="ignored")
    for each in IGNORED_FLAGS.split("|"):
        made.add_argument(*_names(each), dest="ignored", action="store_true")
    made.add_argument("words", nargs=argparse.REMAINDER)
    return made


def _names(text: str) -> list[str]:
    name, *short = text.split()
    return [f"--{name}", *(f"-{letter}" for letter in short)]


def _nodes(text: str) -> int:
    return int(text.partition("-")[2] or text)


def _of_task(text: str) -> int:
    return int(text.rpartition(":")[2])


def main(words: list[str]) -> int:
    """Run a step and return its exit code.

    Args:
        words: The command line.
    """
    for word in words:
        if not word.startswith("-") or word == "--":
            break
        if (name := word.partition("=")[0]) in REFUSED:
            return _wrong(f"{name}: {REFUSED[name]}")
    try:
        given = parser().parse_args(words)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else FAILED
    command = given.words[1:] if given.words[:1] == ["--"] else given.words
    if not command:
        return _wrong("srun what? srun [options] COMMAND [ARG...]")
    if given.jobid not in (None, os.environ.get("SLURM_JOB_ID")):
        return _wrong(f"--jobid={given.jobid}: a step begins only inside its own job")
    path = os.environ.get(SOCKET, "")
    if not path:
        return _wrong("this is not inside a job")
    numbers = (given.tasks, given.nodes, given.tasks_per_node)
    if any(number is not None and number < 1 for number in numbers):
        return _wrong("tasks and nodes are numbers from 1 on")
    env = _exported(given.export)
    request = {
        "argv": command,
        "env": env,
        "folder": os.path.abspath(given.chdir or os.getcwd()),
        "tasks": given.tasks,
        "nodes": given.nodes,
        "tasks_per_node": given.tasks_per_node,
        "gpus_per_task": given.gpus_per_task or int(env.get("SLURM_GPUS_PER_TASK", "0")),
        "nodelist": [name for name in (given.nodelist or "").split(",") if name],
        "kill": given.kill != "0",
    }
    tasks = given.tasks or int(os.environ.get("SLURM_NTASKS", "1"))
    name = os.environ.get("SLURM_JOB_NAME", "")
    try:
        shown = Shown(
            label=given.label,
            digits=len(str(tasks - 1)),
            output=file_name(given.output, os.environ, name) if given.output else "",
            error=file_name(given.error, os.environ, name) if given.error else "",
        )
        code = asyncio.run(_ask(path, request, shown))
    except (FrameError, OSError) as error:
        return _wrong(str(error))
    shown.close()
    return code


def _exported(wanted: str) -> dict[str, str]:
    words = [word for word in wanted.split(",") if word]
    all_of_it = "ALL" in words or not words
    env = {
        name: value
        for name, value in os.environ.items()
        if all_of_it
        or name in words
        or name.startswith(("SLURM_", "SKEP_"))
        or name in ("PATH", "HOME", "USER", "PYTHONPATH")
    }
    return env | dict(word.split("=", 1) for word in words if "=" in word)


async def _ask(path: str, request: dict[str, Any], shown: Shown) -> int:
    reader, writer = await asyncio.open_unix_connection(path, limit=LINE_BYTES_MAX)
    loop = asyncio.get_running_loop()

    def passed_on(number: int) -> None:
        writer.write(b'{"signal":%d}\n' % number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        loop.add_signal_handler(number, passed_on, number)
    await frames.send(writer, request)
    while (message := await frames.receive(reader)) is not None:
        if "end" in message:
            return int(message["end"])
        shown.take(message)
    msg = "the batch process of this job is gone"
    raise FrameError(msg)
