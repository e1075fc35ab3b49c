"""Deadlines as promises: the order that keeps what admission promised, and starves nobody."""

from __future__ import annotations

from typing import ClassVar

from skep.policy.schedulers.fifo import Backfill


class Deadline(Backfill, frozen=True):
    """TODO."""

    name: ClassVar[str] = "deadline"
    source: ClassVar[str] = "TODO"
    keeps_promises: ClassVar[bool] = True
