"""A GPU for machines that have none: contention, memory and utilisation, played by real processes.

The processes that share a device keep a slot each in one file, `<folder>/gpu<N>`. A mini-batch
takes as long as the job's load says, times what its present partners cost it (the sum that
`skep.perf.interference` explains), and its kernels count as the device's busy time. The process
really waits; what it computes meanwhile on the CPU is part of the mini-batch. Memory is a number
with a limit, as large allocations are what a GPU refuses; a process that shares the device may have
a lower one of its own (`Limit`).

Environment: SKEP_FAKE_GPUS is the folder, SKEP_DEVICES the devices, SKEP_FAKE_LOAD a JSON object
with `step_ms` (alone) and any of `utilisation`, `demand`, `sensitivity`, `pressure` and `memory`
(bytes). `attach` then makes every optimizer step of an unchanged script end a mini-batch; a script
that wants more memory, or to see what it has, asks `mine`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import mmap
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from skep_job.observe.import_watcher import ImportWatcher
from skep_job.observe.torch_hooks import OPTIMIZERS

SLOTS = 16
"""Processes on one device: twice as many as Gandiva packs at best."""

_HEAD = struct.Struct("<8sQQ")
"""What the file is, the device's memory in bytes, and its busy time so far in ns."""
_SLOT = struct.Struct("<QQddddQQ")
"""Process and its start (ticks), four numbers of its load, its memory, and until when it is at
work (monotonic ns)."""
_MAGIC = b"skepgpu1"
_BYTES = _HEAD.size + SLOTS * _SLOT.size

TROUBLE_CHARACTERS_MAX = 200

LATE = 4.0
"""A job counts as at work for this many times its mini-batch after it began one: beyond, it is
suspended, or does something else than training."""


class OutOfMemoryError(RuntimeError):
    """The device has not that much memory left, as torch's error of that name."""


class Limit:
    """Which part of a device's memory a process may use; 0.0: all of it."""

    def __init__(self, share: float = 0.0) -> None:
        self.share = share


class FakeLoad(NamedTuple):
    """What a job does to a device; see `skep.perf.interference.Load`. `step_s` is seconds alone."""

    step_s: float
    utilisation: float = 1.0
    demand: float = 1.0
    sensitivity: float = 0.0
    pressure: float = 0.0
    memory: int = 0


class Process(NamedTuple):
    """One process on a device: its id, and its memory there in bytes."""

    pid: int
    memory: int


class DeviceView(NamedTuple):
    """What a device looks like from outside. `busy_ns` only grows."""

    memory: int
    busy_ns: int
    processes: tuple[Process, ...]


class _Slot(NamedTuple):
    pid: int
    ticks: int
    utilisation: float
    demand: float
    sensitivity: float
    pressure: float
    memory: int
    at_work_until: int

    @property
    def alive(self) -> bool:
        return self.pid != 0 and _start_ticks(self.pid) == self.ticks


