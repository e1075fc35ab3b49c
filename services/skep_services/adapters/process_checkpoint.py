"""Images of the processes of a run, by CRIU: for jobs that store no state themselves.

    running --dump--> running, and `<checkpoints>/<job>/processes.json` names the image
    a later attempt: `restored_run` --restore--> running, from where the image was made

Off unless SKEP_PROCESS_CHECKPOINTS is `allow`, and used only where a small process was dumped and
restored when the agent began (`_verified`): what CRIU can do depends on the kernel, on its own
version and on rights. With `gpus` it is for jobs on GPUs as well: CRIU's plugin for CUDA has the
driver move what the processes hold on their GPUs into their memory on the host, by the utility
`cuda-checkpoint`, and back. The small process counts on a GPU then. The processes go on after a
dump, and after one that fails. A dump under way is never cut off, as that may harm the processes:
what is too large is refused before.

A process that holds a connection to something outside of its run is not dumped. The connection to
the agent is given up first (`skep_job.link.apart`), and the next attempt's identity is in a file
when it is taken up again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from skep.wire.commands import BindJob
from skep.wire.runs import RunPlan
from skep_services import durable
from skep_services.adapters.driver_checkpoint import UTILITY
from skep_services.agent import open_files, proc, restored_run
from skep_services.agent.memory import host_bytes_free
from skep_services.service import ConfigurationError

VARIABLE, ALLOWED, ON_GPUS = "SKEP_PROCESS_CHECKPOINTS", "allow", "gpus"
PROGRAM = "SKEP_CRIU"
"""Names another program than the `criu` in PATH."""
PLUGINS = "CRIU_LIBS_DIR"
"""CRIU's own variable: where its plugins are, if not where it was built for."""
MANIFEST, IDENTITY = "processes.json", "processes.identity"
IMAGE = "processes-"
MANIFEST_BYTES_MAX = 4 * 1024 * 1024
KEEP_FREE = 256 * 1024 * 1024
"""What a dump leaves of its disk, for the job and for the node."""
GHOST_BYTES = "256M"
"""How much of files that have been removed, and are still open, goes into an image."""
CHECK_SECONDS_MAX = 20.0
PYTHON = (os.path.realpath(sys.executable), "-I", "-S")

COUNTER = """
import sys, time
n = 0
while True:
    n += 1
    sys.stdout.write(f"{n}\\n"); sys.stdout.flush()
    time.sleep(0.01)
"""
"""The process by which a node is verified."""
COUNTER_ON_GPU = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    if status:
        sys.exit(f"{name} returned {status}")
context, memory, n = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint(0)
size = ctypes.c_size_t(4)
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(memory), size)
call("cuMemcpyHtoD_v2", memory, ctypes.byref(n), size)
while True:
    call("cuMemcpyDtoH_v2", ctypes.byref(n), memory, size)
    n.value += 1
    call("cuMemcpyHtoD_v2", memory, ctypes.byref(n), size)
    sys.stdout.write(f"{n.value}\\n"); sys.stdout.flush()
    time.sleep(0.01)
"""
"""The same, with the count on a GPU."""


class Image(msgspec.Struct, frozen=True):
    """An image that a later attempt may go on from.

    `output`: the log that its processes write to. `files`: path, length and inode of what they
    have open for writing. `at` is in nanoseconds since 1970. `gpus`: the driver's names of those
    that its processes were on.
    """

    folder: str
    job: str
    attempt: int
    pid: int
    at: int
    bytes: int
    output: str
    files: tuple[tuple[str, int, int], ...]
    kernel: str
    criu: str
    sums: dict[str, tuple[int, int]] = {}
    """Of each file of the image its length and CRC-32: CRIU itself may hang on a damaged one."""
    gpus: tuple[str, ...] = ()


class OnGpus(NamedTuple):
    """The GPUs of a run by the driver's names, and the bytes that its processes hold there."""

    names: tuple[str, ...] = ()
    bytes: int = 0


NO_GPUS = OnGpus()


