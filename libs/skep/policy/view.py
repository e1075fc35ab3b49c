"""A virtual cluster at one instant, as its policy sees it."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from skep.access.person import LABEL
from skep.units import Duration, Instant
from skep.wire.cluster import PersonLimits
from skep.wire.following import AdviceFollowed
from skep.wire.learned import LearnedAdvice
from skep.wire.spec import JobSpec


class Phase(StrEnum):
    """State of a job, as far as a policy can act on it."""

    WAITING = "waiting"
    """In the queue: it may be placed."""
    RESERVED = "reserved"
    """Its cells are claimed; the jobs that still use them are being stopped."""
    STARTING = "starting"
    RUNNING = "running"
    SUSPENDED = "suspended"
    """It is suspended at a mini-batch boundary and keeps its GPUs."""
    AWAY = "away"
    """Suspended without GPUs: it may be placed again, and continues where it was."""
    STOPPING = "stopping"
    """Has its GPUs until its processes are gone."""


HOLDING = frozenset(
    {Phase.RESERVED, Phase.STARTING, Phase.RUNNING, Phase.SUSPENDED, Phase.STOPPING}
)
"""Phases in which a job has cells."""
QUEUED = frozenset({Phase.WAITING, Phase.AWAY})
"""Phases in which a job may get a turn."""
STOPPABLE = frozenset({Phase.STARTING, Phase.RUNNING})
"""Phases in which a job's GPUs may be taken for another one."""
_RUNNING = Phase.RUNNING  # Python 3.11 needs 0.1 us to look a member up, for each job of an order.


