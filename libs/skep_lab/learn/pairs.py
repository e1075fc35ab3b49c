"""What a scheduler saw and what it did, as pairs to learn from: (rows of a VC, moves).

    plans as they are made (live ones decided again, or simulated) --> Recorder --> Pairs

A pair has the rows of a VC's jobs and of its cells before a plan (`skep.learn.columns`), and the
moves that followed from the plan at once, in order. A pair without moves says that nothing more was
to be done. Rows that are equal are stored once: a job that waits is the same in many plans.

What is not the policy's own choice is marked. Policies of Skep are deterministic, so a move has
propensity 1; that of a queue, too. Where a VC explores it is that of what was drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntFlag
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from skep.learn import columns as c
from skep.learn.candidates import GROW, LOCAL, SHRINK, SPREAD, Candidates, candidates
from skep.learn.features import times
from skep.learn.scene import Scene
from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.policies.policy_memory import Planned
from skep.machines.allocator.policies.policy_views import of_job, of_vc
from skep.machines.allocator.transaction import Transaction
from skep.machines.base import Effect, Record
from skep.policy.exploring import WHOLE
from skep.policy.plan import Plan, Turn
from skep.policy.schedulers.fifo import Fifo
from skep.policy.sight import sight_of
from skep.policy.view import QUEUED, JobView, Phase, VcView
from skep.units import Instant
from skep.wire.changes import Goal, JobChanging
from skep.wire.commands import Resize
from skep.wire.facts import CellsReserved, JobBound, JobPromoted, JobStopping, ReservationDropped
from skep.wire.learned import SCHEMA
from skep.wire.member import Member
from skep.wire.moves import SuccessorBound

NO_CHOICE = -1
"""Of a move that no candidate stands for: to move, suspend or stop a job, or an odd size."""
VERSION = 1
CERTAIN = 1.0
PAIRS_MAX = 1_000_000


class Mark(IntFlag):
    """Why a pair, or a move of it, is not what the policy chose."""

    FALLBACK = 1
    """The policy's rule planned, and not its model."""
    DIFFERS = 2
    """The log has other facts than the machine comes to now."""
    CELLS = 4
    """The cells did not allow what was planned: it was placed elsewhere, or not at all."""
    PERSON = 8
    """A tenant or an operator undid it: the job was cancelled, suspended or moved on request."""
    NO_POLICY = 16
    """The VC has a queue and no policy."""
    NO_CANDIDATE = 32
    """It is a move that a model of Skep's cannot make."""


class Move(NamedTuple):
    """One thing that was done."""

    job: int
    """Its row in the pair."""
    choice: int
    """Which of its candidates (`skep.learn.candidates`); NO_CHOICE: none of them."""
    workers: int
    mark: Mark = Mark(0)


class Pair(NamedTuple):
    """What was seen at one plan, and what followed."""

    vc: str
    at: float
    """Seconds since 1970, or since the trace began."""
    raw: NDArray[np.float64]
    """Rows of the jobs."""
    cluster: NDArray[np.float64]
    moves: tuple[Move, ...]
    mark: Mark
    propensity: float


