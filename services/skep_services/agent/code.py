"""The code of jobs on this node: fetched from a gateway, unpacked for each attempt, removed again.

    SHARED/code/<name>                a snapshot as it was fetched, for further attempts and jobs
    SHARED/work/<job>/<attempt>/      the folder of an attempt; its processes begin in it
    STATE/works/<job>.<attempt>       what is known of it: its outputs, where they are

What is fetched is verified chunk by chunk, and so is what lies here each time it is unpacked. A run
of its own unpacks, with the rights of the job: an agent that dies meanwhile, or a node, leaves no
folder that looks whole. An attempt's folder is removed when the attempt is over here. If it has
outputs, it is kept for KEEP_S, and of those that are kept the oldest go beyond KEPT_BYTES_MAX.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import os
import secrets
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from skep.ids import attempt_id
from skep.units import GIB
from skep.wire import codec, subjects
from skep.wire.bounds import UNDECODABLE
from skep.wire.commands import BindJob, is_restored
from skep.wire.reasons import Reason
from skep.wire.runs import RunExited, RunNotStarted, RunPlan
from skep.wire.snapshot import AskCode, Snapshot, decode, digest_of, encode
from skep_services import durable
from skep_services.agent import unpack
from skep_services.agent.environment import log_path
from skep_services.agent.rank_access import node_key
from skep_services.ports import Bus, Delivery, NodeRuntime, RefusedError

ASK_WITHIN_S = 5.0
ASKED_FOR_S = 60.0
"""How long a node asks for code while no gateway answers: a gateway restarts in a second."""
ASK_AGAIN_S = 0.3
NOT_BOUND_TIMES = 10
"""A gateway follows the allocator's log, and may hear of a job a moment after the node."""
AT_ONCE = 8
"""Chunks that are asked for at once: 4 MiB."""
UNPACKED_WITHIN_S = 300.0
FETCHED_BYTES_MAX = 4 * GIB
"""Snapshots that lie here for further attempts; the ones that were not used for longest go."""
KEEP_S = 7 * 24 * 3600.0
KEPT_BYTES_MAX = 64 * GIB
LOOK_EVERY_S = 600.0
LOG_BYTES_MAX = 1024 * 1024
UNPACKS = ".code-"
"""What is in the name of a run that unpacks: `j3.1.code-1f2e3d4c`."""
WORK, FETCHED = "work", "code"
INTERPRETER = os.path.realpath(sys.executable)
"""The interpreter itself: unpacking needs no environment, which an account may not see."""
LENGTH = struct.Struct(">I")
GATEWAY, REFUSED, REASON = "Skep-Gateway", "Skep-Refused", "Skep-Reason"


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an attempt's folder. `ended_at` is seconds since 1970; 0: it is not over.

    `code` is what it was made of, in `epoch` of the allocator: a restore may give its name anew.
    """

    job: str
    attempt: int
    workdir: str
    outputs: tuple[str, ...]
    ended_at: float = 0.0
    code: str = ""
    epoch: int = 0


class CodeError(Exception):
    """A job's code cannot be had. `of_node`: another node might get it."""

    def __init__(self, text: str, *, of_node: bool) -> None:
        super().__init__(text)
        self.of_node = of_node


def unpacks(token: str) -> bool:
    """Return whether a run is one that unpacks code, of which the machine knows nothing."""
    return UNPACKS in token


