"""Moves the memory behind a script's tensors to the host and back, under the tensors' feet.

Every tensor's storage is made empty with `resize_(0)` and filled again later. The storage object
stays the same, so that views, aliases, tied weights, copies and whatever else refers to it need
not be known. Found are the tensors that the garbage collector knows, and their gradients. Left
where they are: storages that cannot be resized (numpy or another process looks at them), small
ones, those whose memory a second storage uses as well, and what only C++ refers to (buckets of
DistributedDataParallel, workspaces, the CUDA context): the residue.

On CUDA devices the copy is kept in pinned host memory, which is reused; a job without CUDA has its
tensors copied into shared memory, and its resident set falls, which shows the whole on any machine.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import site
import sys
import sysconfig
import threading
from collections.abc import Iterator, Sequence
from types import FrameType, ModuleType
from typing import Any, NamedTuple, Protocol

from skep_job.process.memory import memory_bytes

STORAGE_BYTES_MIN = 64 * 1024
"""Smaller storages are not worth a copy of their own: they hardly add up to anything."""

PIECE_BYTES = 64 * 1024 * 1024
"""Of host memory taken at once. PyTorch rounds pinned memory up to a power of two."""
assert PIECE_BYTES.bit_count() == 1

IO_BYTES_MAX = 1024 * 1024 * 1024
"""Of one read or write; the kernel does at most 2 GiB at once."""

Storage = Any  # torch.UntypedStorage

_NOT_AWAY = "this storage is not away"


class Refused(Exception):  # noqa: N818  a name for what happened
    """The state stays where it is; the text says why."""


class Found(NamedTuple):
    """What there is to move."""

    storages: list[Storage]
    graphs: bool  # whether CUDA graphs were captured, which hold addresses


class Store(Protocol):
    """A state that is away."""

    moved: int

    def take_back(self) -> None:
        """Put everything back. If that raises, what is not back can be asked for again."""

    def peek(self, storage: Storage) -> Any:
        """Return the bytes of a storage that is away, as a tensor in the host's memory.

        Raises:
            LookupError: The storage is not away.
        """

    def residue(self) -> int:
        """Return the bytes that stayed on the devices; -1 if that is not known."""


def release(torch: ModuleType, limit: int | None = None) -> Store:
    """Move the state into host memory.

    After an exception everything is where it was.

    Args:
        torch: The module.
        limit: The most bytes of host memory to use; None: no bound.

    Returns:
        The state that is away.

    Raises:
        Refused: The state must not be moved, or is larger than `limit`.
        OSError: The shared memory cannot be made or written.
        MemoryError: The host has not enough memory.
        RuntimeError: PyTorch has failed, most likely for want of memory.
    """
    beside = threads_beside()
    if beside:
        reason = f"a thread of the script runs beside the training: {beside[0]}"
        raise Refused(reason)
    cuda = bool(torch.cuda.is_initialized())
    found = find(torch, "cuda" if cuda else "cpu")
    if found.graphs:
        reason = "CUDA graphs were captured, and they hold addresses of the state"
        raise Refused(reason)
    needed = sum(storage.nbytes() for storage in found.storages)
    if limit is not None and needed > limit:
        reason = f"budget: the state has {needed} bytes, {limit} of host memory are allowed"
        raise Refused(reason)
    store: PinnedMemory | SharedMemory = (
        PinnedMemory(torch, pinned=True) if cuda else SharedMemory()
    )
    store.put(found.storages)
    return store


# --- what to move ---------------------------------------------------------------------------------


def find(torch: ModuleType, device: str) -> Found:
    """Return the storages on devices of one type that can be moved, each once.

    Args:
        torch: The module.
        device: "cuda" or "cpu".
    """
    if gc.get_freeze_count():
        gc.unfreeze()  # What is frozen is not listed.
    captured = _kinds(getattr(torch.cuda, "CUDAGraph", None))
    wanted = _kinds(torch.Tensor) | captured
    # In one pass, by type: there are hundreds of thousands of things.
    things = gc.get_objects()
    found = list(itertools.compress(things, map(wanted.__contains__, map(type, things))))
    del things
    graphs = _has_graph_trees() or any(type(each) in captured for each in found)
    storages: dict[int, Storage] = {}
    with torch._C.DisableTorchFunctionSubclass():
        for each in found:
            if type(each) not in captured:
                _collect(torch, each, device, storages)
    return Found(_movable(list(storages.values()), device), graphs)


def _collect(
    torch: ModuleType, tensor: Any, device: str, storages: dict[int, Storage], *, deep: bool = True
) -> None:
    try:
        if tensor.device.type != device:
            return
        if deep and tensor.requires_grad and tensor.is_leaf and tensor.grad is not None:
            # Backward has made it, and Python may never have seen it.
            _collect(torch, tensor.grad, device, storages, deep=False)
        storage = tensor.untyped_storage()
        if storage.data_ptr():  # A DTensor has none: its part is a tensor of its own.
            storages[storage._cdata] = storage
    except (RuntimeError, NotImplementedError, AttributeError, ReferenceError):
        pass  # A sparse tensor, one without storage, one in the middle of its making: they stay.


def _movable(storages: list[Storage], device: str) -> list[Storage]:
    """Return those of `storages` that can be emptied without anybody else's noticing."""
    # Another storage on the same memory (DLPack, a slice of a file) would be left dangling.
    shared: set[int] = set()
    end, last = 0, None
    for storage in sorted(storages, key=lambda storage: int(storage.data_ptr())):
        begin = storage.data_ptr()
        if last is not None and begin < end:
            shared |= {storage._cdata, last._cdata}
        if begin + storage.nbytes() > end:
            end, last = begin + storage.nbytes(), storage
    return [
        storage
        for storage in storages
        if storage.nbytes() >= STORAGE_BYTES_MIN
        and storage.resizable()
        and storage._cdata not in shared
        and not (device == "cpu" and storage.is_shared())
    ]


