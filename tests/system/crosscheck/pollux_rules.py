"""Tiresias and Optimus as Pollux's simulator has them, carried out by Skep's machines.

Facts are from reading petuum/adaptdl, branch osdi21-artifact (simulator/tiresias.py, optimus.py).
A policy keeps what was chosen at a tick while its machines carry it out, which a policy must not:
this serves the cross-check alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from skep.policy.api import Policy
from skep.policy.plan import Plan, Preempt, Turn
from skep.policy.shares import Choice, share_out
from skep.policy.view import HOLDING, QUEUED, STOPPABLE, JobView, Phase, VcView
from skep.units import NS_PER_SECOND, Instant
from skep.wire.reasons import Reason
from skep_lab.workloads.pollux import ONE_GPU
from tests.system.crosscheck.pollux_jobs import NODE_GPUS, NODES, TICK_S, Application, Batch, Epochs

Share = dict[str, int]
"""GPUs of a job by node, in the order in which it took the nodes."""
LIMIT_GPU_S = 57_600


class Book:
    """What is kept from one plan to the next: what each job is to have, and the peer's lists."""

    def __init__(self) -> None:
        """Begin with no job."""
        self.at = Instant(-1)
        self.wanted: dict[str, Share] = {}
        self.elsewhere = 0
        """How often the cells chose other GPUs on the nodes of a turn than the peer does."""
        self.first: list[str] = []
        self.second: list[str] = []
        """The two queues of Tiresias."""
        self.runs: dict[str, bool] = {}
        self.executed: dict[str, int] = {}
        self.works: Mapping[str, Any] = {}


