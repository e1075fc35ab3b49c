"""Which rank of what a library takes its process for: by the environment, as `torchrun` sets it.

A newcomer has a seat in a gang that is not formed yet. A library that read its environment would
wait for the others, and they for it. So accelerate finds itself alone there, until it has a seat.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from skep_job.observe.import_watcher import ImportWatcher

NEWCOMER = "generation-"
"""How SKEP_AWAITS begins in a process that joins a gang, and does not succeed a rank."""
NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
STATE = "accelerate.state"


def watch(environ: Mapping[str, str]) -> None:
    """Have accelerate find itself alone in a newcomer. Called before the script runs."""
    if environ.get("SKEP_AWAITS", "").startswith(NEWCOMER):
        ImportWatcher({STATE: _hook}).install()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Have the environment say nothing of other ranks."""
    kept = {name: os.environ.pop(name) for name in NAMES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)


@contextlib.contextmanager
def seated(rank: int, world: int) -> Iterator[None]:
    """Have the environment say which rank this is; within, a rank without others is alone.

    Args:
        rank: The rank, from here on.
        world: How many there are, from here on.
    """
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ.setdefault("LOCAL_RANK", "0")
    with alone() if world < 2 else contextlib.nullcontext():
        yield


def _hook(module: ModuleType) -> None:
    state: Any = getattr(module, "PartialState", None)
    original = getattr(state, "__init__", None)
    if original is None:
        return

    @functools.wraps(original)
    def init(self: Any, *words: Any, **options: Any) -> None:
        formed = sys.modules["torch.distributed"].is_initialized()
        with contextlib.nullcontext() if formed else alone():
            original(self, *words, **options)

    state.__init__ = init
