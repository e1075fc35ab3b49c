"""`python3 -m skep_job.slurm.batch`: a worker of a job that Slurm's shims handed in.

The first worker runs the script once, or the command as a step; the others run what it is given.
"""

from __future__ import annotations

import os
import sys

if not getattr(sys.flags, "safe_path", False) and sys.path[:1] in ([os.getcwd()], [""]):
    del sys.path[0]  # A `json.py` of the user is not for this program.

import asyncio
import contextlib
import shutil
import signal
import tempfile
from typing import Any

from skep_job.slurm import plan as plans
from skep_job.slurm.frames import FrameError
from skep_job.slurm.steps import Leader, follow, keep
from skep_job.slurm.tasks import warn, write

FAILED = 1
COMMANDS = ("srun", "scontrol")
NOT_HERE = ("sbatch", "salloc", "sattach", "squeue", "scancel", "sinfo", "sacct", "sstat", "sbcast")
"""A job has no credentials of the cluster that it runs on."""
FORMER = (
    "#!/bin/sh\nexec '{python}' -I -c "
    "'import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from skep_job.slurm.{module} import main; sys.exit(main(sys.argv[1:]))' '{libs}' \"$@\"\n"
)
REFUSER = (
    "#!/bin/sh\necho '{name}: error: inside a job there are srun and scontrol alone' >&2\nexit 1\n"
)
PIECE_BYTES = 64 * 1024


class Output:
    """Where a stream of the script goes: to the job's log, and to a file if it has one."""

    def __init__(self, stream: int, path: str, *, append: bool) -> None:
        self._stream = stream
        self._file = -1
        if path:
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
            flags |= os.O_APPEND if append else os.O_TRUNC
            try:
                self._file = os.open(path, flags, 0o644)
            except OSError as error:
                warn(f"slurm: {path} cannot be written, `skep logs` has it all: {error.strerror}")

    def take(self, piece: bytes) -> None:
        """Write a piece of output."""
        write(self._stream, piece)
        if self._file >= 0:
            try:
                write(self._file, piece)
            except OSError as error:
                warn(f"slurm: the file of output ends here, `skep logs` goes on: {error.strerror}")
                os.close(self._file)
                self._file = -1


def main() -> int:
    """Be one worker; return its exit code."""
    try:
        plan = plans.read(os.environ)
    except plans.PlanError as error:
        warn(f"slurm: {error}")
        return FAILED
    try:
        return asyncio.run(_serve(plan))
    except FrameError as error:
        warn(f"slurm: {error}")
        return FAILED
    except OSError as error:
        warn(f"slurm: {error}")
        return FAILED


async def _serve(plan: dict[str, Any]) -> int:
    rank = int(os.environ.get("SKEP_RANK", "0"))
    address = None
    if plan["nodes"] > 1:
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        if rank:
            _leave_to_the_first(plan)
            return await follow(plan, rank, address)
    folder = tempfile.mkdtemp(prefix="skep-slurm-")
    leader = Leader(plan, address)
    try:
        await leader.open(f"{folder}/steps")
        _write_commands(folder)
        env = plans.script_environment(os.environ, plan, leader.names, folder)
        run = _run_step if plan.get("step") else _run_script
        return await run(plan, leader, folder, env)
    finally:
        await leader.close()
        shutil.rmtree(folder, ignore_errors=True)


def _leave_to_the_first(plan: dict[str, Any]) -> None:
    """Take the signal before the time limit and do nothing: the first worker sends it to tasks."""
    wanted = plan.get("signal")
    if wanted and wanted.get("told"):
        number = getattr(signal, f"SIG{wanted['name']}")
        asyncio.get_running_loop().add_signal_handler(number, lambda: None)


