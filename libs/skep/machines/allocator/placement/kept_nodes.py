"""Nodes that a job must not have, as a window is open there or it would run into one."""

from __future__ import annotations

from skep.cells.decide.search import Limit
from skep.ledger.job_state import JobState
from skep.machines.allocator.transaction import Transaction
from skep.policy.windows import keeps_out, known_length
from skep.units import Instant


def kept_from(tx: Transaction, job: JobState, now: Instant) -> dict[str, str]:
    """Return the nodes that a job must not begin on, and the window of each.

    Args:
        tx: Its windows are read.
        job: It waits, or is to go on or grow.
        now: The time of the decision.
    """
    windows = tx.state.windows
    if not windows:
        return {}
    length = known_length(job.spec, job.served, tx.soft.fits)
    return {
        node: name
        for name, window in windows.items()
        if keeps_out(window, job.spec.vc, length, now, opened=name in tx.state.opened)
        for node in window.nodes
    }


def without(kept: dict[str, str], limit: Limit, workers: int) -> Limit:
    """Return a limit that leaves out some nodes.

    Args:
        kept: The nodes.
        limit: How many workers each of the others may have; None: any number.
        workers: How many the job has.
    """
    if not kept:
        return limit

    def open_to(name: str) -> int:
        if name in kept:
            return 0
        return workers if limit is None else limit(name)

    return open_to


def closed(tx: Transaction, job: JobState, now: Instant) -> bool:
    """Return whether a window that keeps a job out is open on a node where it has a part."""
    if not tx.state.windows:
        return False
    return any(
        (name in tx.state.opened or window.begins <= now < window.ends)
        and not (window.vc and window.vc == job.spec.vc)
        and any(node in job.parts for node in window.nodes)
        for name, window in tx.state.windows.items()
    )