class AtTicks(Policy, frozen=True):
    """Chooses at each tick which GPUs each job has. A job with other GPUs starts anew."""

    book: ClassVar[Book] = Book()

    @property
    def sees_nodes(self) -> bool:
        """Return True."""
        return True

    def plan(self, view: VcView) -> Plan:
        """Return what is still to be done of that which was chosen at this tick."""
        book = AtTicks.book
        if book.at != view.now:
            book.at = view.now
            held = {job.job: dict(job.nodes) for job in view.jobs if job.phase in HOLDING}
            book.wanted = self.choose(view, held)
        free = {node.node: node.free for node in view.nodes}
        turns, stops, jobs = [], [], {job.job: job for job in view.jobs}
        for job in view.jobs:
            share = book.wanted.get(job.job, {})
            if job.phase in HOLDING and dict(job.nodes) != share:
                began = job.since == view.now and job.phase is Phase.RUNNING
                if share and (began or job.phase is Phase.STARTING):
                    book.elsewhere += 1
                    book.wanted[job.job] = dict(job.nodes)
                elif job.phase in STOPPABLE:
                    stops.append(Preempt(job.job, Reason.OUTRANKED))
        leaves = bool(stops) or any(job.phase is Phase.STOPPING for job in view.jobs)
        for name, share in book.wanted.items() if not leaves else ():
            if share and jobs[name].phase in QUEUED:
                if any(free[node] < gpus for node, gpus in share.items()):
                    break
                for node, gpus in share.items():
                    free[node] -= gpus
                workers = sum(share.values()) if jobs[name].spec.elastic else 0
                turns.append(Turn(name, Reason.ARRIVAL, tuple(share), workers))
        tick = TICK_S * NS_PER_SECOND
        return Plan(
            turns=tuple(turns),
            strict=False,
            actions=tuple(stops),
            look_at=Instant((view.now // tick + 1) * tick),
        )

    def choose(self, view: VcView, held: Mapping[str, Share]) -> dict[str, Share]:
        """Return the GPUs of each job from this tick on.

        Args:
            view: The VC.
            held: The GPUs of each job that has some.
        """
        raise NotImplementedError


def free_gpus(view: VcView, kept: dict[str, Share]) -> dict[str, int]:
    """Return how many GPUs each node has left, in the order of the nodes' numbers.

    Args:
        view: The VC.
        kept: The GPUs of jobs that stay.
    """
    nodes = sorted(view.nodes, key=lambda node: int(node.node.rpartition("-")[2]))
    free = {node.node: NODE_GPUS for node in nodes}
    for share in kept.values():
        for node, gpus in share.items():
            free[node] -= gpus
    return free


def most_free(
    view: VcView, kept: dict[str, Share], wanted: Iterable[tuple[str, int]]
) -> dict[str, Share]:
    """Return the GPUs of all jobs: each takes the node with the most free ones, again and again.

    Args:
        view: The VC.
        kept: The GPUs of jobs that stay.
        wanted: The other jobs in order, and how many GPUs each gets.
    """
    free = free_gpus(view, kept)
    found = dict(kept)
    for job, gpus in wanted:
        share = found[job] = {}
        left = gpus
        while left:
            node = max(free, key=lambda name: free[name])
            share[node] = min(free[node], left)
            free[node] -= share[node]
            left -= share[node]
    return found


class Tiresias(AtTicks, frozen=True):
    """Two queues that are lists, by GPU time; the first jobs in them run, running or not."""

    name: ClassVar[str] = "pollux-tiresias"
    source: ClassVar[str] = "petuum/adaptdl, osdi21-artifact, simulator/tiresias.py"

    def choose(self, view: VcView, held: Mapping[str, Share]) -> dict[str, Share]:
        """Return which jobs run: those that have GPUs keep them."""
        book, jobs = AtTicks.book, {job.job: job for job in view.jobs}
        first = [name for name in book.first if name in jobs]
        second = [name for name in book.second if name in jobs]
        for name, job in jobs.items():
            if name not in book.runs:
                book.runs[name], book.executed[name] = False, 0
                first.append(name)
            elif book.runs[name]:
                book.executed[name] += TICK_S
                if name in first and book.executed[name] * job.gpus >= LIMIT_GPU_S:
                    first.remove(name)
                    second.append(name)
        book.first, book.second = first, second
        left = sum(node.gpus for node in view.nodes)
        for name in (*first, *second):
            book.runs[name] = jobs[name].gpus <= left
            left -= jobs[name].gpus if book.runs[name] else 0
        kept = {name: share for name, share in held.items() if book.runs[name]}
        placed = [
            (name, jobs[name].gpus)
            for name in (*first, *second)
            if book.runs[name] and name not in kept
        ]
        return most_free(view, kept, placed)


class Optimus(AtTicks, frozen=True):
    """Optimus that knows the mini-batches that are left, and how long each takes."""

    name: ClassVar[str] = "pollux-optimus"
    source: ClassVar[str] = "petuum/adaptdl, osdi21-artifact, simulator/optimus.py"

    def choose(self, view: VcView, held: Mapping[str, Share]) -> dict[str, Share]:
        """Return the GPUs of all jobs; a job with another number than before is placed anew."""
        shares = self._shares(view)
        kept = {name: share for name, share in held.items() if sum(share.values()) == shares[name]}
        order = sorted(shares, key=lambda name: shares[name])
        placed = [(name, shares[name]) for name in order if shares[name] and name not in kept]
        return most_free(view, kept, placed)

    def _shares(self, view: VcView) -> dict[str, int]:
        """Return by job how many GPUs it is to have, those that came first first."""
        left = sum(node.gpus for node in view.nodes)
        shares, gains = dict[str, int](), dict[str, float]()
        for job in view.jobs:
            shares[job.job] = min(left, 1)
            left -= shares[job.job]
            gains[job.job] = self._gain(job, 1, view.now) if left and shares[job.job] else 0.0
        while left > 0 and max(gains.values(), default=0.0) > 0:
            best = max(gains, key=lambda name: gains[name])
            shares[best] += 1
            left -= 1
            job = next(job for job in view.jobs if job.job == best)
            gains[best] = self._gain(job, shares[best], view.now)
        return shares

    def _gain(self, job: JobView, gpus: int, now: Instant) -> float:
        """Return the seconds that one GPU more saves."""
        work: Epochs = AtTicks.book.works[job.job]
        app: Application = work.app
        most = 1 if app.name in ONE_GPU else work.job.batch_size // app.least_each
        if gpus + 1 > most:
            return 0.0
        work.advance(now, 0)
        last = app.epochs - 1
        left = 1.0
        if work.epoch < last:
            left = app.iterations(work.job.batch_size, last) - app.iterations(
                work.job.batch_size, work.epoch
            )
        batch_size = work.job.batch_size
        return (step_s(app, batch_size, gpus) - step_s(app, batch_size, gpus + 1)) * left


class Oracle(AtTicks, frozen=True):
    """Pollux that knows each job's goodput, and finds sizes without chance."""

    name: ClassVar[str] = "pollux-oracle"
    source: ClassVar[str] = "petuum/adaptdl, osdi21-artifact, simulator/pollux.py"

    def choose(self, view: VcView, held: Mapping[str, Share]) -> dict[str, Share]:
        """Return the GPUs of all jobs; a job with another number than before is placed anew."""
        book, gpus = AtTicks.book, sum(node.gpus for node in view.nodes)
        fair = -(-gpus // max(len(view.jobs), 1))
        choices = {}
        for job in view.jobs:
            has = sum(held.get(job.job, {}).values())
            if has:
                book.executed[job.job] = max(book.executed.get(job.job, 0), has)
            choices[job.job] = self._choices(job, has, fair, view.now)
        order = sorted(view.jobs, key=lambda job: not held.get(job.job))
        sizes = share_out(order, choices, gpus, strict=False)
        shares = {job.job: sizes[job.job].gpus if job.job in sizes else 0 for job in view.jobs}
        kept = {name: share for name, share in held.items() if sum(share.values()) == shares[name]}
        placed = [(name, size) for name, size in shares.items() if size and name not in kept]
        return closest(view, kept, sorted(placed, key=lambda each: -each[1]))

    def _choices(self, job: JobView, has: int, fair: int, now: Instant) -> list[Choice]:
        book = AtTicks.book
        work: Epochs = book.works[job.job]
        app, known = work.app, book.executed.get(job.job, 0)
        most = min(max(2 * known, 1), app.most // app.least_each, NODES * NODE_GPUS)
        if app.name in ONE_GPU:
            most = 1
        work.advance(now, 0)
        epoch = min(work.epoch, app.epochs - 1)  # It may have ended at this very tick.
        age = (now - job.submitted_at) / NS_PER_SECOND
        stays = max(age - max(job.starts - 1, 0) * 30, 0.0) / (age + 30)

        def speed(gpus: int) -> float:
            return work.goodput(together(gpus), epoch) if known else float(gpus)

        least = min(fair, app.most // app.least_each) if app.name not in ONE_GPU else 1
        equal = speed(least)
        found = []
        for gpus in range(1, most + 1):
            speedup = speed(gpus) / equal * (stays if gpus != has else 1.0)
            found.append(Choice(gpus, gpus, -1 / (speedup / NODE_GPUS + 1e-3)))
        return found


def together(gpus: int) -> tuple[int, ...]:
    """Return the placement on as few nodes as possible."""
    full, rest = divmod(gpus, NODE_GPUS)
    return (NODE_GPUS,) * full + ((rest,) if rest else ())


def closest(
    view: VcView, kept: dict[str, Share], wanted: Iterable[tuple[str, int]]
) -> dict[str, Share]:
    """Return the GPUs of all jobs: each is on the fullest node that holds it, else on the emptiest.

    Args:
        view: The VC.
        kept: The GPUs of jobs that stay.
        wanted: The other jobs in order, and how many GPUs each gets.
    """
    free = free_gpus(view, kept)
    found = dict(kept)
    for job, gpus in wanted:
        share, left = found.setdefault(job, {}), gpus
        while left:
            whole = [node for node in free if free[node] >= min(left, NODE_GPUS)]
            node = (
                min(whole, key=lambda name: free[name])
                if whole
                else max(free, key=lambda name: free[name])
            )
            share[node] = min(free[node], left)
            free[node] -= share[node]
            left -= share[node]
    return found


def step_s(app: Application, batch_size: int, gpus: int) -> float:
    """Return what Optimus thinks that a mini-batch takes: on as few nodes as possible.

    A single GPU is thought to make two steps of it, whatever the batch size.

    Args:
        app: The application.
        batch_size: That of the gang.
        gpus: Its GPUs.
    """
    each = math.ceil(batch_size / gpus - 1e-8)
    more = math.ceil(each / app.most_each - 1e-8) - 1
    if gpus == 1:
        more = max(1, more)
    batch = app.capped(Batch(math.ceil(each / (more + 1) - 1e-8), more), gpus)
    step = app.step(together(gpus), batch.each)
    return step.step_s + (step.step_s - step.sync_s) * more


def begin() -> dict[str, type[Policy]]:
    """Forget everything that is kept, and return the policies of this file."""
    AtTicks.book = Book()
    return {each.name: each for each in (Tiresias, Optimus, Oracle)}