def _kinds(base: type | None) -> frozenset[type]:
    """Return a class and all that are derived from it; none of None."""
    found: dict[type, None] = {} if base is None else {base: None}
    waiting = list(found)
    while waiting:
        below: list[type] = type.__subclasses__(waiting.pop())
        fresh = [kind for kind in below if kind not in found]
        found.update(dict.fromkeys(fresh))
        waiting += fresh
    return frozenset(found)


def _has_graph_trees() -> bool:
    """Return whether torch.compile has captured CUDA graphs (mode="reduce-overhead")."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    containers = getattr(getattr(trees, "local", None), "tree_manager_containers", None)
    return bool(containers)


def threads_beside() -> list[str]:
    """Return the names of other threads that run the script's own code.

    It cannot be known what such a thread touches next. Threads of the standard library and of
    installed packages (data loaders' helpers, progress bars, writers) leave parameters alone.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    return [
        names.get(ident, str(ident))
        for ident, frame in sys._current_frames().items()
        if ident != own and any(_is_scripts(file) for file in _files(frame))
    ]


def _files(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back


def _is_scripts(file: str) -> bool:
    return not file.startswith(_LIBRARIES)


_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_FOLDERS = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    *site.getsitepackages(),
    site.getusersitepackages(),
    _OWN,
    os.path.join(os.path.dirname(_OWN), "skep_ps"),  # A name, not an import: few jobs load it.
)
_LIBRARIES = ("<frozen ", *(folder + os.sep for folder in _FOLDERS))


# --- where to -------------------------------------------------------------------------------------


class SharedMemory:
    """State of CPU tensors in anonymous shared memory that is mapped nowhere."""

    def __init__(self) -> None:
        self.moved = 0
        self._pieces: list[tuple[int, list[tuple[Storage, int]]]] = []

    def put(self, storages: Sequence[Storage]) -> None:
        """Move `storages` here. If that raises, they are where they were."""
        try:
            for group in _groups(storages):
                self._put(group)
        except BaseException:
            self.take_back()
            self.moved = 0
            raise
        _trim()

    def take_back(self) -> None:
        while self._pieces:
            descriptor, kept = self._pieces[-1]
            filled = []
            try:
                for storage, size in kept:
                    storage.resize_(size)
                    filled.append(storage)
            except BaseException:
                for storage in filled:
                    storage.resize_(0)
                raise
            offset = 0
            for storage, size in kept:
                offset = _transfer(os.preadv, descriptor, storage, size, offset)
            os.close(descriptor)
            del self._pieces[-1]

    def peek(self, storage: Storage) -> Any:
        import torch

        for descriptor, kept in self._pieces:
            offset = 0
            for each, size in kept:
                if each._cdata == storage._cdata:
                    data = torch.empty(size, dtype=torch.uint8)
                    _transfer(os.preadv, descriptor, data.untyped_storage(), size, offset)
                    return data
                offset += size
        raise LookupError(_NOT_AWAY)

    def residue(self) -> int:
        return memory_bytes()

    def _put(self, group: list[Storage]) -> None:
        descriptor = os.memfd_create("skep-state", os.MFD_CLOEXEC)
        kept = [(storage, storage.nbytes()) for storage in group]
        offset = 0
        try:
            for storage, size in kept:
                offset = _transfer(os.pwritev, descriptor, storage, size, offset)
        except BaseException:
            os.close(descriptor)
            raise
        self._pieces.append((descriptor, kept))
        for storage, _ in kept:
            storage.resize_(0)
        self.moved += offset


