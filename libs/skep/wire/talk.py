"""What an agent and the ranks of its jobs say to each other, over the Unix socket of the node.

A frame is four bytes of length, big-endian, and a JSON object. Every message carries job, attempt
and rank. `order` fences: a rank passes over what is below the latest it has taken, and repeats its
answer to the latest when asked again. A rank that connects again says hello, can, and how it
stands; what it does not hear leaves it as it is.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from skep.wire.bounds import (
    RANKS_MAX,
    Abilities,
    Attempt,
    Bytes,
    Count,
    Devices,
    Fraction,
    MaybeNanoseconds,
    MaybeProcessBytes,
    Nanoseconds,
    Port,
    ProcessBytes,
    Rank,
    Short,
    Sizes,
    Text,
    Values,
    World,
)
from skep.wire.held_up import OwnTime
from skep.wire.profile import Fingerprint, Timing
from skep.wire.standing import Standing


class Speech(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """One message, of a rank or to it. Fields a reader does not know are skipped.

    `part` says which process of its rank speaks; what a rank is told, all of them are.
    """

    job: Short
    attempt: Attempt
    rank: Rank
    part: Rank = 0


# --- a rank to its agent -----------------------------------------------------------------------


class Hello(Speech, frozen=True, tag="hello"):
    """First on every connection. `token` is the rank's secret, from its environment.

    `parts` processes of the rank train together, as `torchrun --nproc-per-node` starts them.
    """

    pid: Count = 0
    world: World = 1
    token: Short = ""
    parts: World = 1


class Stats(Speech, frozen=True, tag="stats"):
    """How far the rank is; times are the host's monotonic clock.

    `stands`: where it stands, while it has made no mini-batch for a while. `own` is told by ranks
    of gangs.
    """

    steps: Count
    step_ns: Nanoseconds
    monotonic_ns: MaybeNanoseconds
    last_step_monotonic_ns: MaybeNanoseconds
    memory_bytes: ProcessBytes = 0
    timing: Timing | None = None
    stands: Standing | None = None
    own: OwnTime | None = None


class Measured(Speech, frozen=True, tag="metrics"):
    """Numbers about the training as of mini-batch `step`: the latest of each name, sums so far."""

    step: Count
    values: Values = {}


class Shows(Speech, frozen=True, tag="fingerprint"):
    """What is seen of the model, once after every hello.

    One that cannot be read is passed over: nothing that the rank needs depends on it.
    """

    fingerprint: Fingerprint | None = None


class Bye(Speech, frozen=True, tag="bye"):
    """The last message: the final count."""

    steps: Count


class CountingFailed(Speech, frozen=True, tag="error"):
    """The rank's counting has failed; its training goes on."""

    error: Text = ""


class Can(Speech, frozen=True, tag="can"):
    """What the rank can do, once known and whenever it changes.

    `resumed` says which checkpoint of an earlier attempt it goes on from, if it looked for one.
    `sizes` are the numbers of ranks that it can have, if it cannot have each that its spec allows.
    """

    tier: Short = "observed"
    can: Abilities = ()
    resumed: Short = ""
    sizes: Sizes = ()


class Idle(Speech, frozen=True, tag="idle"):
    """The rank has done nothing for so long, by its own measure, and wants to be suspended for it.

    It says so every second; 0: it does something again. What is suspended so comes back when its
    owner asks.
    """

    idle_ns: Nanoseconds = 0


class Suspended(Speech, frozen=True, tag="suspended"):
    """The rank stands between two mini-batches and waits."""

    order: Count
    step: Count = 0


class Past(Speech, frozen=True, tag="past"):
    """The step that was named is behind: the rank goes on."""

    order: Count
    step: Count = 0


class Released(Speech, frozen=True, tag="released"):
    """Device memory was given back: `moved` bytes; `residue` are still there, -1 if not known."""

    order: Count
    moved: ProcessBytes = 0
    residue: MaybeProcessBytes = -1


class Resumed(Speech, frozen=True, tag="resumed"):
    """Training goes on."""

    order: Count
    step: Count = 0
    pause_ns: Nanoseconds = 0


class Checkpointed(Speech, frozen=True, tag="checkpointed"):
    """The state is stored durably."""

    order: Count
    step: Count = 0
    bytes: ProcessBytes = 0
    path: Text = ""
    pause_ns: Nanoseconds = 0


