"""Prints what a training came to: the hash of the weights' bits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any


def tell(tensors: Iterable[Any]) -> None:
    """Print the hash of tensors."""
    digest = hashlib.sha256()
    for each in tensors:
        digest.update(each.detach().cpu().contiguous().numpy().tobytes())
    print("result", digest.hexdigest(), flush=True)