class JobView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One unfinished job. Times are nanoseconds.

    `served` is how long it has run in all attempts until `since`; while it is RUNNING it has also
    run from `since` on. What is measured and predicted (from `steps` on) comes from the advisor,
    seconds after it was measured; it is unknown for jobs that do not report.
    """

    job: str
    sequence: int
    """Its place in the order of arrival: unique."""
    spec: JobSpec
    submitted_at: Instant
    phase: Phase
    gpus: int
    """Of the whole gang: as many as it has, or asks for while it waits."""
    workers: int
    since: Instant = Instant(0)
    served: Duration = Duration(0)
    began_at: Instant = Instant(0)
    """When it first ran on GPUs that it did not borrow; 0: it never has."""
    waiting_since: Instant = Instant(0)
    """When it last entered its queue. It keeps waiting while it borrows."""
    owed: int = 0
    """The deficit that its policy noted when it last suspended it: for how many nanoseconds it
    should have run longer by then."""
    owed_at: Instant = Instant(0)
    """When the deficit was noted; 0: never."""
    owed_ran: Duration = Duration(0)
    """How long it had run in all by then, plus what it has run since on borrowed GPUs."""
    stood: bool = False
    """It already had its present GPUs before it was last suspended: it did not wait for them."""
    starts: int = 0
    expected: Duration | None = None
    """How long it runs in all where its speed is 1, as predicted or as its owner says; None:
    unknown."""
    left: Duration | None = None
    """How long it still had to run at `since`, as predicted; None: unknown."""
    nodes: tuple[tuple[str, int], ...] = ()
    """Its GPUs on each node, in the order of its ranks. AWAY: those it had; it returns to them
    unless it can `migrate`."""
    devices: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Which GPUs of each node those are; empty: not known. AWAY: it can continue there on these
    GPUs only, unless it can `rebind`."""
    chain: str = ""
    borrows: bool = False
    """It runs on idle GPUs outside its VC's cells."""
    partners: tuple[str, ...] = ()
    """Jobs on the same GPUs."""
    proven_partner: str = ""
    """The job beside which it made more than in turns, by a trial on the same GPUs."""
    proven_milli: int = 0
    """What both made together in that trial: the sum of their rates, in thousandths of each
    alone."""
    can: tuple[str, ...] = ()
    """What can be done to it while it runs: suspend, release, checkpoint, migrate, resize."""
    sizes: tuple[int, ...] = ()
    """The numbers of workers that it can have, as it says; none: each that its spec allows."""
    steps: int = 0
    """Mini-batches done at `steps_at`; 0 also if unknown."""
    steps_at: Instant = Instant(0)
    rate_milli: int = 0
    """Measured thousandths of a mini-batch per second, where it runs or last ran; 0: not known, or
    it makes none."""
    utilisation: int = -1
    """Thousandths of the time for which its GPUs were busy; -1: not known."""
    memory: int = 0
    """Bytes of GPU memory that its largest worker uses; 0: not known."""
    rates: tuple[tuple[int, int], ...] = ()
    """Predicted thousandths of a mini-batch per second for each number of workers that it may have,
    fewest first; empty: unknown."""
    slowdown: tuple[tuple[int, int], ...] = ()
    """Predicted time on so many nodes, in thousandths of its time on as few nodes as possible,
    fewest nodes first; empty: unknown."""
    pause: Duration = Duration(0)
    """How long it makes no progress when it is moved, as measured of its family or else of the VC's
    jobs; 0: unknown."""
    trial: int = 0
    """The open trial that it is part of, or for which it is suspended; 0: none."""
    measured: bool = True
    """Whether its rate on GPUs of its own is known: else no pack with it is tried."""
    trial_after: Instant = Instant(0)
    """Until then no trial with it begins: it has had as many as are allowed in an hour."""
    move_after: Instant = Instant(0)
    """Until then no trial of a move with it begins."""
    held: int = 0
    """How many plans have withheld it, each after something had come free."""
    rates_low: tuple[tuple[int, int], ...] = ()
    """The same as `rates`, with what is predicted and not measured at its P90 of time; empty:
    nothing of it is predicted by a fit."""
    slowdown_high: tuple[tuple[int, int], ...] = ()
    """The same as `slowdown`, with what is predicted on more nodes at its P90; empty: as there."""
    rate_workers: int = 0
    """The workers that it had when its rate was measured; 0: not known. If these are not those that
    it has now, `left` and `rates` are of before its latest change."""
    owner: str = ""
    """The person that submitted it; empty: its VC as a whole did."""

    def label(self, name: str) -> str | None:
        """Return the value of a label; None: it has none.

        What the label `user` says is not proven. Of a job that has an owner it is the owner.
        """
        return (self.owner if name == LABEL else "") or self.spec.labels.get(name)

    person: str = ""
    """Whose it is; only where its VC shares by person, or limits what one has."""
    counted: bool = False
    """It counts against its person's limits already: it has GPUs, or stands without."""

    @property
    def pin(self) -> str:
        """Return the pinned cell in which it has to run; empty: in any of the VC's other cells."""
        return self.spec.resources.pinned

    @property
    def at_home(self) -> bool:
        """Return whether it can continue only on its own nodes, where its processes are."""
        return self.phase is Phase.AWAY and bool(self.nodes) and "migrate" not in self.can

    def ran(self, now: Instant) -> Duration:
        """Return how long it has run in all attempts, in nanoseconds."""
        if self.phase is _RUNNING and now > self.since:
            return Duration(self.served + now - self.since)
        return self.served

    def attained(self, now: Instant) -> int:
        """Return its attained service in GPU-nanoseconds (Tiresias, section 3.1)."""
        return self.ran(now) * self.gpus

    def remaining(self, now: Instant) -> Duration | None:
        """Return how many nanoseconds it still has to run; None: unknown."""
        if self.left is not None:
            left: int = self.left
        elif self.expected is not None:
            left = self.expected - self.served
        else:
            return None
        if self.phase is _RUNNING and now > self.since:
            left -= now - self.since
        return Duration(left) if left > 0 else Duration(0)


