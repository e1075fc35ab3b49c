"""The time of each mini-batch that a rank spends on its own, and not on waiting for other ranks.

    |-- data loader --|-- forward --|-- backward ----------------|-- optimizer --|
    own: wall-clock time              own: CPU time of the thread  own: wall-clock time

All ranks of a gang make as many mini-batches a second, as collectives make them wait for the
slowest. Their own times differ. What is left out of them are the calls that wait for others: those
of `Work.wait` and of the broadcast of buffers, and what the training thread stands still for in a
backward pass, in which torch reduces gradients.

On a GPU the thread runs ahead of the device. There the own time is what lies on the device between
the end of a mini-batch and the next backward pass, by two events; nothing waits for these. What a
data loader makes the training wait for is measured by itself.

It takes some 3 us of a mini-batch that is measured, more where it is costly to ask for the CPU time
of a thread. Of mini-batches that are shorter than EVERY_NS some are measured. What goes wrong here
ends the measurement, never the script.
"""

from __future__ import annotations

import functools
import sys
import time
from collections import deque
from collections.abc import Callable
from threading import get_ident
from types import ModuleType
from typing import Any, NamedTuple

SAMPLES = 64
"""Mini-batches whose median is reported, as for their length."""
SAMPLES_MIN = 8
"""With fewer nothing is reported."""
PENDING_MAX = 8
"""Mini-batches on a device whose events are not looked at yet: a further one is not measured."""
EVERY_NS = 20_000_000
"""From one mini-batch that is measured to the next: less than a thousandth of the time."""
NEVER = 2**63
NS_PER_MS = 1_000_000