class Pairs(NamedTuple):
    """Many pairs, as arrays that can be stored."""

    rows: NDArray[np.float64]
    """Each row of a job that there is, once."""
    row: NDArray[np.int32]
    """Of every pair the rows of its jobs, one pair after the other."""
    first: NDArray[np.int64]
    """Where the rows of a pair begin, and at the end where the last ones end."""
    cluster: NDArray[np.float64]
    at: NDArray[np.float64]
    vc: NDArray[np.int32]
    """Which of the names in `about["vcs"]`."""
    mark: NDArray[np.uint8]
    propensity: NDArray[np.float32]
    first_move: NDArray[np.int64]
    moves: NDArray[np.int32]
    """Job, choice, workers and mark of each move."""
    about: dict[str, Any]
    """Where they are from; `schema` and `version` say what the numbers mean."""

    @property
    def size(self) -> int:
        """Return how many pairs there are."""
        return len(self.at)

    def pair(self, place: int) -> Pair:
        """Return one pair.

        Args:
            place: Its number, from 0.
        """
        rows = self.row[self.first[place] : self.first[place + 1]]
        moves = self.moves[self.first_move[place] : self.first_move[place + 1]]
        return Pair(
            self.about["vcs"][self.vc[place]],
            float(self.at[place]),
            self.rows[rows],
            self.cluster[place],
            tuple(Move(int(m[0]), int(m[1]), int(m[2]), Mark(int(m[3]))) for m in moves),
            Mark(int(self.mark[place])),
            float(self.propensity[place]),
        )

    def clean(self, but: Mark = Mark.NO_POLICY) -> NDArray[np.int64]:
        """Return which pairs are wholly a scheduler's own choice.

        Args:
            but: Marks that do not matter.
        """
        moved = np.repeat(np.arange(self.size), np.diff(self.first_move))
        marked = np.zeros(self.size, dtype=np.int64)
        np.bitwise_or.at(marked, moved, self.moves[:, 3].astype(np.int64))
        marked |= self.mark
        found: NDArray[np.int64] = np.flatnonzero(marked & ~int(but) & 0xFF == 0)
        return found


