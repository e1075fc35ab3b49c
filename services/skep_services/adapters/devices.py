"""The GPUs of a node behind one interface: NVML where there is a driver, CPU slots elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from skep.units import GIB
from skep.wire.node import Gpu
from skep_job.devices import fake_gpus

FAKE_MEMORY = 16 * GIB
"""Of a fake GPU, unless SKEP_GPU_MEMORY says otherwise: a V100's, or a P100's."""
SLOTS_MAX = 64
"""More slots than any machine has GPUs: a larger number is a mistake."""


MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Where a container finds its own limit: control groups of version 2, and of version 1."""


class DeviceError(Exception):
    """The devices asked for are not there: the text says what is, and what to do."""


class DeviceProcess(msgspec.Struct, frozen=True):
    """A process on a device, and what it holds there: bytes, -1 where the driver does not say."""

    pid: int
    memory: int = -1


class DeviceState(msgspec.Struct, frozen=True):
    """A device at one moment.

    `utilisation` is thousandths of the time since the last look in which any kernel ran, `memory`
    the bytes in use; both -1 if unknown. `trouble` is what the device says is wrong with it, health
    events since this process began among it: each as often as it was seen.
    """

    index: int
    utilisation: int = -1
    memory: int = -1
    processes: tuple[DeviceProcess, ...] = ()
    trouble: tuple[str, ...] = ()


class Devices(Protocol):
    """What the agent needs to know of its GPUs."""

    def gpus(self) -> tuple[Gpu, ...]:
        """Return the inventory."""
        ...

    def visible(self, devices: Sequence[int]) -> Mapping[str, str]:
        """Return the variables that make a process see these devices and no others."""
        ...

    def in_container(self, devices: Sequence[int]) -> Mapping[str, str]:
        """Return the same variables for a container that was given these devices only."""
        ...

    def names(self, devices: Sequence[int]) -> tuple[str, ...]:
        """Return what a container engine knows these devices by; nothing if it need not."""
        ...

    def nodes(self, devices: Sequence[int]) -> tuple[str, ...]:
        """Return the device files that a process with these devices opens; nothing if none."""
        ...

    def cpus(self, devices: Sequence[int]) -> tuple[int, ...]:
        """Return the processors that processes with these devices are kept on; none: any."""
        ...

    def look(self) -> tuple[DeviceState, ...]:
        """Return the state of each device that can tell; takes some milliseconds at most."""
        ...