Clock = Callable[[], int]
Measured = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Returns a function that does the same, and measures it."""


class Own(NamedTuple):
    """Medians of the latest mini-batches, in nanoseconds."""

    own_ns: int
    """On its own, the data loader included."""
    load_ns: int
    """In the data loader."""

    def told(self) -> dict[str, int]:
        """Return what is sent."""
        return self._asdict()


class OwnTime:
    """Measures the thread that ends mini-batches; read by the reporter's, without a lock."""

    def __init__(
        self, clock: Clock = time.monotonic_ns, cpu_clock: Clock = time.thread_time_ns
    ) -> None:
        """`clock` is the one of `end`, `cpu_clock` that of the calling thread (nanoseconds)."""
        self._clock, self._cpu_clock = clock, cpu_clock
        self.on = False
        """Whether mini-batches are measured."""
        self._samples: deque[tuple[int, int]] = deque(maxlen=SAMPLES)
        self._thread = 0  # The one that makes the mini-batch that is measured; 0: none is.
        self._next = NEVER
        self._began = 0
        self._waited = 0
        self._loaded = 0
        self._inside = False  # A call that is measured: what it calls is part of it.
        self._device: _DeviceTimes | None = None
        self._device_known = self._failed = False
        self._places: list[tuple[Any, str, Measured]] = []
        """What is measured once anything is: what has the call, its name, and how."""

    def turn(self, *, on: bool) -> None:
        """Measure from the next mini-batch on, or no more: a rank alone waits for no other.

        The calls that are measured are replaced only now: a rank alone has no cost of them.
        """
        if on and self._next == NEVER:
            self._next = 0
            self._replace()
            self.on = True
        elif not on:
            self.on = False
            self._next, self._thread = NEVER, 0

    def end(self, now: int) -> None:
        """Take it that the calling thread has ended a mini-batch at `now`. Never raises."""
        measured = self._thread
        if not measured and now < self._next:
            return
        thread, self._thread = get_ident(), 0
        if thread == measured:
            device = self._device
            if device is None:
                self._samples.append((now - self._began - self._waited, self._loaded))
            else:
                self._on_device(device.end, self._loaded)
        if now < self._next:
            return
        if not self._device_known:
            self._find_device()
        if self._device is not None:
            self._on_device(self._device.begin)
        self._next = now + EVERY_NS
        self._began, self._waited, self._loaded = now, 0, 0
        self._thread = thread

    def pass_over(self, pause_ns: int) -> None:
        """Take a pause that ends now out of the mini-batch. For the thread that trains."""
        self._began += pause_ns
        if self._device is not None:
            self._device.forget()

    def medians(self) -> Own | None:
        """Return the medians of the latest mini-batches; None while there are too few."""
        samples = list(self._samples.copy())
        if len(samples) < SAMPLES_MIN or self._failed:
            return None
        own = sorted(each for each, _ in samples)[len(samples) // 2]
        load = sorted(each for _, each in samples)[len(samples) // 2]
        return Own(max(own, 0), max(load, 0)) if own > 0 else None

    def hook_loaders(self, module: ModuleType) -> None:
        """Measure what the loaders of `torch.utils.data.dataloader` make the training wait for."""
        self._hook(getattr(module, "_BaseDataLoaderIter", None), "__next__", self._loading)

    def hook_backward(self, module: ModuleType) -> None:
        """Measure `torch.autograd.backward`; `Tensor.backward` calls it too."""
        self._hook(module, "backward", self._reducing)

    def hook_waits(self, module: ModuleType) -> None:
        """Measure the calls of `torch.distributed` that wait for other ranks."""
        work = getattr(module, "Work", None)
        if work is None:
            return  # A torch without collectives.
        self._hook(work, "wait", self._waiting)
        package = sys.modules.get("torch.distributed")
        if hasattr(package, "_broadcast_coalesced"):
            self._hook(package, "_broadcast_coalesced", self._waiting)

    def _hook(self, place: Any, name: str, measured: Measured) -> None:
        self._places.append((place, name, measured))
        if self._next != NEVER:
            self._replace()

    def _replace(self) -> None:
        for each in self._places.copy():  # Another thread may add one; those done are left alone.
            self._replace_one(*each)

    def _replace_one(self, place: Any, name: str, measured: Measured) -> None:
        try:
            original = getattr(place, name)
            if getattr(original, "_skep_own_time", False):
                return
            call = functools.wraps(original)(measured(original))
            call._torchdynamo_disable = True  # type: ignore[attr-defined]
            call._skep_own_time = True  # type: ignore[attr-defined]
            setattr(place, name, call)
        except Exception:  # A torch with another form.
            self._failed = True

    def _loading(self, original: Callable[..., Any]) -> Callable[..., Any]:
        clock = self._clock

        def load(iterator: Any) -> Any:
            if self._inside or get_ident() != self._thread:
                return original(iterator)
            began = clock()
            try:
                return original(iterator)
            finally:
                self._loaded += clock() - began

        return load

    def _waiting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        clock = self._clock

        # pybind11 looks here whether a `wait` in Python calls that of C++: at the name of this
        # function, and at its first argument. Without them a subclass of `Work` calls itself.
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inside or get_ident() != self._thread:
                return original(work, *args, **kwargs)
            began = clock()
            try:
                return original(work, *args, **kwargs)
            finally:
                self._waited += clock() - began

        return wait

    def _reducing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        clock, cpu_clock = self._clock, self._cpu_clock

        def backward(*args: Any, **kwargs: Any) -> Any:
            if self._inside or get_ident() != self._thread:
                return original(*args, **kwargs)
            self._inside = True
            if self._device is not None:
                self._device.meet()
            began, used = clock(), cpu_clock()
            try:
                return original(*args, **kwargs)
            finally:
                self._waited += (clock() - began) - (cpu_clock() - used)
                self._inside = False

        return backward

    def _find_device(self) -> None:
        """Measure on the device that the process uses, if it uses one."""
        self._device_known = True
        try:
            cuda = getattr(sys.modules.get("torch"), "cuda", None)
            if cuda is not None and cuda.is_initialized():
                self._device = _DeviceTimes(cuda)
        except Exception:
            self._failed = True

    def _on_device(self, call: Callable[..., list[tuple[int, int]]], *given: int) -> None:
        try:
            self._samples.extend(call(*given))
        except Exception:  # The device, or its context, is gone.
            self._failed, self._device = True, None


class _DeviceTimes:
    """Pairs of events on the current stream: a mini-batch's begin, and its first backward pass."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._begun: Any = None
        self._met: Any = None
        self._pending: deque[tuple[Any, int]] = deque()
        self._free: list[tuple[Any, Any]] = [
            (cuda.Event(enable_timing=True), cuda.Event(enable_timing=True))
            for _ in range(PENDING_MAX)
        ]

    def begin(self) -> list[tuple[int, int]]:
        """Take it that a mini-batch begins; return the times of those that are over."""
        self.forget()
        if self._cuda.is_current_stream_capturing():
            return []
        if self._free:
            self._begun = self._free.pop()
            self._begun[0].record()
        return self._over()

    def meet(self) -> None:
        """Take it that its first backward pass begins, in which ranks wait. Never raises."""
        begun, self._begun = self._begun, None
        if begun is None:
            return
        try:
            if not self._cuda.is_current_stream_capturing():
                begun[1].record()
                self._met = begun
                return
        except Exception:  # noqa: S110  `begin` will meet the same, and ends the measurement.
            pass
        self._free.append(begun)

    def end(self, loaded_ns: int) -> list[tuple[int, int]]:
        """Take it that it is over, `loaded_ns` of it in its loader; return as `begin` does."""
        if self._cuda.is_current_stream_capturing():
            self.forget()
            return []
        if self._met is not None:
            self._pending.append((self._met, loaded_ns))
            self._met = None
        return self._over()

    def forget(self) -> None:
        """Leave out the mini-batch that has begun."""
        self._free += [each for each in (self._begun, self._met) if each is not None]
        self._begun = self._met = None

    def _over(self) -> list[tuple[int, int]]:
        """Return own and loading times of mini-batches that the device is done with.

        Not during a capture of a CUDA graph, which a query of an event would end.
        """
        found = []
        while self._pending and self._pending[0][0][1].query():
            pair, loaded_ns = self._pending.popleft()
            found.append((int(pair[0].elapsed_time(pair[1]) * NS_PER_MS), loaded_ns))
            self._free.append(pair)
        return found
