"""What a job's process gets: arguments, environment, folders. Pure but for the base values."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from skep.ids import attempt_id
from skep.machines.agent import StartRank
from skep.wire.commands import AGENT_PYTHON, BindJob, is_restored
from skep.wire.runs import RunPlan
from skep.wire.volumes import variables
from skep_services.adapters.devices import Devices, host_memory
from skep_services.agent.checkpoints import Checkpoints, checkpoints_dir
from skep_services.agent.memory import host_budget
from skep_services.agent.proc import RUN_VARIABLE
from skep_services.agent.resuming import Folders, before
from skep_services.agent.runner_log import LOG_BYTES_MIN
from skep_services.agent.warm import warm_of
from skep_services.service import ConfigurationError

LOG_BYTES_MAX = 64 * 1024 * 1024
"""One rank's log, unless SKEP_LOG_BYTES_MAX says otherwise: enough for a million lines, and 16
flooding ranks cannot fill a usual disk."""
SCRIPT_AT = 3
"""Where the script is in the allocator's `@python -m skep_job SCRIPT ...`."""
GIVEN_STDIN = ("/bin/sh", "-c", 'exec "$@" <"$0"')
"""Opens the file that follows as its standard input, and becomes the command after it."""
INHERITED = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TZ",
    "USER",
    "LOGNAME",
    "SHELL",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "COVERAGE_PROCESS_START",
    "COVERAGE_PROCESS_CONFIG",
)
"""Variables of the agent that jobs see. Everything else, credentials above all, stays here."""
OF_AN_ACCOUNT = frozenset({"HOME", "USER", "LOGNAME", "SHELL", "TMPDIR"})
"""Those that are not the agent's to give where a job has an account of its own."""
CONTAINER_INHERITED = ("LANG", "LC_ALL", "TZ", "USER", "LOGNAME")
"""Those that containers see too: paths are the image's own."""
CONTAINER_FOLDERS = "SKEP_CONTAINER_FOLDERS"
IMAGE_PYTHON = "python3"
NOTEBOOK = ("python3", "-m", "skep_job.notebook")
"""What `skep notebook` runs: a part of the job's library."""
JOB_LIBRARY, START_UP = "skep_job", "start_up"
JOB_LIBRARIES = (JOB_LIBRARY, "skep_ps")


def socket_path(state: Path) -> Path:
    """Return where jobs reach the agent: in a folder of its own, which containers see."""
    return state / "sock" / "jobs.sock"


def log_path(state: Path, job: str, attempt: int, rank: int) -> Path:
    """Return where a rank's output goes."""
    return state / "logs" / job / str(attempt) / f"rank{rank}.log"


def log_bytes_max(environment: Mapping[str, str]) -> int:
    """Return how large one rank's log may become (bytes).

    Args:
        environment: The agent's environment.

    Raises:
        ConfigurationError: SKEP_LOG_BYTES_MAX is no number, or too small a one.
    """
    text = environment.get("SKEP_LOG_BYTES_MAX", "")
    if not text:
        return LOG_BYTES_MAX
    if text.isascii() and text.isdecimal() and len(text) < 16 and int(text) >= LOG_BYTES_MIN:
        return int(text)
    message = f"SKEP_LOG_BYTES_MAX is {text!r}: it must be a number of bytes from {LOG_BYTES_MIN}"
    raise ConfigurationError(message)