class CpuSlots:
    """Slots that stand for GPUs on machines without any: training runs on the CPU."""

    def __init__(self, count: int, kind: str, cpus: Sequence[int] = ()) -> None:
        """Offer slots, each with an equal share of the host's memory.

        Args:
            count: How many slots.
            kind: The GPU type that they are called by.
            cpus: Processors, of which each slot has an equal part. If there are fewer of them than
                slots, slots share them. The processes of a slot are kept on its part. Empty: they
                run on any.

        Raises:
            DeviceError: `count` is not 1 to SLOTS_MAX.
        """
        if not 1 <= count <= SLOTS_MAX:
            text = f"{count} CPU slots: ask for 1 to {SLOTS_MAX}"
            raise DeviceError(text)
        self._count, self._kind, self._cpus = count, kind, tuple(cpus)

    def gpus(self) -> tuple[Gpu, ...]:
        """Return the slots."""
        share = host_memory() // self._count
        return tuple(Gpu(index=i, type=self._kind, memory=share) for i in range(self._count))

    def visible(self, devices: Sequence[int]) -> Mapping[str, str]:
        """Name the slots; hide any real GPU, which was not allocated."""
        kept = {"SKEP_CPUS": _text_of(self.cpus(devices))} if self._cpus else {}
        return {**self.in_container(devices), **kept}

    def in_container(self, devices: Sequence[int]) -> Mapping[str, str]:
        """Name the slots; a container's processors are its engine's matter."""
        return {"CUDA_VISIBLE_DEVICES": "", "SKEP_DEVICES": _text_of(devices)}

    def cpus(self, devices: Sequence[int]) -> tuple[int, ...]:
        """Return the slots' processors, if each slot has its own."""
        have, kept = len(self._cpus), {}
        for device in devices if have else ():
            first = device * have // self._count
            last = max((device + 1) * have // self._count, first + 1)
            kept.update(dict.fromkeys(self._cpus[first:last]))
        return tuple(sorted(kept))

    def names(self, devices: Sequence[int]) -> tuple[str, ...]:
        """Return nothing: a slot is no device that could be handed out."""
        return ()

    def nodes(self, devices: Sequence[int]) -> tuple[str, ...]:
        """Return nothing: a slot has no file."""
        return ()

    def look(self) -> tuple[DeviceState, ...]:
        """Return nothing: a slot is not a device that could tell."""
        return ()


class FakeGpus:
    """CPU slots that behave like GPUs: contention, utilisation, memory (`skep_job.devices`)."""

    def __init__(self, slots: CpuSlots, folder: Path, memory: int) -> None:
        """Make the devices.

        Args:
            slots: The CPU slots that they are.
            folder: Where they are kept.
            memory: What each of them has (bytes).

        Raises:
            DeviceError: They cannot be kept in the folder.
        """
        self._slots, self._folder, self._memory = slots, str(folder), memory
        self._seen: dict[int, tuple[int, int]] = {}
        try:
            for gpu in slots.gpus():
                fake_gpus.create(self._folder, gpu.index, memory)
        except OSError as error:
            text = f"fake GPUs cannot be kept in {folder}: {error.strerror}"
            raise DeviceError(text) from error

    def gpus(self) -> tuple[Gpu, ...]:
        """Return the devices."""
        made = (msgspec.structs.replace(gpu, memory=self._memory) for gpu in self._slots.gpus())
        return tuple(made)

    def visible(self, devices: Sequence[int]) -> Mapping[str, str]:
        """Name the devices, and where they are."""
        return {**self._slots.visible(devices), "SKEP_FAKE_GPUS": self._folder}

    def in_container(self, devices: Sequence[int]) -> Mapping[str, str]:
        """Name the slots only: a container has other process numbers, and no such folder."""
        return self._slots.in_container(devices)

    def names(self, devices: Sequence[int]) -> tuple[str, ...]:
        """Return nothing, as for any slot."""
        return ()

    def nodes(self, devices: Sequence[int]) -> tuple[str, ...]:
        """Return nothing, as for any slot."""
        return ()

    def cpus(self, devices: Sequence[int]) -> tuple[int, ...]:
        """Return the processors of the slots."""
        return self._slots.cpus(devices)

    def look(self) -> tuple[DeviceState, ...]:
        """Return what is on the devices, and how busy each was since the last look."""
        return tuple(self._look(gpu.index) for gpu in self._slots.gpus())

    def _look(self, index: int) -> DeviceState:
        try:
            seen = fake_gpus.view(self._folder, index)
        except (OSError, ValueError) as error:
            return DeviceState(index, trouble=(f"its file cannot be used: {error}",))
        now = time.monotonic_ns()
        before, then = self._seen.get(index, (seen.busy_ns, now))
        self._seen[index] = seen.busy_ns, now
        trouble = fake_gpus.trouble(self._folder, index)
        busy = (seen.busy_ns - before) * 1000 // (now - then) if now > then else 0
        return DeviceState(
            index=index,
            utilisation=min(busy, 1000),
            memory=sum(process.memory for process in seen.processes),
            processes=tuple(DeviceProcess(*process) for process in seen.processes),
            trouble=(trouble,) if trouble else (),
        )


class _Handle(msgspec.Struct, frozen=True):
    index: int
    handle: Any


JOBS_OWN_ERRORS = frozenset({13, 31, 43, 45, 68, 109})
"""XID numbers that a job's own code causes; every other says that the device or its driver failed.
The list that NVIDIA's Kubernetes device plugin goes by."""


class _Events:
    """Health events of the driver: XID errors that are no job's fault, and lost memory cells."""

    def __init__(self, nvml: Any, handles: Sequence[_Handle]) -> None:
        """Ask for the events of every device that has such; those without are fine."""
        self._nvml = nvml
        self._counts: dict[str, dict[str, int]] = {}
        self._set: Any = None
        try:
            wanted = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
            self._set = nvml.nvmlEventSetCreate()
            for one in handles:
                supported = nvml.nvmlDeviceGetSupportedEventTypes(one.handle)
                if supported & wanted:
                    nvml.nvmlDeviceRegisterEvents(one.handle, supported & wanted, self._set)
        except (nvml.NVMLError, AttributeError):
            pass  # As in containers with few capabilities: what was registered so far counts.

    def take(self) -> None:
        """Take what has happened since the last time; returns at once."""
        nvml = self._nvml
        try:
            while self._set is not None:
                event = nvml.nvmlEventSetWait_v2(self._set, 0)
                xid = event.eventType & nvml.nvmlEventTypeXidCriticalError
                if not xid or int(event.eventData) not in JOBS_OWN_ERRORS:
                    self._count(
                        event, f"XID {int(event.eventData)}" if xid else "lost memory cells"
                    )
        except nvml.NVMLError:
            pass  # Nothing more for now, or a device was lost, which a look tells by itself.

    def _count(self, event: Any, what: str) -> None:
        counts = self._counts.setdefault(_text(self._nvml.nvmlDeviceGetUUID(event.device)), {})
        counts[what] = counts.get(what, 0) + 1

    def of(self, uuid: str) -> list[str]:
        """Return in words what happened to a device."""
        return [
            f"{what}, seen {count} times" if count > 1 else what
            for what, count in self._counts.get(uuid, {}).items()
        ]


class NvmlGpus:
    """The GPUs the NVIDIA driver sees, by its management library (the `nvidia-ml-py` package)."""

    def __init__(self) -> None:
        """Open the library.

        Raises:
            DeviceError: There are no bindings, there is no driver, or the driver sees no GPU.
        """
        try:
            import pynvml  # noqa: PLC0415  # Present only on GPU nodes.
        except ImportError as error:
            text = "no NVML bindings: install the `cuda` extra (pip install 'skep[cuda]')"
            raise DeviceError(text) from error
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            text = f"NVML: {error}: is the NVIDIA driver loaded? `nvidia-smi` must work here"
            raise DeviceError(text) from error
        self._handles = [_Handle(i, pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(count)]
        if not self._handles:
            text = "the NVIDIA driver sees no GPU; set SKEP_DEVICE=cpu for CPU slots"
            raise DeviceError(text)
        self._uuids = {
            one.index: _text(pynvml.nvmlDeviceGetUUID(one.handle)) for one in self._handles
        }
        self._events = _Events(pynvml, self._handles)

    def gpus(self) -> tuple[Gpu, ...]:
        """Return what NVML lists; types are the vendor's names in small letters with dashes."""
        nvml = self._nvml
        return tuple(
            Gpu(
                index=one.index,
                type=_text(nvml.nvmlDeviceGetName(one.handle)).lower().replace(" ", "-"),
                memory=int(nvml.nvmlDeviceGetMemoryInfo(one.handle).total),
                uuid=self._uuids[one.index],
            )
            for one in self._handles
        )

    def visible(self, devices: Sequence[int]) -> Mapping[str, str]:
        """Name the devices by index, in the order NVML lists them."""
        chosen = ",".join(map(str, devices))
        return {
            "CUDA_VISIBLE_DEVICES": chosen,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "SKEP_DEVICES": chosen,
        }

    def in_container(self, devices: Sequence[int]) -> Mapping[str, str]:
        """Name the devices by their place among those the container sees, which begins at 0."""
        inside = sorted(devices)
        chosen = ",".join(str(inside.index(device)) for device in devices)
        return {**self.visible(devices), "CUDA_VISIBLE_DEVICES": chosen}

    def names(self, devices: Sequence[int]) -> tuple[str, ...]:
        """Return the driver's UUIDs."""
        return tuple(self._uuids[device] for device in devices)

    def nodes(self, devices: Sequence[int]) -> tuple[str, ...]:
        """Return the files by the driver's own numbers, which need not be NVML's."""
        found = []
        for one in self._handles:
            if one.index in devices:
                minor = self._nvml.nvmlDeviceGetMinorNumber(one.handle)
                found.append(f"/dev/nvidia{minor}")
        return tuple(found)

    def cpus(self, devices: Sequence[int]) -> tuple[int, ...]:
        """Return nothing: processes with GPUs run on any processor."""
        return ()

    def look(self) -> tuple[DeviceState, ...]:
        """Return what the driver says; what it cannot say on this hardware is left unknown."""
        self._events.take()
        return tuple(self._look(one) for one in self._handles)

    def _look(self, one: _Handle) -> DeviceState:
        nvml, trouble = self._nvml, []

        def ask(question: str) -> Any:
            try:
                return getattr(nvml, question)(one.handle)
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
                    trouble.append("the driver lost the device")
                return None

        rates = ask("nvmlDeviceGetUtilizationRates")
        memory = ask("nvmlDeviceGetMemoryInfo")
        running = ask("nvmlDeviceGetComputeRunningProcesses") or ()
        rows = ask("nvmlDeviceGetRemappedRows")
        if rows is not None and rows[3]:  # Correctable, uncorrectable, pending, failed.
            trouble.append("remapping a row of its memory failed")
        trouble += self._events.of(self._uuids[one.index])
        return DeviceState(
            index=one.index,
            utilisation=-1 if rates is None else int(rates.gpu) * 10,
            memory=-1 if memory is None else int(memory.used),
            processes=tuple(
                DeviceProcess(int(process.pid), _known(process.usedGpuMemory))
                for process in running
            ),
            trouble=tuple(dict.fromkeys(trouble)),
        )


def open_devices(environment: Mapping[str, str], state: Path) -> Devices:
    """Return the devices SKEP_DEVICE, SKEP_GPUS and SKEP_GPU_TYPE ask for.

    With SKEP_PIN_SLOTS the processes of a CPU slot are kept on its part of the processors. Fake
    ones have SKEP_GPU_MEMORY bytes each.

    Args:
        environment: Where these variables are.
        state: The folder below which fake devices are kept.

    Raises:
        DeviceError: A variable is wrong, or the devices are not there.
    """
    device = environment.get("SKEP_DEVICE", "cpu")
    if device == "cuda":
        return NvmlGpus()
    if device not in ("cpu", "fake"):
        text = f"SKEP_DEVICE is {device!r}: it must be `cpu`, `fake` or `cuda`"
        raise DeviceError(text)
    count = environment.get("SKEP_GPUS", "1")
    if not count.isdecimal():
        text = f"SKEP_GPUS is {count!r}: it must be a number of CPU slots"
        raise DeviceError(text)
    pinned = environment.get("SKEP_PIN_SLOTS", "0")
    if pinned not in ("0", "1"):
        text = (
            f"SKEP_PIN_SLOTS is {pinned!r}: it must be 1 to keep each slot on its processors, or 0"
        )
        raise DeviceError(text)
    cpus = sorted(os.sched_getaffinity(0)) if pinned == "1" else ()
    slots = CpuSlots(int(count), environment.get("SKEP_GPU_TYPE", device), cpus)
    if device == "cpu":
        return slots
    memory = environment.get("SKEP_GPU_MEMORY", str(FAKE_MEMORY))
    if not memory.isdecimal() or not int(memory):
        text = f"SKEP_GPU_MEMORY is {memory!r}: it must be a number of bytes"
        raise DeviceError(text)
    return FakeGpus(slots, state / "gpus", int(memory))


def host_memory() -> int:
    """Return the memory in bytes that this process may use: the host's, or its container's."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([whole, *(_limit(path) for path in MEMORY_LIMITS)])


def _limit(path: str) -> int:
    """Return the number in a control group's file, a huge one if there is none."""
    try:
        text = Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return sys.maxsize
    return int(text) if text.isdecimal() else sys.maxsize


assert host_memory() < 2**20 * GIB


def _text_of(indices: Sequence[int]) -> str:
    return ",".join(map(str, indices))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _known(memory: Any) -> int:
    """Return the bytes the driver says, -1 if it says None or its largest number for unknown."""
    return int(memory) if memory is not None and int(memory) < 2**60 else -1
