"""What a window may be, and which jobs would run into one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from skep.estimates import lengths
from skep.ids import is_token
from skep.perf.fitted import FitsKept
from skep.units import Duration, Instant, after, seconds
from skep.wire.reasons import Reason
from skep.wire.spec import JobSpec
from skep.wire.windows import WINDOW_NODES_MAX, WINDOW_REASON_MAX, Window

WINDOWS_MAX = 256
"""Windows that are booked or open: each is looked at for every job that is placed meanwhile."""
WINDOW_MAX = seconds(31 * 86_400.0)
"""Nodes that are kept for longer are better drained, or given to the VC."""
AHEAD_MAX = seconds(366 * 86_400.0)
LATE = seconds(60.0)
"""A window may have begun so long ago when it is booked: messages and clocks take time."""
UNKNOWN_SHUNS = seconds(3600.0)
"""A job of unknown length keeps away from a window for so long before it. It may run into one that
begins later, and leaves when that begins."""


class Wrong(NamedTuple):
    """Why a window cannot be: the reason, and what is the matter and what to do, in one line."""

    why: Reason
    text: str


def problem(
    window: Window,
    now: Instant,
    booked: Mapping[str, Window],
    nodes: Collection[str],
    vcs: Collection[str],
) -> Wrong | None:
    """Return why a window cannot be booked; None: it can.

    Args:
        window: What is asked for.
        now: The time of the decision.
        booked: The windows that are booked or open.
        nodes: The nodes that there are.
        vcs: The VCs that there are.
    """
    return (
        _wrong_name(window, booked)
        or _wrong_time(window, now)
        or _wrong_place(window, nodes, vcs)
        or _overlap(window, booked)
    )


def _wrong_name(window: Window, booked: Mapping[str, Window]) -> Wrong | None:
    if not is_token(window.name):
        text = f"{window.name!r} is no name for a window (letters, digits, _, -; 63 at most)"
        return Wrong(Reason.BAD_VALUE, text)
    if window.name in booked:
        return Wrong(Reason.NAME_TAKEN, f"a window {window.name} is booked: choose another name")
    if len(booked) >= WINDOWS_MAX:
        text = f"{WINDOWS_MAX} windows are booked, as many as there may be: cancel one first"
        return Wrong(Reason.TOO_MANY_WINDOWS, text)
    if len(window.reason) > WINDOW_REASON_MAX or not window.reason.isprintable():
        text = f"the reason is one line of {WINDOW_REASON_MAX} characters at most"
        return Wrong(Reason.BAD_VALUE, text)
    return None


def _wrong_time(window: Window, now: Instant) -> Wrong | None:
    if window.ends <= window.begins:
        return Wrong(Reason.WINDOW_PAST, "the window ends before it begins: give it a length")
    if window.begins < now - LATE:
        return Wrong(Reason.WINDOW_PAST, "the window begins in the past: give a time to come (UTC)")
    if window.ends - window.begins > WINDOW_MAX:
        days = WINDOW_MAX // seconds(86_400.0)
        text = f"a window is {days} days at most: drain the nodes, or give them to the VC"
        return Wrong(Reason.WINDOW_TOO_LONG, text)
    if window.begins > now + AHEAD_MAX:
        return Wrong(Reason.WINDOW_TOO_FAR, "the window begins in more than a year: book it later")
    return None


def _wrong_place(window: Window, nodes: Collection[str], vcs: Collection[str]) -> Wrong | None:
    if not window.nodes:
        return Wrong(Reason.BAD_VALUE, "the window has no nodes: name one at least")
    if len(window.nodes) > WINDOW_NODES_MAX:
        text = f"a window has {WINDOW_NODES_MAX} nodes at most: book several"
        return Wrong(Reason.BAD_VALUE, text)
    if len(dict.fromkeys(window.nodes)) < len(window.nodes):
        return Wrong(Reason.DUPLICATE_NODE, "the window names a node twice")
    unknown = next((name for name in window.nodes if name not in nodes), None)
    if unknown is not None:
        return Wrong(Reason.UNKNOWN_NODE, f"there is no node {unknown!r}: see `skep node ls`")
    if window.vc and window.vc not in vcs:
        text = f"there is no virtual cluster {window.vc!r}: see `skep vc ls`"
        return Wrong(Reason.UNKNOWN_VC, text)
    return None


def _overlap(window: Window, booked: Mapping[str, Window]) -> Wrong | None:
    mine = dict.fromkeys(window.nodes)
    for other in booked.values():
        if window.begins < other.ends and other.begins < window.ends:
            both = next((name for name in other.nodes if name in mine), None)
            if both is not None:
                text = f"window {other.name} has node {both} at that time: cancel it, or wait"
                return Wrong(Reason.WINDOWS_OVERLAP, text)
    return None


# --- jobs ------------------------------------------------------------------------------------


def known_length(spec: JobSpec, served: int, fits: FitsKept) -> Duration | None:
    """Return how long an attempt that begins now runs at most, as far as is known; None: it is not.

    It is its time limit, or the length below which nine in ten such jobs end, if that is shorter.

    Args:
        spec: The job.
        served: For how long it has run before, in nanoseconds.
        fits: What is predicted of its model.
    """
    limit = seconds(spec.limits.time) if isinstance(spec.limits.time, int) else None
    work = lengths.work_of(spec)
    known = lengths.whole(work, 1, (work.gpus, work.gpu_type), ((), ()), fits)
    if known is None:
        return limit
    long = Duration(max(known.lasts.p90 - served, 0))
    return long if limit is None else min(limit, long)


def keeps_out(
    window: Window, vc: str, length: Duration | None, now: Instant, *, opened: bool
) -> bool:
    """Return whether a job must not begin on the nodes of a window.

    Args:
        window: It is booked or open.
        vc: The VC of the job.
        length: How long it runs at most; None: that is not known.
        now: The time of the decision.
        opened: Whether the window is open: so it stays if the clock was set back.
    """
    if window.vc and window.vc == vc:
        return False
    if opened:
        return True
    if window.ends <= now:
        return False
    return window.begins <= after(now, UNKNOWN_SHUNS if length is None else length)