def container_folders(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the folders that every container sees, by an operator's wish.

    They are for data sets and environments that no image has.

    Args:
        environment: The agent's environment.

    Raises:
        ConfigurationError: One is not a full path, or is the root.
    """
    paths = [path for path in environment.get(CONTAINER_FOLDERS, "").split(":") if path]
    for path in paths:
        if not os.path.isabs(path) or os.path.normpath(path) == "/":
            message = (
                f"{CONTAINER_FOLDERS} has {path!r}: it must be full paths of folders, with colons "
                "between them"
            )
            raise ConfigurationError(message)
    return tuple(paths)


def run_plan(
    start: StartRank,
    state: Path,
    devices: Devices,
    inherited: Mapping[str, str],
    *,
    accounts: bool = False,
    earlier: Sequence[int] = (),
) -> RunPlan:
    """Return the process to execute for one rank of a gang, or the container.

    Args:
        start: The rank, and the job's part on this node.
        state: The agent's state folder, or the one that it shares with jobs.
        devices: The node's devices.
        inherited: The agent's environment, of which a job sees only what does no harm.
        accounts: A launcher gives the job an account, which has a home of its own.
        earlier: The attempts of the job that have left a folder here.
    """
    if accounts:
        inherited = {name: inherited[name] for name in inherited if name not in OF_AN_ACCOUNT}
    command, plan = start.command, start.plan
    image, argv = command.image, tuple(command.argv)
    library: dict[str, str] = {}
    checkpoints = str(Checkpoints(state, inherited).path(command.job))
    work = _work(state, command.job, command.attempt) if command.code else ""
    workdir = command.workdir or _usual_workdir(checkpoints if image else str(state), accounts)
    if work:
        workdir = os.path.normpath(os.path.join(work, command.workdir))
    script = python_path = ""
    if argv[0] == AGENT_PYTHON:
        script = "" if image else argv[SCRIPT_AT]
        argv = (command.python or (IMAGE_PYTHON if image else sys.executable), *argv[1:])
        python_path = str(job_library_path(state)) if image else ""
        if command.python and not image:
            # Another interpreter has no Skep: it finds the job's end alone, and nothing beside it.
            library = _first_in_python_path(str(job_library_path(state)), command)
    elif image:
        python_path = str(job_library_path(state) / JOB_LIBRARY / START_UP)
        if argv[:3] == NOTEBOOK:  # Any Python finds it outside of images, as the agent's does.
            python_path += f":{job_library_path(state)}"
    else:
        # Whatever Python the command starts may turn out to train.
        library = _first_in_python_path(start_up_path(), command)
    works: dict[int, str] = {}
    if command.resume is not None:
        works = {n: _work(state, command.job, n) for n in earlier if n < command.attempt}
        shared = checkpoints_dir(inherited) is not None
        folders = Folders(workdir, checkpoints, shared, works, job_library_path(state))
        argv = before(command, command.resume, argv, folders)
    if command.stdin and plan.rank == 0:
        argv = (*GIVEN_STDIN, os.path.join(work, command.stdin), *argv)
    return RunPlan(
        token=start.token,
        argv=argv,
        env={
            **(_container_base(inherited) if image else _base(inherited, command.python)),
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",  # A set has one order in every process that goes on with a job.
            **_names(command),
            **_environment_variables(command),
            **(_torchrun_variables(start) if command.distributed else {}),
            **command.env,
            **library,
            **_rank_variables(start, state),
            **_change_variables(start, state, inherited),
            **variables(command.mounts),
            **(devices.in_container if image else devices.visible)(plan.devices),
        },
        image=image,
        gpus=devices.names(plan.devices) if image else (),
        workdir=workdir,
        log_path=str(log_path(state, command.job, command.attempt, plan.rank)),
        log_bytes_max=log_bytes_max(inherited),
        script=script,
        folders=(
            checkpoints,
            *container_folders(inherited),
            *((work, workdir) if work else ()),
            *works.values(),
        ),
        folders_to_read=(str(job_library_path(state)), str(socket_path(state).parent)),
        python_path=python_path,
        job=command.job,
        owner=command.owner,
        vc=command.vc,
        device_nodes=devices.nodes(plan.devices),
        checkpoints=checkpoints,
        meets=_meets(command),
        mounts=command.mounts,
        # Restored since its first epoch: whenever that was, ids came again.
        fresh=not command.joins and is_restored(command.epoch, 1),
        work=work,
        warm=warm_of(command, inherited, accounts=accounts),
    )


def _work(state: Path, job: str, attempt: int) -> str:
    """Return the folder of an attempt of a job that brought its code."""
    return str(state / "work" / job / str(attempt))


def _meets(command: BindJob) -> bool:
    """Return whether other processes connect to those of a part, or may come to do so."""
    gang = command.distributed or command.world > 1 or bool(command.joins)
    return gang or bool(command.awaits or command.servers)


def _usual_workdir(folder: str, accounts: bool) -> str:
    """Return where a job begins that names no place: a launcher knows the account's home."""
    return "" if accounts else folder


def _first_in_python_path(folder: str, command: BindJob) -> dict[str, str]:
    theirs = command.env.get("PYTHONPATH")
    return {"PYTHONPATH": f"{folder}:{theirs}" if theirs else folder}


def _base(inherited: Mapping[str, str], python: str) -> dict[str, str]:
    """Return the agent's harmless variables, the interpreters' folders first in PATH.

    The job's interpreter comes before the agent's own.
    """
    kept = {name: inherited[name] for name in INHERITED if name in inherited}
    folders = [str(Path(each).parent) for each in (python, sys.executable) if each.startswith("/")]
    kept["PATH"] = ":".join([*folders, kept.get("PATH", "/usr/local/bin:/usr/bin:/bin")])
    return {**kept, "PYTHONUNBUFFERED": "1"}


def _container_base(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return what a container gets beside what its image sets, paths above all.

    The agent's user need not exist in the image: then it has no home there, and no name.
    """
    kept = {name: inherited[name] for name in CONTAINER_INHERITED if name in inherited}
    home = {} if os.getuid() == 0 else {"HOME": "/tmp"}  # noqa: S108 - the container's own
    return {"USER": "skep", "LOGNAME": "skep", **home, **kept, "PYTHONUNBUFFERED": "1"}


def job_library_path(state: Path) -> Path:
    """Return the folder, mounted in every container, that has a copy of the jobs' libraries."""
    return state / "lib" / _job_library_version()


def provide_job_library(state: Path) -> None:
    """Copy `JOB_LIBRARIES` to where containers find them, unless they are there.

    Raises:
        OSError: The folder cannot be written.
    """
    wanted = job_library_path(state)
    if wanted.exists():
        return
    wanted.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=wanted.parent) as folder:
        copy = Path(folder, "copy")
        for name, path in _job_library_files():
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            target.chmod(0o644)
        for folder_made in (copy, *(each for each in copy.rglob("*") if each.is_dir())):
            folder_made.chmod(0o755)  # For any account, and under any umask.
        copy.rename(wanted)


@functools.cache
def _job_library_version() -> str:
    digest = hashlib.sha256()
    for name, path in _job_library_files():
        digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def start_up_path() -> str:
    """Return the folder that has every Python below a job's command watch for training."""
    return str(_folder_of(JOB_LIBRARY) / START_UP)


def terminal_programs() -> Path:
    """Return the folder with the programs that sessions of people run beside a job's processes."""
    return _folder_of(JOB_LIBRARY) / "terminal"


def terminal_programs_in_images(state: Path) -> Path:
    """Return the folder that these programs have in every container."""
    return job_library_path(state) / JOB_LIBRARY / "terminal"


def _job_library_files() -> list[tuple[str, Path]]:
    """Return the files of the jobs' libraries, by their places in the folder of the copies."""
    return [
        (f"{library}/{path.relative_to(folder)}", path)
        for library in JOB_LIBRARIES
        for folder in [_folder_of(library)]
        for path in sorted(folder.rglob("*.py"))
    ]


def _folder_of(library: str) -> Path:
    # Found, not imported: it is for the job's process, and hooks into what it finds there.
    spec = importlib.util.find_spec(library)
    assert spec is not None, f"{library} is part of this distribution"
    assert spec.origin is not None, f"{library} is a package"
    return Path(spec.origin).parent


def _names(command: BindJob) -> dict[str, str]:
    """Return what tells the process about its job. The spec may say otherwise."""
    trace = {"TRACEPARENT": command.trace} if command.trace else {}
    return {"SKEP_NAME": command.name, "SKEP_VC": command.vc, **trace}


def _environment_variables(command: BindJob) -> dict[str, str]:
    """Return what programs know an environment by that was built for the job."""
    if command.environment is None:
        return {}
    name = "CONDA_PREFIX" if command.environment.kind == "conda" else "VIRTUAL_ENV"
    return {name: str(Path(command.python).parent.parent)}


def _torchrun_variables(start: StartRank) -> dict[str, str]:
    """Return what `torchrun` would set. The spec may say otherwise."""
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
        "TORCHELASTIC_RUN_ID": attempt_id(command.job, command.attempt),
        "TORCHELASTIC_RESTART_COUNT": str(command.attempt - 1),
    }


