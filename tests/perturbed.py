"""Other decisions on purpose: each perturbation turns choices of the decision code around.

None may change what a recorded log leads to; each does change what is recorded.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from skep.cells.decide import bad_cells, cover, placement, reconfigure
from skep.cells.forest import Forest
from skep.ids import AttemptId
from skep.ledger.queue import Head, JobQueue
from skep.ledger.state import ClusterState
from skep.machines.allocator.placement import job_cells
from skep.wire.reasons import Reason

Patches = list[tuple[Any, str, Any]]
"""What is replaced: an object, the name of an attribute, and the replacement."""


def carried_backwards() -> Patches:
    """Carry holds over the other way round when the cells change, the smallest first."""

    def opposite(values: Any, key: Callable[[Any], Any] | None = None) -> list[Any]:
        if key is None:
            return builtins.sorted(values)
        return builtins.sorted(values, key=lambda each: _opposite(key(each)))

    return [(reconfigure, "sorted", opposite)]


def ties_by_size() -> Patches:
    """Among holds of equal priority, carry the largest over first."""

    def sized(values: Any, key: Callable[[Any], Any] | None = None) -> list[Any]:
        if key is None:
            return builtins.sorted(values)
        return builtins.sorted(values, key=lambda each: (key(each), -getattr(each, "gpus", 0)))

    return [(reconfigure, "sorted", sized)]


def covered_by_the_largest() -> Patches:
    """Cover a hold by the largest cell that serves."""
    return [(cover, "_levels_to_try", lambda _preferred, top: list(range(top, 0, -1)))]


def another_bearer() -> Patches:
    """Let the VC with the fewest unbound cells bear what is bad, and share it out backwards."""
    whole = bad_cells._owners

    def owners(cells: Any, pools: Any, level: int) -> list[str]:
        return whole(cells, pools, level)[::-1]

    return [(bad_cells, "_owners", owners)]


def another_bad_cell() -> Patches:
    """Let the highest cell with bad GPUs be borne, and the most broken one go back first."""

    def backwards(values: Any, key: Any = None, *, reverse: bool = False) -> list[Any]:
        return builtins.sorted(values, key=key, reverse=not reverse)

    return [(bad_cells, "sorted", backwards), (bad_cells, "min", builtins.max)]


def another_leader() -> Patches:
    """Let the last that came lead a set."""
    return [(bad_cells, "choose_leader", lambda candidates: candidates[-1])]


def other_clean_cells() -> Patches:
    """Take clean cells in the opposite order."""
    whole = Forest.clean_cells

    def backwards(forest: Forest, *given: Any) -> Iterator[tuple[int, int, int]]:
        return iter(list(whole(forest, *given))[::-1])

    return [(Forest, "clean_cells", backwards)]


def dearest_victims() -> Patches:
    """Put those aside that lose most, and of several places take the dearest."""
    whole = job_cells.loss

    def loss(state: ClusterState, now: Any) -> Callable[[AttemptId], float]:
        lost = whole(state, now)
        return lambda name: -lost(name)

    return [(job_cells, "loss", loss)]


def newest_first() -> Patches:
    """Serve the newest jobs of a queue first."""

    def head(queue: JobQueue) -> Head | None:
        if not queue.entries:
            return None
        return Head(queue.entries[-1], queue.entries[-1], Reason.ARRIVAL)

    return [(JobQueue, "head", head)]


def nothing_chosen() -> Patches:
    """Let every chooser of the cells fail: whoever calls one while facts are applied is found."""

    def refuse(*_given: Any, **_more: Any) -> Any:
        raise AssertionError("something is chosen while a fact is applied")

    return [
        (bad_cells, "next_steps", refuse),
        (bad_cells, "choose_leader", refuse),
        (job_cells, "decide_outcome", refuse),
        (placement, "find_placement", refuse),
        (cover, "Draft", refuse),
        (job_cells, "loss", refuse),
        (Forest, "deficits", refuse),
        (Forest, "can_serve_one_more", refuse),
        (Forest, "clean_cells", refuse),
        (Forest, "used_cells", refuse),
        (JobQueue, "head", refuse),
    ]


PERTURBATIONS: Sequence[Callable[[], Patches]] = (
    carried_backwards,
    ties_by_size,
    covered_by_the_largest,
    another_bearer,
    another_bad_cell,
    another_leader,
    other_clean_cells,
    dearest_victims,
    newest_first,
)


@contextmanager
def perturbed(perturbation: Callable[[], Patches]) -> Iterator[None]:
    """Let decisions be other ones meanwhile."""
    with ExitStack() as stack:
        for target, name, replacement in perturbation():
            stack.enter_context(mock.patch.object(target, name, replacement, create=True))
        yield


def _opposite(key: Any) -> Any:
    return (
        tuple(map(_opposite, key))
        if isinstance(key, tuple)
        else -key
        if isinstance(key, int)
        else key
    )
