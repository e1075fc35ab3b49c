"""A server's arithmetic against `torch.optim.SGD`, and bit by bit against itself."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests import needs

if why := needs.missing("torch"):
    needs.skip(why)

import torch
from torch import Tensor

from skep_ps.assign import Segment
from skep_ps.placement import Spec
from skep_ps.store import Hyper, Store, view

pytestmark = pytest.mark.torch

ELEMENTS = 1003


def stepped(elements: int, gradients: list[list[Tensor]], hyper: Hyper) -> Tensor:
    """Return the parameters after a step for each list of workers' gradients."""
    spec = Spec((Segment(0, "float32", ELEMENTS),), elements, True, False, True, "")
    store = Store(spec)
    values = torch.linspace(-1, 1, ELEMENTS)
    for number, chunk in enumerate(store.chunks):
        store.kept[number] = store.fresh(number)
        store.kept[number].values.copy_(values[chunk.begin : chunk.end])
    for workers in gradients:
        for number, chunk in enumerate(store.chunks):
            parts = [gradient[chunk.begin : chunk.end].clone() for gradient in workers]
            store.update(number, parts, [hyper], len(workers))
    return torch.cat([store.kept[number].values for number in range(len(store.chunks))])


def drawn(steps: int, workers: int) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [
        [torch.randn(ELEMENTS, generator=generator) for _ in range(workers)] for _ in range(steps)
    ]


@pytest.mark.parametrize(
    "options",
    [
        {
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": decay,
            "nesterov": nesterov,
            "maximize": maximize,
        }
        for momentum, dampening, decay, nesterov, maximize in itertools.product(
            (0.0, 0.9), (0.0, 0.3), (0.0, 0.01), (False, True), (False, True)
        )
        if not nesterov or (momentum and not dampening)
    ],
    ids=str,
)
def test_it_does_what_sgd_does(options: dict[str, Any]) -> None:
    gradients = drawn(5, 3)
    ours = stepped(128, gradients, Hyper(lr=0.1, **options))
    parameter = torch.nn.Parameter(torch.linspace(-1, 1, ELEMENTS))
    optimizer = torch.optim.SGD([parameter], lr=0.1, **options)
    for workers in gradients:
        parameter.grad = torch.stack(workers).mean(dim=0)
        optimizer.step()
    torch.testing.assert_close(ours, parameter.detach(), rtol=1e-5, atol=1e-6)


def test_the_bits_depend_on_neither_chunks_nor_threads() -> None:
    gradients = drawn(5, 3)
    hyper = Hyper(0.1, 0.9, 0.0, 0.01, True, False)
    whole = stepped(ELEMENTS, gradients, hyper)
    threads = torch.get_num_threads()
    try:
        for count, elements in itertools.product((1, 2), (1, 7, 64, 1000)):
            torch.set_num_threads(count)
            assert torch.equal(stepped(elements, gradients, hyper), whole)
    finally:
        torch.set_num_threads(threads)


def test_a_view_is_the_tensors_own_memory() -> None:
    tensor = torch.zeros(3)
    view(tensor)[:4] = torch.ones(1).numpy().tobytes()
    assert tensor.tolist() == [1.0, 0.0, 0.0]
    assert view(torch.zeros(0)).nbytes == 0
