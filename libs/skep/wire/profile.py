"""What a job shows of its model and its mini-batches for nothing, and what the advisor keeps of it.

All of it is the job's own word. It is bounded, it may be wrong, and nothing but predictions rests
on it.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from skep.wire.bounds import Attempt, Count, JobName, Milli, Moment, Nanoseconds, Short, Text, World
from skep.wire.estimates import CalibrationKept, EstimateJudged
from skep.wire.facts import EpochBegan
from skep.wire.following import GuardFact
from skep.wire.message import Message

DIMENSIONS_MAX = 8
"""Of the shape of a batch: images in time have five."""
DTYPES_MAX = 8
SIZES_MAX = 48
"""Powers of two of the elements of a tensor: none has 2 ** 48."""
SAMPLES_MAX = 1_000
"""Mini-batches in one timing: a job looks at its latest 64."""

Digest = Annotated[str, Meta(pattern=r"^([0-9a-f]{16})?$(?!\n)")]
"""The first 16 digits of a SHA-256, or nothing where it is not known."""
Dtype = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,31}$(?!\n)")]
Version = Annotated[str, Meta(pattern=r"^[A-Za-z0-9.+_-]{0,64}$(?!\n)")]
Few = Annotated[int, Meta(ge=0, le=SAMPLES_MAX)]


class Fingerprint(Message, frozen=True):
    """What is seen of a model when its first optimizer has stepped.

    `parameters` are elements, `gradient_bytes` those that are synchronised. `shapes` is a digest of
    the multiset of shapes and dtypes of its parameters; `sizes` has, for each power of two, how
    many of them have so many elements up to twice as many. `script` and `arguments` are digests
    of the script's text and of its arguments, `batch` the shape of the first input of a batch of
    one of the rank's `processes`.
    """

    parameters: Count
    gradient_bytes: Count
    shapes: Digest
    dtypes: Annotated[tuple[Dtype, ...], Meta(max_length=DTYPES_MAX)] = ()
    sizes: Annotated[tuple[Count, ...], Meta(max_length=SIZES_MAX)] = ()
    script: Digest = ""
    arguments: Digest = ""
    torch: Version = ""
    python: Version = ""
    batch: Annotated[tuple[Count, ...], Meta(max_length=DIMENSIONS_MAX)] = ()
    processes: World = 1


class Timing(Message, frozen=True):
    """What the latest `samples` mini-batches took, each: never the first one of a process."""

    samples: Few
    mean_ns: Nanoseconds
    deviation_ns: Nanoseconds
    p10_ns: Nanoseconds
    p50_ns: Nanoseconds
    p90_ns: Nanoseconds


class Profiled(Message, frozen=True, tag="profiled"):
    """What an attempt shows, on `skep.v1.finding.profiled`: told once, when it changes, and again.

    `timing` is there once it is precise enough (`perf.stopping`), and holds for `workers`.
    """

    at: Moment
    job: JobName
    attempt: Attempt
    workers: World = 0
    fingerprint: Fingerprint | None = None
    timing: Timing | None = None


class ProfileMeasured(Message, frozen=True, tag="profile-measured"):
    """A mini-batch was timed at a size and place that was not known, or not like that.

    `batch` are samples per GPU (0: unknown), `spread_milli` the standard deviation in thousandths
    of the mean, `shared`: other jobs were on the same GPUs.
    """

    at: Moment
    job: JobName
    attempt: Attempt
    vc: Short
    family: Text
    gpu_type: Short
    gpus: World
    nodes: World
    p10_ns: Nanoseconds
    p50_ns: Nanoseconds
    p90_ns: Nanoseconds
    samples: Count
    spread_milli: Milli = 0
    batch: Count = 0
    shared: bool = False
    fingerprint: Fingerprint | None = None


AdvisorFact = EpochBegan | ProfileMeasured | EstimateJudged | CalibrationKept | GuardFact
"""What the advisor records, in the stream PROFILES."""
