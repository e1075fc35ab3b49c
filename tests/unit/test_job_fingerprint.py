"""What a process shows of its model: with a small package named torch, and with objects alone."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from skep.wire.profile import Fingerprint as Wire
from skep_job.observe.fingerprint import TENSORS_MAX, Fingerprint
from skep_job.observe.step_counter import WINDOW, Tally, after_step
from tests.unit.test_job_hooks import Job, job  # noqa: F401  a fixture


class Tensor:
    def __init__(
        self, *shape: int, dtype: str = "torch.float32", size: int = 4, learns: bool = True
    ):
        self.shape, self.dtype, self.requires_grad, self._size = shape, dtype, learns, size

    def element_size(self) -> int:
        return self._size


class Optimizer:
    def __init__(self, *tensors: Any) -> None:
        self.param_groups = [{"params": [one]} for one in tensors]


def seen(*optimizers: Any, batch: Any = None) -> dict[str, Any] | None:
    made = Fingerprint()
    if batch is not None:
        made.see_batch(batch, 1)
    for each in optimizers:
        made.see_optimizer(each)
    return made.told(2)


def test_parameters_are_counted_by_shape_and_type() -> None:
    frozen = Tensor(100, dtype="torch.bfloat16", size=2, learns=False)
    shown = seen(Optimizer(Tensor(8, 4), Tensor(8), frozen), batch=[Tensor(20, 4), Tensor(20, 1)])
    assert shown is not None
    read = msgspec.convert(shown, Wire)
    assert (read.parameters, read.gradient_bytes) == (140, 160)
    assert read.dtypes == ("bfloat16", "float32")
    assert read.sizes == (0, 0, 0, 1, 0, 1, 1)
    assert read.batch == (20, 4)
    assert read.python


def test_the_digest_is_of_the_multiset_of_shapes() -> None:
    one, two = Tensor(8, 4), Tensor(8)

    def digest(*optimizers: Any) -> Any:
        return (seen(*optimizers) or {})["shapes"]

    assert digest(Optimizer(one, two)) == digest(Optimizer(two, one))
    assert digest(Optimizer(one), Optimizer(two)) == digest(Optimizer(one, two))
    assert digest(Optimizer(one, two), Optimizer(one)) == digest(Optimizer(one, two)), "it is one"
    assert digest(Optimizer(one, Tensor(8, 4))) != digest(Optimizer(one))
    assert digest(Optimizer(Tensor(4, 8))) != digest(Optimizer(one))
    assert digest(Optimizer(Tensor(8, dtype="torch.float16"))) != digest(Optimizer(two))


def test_what_is_of_an_unknown_kind_shows_nothing() -> None:
    class Odd:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    assert seen() is None
    assert seen(object()) is None
    assert seen(Optimizer(Tensor(8)), Optimizer(Odd())) is None
    assert seen(Optimizer(Tensor(8)), batch=Odd()) is not None
    deep: Any = []
    deep.append(deep)
    odd: tuple[Any, ...] = ({}, [], deep, {"a": {"b": {"c": {"d": Tensor(3)}}}}, "text", 7)
    for batch in odd:
        assert (seen(Optimizer(Tensor(8)), batch=batch) or {})["batch"] == [], batch
    assert (seen(Optimizer(Tensor(8)), batch={"x": (Tensor(3, 2),)}) or {})["batch"] == [3, 2]


def test_it_is_complete_after_the_second_mini_batch_and_then_stays() -> None:
    made = Fingerprint()
    made.see_optimizer(Optimizer(Tensor(8)))
    assert made.told(1) is None
    first = made.told(2)
    made.see_optimizer(Optimizer(Tensor(9)))
    assert made.told(3) is first
    short = Fingerprint()
    short.see_optimizer(Optimizer(Tensor(8)))
    assert short.told(1, ended=True) == first


def test_numbers_that_no_message_holds_are_cut() -> None:
    shown = seen(Optimizer(Tensor(2**40, 2**40)), batch=Tensor(*range(1, 12)))
    assert shown is not None
    read = msgspec.convert(msgspec.json.decode(msgspec.json.encode(shown)), Wire)
    assert read.parameters == read.gradient_bytes == 2**53
    assert len(read.batch) == 8


def test_so_many_tensors_and_no_more() -> None:
    shown = seen(Optimizer(*[Tensor(2) for _ in range(TENSORS_MAX + 100)]))
    assert shown is not None
    assert shown["parameters"] == 2 * TENSORS_MAX


def test_timings_leave_the_first_mini_batch_out(monkeypatch: pytest.MonkeyPatch) -> None:
    tally, now = Tally(), [0]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    step, optimizer = after_step(tally), Optimizer()
    for took in (10**12, *range(1, 12)):
        now[0] += took
        step(optimizer, (), {})
    assert tally.timing() == {
        "samples": 11,
        "mean_ns": 6,
        "deviation_ns": 3,
        "p10_ns": 2,
        "p50_ns": 6,
        "p90_ns": 10,
    }
    for _ in range(200):
        now[0] += 7
        step(optimizer, (), {})
    timing = tally.timing()
    assert timing is not None
    assert (timing["samples"], timing["deviation_ns"]) == (WINDOW, 0)
    tally.fail("here", ValueError("x"))
    assert tally.timing() is None


TRAIN = """
    import torch
    torch.__version__ = "2.9.9+cu\\x1b[1m"
    from torch.optim.optimizer import Optimizer
    from torch.utils.data.dataloader import _BaseDataLoaderIter
    class Tensor:
        shape, dtype, requires_grad = (3, 5), "torch.float32", True
        def element_size(self): return 4
    class Mine(Optimizer):
        param_groups = [{"params": [Tensor(), Tensor()]}]
    optimizer = Mine()
    for batch in _BaseDataLoaderIter([Tensor()] * 5):
        optimizer.step()
    """


def test_a_script_shows_it_once_on_each_connection(job: Job) -> None:  # noqa: F811  the fixture
    job.run(TRAIN)
    (told,) = job.agent.of_type("fingerprint")
    read = msgspec.convert(told["fingerprint"], Wire)
    assert (read.parameters, read.batch, read.torch) == (30, (3, 5), "2.9.9+cu1m")
    assert read.script
    assert told["fingerprint"]["processes"] == 1


def test_a_script_without_an_optimizer_of_torch_shows_nothing(job: Job) -> None:  # noqa: F811
    job.run("import torch\nprint('no model')")
    assert job.agent.of_type("fingerprint") == []