class _File:
    """A device's file, mapped and locked for each use."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._map = mmap.mmap(self._descriptor, _BYTES)
        if self._map[: len(_MAGIC)] != _MAGIC:
            self.close()
            reason = f"{path} is no fake GPU of this version"
            raise ValueError(reason)

    def close(self) -> None:
        self._map.close()
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)  # Its number may be another file's after the first time.

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def head(self) -> tuple[int, int]:
        _, memory, busy_ns = _HEAD.unpack_from(self._map)
        return memory, busy_ns

    def work(self, busy_ns: int) -> None:
        memory, before = self.head()
        _HEAD.pack_into(self._map, 0, _MAGIC, memory, before + busy_ns)

    def slots(self) -> list[_Slot]:
        raw = self._map[_HEAD.size : _BYTES]
        return [_Slot(*numbers) for numbers in _SLOT.iter_unpack(raw)]

    def put(self, index: int, slot: _Slot) -> None:
        _SLOT.pack_into(self._map, _HEAD.size + index * _SLOT.size, *slot)


def create(folder: str, device: int, memory: int) -> None:
    """Make a device, unless it is there; processes that are on it stay.

    Args:
        folder: The folder of the devices, which is made if needed.
        device: The number of the device.
        memory: Its bytes.
    """
    os.makedirs(folder, exist_ok=True)
    path = _path(folder, device)
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "wb") as file:
        file.write(_HEAD.pack(_MAGIC, memory, 0).ljust(_BYTES, b"\0"))
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(temporary)


def view(folder: str, device: int) -> DeviceView:
    """Return what a device looks like from outside.

    Args:
        folder: The folder of the devices.
        device: The number of the device.

    Raises:
        OSError: There is no such device, or it cannot be opened.
        ValueError: Its file is no fake GPU of this version.
    """
    file = _File(_path(folder, device))
    try:
        with file.locked():
            memory, busy_ns = file.head()
            slots = file.slots()
    finally:
        file.close()
    return DeviceView(
        memory, busy_ns, tuple(Process(slot.pid, slot.memory) for slot in slots if slot.alive)
    )


def trouble(folder: str, device: int) -> str:
    """Return what is wrong with a device: the text in `gpu<N>.trouble`, which plays a fault.

    Args:
        folder: The folder of the devices.
        device: The number of the device.

    Returns:
        At most TROUBLE_CHARACTERS_MAX characters; empty if nothing is wrong.
    """
    try:
        with open(f"{_path(folder, device)}.trouble", encoding="utf-8") as file:
            return file.read().strip()[:TROUBLE_CHARACTERS_MAX]
    except OSError:
        return ""


class Accelerator:
    """One process's hold on one device, for one training thread."""

    def __init__(
        self, folder: str, device: int, load: FakeLoad, limit: Limit | None = None
    ) -> None:
        """Take a slot, and the load's memory.

        Args:
            folder: The folder of the devices.
            device: The number of the device.
            load: What this process does to the device.
            limit: It may be changed at any time, by any thread; None: all of the memory.

        Raises:
            OSError: There is no such device, or it cannot be opened.
            ValueError: Its file is no fake GPU of this version.
            OutOfMemoryError: The device has no slot or not enough memory left.
        """
        self._file = _File(_path(folder, device))
        self._load = load
        self._limit = limit or Limit()
        self._away = 0
        self._index = -1
        self._pid = os.getpid()
        self._memory = 0
        self._began = time.monotonic_ns()
        try:
            with self._file.locked():
                self._index = self._free_slot()
                self._note(0)
            self.allocate(load.memory)
        except Exception:
            self.close()
            raise

    def mini_batch(self) -> None:
        """End the mini-batch in progress: wait until the device would have been done with it."""
        if os.getpid() != self._pid:
            return  # A fork trains nothing here.
        step_ns = round(self._load.step_s * 1e9)
        with self._file.locked():
            now = time.monotonic_ns()
            slowdown = 1 + sum(self._contention(slot) for slot in self._partners(now))
            self._file.work(round(step_ns * self._load.utilisation))
            self._note(now + round(LATE * slowdown * step_ns))
        left = self._began + round(step_ns * slowdown) - now
        if left > 0:
            time.sleep(left / 1e9)
            self._began += round(step_ns * slowdown)  # So that late wake-ups do not add up.
        else:
            self._began = now

    def allocate(self, size: int) -> None:
        """Take `size` bytes of the device's memory.

        Raises:
            OutOfMemoryError: The device, or this process's share of it, has less than that left.
            out_of_memory: No class, but the function that makes this error, which is PyTorch's too.
        """
        total, share = self._total(), self._limit.share
        most = int(total * share)
        if share and self._memory + size > most:
            reason = (
                f"fake GPU out of memory: tried to allocate {size} bytes; the share of this "
                f"job are {most} of {total} bytes, and it has {self._memory}"
            )
            raise out_of_memory(reason)
        self._take(size)

    def _take(self, size: int) -> None:
        with self._file.locked():
            total, _ = self._file.head()
            used = sum(slot.memory for slot in self._file.slots() if slot.alive)
            if used + size > total:
                reason = (
                    f"fake GPU out of memory: tried to allocate {size} bytes, of {total} "
                    f"are {total - used} free"
                )
                raise out_of_memory(reason)
            self._memory += size
            self._note(0)

    def free(self, size: int) -> None:
        """Give `size` bytes back."""
        assert 0 <= size <= self._memory, f"{size} of {self._memory} bytes"
        with self._file.locked():
            self._memory -= size
            self._note(0)

    def away(self) -> None:
        """Have nothing on the device until `back`: its state is in the host's memory."""
        with self._file.locked():
            self._away, self._memory = self._away + self._memory, 0
            self._note(0)

    def back(self) -> None:
        """Have on the device again what is away, above the limit too.

        Raises:
            OutOfMemoryError: The device has no room for it, so it stays away.
        """
        self._take(self._away)
        self._away = 0
        self._began = time.monotonic_ns()  # While it was away, the device did nothing for it.

    def moved_to(self, folder: str, device: int) -> Accelerator:
        """Leave this device for another, with the memory that it had; what is away stays away.

        After an exception this process is on neither.

        Args:
            folder: The folder of the devices.
            device: The number of the other device.

        Returns:
            The place on the other device; this one is closed.

        Raises:
            OSError: There is no such device, or it cannot be opened.
            ValueError: Its file is no fake GPU of this version.
            OutOfMemoryError: The device has no slot or not enough memory left.
        """
        self.close()
        moved = Accelerator(folder, device, self._load._replace(memory=0), self._limit)
        moved._load, moved._away = self._load, self._away
        try:
            moved._take(self._memory)
        except OutOfMemoryError:
            moved.close()
            raise
        return moved

    @property
    def memory(self) -> int:
        """Return the bytes this process has on the device."""
        return self._memory

    @property
    def allowed(self) -> int:
        """Return the bytes this process may have on the device."""
        total = self._total()
        return int(total * self._limit.share) or total

    def _total(self) -> int:
        total, _ = self._file.head()  # It never changes.
        return total

    def close(self) -> None:
        """Leave the device."""
        if self._index >= 0 and os.getpid() == self._pid:
            with self._file.locked():
                self._file.put(self._index, _NOBODY)
        self._index = -1
        self._file.close()

    def _free_slot(self) -> int:
        for index, slot in enumerate(self._file.slots()):
            if not slot.alive:
                return index
        reason = f"{SLOTS} processes are on the device, and no more can be"
        raise out_of_memory(reason)

    def _note(self, at_work_until: int) -> None:
        load = self._load
        slot = _Slot(
            self._pid,
            _start_ticks(self._pid),
            load.utilisation,
            load.demand,
            load.sensitivity,
            load.pressure,
            self._memory,
            at_work_until,
        )
        self._file.put(self._index, slot)

    def _partners(self, now: int) -> list[_Slot]:
        return [
            slot
            for index, slot in enumerate(self._file.slots())
            if index != self._index and slot.at_work_until > now and slot.alive
        ]

    def _contention(self, partner: _Slot) -> float:
        load = self._load
        return load.demand * partner.demand + load.sensitivity * partner.pressure


