"""A virtual cluster at one instant, as its policy sees it."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from skep.units import Duration, Instant
from skep.wire.spec import JobSpec


class Phase(StrEnum):
    """Where a job is, as far as a policy can do something about it."""

    WAITING = "waiting"
    """In the queue: it may be placed."""
    RESERVED = "reserved"
    """Its cells are claimed; who uses them still is being stopped."""
    STARTING = "starting"
    RUNNING = "running"
    SUSPENDED = "suspended"
    """Stands at a mini-batch boundary and keeps its GPUs."""
    AWAY = "away"
    """Suspended without GPUs: it may be placed again, and goes on where it was."""
    STOPPING = "stopping"
    """Has its GPUs until its processes are gone."""


HOLDING = frozenset(
    {Phase.RESERVED, Phase.STARTING, Phase.RUNNING, Phase.SUSPENDED, Phase.STOPPING}
)
"""Phases in which a job has cells."""


class JobView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One unfinished job. Times are nanoseconds.

    `served` is how long it has run in all attempts until `since`; while it is RUNNING it has run
    from `since` on too. What is measured and predicted (from `steps` on) comes from the advisor,
    seconds after it has become so; where jobs do not report, nobody knows it.
    """

    job: str
    sequence: int
    """Its place in the order of arrival: unique."""
    spec: JobSpec
    submitted_at: Instant
    phase: Phase
    gpus: int
    """Of the whole gang, as many as it has or asks for now."""
    workers: int
    since: Instant = Instant(0)
    served: Duration = Duration(0)
    began_at: Instant = Instant(0)
    """When it first ran, on what it did not borrow; 0: it never has."""
    waiting_since: Instant = Instant(0)
    """When it last came to its queue. While it borrows it waits on."""
    owed: int = 0
    """What its policy noted when it last suspended it: nanoseconds for which it should have run
    longer by then."""
    owed_at: Instant = Instant(0)
    """When that was noted; 0: it never was."""
    owed_ran: Duration = Duration(0)
    """How long it had run in all by then, and has since on what it borrowed."""
    stood: bool = False
    """It has had the GPUs that it has since before it last stood: it did not wait for them."""
    starts: int = 0
    expected: Duration | None = None
    """How long it runs in all where its speed is 1, as predicted or as its owner says; None:
    nobody knows."""
    left: Duration | None = None
    """How long it still had to run at `since`, as predicted; None: see `expected`."""
    nodes: tuple[tuple[str, int], ...] = ()
    """Its GPUs on each node, in the order of its ranks. AWAY: those it had, and goes back to unless
    it can `migrate`."""
    devices: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Which GPUs of each node those are; empty: not known. AWAY: the only ones it can go on with
    there unless it can `rebind`."""
    chain: str = ""
    borrows: bool = False
    """It runs on what is idle, outside its VC's cells."""
    partners: tuple[str, ...] = ()
    """Jobs on the same GPUs."""
    mate: str = ""
    """The job beside which it made more than in turns, when that was tried on the same GPUs."""
    mate_milli: int = 0
    """What both made together then: the sum of their rates, in thousandths of each alone."""
    can: tuple[str, ...] = ()
    """What can be done to it while it runs: suspend, release, checkpoint, migrate, resize."""
    steps: int = 0
    """Mini-batches done at `steps_at`; 0 as well if nobody knows."""
    steps_at: Instant = Instant(0)
    rate_milli: int = 0
    """Thousandths of a mini-batch per second where it runs or last ran, measured; 0: not known, or
    it makes none."""
    utilisation: int = -1
    """Thousandths of its GPUs' time that were busy; -1: not known."""
    memory: int = 0
    """Bytes that its largest worker has of its GPUs' memory; 0: not known."""
    rates: tuple[tuple[int, int], ...] = ()
    """Thousandths of a mini-batch per second with each number of workers that it may have, fewest
    first, as predicted; empty: nobody knows."""
    slowdown: tuple[tuple[int, int], ...] = ()
    """Thousandths of its time on as few nodes as possible that it takes on so many nodes, fewest
    first, as predicted; empty: nobody knows."""
    pause: Duration = Duration(0)
    """How long it makes nothing when it is moved, as measured of its family or else of the VC's
    jobs; 0: nobody knows."""
    trial: int = 0
    """The open trial that it is part of, or stands back from; 0: none."""
    measured: bool = True
    """Whether it is known how it goes on GPUs of its own: else no pack with it is tried."""
    trial_after: Instant = Instant(0)
    """Until then no trial with it is begun: it had as many as it may within an hour."""
    move_after: Instant = Instant(0)
    """Likewise no trial of a move."""
    held: int = 0
    """How often a plan has held it back, each time after something had come free."""

    @property
    def pin(self) -> str:
        """Return the pinned cell in which it has to run; empty: in any of the VC's other cells."""
        return self.spec.resources.pinned

    @property
    def at_home(self) -> bool:
        """Return whether it can go on on its own nodes only: its processes are there, suspended."""
        return self.phase is Phase.AWAY and bool(self.nodes) and "migrate" not in self.can

    def ran(self, now: Instant) -> Duration:
        """Return how long it has run in all."""
        going = now - self.since if self.phase is Phase.RUNNING else 0
        return Duration(self.served + max(going, 0))

    def attained(self, now: Instant) -> int:
        """Return the service it has had: GPU-nanoseconds (Tiresias, section 3.1)."""
        return self.ran(now) * self.gpus

    def remaining(self, now: Instant) -> Duration | None:
        """Return how long it still has to run; None if nobody knows."""
        if self.left is not None:
            going = now - self.since if self.phase is Phase.RUNNING else 0
            return Duration(max(self.left - max(going, 0), 0))
        if self.expected is None:
            return None
        return Duration(max(self.expected - self.ran(now), 0))