def _rank_variables(start: StartRank, state: Path) -> dict[str, str]:
    """Return what the job's end of Skep reads: which rank this is, and of what."""
    command, plan = start.command, start.plan
    return {
        "SKEP_JOB": command.job,
        "SKEP_GEN": str(command.attempt),
        "SKEP_RANK": str(plan.rank),
        "SKEP_WORLD": str(command.world),
        "SKEP_SOCK": str(socket_path(state)),
        RUN_VARIABLE: start.token,
        # A port of the first rank's node that no other attempt has: what a replica listens at.
        "SKEP_ADDRESS": command.master_address,
        "SKEP_PORT": str(command.master_port),
        **({"SKEP_MEMORY_SHARE": str(command.share)} if command.share else {}),
        **({"SKEP_GPU_SHARE": f"{command.gpu_share / 1000:g}"} if command.gpu_share else {}),
        **_server_variables(command),
    }


def _server_variables(command: BindJob) -> dict[str, str]:
    """Return what `skep_ps.launch` reads; the spec's own token goes before Skep's."""
    if not command.servers:
        return {}
    token = command.env.get("SKEP_PS_TOKEN", command.secret)
    return {"SKEP_PS_SERVERS": str(command.servers), "SKEP_PS_TOKEN": token}


def _change_variables(
    start: StartRank, state: Path, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return what a job needs to be suspended, stored and moved.

    A successor listens at the node's address; `SKEP_AWAITS` is what its source has to know.
    """
    command = start.command
    found = {
        "SKEP_CHECKPOINTS": str(Checkpoints(state, inherited).path(command.job)),
        "SKEP_HOST_BYTES": str(host_budget(inherited, host_memory()) // len(command.ranks)),
    }
    if command.awaits:
        found["SKEP_AWAITS"] = command.awaits
        found["SKEP_HOST"] = inherited.get("SKEP_ADDRESS", "127.0.0.1")
    return found