class Recorder:
    """Takes plans as they are made: a `Witness` of the allocator."""

    def __init__(self, pairs_max: int = PAIRS_MAX) -> None:
        """Begin without pairs.

        Args:
            pairs_max: After so many, no more are taken.
        """
        self.plans = 0
        """Plans that were seen, also those at which nothing could be done."""
        self._most = pairs_max
        self._scenes: dict[str, Scene] = {}
        self._vcs: dict[str, int] = {}
        self._unique: dict[bytes, int] = {}
        self._rows: list[NDArray[np.float64]] = []
        self._row: list[int] = []
        self._first = [0]
        self._clusters: list[NDArray[np.float64]] = []
        self._at: list[Instant] = []
        self._vc: list[int] = []
        self._mark: list[int] = []
        self._propensity: list[float] = []
        self._first_move = [0]
        self._moves: list[list[int]] = []
        self._reserved: dict[str, None] = {}
        """Jobs of queues that have claimed GPUs: to bind them is no second choice."""
        self._latest: dict[str, list[int]] = {}
        """By job, the number of each move of it."""

    def __call__(self, view: VcView, plan: Plan, effects: Sequence[Effect]) -> None:
        """Take a plan, and what came of it."""
        facts = [each.fact for each in effects if isinstance(each, Record)]
        following = getattr(plan, "following", None)
        mark = Mark(0) if following is None or following.model else Mark.FALLBACK
        drawn = getattr(following, "drawn", None)
        propensity = CERTAIN if drawn is None else drawn.chance / WHOLE
        self.take(view, facts, mark, {turn.job: turn for turn in plan.turns}, propensity)

    def queues(self, machine: Any, effects: Sequence[Effect], now: Instant) -> None:
        """Take what an allocator's queues did in a decision: those of VCs without a policy.

        What they saw before is what they see now, without what they have just done.

        Args:
            machine: The allocator after the decision; other machines have no queues.
            effects: What followed.
            now: The time of the decision.
        """
        if not isinstance(machine, AllocatorMachine):
            return
        tx, done = machine.tx, dict[str, list[JobBound | CellsReserved]]()
        for each in effects:
            fact = each.fact if isinstance(each, Record) else None
            if isinstance(fact, ReservationDropped):
                self._reserved.pop(fact.job, None)
            if not isinstance(fact, JobBound | CellsReserved) or _borrows(fact.members):
                continue
            if fact.job in self._reserved:
                del self._reserved[fact.job]
                continue
            if isinstance(fact, CellsReserved):
                self._reserved[fact.job] = None
            job = tx.state.jobs.get(fact.job)
            if job is None or job.spec.opportunistic or job.spec.vc in tx.soft.planned:
                continue
            done.setdefault(job.spec.vc, []).append(fact)
        for vc, facts in done.items():
            self.take(_before(tx, vc, facts, now), facts, Mark.NO_POLICY, {})

    def take(
        self,
        view: VcView,
        facts: Iterable[Any],
        mark: Mark,
        turns: Mapping[str, Turn],
        propensity: float = CERTAIN,
    ) -> None:
        """Take what was seen, and the facts that followed.

        Args:
            view: The VC before, with its nodes.
            facts: What followed, in order.
            mark: Of the pair.
            turns: What was planned for waiting jobs.
            propensity: How likely it was that this was done.
        """
        self.plans += 1
        if len(self._at) >= self._most:
            return
        scene = self._scenes.setdefault(view.vc, Scene())
        scene.follow(sight_of(view, max(scene.number, 0)))
        if not scene.names:
            return
        now, names = view.now / 1e9, {name: row for row, name in enumerate(scene.names)}
        raw, cluster = scene.raw, scene.cluster(now, times(scene.raw, now))
        there = candidates(raw, cluster, now)
        moved = [each for fact in facts if (each := self._move(view, fact, names, turns, there))]
        possible = np.atleast_1d(there.possible.any(-1))
        if not moved and not possible.any():
            return  # Nothing could be done, so that nothing was says nothing.
        for name, move in moved:
            self._latest.setdefault(name, []).append(len(self._moves))
            self._moves.append([move.job, move.choice, move.workers, int(move.mark)])
        placed = {name for name, _ in moved}
        before = takewhile(lambda name: name not in placed, turns if placed else ())
        if any(name in names and possible[names[name]] for name in before):
            mark |= Mark.CELLS  # A job before it had a turn, and found no room after all.
        self._first_move.append(len(self._moves))
        self._row += [self._unique_row(each) for each in raw]
        self._first.append(len(self._row))
        self._clusters.append(cluster)
        self._at.append(view.now)
        self._vc.append(self._vcs.setdefault(view.vc, len(self._vcs)))
        self._mark.append(int(mark))
        self._propensity.append(propensity)

    def _unique_row(self, row: NDArray[np.float64]) -> int:
        key = row.tobytes()
        known = self._unique.get(key)
        if known is None:
            known = self._unique[key] = len(self._rows)
            self._rows.append(row.copy())
        return known

    def _move(
        self,
        view: VcView,
        fact: Any,
        names: Mapping[str, int],
        turns: Mapping[str, Turn],
        there: Candidates,
    ) -> tuple[str, Move] | None:
        """Return the job of a fact and what was done to it; None: nothing that a plan asks for."""
        name: str = getattr(fact, "job", "")
        if name not in names:
            return None
        row = names[name]
        done = _done(view, fact, name)
        if done is None:
            return None
        kind, workers, nodes = done
        mark = Mark(0)
        turn = turns.get(name)
        if turn is not None and turn.nodes and nodes and not nodes <= set(turn.nodes):
            mark |= Mark.CELLS
        choice = NO_CHOICE if kind is None else _choice(there, row, kind, workers)
        return name, Move(row, choice, workers, mark | (Mark.NO_CANDIDATE * (choice < 0)))

    def undone(self, job: str, at: Instant) -> None:
        """Mark the latest move of a job before a time: a person undid it.

        Args:
            job: The job.
            at: When the person asked.
        """
        times = np.asarray(self._at)
        for number in reversed(self._latest.get(job, ())):
            pair = int(np.searchsorted(self._first_move, number, side="right")) - 1
            if times[pair] <= at:
                self._moves[number][3] |= int(Mark.PERSON)
                return

    def differs(self, at: Instant) -> None:
        """Mark the pairs of a time: the log has other facts than they."""
        for place in np.flatnonzero(np.asarray(self._at) == at):
            self._mark[place] |= int(Mark.DIFFERS)

    def pairs(self, about: Mapping[str, Any]) -> Pairs:
        """Return all pairs.

        Args:
            about: Where they are from.
        """
        rows = np.array(self._rows, dtype=np.float64).reshape(-1, c.RAW)
        return Pairs(
            rows,
            np.array(self._row, dtype=np.int32),
            np.array(self._first, dtype=np.int64),
            np.array(self._clusters, dtype=np.float64).reshape(-1, c.CLUSTER),
            np.array(self._at, dtype=np.float64) / 1e9,
            np.array(self._vc, dtype=np.int32),
            np.array(self._mark, dtype=np.uint8),
            np.array(self._propensity, dtype=np.float32),
            np.array(self._first_move, dtype=np.int64),
            np.array(self._moves, dtype=np.int32).reshape(-1, 4),
            {
                **about,
                "version": VERSION,
                "schema": SCHEMA,
                "vcs": list(self._vcs),
                "plans": self.plans,
            },
        )


