"""The rules that SCHED² is compared with, in its environment (section IV-A), each in both readings.

All of them place a job by packing. What the paper leaves open are options here: whether a rule sees
the first J jobs, as the agent does, or the whole queue; and whether a chosen job that does not fit
holds up the others (`skips`: the best of those that fit is started).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from skep_lab.fast_env import engine
from skep_lab.fast_env.arrays import JOB, NEVER, NODE, NUM, Ints, State
from skep_lab.fast_env.compiled import compiled, inner
from skep_lab.fast_env.draw import uniform
from skep_lab.fast_env.sched2 import PAPER, RULE, Batch, Options, until_a_job_waits

FIFO, SIF, SAF, LRF, SPF, RANDOM = range(6)
"""By arrival, ideal time, time where it would go now, GPUs, GPUs x ideal time, at random."""
SIZES_MAX = 128
"""GPUs of a job up to which it is remembered on how many nodes it would go now."""
NOT_LOOKED = -1


class Rule(NamedTuple):
    """Which job of the queue is next."""

    order: int = FIFO
    window: int = 10
    """Only so many jobs are seen, by arrival; 0: all."""
    skips: bool = False
    delays: int = 0
    """So many times a chosen job that would be on more nodes than necessary is passed over, until
    the next event (DSIF: 3)."""
    relax: float = 0.0
    """A job is never on more nodes than necessary unless it has waited for so many times its ideal
    time (`hold`); 0: it may be."""


NAMES = {
    "fifo": Rule(FIFO),
    "sif": Rule(SIF),
    "dsif": Rule(SIF, delays=3),
    "saf": Rule(SAF),
    "lrf": Rule(LRF),
    "spf": Rule(SPF),
    "random": Rule(RANDOM, skips=True),
    "hold": Rule(FIFO, skips=True, relax=5.0),
}
"""The rules by name; the first six are the paper's."""


@inner
def _parts(s: State, b: int, j: int, seen: Ints) -> int:
    """Return on how many nodes a job would go now; 0: it does not fit."""
    gpus = s.jobs[b, j, JOB.size_now]
    if seen[gpus] == NOT_LOOKED:
        seen[gpus] = engine.find_packed(s, b, j)
    return int(seen[gpus])


@inner
def _extra(s: State, b: int, j: int, seen: Ints) -> int:
    """Return on how many nodes more than necessary a job would go now."""
    size = s.nodes[b, 0, NODE.size]
    fewest = (s.jobs[b, j, JOB.size_now] + size - 1) // size
    return int(max(_parts(s, b, j, seen) - fewest, 0))


@inner
def _key(s: State, b: int, j: int, order: int, seen: Ints) -> float:
    """Return what a rule sorts jobs by; the lowest is next, and of equal ones the earliest."""
    told = float(engine.known(s, b, j))
    if order == SIF:
        return told
    if order == SAF:
        level = min(_extra(s, b, j, seen), s.speed.shape[2] - 1)
        return float(told / s.speed[s.jobs[b, j, JOB.model], 0, level])
    if order == LRF:
        return float(s.jobs[b, j, JOB.size_now])
    if order == SPF:
        return float(told * s.jobs[b, j, JOB.size_now])
    return float(uniform(s.num, b)) if order == RANDOM else 0.0


@inner
def _may(s: State, b: int, j: int, rule: Rule, seen: Ints) -> bool:
    """Return whether `hold` lets a job go where it would go now."""
    if rule.relax <= 0.0 or _extra(s, b, j, seen) == 0:
        return True
    waited = s.num[b, NUM.now] - s.jobs[b, j, JOB.at]
    return bool(waited > rule.relax * float(engine.known(s, b, j)))


