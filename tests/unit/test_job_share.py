"""What a job's own side does about its share of a device's memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from skep_job.devices import fake_gpus
from skep_job.devices.fake_gpus import Attachment, FakeLoad, OutOfMemoryError
from skep_job.devices.memory_share import NO_DEVICE, MemoryShare, read
from skep_job.link.orders import Control, Message

GIB = 2**30


def attached(folder: Path, devices: int = 1, memory: int = 0) -> Attachment:
    for device in range(devices):
        fake_gpus.create(str(folder), device, 16 * GIB)
    return Attachment(str(folder), range(devices), FakeLoad(0.001, memory=memory))


class Job:
    """One process, and what it says."""

    def __init__(self, share: MemoryShare) -> None:
        self.share, self.control, self.heard = share, Control(), list[Message]()
        self.control.wake = self.hear
        share.install(self.control)

    def hear(self) -> None:
        while (message := self.control.unsent()) is not None:
            self.control.sent(message)
            self.heard.append(message)

    def told(self, order: int, **fields: object) -> Message:
        self.control.take({"type": "share", "order": order, **fields})
        return self.heard[-1]


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Attachment]:
    here = attached(tmp_path, devices=2, memory=6 * GIB)
    yield here
    for one in here.here():
        one.close()


def test_a_share_from_the_start_is_kept_to(tmp_path: Path) -> None:
    fake = attached(tmp_path, memory=4 * GIB)
    share = MemoryShare({"SKEP_MEMORY_SHARE": "0.5"}, fake)
    assert share.can() == ["share"]
    (device,) = fake.here()
    assert (device.memory, device.allowed) == (4 * GIB, 8 * GIB)
    device.allocate(4 * GIB)
    with pytest.raises(OutOfMemoryError, match="the share of this job are 8589934592 of"):
        device.allocate(1)
    device.free(1)
    device.allocate(1)
    device.close()


def test_a_rank_that_finds_no_room_elsewhere_stays_where_it_is(tmp_path: Path) -> None:
    for device in range(4):
        fake_gpus.create(str(tmp_path), device, 16 * GIB)
    load = FakeLoad(0.001, memory=6 * GIB)
    fake = Attachment(str(tmp_path), (0, 1), load)
    full = fake_gpus.Accelerator(str(tmp_path), 3, load._replace(memory=15 * GIB))
    assert [one.memory for one in fake.here()] == [6 * GIB, 6 * GIB]
    with pytest.raises(OutOfMemoryError):
        fake.go((2, 3))
    assert list(fake.devices) == [0, 1]
    assert [one.memory for one in fake.here()] == [6 * GIB, 6 * GIB]
    views = [fake_gpus.view(str(tmp_path), device) for device in range(4)]
    used = [[process.memory // GIB for process in each.processes] for each in views]
    assert used == [[6], [6], [], [15]]
    for one in (*fake.here(), full):
        one.close()


def test_processes_of_a_rank_divide_what_it_has_on_their_device(tmp_path: Path) -> None:
    fake = attached(tmp_path, devices=2)
    one = MemoryShare({"SKEP_MEMORY_SHARE": "0.5"}, fake)
    one.divide(2)
    assert fake.limit.share == 0.25
    job = Job(MemoryShare({"SKEP_DEVICES": "0,1"}, fake))
    job.share.divide(4)
    assert job.told(1, share=0.5)["share"] == 0.5
    assert fake.limit.share == 0.25, "two of them are on each"


def test_a_load_that_exceeds_its_share_hears_it_as_from_a_full_device(tmp_path: Path) -> None:
    fake = attached(tmp_path, memory=9 * GIB)
    MemoryShare({"SKEP_MEMORY_SHARE": "0.5"}, fake)
    with pytest.raises(OutOfMemoryError):
        fake.here()


def test_the_error_is_the_one_that_scripts_catch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = type("OutOfMemoryError", (RuntimeError,), {})
    torch = ModuleType("torch")
    torch.OutOfMemoryError = theirs  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    fake = attached(tmp_path, memory=17 * GIB)
    with pytest.raises(theirs) as caught:
        fake.here()
    assert isinstance(caught.value, OutOfMemoryError)


def test_a_share_changes_and_what_is_in_use_stays(fake: Attachment) -> None:
    job = Job(MemoryShare({}, fake))
    fake.here()[1].allocate(GIB)
    assert job.told(1, share=0.25) == {"type": "shared", "order": 1, "share": 0.25, "used": 7 * GIB}
    with pytest.raises(OutOfMemoryError):
        fake.here()[0].allocate(1)
    assert fake.here()[0].memory == 6 * GIB
    # What is the whole of a device is left out of the message.
    assert job.told(2) == {"type": "shared", "order": 2, "share": 0.0, "used": 7 * GIB}
    fake.here()[0].allocate(10 * GIB)
    # An order that is overtaken changes nothing; one that is repeated is answered again.
    job.control.take({"type": "share", "order": 1, "share": 0.1})
    assert job.told(2)["share"] == 0.0
    assert fake.limit.share == 0.0


@pytest.mark.parametrize("share", ["half", -0.1, 1.5, True, float("nan")])
def test_a_share_that_is_none_is_refused(fake: Attachment, share: object) -> None:
    answer = Job(MemoryShare({}, fake)).told(1, share=share)
    assert (answer["type"], answer["what"]) == ("failed", "share")
    assert fake.limit.share == 0.0


def test_state_that_is_away_leaves_the_device_and_returns_above_the_share(fake: Attachment) -> None:
    share = MemoryShare({}, fake)
    first, _ = fake.here()
    share.away()
    assert first.memory == 0
    fake.limit.share = 0.1
    with share.taking_back():
        pass
    assert first.memory == 6 * GIB


def test_a_device_that_is_full_meanwhile_keeps_the_state_away(
    fake: Attachment, tmp_path: Path
) -> None:
    share = MemoryShare({}, fake)
    first, second = fake.here()
    share.away()
    other = fake_gpus.Accelerator(str(tmp_path), 1, FakeLoad(0.001, memory=11 * GIB))
    with pytest.raises(OutOfMemoryError), share.taking_back():
        pass
    assert (first.memory, second.memory) == (0, 0)
    other.free(GIB)
    with share.taking_back():
        pass
    assert (first.memory, second.memory) == (6 * GIB, 6 * GIB)
    other.close()


def test_what_the_environment_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert read({}) == 0.0
    assert read({"SKEP_MEMORY_SHARE": "0.25"}) == 0.25
    assert capsys.readouterr().err == ""
    for text in ("half", "2", "nan", "-1"):
        assert read({"SKEP_MEMORY_SHARE": text}) == 0.0
        assert "expected a number from 0 to 1" in capsys.readouterr().err


# --- CUDA, as far as it can be seen without a device ------------------------------------------


class Cuda(ModuleType):
    """PyTorch's module of that name: two devices, and what its allocator was told."""

    def __init__(self, *, ready: bool) -> None:
        super().__init__("torch.cuda")
        self.ready, self.queued, self.fractions = ready, list[Any](), dict[int, float]()
        self.trouble: Exception | None = None
        self.is_initialized = lambda: self.ready

    def _lazy_call(self, call: Any) -> None:
        if self.ready:
            call()
        else:
            self.queued.append(call)

    def device_count(self) -> int:
        return 2

    def memory_reserved(self, device: int) -> int:
        return 100 + device

    def set_per_process_memory_fraction(self, fraction: float, device: int) -> None:
        if self.trouble is not None:
            raise self.trouble
        self.fractions[device] = fraction

    def begin(self) -> None:
        self.ready = True
        for call in self.queued:
            call()