class Dumped(NamedTuple):
    """What came of a dump: its size and how long the processes stood, or why there is none."""

    bytes: int = 0
    pause_ns: int = 0
    trouble: str = ""


class ProcessCheckpoints:
    """Makes images of runs, and has later attempts begin from them."""

    def __init__(
        self, criu: tuple[str, ...], version: str, environment: Mapping[str, str] | None = None
    ) -> None:
        """Use the program `criu` of this version, with variables for it beside the agent's."""
        self.criu, self.version = criu, version
        self.environment = dict(environment or {})
        self._through_host = asyncio.Lock()
        """Held while memory of GPUs is in that of the host."""

    async def dump(
        self,
        pid: int,
        folder: Path,
        job: str,
        attempt: int,
        output: str = "",
        gpus: OnGpus = NO_GPUS,
    ) -> Dumped:
        """Write an image of a run's processes, which go on whatever comes of it.

        Args:
            pid: The run's main process.
            folder: Where the job keeps checkpoints. The image before this one is removed.
            job: The job's id.
            attempt: The number of its attempt.
            output: The log of the run.
            gpus: Where its processes are. What they hold there comes to the host's memory.
        """
        root = _root_of(pid)
        async with self._through_host if gpus.bytes else contextlib.nullcontext():
            return await self._dumped(root, folder, (job, attempt, root, output), gpus)

    async def _dumped(
        self, root: int, folder: Path, whose: tuple[str, int, int, str], gpus: OnGpus
    ) -> Dumped:
        images, trouble = await asyncio.to_thread(_room, folder, root, gpus.bytes)
        if images is None:
            return Dumped(trouble=trouble)
        began = time.monotonic_ns()
        try:
            trouble = await self._dump(root, images)
            pause_ns = time.monotonic_ns() - began
            if not trouble:
                image = await asyncio.to_thread(self._keep, images, folder, whose, gpus.names)
                return Dumped(image.bytes, pause_ns)
        except (OSError, ValueError) as error:
            trouble = str(error)
        shutil.rmtree(images, ignore_errors=True)
        return Dumped(trouble=trouble)

    async def _dump(self, pid: int, images: Path) -> str:
        """Have CRIU write an image; return why it did not, or an empty text."""
        lists = shlex.join([*PYTHON, open_files.__file__, str(pid), str(images / "files.json")])
        script = images / "action.sh"
        script.write_text(f'#!/bin/sh\n[ "$CRTOOLS_SCRIPT_ACTION" != post-dump ] || exec {lists}\n')
        script.chmod(0o700)
        words = ("--images-dir", str(images), "--log-file", "dump.log", "-v1", "--leave-running")
        more = (
            "--manage-cgroups=ignore",
            "--ghost-limit",
            GHOST_BYTES,
            "--action-script",
            str(script),
        )
        try:
            process = await asyncio.create_subprocess_exec(
                *self.criu,
                *("dump", "--tree", str(pid), *words, *more),
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=DEVNULL,
                env={**os.environ, **self.environment},
            )
        except OSError as error:
            return f"{self.criu[0]}: {error.strerror}"
        # Not bounded: a CRIU that is killed may leave its code in the job's processes.
        code = await process.wait()
        if code == 0:
            return ""
        said = restored_run.last_error(str(images / "dump.log"))
        return f"CRIU could not store the processes: {said or f'it ended with status {code}'}"

    def _keep(
        self, images: Path, folder: Path, whose: tuple[str, int, int, str], gpus: tuple[str, ...]
    ) -> Image:
        """Make an image the job's latest, and remove those before.

        Raises:
            OSError: It cannot be written.
            ValueError: The list of open files is none.
        """
        files = json.loads((images / "files.json").read_bytes())
        sums = {}
        for path in sorted(images.iterdir()):
            with path.open("rb") as file:
                os.fsync(file.fileno())
            sums[path.name] = restored_run.sum_of(str(path))
        durable.sync_folder(str(images))
        job, attempt, pid, output = whose
        image = Image(
            folder=images.name,
            job=job,
            attempt=attempt,
            pid=pid,
            at=time.time_ns(),
            bytes=sum(size for size, _ in sums.values()),
            output=_written_to(pid, output),
            files=tuple(tuple(one) for one in files if one[0] != output),
            kernel=os.uname().release,
            criu=self.version,
            sums=sums,
            gpus=gpus,
        )
        durable.write(str(folder / MANIFEST), msgspec.json.encode(image))
        for other in folder.glob(f"{IMAGE}*"):
            if other != images:
                shutil.rmtree(other, ignore_errors=True)
        return image

    def restored(
        self, plan: RunPlan, command: BindJob, folder: Path, secret: str, gpus: tuple[str, ...] = ()
    ) -> tuple[RunPlan, str]:
        """Return how an attempt begins: from an image of an earlier one, if there is one.

        Args:
            plan: How it would begin from the start.
            command: The job's part on this node.
            folder: Where the job keeps checkpoints.
            secret: What the processes show to the agent in this attempt.
            gpus: The driver's names of the GPUs of this attempt.

        Returns:
            The plan, and why an image that is there is not used; else an empty text.
        """
        image, trouble = image_in(folder)
        if image is None or not alone(command):
            return plan, trouble
        trouble = self._unfit(image, command, gpus)
        if trouble:
            return plan, trouble
        try:
            identify(folder, command.job, command.attempt, secret, plan.env.get("SKEP_SOCK", ""))
        except OSError as error:
            return plan, f"{folder / IDENTITY}: {error.strerror}"
        when = time.strftime("%H:%M:%S", time.gmtime(image.at / 1e9))
        text = f"the image of attempt {image.attempt}, made at {when} UTC,"
        order = self.order(image, folder, image.output, text)
        argv = (*PYTHON, restored_run.__file__, order, *plan.argv)
        return msgspec.structs.replace(plan, argv=argv, warm=None), ""

    def order(self, image: Image, folder: Path, output: str, text: str) -> str:
        """Return what `restored_run` is to do with an image, as JSON.

        Args:
            image: The image.
            folder: Where its manifest is.
            output: The log that what the processes wrote to it goes to; empty: as it was.
            text: How the job's log names the image.
        """
        order = {
            "images": str(folder / image.folder),
            "criu": self.criu,
            "environment": self.environment,
            "pid": image.pid,
            "output": output,
            "files": image.files,
            "sums": image.sums,
            "text": text,
        }
        return json.dumps(order)

    def _unfit(self, image: Image, command: BindJob, gpus: tuple[str, ...]) -> str:
        """Return why an attempt cannot go on from an image, or an empty text."""
        if image.job != command.job or image.attempt >= command.attempt:
            return f"it is of attempt {image.attempt} of {image.job}"
        if image.kernel != os.uname().release:
            return f"it was made on kernel {image.kernel}, and this is {os.uname().release}"
        if image.criu != self.version:
            return f"CRIU {image.criu} made it, and here is {self.version}"
        if image.gpus != gpus:
            return f"it was made on {_listed(image.gpus)}, and this attempt has {_listed(gpus)}"
        return ""