class Ready(Speech, frozen=True, tag="ready"):
    """A successor has made everything ready, and listens for its state on `port`."""

    port: Port = 0


class Sent(Speech, frozen=True, tag="sent"):
    """The state is at the successor, which has confirmed it; the rank waits."""

    order: Count
    step: Count = 0
    bytes: ProcessBytes = 0


class Loaded(Speech, frozen=True, tag="loaded"):
    """A successor has its state as of mini-batch `step`, and waits."""

    step: Count = 0
    bytes: ProcessBytes = 0


class Rescaled(Speech, frozen=True, tag="rescaled"):
    """The rank trains in the gang of `generation`."""

    order: Count
    generation: Count = 0
    step: Count = 0
    pause_ns: Nanoseconds = 0


class Shared(Speech, frozen=True, tag="shared"):
    """The rank keeps to this share of its device's memory, of which it uses `used` bytes."""

    order: Count
    share: Fraction = 0.0
    used: ProcessBytes = 0


class Failed(Speech, frozen=True, tag="failed"):
    """The order was not done: the rank goes on, or stands where it stood.

    `partly`: some of its processes did it all the same.
    """

    order: Count
    what: Text = ""
    error: Text = ""
    partly: bool = False


Answer = Suspended | Past | Released | Resumed | Checkpointed | Sent | Rescaled | Shared | Failed
"""What a rank says to an order."""

Said = (
    Hello | Stats | Measured | Shows | Bye | CountingFailed | Can | Idle | Ready | Loaded | Answer
)
"""Everything a rank says."""


# --- an agent to a rank --------------------------------------------------------------------------


class SuspendRank(Speech, frozen=True, tag="suspend"):
    """Stop after mini-batch `step` (0: the one in progress)."""

    order: Count
    step: Count = 0


class ReleaseRank(Speech, frozen=True, tag="release"):
    """Give device memory back, at most `max_bytes` of it into the host's memory (0: no bound)."""

    order: Count
    max_bytes: Bytes = 0


class ResumeRank(Speech, frozen=True, tag="resume"):
    """Take the state back, on `devices` if they are others than the rank has, and go on.

    `cpus`: the processors on which the processes of a rank with these devices are kept; none: any.
    """

    order: Count
    devices: Devices = ()
    cpus: Annotated[tuple[Count, ...], Meta(max_length=RANKS_MAX)] = ()


class CheckpointRank(Speech, frozen=True, tag="checkpoint"):
    """Store the state in the folder `path` after mini-batch `step` (0: the one in progress).

    Ranks that train together store it once all of them have the order, whatever `step` says.
    """

    order: Count
    path: Text = ""
    step: Count = 0


class MoveRank(Speech, frozen=True, tag="move"):
    """Stop after mini-batch `step` (0: the one in progress), send the state there, and wait.

    Ranks that train together stop once all of them have the order, as for `CheckpointRank`; those
    that stand already send at once.
    """

    order: Count
    host: Short
    port: Port
    token: Short
    step: Count = 0


class RescaleRank(Speech, frozen=True, tag="rescale"):
    """Be one of `world` from after mini-batch `step` on, or leave.

    `agree`: from after the mini-batch that all agree on where they meet, once everybody is there.
    `servers`: on so many parameter servers; then the job finds the mini-batch itself.
    """

    order: Count
    generation: Count
    world: World
    host: Short
    port: Port
    step: Count = 0
    leaves: bool = False
    servers: Count = 0
    agree: bool = False


class ShareRank(Speech, frozen=True, tag="share"):
    """Use this part of the device's memory from now on; 0.0: all of it."""

    order: Count
    share: Fraction = 0.0


class GoApart(Speech, frozen=True, tag="apart"):
    """Give the connection up: an image of the process is made.

    It is taken up again as what the file `path` says, or as before after `within_ms`.
    """

    path: Text
    within_ms: Count


class NotHeard(Speech, frozen=True, tag="not-heard"):
    """The agent does not let this process speak for the rank, and hangs up. `why` is one line."""

    why: Text = ""


Told = SuspendRank | ReleaseRank | ResumeRank | CheckpointRank | MoveRank | RescaleRank | ShareRank
"""Every order to a rank."""

Heard = Told | GoApart | NotHeard
"""Everything a rank hears."""
