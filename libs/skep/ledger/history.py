"""The cluster over the last days: GPUs by state, waiting and useful time, folded from facts.

Between two facts nothing changes, so the counts before a fact hold until its instant. They are
added to points, one for each STEP. What is known only later, the work that a job lost, is taken
from the points in which it trained. A log may begin anywhere.

    fact ──> counts of its job and nodes ──> sums of the virtual cluster and of the nodes ──> points
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from skep.cells.nodes import NodeState
from skep.ledger.job_state import JobState, State
from skep.ledger.state import ClusterState
from skep.units import Instant, seconds
from skep.wire.facts import CellsSet, EpochBegan, JobBound, JobEnded
from skep.wire.windows import WindowBegan, WindowEnded

STEP: Final = seconds(300.0)
"""What one point is about: a day is 288 of them, as many as a picture has room for."""
POINTS_MAX: Final = 7 * 24 * 12
"""Seven days."""
VCS_MAX: Final = 256
"""Virtual clusters that one point tells apart; further ones are not counted in it."""
GPU_STATES: Final = ("free", "held", "bad", "drained", "lost")
EVERYWHERE: Final = (CellsSet, EpochBegan, WindowBegan, WindowEnded)
"""Facts after which any node may be in another state."""
MS: Final = 1_000_000
PARTS: Final = 8
"""Into so many buckets each doubling of a wait is divided: they are 12 % wide at most."""


class Tally(msgspec.Struct, omit_defaults=True, gc=False):
    """What jobs of one virtual cluster come to in one point. GPU time is of one GPU (ns)."""

    held_ns: int = 0
    trained_ns: int = 0
    lost_ns: int = 0
    """The part of what was trained that was lost, as far as it is known by now."""
    waited_ns: int = 0
    started: int = 0
    """Jobs that got GPUs for the first time."""
    waits: dict[int, int] = {}
    """How many of them waited how long: the count by `bucket_of`."""
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0

    def add(self, more: Tally) -> None:
        """Add another one."""
        self.held_ns += more.held_ns
        self.trained_ns += more.trained_ns
        self.lost_ns += min(more.lost_ns, more.trained_ns)
        self.waited_ns += more.waited_ns
        self.started += more.started
        self.succeeded += more.succeeded
        self.failed += more.failed
        self.cancelled += more.cancelled
        for bucket, jobs in more.waits.items():
            self.waits[bucket] = self.waits.get(bucket, 0) + jobs


class Point(msgspec.Struct, omit_defaults=True):
    """STEP of the cluster's time: `covered_ns` of it are known, `gpus` is GPU time by state."""

    at: int
    covered_ns: int = 0
    gpus: dict[str, int] = {}
    vcs: dict[str, Tally] = {}

    def of(self, vc: str) -> Tally:
        """Return what is counted of a virtual cluster; beyond VCS_MAX it is not kept."""
        tally = self.vcs.get(vc)
        if tally is None:
            tally = Tally()
            if len(self.vcs) < VCS_MAX:
                self.vcs[vc] = tally
        return tally

    def pass_nodes(self, counts: dict[str, int], length: int) -> None:
        """Add a time in which nodes did not change."""
        self.covered_ns += length
        for state, count in counts.items():
            if count:
                self.gpus[state] = self.gpus.get(state, 0) + count * length


class Stands(NamedTuple):
    """What one job counts as now: it waits, or holds so many GPUs, and may train on them."""

    vc: str
    waits: bool
    held: int
    trains: bool
    nodes: tuple[str, ...]


class Counts:
    """How the jobs of one virtual cluster stand since an instant."""

    def __init__(self, since: int) -> None:
        """Begin with none."""
        self.since = since
        self.waiting = self.held = self.training = 0

    def move(self, stands: Stands, sign: int) -> None:
        """Count a job, or (`sign` -1) no longer."""
        self.waiting += sign * stands.waits
        self.held += sign * stands.held
        self.training += sign * (stands.held if stands.trains else 0)

    def put(self, tally: Tally, length: int) -> None:
        """Add a time in which they stood so."""
        tally.waited_ns += self.waiting * length
        tally.held_ns += self.held * length
        tally.trained_ns += self.training * length

    @property
    def any(self) -> bool:
        """Return whether there is something to count."""
        return bool(self.waiting or self.held)


