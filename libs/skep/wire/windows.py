"""Windows: times for which an operator keeps nodes free, for maintenance or for one VC.

ReserveNodes --WindowBooked--> booked --WindowBegan--> open --WindowEnded--> forgotten
             --WindowRefused   booked or open --WindowEnded (cancelled)--> forgotten
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from skep.units import Instant
from skep.wire.bounds import Moment, Short, Token
from skep.wire.message import Message
from skep.wire.reasons import Reason

WINDOW_NODES_MAX = 4096
"""Nodes of one window: their names fit one record of the log."""
WINDOW_REASON_MAX = 256
"""Characters of why a window is booked."""


class Window(Message, frozen=True):
    """Nodes that are kept free from `begins` (UTC) until `ends`.

    `vc`: for the jobs of this VC; empty: for maintenance, so that no job is on them.
    """

    name: Token
    nodes: Annotated[tuple[Short, ...], Meta(max_length=WINDOW_NODES_MAX)]
    begins: Moment
    ends: Moment
    vc: Short = ""
    reason: Annotated[str, Meta(max_length=WINDOW_REASON_MAX)] = ""


class ReserveNodes(Message, frozen=True, tag="reserve-nodes", forbid_unknown_fields=True):
    """Book a window: `admin.reserve`. The same window again changes nothing."""

    window: Window


class CancelWindow(Message, frozen=True, tag="cancel-window", forbid_unknown_fields=True):
    """Give up a window that is booked, or end one that is open: `admin.unreserve`."""

    name: Token


class WindowBooked(Message, frozen=True, tag="window-booked"):
    """A window is booked: from here on no job begins there that is known to run into it."""

    window: Window
    at: Instant


class WindowRefused(Message, frozen=True, tag="window-refused"):
    """What an operator asked for is no window that can be: `text` says what is wrong with it."""

    name: str
    why: Reason
    text: str
    at: Instant


class WindowBegan(Message, frozen=True, tag="window-began"):
    """A window is open: its nodes are closed to other jobs, and those on them leave."""

    name: str
    at: Instant


class WindowEnded(Message, frozen=True, tag="window-ended"):
    """A window is over, or (`cancelled`) was given up. Its nodes are as before it."""

    name: str
    at: Instant
    cancelled: bool = False


WindowFact = WindowBooked | WindowRefused | WindowBegan | WindowEnded
