"""What a learned model of Skep's own sees of a VC, and what it advises.

The allocator says what the policy of a VC sees (`Sight`), whole or as what differs from the sight
before. The advisor answers with `LearnedAdvice`, which expires. No service has to follow it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from skep.wire.bounds import (
    DEVICES_MAX,
    NODES_MAX,
    RANKS_MAX,
    Count,
    Gain,
    JobName,
    Length,
    Milli,
    Moment,
    Short,
    World,
)
from skep.wire.message import Message
from skep.wire.reasons import Reason

SEEN_MAX = 1000
"""Jobs of one sight: of a kilobyte at most each they fit the bus. The latest to arrive are left
out."""
CURVE_MAX = 16
"""Points of one curve of a job: the sizes that a model may choose are among them."""
ROOM_MAX = 1024
"""Kinds of room in one sight: nodes that have as many GPUs, and as many of them free."""
MOVES_MAX = 32
"""Moves of one advice. The sight after them is answered again."""
CHOICES_MAX = 8
"""Moves that a policy may choose among where it explores: further ones are hardly ever chosen."""
HOLDS_MAX = 512
"""Jobs that one advice holds: as many as an advice orders (`ADVISED_MAX`)."""
SCHEMA = 1
"""The version of what a sight says and a model sees of it: advice by another is not followed."""
HASH_PATTERN = r"^[0-9a-f]{64}$(?!\n)"

PhaseName = Literal["waiting", "reserved", "starting", "running", "suspended", "away", "stopping"]
"""A phase of `skep.policy.view.Phase`, by its value."""
Stage = Literal["shadow", "on", "off", "rest"]
"""Whether advice is only recorded, followed, or given up; `rest`: while the model and the rule take
turns, it is the rule's."""
ModelHash = Annotated[str, Meta(pattern=HASH_PATTERN)]
"""SHA-256 of the bytes of a model's file."""
Workers = Annotated[int, Meta(ge=1, le=RANKS_MAX)]
Curve = Annotated[tuple[tuple[World, Milli], ...], Meta(max_length=CURVE_MAX)]
"""Thousandths for so many workers or nodes, fewest first."""


class JobSight(Message, frozen=True):
    """One unfinished job, as a model sees it; the fields mean what those of `JobView` do.

    `workers` are those that it has, or asks for while it waits. It may have `least` to `most`; both
    are equal if it is not elastic. `rates` are P50s, and `doubt` is how wrong they may be, in
    thousandths (0: unknown). `nodes` is on how many it is.
    """

    job: JobName
    sequence: Count
    phase: PhaseName
    each: Annotated[int, Meta(ge=1, le=DEVICES_MAX)]
    """GPUs of one worker."""
    workers: Workers
    least: Workers
    most: Workers
    submitted_at: Moment
    since: Moment = Moment(0)
    served: Length = Length(0)
    expected: Length | None = None
    left: Length | None = None
    rates: Curve = ()
    slowdown: Curve = ()
    doubt: Milli = 0
    nodes: World = 0
    resizable: bool = False
    borrows: bool = False
    pause: Length = Length(0)


class RoomSight(Message, frozen=True):
    """So many nodes have `gpus` GPUs each, of which `free` are free for the VC."""

    gpus: World
    free: World
    count: Annotated[int, Meta(ge=1, le=NODES_MAX)]


class Sight(Message, frozen=True, tag="sight"):
    """What the policy of a VC sees; `number` counts the sights of the VC.

    With `whole` the jobs are all that there are. Without, they are those that differ from the sight
    `number - 1`, and `gone` are those that are no longer there. The rest is always said in full.
    """

    vc: Short
    number: Count
    whole: bool
    at: Moment
    gpus: Count
    free: Count
    node_gpus: World
    room: Annotated[tuple[RoomSight, ...], Meta(max_length=ROOM_MAX)] = ()
    jobs: Annotated[tuple[JobSight, ...], Meta(max_length=SEEN_MAX)] = ()
    gone: Annotated[tuple[JobName, ...], Meta(max_length=SEEN_MAX)] = ()


class AdvisedMove(Message, frozen=True):
    """Place a waiting job, or change the size of a running one, to so many workers.

    Without `spread` it is placed on as few nodes as it needs, or not at all. `score_milli` is by
    how much the model prefers the move to doing nothing more, and `margin_milli` to the next best.
    """

    job: JobName
    workers: World = 0
    """0: those of its spec."""
    spread: bool = False
    score_milli: Gain = 0
    margin_milli: Gain = 0


class LearnedAdvice(Message, frozen=True, tag="learned-advice"):
    """What a model would do on the sight `number` of a VC, in order; the rest of the jobs wait.

    `holds` are waiting jobs that might fit and had better wait. `reliable` says that the model was
    trained on such sights. Not to be followed after `expires_at`.
    """

    vc: Short
    model: ModelHash
    schema: Count
    number: Count
    at: Moment
    expires_at: Moment
    stage: Stage = "shadow"
    moves: Annotated[tuple[AdvisedMove, ...], Meta(max_length=MOVES_MAX)] = ()
    holds: Annotated[tuple[JobName, ...], Meta(max_length=HOLDS_MAX)] = ()
    reliable: bool = True
    why: Reason | None = None
    """Why the stage is `off`, if something is wrong."""
    choices: Annotated[tuple[AdvisedMove, ...], Meta(max_length=CHOICES_MAX)] = ()
    """Where the VC explores: the first of `moves`, and others that are nearly as good, best first.
    All are advised on the same sight."""
    seed: Count = 0
    """What one of them is drawn by: the same while the sight is. 0: none is drawn."""


class SightWanted(Message, frozen=True, tag="sight-wanted"):
    """The advisor has missed a sight of a VC, or has just begun: the next one is to be whole."""

    vc: Short
    at: Moment
