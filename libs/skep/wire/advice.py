"""What the advisor would do, as core messages that expire. No service has to follow it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from skep.wire.bounds import (
    LISTED_MAX,
    Attempt,
    Bytes,
    Count,
    Fraction,
    JobName,
    Length,
    Milli,
    Moment,
    Number,
    Short,
    Text,
    World,
)
from skep.wire.learned import LearnedAdvice, SightWanted
from skep.wire.message import Message
from skep.wire.reasons import Reason

ADVISED_MAX = 512
"""Jobs one advice orders: more than a scheduling pass can start before the next advice comes."""

FORMS_MAX = 8
"""Forms of a mini-batch's time that one fit blends; five are known."""
FORM_NUMBERS_MAX = 256
"""Numbers of one form: a process of 32 kernels has 213."""
STRATA = 3
"""How far a placement is from what was measured: near, more GPUs, more nodes."""
FITS_MAX = 64
"""Fits in one message. The advisor sends fewer: each has up to 4 KB, and what is heard is noted."""


class JobAdvice(Message, frozen=True):
    """One queued job: predicted remaining run time (None if unknown) and what it rests on."""

    job: JobName
    why: Reason
    remaining: Length | None = None


class QueueAdvice(Message, frozen=True, tag="queue-advice"):
    """The order in which queued jobs of equal priority had better start.

    Holds the first ADVISED_MAX queued jobs. Not to be followed after `expires_at`.
    """

    at: Moment
    expires_at: Moment
    jobs: Annotated[tuple[JobAdvice, ...], Meta(max_length=LISTED_MAX)]


class JobPace(Message, frozen=True):
    """How an attempt goes: mini-batches done, thousandths of one per second, and what is left.

    `utilisation` is thousandths of its GPUs' time, `memory` bytes of its largest rank, `remaining`
    None if it is unknown. `mean_milli` and `spread_milli`: the mean and the standard deviation of
    `samples` windows in which it went like that (0: too few for that). `workers` is the size of its
    gang then (0: not told).
    """

    job: JobName
    attempt: Attempt
    steps: Count
    rate_milli: Milli
    utilisation: Count = 0
    memory: Bytes = 0
    remaining: Length | None = None
    mean_milli: Milli = 0
    spread_milli: Milli = 0
    samples: Count = 0
    workers: World = 0


class ScalePoint(Message, frozen=True):
    """What a mini-batch takes on so many GPUs of so many nodes."""

    gpus: World
    nodes: World
    step_ns: Length


class FamilyScale(Message, frozen=True):
    """How the jobs of a family go on one type of GPU, as far as it was measured."""

    family: Text
    gpu_type: Short
    points: Annotated[tuple[ScalePoint, ...], Meta(max_length=LISTED_MAX)]


class FittedForm(Message, frozen=True):
    """One form of a mini-batch's time and its numbers, in the order that `perf.fitted` has them.

    `near` is its weight close to what was measured, and `far` beyond that.
    """

    kind: Short
    numbers: Annotated[tuple[Number, ...], Meta(max_length=FORM_NUMBERS_MAX)]
    near: Fraction
    far: Fraction


class FitError(Message, frozen=True):
    """How wrong predictions are in a stratum: logarithms of measured over predicted.

    `low` and `high` are the 10 and 90 % quantiles, from so many families (`known`). `wider` is the
    factor on both that outcomes have taught.
    """

    low: Number
    high: Number
    known: Count = 0
    wider: Number = 1.0


class FamilyFit(Message, frozen=True):
    """What predicts a mini-batch's time of a family in a VC, on one type of GPU.

    It rests on `points` measured placements of this VC, the largest of so many GPUs and so many
    nodes, of `batch_min` to `batch_max` samples per GPU (0: unknown). `errors` are those near to
    them, with more GPUs, and on more nodes. `held` of so many `outcomes` were within P10 to P90.
    With too few points the curve of the model `source` on `source_type` was expected, for the
    reason `why`; its name is not told if another VC measured it. A fit without forms says that
    nothing is known any more.
    """

    vc: Short
    family: Short
    gpu_type: Short
    forms: Annotated[tuple[FittedForm, ...], Meta(max_length=FORMS_MAX)] = ()
    errors: Annotated[tuple[FitError, ...], Meta(max_length=STRATA)] = ()
    points: Count = 0
    gpus: World = 0
    nodes: World = 0
    outcomes: Count = 0
    held: Count = 0
    batch_min: Count = 0
    batch_max: Count = 0
    source: Short = ""
    source_type: Short = ""
    why: Reason | None = None


class Outlook(Message, frozen=True, tag="outlook"):
    """What is new of how jobs go and families scale, on `skep.v1.advice.outlook`.

    Holds until something else is said; all of it is told again now and then. `families` are what
    was measured, `fits` what predicts the rest.
    """

    at: Moment
    jobs: Annotated[tuple[JobPace, ...], Meta(max_length=LISTED_MAX)] = ()
    families: Annotated[tuple[FamilyScale, ...], Meta(max_length=LISTED_MAX)] = ()
    fits: Annotated[tuple[FamilyFit, ...], Meta(max_length=FITS_MAX)] = ()


Advice = QueueAdvice | Outlook | LearnedAdvice | SightWanted