def _listed(gpus: tuple[str, ...]) -> str:
    return ", ".join(gpus) or "no GPU"


def _room(folder: Path, root: int, on_gpus: int) -> tuple[Path | None, str]:
    """Return a new folder for an image of a process tree; or None, and why it has no room."""
    spare = host_bytes_free()
    if on_gpus > spare:
        return None, f"{_size(on_gpus)} of GPU memory do not fit: the host has {_size(spare)} free"
    needed = _anonymous(root) + on_gpus
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        free = max(shutil.disk_usage(folder).free - KEEP_FREE, 0)
        if needed > free:
            return None, f"{_size(needed)} do not fit: {folder} has {_size(free)} to spare"
        return Path(tempfile.mkdtemp(prefix=IMAGE, dir=folder)), ""
    except OSError as error:
        return None, f"{folder}: {error.strerror}"


def alone(command: BindJob) -> bool:
    """Return whether a part is one process tree in folders that outlive it: all of its job."""
    gang = command.world != 1 or len(command.ranks) != 1 or command.nodes != 1
    meets = command.distributed or command.joins or command.awaits or command.servers
    return not (gang or meets or command.image or command.code)


def image_in(folder: Path) -> tuple[Image | None, str]:
    """Return the image in a job's folder of checkpoints, or None and what is wrong with it."""
    path = folder / MANIFEST
    try:
        if path.stat().st_size > MANIFEST_BYTES_MAX:
            return None, f"{path} is longer than {MANIFEST_BYTES_MAX} bytes"
        image = msgspec.json.decode(path.read_bytes(), type=Image)
    except FileNotFoundError:
        return None, ""
    except (OSError, msgspec.DecodeError) as error:
        return None, f"{path}: {error}"
    whole = image.folder.startswith(IMAGE) and "/" not in image.folder
    if not whole or not (folder / image.folder).is_dir():
        return None, f"{path} names {image.folder!r}, which is not there"
    return image, ""


