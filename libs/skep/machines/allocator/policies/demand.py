"""What the waiting jobs of a VC ask for, each shape once, and what of it could not be had.

Of ten thousand jobs that wait there are a few shapes. While nothing comes free, none of them is
tried twice, and where all of them have failed the jobs are not looked at at all.
"""

from __future__ import annotations

from typing import Any

SHAPES_MAX = 1000
"""Shapes that could not be placed and are kept: more than a queue has, and few to keep."""

Shape = tuple[Any, ...]
"""Resources, what a job does beyond its quota, and the nodes that it may be on (none: any)."""


class Demand:
    """By shape, which jobs ask for it, and when it last failed."""

    def __init__(self) -> None:
        """Begin with no job that waits."""
        self._asks: dict[str, Shape | None] = {}
        """By waiting job: None for one that goes on where it was, which no shape tells."""
        self._count: dict[Shape | None, int] = {}
        self._failed: dict[Shape, tuple[int, bool]] = {}
        """`Soft.changes` when it could not be had, and whether what it waits for may be in others'
        hands."""

    def __bool__(self) -> bool:
        """Return whether any job waits."""
        return bool(self._asks)

    def come(self, job: str, shape: Shape | None) -> None:
        """Have a job ask for something.

        Args:
            job: It waits.
            shape: What it asks for; None: it goes on where it was, which no shape tells.
        """
        self.leave(job)
        self._asks[job] = shape
        self._count[shape] = self._count.get(shape, 0) + 1

    def leave(self, job: str) -> None:
        """Have a job ask for nothing."""
        if job in self._asks:
            shape = self._asks.pop(job)
            self._count[shape] -= 1
            if not self._count[shape]:
                del self._count[shape]

    def fail(self, shape: Shape, changes: int, *, outside: bool) -> None:
        """Note that a shape could not be had.

        Args:
            shape: What was asked for.
            changes: `Soft.changes` now: it is tried again once that is another.
            outside: Whether what it waits for may be in the hands of other VCs.
        """
        if shape not in self._failed and len(self._failed) >= SHAPES_MAX:
            self._failed.clear()
        self._failed[shape] = changes, outside

    def failed(self, shape: Shape, changes: int) -> bool | None:
        """Return what is known of a shape that failed.

        Args:
            shape: What is asked for.
            changes: `Soft.changes` now.

        Returns:
            None: it may be had now; else whether that may change outside the VC.
        """
        known = self._failed.get(shape)
        return known[1] if known is not None and known[0] == changes else None

    def in_vain(self, changes: int) -> bool:
        """Return whether nothing that any job waits for may be had now.

        Args:
            changes: `Soft.changes` now.
        """
        for shape in self._count:
            known = self._failed.get(shape) if shape is not None else None
            if known is None or known[0] != changes:
                return False
        return True

    def outside(self) -> bool:
        """Return whether what any job waits for may come free outside the VC."""
        return any(shape is None or self._failed[shape][1] for shape in self._count)
