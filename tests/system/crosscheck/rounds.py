"""Gavel's scheduler in rounds of 360 s, told from its published code; and a bare loop around it.

An allocation says which part of the time a job should have on each type of GPU; in every round,
who is furthest behind his comes first. The loop has to give Gavel's published numbers; the policy
`gavel-rounds` (`crosscheck_gavel`) has the same book carried out by the production machines. Times
are seconds, jobs are numbers in the order of arrival. Facts about their behaviour are from reading
stanford-futuredata/gavel (scheduler/scheduler.py, policies/fifo.py, policies/max_min_fairness.py).
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

TYPES = ("v100", "p100", "k80")
GPUS = 36
"""Of each type."""
ROUND_S = 360
RESET_S = 1920
"""The soonest that shares are reckoned anew, however many jobs have come or gone."""
SHUFFLE_SEED, DRAW_SEED = 5, 0

Kind = tuple[str, int]
"""Model and GPUs."""
Rates = Mapping[str, Mapping[Kind, float]]
"""Mini-batches per second by type of GPU."""
Share = dict[int, dict[str, float]]
"""Which part of the time each job is to have on each type."""
Shares = Callable[[Mapping[int, Kind], Rates], Share]


class Stint(NamedTuple):
    """What a job does in a round: whole mini-batches."""

    gpu: str
    steps: int
    span: float


class Book:
    """What Gavel's scheduler keeps from round to round."""

    def __init__(self, rates: Rates, shares: Shares, *, only_shared: bool) -> None:
        """Begin with nobody; `only_shared`: who has no share on a type never runs on it."""
        self.rates, self.shares, self.only_shared = rates, shares, only_shared
        self.here: dict[int, Kind] = {}
        self.left: dict[int, int] = {}
        self.share: Share = {}
        self.had: dict[int, dict[str, float]] = {}
        self.behind: dict[int, dict[str, float]] = {}
        self.all = dict.fromkeys(TYPES, 0.0)
        self.stints: dict[int, Stint] = {}
        self.began = self.over = 0.0
        """When the round began, and when the one before it was over: they differ after a pause."""
        self._stale, self._reset_at = True, 0.0
        self._shuffler = random.Random(SHUFFLE_SEED)

    def come(self, job: int, kind: Kind, steps: int) -> None:
        """Take a job in; to be called between rounds."""
        self.here[job], self.left[job] = kind, steps
        self.had[job] = dict.fromkeys(TYPES, ROUND_S / 2)
        self.behind[job] = dict.fromkeys(TYPES, 0.0)
        self._stale = True

    def ends_at(self) -> float:
        """Return when the round is over: with the last of its stints."""
        return max(self.began + stint.span for stint in self.stints.values())

    def close(self) -> dict[int, float]:
        """End the round; return who is done with it all, and when."""
        done: dict[int, float] = {}
        over = self.ends_at()
        for job, (gpu, steps, span) in sorted(
            self.stints.items(), key=lambda each: (-(self.began + each[1].span), each[0])
        ):
            # A slip of theirs: a pause before the round counts as time that its jobs had.
            spent = self.began + span - self.over
            self.left[job] -= steps
            self.had[job][gpu] += spent
            self.all[gpu] += spent
            if self.left[job] <= 0:
                done[job] = self.began + span
                for kept in (self.here, self.left, self.had, self.behind):
                    del kept[job]
                self._stale = True
        self.over, self.stints = over, {}
        return done

    def open(self, now: float) -> dict[int, Stint]:
        """Begin a round; return who runs on which type in it."""
        if self._stale and (now - self._reset_at >= RESET_S or self._reset_at == 0):
            self._reset(now)
        self.began, self.stints = now, {}
        for job, gpu in self._chosen().items():
            if job in self.share:  # Another slip: who has no share yet is chosen, and stays idle.
                rate = self.rates[gpu][self.here[job]]
                steps = min(int(rate * ROUND_S), self.left[job])
                self.stints[job] = Stint(gpu, steps, steps / rate)
        return self.stints

    def _chosen(self) -> dict[int, str]:
        types = list(TYPES)
        self._shuffler.shuffle(types)
        left, chosen = dict.fromkeys(TYPES, GPUS), dict[int, str]()
        for gpu in types:
            for job, priority in self._queue(gpu):
                gpus = self.here[job][1]
                shares = priority > 0 or not self.only_shared
                able = self.rates[gpu][self.here[job]] > 0 and shares
                if able and job not in chosen and gpus <= left[gpu]:
                    left[gpu] -= gpus
                    chosen[job] = gpu
        return chosen

    def _queue(self, gpu: str) -> list[tuple[int, float]]:
        queue = []
        for job, kind in self.here.items():
            share = self.share.get(job, {}).get(gpu, 0.0)
            part = self.had[job][gpu] / self.all[gpu] if self.all[gpu] else 0.0
            priority = share / part if part and share else share * 1e9
            if share and not self.rates[gpu][kind]:
                priority = 0.0
            queue.append((job, priority, self.behind[job][gpu], share))
        queue.sort(key=lambda each: each[1:], reverse=True)
        return [(job, priority) for job, priority, _, _ in queue]

    def _reset(self, now: float) -> None:
        span = now - self._reset_at
        for gpu in TYPES:
            self.all[gpu] = 0.0
            for job, had in self.had.items():
                due = self.share.get(job, {}).get(gpu, 0.0) * span
                self.behind[job][gpu] += due - (had[gpu] - ROUND_S / 2)
                had[gpu] = ROUND_S / 2
                self.all[gpu] += had[gpu]
        self._reset_at, self._stale = now, False
        self.share = self.shares(self.here, self.rates)


