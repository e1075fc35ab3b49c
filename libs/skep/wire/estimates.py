"""What was estimated of a job and what came of it: facts of the advisor, in the stream PROFILES.

An estimate is given as P10, P50 and P90: one, five and nine times in ten it is less. It is judged
once what it was about has happened.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from skep.units import Duration
from skep.wire.bounds import (
    Attempt,
    Count,
    JobName,
    Length,
    Milli,
    Moment,
    Nanoseconds,
    Number,
    Short,
    Text,
    World,
)
from skep.wire.message import Message

OUTCOMES_MAX = 4
"""Estimates of one attempt that are judged: of its start, of its length, of its end by its rate."""
TENTHS = 10
ERRORS_MAX = 50
"""The latest errors, of which the median is told."""
RUNS_MAX = 16
"""Runs of a family that say how long the next one is: their median follows new hardware."""
LENGTHS_MAX = 200
"""Ended jobs of a VC whose lengths say how far off its owners are: more than a day's worth."""
STRATA_MAX = 16
"""Kinds of estimates of one family."""


class Outcome(Message, frozen=True):
    """An estimate, and what came of it.

    `what` is `start`, or what the end was estimated by. The three and `took` count from when the
    estimate was made. `rank` are the thousandths of the estimated distribution that are below
    `took`.
    """

    what: Short
    p10: Length
    p50: Length
    p90: Length
    took: Length
    held: bool
    rank: Milli


class EstimateJudged(Message, frozen=True, tag="estimate-judged"):
    """A job ended, and what was estimated of its last attempt is judged.

    `ran` is how long it ran, and `mini_batches` what its spec says that it makes, if it succeeded
    in one attempt; else 0. `declared` is the run time that its spec says (0: none).
    """

    at: Moment
    job: JobName
    attempt: Attempt
    vc: Short
    family: Text
    gpu_type: Short
    gpus: World
    nodes: World
    outcomes: Annotated[tuple[Outcome, ...], Meta(max_length=OUTCOMES_MAX)] = ()
    mini_batches: Count = 0
    ran: Length = Duration(0)
    declared: Length = Duration(0)


class Ran(Message, frozen=True):
    """What a mini-batch of a run took, in nanoseconds, its start and pauses included."""

    gpus: World
    gpu_type: Short
    step_ns: Nanoseconds


class Held(Message, frozen=True):
    """How estimates of one kind have held.

    `factor` is by how much they are widened. `errors` are the latest ones, in thousandths of what
    was estimated; `ranks` has, for each tenth of the distribution, how many outcomes lay there.
    """

    what: Short
    factor: Number
    outcomes: Count
    held: Count
    errors: Annotated[tuple[Milli, ...], Meta(max_length=ERRORS_MAX)] = ()
    ranks: Annotated[tuple[Count, ...], Meta(max_length=TENTHS)] = ()


class CalibrationKept(Message, frozen=True, tag="calibration-kept"):
    """What outcomes of a family in a VC come to (`family` empty: of all), for a snapshot.

    `lengths` are thousandths of what owners said that their jobs took.
    """

    vc: Short
    family: Text
    held: Annotated[tuple[Held, ...], Meta(max_length=STRATA_MAX)] = ()
    runs: Annotated[tuple[Ran, ...], Meta(max_length=RUNS_MAX)] = ()
    lengths: Annotated[tuple[Milli, ...], Meta(max_length=LENGTHS_MAX)] = ()
