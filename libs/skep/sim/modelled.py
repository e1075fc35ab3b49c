"""What the model of the allocator's log keeps, for the modules that read one kind of fact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from skep.sim.held import Gpus
from skep.sim.tried import Tried
from skep.sim.violation import Key
from skep.wire.changes import JobChanging, MemberAnswered
from skep.wire.facts import Member, MemberGone
from skep.wire.moves import SuccessorBound
from skep.wire.reasons import Reason
from skep.wire.spec import JobSpec


class ModelJob(msgspec.Struct):
    """An unfinished job, as the log has it."""

    spec: JobSpec
    queued: bool = True
    attempt: int = 0
    spent: int = 0
    order: int = 0
    members: dict[str, Member] = {}
    gone: dict[str, MemberGone] = {}
    ran: dict[str, None] = {}
    stopping: Reason | None = None
    claims: bool = False
    guaranteed: bool = False
    suspended: bool = False
    changing: JobChanging | None = None
    answers: dict[str, MemberAnswered] = {}
    before: dict[str, Member] = {}
    """What it had before it got GPUs again, until it runs on those."""
    size: int = 0
    """Ranks of the gang since its size was changed; 0: it was not, in this attempt."""
    owner: str = ""

    @property
    def workers(self) -> int:
        """Return how many ranks train, or are to."""
        return self.size or self.spec.resources.workers

    @property
    def ranks(self) -> int:
        """Return for how many ranks it has GPUs."""
        return sum(len(member.devices) for member in self.members.values())


class ModelNode(msgspec.Struct):
    """A node, as the log has it."""

    identity: str
    lost: bool = False
    drained: bool = False
    clearing: bool = False


class AllocatorLog(Protocol):
    """What the allocator's log says so far: `model.AllocatorModel`."""

    jobs: dict[str, ModelJob]
    nodes: dict[str, ModelNode]
    gpus: Gpus
    tried: Tried
    ghosts: dict[tuple[str, str, int], Member]
    released: dict[Key, None]
    learned: dict[tuple[str, int, str], tuple[str, ...]]
    moved: dict[Key, Key]
    successors: dict[str, SuccessorBound]
    loaded: dict[str, dict[str, None]]
    left: Callable[[list[Key], str, int], None]

    def attempt_of(self, name: str, attempt: int) -> ModelJob:
        """Return the job that an attempt is of, which runs.

        Raises:
            ViolationError: The job is not in this attempt.
        """
        ...

    def next_order(self, order: int) -> None:
        """Take an order, which is above all before it.

        Raises:
            ViolationError: It is not.
        """
        ...

    def within_quota(self, vc: str) -> None:
        """Require that the jobs of a VC hold no more than its cells.

        Raises:
            ViolationError: They hold more.
        """
        ...