class Draws:
    """Gavel's FIFO: each job has one type for good, drawn when it is its turn."""

    def __init__(self) -> None:
        """Begin with nobody."""
        self._rng = random.Random(DRAW_SEED)
        self._of: dict[int, str] = {}

    def __call__(self, here: Mapping[int, Kind], rates: Rates) -> Share:
        """Return the types; with the slip by which the last one with anything free wins."""
        left, types = dict.fromkeys(TYPES, GPUS), self._of
        queue = [job for job in here if job not in types]
        for job in sorted(types):
            gpu = types[job]
            if job in here:
                left[gpu] -= here[job][1]
                continue
            first = here[queue[0]] if queue else None
            if first is not None and first[1] <= left[gpu] and rates[gpu][first] > 0:
                left[gpu] -= first[1]
                types[queue.pop(0)] = gpu
            del types[job]
        free = sorted(gpu for gpu in TYPES if left[gpu] > 0)
        while queue and free:
            job = queue.pop(0)
            fitting = [at for at, gpu in enumerate(free) if left[gpu] >= here[job][1]]
            if not fitting:
                break
            drawn, gpu = self._rng.randrange(len(fitting)), free[-1]
            if rates[gpu][here[job]] > 0:
                types[job] = gpu
                left[gpu] -= here[job][1]
                if left[gpu] == 0:
                    free.pop(fitting[drawn])
        return {job: {gpu: float(types.get(job) == gpu) for gpu in TYPES} for job in here}


def equal(here: Mapping[int, Kind], _: Rates) -> Share:
    """Return LAS' shares by hand: the same GPU time for all, evenly from each type.

    Gavel has a solver maximise the least GPU time that anybody has. Where the cluster holds all
    jobs that leaves open what larger ones have beyond it; here they have nothing.
    """
    least = min(1.0, GPUS * len(TYPES) / max(len(here), 1))
    return {job: dict.fromkeys(TYPES, least / kind[1] / len(TYPES)) for job, kind in here.items()}


def solved(here: Mapping[int, Kind], _: Rates) -> Share:
    """Return LAS' shares as Gavel's solver does; ImportError where it is not installed.

    An interior-point method ends in the middle of all that are optimal, where no rule leads to.
    """
    if not here:
        return {}
    solver: Any = importlib.import_module("cvxpy")
    importlib.import_module("ecos")
    numpy: Any = importlib.import_module("numpy")
    gpus = numpy.array([[kind[1]] * len(TYPES) for kind in here.values()], dtype=float)
    part = solver.Variable(gpus.shape)
    limits = [
        part >= 0,
        solver.sum(solver.multiply(gpus, part), axis=0) <= [GPUS] * len(TYPES),
        solver.sum(part, axis=1) <= 1,
    ]
    least = solver.min(solver.sum(solver.multiply(gpus, part), axis=1))
    solver.Problem(solver.Maximize(least), limits).solve(solver="ECOS")
    found = part.value.clip(min=0.0).clip(max=1.0)
    order = sorted(TYPES)
    return {
        job: {gpu: float(row[order.index(gpu)]) for gpu in TYPES}
        for job, row in zip(here, found, strict=True)
    }


def las() -> tuple[Shares, str]:
    """Return LAS' shares, and whose: the solver's if it is installed."""
    try:
        solved({1: ("", 1)}, {})
    except ImportError:
        return equal, "equal shares"
    return solved, "the solver's shares"


def loop(
    jobs: Sequence[tuple[float, Kind, int]], rates: Rates, shares: Shares, *, only_shared: bool
) -> list[float]:
    """Return when each job ends: (arrival, kind, mini-batches) of each, by arrival."""
    book, ends, at = Book(rates, shares, only_shared=only_shared), dict[int, float](), 0
    while len(ends) < len(jobs):
        now = book.ends_at() if book.stints else jobs[at][0]
        if book.stints:
            ends |= book.close()
        while at < len(jobs) and jobs[at][0] <= now:
            book.come(at, *jobs[at][1:])
            at += 1
        book.open(now)
    return [ends[number] for number in range(len(jobs))]