class NodeView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node on which the VC has cells, or could have: GPUs, CPUs and memory there.

    `free` counts GPUs that the VC's cells could cover now for a job without a pin, `pins` those of
    its pinned cells, which serve only jobs that name the pin. `jobs` are the VC's jobs there, in
    order of arrival, each with its GPUs on the node.
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
        """Return how many GPUs are free here for jobs with a pin (empty: without one)."""
        return dict(self.pins).get(pin, 0) if pin else self.free


class TrialView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A kind of trial (`skep.wire.trials.Kind`) with jobs of these families that cools down.

    Until `until`, a plan that proposes this kind between these families has no effect. With `jobs`
    this holds only between these jobs, of whatever families.
    """

    kind: str
    families: tuple[str, ...]
    until: Instant
    jobs: tuple[str, ...] = ()


class PinView(msgspec.Struct, frozen=True):
    """A pinned cell of a VC: its GPUs with working hardware, and those that no job has."""

    pin: str
    gpus: int
    free: int


class PersonView(msgspec.Struct, frozen=True, kw_only=True):
    """One person of a VC: what it used, and what counts against its limits.

    `used` is in GPU-nanoseconds, decayed; `weight` in thousandths. `jobs` and `gpus` are those with
    GPUs or a claim, also suspended ones and those that borrow.
    """

    person: str
    weight: int = 1000
    used: int = 0
    jobs: int = 0
    gpus: int = 0


class VcView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A VC's guaranteed jobs, in the order of arrival, and its cells."""

    vc: str
    now: Instant
    jobs: tuple[JobView, ...]
    gpus: int
    """GPUs of its cells with working hardware, pinned cells included."""
    free: int
    """Those of them that none of its jobs holds."""
    pins: tuple[PinView, ...] = ()
    """Its pinned cells: their GPUs serve jobs that name them, and no others."""
    node_gpus: int = 8
    """GPUs of a whole node, of the largest kind that it has."""
    free_cells: dict[str, tuple[int, ...]] = {}
    """By chain: its free cells of each level, from one GPU up (HiveD's free list); only for a
    policy that asks for them (`Policy.sees_cells`)."""
    nodes: tuple[NodeView, ...] = ()
    """Only for a policy that asks for them (`Policy.sees_nodes`)."""
    cooling: tuple[TrialView, ...] = ()
    """Trials that were not worth it; only for a policy with `Policy.sees_rates`."""
    trial_after: Instant = Instant(0)
    """Until then no trial begins: the VC has had as many as are allowed in an hour."""
    move_after: Instant = Instant(0)
    """Until then no trial of a move begins."""
    quiet_since: Instant = Instant(0)
    """When a job last came to the VC."""
    changed: int = 0
    """Counts what came free: while it stays the same, a job that did not fit still does not fit."""
    ended: tuple[int, ...] = ()
    """GPU-nanoseconds that the VC's latest ended jobs had used, oldest first."""
    advised: LearnedAdvice | None = None
    """What a learned model said last; only for a policy with `Policy.answers_within`."""
    unanswered: Instant | None = None
    """Since when the model has been told something that it has not answered; None: it has."""
    followed: AdviceFollowed | None = None
    """Whether the policy followed its model last, and since when; None: it has planned nothing."""
    people: tuple[PersonView, ...] = ()
    """Whose jobs wait; only where the VC shares by person, or limits what one has."""
    fair: bool = False
    """Whether the VC shares by person: `skep.policy.fair` orders the turns of its policy."""
    limits: PersonLimits | None = None
    """What each person may have; None: there is no limit."""

    def gpus_for(self) -> dict[str, int]:
        """Return by pin how many of its GPUs serve jobs with that pin; "": jobs without one."""
        pinned = {each.pin: each.gpus for each in self.pins}
        return {"": self.gpus - sum(pinned.values()), **pinned}

    def free_for(self) -> dict[str, int]:
        """Return by pin how many of its GPUs none of its jobs holds; "": for jobs without one."""
        pinned = {each.pin: each.free for each in self.pins}
        return {"": self.free - sum(pinned.values()), **pinned}