def identify(folder: Path, job: str, attempt: int, secret: str, path: str) -> None:
    """Tell processes that gave up their connection as what they take it up again.

    Args:
        folder: Where the job keeps checkpoints.
        job: The job's id.
        attempt: The attempt that they are from now on.
        secret: What they show to the agent.
        path: The agent's socket.

    Raises:
        OSError: It cannot be written.
    """
    identity = {"job": job, "attempt": attempt, "secret": secret, "path": path}
    durable.write(str(folder / IDENTITY), json.dumps(identity).encode(), sync=False)


async def open_process_checkpoints(
    environment: Mapping[str, str], state: Path, gpu: Mapping[str, str] | None = None
) -> tuple[ProcessCheckpoints | None, str]:
    """Return what makes images of processes if it is allowed and works here.

    Args:
        environment: Where SKEP_PROCESS_CHECKPOINTS, SKEP_CRIU and PATH are.
        state: A folder in which a small process is dumped and restored.
        gpu: The variables that show a process one GPU of this node; None: jobs have none.

    Returns:
        It and an empty text; or None and why not, which is empty if it is not allowed.

    Raises:
        ConfigurationError: SKEP_PROCESS_CHECKPOINTS has a value that means nothing.
    """
    wanted = environment.get(VARIABLE, "")
    if not wanted:
        return None, ""
    if wanted not in (ALLOWED, ON_GPUS):
        message = f"{VARIABLE} is {wanted!r}: it must be `{ALLOWED}`, `{ON_GPUS}`, or not set"
        raise ConfigurationError(message)
    if gpu is not None and wanted != ON_GPUS:
        return None, f"jobs here are on GPUs, and {VARIABLE} is `{wanted}`, not `{ON_GPUS}`"
    path = environment.get("PATH")
    named = environment.get(PROGRAM, "") or "criu"
    tool = shutil.which(named, path=path)
    if tool is None:
        return None, f"{named} is not in PATH: install CRIU, or name it in {PROGRAM}"
    if gpu is not None and shutil.which(UTILITY, path=path) is None:
        return None, f"{UTILITY} is not in PATH: install it (github.com/NVIDIA/cuda-checkpoint)"
    criu = (tool,) if os.geteuid() == 0 else (tool, "--unprivileged")
    variables = {name: environment[name] for name in ("PATH", PLUGINS) if name in environment}
    return await asyncio.to_thread(_verified, criu, variables, state, gpu)


def _verified(
    criu: tuple[str, ...], variables: Mapping[str, str], state: Path, gpu: Mapping[str, str] | None
) -> tuple[ProcessCheckpoints | None, str]:
    """Dump and restore a small process."""
    try:
        said = subprocess.run(
            [*criu, "--version"], capture_output=True, timeout=CHECK_SECONDS_MAX, check=False
        )
        version = said.stdout.decode(errors="replace").partition("Version:")[2].split()[0]
    except (OSError, subprocess.TimeoutExpired, IndexError) as error:
        return None, f"{criu[0]} does not say its version: {error}"
    made = ProcessCheckpoints(criu, version, variables)
    with tempfile.TemporaryDirectory(prefix="verify-", dir=state) as name:
        trouble = _tried(made, Path(name), gpu)
    return (None, f"CRIU {version} does not work here: {trouble}") if trouble else (made, "")


