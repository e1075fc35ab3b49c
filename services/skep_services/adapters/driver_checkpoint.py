"""The NVIDIA driver's own checkpoint of a process, by its utility `cuda-checkpoint` (570 or later).

    running --lock--> locked --checkpoint--> checkpointed --restore--> locked --unlock--> running

It moves what a process has on its GPU into that process's memory on the host and gives the GPU
back, without any help of the process: for jobs that know no mini-batches. It is off unless
SKEP_DRIVER_CHECKPOINT is `allow`, and done for one process on one GPU only, because NCCL and what
several processes share are not supported by it. The driver's threads in the process do the work,
so it must not be frozen meanwhile. Where the driver fails half way the process may be lost to it
(its README): what can be undone is, and the rest is said.

What was evicted is noted in `<state>/evicted/`, so that an agent that comes back can restore it:
the driver lists such a process on no device any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from skep_services import durable
from skep_services.adapters.devices import Devices, DeviceState
from skep_services.agent import proc
from skep_services.service import ConfigurationError

VARIABLE, ALLOWED = "SKEP_DRIVER_CHECKPOINT", "allow"
UTILITY = "cuda-checkpoint"
FOLDER = "evicted"

LOCK_TIMEOUT_MS = 10_000
"""How long work that was submitted may take to end. A kernel that waits for another never does."""
WORD_SECONDS_MAX = 10.0
"""For an answer of the utility that moves nothing."""
MOVE_SECONDS_MAX = 300.0
"""For 80 GB at the 5 GB/s that users report, and many times that."""
TEXT_CHARACTERS_MAX = 300


class Evicted(msgspec.Struct, frozen=True):
    """A process whose device memory is in its own: `ticks` makes `pid` an identity."""

    pid: int
    ticks: int
    boot: str
    bytes: int


def noted(state: Path, token: str) -> bool:
    """Return whether the driver has the device memory of a run, which it has to give back."""
    return (state / FOLDER / token).exists()


class _RefusedError(Exception):
    """The utility did not do what it was asked; the text is its own."""


async def open_checkpoint(
    environment: Mapping[str, str], state: Path, devices: Devices
) -> tuple[DriverCheckpoint | None, str]:
    """Return the driver's checkpoint if it is allowed and there.

    Args:
        environment: Where SKEP_DRIVER_CHECKPOINT and PATH are.
        state: The folder below which it is noted what is evicted.

    Returns:
        The checkpoint and an empty text; or None and why not, which is empty if it is not allowed.

    Raises:
        ConfigurationError: SKEP_DRIVER_CHECKPOINT has a value that means nothing.
    """
    wanted = environment.get(VARIABLE, "")
    if not wanted:
        return None, ""
    if wanted != ALLOWED:
        message = f"{VARIABLE} is {wanted!r}: it must be `{ALLOWED}`, or not set"
        raise ConfigurationError(message)
    tool = shutil.which(UTILITY, path=environment.get("PATH"))
    if tool is None:
        return None, f"{UTILITY} is not in PATH: install it (github.com/NVIDIA/cuda-checkpoint)"
    try:
        words = await _run(tool, "--help", within_s=WORD_SECONDS_MAX)
    except _RefusedError as error:
        return None, f"{tool} does not work here: {error}"
    if "--action" not in words or "--get-state" not in words:
        return None, f"{tool} knows no --action: the driver must be 570 or later"
    return DriverCheckpoint(tool, state / FOLDER, devices), ""


class DriverCheckpoint:
    """Evicts runs from their device, and restores them. What is asked of one run is in turn."""

    def __init__(self, tool: str, folder: Path, devices: Devices) -> None:
        """Use the utility at `tool`; note in `folder` what is evicted."""
        self._tool, self._folder, self._devices = tool, folder, devices
        self._locks: dict[str, asyncio.Lock] = {}

    async def evict(self, token: str, devices: Sequence[int], max_bytes: int) -> tuple[int, str]:
        """Move what a run has on its one device into the host's memory.

        Args:
            devices: Its devices, by index.
            max_bytes: More than this is not moved.

        Returns:
            How many bytes were moved (0: none were there), and an empty text; or 0 and why it was
            not done: then the run is as it was before.
        """
        async with self._lock(token):
            known = self._noted(token)
            if known is not None and await self._state(known.pid) == "checkpointed":
                return known.bytes, ""
            seen = await asyncio.to_thread(self._devices.look)
            found = _holder(seen, devices, token)
            if isinstance(found, str):
                return 0, found
            pid, size = found
            if not pid:
                return 0, ""  # It has nothing there.
            if size > max_bytes:
                return 0, f"{size} bytes would come into the host's memory, which has {max_bytes}"
            try:
                self._note(token, pid, size)
                await self._put_away(pid)
            except (_RefusedError, OSError) as error:
                if await self._state(pid) not in {"locked", "checkpointed"}:
                    self._forget(token)  # Else it can still be put right, by `restore`.
                return 0, str(error)
            return size, ""

    async def restore(self, token: str) -> str:
        """Give a run back what it had on its device; return why it could not be. Idempotent."""
        async with self._lock(token):
            known = self._noted(token)
            if known is None:
                return ""
            try:
                state = await self._state(known.pid)
                if state == "checkpointed":
                    await self._act(known.pid, "restore", within_s=MOVE_SECONDS_MAX)
                    state = "locked"
                if state == "locked":
                    await self._act(known.pid, "unlock")
            except _RefusedError as error:
                return str(error)
            self._forget(token)
            return ""

    def forget(self, token: str) -> None:
        """Drop what is known of a run that has ended."""
        self._forget(token)
        self._locks.pop(token, None)

    # --- the utility ------------------------------------------------------------------------------

    async def _put_away(self, pid: int) -> None:
        """Lock and checkpoint a process; it runs on if either fails.

        Raises:
            _RefusedError: Either fails; the text says it if the process could not be unlocked.
        """
        await self._act(
            pid, "lock", "--timeout", str(LOCK_TIMEOUT_MS), within_s=2 * LOCK_TIMEOUT_MS / 1000
        )
        try:
            await self._act(pid, "checkpoint", within_s=MOVE_SECONDS_MAX)
        except _RefusedError as error:
            try:
                await self._act(pid, "unlock")
            except _RefusedError as worse:
                text = f"{error}; and it is left {await self._state(pid)}: {worse}"
                raise _RefusedError(text) from error
            raise

    async def _act(
        self, pid: int, action: str, *more: str, within_s: float = WORD_SECONDS_MAX
    ) -> None:
        try:
            await _run(self._tool, "--action", action, "--pid", str(pid), *more, within_s=within_s)
        except _RefusedError as error:
            message = f"{UTILITY} could not {action} process {pid}: {error}"
            raise _RefusedError(message) from error

    async def _state(self, pid: int) -> str:
        """Return the driver's word for how a process stands, `unknown` where it says nothing."""
        try:
            words = await _run(
                self._tool, "--get-state", "--pid", str(pid), within_s=WORD_SECONDS_MAX
            )
        except _RefusedError:
            return "unknown"
        return words.strip().lower()

    # --- what is noted ----------------------------------------------------------------------------

    def _lock(self, token: str) -> asyncio.Lock:
        return self._locks.setdefault(token, asyncio.Lock())

    def _note(self, token: str, pid: int, size: int) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        one = Evicted(pid=pid, ticks=proc.start_ticks(pid) or 0, boot=proc.boot_id(), bytes=size)
        durable.write(str(self._folder / token), msgspec.json.encode(one))

    def _noted(self, token: str) -> Evicted | None:
        """Return what was evicted, None if the process is not there any more."""
        try:
            one = msgspec.json.decode((self._folder / token).read_bytes(), type=Evicted)
        except (OSError, msgspec.DecodeError):
            return None
        lives = one.boot == proc.boot_id() and proc.start_ticks(one.pid) == one.ticks
        return one if lives else None

    def _forget(self, token: str) -> None:
        (self._folder / token).unlink(missing_ok=True)


