"""What one fact changed, for programs that keep something that follows from the state."""

from __future__ import annotations

import msgspec

from skep.ledger.records import PipelineKey


class MoveCost(msgspec.Struct, frozen=True):
    """What moving takes was measured: of a job, a family of a VC, or a VC (`move_costs`)."""

    name: str


class Delta(msgspec.Struct):
    """What a fact changed beyond what it says itself. Every list is in the order of the changes."""

    freed: int = 0
    """How often GPUs, CPUs, memory or cells came free, or may have."""
    claims: tuple[str, ...] = ()
    """Jobs with a reservation whose GPUs may be free by now."""
    views: tuple[str | MoveCost, ...] = ()
    """Jobs that a policy sees otherwise, apart from the job that the fact names."""
    partners: tuple[str, ...] = ()
    """Jobs to whose GPUs others came, or from whose GPUs others left."""
    disturbed: tuple[str, ...] = ()
    """Jobs whose next rates say nothing of them alone: they share GPUs, or did until now."""
    remeasured: tuple[str, ...] = ()
    """Jobs that go on elsewhere or with another size: earlier rates say nothing of them."""
    trials: bool = False
    """Whether an open trial may have to be judged, or told, again."""
    ended: str = ""
    """The job that is over."""
    resolves: tuple[str, ...] = ()
    """Deferred jobs that waited for its end."""
    pipelines: tuple[PipelineKey, ...] = ()
    """Pipelines of which a job that was let in has ended, or is deferred again."""


UNCHANGED = Delta()
"""The change of a fact that changed nothing beyond what it says itself. It is not changed."""
