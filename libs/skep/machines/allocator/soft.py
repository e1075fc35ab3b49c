"""What the allocator knows beside its state, and a crash may forget: timers, heartbeats, advice."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from skep.base.timers import TimerHeap
from skep.cells.holds import CellHold, Request, Spot
from skep.cells.patrol import Patrol
from skep.cells.pools import Pool
from skep.cells.state import Cells
from skep.ids import AttemptId
from skep.ledger.records import PipelineKey
from skep.ledger.state import Place
from skep.machines.allocator.placement.lending_line import Line
from skep.machines.allocator.policies.policy_memory import Planned
from skep.machines.allocator.timers import Timer
from skep.perf.fitted import FitsKept
from skep.perf.scaling import Predicted
from skep.units import Duration, Instant
from skep.wire import codec
from skep.wire.advice import JobPace, ScalePoint
from skep.wire.cluster import Cluster
from skep.wire.facts import CellsAlarm
from skep.wire.reasons import Reason
from skep.wire.reports import HungPart
from skep.wire.trials import OpenTrial

STORY_KEPT = 500
STORY_FACTS = 20
STORY_CHARS = 200
"""Facts searched for a story, told in one, and what is told of each: a story is 4 kB at most."""


class Telling:
    """What of open trials was told, and looked at; and of which jobs the rate is not sure."""

    def __init__(self) -> None:
        """Start with nothing told."""
        self.told: tuple[OpenTrial, ...] = ()
        """The open trials as the introspector was told last."""
        self.again = Instant(0)
        """When it is told again."""
        self.at: Instant | None = None
        """When a trial is to be looked at, or they are to be told again."""
        self.touched = True
        """Whether something was recorded that may matter to one, and was not looked at."""
        self.stale = True
        """Likewise, and was not told."""
        self.unsure: dict[str, Instant] = {}
        """Jobs that were just resized, or whose GPUs others came to or left: until when a rate told
        may be of before; 0: as of this decision."""
        self.unsure_at = Instant(0)
        """When the first of them is sure again; 0: now."""
        self.unsettled: dict[str, tuple[Instant, Instant]] = {}
        """Jobs that have shared GPUs, and may be alone: since when, and when that is looked at; 0:
        as of this decision."""
        self.unsettled_at = Instant(0)
        """When the first of them is looked at; 0: now."""
        self.settled: dict[str, int] = {}
        """By job that has shared GPUs: the attempt, if what was told of it last is of it alone."""
        self.alone: dict[str, tuple[int, int]] = {}
        """Likewise if it shares some again: the attempt, and its rate alone before, in
        thousandths."""

    def be_unsure(self, job: str) -> None:
        """Note that a rate told of a job may be of before this decision."""
        self.unsure[job], self.unsure_at = Instant(0), Instant(0)

    def unsettle(self, job: str) -> None:
        """Note that a job that has shared GPUs may be alone as of this decision."""
        self.unsettled[job], self.unsettled_at = (Instant(0), Instant(0)), Instant(0)


Sizes = tuple[str, str, str, int, int, range, int]
"""What a prediction is of: VC, family, type of GPU, GPUs of a worker, workers now, numbers of
workers that it may have, and samples of a mini-batch."""


class OutOfReach(NamedTuple):
    """What was known when no cell of its VC could cover an attempt that borrows GPUs."""

    attempt: int
    name: AttemptId
    cells: Cells
    hold: CellHold
    spots: tuple[Spot, ...]
    """Where it was."""
    pool: Pool
    """The cells of its VC."""
    bindings: int
    """Those of the pool then."""

    def lasts(self, cells: Cells) -> bool:
        """Return whether it is still so."""
        return (
            self.bindings == self.pool.bindings
            and self.hold.spots is self.spots
            and self.cells is cells
            and cells.holds.get(self.name) is self.hold
        )


class Soft:
    """Timers, heartbeats and advice: rebuilt after a restart, never part of the truth."""

    def __init__(self) -> None:
        """Start knowing nothing."""
        self.timers = TimerHeap[Timer]()
        """When each timer is due."""
        self.last_heard: dict[str, Instant] = {}
        """When each node was heard, or could first have been."""
        self.speaking: dict[str, None] = {}
        """Nodes whose heartbeat was really heard: `last_heard` also holds the benefit of doubt."""
        self.inventory_at: dict[str, Instant] = {}
        """When each node's inventory was taken, or could last have been."""
        self.unsettled_packs: dict[str, Instant] = {}
        """By job of a replica: since when it is as it is, if others were leaving it."""
        self.check_at: Instant | None = None
        self.losing = False
        """Whether further nodes may have to be given up first: until then no job is placed."""
        self.joined_at = Instant(0)
        """When a node last joined, or came with another inventory."""
        self.resolve_at: Instant | None = None
        """When the cells follow the nodes that joined since they last did."""
        self.advice_until = Instant(0)
        self.changes = 0
        """How often something came free, or may have: what could not be placed is tried again."""
        self.failed: dict[tuple[str, bool], tuple[str, int]] = {}
        """By queue: the head that could not be placed, and `changes` then."""
        self.returned: dict[tuple[str, bool], None] = {}
        """Queues that a job came back to in this decision, because its claim was cancelled."""
        self.returning: dict[str, None] = {}
        """Suspended jobs without GPUs, of VCs without a policy, for which others leave theirs."""
        self.ripe: dict[str, None] = {}
        """Jobs with a reservation of which something may have changed since it was looked at."""
        self.vacant: Cells | None = None
        """The cells with nothing on them, for telling what can never be placed on them."""
        self.fits_vacant: dict[Request, bool] = {}
        """Whether they would hold a request (of no job), as far as that was asked."""
        self.story: deque[Any] = deque(maxlen=STORY_KEPT)
        """The latest facts, to find out how something came about."""
        self.patrol: Patrol | None = None
        self.patrol_at = Instant(0)
        """When the watch next goes on with its round."""
        self.seen: dict[Place, None] = {}
        """What was found broken in this round."""
        self.looked = -1, -1
        """`changes` and the latest request when suspended jobs were last looked at."""
        self.reshare: dict[str, None] = {}
        """Jobs whose partners on their GPUs may have changed since they were told their share."""
        self.may_promote = True
        """Whether something was recorded since that may let a job that borrows have cells."""
        self.promoted_at = 0
        """`changes` when jobs that borrow were last looked at."""
        self.uncovered: dict[str, int] = {}
        """By job that borrows GPUs: `changes` when its VC's cells could not cover it."""
        self.out_of_reach: dict[str, OutOfReach] = {}
        """By job that borrows GPUs, and that no cell of its VC can cover."""
        self.unlent: dict[Any, tuple[int, tuple[Reason, str] | None]] = {}
        """By VC and what was asked for: `changes` when nothing idle served it, and what was said of
        that."""
        self.anew: dict[str, None] = {}
        """Jobs that stood without GPUs, and are stopped to begin anew: their turn is kept."""
        self.lines: dict[str, Line] = {}
        """By VC without a policy: the jobs that may have idle GPUs while they wait."""
        self.planned: dict[str, Planned] = {}
        """By VC whose policy is another than first come, first served: what is kept of its view."""
        self.unmade: dict[str, str] = {}
        """VCs whose policy cannot be made, and why: another version took its options."""
        self.planned_for: Cluster | None = None
        """The cluster that `planned` was made for."""
        self.touched: dict[str, None] = {}
        """Jobs of any VC about which something was recorded since the views were last brought up
        to date."""
        self.stirred = 0
        """Counts the facts that may change more than how a policy sees one job."""
        self.left: dict[str, tuple[Duration, int]] = {}
        """By job: how long it still had to run, as predicted, when it had been served so long."""
        self.paces: dict[str, tuple[JobPace, Instant]] = {}
        """By job that runs or is suspended: how it went when that was last told, and when."""
        self.telling = Telling()
        self.scales: dict[tuple[str, str], tuple[ScalePoint, ...]] = {}
        """By family and type of GPU: how it scales, as it was last told."""
        self.fits = FitsKept()
        """What predicts how a family goes where it was not measured."""
        self.predicted: dict[Sizes, tuple[Predicted, ...]] = {}
        """What they predict, as far as it was asked since they changed."""

        self.idle: dict[tuple[str, int], dict[str, Instant]] = {}
        """By job and attempt: when each node last said that its part does nothing."""
        self.slow_heard: dict[tuple[str, int], Instant] = {}
        """By job and rank that holds its gang up: when that was said last."""
        self.judged_at: dict[str, Instant] = {}
        """By node that something was found to speak against: when it is judged."""
        self.hung: dict[tuple[str, int], dict[str, tuple[Instant, HungPart]]] = {}
        """By job and attempt: when each node last said that its part hangs, and what it said."""
        self.warnings: dict[str, int] = {}
        """By job: the attempt whose ranks are due a signal, as its time limit is near."""
        self.resolving: dict[str, None] = {}
        """Deferred jobs for which something that they waited for has come, or may have."""
        self.room: dict[PipelineKey, None] = {}
        """Pipelines that may have room for deferred jobs."""
        self.leave_at: Instant | None = None
        """When the jobs on nodes of open windows are next looked for; None: at once."""
        self.moved_for: dict[str, tuple[str, int]] = {}
        """By job: the window for which a move of its attempt was tried, and the attempt."""
        self.pairs: dict[str, tuple[str, int]] = {}
        """By waiting job that asks for a share of a GPU: the GPU on which others are starting that
        it is to share, as node and device."""
        self.seated: tuple[object, ...] = ()
        """What was known when no waiting job could be put on a GPU with room."""
        self.passed: dict[str, int] = {}
        """By job that waits for the end of a window: `changes` when others could go past it."""
        self.sights_at: Instant | None = None
        """When models are next told what their VCs see; None: nothing is new."""
        self.probe_at: Instant | None = None
        """When it is next looked whether a probe may begin; None: at once, if a job is there."""

    def wake_at(self) -> Instant | None:
        """Return the earliest timer, or None: there is none."""
        timer = self.timers.first_due()
        first = None if timer is None else Instant(timer)
        if self.check_at is not None and (first is None or self.check_at < first):
            first = self.check_at
        if self.resolve_at is not None and (first is None or self.resolve_at < first):
            first = self.resolve_at
        if self.telling.at is not None and (first is None or self.telling.at < first):
            first = self.telling.at
        if self.sights_at is not None and (first is None or self.sights_at < first):
            first = self.sights_at
        for each in self.planned.values():
            at = self.probe_at if each.probable else None
            if at is not None and (first is None or at < first):
                first = at
            if each.look_at is not None and (first is None or each.look_at < first):
                first = each.look_at
        return first

    def set_timer(self, timer: Timer, at: Instant) -> None:
        """Set a timer, in place of the same one set earlier."""
        self.timers.set_timer(timer, at, timer.order())

    def cancel_timer(self, timer: Timer) -> None:
        """Cancel a timer, if it is set."""
        self.timers.cancel(timer)

    def story_of(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the latest facts that name one of these, each cut to STORY_CHARS, oldest first.

        Args:
            names: Of jobs, nodes, chains or VCs.

        Returns:
            Facts in JSON, STORY_FACTS at most.
        """
        wanted = [f'"{name}"'.encode() for name in names]
        told: list[str] = []
        for fact in reversed(self.story):
            text = _encoded(fact)
            if any(name in text for name in wanted):
                told.append(text[:STORY_CHARS].decode(errors="replace"))
                if len(told) == STORY_FACTS:
                    break
        return tuple(reversed(told))


def _encoded(fact: Any) -> bytes:
    """Return a fact as it is shown in a story; alarms are left out."""
    return b"" if isinstance(fact, CellsAlarm) else codec.encode(fact)