class NodeView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node on which the VC has cells, or could have: GPUs, CPUs and memory there.

    `free` counts GPUs that the VC's cells could cover now for a job without a pin, `pins` those of
    its pinned cells, which serve only jobs that name the pin. `jobs` are the VC's, in order of
    arrival, each with its GPUs there.
    """

    node: str
    chain: str
    gpu_type: str
    gpus: int
    free: int
    pins: tuple[tuple[str, int], ...] = ()
    jobs: tuple[tuple[str, int], ...] = ()
    cpus: int = 0
    cpus_free: int = 0
    memory: int = 0
    memory_free: int = 0
    gpu_memory: int = 0
    """Bytes of memory of one GPU; 0: not known."""

    def free_for(self, pin: str) -> int:
        """Return how many GPUs jobs with this pin (empty: without one) could have here now."""
        return dict(self.pins).get(pin, 0) if pin else self.free


class TrialView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A kind of trial (`skep.wire.trials.Kind`) with jobs of these families that cools down.

    `until` then nothing of the kind is tried between them again: a plan that proposes it has
    nothing done. With `jobs` that is so only between these, of whatever families.
    """

    kind: str
    families: tuple[str, ...]
    until: Instant
    jobs: tuple[str, ...] = ()


class PinView(msgspec.Struct, frozen=True):
    """A pinned cell of a VC: its GPUs whose hardware works, and those that none of its jobs has."""

    pin: str
    gpus: int
    free: int


class VcView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A VC's guaranteed jobs, in the order of arrival, and its cells."""

    vc: str
    now: Instant
    jobs: tuple[JobView, ...]
    gpus: int
    """GPUs of its cells whose hardware works, pinned cells among them."""
    free: int
    """Those of them that none of its jobs holds."""
    pins: tuple[PinView, ...] = ()
    """Its pinned cells: their GPUs serve jobs that name them, and no others."""
    node_gpus: int = 8
    """GPUs of a whole node (the largest kind it has)."""
    free_cells: dict[str, tuple[int, ...]] = {}
    """By chain: its free cells of each level, from one GPU up (HiveD's free list); only for a
    policy that asks for them (`Policy.sees_cells`)."""
    nodes: tuple[NodeView, ...] = ()
    """Only for a policy that asks for them (`Policy.sees_nodes`)."""
    cooling: tuple[TrialView, ...] = ()
    """What was tried and not worth it; only for a policy with `Policy.sees_rates`."""
    trial_after: Instant = Instant(0)
    """Until then no trial is begun: the VC had as many as it may within an hour."""
    move_after: Instant = Instant(0)
    """Likewise no trial of a move."""
    quiet_since: Instant = Instant(0)
    """Since when no job has come to the VC."""
    changed: int = 0
    """Counts what came free: a job that did not fit fits no better while this stands still."""
    ended: tuple[int, ...] = ()
    """GPU-nanoseconds that the VC's latest jobs had when they came to their end, oldest first."""

    def gpus_for(self) -> dict[str, int]:
        """Return by pin how many of its GPUs serve jobs with it; under "" those without one."""
        pinned = {each.pin: each.gpus for each in self.pins}
        return {"": self.gpus - sum(pinned.values()), **pinned}

    def free_for(self) -> dict[str, int]:
        """Return by pin how many of these none of its jobs holds."""
        pinned = {each.pin: each.free for each in self.pins}
        return {"": self.free - sum(pinned.values()), **pinned}
