"""What the introspector saw, as core messages that expire.

Rates are thousandths of a mini-batch per second (`rate_milli`), of the slowest rank.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from skep.wire.bounds import (
    LISTED_MAX,
    RANKS_MAX,
    Attempt,
    Bytes,
    Count,
    JobName,
    Milli,
    Moment,
    Rank,
    Short,
    Text,
    Token,
    Values,
    World,
)
from skep.wire.held_up import GangSlowed
from skep.wire.message import Message
from skep.wire.profile import Profiled
from skep.wire.trials import Judged


class JobRate(Message, frozen=True):
    """One running job: mini-batches done and the rate over the window.

    `utilisation` is the mean of its ranks (thousandths), `memory` that of its largest (bytes),
    `workers` the size of its gang (0: not told). `mean_milli` and `spread_milli` are the mean of
    `samples` adjacent windows in which nothing changed and their standard deviation, told whenever
    a window has ended and there are enough of them (0 in between).
    """

    job: JobName
    attempt: Attempt
    steps: Count
    rate_milli: Milli
    utilisation: Count = 0
    memory: Bytes = 0
    workers: World = 0
    mean_milli: Milli = 0
    spread_milli: Milli = 0
    samples: Count = 0


class Rates(Message, frozen=True, tag="rates"):
    """The rates of jobs that ran in the last window, on `skep.v1.finding.rates`."""

    at: Moment
    jobs: Annotated[tuple[JobRate, ...], Meta(max_length=LISTED_MAX)]


class RateLearned(Message, frozen=True, tag="rate-learned"):
    """An attempt has its first full window, on `skep.v1.finding.learned`."""

    at: Moment
    job: JobName
    attempt: Attempt
    rate_milli: Milli
    trace: Short = ""


class PhaseChanged(Message, frozen=True, tag="phase-changed"):
    """A job's rate moved to another level and stayed there, on `skep.v1.finding.phase`."""

    at: Moment
    job: JobName
    attempt: Attempt
    before_milli: Milli
    after_milli: Milli
    trace: Short = ""


class Stalled(Message, frozen=True, tag="stalled"):
    """A job that made mini-batches makes none, on `skep.v1.finding.stall`.

    `since` is when its latest mini-batch ended; `over` says that it has resumed. `code` is a
    `Hang`, if it is known what keeps the gang, `behind` the ranks that do, `nodes` where these
    are, and `text` says it.
    """

    at: Moment
    job: JobName
    attempt: Attempt
    since: Moment
    over: bool = False
    trace: Short = ""
    code: Short = ""
    behind: Annotated[tuple[Rank, ...], Meta(max_length=RANKS_MAX)] = ()
    nodes: Annotated[tuple[Token, ...], Meta(max_length=RANKS_MAX)] = ()
    text: Text = ""


class Measured(Message, frozen=True, tag="measured"):
    """What a job says about its training as of a mini-batch, on `skep.v1.finding.measured`.

    `values` are those of its first rank, by the names that its script gives them.
    """

    at: Moment
    job: JobName
    attempt: Attempt
    step: Count
    values: Values


Finding = Rates | Measured | RateLearned | PhaseChanged | Stalled | Judged | Profiled | GangSlowed