def _tried(made: ProcessCheckpoints, folder: Path, gpu: Mapping[str, str] | None) -> str:
    """Return why a process that counts does not go on from its image, or an empty text."""
    log, counter = folder / "log", COUNTER if gpu is None else COUNTER_ON_GPU
    environment = {**os.environ, **(gpu or {})}
    with log.open("ab") as output:
        first = _begin([*PYTHON, "-c", counter], output, environment)
        try:
            if not _grows(log, 0, first):
                return f"a Python process does not count: {_last_line(log.read_bytes())}"
            dumped = asyncio.run(made.dump(first.pid, folder, "j0", 1, str(log)))
        finally:
            _end(first)
        if dumped.trouble:
            return dumped.trouble
        image, trouble = image_in(folder)
        if image is None:
            return trouble
        before = log.read_bytes()
        order = made.order(image, folder, "", "the image")
        argv = [*PYTHON, restored_run.__file__, order, "/bin/false"]
        second = _begin(argv, output, environment)
        try:
            since = len(before)
            _wait_for(lambda: second.poll() is not None or b"goes on" in log.read_bytes()[since:])
            said = log.read_bytes()[since:].decode(errors="replace")
            if second.poll() is not None:
                return said.partition("from the start: ")[2].strip() or "it does not come back"
            if not _grows(log, log.stat().st_size, second):
                return "it comes back and does not go on"
            return _miscounted(before, log.read_bytes()[since:])
        finally:
            _kill(image.pid, second.pid)
            _end(second)


def _miscounted(before: bytes, since: bytes) -> str:
    """Return what is wrong with how a process counts after it came back, or an empty text."""
    counted = [int(line) for line in before.split() if line.isdigit()]
    again = [int(line) for line in since.splitlines() if line.isdigit()]
    # It was dumped at some count up to the last, and counts on from there.
    right = counted and again and 1 < again[0] <= counted[-1] + 1
    return "" if right else f"it counts on from {again[:1]}, and had counted to {counted[-1:]}"


def _last_line(text: bytes) -> str:
    return (text.decode(errors="replace").strip().splitlines() or ["it writes nothing"])[-1]


def _begin(
    argv: list[str], output: IO[bytes], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        env=environment,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _kill(pid: int, parent: int) -> None:
    """End a process if it is a child of this parent, and so what was restored."""
    one = proc.process(pid)
    if one is not None and one.ppid == parent:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _grows(path: Path, size: int, process: subprocess.Popen[bytes]) -> bool:
    """Return whether a process that lives writes more to its log."""
    grown = _wait_for(lambda: path.stat().st_size > size or process.poll() is not None)
    return grown and process.poll() is None


def _wait_for(look: Callable[[], bool]) -> bool:
    until = time.monotonic() + CHECK_SECONDS_MAX
    while not look():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)  # tidy: allow sleep because it looks at a condition until a deadline
    return True


def _root_of(pid: int) -> int:
    """Return the first process of the job itself: below what waits for restored ones."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if os.fsencode(restored_run.__file__) in words:
            return next(iter(proc.children(pid)), pid)
    return pid


def _anonymous(pid: int) -> int:
    """Return how many bytes of a process tree an image has, about."""
    total = 0
    for one in proc.tree(proc.processes(), [pid]).values():
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{one.pid}/status") as file:
            for line in file:
                if line.startswith(("RssAnon:", "RssShmem:")):
                    total += int(line.split()[1]) * 1024
    return total


def _written_to(pid: int, output: str) -> str:
    """Return the log of a run if its first process still writes to it."""
    with contextlib.suppress(OSError):
        if output and os.path.samefile(f"/proc/{pid}/fd/1", output):
            return output
    return ""


def _size(count: int) -> str:
    return f"{count / 1e6:.0f} MB"
