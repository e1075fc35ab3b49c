"""Measure what observing costs per mini-batch.

`hook` is the hook called in a loop, `empty_hook` a function that does nothing, called the same way:
the floor for any hook. `backward_hook` is what stands in for `torch.autograd.backward` as long as
no optimizer has stepped. With PyTorch, `sgd_step` is the CPU time of the smallest optimizer's step
without any hook, with the empty one and with ours, in turns; `added` is the median of the
differences between neighbours, and includes what a hook costs when the step before it has filled
the processor's caches. All figures are nanoseconds per step.

Exits 1 if the hook's best round in the loop is above the limit.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
import timeit
from typing import Any

from benchmarks._sample import extremes
from skep_job.link.orders import Control
from skep_job.observe.step_counter import AfterStep, Tally, after_step
from skep_job.observe.torch_hooks import _counting_backward

LIMIT_NS = 500
"""What a hook may cost: a thousandth of a mini-batch of half a millisecond, a very short one."""

ROUNDS = 15
CALLS = 100_000

STEP_ROUNDS = 300
STEPS = 50
"""Short rounds, so that what else the machine does falls on neighbours alike."""


class Loss:
    """Stands for a scalar."""

    def numel(self) -> int:
        """Return the number of its elements."""
        return 1


class Optimizer:
    """Stands for an optimizer; the hook asks only for its identity."""


def options(parser: argparse.ArgumentParser) -> None:
    """Add nothing: there is nothing to choose."""


def run(_: argparse.Namespace) -> dict[str, Any]:
    """Return the time of each hook, and whether ours is within its limit."""
    hooks = {"empty_hook": empty_hook, "hook": after_step(Tally())}
    timers = {name: timer(hook) for name, hook in hooks.items()}
    rounds = measure({**timers, "backward_hook": backward_timer()})
    result: dict[str, Any] = {name: extremes(values, None) for name, values in rounds.items()}
    if importlib.util.find_spec("torch") is not None:
        result["sgd_step"] = measure_torch()
    best = min(rounds["hook"])
    return {
        **result,
        "unit": "ns",
        "rounds": ROUNDS,
        "limit": LIMIT_NS,
        "within_limit": best <= LIMIT_NS,
    }


def empty_hook(_optimizer: object, _args: object, _kwargs: object) -> None:
    """Do nothing."""


def timer(hook: AfterStep) -> timeit.Timer:
    """Return a timer of one call, with nothing else in the loop."""
    return timeit.Timer("hook(optimizer, (), {})", globals={"hook": hook, "optimizer": Optimizer()})


def backward_timer() -> timeit.Timer:
    """Return a timer of one backward pass that does nothing itself."""
    tally = Tally()
    backward = _counting_backward(_nothing, tally, Control(tally.reached), _nothing)
    return timeit.Timer("backward(loss)", globals={"backward": backward, "loss": Loss()})


def _nothing(*_: object) -> None:
    """Stand for `torch.autograd.backward`."""


def measure(timers: dict[str, timeit.Timer]) -> dict[str, list[float]]:
    """Return the nanoseconds per call of each, one figure per round, measured in turns."""
    rounds: dict[str, list[float]] = {name: [] for name in timers}
    for _ in range(ROUNDS):
        for name, call in timers.items():
            rounds[name].append(call.timeit(CALLS) / CALLS * 1e9)
    return rounds


def measure_torch() -> dict[str, object]:
    """Return what a step of SGD takes with each hook, and what each adds."""
    # Imported here: without PyTorch the hook alone is still measured.
    import torch  # noqa: PLC0415
    from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: PLC0415

    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model(torch.randn(2, 4)).sum().backward()
    tally = Tally()
    hooks = {"without": None, "empty_hook": empty_hook, "hook": after_step(tally)}
    rounds: dict[str, list[float]] = {name: [] for name in hooks}
    call = timeit.Timer(optimizer.step, timer=time.thread_time)
    for _ in range(STEP_ROUNDS):
        for name, hook in hooks.items():
            handle = None if hook is None else register_optimizer_step_post_hook(hook)
            rounds[name].append(call.timeit(STEPS) / STEPS * 1e9)
            if handle is not None:
                handle.remove()
    assert tally.count().steps == STEP_ROUNDS * STEPS
    added = {
        name: round(statistics.median(map(float.__sub__, rounds[name], rounds["without"])))
        for name in ("empty_hook", "hook")
    }
    return {**{name: extremes(values, None) for name, values in rounds.items()}, "added": added}
