"""The random number generators of a process: Python's, NumPy's if it is used, torch's, CUDA's."""

from __future__ import annotations

import base64
import random
import sys
from collections.abc import Sequence
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