class Told(NamedTuple):
    """One point as it is shown: means over its time, and counts. None: there was nothing.

    `gpus` are those of all nodes, the rest is of the jobs that were asked for: `used` are the GPUs
    that they held. `useful` is in thousandths of the GPU time held; waits are in seconds.
    """

    at: int
    gpus: dict[str, float]
    training: float
    useful: int | None
    waiting: float
    started: int
    waited_p50_s: float | None
    waited_p90_s: float | None
    succeeded: int
    failed: int
    cancelled: int
    used: float


class History:
    """The points, and how everything stands now. `at` is the instant of the latest fact."""

    def __init__(self) -> None:
        """Begin with nothing known."""
        self.points: dict[int, Point] = {}
        self.at = 0
        self.counted = False
        """How everything stands is known. After a restart it is read from the ledger's state."""
        self._jobs: dict[str, Stands] = {}
        self._nodes: dict[str, dict[str, int]] = {}
        self._vcs: dict[str, Counts] = {}
        self._gpus = dict.fromkeys(GPU_STATES, 0)
        self._gpus_since = 0
        self._dirty: dict[int, None] = {}

    def restore(self, points: Iterable[Point], at: int) -> None:
        """Begin with stored points, and the instant up to which they tell."""
        self.points = {point.at: point for point in sorted(points, key=lambda one: one.at)}
        self.at, self.counted, self._gpus_since = at, False, at

    def begin(self, state: ClusterState) -> None:
        """Read how everything stands, if that is not known: before the next fact is applied."""
        if self.counted:
            return
        self.counted = True
        self._jobs, self._nodes, self._vcs = {}, {}, {}
        self._gpus, self._gpus_since = dict.fromkeys(GPU_STATES, 0), self.at
        for name in state.nodes:
            self._node(state, name)
        for name in state.jobs:
            self._job(state, name)

    def take(
        self, state: ClusterState, fact: Any, at: Instant, changed: Sequence[str] = ()
    ) -> None:
        """Take over a fact that was applied to the state.

        Args:
            state: What the ledger has after it.
            fact: The fact.
            at: The instant of its record. Time never goes back.
            changed: Other jobs that may stand otherwise by it.
        """
        if self.at == 0:
            self._gpus_since = int(at)
            for counts in self._vcs.values():
                counts.since = int(at)
        self.at = max(self.at, int(at))
        name = getattr(fact, "job", "")
        nodes = dict.fromkeys(nodes_of(fact))
        for job in dict.fromkeys((name, *changed) if name else changed):
            before = self._jobs.get(job)
            after = self._job(state, job)
            for one in (before, after):
                if one is not None:
                    nodes |= dict.fromkeys(one.nodes)
        if isinstance(fact, EVERYWHERE):
            nodes = dict.fromkeys((*state.nodes, *self._nodes))
        for node in nodes:
            self._node(state, node)
        match fact:
            case JobBound(attempt=1):
                self._started(state.jobs.get(fact.job))
            case JobEnded():
                self._ended(state, fact)
            case _:
                pass

    def lose(self, vc: str, lost_ns: int, spans: Sequence[tuple[int, int]]) -> None:
        """Take lost work from the points in which it was done, evenly.

        Args:
            vc: Of the job.
            lost_ns: The GPU time of the work that was lost.
            spans: From when to when it trained.
        """
        length = sum(max(0, end - begin) for begin, end in spans)
        if lost_ns <= 0 or length <= 0:
            return
        self.settle()
        for begin, end in spans:
            for at, part in _parts(begin, end):
                point = self.points.get(at)
                if point is not None and vc in point.vcs:
                    point.vcs[vc].lost_ns += lost_ns * part // length
                    self._dirty[at] = None

    @property
    def gpus(self) -> dict[str, int]:
        """Return how many GPUs are in which state now."""
        return self._gpus

    def settle(self) -> None:
        """Have the points tell all up to the latest fact."""
        if not self.counted:
            return  # They tell what they told when they were stored.
        self._pass_nodes()
        for vc in list(self._vcs):
            self._pass(vc)

    def news(self) -> list[Point]:
        """Return the points that changed since the last call, settled."""
        self.settle()
        found = [self.points[at] for at in self._dirty if at in self.points]
        self._dirty = {}
        return found

    def shown(self, since: int, now: int, vcs: Sequence[str] | None = None) -> list[Told]:
        """Return the points from an instant on, as if everything stood still from now on.

        Args:
            since: The first point is the one that this is in.
            now: Until when to count.
            vcs: Only the jobs of these virtual clusters; None: of all.
        """
        summed = self._summed(_point(since), now, vcs)
        return [_told(point, tally) for point, tally in summed]

    def sums(self, since: int, now: int) -> dict[str, Tally]:
        """Return what the jobs of each virtual cluster come to since an instant; as `shown`."""
        found: dict[str, Tally] = {}
        first = _point(since)
        for at, point in self.points.items():
            for name, tally in point.vcs.items() if at >= first else ():
                found.setdefault(name, Tally()).add(tally)
        for name, counts in self._vcs.items() if self.counted else ():
            length = max(0, now - max(counts.since, first))
            counts.put(found.setdefault(name, Tally()), length)
        return found

    # --- counting --------------------------------------------------------------------------------

    def _summed(
        self, first: int, now: int, vcs: Sequence[str] | None
    ) -> Iterator[tuple[Point, Tally]]:
        chosen = [name for name in self._vcs if vcs is None or name in vcs]
        open_at = _point(self._gpus_since)
        last = _point(now) if self.at and self.counted else -1
        for at in sorted({*self.points, *range(max(first, open_at), last + 1, STEP)}):
            if at < first:
                continue
            known = self.points.get(at)
            point = Point(at, known.covered_ns, dict(known.gpus)) if known else Point(at)
            whole = Tally()
            for name, tally in known.vcs.items() if known else ():
                if vcs is None or name in vcs:
                    whole.add(tally)
            if self.counted:
                point.pass_nodes(self._gpus, _overlap(at, self._gpus_since, now))
                for name in chosen:
                    counts = self._vcs[name]
                    counts.put(whole, _overlap(at, counts.since, now))
            yield point, whole

    def _job(self, state: ClusterState, name: str) -> Stands | None:
        """Count a job as it stands now; None: it counts as nothing."""
        before, job = self._jobs.get(name), state.jobs.get(name)
        after = stands_of(job) if job is not None else None
        if before == after:
            return after
        for stands, sign in ((before, -1), (after, 1)):
            if stands is None:
                continue
            counts = self._vcs.get(stands.vc)
            if counts is None:
                counts = self._vcs[stands.vc] = Counts(self.at)
            self._pass(stands.vc)
            counts.move(stands, sign)
            if not counts.any:
                del self._vcs[stands.vc]
        if after is None:
            self._jobs.pop(name, None)
        else:
            self._jobs[name] = after
        return after

    def _node(self, state: ClusterState, name: str) -> None:
        node = state.nodes.get(name)
        before = self._nodes.get(name, {})
        after = count_gpus(node) if node is not None else {}
        if before == after:
            return
        self._pass_nodes()
        for counts, sign in ((before, -1), (after, 1)):
            for each, count in counts.items():
                self._gpus[each] += sign * count
        self._nodes[name] = after

    def _started(self, job: JobState | None) -> None:
        if job is None:
            return
        tally = self._now(job.spec.vc)
        bucket = bucket_of(self.at - job.waiting_since)
        tally.started += 1
        tally.waits[bucket] = tally.waits.get(bucket, 0) + 1

    def _ended(self, state: ClusterState, fact: JobEnded) -> None:
        ended = state.ends.get(fact.job)
        vc = getattr(ended, "vc", "")
        if vc:
            tally, kind = self._now(vc), str(fact.end.value)
            setattr(tally, kind, getattr(tally, kind) + 1)

    def _now(self, vc: str) -> Tally:
        return self._at(_point(self.at)).of(vc)

    def _at(self, at: int) -> Point:
        point = self.points.get(at)
        if point is None:
            point = self.points[at] = Point(at)
            oldest = max(self.points) - POINTS_MAX * STEP
            for old in [each for each in self.points if each <= oldest]:
                del self.points[old]
        self._dirty[at] = None
        return point

    def _pass(self, vc: str) -> None:
        """Add the time since a virtual cluster changed last."""
        counts = self._vcs[vc]
        if counts.any:
            for at, length in _parts(max(counts.since, self._oldest()), self.at):
                counts.put(self._at(at).of(vc), length)
        counts.since = max(counts.since, self.at)

    def _pass_nodes(self) -> None:
        """Add the time since the nodes changed last."""
        for at, length in _parts(max(self._gpus_since, self._oldest()), self.at):
            self._at(at).pass_nodes(self._gpus, length)
        self._gpus_since = max(self._gpus_since, self.at)

    def _oldest(self) -> int:
        return _point(self.at) - (POINTS_MAX - 1) * STEP