def _holder(
    seen: Sequence[DeviceState], devices: Sequence[int], token: str
) -> tuple[int, int] | str:
    """Return the one process of a run on its one device and its bytes there, or why not.

    The process is 0 where the run has none there.
    """
    if len(devices) != 1:
        return f"the driver's checkpoint is for one device, and this job has {len(devices)}"
    state = next((one for one in seen if one.index == devices[0]), None)
    if state is None:
        return f"device {devices[0]} does not tell which process uses it"
    mine = [one for one in state.processes if proc.run_named(proc.environ(one.pid)) == token]
    if not mine:
        others = len(state.processes)
        return f"{others} processes on the device are not this job's" if others else (0, 0)
    if len(mine) > 1:
        return f"the driver's checkpoint is for one process, and {len(mine)} are on the device"
    size = mine[0].memory if mine[0].memory >= 0 else state.memory
    if size < 0:
        return "the driver does not say how much the job has on the device"
    return mine[0].pid, size


async def _run(tool: str, *words: str, within_s: float) -> str:
    """Return what the utility printed.

    Raises:
        _RefusedError: It cannot be started, fails, or takes longer than `within_s`.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            tool, *words, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT
        )
    except OSError as error:
        raise _RefusedError(error.strerror or str(error)) from error
    try:
        async with asyncio.timeout(within_s):
            said, _ = await process.communicate()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        message = f"no answer within {within_s:.0f} s"
        raise _RefusedError(message) from None
    text = said.decode(errors="replace").strip()
    if process.returncode:
        message = text[-TEXT_CHARACTERS_MAX:] or f"it ended with status {process.returncode}"
        raise _RefusedError(message)
    return text