def cuda(monkeypatch: pytest.MonkeyPatch, *, ready: bool) -> Cuda:
    module = Cuda(ready=ready)
    monkeypatch.setitem(sys.modules, "torch.cuda", module)
    return module


@pytest.fixture(autouse=True)
def finders() -> Iterator[None]:
    before = list(sys.meta_path)
    yield
    sys.meta_path[:] = before


def test_pytorch_is_told_as_soon_as_it_uses_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    module = cuda(monkeypatch, ready=False)
    job = Job(MemoryShare({"SKEP_MEMORY_SHARE": "0.5"}))
    assert job.share.can() == []
    assert job.told(1, share=0.25)["used"] == 0
    assert len(module.queued) == 1
    module.begin()
    assert module.fractions == {0: 0.25, 1: 0.25}
    assert job.share.can() == ["share"]
    assert job.told(2) == {"type": "shared", "order": 2, "share": 0.0, "used": 101}
    assert module.fractions == {0: 1.0, 1: 1.0}


def test_a_limit_does_not_keep_released_state_away(monkeypatch: pytest.MonkeyPatch) -> None:
    module = cuda(monkeypatch, ready=True)
    share = MemoryShare({"SKEP_MEMORY_SHARE": "0.5"})
    with share.taking_back():
        assert module.fractions == {0: 1.0, 1: 1.0}
    assert module.fractions == {0: 0.5, 1: 0.5}


def test_what_goes_wrong_in_pytorch_reaches_no_script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = cuda(monkeypatch, ready=False)
    job = Job(MemoryShare({"SKEP_MEMORY_SHARE": "0.5"}))
    module.trouble = RuntimeError("no")
    module.begin()
    assert "no limit of device memory: RuntimeError: no" in capsys.readouterr().err
    with job.share.taking_back():
        pass
    answer = job.told(1, share=0.5)
    assert (answer["type"], answer["error"]) == ("failed", "RuntimeError: no")


def test_a_process_without_a_device_says_so() -> None:
    job = Job(MemoryShare({"CUDA_VISIBLE_DEVICES": "", "SKEP_MEMORY_SHARE": "0.5"}))
    assert job.share.can() == []
    assert job.told(1, share=0.5)["error"] == NO_DEVICE