def gpu_states(node: NodeState) -> dict[int, str]:
    """Return in which of GPU_STATES each GPU of a node is, by its index."""
    held = {device for each in node.holdings.values() for device in each.devices}
    return {gpu.index: _gpu_state(node, gpu.index, gpu.index in held) for gpu in node.joined.gpus}


def count_gpus(node: NodeState) -> dict[str, int]:
    """Return how many GPUs of a node are in which state."""
    counts: dict[str, int] = {}
    for state in gpu_states(node).values():
        counts[state] = counts.get(state, 0) + 1
    return counts


def _gpu_state(node: NodeState, index: int, held: bool) -> str:
    if node.lost:
        return "lost"
    if index in node.quarantined:
        return "bad"
    if held:
        return "held"
    return "free" if node.usable else "drained"


def nodes_of(fact: Any) -> list[str]:
    """Return the nodes that a fact names."""
    found = []
    if node := getattr(fact, "node", ""):
        found.append(str(node))
    if joined := getattr(fact, "joined", None):
        found.append(str(joined.node))
    members = getattr(fact, "members", ())
    return found + [str(node) for each in members if (node := getattr(each, "node", ""))]


def stands_of(job: JobState) -> Stands | None:
    """Return what a job counts as; None: it neither waits for GPUs nor holds any."""
    vc = job.spec.vc
    if job.state in (State.QUEUED, State.RESERVED):
        return Stands(vc, True, 0, False, ())
    if job.state is State.DEFERRED:
        return None
    nodes = tuple(job.members)
    if job.released:
        return Stands(vc, False, 0, False, nodes)
    held = sum(len(devices) for one in job.members.values() for devices in one.devices)
    return Stands(vc, False, held, job.state is State.RUNNING, nodes)


