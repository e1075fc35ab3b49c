"""Where a rank stands that makes no mini-batch, and what is known of a gang that makes none."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from skep.wire.bounds import Count
from skep.wire.message import Message

Line = Annotated[str, Meta(max_length=120, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$(?!\n)")]
"""A job's own words, which people read."""

RecordPath = Annotated[str, Meta(max_length=400, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$(?!\n)")]
"""A file of a job, by its own word."""


class Standing(Message, frozen=True):
    """Where a rank stands. All of it is its own word.

    `line` is the line of its script, `collective` the latest one that it entered and `entered` how
    many it entered; `waits`: the latest is not over. `record` is the file in which it put what
    torch's Flight Recorder has.
    """

    line: Line = ""
    collective: Line = ""
    entered: Count = 0
    waits: bool = False
    record: RecordPath = ""


class Hang(StrEnum):
    """What is known of a gang that makes no mini-batches."""

    BEHIND = "rank-behind"
    """Some ranks have not entered the collective in which the others wait."""
    MUTE = "rank-mute"
    """Some ranks do not say where they stand, and the others do."""
    TOGETHER = "ranks-wait"
    """All ranks wait in the same collective: what connects them stands."""
    ALONE = "rank-stands"
    """The only rank stands at a line."""