@inner
def choose(s: State, b: int, rule: Rule, seen: Ints, passed: Ints, turn: int) -> int:
    """Return the place in the queue of the job that is started now; -1: none.

    Args:
        s: The batch.
        b: The environment.
        rule: The rule.
        seen: By GPUs of a job, on how many nodes it would go; it is written.
        passed: [J, 2] how often each job was passed over, and at which turn last; it is written.
        turn: A number of this instant.
    """
    count = s.num[b, NUM.queued]
    if rule.window > 0:
        count = min(count, rule.window)
    seen[:] = NOT_LOOKED
    while True:
        best, least = -1, np.inf
        for at in range(count):
            j = s.queue[b, at]
            if passed[j, 1] == turn:
                continue
            if rule.skips and (_parts(s, b, j, seen) == 0 or not _may(s, b, j, rule, seen)):
                continue
            key = _key(s, b, j, rule.order, seen)
            if best < 0 or key < least:
                best, least = at, key
        if best < 0:
            return -1
        j = s.queue[b, best]
        if _parts(s, b, j, seen) == 0 or not _may(s, b, j, rule, seen):
            return -1
        if passed[j, 0] >= rule.delays or _extra(s, b, j, seen) == 0:
            return int(best)
        passed[j, 0] += 1
        passed[j, 1] = turn
        if not rule.skips:
            return -1


@compiled
def play_all(s: State, rule: Rule) -> None:
    """Play every environment to its end by a rule."""
    seen = np.empty(SIZES_MAX + 1, np.int64)
    passed = np.empty((s.jobs.shape[1], 2), np.int64)
    for b in range(s.num.shape[0]):
        passed[:] = 0
        turn = 1
        until_a_job_waits(s, b)
        while s.num[b, NUM.open] > 0:
            at = choose(s, b, rule, seen, passed, turn)
            if at >= 0:
                j = s.queue[b, at]
                parts = engine.find_packed(s, b, j)
                engine.dequeue(s, b, at)
                engine.begin(s, b, j, parts)
            else:
                turn += 1
                if not engine.step_one(s, b, RULE):
                    break
            until_a_job_waits(s, b)


class Played(NamedTuple):
    """What became of jobs; each is [episodes, jobs]. Times are seconds from the beginning."""

    at: np.ndarray[tuple[int, int], np.dtype[np.float64]]
    run: np.ndarray[tuple[int, int], np.dtype[np.float64]]
    """Ideal run times."""
    gpus: Ints
    model: Ints
    first: np.ndarray[tuple[int, int], np.dtype[np.float64]]
    """NEVER in seconds: it was not started."""
    ended: np.ndarray[tuple[int, int], np.dtype[np.float64]]


def jobs_of(batch: Batch, seeds: Ints) -> Ints:
    """Begin an episode of each seed, and return its jobs [B, J, JOB] as they come."""
    batch.reset(seeds)
    return batch.state.jobs.copy()


def played(jobs: Ints, first: Ints, ended: Ints) -> Played:
    """Return what became of jobs.

    Args:
        jobs: [B, J, JOB] as they came.
        first: [B, J] when they started.
        ended: [B, J] when they ended.
    """
    return Played(
        at=jobs[:, :, JOB.at] / 1e9,
        run=jobs[:, :, JOB.run] / 1e9,
        gpus=jobs[:, :, JOB.workers] * jobs[:, :, JOB.each],
        model=jobs[:, :, JOB.model],
        first=first / 1e9,
        ended=ended / 1e9,
    )


def play(rule: Rule, seeds: Ints, options: Options = PAPER) -> Played:
    """Return what becomes of the jobs of each seed under a rule.

    Args:
        rule: The rule.
        seeds: One episode for each.
        options: The setting; all nodes have one type of GPU.

    Raises:
        ValueError: The setting makes no sense, or has more than one type.
    """
    if len(options.nodes) != 1 or max(options.sizes) > SIZES_MAX:
        reason = f"rules are for one type of GPU, and jobs of up to {SIZES_MAX} GPUs"
        raise ValueError(reason)
    batch = Batch(len(seeds), options)
    jobs = jobs_of(batch, seeds)
    play_all(batch.state, rule)
    ended = batch.state.jobs
    assert not (ended[:, :, JOB.ended] == NEVER).any(), "a rule left jobs waiting for ever"
    return played(jobs, ended[:, :, JOB.first], ended[:, :, JOB.ended])