def bucket_of(wait_ns: int) -> int:
    """Return which bucket a wait is in: each doubling of milliseconds has PARTS of them."""
    wait_ms = max(0, wait_ns) // MS
    if wait_ms < PARTS:
        return wait_ms
    shift = wait_ms.bit_length() - PARTS.bit_length()
    return (shift + 1) * PARTS + (wait_ms >> shift) - PARTS


def wait_of(bucket: int) -> float:
    """Return the middle of a bucket (seconds)."""
    if bucket < PARTS:
        return bucket / 1000
    shift, part = bucket // PARTS - 1, bucket % PARTS
    return ((PARTS + part) * 2 + 1) * (1 << shift) / 2000


def quantile(waits: dict[int, int], percent: int) -> float | None:
    """Return within which wait so many per cent of the jobs started (seconds); None: none did."""
    count = sum(waits.values())
    rank = -(-count * percent // 100)
    for bucket in sorted(waits):
        rank -= waits[bucket]
        if rank <= 0:
            return wait_of(bucket)
    return None


def useful(tally: Tally) -> int | None:
    """Return the part of the GPU time held that was trained and not lost (thousandths)."""
    if tally.held_ns <= 0:
        return None
    return max(0, tally.trained_ns - tally.lost_ns) * 1000 // tally.held_ns


def _told(point: Point, tally: Tally) -> Told:
    length = max(point.covered_ns, 1)
    return Told(
        at=point.at,
        gpus={state: round(point.gpus.get(state, 0) / length, 2) for state in GPU_STATES},
        training=round(tally.trained_ns / length, 2),
        useful=useful(tally),
        waiting=round(tally.waited_ns / length, 2),
        started=tally.started,
        waited_p50_s=quantile(tally.waits, 50),
        waited_p90_s=quantile(tally.waits, 90),
        succeeded=tally.succeeded,
        failed=tally.failed,
        cancelled=tally.cancelled,
        used=round(tally.held_ns / length, 2),
    )


def _point(at: int) -> int:
    return at // STEP * STEP


def _overlap(at: int, begin: int, end: int) -> int:
    """Return how much of the point at `at` is between two instants."""
    return max(0, min(at + STEP, end) - max(at, begin))


def _parts(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the points between two instants, with how much of each that is."""
    at = _point(begin)
    while at < end:
        length = _overlap(at, begin, end)
        if length:
            yield at, length
        at += STEP