class PinnedMemory:
    """State of device tensors in page-locked host memory."""

    _reused: list[Any] = []  # noqa: RUF012  taking page-locked memory is slow, so it is kept

    def __init__(self, torch: ModuleType, *, pinned: bool) -> None:
        self.moved = 0
        self._torch = torch
        self._pinned = pinned
        self._kept: list[tuple[Storage, int]] = []

    def put(self, storages: Sequence[Storage]) -> None:
        """Move `storages` here. If that raises, they are where they were."""
        kept = [(storage, storage.nbytes()) for storage in storages]
        needed = sum(size for _, size in kept)
        self._take_pieces(needed)
        self._synchronize(kept)  # Kernels on any stream may still write.
        for here, there in self._slices(kept):
            here.copy_(there, non_blocking=self._pinned)
        self._synchronize(kept)
        self._kept = kept
        for storage, _ in kept:
            storage.resize_(0)
        if self._pinned:
            self._torch.cuda.empty_cache()
        self.moved = needed

    def take_back(self) -> None:
        filled = []
        try:
            for storage, size in self._kept:
                storage.resize_(size)
                filled.append(storage)
        except BaseException:
            for storage in filled:
                storage.resize_(0)
            if self._pinned:
                self._torch.cuda.empty_cache()
            raise
        for here, there in self._slices(self._kept):
            there.copy_(here, non_blocking=self._pinned)
        self._synchronize(self._kept)
        self._kept = []

    def peek(self, storage: Storage) -> Any:
        torch, offset = self._torch, 0
        for each, size in self._kept:
            if each._cdata == storage._cdata:
                data = torch.empty(size, dtype=torch.uint8)
                self._read(data, offset)
                return data
            offset += size
        raise LookupError(_NOT_AWAY)

    def _read(self, data: Any, offset: int) -> None:
        """Fill a tensor of bytes with what is kept at an offset of the pieces."""
        done, size = 0, data.numel()
        while done < size:
            piece, begin = divmod(offset + done, PIECE_BYTES)
            length = min(size - done, PIECE_BYTES - begin)
            data[done : done + length] = self._reused[piece][begin : begin + length]
            done += length

    def residue(self) -> int:
        """Return what PyTorch still holds; the CUDA context, which it cannot see, comes on top."""
        if not self._pinned:
            return -1
        cuda = self._torch.cuda
        return sum(int(cuda.memory_reserved(device)) for device in range(cuda.device_count()))

    def _take_pieces(self, needed: int) -> None:
        pieces, before = self._reused, len(self._reused)
        try:
            while len(pieces) * PIECE_BYTES < needed:
                piece = self._torch.empty(
                    PIECE_BYTES, dtype=self._torch.uint8, device="cpu", pin_memory=self._pinned
                )
                pieces.append(piece)
        except BaseException:
            del pieces[before:]
            raise

    def _slices(self, kept: list[tuple[Storage, int]]) -> Iterator[tuple[Any, Any]]:
        """Yield pairs of equal size, in the host's pieces and in the storages."""
        torch, offset = self._torch, 0
        with torch.no_grad():
            for storage, size in kept:
                data = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
                done = 0
                while done < size:
                    piece, begin = divmod(offset, PIECE_BYTES)
                    length = min(size - done, PIECE_BYTES - begin)
                    here = self._reused[piece][begin : begin + length]
                    yield here, data[done : done + length]
                    done += length
                    offset += length

    def _synchronize(self, kept: list[tuple[Storage, int]]) -> None:
        if self._pinned:
            for device in {storage.device for storage, _ in kept}:
                self._torch.cuda.synchronize(device)


def _groups(storages: Sequence[Storage]) -> Iterator[list[Storage]]:
    """Yield `storages` in groups of about one piece: a descriptor each, freed one by one."""
    group: list[Storage] = []
    size = 0
    for storage in storages:
        group.append(storage)
        size += storage.nbytes()
        if size >= PIECE_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _transfer(call: Any, descriptor: int, storage: Storage, size: int, offset: int) -> int:
    """Read or write a whole storage; return where it ends in the file.

    Args:
        call: `os.preadv`, which changes the storage, or `os.pwritev`.
        descriptor: The file.
        storage: Where the bytes are in memory.
        size: How many bytes.
        offset: Where they begin in the file.

    Raises:
        OSError: The file is too short, or cannot be read or written.
    """
    memory = memoryview((ctypes.c_char * size).from_address(storage.data_ptr())).cast("B")
    done = 0
    while done < size:
        count = call(descriptor, [memory[done : done + IO_BYTES_MAX]], offset + done)
        if not count:
            reason = "the shared memory is shorter than what was written"
            raise OSError(reason)
        done += count
    return offset + size


def _trim() -> None:
    """Have the C library return free memory to the system: it keeps it otherwise."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        pass  # Another C library than glibc.
