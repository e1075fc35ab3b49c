"""What a mini-batch of GENIE's six models takes on K80s: curves that stand in for its cluster.

The paper prints no measurements that could be read off. A mini-batch takes

    fixed + samples on each GPU x seconds of a sample + gradients / PCIe + gradients / InfiniBand

where gradients cross a node's PCIe if it has several of the GPUs, and InfiniBand if there are
several nodes, both as in a ring (twice, but for the own part). An inference mini-batch is a forward
pass: a third of the time, and no gradients.

`sample_s` is 1 over the samples per second that TensorFlow's published benchmarks have for one GPU
of a K80 where they have the model (AlexNet, ResNet-50, Inception-v3), and an estimate for the
others; parameters are those of the published models. `fixed_s` is an estimate, with which the rate
rises with the batch size and then levels off (observation 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

PCIE, INFINIBAND = 6e9, 2e9
"""Effective bytes per second within a node and between nodes."""
FORWARD = 1 / 3
"""The part of a training mini-batch that its forward pass takes."""
MB = 1e6


class Curve(NamedTuple):
    """One model: seconds of a sample, seconds of each mini-batch beside, bytes of its gradients."""

    sample_s: float
    fixed_s: float
    gradients: float


CURVES = {
    "alexnet": Curve(1 / 656, 0.02, 244 * MB),
    "googlenet": Curve(1 / 130, 0.025, 28 * MB),
    "resnet50": Curve(1 / 52, 0.03, 102 * MB),
    "inception3": Curve(1 / 30.5, 0.04, 95 * MB),
    "regularized-lstm": Curve(1 / 220, 0.03, 79 * MB),
    "seq2seq": Curve(1 / 120, 0.06, 200 * MB),
}
TRAINING, INFERENCE = "training", "inference"


class StepS(Protocol):
    """Returns the seconds of a mini-batch, as `step_s` does."""

    def __call__(self, of: str, batch: float, spread: Sequence[int] = (1,)) -> float:
        """Return the seconds of a mini-batch."""
        ...


def kind(model: str, calculation: str) -> str:
    """Return the type of a task, which is a model and what is done with it (section 5.1.1)."""
    return f"{model}/{calculation}"


def step_s(of: str, batch: float, spread: Sequence[int] = (1,)) -> float:
    """Return the seconds of a mini-batch.

    Args:
        of: The type of the task, as `kind` names it.
        batch: Samples of a mini-batch of the whole gang.
        spread: Its GPUs on each node.
    """
    model, _, calculation = of.partition("/")
    curve = CURVES[model]
    alone = curve.fixed_s + curve.sample_s * batch / sum(spread)
    if calculation == INFERENCE:
        return alone * FORWARD
    near, far = max(spread), len(spread)
    return (
        alone
        + 2 * (near - 1) / near * curve.gradients / PCIE
        + 2 * (far - 1) / far * curve.gradients / INFINIBAND
    )