_NOBODY = _Slot(0, 0, 0.0, 0.0, 0.0, 0.0, 0, 0)


class Attachment:
    """The fake devices of a process; each fork of it has places of its own on them."""

    def __init__(self, folder: str, devices: Sequence[int], load: FakeLoad) -> None:
        """Take no place yet."""
        self._folder, self.devices, self._load = folder, devices, load
        self._held: dict[int, list[Accelerator]] = {}
        self.limit = Limit()

    def here(self) -> Sequence[Accelerator]:
        """Return this process's places, which are taken at first use.

        Raises:
            OSError: A device is not there, or cannot be opened.
            ValueError: Its file is no fake GPU of this version.
            OutOfMemoryError: A device has no slot or not enough memory left.
        """
        process = os.getpid()
        if process not in self._held:  # The first step, or the first in a fork.
            self._held[process] = [
                Accelerator(self._folder, device, self._load, self.limit) for device in self.devices
            ]
        return self._held[process]

    def used(self) -> int:
        """Return the bytes this process has on the device where it has most."""
        return max((one.memory for one in self._held.get(os.getpid(), ())), default=0)

    def away(self) -> None:
        """Have nothing on the devices."""
        for one in self._held.get(os.getpid(), ()):
            one.away()

    def back(self) -> None:
        """Have on all devices what is away.

        Raises:
            OutOfMemoryError: A device has no room for it, so it stays away on all.
        """
        try:
            for one in self._held.get(os.getpid(), ()):
                one.back()
        except OutOfMemoryError:
            self.away()
            raise

    def go(self, devices: Sequence[int]) -> Callable[[], None]:
        """Have the places of this process on as many other devices.

        After an exception everything is as it was.

        Args:
            devices: The numbers of the devices, as many as it has.

        Returns:
            A function that undoes the change.

        Raises:
            OSError: A device is not there, or cannot be opened.
            ValueError: Its file is no fake GPU of this version, or there are more or fewer devices.
            OutOfMemoryError: A device has no slot or not enough memory left.
        """
        process, before = os.getpid(), self.devices
        held = self._held.pop(process, [])
        moved: list[Accelerator] = []
        try:
            pairs = zip(held, devices, strict=bool(held))
            moved.extend(one.moved_to(self._folder, device) for one, device in pairs)
        except Exception:
            for one in moved:
                one.close()
            pairs = zip(held, before, strict=True)
            self._held[process] = [one.moved_to(self._folder, device) for one, device in pairs]
            raise
        self.devices = devices
        if held:
            self._held[process] = moved

        def undo() -> None:
            self.go(before)

        return undo