def _before(
    tx: Transaction, vc: str, facts: Sequence[JobBound | CellsReserved], now: Instant
) -> VcView:
    """Return a VC without a policy as it was before its queue placed jobs."""
    placed = {fact.job: fact for fact in facts}
    room: dict[str, int] = {}
    for fact in facts:
        for member in fact.members:
            room[member.node] = room.get(member.node, 0) + sum(map(len, member.devices))
    seen = of_vc(tx, Planned(vc, Fifo()), now)
    jobs = []
    for job in tx.state.jobs.values():
        if job.spec.vc != vc or job.spec.opportunistic:
            continue
        view = of_job(tx, job)
        if view is not None and job.job in placed:
            view = _waiting(view)
        if view is not None:
            jobs.append(view)
    nodes = tuple(
        replace(node, free=min(node.free + room.get(node.node, 0), node.gpus))
        for node in seen.nodes
    )
    free = min(seen.free + sum(room.values()), seen.gpus)
    return replace(seen, jobs=tuple(jobs), nodes=nodes, free=free)


def _borrows(members: Sequence[Member]) -> bool:
    """Return whether a gang got idle GPUs, at least in part, and not its VC's."""
    return not all(each.levels and all(each.levels) for each in members)


def _waiting(view: JobView) -> JobView:
    """Return a job as it was before it was placed."""
    workers = view.spec.resources.workers
    since = view.waiting_since or view.submitted_at
    return replace(
        view,
        phase=Phase.WAITING,
        nodes=(),
        devices=(),
        chain="",
        borrows=False,
        workers=workers,
        gpus=workers * view.spec.resources.gpus,
        since=since,
    )


def _done(view: VcView, fact: Any, name: str) -> tuple[int | None, int, set[str]] | None:
    """Return what a fact does: the kind of candidate (None: none), workers, nodes if known."""
    job = next(each for each in view.jobs if each.job == name)
    match fact:
        case JobBound() | CellsReserved():
            workers, nodes = _size(fact.members), {each.node for each in fact.members}
            return _placed(view, job.spec.resources.gpus, workers, len(nodes)), workers, nodes
        case JobPromoted():
            nodes = {node for node, _ in job.nodes}
            return LOCAL, job.workers, nodes
        case JobChanging(goal=Goal.RESUME) if job.phase in QUEUED:
            kind = _placed(view, job.spec.resources.gpus, job.workers, max(len(job.nodes), 1))
            return kind, job.workers, set(fact.nodes)
        case JobChanging(goal=Goal.RESIZE, change=Resize(world=world)):
            return GROW if world > job.workers else SHRINK, world, set()
        case JobChanging(goal=Goal.SUSPEND | Goal.CHECKPOINT) | JobStopping() | SuccessorBound():
            return None, job.workers, set()
        case _:
            return None


def _size(members: Sequence[Member]) -> int:
    return sum(len(each.devices) for each in members)


def _placed(view: VcView, each: int, workers: int, nodes: int) -> int:
    """Return the kind of a placement: on as few nodes as it needs, or spread."""
    needed = -(-workers // max(view.node_gpus // max(each, 1), 1))
    return LOCAL if nodes <= needed else SPREAD


def _choice(there: Candidates, row: int, kind: int, workers: int) -> int:
    """Return which candidate of a job it is; NO_CHOICE: none of them."""
    same = np.flatnonzero((there.workers[row] == workers) & (there.kind[row] == kind))
    return int(same[0]) if len(same) else NO_CHOICE