class JobCode:
    """The snapshots and the folders of jobs on one node.

    Args:
        bus: Where gateways are asked.
        runtime: What executes the runs that unpack.
        state: The agent's own folder.
        shared: The folder that it shares with jobs.
        remove: Removes a job's folder as root, where jobs have accounts of their own; else None.
    """

    def __init__(
        self,
        bus: Bus,
        runtime: NodeRuntime,
        state: Path,
        shared: Path,
        remove: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self._bus, self._runtime, self._remove = bus, runtime, remove
        self._state, self._shared = state, shared
        self._records = state / "works"
        self._key = node_key(state)
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        """By what they guard: a lock, and how many have it or wait for it."""
        self._ends: dict[str, asyncio.Future[RunExited]] = {}

    # --- for a start ----------------------------------------------------------------------------

    async def provide(self, command: BindJob, token: str) -> RunNotStarted | None:
        """Have the folder of an attempt with its code; return why that is not possible, else None.

        Args:
            command: The job's part on this node.
            token: The run that is to be started there.
        """
        if not command.code:
            return None
        folder = work_path(self._shared, command.job, command.attempt)
        try:
            async with self._lock(str(folder)):
                work = self.find(command.job, command.attempt)
                if work is not None and not _is_of(work, command):
                    await self._drop(work)
                    work = None
                if work is None or not _is_there(folder):
                    await self._make(command, folder)
        except CodeError as error:
            return RunNotStarted(token, str(error), of_node=error.of_node)
        except OSError as error:
            text = f"the job's code cannot be written to {error.filename}: {error.strerror}"
            return RunNotStarted(token, text, of_node=True)
        return None

    async def _make(self, command: BindJob, folder: Path) -> None:
        """Fetch and unpack; what was fetched and is corrupt by now is fetched once more.

        Raises:
            CodeError: The code cannot be had.
            OSError: The disk fails.
        """
        for again in (True, False):
            fetched = await self.fetched(command, command.code)
            status, said = await self._unpack(command, fetched, folder)
            if status == 0:
                self._write(_work_of(command))
                return
            if status == unpack.CORRUPT:
                fetched.unlink(missing_ok=True)
                if again:
                    continue
            why = said or f"unpacking it ended with status {status}"
            text = f"the job's code cannot be used: {why}"
            raise CodeError(text, of_node=status != unpack.UNSAFE)

    async def _unpack(
        self, command: BindJob, fetched: Path, folder: Path
    ) -> tuple[int | None, str]:
        """Have a run unpack a snapshot; return its exit status, and what it said.

        Raises:
            CodeError: It cannot be started, or takes too long.
        """
        if self._remove is None:
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        token = f"{attempt_id(command.job, command.attempt)}{UNPACKS}{secrets.token_hex(4)}"
        log = log_path(self._shared, command.job, command.attempt, 0).with_name(f"{token}.log")
        program = [INTERPRETER, "-I", "-S", "-c", unpacker()]
        plan = RunPlan(
            token=token,
            argv=(*program, str(fetched), command.code, str(folder)),
            env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8"},
            workdir="" if self._remove is not None else str(self._shared),
            log_path=str(log),
            log_bytes_max=LOG_BYTES_MAX,
            job=command.job,
            owner=command.owner,
            vc=command.vc,
            meets=False,
            work=str(folder),
        )
        self._ends[token] = asyncio.get_running_loop().create_future()
        try:
            started = await self._runtime.start(plan)
            if isinstance(started, RunNotStarted):
                raise CodeError(started.detail, of_node=started.of_node)
            async with asyncio.timeout(UNPACKED_WITHIN_S):
                ended = await self._ends[token]
        except TimeoutError:
            await self._runtime.stop(token, 0.0)
            text = f"its code was not unpacked within {UNPACKED_WITHIN_S:.0f} s"
            raise CodeError(text, of_node=True) from None
        finally:
            self._ends.pop(token, None)
        return ended.code, await asyncio.to_thread(_said, log)

    async def ended(self, run: RunExited) -> None:
        """Take over the end of a run that unpacked."""
        waiting = self._ends.get(run.token)
        if waiting is not None and not waiting.done():
            waiting.set_result(run)
        await self._runtime.forget(run.token)

    # --- fetching -------------------------------------------------------------------------------

    async def fetched(self, command: BindJob, code: str) -> Path:
        """Return the file of a snapshot that a job names, fetched unless it is here.

        Args:
            command: The job's part on this node.
            code: The digest of the snapshot.

        Raises:
            CodeError: No gateway has it, or none answers.
            OSError: It cannot be written.
        """
        place = self.place(code)
        async with self._lock(code):
            # Asked each time: what another VC's job had fetched is not this one's to read.
            asking = _Asking(self._bus, command, code)
            snapshot = decode(await asking.ask(""))
            if isinstance(snapshot, str) or digest_of(encode(snapshot)) != code:
                text = "a gateway gave another snapshot than was asked for"
                raise CodeError(text, of_node=True)
            if place.exists():
                os.utime(place)
                return place
            place.parent.mkdir(mode=0o700 if self._remove is None else 0o711, exist_ok=True)
            self._make_room(snapshot.bytes + snapshot.index_bytes)
            part = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
            try:
                await _write_fetched(asking, snapshot, _new_file(part))
                if self._remove is not None:
                    part.chmod(0o644)  # Accounts read it by its name.
                os.rename(part, place)
            finally:
                part.unlink(missing_ok=True)
        return place

    def place(self, code: str) -> Path:
        """Return where a snapshot lies: by a name that only this node can make of its digest."""
        name = hashlib.blake2b(code.encode(), key=self._key[:64], digest_size=32).hexdigest()
        return self._shared / FETCHED / name

    @contextlib.asynccontextmanager
    async def _lock(self, name: str) -> AsyncIterator[None]:
        lock, waiting = self._locks.get(name, (asyncio.Lock(), 0))
        self._locks[name] = (lock, waiting + 1)
        try:
            async with lock:
                yield
        finally:
            waiting = self._locks[name][1] - 1
            self._locks[name] = (lock, waiting)
            if not waiting:
                del self._locks[name]

    def _make_room(self, size: int) -> None:
        """Remove the snapshots that were not used for longest, until one more fits."""
        found = []
        for path in (self._shared / FETCHED).iterdir():
            with contextlib.suppress(OSError):
                seen = path.stat()
                stale = path.name.startswith(".") and time.time() - seen.st_mtime > KEEP_S
                found.append((0.0 if stale else seen.st_mtime, seen.st_size, path))
        used = sum(one[1] for one in found)
        for _, length, path in sorted(found):
            if used + size <= FETCHED_BYTES_MAX:
                return
            if not path.name.startswith("."):
                path.unlink(missing_ok=True)
                used -= length

    # --- after ----------------------------------------------------------------------------------

    def find(self, job: str, attempt: int) -> Work | None:
        """Return what is known of an attempt's folder, None if it has none here."""
        return _read(self._records / attempt_id(job, attempt))

    def attempts(self, job: str) -> list[int]:
        """Return the attempts of a job that have a folder here."""
        found = [work.attempt for _, work in self._works() if work.job == job]
        return sorted(found)

    async def over(self, job: str, attempt: int) -> None:
        """Remove the folder of an attempt that is over here, or note since when it is kept."""
        work = self.find(job, attempt)
        if work is None:
            return
        if work.outputs:
            self._write(msgspec.structs.replace(work, ended_at=time.time()))
        else:
            await self._drop(work)

    async def watch(self, lives: Callable[[str, int], bool], log: Any) -> None:
        """Remove folders that need not be kept any more, now and then, until cancelled.

        Args:
            lives: Whether an attempt has a process here.
            log: Told what was removed.
        """
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for work in await self.sweep(lives):
                log.info("the folder of a job is removed", job=work.job, attempt=work.attempt)

    async def sweep(self, lives: Callable[[str, int], bool]) -> list[Work]:
        """Remove folders that need not be kept any more; return whose."""
        gone, kept = [], []
        for _, work in sorted(self._works(), key=lambda one: one[1].ended_at):
            if lives(work.job, work.attempt):
                continue
            if not work.ended_at and work.outputs:
                await self.over(work.job, work.attempt)
            elif not work.outputs or time.time() - work.ended_at > KEEP_S:
                gone.append(work)
            else:
                kept.append((await asyncio.to_thread(size_of, self._path(work)), work))
        used = sum(size for size, _ in kept)
        for size, work in kept:
            if used > KEPT_BYTES_MAX:
                gone.append(work)
                used -= size
        for work in gone:
            await self._drop(work)
        return gone

    def _path(self, work: Work) -> Path:
        return work_path(self._shared, work.job, work.attempt)

    async def _drop(self, work: Work) -> None:
        (self._records / attempt_id(work.job, work.attempt)).unlink(missing_ok=True)
        if self._remove is None:
            await asyncio.to_thread(remove, self._path(work))
        elif not any(one.job == work.job for _, one in self._works()):
            await self._remove(work.job)  # The folders of its attempts go together.

    def _write(self, work: Work) -> None:
        self._records.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._records / attempt_id(work.job, work.attempt)
        durable.write(str(path), msgspec.json.encode(work))

    def _works(self) -> list[tuple[Path, Work]]:
        try:
            paths = sorted(self._records.iterdir())
        except OSError:
            return []
        return [(path, work) for path in paths if (work := _read(path)) is not None]


class _Asking:
    """One snapshot that is being asked for, of the gateway that answered first."""

    def __init__(self, bus: Bus, command: BindJob, code: str) -> None:
        self._bus, self._command, self._code = bus, command, code
        self._gateway = subjects.ANY_GATEWAY

    async def ask(self, chunk: str) -> bytes:
        """Return the snapshot (`chunk` is empty), or one of its chunks.

        Raises:
            CodeError: No gateway has it, or none answers.
        """
        command = self._command
        ask = AskCode(
            node=command.node,
            job=command.job,
            attempt=command.attempt,
            code=self._code,
            chunk=chunk,
        )
        payload, until, tries = codec.encode(ask), time.monotonic() + ASKED_FOR_S, 0
        while time.monotonic() < until:
            answer = await self._once(payload)
            if answer is None:
                self._gateway = subjects.ANY_GATEWAY
            elif not (refused := answer.headers.get(REFUSED, "")):
                self._gateway = answer.headers.get(GATEWAY, self._gateway)
                return answer.payload
            elif answer.headers.get(REASON) == Reason.NOT_BOUND_HERE and tries < NOT_BOUND_TIMES:
                tries += 1
            else:
                at_node = answer.headers.get(REASON) == Reason.NOT_BOUND_HERE
                text = f"{refused} ({answer.headers.get(REASON, '')})"
                raise CodeError(text, of_node=at_node)
            await asyncio.sleep(ASK_AGAIN_S)
        whose = attempt_id(command.job, command.attempt)
        text = f"no gateway answered for the code of {whose} within {ASKED_FOR_S:.0f} s"
        raise CodeError(text, of_node=True)

    async def _once(self, payload: bytes) -> Delivery | None:
        subject = subjects.code(self._command.node, self._gateway)
        try:
            return await self._bus.request(subject, payload, {}, ASK_WITHIN_S)
        except RefusedError as error:
            text = f"the bus does not let this node ask for code: {error}"
            raise CodeError(text, of_node=True) from error


def _new_file(path: Path) -> BinaryIO:
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


async def _write_fetched(asking: _Asking, snapshot: Snapshot, file: BinaryIO) -> None:
    """Write a snapshot and its chunks in order, some of which are under way at once.

    Raises:
        CodeError: One cannot be had, or is corrupt.
    """
    chunks, raw = snapshot.chunks, encode(snapshot)
    with file:
        file.write(LENGTH.pack(len(raw)) + raw)
        for at in range(0, len(chunks), AT_ONCE):
            some = chunks[at : at + AT_ONCE]
            found = await asyncio.gather(*(asking.ask(one.digest) for one in some))
            for one, data in zip(some, found, strict=True):
                if digest_of(data) != one.digest:
                    text = f"chunk {one.digest[:12]} of the code came corrupt"
                    raise CodeError(text, of_node=True)
                file.write(data)


@functools.cache
def unpacker() -> str:
    """Return the program that unpacks, as text: an account may not be able to read its file."""
    return Path(str(unpack.__file__)).read_text(encoding="utf-8")


def _is_of(work: Work, command: BindJob) -> bool:
    """Return whether a folder is of an attempt, and not of its namesake before a restore."""
    return work.code == command.code and not is_restored(command.epoch, work.epoch)


def _is_there(folder: Path) -> bool:
    return os.path.lexists(folder)


def work_path(shared: Path, job: str, attempt: int) -> Path:
    """Return the folder of an attempt."""
    return shared / WORK / job / str(attempt)


def _work_of(command: BindJob) -> Work:
    return Work(
        job=command.job,
        attempt=command.attempt,
        # A full path is no part of the folder, and what is there is not the job's to give away.
        workdir="" if command.workdir.startswith("/") else command.workdir,
        outputs=command.outputs,
        code=command.code,
        epoch=command.epoch,
    )


def _read(path: Path) -> Work | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Work)
    except (OSError, *UNDECODABLE):
        return None


def _said(log: Path) -> str:
    """Return what a run that unpacked said, and remove it."""
    try:
        handle = os.open(log, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(handle, encoding="utf-8", errors="replace") as file:
            lines = file.read(4096).strip().splitlines()
        with contextlib.suppress(OSError):
            log.unlink()
    except OSError:
        return ""
    return lines[-1][:500] if lines else ""


def remove(folder: Path) -> None:
    """Remove the folder of an attempt, and what unpacking left beside it."""
    remove_tree(folder)
    for beside in (f"{folder}.part", f"{folder}.lock"):
        shutil.rmtree(beside, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(beside)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


def remove_tree(folder: Path) -> None:
    """Remove a folder as far as that is allowed; a job may nest folders too deep for `shutil`."""
    subprocess.run(["rm", "-rf", "--", folder], check=False, stderr=subprocess.DEVNULL)


def size_of(folder: Path) -> int:
    """Return how many bytes a folder has, as far as they can be seen."""
    found = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                found += os.lstat(os.path.join(place, name)).st_blocks * 512
    return found
