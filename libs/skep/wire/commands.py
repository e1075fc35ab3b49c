"""What the allocator tells agents, on `skep.v1.cmd.<node>`: repeated until a node event answers.

`order` fences stale commands: the agent keeps a durable floor per job and refuses what is not
above it. `epoch` fences a deposed allocator; one that is far above says that the cluster was
restored from a backup. Every order for this node up to `settled` is answered, so the agent need
not remember floors at or below it one by one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from skep.wire.bounds import (
    COPIES_MAX,
    LISTED_MAX,
    RANKS_MAX,
    Attempt,
    Count,
    Devices,
    Fraction,
    JobName,
    Moment,
    Port,
    Rank,
    Seconds,
    Short,
    Text,
    Token,
    World,
)
from skep.wire.message import Message
from skep.wire.volumes import Mount

RESTORE_STEP = 1_000_000
"""A process that begins counts one epoch up. The first epoch after a restore is the time of the
restore in microseconds, and at least so far above the last one."""

AGENT_PYTHON = "@python"
"""As the first word of `argv`: the interpreter of the spec, else the one the agent itself runs on,
or the image's."""


def is_restored(epoch: int, seen: int) -> bool:
    """Return whether a cluster was restored from a backup between two epochs of its allocator.

    Args:
        epoch: The present one.
        seen: The one that was seen before; 0: none was.
    """
    return 0 < seen <= epoch - RESTORE_STEP


class RankPlan(Message, frozen=True):
    """One process of a gang: its rank, its rank on this node, its devices there."""

    rank: Rank
    local_rank: Rank
    devices: Devices


class EnvironmentOrder(Message, frozen=True):
    """What a node is to build before the ranks begin, unless it has it.

    `kind` is `requirements`, `uv` or `conda`, `path` its file in the snapshot `files`, `python` the
    interpreter to build it with; empty: the agent's own.
    """

    kind: Short
    path: Text
    files: Short
    python: Text = ""


class ResumeOrder(Message, frozen=True):
    """Which checkpoints of earlier attempts the ranks of an attempt are to look for.

    They were written after `since`, when the job first ran. The rest is as in `JobSpec.resume`.
    """

    since: Moment
    find: Annotated[tuple[Text, ...], Meta(max_length=LISTED_MAX)] = ()
    args: Annotated[tuple[Text, ...], Meta(max_length=LISTED_MAX)] = ()
    auto: bool = False


class BindJob(Message, frozen=True, tag="bind-job"):
    """Start this node's ranks of one attempt of a job: as containers if there is an `image`.

    With `awaits` they are successors of ranks that run elsewhere: they make everything ready, say
    where they listen, and train only once they have the state and are resumed. It is the secret
    that the sender of the state has to know. With `joins` they are to join a gang that trains on
    other nodes: they make everything ready, and wait for a Resize that names them. Such an order
    may come again for an attempt whose ranks here have left it: it counts by its number. With
    `servers` rank 0 keeps so many parameter servers beside itself, which let in ranks that know
    `secret`. With `distributed` the ranks get what `torchrun` sets, such as RANK. `python` is the
    interpreter that AGENT_PYTHON stands for, if it is not the agent's own. `owner` is the person
    whose job it is; empty: it is the VC's. `secrets` and `secret_files` are names of secrets by
    variables, as in `JobSpec`: the agent asks the vault for their values. `code` is the snapshot
    that the job's folder has; `workdir` is then relative to that folder, and `outputs` to
    `workdir`. `environment` is built first; its interpreter is then in the place of `python`. With
    `pull` an `image` that is missing is fetched, by the login in the secret `login` if it is named.
    `mounts` are the volumes of the job. `gpu_share` is the part of a GPU that the job asked for, in
    thousandths; 0: whole ones. After `idle_s` seconds (0: never) without a mini-batch and without
    any use of its devices the agent says in its heartbeats that the part is idle. `stdin` is a file
    in the folder of `code`, or without one a full path: the standard input of rank 0. With `resume`
    the ranks look for a checkpoint of an earlier attempt before their command begins. After
    `hung_s` seconds (0: never) without a mini-batch the agent says in its heartbeats that the part
    hangs.
    """

    order: Count
    epoch: Count
    settled: Count
    node: Token
    identity: Short
    job: JobName
    attempt: Attempt
    name: Text
    vc: Short
    argv: Annotated[tuple[Text, ...], Meta(max_length=LISTED_MAX)]
    ranks: Annotated[tuple[RankPlan, ...], Meta(max_length=RANKS_MAX)]
    world: World
    node_rank: Rank
    nodes: World
    master_address: Short
    master_port: Port
    env: Annotated[dict[Text, Text], Meta(max_length=LISTED_MAX)] = {}
    workdir: Text = ""
    trace: Short = ""
    image: Text = ""
    awaits: Short = ""
    share: Fraction = 0.0
    beside: Annotated[tuple[Short, ...], Meta(max_length=LISTED_MAX)] = ()
    servers: Count = 0
    secret: Short = ""
    joins: Count = 0
    distributed: bool = True
    python: Text = ""
    owner: Short = ""
    secrets: Annotated[dict[Text, Token], Meta(max_length=LISTED_MAX)] = {}
    secret_files: Annotated[dict[Text, Token], Meta(max_length=LISTED_MAX)] = {}
    code: Short = ""
    outputs: Annotated[tuple[Text, ...], Meta(max_length=LISTED_MAX)] = ()
    environment: EnvironmentOrder | None = None
    pull: bool = False
    login: Short = ""
    mounts: Annotated[tuple[Mount, ...], Meta(max_length=LISTED_MAX)] = ()
    gpu_share: Count = 0
    idle_s: Count = 0
    stdin: Text = ""
    resume: ResumeOrder | None = None
    hung_s: Count = 0


