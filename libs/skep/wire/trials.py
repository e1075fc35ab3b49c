"""Trials: a policy's changes that are kept only if the jobs' rates say that they were worth it.

    TrialBegun --(Judged, or none in time)--> TrialOver

The allocator records both, the first in the record of the change that is tried. It repeats on
`skep.v1.trial.open` what is open (`Trials`); the introspector measures and says on
`skep.v1.finding.judged` what it found (`Judged`), until the trial is open no more. Whatever dies
meanwhile: each trial has one verdict. Rates are thousandths of a mini-batch per second, gains
thousandths of what they are compared with.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from skep.units import Instant
from skep.wire.bounds import LISTED_MAX, Attempt, Count, Gain, JobName, Milli, Moment, World
from skep.wire.message import Message
from skep.wire.reasons import Reason


class Kind(StrEnum):
    """What is tried (Gandiva, section 4.2.2)."""

    PACK = "pack"
    MIGRATE = "migrate"
    GROW = "grow"
    DEFRAG = "defrag"
    PROBE = "probe"
    """Another size for as long as it takes to measure it, then the size before."""


class Verdict(StrEnum):
    """What became of a trial."""

    KEPT = "kept"
    UNDONE = "undone"
    VOID = "void"
    """Nothing can be said of it: it was disturbed, or nobody measured it in time."""


class Before(Message, frozen=True):
    """A job of a trial, before it: `attempt` is the one that is measured after the change.

    `rate_milli` is what it ran at last, of `samples` samples with the standard deviation
    `spread_milli` (0: unknown); `solo_milli` what it makes on GPUs of its own.
    """

    job: JobName
    attempt: Attempt
    gpus: World
    rate_milli: Milli
    spread_milli: Milli = 0
    samples: Count = 0
    solo_milli: Milli = 0


class After(Message, frozen=True):
    """A job of a trial, after the change: its mean rate, of so many samples."""

    job: JobName
    rate_milli: Milli
    samples: Count


class TrialMessage(Message, frozen=True):
    """A fact of the allocator about trials."""


class TrialBegun(TrialMessage, frozen=True, tag="trial-begun"):
    """A change is tried. `trial` counts up in the log.

    `jobs`: the job that is changed first, then those that it may slow. `needed_milli`: what the sum
    of their rates, each in thousandths of what it is compared with, must be more than.
    `expected_milli`: what the policy thinks it comes to (0: it does not say). Without a verdict at
    `until` it is void. `families` name it for its cool-down. `nodes`: where a job that moves was,
    if it can go back there; of a probe, where it is measured; `workers` and `servers`: what a gang
    had that is to have `grown` workers (a probe may make it smaller).
    """

    trial: int
    kind: Kind
    vc: str
    jobs: tuple[Before, ...]
    families: tuple[str, ...]
    at: Instant
    until: Instant
    needed_milli: int
    why: Reason
    expected_milli: int = 0
    nodes: tuple[str, ...] = ()
    workers: int = 0
    servers: int = 0
    grown: int = 0


class TrialOver(TrialMessage, frozen=True, tag="trial-over"):
    """A trial's one verdict: the gain over what was needed, and the interval it lies in.

    What is undone is put back by what follows, as far as it can be and the jobs still are as the
    trial left them; so are packs and growths that are void, while a job that moved stays. `leaves`:
    the job of a pack that leaves the GPUs; empty: the first one.
    """

    trial: int
    jobs: tuple[str, ...]
    verdict: Verdict
    why: Reason
    at: Instant
    gain_milli: int = 0
    low_milli: int = 0
    high_milli: int = 0
    after: tuple[After, ...] = ()
    detail: str = ""
    leaves: str = ""


TrialFact = TrialBegun | TrialOver


class OpenTrial(Message, frozen=True):
    """A trial to be measured from `since` on; 0: its change is under way still.

    `workers`: how many a probe measures (0: it is none).
    """

    trial: Count
    kind: Kind
    since: Moment
    until: Moment
    needed_milli: Gain
    jobs: Annotated[tuple[Before, ...], Meta(min_length=1, max_length=LISTED_MAX)]
    workers: World = 0


class Trials(Message, frozen=True, tag="trials"):
    """All trials that are open, on `skep.v1.trial.open`: told at every change, and repeated."""

    at: Moment
    open: Annotated[tuple[OpenTrial, ...], Meta(max_length=LISTED_MAX)]


class Judged(Message, frozen=True, tag="judged"):
    """What the introspector found of an open trial, on `skep.v1.finding.judged`."""

    at: Moment
    trial: Count
    kept: bool
    gain_milli: Gain
    low_milli: Gain
    high_milli: Gain
    after: Annotated[tuple[After, ...], Meta(max_length=LISTED_MAX)]
