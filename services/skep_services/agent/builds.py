"""The environments of jobs on this node: built once, kept for further jobs, removed again.

    SHARED/work/env-<key>/<build>/env    an environment: bin/python and what is installed
    STATE/environments/<key>             what is known of it; without `built` it is not to be used

The key is made of whose it is (VC and person), of the digest of the files that were submitted, of
the interpreter, and of the settings of pip, uv and conda. So no job uses what another person built,
or can change. A run of its own builds, with the rights of the job and into the job's log. Jobs that
want the same environment wait for one build; it is stopped when the last of them is.

What no attempt here uses goes when it was not used for KEEP_S, and the longest unused goes first
when all have more than the node keeps of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from skep.ids import attempt_of_run
from skep.units import GIB, Instant
from skep.wire.bounds import DETAIL_MAX, UNDECODABLE
from skep.wire.commands import BindJob, EnvironmentOrder
from skep.wire.reports import Building
from skep.wire.runs import RunExited, RunNotStarted, RunPlan, RunStarted
from skep_services import durable
from skep_services.agent import build
from skep_services.agent.code import (
    INTERPRETER,
    WORK,
    CodeError,
    JobCode,
    remove_tree,
    size_of,
    unpacker,
)
from skep_services.agent.environment import OF_AN_ACCOUNT, log_bytes_max, log_path
from skep_services.agent.runner_launch import NODE_ERRNOS
from skep_services.ports import NodeRuntime
from skep_services.service import ConfigurationError

BUILT_WITHIN_S = 1800.0
"""PyTorch with its CUDA libraries: 3 GB, and a link of 20 Mbit/s takes 20 minutes for it."""
ONE_BYTES_MAX = 32 * GIB
"""One environment: some times PyTorch with its CUDA libraries (6 GB)."""
KEPT_BYTES = "SKEP_ENVIRONMENT_BYTES"
KEPT_BYTES_MAX = 64 * GIB
"""All environments of a node, unless SKEP_ENVIRONMENT_BYTES says otherwise."""
STOPPED_WITHIN_S = 10.0
"""How long the end of a build that is stopped is waited for; it is killed at once."""
STOPPED = "it was stopped"
KEEP_S = 30 * 24 * 3600.0
LOOK_EVERY_S = 5.0
"""How often the size of what is being built is looked at."""
SWEEP_EVERY_S = 600.0
TAIL_BYTES = 4096
BUILDS = ".build-"
"""What is in the name of a run that builds: `env-1f2e3d4c.build-5a6b7c8d`."""
RECORDS = "environments"
PASSED_ON = ("PIP_", "UV_", "CONDA_", "MAMBA_")
"""Settings of installers: of the agent, and of a job's `env`, which then has its own build."""
OF_NETWORK = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
)
OF_USER = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "USER", "LOGNAME")


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an environment. Times are seconds since 1970.

    `users` are the attempts that may run in it, as far as this node knows.
    """

    key: str
    build: str
    vc: str
    owner: str
    kind: str
    path: str
    files: str
    built: bool = False
    bytes: int = 0
    took_s: float = 0.0
    used_at: float = 0.0
    users: tuple[tuple[str, int], ...] = ()


class BuildError(Exception):
    """An environment cannot be had. `of_node`: another node might build it."""

    def __init__(self, text: str, *, of_node: bool = False) -> None:
        super().__init__(text)
        self.of_node = of_node


class _Wanted(NamedTuple):
    key: str
    python: str
    env: dict[str, str]


class _Wait:
    """A run of a rank that waits."""

    def __init__(self) -> None:
        self.since = Instant(time.time_ns())
        self.stopped = asyncio.Event()


class _Build:
    """A build under way, and the runs of ranks that wait for it."""

    def __init__(self) -> None:
        self.waiting: dict[str, _Wait] = {}
        self.task: asyncio.Task[Kept]


def builds(token: str) -> bool:
    """Return whether a run is one that builds, of which the machine knows nothing."""
    return BUILDS in token


def kept_bytes_max(environment: Mapping[str, str]) -> int:
    """Return how many bytes of environments a node keeps.

    Args:
        environment: The agent's environment.

    Raises:
        ConfigurationError: SKEP_ENVIRONMENT_BYTES is no number.
    """
    text = environment.get(KEPT_BYTES, "")
    if not text:
        return KEPT_BYTES_MAX
    if text.isascii() and text.isdecimal() and len(text) < 16:
        return int(text)
    message = f"{KEPT_BYTES} is {text!r}: it must be a number of bytes"
    raise ConfigurationError(message)


async def _to_nobody(building: tuple[Building, ...]) -> None:
    pass


class Environments:
    """The environments on one node.

    Args:
        code: Fetches the files that say what is to be installed.
        runtime: What executes the runs that build.
        state: The agent's own folder.
        shared: The folder that it shares with jobs.
        inherited: The agent's environment.
        remove_work: Removes a folder as root, where jobs have accounts of their own; else None.
    """

    def __init__(
        self,
        code: JobCode,
        runtime: NodeRuntime,
        state: Path,
        shared: Path,
        inherited: Mapping[str, str],
        remove_work: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self._code, self._runtime, self._remove_work = code, runtime, remove_work
        self._records, self._shared = state / RECORDS, shared
        self._inherited = inherited
        self.bytes_max = kept_bytes_max(inherited)
        self._builds: dict[str, _Build] = {}
        self._ends: dict[str, asyncio.Future[RunExited]] = {}
        self._removing: dict[str, asyncio.Task[None]] = {}
        self._starting: dict[str, bool] = {}
        """The runs that are being started, and whether each was cancelled."""
        self.lives: Callable[[str, int], bool] = lambda job, attempt: True
        """Whether an attempt may have processes here; set by what knows the parts."""
        self.tell: Callable[[tuple[Building, ...]], Awaitable[None]] = _to_nobody
        """Takes what is being built, each time that changes."""

    # --- for a start ----------------------------------------------------------------------------

    async def provide(self, command: BindJob, token: str) -> str | RunNotStarted:
        """Return the interpreter of a job's environment, or why it cannot be had.

        Args:
            command: The job's part on this node.
            token: The run that is to be started there; `cancel` ends its wait.
        """
        order = command.environment
        assert order is not None, command
        try:
            wanted = self._wanted(command, order)
            kept = self._find(wanted.key)
            while kept is None or not kept.built or _is_gone(_python(self._folder(kept))):
                kept = await self._waited(wanted, command, order, token)
            self._use(kept, command)
        except (BuildError, CodeError) as error:
            text = f"the job's environment cannot be built: {error}"
            return RunNotStarted(token, text[:DETAIL_MAX], of_node=error.of_node)
        except OSError as error:
            text = f"the job's environment cannot be written to {error.filename}: {error.strerror}"
            return RunNotStarted(token, text, of_node=error.errno in NODE_ERRNOS)
        return str(_python(self._folder(kept)))

    def starting(self, token: str) -> None:
        """Take note that a run is to be started: from here on it can be cancelled."""
        self._starting[token] = False

    def is_cancelled(self, token: str) -> bool:
        """Return whether a run that is being started was cancelled meanwhile."""
        return self._starting.get(token, False)

    def settled(self, token: str) -> None:
        """Forget a run that was started, or was not."""
        self._starting.pop(token, None)

    def cancel(self, token: str) -> None:
        """End the wait of a run that is not to begin any more, and the build if no other waits."""
        if token in self._starting:
            self._starting[token] = True
        for one in self._builds.values():
            if token in one.waiting:
                one.waiting[token].stopped.set()

    async def ended(self, run: RunExited) -> None:
        """Take over the end of a run that built."""
        waiting = self._ends.get(run.token)
        if waiting is not None and not waiting.done():
            waiting.set_result(run)
        await self._runtime.forget(run.token)

    async def listed(self, run: RunStarted | RunExited) -> None:
        """End a run that an earlier process of the agent began: its environment is built anew."""
        if isinstance(run, RunStarted) and run.token not in self._ends:
            await self._runtime.stop(run.token, 0.0)

    def _wanted(self, command: BindJob, order: EnvironmentOrder) -> _Wanted:
        """Return what is to be built, and by which name it is known.

        Raises:
            BuildError: This node has no such interpreter.
        """
        python = order.python or INTERPRETER
        if order.kind == "conda":
            python = state = ""
        else:
            found = shutil.which(python, path=self._inherited.get("PATH"))
            if found is None:
                text = f"this node has no interpreter {python}"
                raise BuildError(text)
            python, seen = found, os.stat(found)
            state = f"{os.path.realpath(found)} {seen.st_size} {seen.st_mtime_ns}"
        given = {**self._inherited, **command.env}
        settings = {
            name: value
            for name, value in given.items()
            if name.startswith(PASSED_ON) or name in OF_NETWORK
        }
        known = [command.vc, command.owner, order.kind, order.path, order.files, state]
        text = json.dumps([*known, sorted(settings.items())])
        key = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        # Where the job has an account, the launcher says whose home it is.
        without = OF_AN_ACCOUNT if self._remove_work is not None else frozenset()
        names = [name for name in OF_USER if name in self._inherited and name not in without]
        user = {name: self._inherited[name] for name in names}
        return _Wanted(key, python, {"PATH": "/usr/local/bin:/usr/bin:/bin", **user, **settings})

    async def _waited(
        self, wanted: _Wanted, command: BindJob, order: EnvironmentOrder, token: str
    ) -> Kept | None:
        """Wait for a build, which begins unless it is under way.

        Returns:
            What was built; None: the build was stopped for others, and is to begin again.

        Raises:
            BuildError: It fails, or the run is not to begin any more.
            CodeError: The files cannot be had.
            OSError: The disk fails.
        """
        if self.is_cancelled(token):
            raise BuildError(STOPPED)
        one = self._builds.get(wanted.key)
        if one is None:
            one = self._builds[wanted.key] = _Build()
            one.task = asyncio.create_task(self._build(wanted, command, order))
            one.task.add_done_callback(functools.partial(self._over, wanted.key))
        stopped = one.waiting.setdefault(token, _Wait()).stopped
        waits = asyncio.create_task(stopped.wait())
        await self._told()
        try:
            await asyncio.wait((one.task, waits), return_when=asyncio.FIRST_COMPLETED)
            if stopped.is_set():
                raise BuildError(STOPPED)
            return None if one.task.cancelled() else one.task.result()
        finally:
            waits.cancel()
            del one.waiting[token]
            if not one.waiting and not one.task.done():
                one.task.cancel()
                await asyncio.wait((one.task,))
            await self._told()

    def _over(self, key: str, task: asyncio.Task[Kept]) -> None:
        del self._builds[key]
        if not task.cancelled():
            task.exception()  # The runs that wait for it tell.

    async def _told(self) -> None:
        attempts = {
            attempt_of_run(token): wait.since
            for one in self._builds.values()
            if not one.task.done()
            for token, wait in one.waiting.items()
        }
        await self.tell(
            tuple(
                Building(job=job, attempt=attempt, since=since)
                for (job, attempt), since in sorted(attempts.items())
            )
        )

    # --- building -------------------------------------------------------------------------------

    async def _build(self, wanted: _Wanted, command: BindJob, order: EnvironmentOrder) -> Kept:
        """Build an environment, and note that it is there.

        Raises:
            BuildError: It cannot be built.
            CodeError: Its files cannot be had.
            OSError: The disk fails.
        """
        began = time.monotonic()
        if wanted.key in self._removing:
            await asyncio.wait((self._removing[wanted.key],))
        fetched = await self._code.fetched(command, order.files)
        await self.sweep()
        kept = Kept(
            key=wanted.key,
            build=secrets.token_hex(4),
            vc=command.vc,
            owner=command.owner,
            kind=order.kind,
            path=order.path,
            files=order.files,
        )
        self._write(kept)
        folder = self._folder(kept)
        if self._remove_work is None:
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            await self._run(wanted, command, order, folder, fetched)
            size = await asyncio.to_thread(size_of, folder)
        except BaseException:
            await self._drop(kept.key)
            raise
        kept = msgspec.structs.replace(
            kept,
            built=True,
            bytes=size,
            took_s=round(time.monotonic() - began, 3),
            used_at=time.time(),
        )
        self._write(kept)
        return kept

    async def _run(
        self,
        wanted: _Wanted,
        command: BindJob,
        order: EnvironmentOrder,
        folder: Path,
        fetched: Path,
    ) -> None:
        """Have a run build into a folder.

        Raises:
            BuildError: It cannot be started, fails, or exceeds a bound.
        """
        rank = min(plan.rank for plan in command.ranks)
        log = log_path(self._shared, command.job, command.attempt, rank)
        program = [INTERPRETER, "-I", "-S", "-c", _builder(), unpacker()]
        what = [order.kind, order.path, wanted.python]
        token = f"env-{wanted.key[:16]}{BUILDS}{folder.name}"
        plan = RunPlan(
            token=token,
            argv=(*program, str(fetched), order.files, str(folder), *what),
            env=wanted.env,
            workdir="" if self._remove_work is not None else str(self._shared),
            log_path=str(log),
            log_bytes_max=log_bytes_max(self._inherited),
            job=_name(wanted.key),
            owner=command.owner,
            vc=command.vc,
            meets=False,
            work=str(folder),
        )
        end = self._ends[token] = asyncio.get_running_loop().create_future()
        try:
            started = await self._runtime.start(plan)
            if isinstance(started, RunNotStarted):
                raise BuildError(started.detail, of_node=started.of_node)
            await self._watched(folder, end)
            ended = end.result()
            if ended.code != 0:
                why = ended.exceeded or await asyncio.to_thread(_last_line, log)
                text = f"{why or f'it ended with {ended.code}'} (its output is in the job's log)"
                raise BuildError(text, of_node=ended.code == build.OF_NODE)
        finally:
            if not end.done():
                await self._runtime.stop(token, 0.0)
                await asyncio.wait((end,), timeout=STOPPED_WITHIN_S)
            self._ends.pop(token, None)

    async def _watched(self, folder: Path, end: asyncio.Future[RunExited]) -> None:
        """Wait for the end of a build, while it is within its bounds.

        Raises:
            BuildError: It is not.
        """
        until = time.monotonic() + BUILT_WITHIN_S
        while not end.done():
            await asyncio.wait((end,), timeout=min(LOOK_EVERY_S, BUILT_WITHIN_S))
            if end.done():
                return
            if time.monotonic() > until:
                text = f"it took longer than {BUILT_WITHIN_S:.0f} s, and was stopped"
                raise BuildError(text)
            if await asyncio.to_thread(size_of, folder) > ONE_BYTES_MAX:
                text = f"it has more than {ONE_BYTES_MAX / GIB:.0f} GiB, and was stopped"
                raise BuildError(text)

    # --- keeping --------------------------------------------------------------------------------

    def kept(self) -> list[Kept]:
        """Return the environments on this node, the latest used first."""
        return sorted(self._all(), key=lambda one: -one.used_at)

    def jobs_in(self, one: Kept) -> tuple[str, ...]:
        """Return the jobs that may run in an environment."""
        return tuple(sorted({job for job, _ in self._users(one)}))

    async def watch(self) -> None:
        """Remove what need not be kept any more, now and then, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            await self.sweep()

    async def sweep(self) -> list[str]:
        """Remove what no attempt uses and is old or too much; return the keys."""
        gone = []
        found = sorted(self._all(), key=lambda one: one.used_at)
        used = sum(one.bytes for one in found)
        for one in found:
            if one.key in self._builds or self._users(one):
                continue
            if not one.built or time.time() - one.used_at > KEEP_S or used > self.bytes_max:
                used -= one.bytes
                gone.append(one.key)
                await self._drop(one.key)
        return gone

    async def discard(self, key: str) -> str:
        """Remove an environment by its key; return why it stays, else nothing."""
        one = self._find(key)
        if one is None:
            return "there is no such environment on this node"
        if key in self._builds:
            return "it is being built"
        if jobs := self.jobs_in(one):
            return f"{', '.join(jobs)} may run in it"
        await self._drop(key)
        return ""

    def _users(self, one: Kept) -> list[tuple[str, int]]:
        return [user for user in one.users if self.lives(*user)]

    def _use(self, kept: Kept, command: BindJob) -> None:
        """Note that an attempt is to run in an environment: it stays meanwhile."""
        current = self._find(kept.key) or kept
        user = (command.job, command.attempt)
        users = dict.fromkeys((*self._users(current), user))
        noted = msgspec.structs.replace(current, used_at=time.time(), users=tuple(users))
        # Not synced, as a start waits for it: no process lives on after a power failure.
        self._write(noted, sync=False)

    async def _drop(self, key: str) -> None:
        self._forget(key)
        task = self._removing[key] = asyncio.create_task(self._remove(key))
        try:
            await asyncio.shield(task)
        finally:
            self._removing.pop(key, None)

    async def _remove(self, key: str) -> None:
        if self._remove_work is not None:
            await self._remove_work(_name(key))
        else:
            await asyncio.to_thread(remove_tree, self._shared / WORK / _name(key))

    def _folder(self, kept: Kept) -> Path:
        return self._shared / WORK / _name(kept.key) / kept.build

    def _find(self, key: str) -> Kept | None:
        return _read(self._records / key) if key.isalnum() else None

    def _all(self) -> list[Kept]:
        try:
            paths = sorted(self._records.iterdir())
        except OSError:
            return []
        return [one for path in paths if (one := _read(path)) is not None]

    def _write(self, kept: Kept, *, sync: bool = True) -> None:
        self._records.mkdir(mode=0o700, parents=True, exist_ok=True)
        durable.write(str(self._records / kept.key), msgspec.json.encode(kept), sync=sync)

    def _forget(self, key: str) -> None:
        with contextlib.suppress(OSError):
            (self._records / key).unlink()


def _name(key: str) -> str:
    """Return the name of an environment's folder: no job has such a name."""
    return f"env-{key}"


def _python(folder: Path) -> Path:
    return folder / "env" / "bin" / "python"


def _is_gone(path: Path) -> bool:
    """Return whether there is surely no such file: an account's may not be the agent's to see."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


@functools.cache
def _builder() -> str:
    """Return the program that builds, as text: an account may not be able to read its file."""
    return Path(str(build.__file__)).read_text(encoding="utf-8")


def _read(path: Path) -> Kept | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Kept)
    except (OSError, *UNDECODABLE):
        return None


def _last_line(log: Path) -> str:
    """Return the last line of a log, which its writer may have made anything."""
    try:
        handle = os.open(log, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(handle, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            lines = file.read(TAIL_BYTES).decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    last = lines[-1].removeprefix("environment: ") if lines else ""
    return "".join(each for each in last if each.isprintable())[:500]