class StopJob(Message, frozen=True, tag="stop-job"):
    """End this node's part of an attempt, or never begin it, and say when it is gone.

    `joins` is the order of the BindJob that the part began with if it joined, or was to.
    """

    order: Count
    epoch: Count
    settled: Count
    node: Token
    identity: Short
    job: JobName
    attempt: Attempt
    grace_s: Seconds
    joins: Count = 0


class RefuseNode(Message, frozen=True, tag="refuse-node"):
    """Another agent of this name is alive: the one with `identity` must exit."""

    epoch: Count
    node: Token
    identity: Short
    text: Text


class JoinAgain(Message, frozen=True, tag="join-again"):
    """The agent with `identity` is heard, but its join is not known or was not taken: join anew."""

    epoch: Count
    node: Token
    identity: Short


class ClearNode(Message, frozen=True, tag="clear-node"):
    """End at once whatever an order up to `order` began, begin none of it, and say once it is gone.

    For an agent that takes a name over: it may have had the name before, and whatever ran there
    was given up when it lost it.
    """

    order: Count
    epoch: Count
    node: Token
    identity: Short


class DropCopies(Message, frozen=True, tag="drop-copies"):
    """These jobs have ended: remove what they have in the node's memory.

    It is not answered: the node says with each heartbeat of which jobs it has something.
    """

    epoch: Count
    node: Token
    identity: Short
    jobs: Annotated[tuple[JobName, ...], Meta(max_length=COPIES_MAX)]


class Hold(StrEnum):
    """On whose behalf a part is suspended: it goes on once no hold is left."""

    SCHEDULER = "scheduler"
    USER = "user"


class Suspend(Message, frozen=True, tag="suspend"):
    """Stop after mini-batch `step` (0: each rank after the one it is in), and wait.

    `release`: then give device memory back, the state kept in the host's memory. Without it the
    state stays on the devices. A rank that is past `step` refuses, and the part is not suspended.
    """

    release: bool = False
    step: Count = 0
    hold: Hold = Hold.SCHEDULER


class Resume(Message, frozen=True, tag="resume"):
    """Go on where the job was suspended, or would have been: on the devices of `ranks`, if any.

    This ends one hold; while there is another, the part stays suspended and says so (unchanged).
    """

    ranks: Annotated[tuple[RankPlan, ...], Meta(max_length=RANKS_MAX)] = ()
    hold: Hold = Hold.SCHEDULER


class Checkpoint(Message, frozen=True, tag="checkpoint"):
    """Store the job's state durably after the mini-batch it is in, and go on.

    `trains`: only while it makes mini-batches, as far as that is known. The image of a job that
    hangs would take the place of the one before.
    """

    trains: bool = False


class Target(Message, frozen=True):
    """Where a rank's successor listens for its state; `token` proves that it is meant."""

    rank: Rank
    host: Short
    port: Port
    token: Short


class Move(Message, frozen=True, tag="move"):
    """Stop after the mini-batch it is in, send each rank's state to its target, and wait.

    Neither goes on by itself: the source is then stopped or resumed, the successor resumed or
    stopped, as the allocator has recorded.
    """

    targets: Annotated[tuple[Target, ...], Meta(max_length=RANKS_MAX)]


class Resize(Message, frozen=True, tag="resize"):
    """Be `world` ranks from after mini-batch `step` on, which meet in `generation` at an address.

    `ranks` are this node's from then on: those it has and that are not among them leave, those it
    has not are started. 0 as `step`: agree on one. With `servers` they train on so many parameter
    servers from then on: no rank meets another, and no step is agreed on.

    A gang on several nodes is told in two rounds. `prepare`: only start those that join, and open
    the meeting place on the node `at`; say (MemberReady) once they are ready, and hold them so.
    Those that an earlier round started and that are not among `ranks` end. Then `agree`: the ranks
    agree on the mini-batch where they meet, as no node knows how far the others are.
    """

    generation: Count
    world: World
    ranks: Annotated[tuple[RankPlan, ...], Meta(max_length=RANKS_MAX)]
    master_address: Short
    master_port: Port
    step: Count = 0
    servers: Count = 0
    prepare: bool = False
    agree: bool = False
    at: Short = ""


class Share(Message, frozen=True, tag="share"):
    """Use this part of each device's memory from now on, beside these jobs; 0.0: alone again.

    Answered as running either way: a rank that cannot lower its share goes on with what it has, and
    says so (unchanged).
    """

    share: Fraction = 0.0
    beside: Annotated[tuple[Short, ...], Meta(max_length=LISTED_MAX)] = ()


class Warn(Message, frozen=True, tag="warn"):
    """Give every rank a signal once, such as `USR1`: its time limit is near.

    A rank gets it in its uppermost processes that have a handler for it; a frozen one when it goes
    on. A rank none of whose processes has one gets none, and the answer says so.
    """

    signal: Short


Change = Suspend | Resume | Checkpoint | Move | Resize | Share | Warn


class ChangeJob(Message, frozen=True, tag="change-job"):
    """Change this node's part of a running attempt, by `deadline_ms` after it is taken.

    Answered by a MemberChanged with the same order. A part takes one change after the other, by
    their orders; the answer to the latest is told again whenever it is asked for again.
    """

    order: Count
    epoch: Count
    settled: Count
    node: Token
    identity: Short
    job: JobName
    attempt: Attempt
    change: Change
    deadline_ms: Count
    trace: Short = ""


Command = BindJob | StopJob | ChangeJob | RefuseNode | JoinAgain | ClearNode | DropCopies