_attached: Attachment | None = None


def go(devices: Sequence[int]) -> Callable[[], None]:
    """Have this process on other fake devices, if it is on any; see `Attachment.go`.

    Args:
        devices: The numbers of the devices, as many as it has.

    Returns:
        A function that undoes the change.
    """
    if _attached is None or list(devices) == list(_attached.devices):
        return _nothing
    return _attached.go(devices)


def mine() -> Sequence[Accelerator]:
    """Return the fake devices of this process; none if it was given none.

    Raises:
        OSError: A device is not there, or cannot be opened.
        ValueError: Its file is no fake GPU of this version.
        OutOfMemoryError: A device has no slot or not enough memory left.
    """
    return _attached.here() if _attached is not None else ()


def attach(environ: Mapping[str, str]) -> Attachment | None:
    """Have optimizer steps end mini-batches on the fake devices this process was given, if any.

    A process takes its place on them at its first step, which raises what `Attachment.here` does:
    as a script hears from a GPU that is full.

    Args:
        environ: SKEP_FAKE_GPUS, SKEP_DEVICES and SKEP_FAKE_LOAD are read from it.

    Returns:
        None if the process was given no fake devices.

    Raises:
        ValueError: The load or the list of devices cannot be read.
    """
    global _attached  # noqa: PLW0603  a process has its devices once
    folder, text = environ.get("SKEP_FAKE_GPUS", ""), environ.get("SKEP_FAKE_LOAD", "")
    devices = [int(each) for each in environ.get("SKEP_DEVICES", "").split(",") if each]
    if not folder or not text or not devices:
        return None
    attachment = _attached = Attachment(folder, devices, read_load(text))

    def end_mini_batch(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        for one in attachment.here():
            one.mini_batch()

    def hook(module: ModuleType) -> None:
        module.register_optimizer_step_post_hook(end_mini_batch)

    ImportWatcher({OPTIMIZERS: hook}).install()
    return attachment


def out_of_memory(reason: str) -> OutOfMemoryError:
    """Return the error that a script catches: PyTorch's own, too, where that is imported."""
    theirs = vars(sys.modules["torch"]).get("OutOfMemoryError") if "torch" in sys.modules else None
    if theirs is None:
        return OutOfMemoryError(reason)
    kind: type[OutOfMemoryError] = type("OutOfMemoryError", (OutOfMemoryError, theirs), {})
    return kind(reason)


def read_load(text: str) -> FakeLoad:
    """Return the load in SKEP_FAKE_LOAD.

    Args:
        text: A JSON object such as {"step_ms": 20, "utilisation": 0.6}.

    Raises:
        ValueError: It is no such object, a key is missing or unknown, or a value is no number from
            0.
        TypeError: Never: it becomes a ValueError within the function.
    """
    try:
        given = json.loads(text)
        if not isinstance(given, dict):
            raise TypeError
    except (ValueError, TypeError):
        reason = 'SKEP_FAKE_LOAD is no JSON object such as {"step_ms": 20, "utilisation": 0.6}'
        raise ValueError(reason) from None
    wrong = [key for key in given if key != "step_ms" and key not in FakeLoad._fields[1:]]
    if wrong or "step_ms" not in given:
        what = f"`{wrong[0]}` is not known" if wrong else "`step_ms` is missing"
        reason = f"SKEP_FAKE_LOAD: {what}; keys are step_ms, {', '.join(FakeLoad._fields[1:])}"
        raise ValueError(reason)
    for key, value in given.items():
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not math.isfinite(value) or value < 0:
            reason = f"SKEP_FAKE_LOAD: `{key}` is {value!r}, expected a number from 0"
            raise ValueError(reason)
    step_s = float(given.pop("step_ms")) / 1e3
    memory = int(given.pop("memory", 0))
    return FakeLoad(step_s, memory=memory, **{key: float(value) for key, value in given.items()})


def _nothing() -> None:
    pass


def _path(folder: str, device: int) -> str:
    return os.path.join(folder, f"gpu{device}")


def _start_ticks(pid: int) -> int:
    """Return when a process began, in ticks since boot: with it a number names one process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rsplit(b")", 1)[1].split()[19])
    except OSError:
        return -1
