"""What the allocator tells agents, on `skep.v1.cmd.<node>`: repeated until a node event answers.

`order` fences stale commands: the agent keeps a durable floor per job and refuses what is not
above it. `epoch` fences a deposed allocator. Every order for this node up to `settled` is
answered, so the agent need not remember floors at or below it one by one.
"""

from __future__ import annotations

from skep.wire.message import Message

AGENT_PYTHON = "@python"
"""As the first word of `argv`: the interpreter the agent itself runs on, or the image's."""


class RankPlan(Message, frozen=True):
    """One process of a gang: its rank, its rank on this node, its devices there."""

    rank: int
    local_rank: int
    devices: tuple[int, ...]


class BindJob(Message, frozen=True, tag="bind-job"):
    """Start this node's ranks of one attempt of a job: as containers if there is an `image`."""

    order: int
    epoch: int
    settled: int
    node: str
    identity: str
    job: str
    attempt: int
    name: str
    vc: str
    argv: tuple[str, ...]
    ranks: tuple[RankPlan, ...]
    world: int
    node_rank: int
    nodes: int
    master_address: str
    master_port: int
    env: dict[str, str] = {}
    workdir: str = ""
    trace: str = ""
    image: str = ""


class StopJob(Message, frozen=True, tag="stop-job"):
    """End this node's part of an attempt, or never begin it, and say when it is gone."""

    order: int
    epoch: int
    settled: int
    node: str
    identity: str
    job: str
    attempt: int
    grace_s: float


class RefuseNode(Message, frozen=True, tag="refuse-node"):
    """Another agent of this name is alive: the one with `identity` must exit."""

    epoch: int
    node: str
    identity: str
    text: str


class JoinAgain(Message, frozen=True, tag="join-again"):
    """The agent with `identity` is heard, but its join is not known or was not taken: join anew."""

    epoch: int
    node: str
    identity: str


class ClearNode(Message, frozen=True, tag="clear-node"):
    """End at once whatever an order up to `order` began, begin none of it, and say once it is gone.

    For an agent that takes a name over: it may have had the name before, and whatever ran there
    was given up when it lost it.
    """

    order: int
    epoch: int
    node: str
    identity: str


Command = BindJob | StopJob | RefuseNode | JoinAgain | ClearNode
