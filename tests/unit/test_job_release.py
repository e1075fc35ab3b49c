"""Which storages are moved, which are left, and that whatever goes wrong leaves them in place."""

import gc
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from skep_job.devices import memory_release as module
from skep_job.devices.memory_release import (
    PinnedMemory,
    Refused,
    SharedMemory,
    find,
    release,
    threads_beside,
)
from skep_job.state import snapshot

pytestmark = [pytest.mark.torch]

KIB = 1024


@pytest.fixture(autouse=True)
def other_tests_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out threads that earlier tests of this process have left running."""
    left = threads_beside()
    monkeypatch.setattr(
        module, "threads_beside", lambda: [name for name in threads_beside() if name not in left]
    )


@pytest.fixture(scope="module")
def torch() -> Any:
    import torch

    return torch


@pytest.fixture
def random(torch: Any) -> Callable[[int], Any]:
    generator = torch.Generator().manual_seed(5)

    def make(size: int) -> Any:
        return torch.randint(0, 255, (size,), dtype=torch.uint8, generator=generator)

    return make


@pytest.fixture
def reused() -> Iterator[None]:
    yield
    PinnedMemory._reused.clear()


def found(torch: Any, *tensors: Any) -> list[bool]:
    """Return for each tensor whether its storage would be moved."""
    storages = {storage._cdata for storage in find(torch, "cpu").storages}
    return [tensor.untyped_storage()._cdata in storages for tensor in tensors]


def test_every_storage_is_moved_once_however_many_look_at_it(torch: Any) -> None:
    weight = torch.nn.Parameter(torch.randn(200, 200))
    view, alias = weight.detach()[3:7], weight.data
    before = weight.detach().clone()
    storages = [
        s for s in find(torch, "cpu").storages if s._cdata == alias.untyped_storage()._cdata
    ]
    assert len(storages) == 1
    store = SharedMemory()
    store.put(storages)
    assert store.moved == 200 * 200 * 4
    assert weight.untyped_storage().nbytes() == view.untyped_storage().nbytes() == 0
    store.take_back()
    assert torch.equal(weight, before)
    assert torch.equal(view, before[3:7])


def test_gradients_that_python_has_not_seen_are_found(torch: Any) -> None:
    weight = torch.nn.Parameter(torch.randn(200, 200))
    weight.sum().backward()
    gc.freeze()
    assert found(torch, weight, weight.grad) == [True, True]


def test_what_others_look_at_is_left(torch: Any) -> None:
    numpy, small, shared = torch.randn(200, 200), torch.randn(10), torch.randn(200, 200)
    numpy.numpy()
    shared.share_memory_()
    exported = torch.randn(200, 200)
    imported = torch.from_dlpack(exported)
    sparse = torch.eye(300).to_sparse()
    assert found(torch, numpy, small, shared, exported, imported) == [False] * 5
    assert sparse.is_sparse


def test_a_job_that_captured_graphs_is_refused(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without a device there is nothing to make a real one with.
    base = type("CUDAGraph", (), {})
    monkeypatch.setattr(torch.cuda, "CUDAGraph", base)
    graph = type("Graph", (base,), {})()
    with pytest.raises(Refused, match="CUDA graphs were captured"):
        release(torch)
    del graph


def test_a_job_over_its_budget_is_refused(torch: Any) -> None:
    kept = torch.randn(200, 200)
    with pytest.raises(Refused, match=r"budget: the state has \d+ bytes, 1000 of host memory"):
        release(torch, 1000)
    assert kept.untyped_storage().nbytes() == 200 * 200 * 4


def test_threads_of_libraries_are_none_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name="a library's")
    thread.start()

    def scripts_own() -> None:
        done.wait()

    script = threading.Thread(target=scripts_own, name="the script's")
    script.start()
    try:
        names = threads_beside()
    finally:
        done.set()
        thread.join()
        script.join()
    assert "the script's" in names
    assert "a library's" not in names


def test_a_full_host_puts_back_what_had_left(
    torch: Any, random: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 128 * KIB)
    tensors = [random(100 * KIB) for _ in range(6)]
    before = [tensor.clone() for tensor in tensors]
    written = []
    real = os.pwritev

    def full(descriptor: int, data: Any, offset: int) -> int:
        written.append(offset)
        if len(written) == 5:
            raise OSError(28, "No space left on device")
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwritev", full)
    open_before = len(os.listdir("/proc/self/fd"))
    store = SharedMemory()
    with pytest.raises(OSError, match="No space left"):
        store.put([tensor.untyped_storage() for tensor in tensors])
    assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))
    assert store.moved == 0
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_host_memory_is_free_once_the_state_is_back(
    torch: Any, random: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 128 * KIB)
    tensors = [random(100 * KIB) for _ in range(6)]
    open_before = len(os.listdir("/proc/self/fd"))
    store = SharedMemory()
    store.put([tensor.untyped_storage() for tensor in tensors])
    assert len(os.listdir("/proc/self/fd")) == open_before + 3
    store.take_back()
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_device_memory_goes_through_pieces_that_are_used_again(
    torch: Any, random: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch, reused: None
) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 128 * KIB)
    tensors = [random(size * KIB) for size in (100, 300, 70)]
    before = [tensor.clone() for tensor in tensors]
    for _ in range(2):
        store = PinnedMemory(torch, pinned=False)
        store.put([tensor.untyped_storage() for tensor in tensors])
        assert [tensor.untyped_storage().nbytes() for tensor in tensors] == [0, 0, 0]
        assert store.moved == 470 * KIB
        assert store.residue() == -1
        assert len(PinnedMemory._reused) == 4
        store.take_back()
        assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))


class Stubborn:
    """A storage for which the device has no room."""

    def resize_(self, size: int) -> None:
        if size:
            raise RuntimeError("out of memory")


def test_a_device_without_room_keeps_the_state_in_the_host(
    torch: Any, random: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch, reused: None
) -> None:
    tensor = random(100 * KIB)
    before = tensor.clone()
    store = PinnedMemory(torch, pinned=False)
    store.put([tensor.untyped_storage()])
    kept = list(store._kept)
    store._kept.append((Stubborn(), 1))
    with pytest.raises(RuntimeError, match="out of memory"):
        store.take_back()
    assert tensor.untyped_storage().nbytes() == 0
    store._kept = kept
    store.take_back()
    assert torch.equal(tensor, before)


def test_chance_is_not_touched(torch: Any) -> None:
    state = torch.get_rng_state()
    kept = torch.zeros(200, 200)
    release(torch).take_back()
    assert torch.equal(torch.get_rng_state(), state)
    assert not kept.any()


class Tied:
    """Two names of one weight, a view of another from its middle, and a small one that stays."""

    def __init__(self, torch: Any) -> None:
        base = torch.randn(300, 300)
        self.weight = torch.randn(200, 200)
        self.parts = {
            "one": self.weight,
            "two": self.weight,
            "other": torch.randn(200, 200),
            "view": base[7:250].t(),
            "small": torch.randn(3),
        }

    def state_dict(self) -> dict[str, Any]:
        return self.parts


def bytes_of(tensor: Any, peek: Any = None) -> bytes:
    data, keep = snapshot.host_bytes(tensor, peek)
    copy = bytes(data)
    del keep  # Not before.
    return copy


@pytest.mark.parametrize("pinned", [False, True])
def test_state_is_sent_from_the_hosts_memory(torch: Any, pinned: bool, reused: None) -> None:
    tied = Tied(torch)
    here = snapshot.take({"model": tied}, {})
    before = {name: bytes_of(each) for name, each in here.tensors.items()}
    assert len(before) == 4, "what has two names is sent once"
    storages = find(torch, "cpu").storages
    mine = {each.untyped_storage()._cdata for each in tied.parts.values()}
    store: Any = PinnedMemory(torch, pinned=False) if pinned else SharedMemory()
    store.put([each for each in storages if each._cdata in mine])
    away = snapshot.take({"model": tied}, {})
    assert snapshot.is_released(away.tensors)
    assert away.plain == here.plain
    assert {name: bytes_of(each, store.peek) for name, each in away.tensors.items()} == before
    assert snapshot.is_released(away.tensors), "nothing came back for it"
    store.take_back()
    with pytest.raises(LookupError):
        store.peek(tied.weight.untyped_storage())