def _write_commands(folder: str) -> None:
    """Make `srun` and the like, in a folder that is first in the script's PATH."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    libs = os.path.dirname(package)
    os.mkdir(f"{folder}/bin")
    for name in (*COMMANDS, *NOT_HERE):
        text = (
            FORMER.format(python=sys.executable, module=name, libs=libs)
            if name in COMMANDS
            else REFUSER.format(name=name)
        )
        _write(f"{folder}/bin/{name}", text)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    os.chmod(path, 0o700)


async def _run_script(
    plan: dict[str, Any], leader: Leader, folder: str, env: dict[str, str]
) -> int:
    """Run the batch script; return how it ended."""
    path = f"{folder}/slurm_script"
    _write(path, os.environ.get(plans.SCRIPT, ""))
    stdin = _opened(_spelled(plan["input"], env, plan) if plan.get("input") else os.devnull)
    apart = bool(plan.get("error"))
    pipe = asyncio.subprocess.PIPE
    with stdin:
        process = await asyncio.create_subprocess_exec(
            path,
            *sys.argv[1:],
            env=env,
            stdin=stdin,
            stdout=pipe,
            stderr=pipe if apart else asyncio.subprocess.STDOUT,
        )
    _pass_signals(plan, leader, process)
    outputs = [(process.stdout, Output(1, _path(plan, "output", env), append=plan["append"]))]
    if apart:
        outputs.append(
            (process.stderr, Output(2, _path(plan, "error", env), append=plan["append"]))
        )
    await asyncio.gather(*(_pump(stream, output) for stream, output in outputs))
    code = await process.wait()
    return 128 - code if code < 0 else code


def _opened(path: str) -> Any:
    return open(path, "rb")


def _path(plan: dict[str, Any], which: str, env: dict[str, str]) -> str:
    pattern = plan.get(which) or ""
    return _spelled(pattern, env, plan) if pattern and pattern != "none" else ""


def _spelled(pattern: str, env: dict[str, str], plan: dict[str, Any]) -> str:
    return plans.file_name(pattern, env, plan.get("name", ""))


async def _pump(stream: Any, output: Output) -> None:
    while piece := await stream.read(PIECE_BYTES):
        output.take(piece)


def _pass_signals(
    plan: dict[str, Any], leader: Leader, process: asyncio.subprocess.Process | None
) -> None:
    """Outlive what ends the script, so that its end is told, and warn of the time limit."""
    loop = asyncio.get_running_loop()

    def send(number: int, *, script: bool) -> None:
        if script and process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
        keep(leader.signal(number))

    # The agent sends these to every process of a job, the script among them.
    for caught in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(caught, lambda: None)
    if process is None:
        # A step has process groups of its own, and is told by the agent all the same.
        loop.add_signal_handler(signal.SIGTERM, lambda: keep(leader.stop(None)))
    wanted = plan.get("signal")
    if wanted:
        number = int(getattr(signal, f"SIG{wanted['name']}", 0) or wanted["name"])
        if wanted.get("told"):  # By the job's `limits.warn`, which counts no suspended time.
            loop.add_signal_handler(number, lambda: send(number, script=wanted["script"]))
            return
        after_s = max(0, wanted["limit_s"] - wanted["before_s"])
        loop.call_later(after_s, lambda: send(number, script=wanted["script"]))


async def _run_step(plan: dict[str, Any], leader: Leader, folder: str, env: dict[str, str]) -> int:
    """Run the job's command as a step of all its tasks; return how it ended."""
    from skep_job.slurm.srun import Shown

    shown = Shown(
        label=bool(plan.get("label")),
        digits=len(str(plan["tasks"] - 1)),
        output=_path(plan, "output", env),
        error=_path(plan, "error", env),
    )

    async def tell(message: dict[str, Any]) -> None:
        shown.take(message)

    _pass_signals(plan, leader, None)
    request = {
        "argv": sys.argv[1:],
        "env": env,
        "folder": os.getcwd(),
        "kill": plan.get("kill"),
        "gpus_per_task": plan.get("gpus_per_task"),
    }
    code = await leader.run(request, tell)
    shown.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
