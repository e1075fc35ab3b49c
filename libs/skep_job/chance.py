"""The random number generators of a process: Python's, NumPy's if it is used, torch's, CUDA's."""

from __future__ import annotations

import base64
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

State = dict[str, Any]
"""As JSON: states of torch's generators are base64 text."""


def capture(generators: Sequence[Any] = ()) -> State:
    """Return the state of every generator in use, and of torch `generators` beside them."""
    import torch

    version, numbers, gauss = random.getstate()
    state: State = {"python": [version, list(numbers), gauss]}
    state["torch"] = text(torch.get_rng_state())
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy.get_state()
        state["numpy"] = [name, keys.tolist(), int(position), int(has_gauss), float(cached)]
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = [text(each) for each in torch.cuda.get_rng_state_all()]
    state["own"] = [text(generator.get_state()) for generator in generators]
    return state


def restore(state: State, generators: Sequence[Any] = ()) -> None:
    """Set every generator that `state` knows. Raises what a state that does not fit raises."""
    import torch

    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    torch.set_rng_state(tensor(state["torch"]))
    if "numpy" in state:
        import numpy as np

        name, keys, *rest = state["numpy"]
        np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
    cuda = state.get("cuda", [])
    if cuda and torch.cuda.is_available():
        # A successor may see fewer devices, or others: what it has is set.
        for device in range(min(len(cuda), torch.cuda.device_count())):
            torch.cuda.set_rng_state(tensor(cuda[device]), device)
    for generator, own in zip(generators, state["own"], strict=False):
        generator.set_state(tensor(own))


def text(state: Any) -> str:
    """Return a generator's state, a tensor of bytes, as text."""
    return base64.b64encode(bytes(state.cpu().tolist())).decode()


def tensor(state: str) -> Any:
    """Return the tensor of bytes that `text` was made of."""
    import torch

    return torch.frombuffer(bytearray(base64.b64decode(state)), dtype=torch.uint8)


class AfterSkip:
    """A sampler that passes over the first batches once, then has the generators set.

    It does so when the first index is asked for, not before: a data loader draws its workers' seed
    between making the sampler's iterator and asking it for the first index, while a random sampler
    draws its order with that first index. Either draw must be what it was at the pass's beginning.
    """

    def __init__(self, sampler: Any, skip: int, then: Callable[[int], None]) -> None:
        self._sampler = sampler
        self._skip = skip
        self._then: Callable[[int], None] | None = then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Any:
        then, self._then = self._then, None
        if then is None:
            yield from self._sampler  # Persistent workers ask again for every later pass.
            return
        indices = iter(self._sampler)
        skipped = 0
        for _ in range(self._skip):
            try:
                next(indices)
            except StopIteration:
                break
            skipped += 1
        then(skipped)
        yield from indices
