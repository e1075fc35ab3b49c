"""The state of a batch of environments in flat arrays, and how it is made of jobs and nodes.

The first axis of every array is the environment. Times are nanoseconds from the beginning of the
trace, GPUs are whole ones. There are few arrays, with many numbers for each job: every array that
a kernel is called with costs it time, and its compiler more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NEVER = 1 << 62
"""A time that does not come; the key of a job whose run time is not known."""

LEVELS = 4
"""Speeds are known on as few nodes as hold a job, on one more, on two more, and on three or more
(SCHED², section III-B: k = 4)."""

SHAPES = 64
"""Shapes that are remembered as not fitting; a further one is tried again: that only takes time."""


GROWN = 1025
"""Speeds by workers that are made without a table: up to a gang of as many workers less one."""


class _Job(NamedTuple):
    """The numbers of a job, by their place in `State.jobs`."""

    at: int = 0
    """When it is submitted; jobs are in this order."""
    run: int = 1
    """Its run time where its speed is 1."""
    workers: int = 2
    """Workers of the gang, as it was submitted."""
    each: int = 3
    """GPUs of each worker."""
    model: int = 4
    """Its row in `State.speed` and `State.growth`."""
    told: int = 5
    """Its run time as predicted or as its owner says; NEVER: unknown."""
    told_at: int = 6
    """When that prediction comes, after its submission."""
    size_now: int = 7
    """Its workers at present."""
    kinds: int = 8
    """The types of GPU on which it may run, as bits."""
    priority: int = 9
    phase: int = 10
    key: int = 11
    """What the queue is sorted by, after priority and before arrival."""
    done: int = 12
    """Work that is done, as of `since`: nanoseconds at speed 1."""
    stored: int = 13
    """The part of it that survives a stop."""
    since: int = 14
    begun: int = 15
    """When it began to train without a break: checkpoints are counted from here."""
    version: int = 16
    """Counts changes: an event of an earlier version does not happen."""
    first: int = 17
    """When it first had GPUs; NEVER: not yet."""
    ended: int = 18
    """When it ended; NEVER: not yet."""
    waits_since: int = 19
    waited: int = 20
    """Time in the queue until `waits_since`."""
    lost: int = 21
    """Work that was done twice."""
    overhead: int = 22
    """Time for which costs kept it from training."""
    parts: int = 23
    """Nodes it is on."""
    until: int = 24
    """When it is predicted to end where it is, as in `State.until`; 0: it has no GPUs."""


class _Node(NamedTuple):
    """The numbers of a node, by their place in `State.nodes`."""

    size: int = 0
    """Its GPUs."""
    kind: int = 1
    """The type of its GPUs: the number of a chain of the cluster."""
    free: int = 2
    stamp: int = 3
    """When it came to have as many free GPUs, as a counter: the lowest has longest."""
    number: int = 4
    """The number of the VC's cell that a used node is bound to, within its type; -1: none."""
    up: int = 5
    """0: it takes no job (drained, or lost)."""
    only: int = 6
    """1: a placement may use it, where one is limited to some nodes."""
    assumed: int = 7
    """Free GPUs as a plan of packing assumes them after its earlier turns."""
    seen: int = 8
    """Not of this node: the node at this place in the order in which a policy sees them."""
    order: int = 9
    """Not of this node: the node at this place in the order in which a placement takes them."""


class _Num(NamedTuple):
    """The numbers of an environment, by their place in `State.num`."""

    now: int = 0
    next: int = 1
    """The next job to come."""
    queued: int = 2
    stamp: int = 3
    pushed: int = 4
    events: int = 5
    """Events in the heap."""
    open: int = 6
    """Jobs that have not ended."""
    faults: int = 7
    gpus_free: int = 8
    part_freed: int = 9
    """GPUs that a gang has given back while it has others still to give back."""
    gpus_waited: int = 10
    """Sum of the GPUs of the waiting jobs."""
    told_waited: int = 11
    """Sum of their predicted run times in milliseconds; an unknown one is 0."""
    came_waited: int = 12
    """Sum of their times of submission in milliseconds."""
    rng_a: int = 13
    rng_b: int = 14
    """The two states of the random numbers (`draw.uniform`)."""
    fault_every: int = 15
    """Mean nanoseconds between two faults; 0: there are none."""


class _Heap(NamedTuple):
    """The numbers of an event, by their place in `State.heap`."""

    at: int = 0
    number: int = 1
    what: int = 2
    job: int = 3
    arg: int = 4
    """For what an outdated one is dropped: the version of the job when it was pushed."""


class _Phase(NamedTuple):
    """What a job is doing."""

    to_come: int = 0
    waiting: int = 1
    starting: int = 2
    running: int = 3
    suspending: int = 4
    away: int = 5
    """Suspended, without GPUs."""
    stopping: int = 6
    moving: int = 7
    ended: int = 8
    refused: int = 9


class _What(NamedTuple):
    """What happens at a time."""

    end: int = 0
    train: int = 1
    gone: int = 2
    freed: int = 3
    fault: int = 4
    told: int = 5


class _Cost(NamedTuple):
    """Kinds of cost, by their place in `State.costs`; as in `simulator.settings.Costs`."""

    start: int = 0
    stop: int = 1
    suspend: int = 2
    resume: int = 3
    migrate: int = 4
    resize: int = 5
    store_every: int = 6


JOB, NODE, NUM, HEAP, PHASE, WHAT, COST = (
    _Job(),
    _Node(),
    _Num(),
    _Heap(),
    _Phase(),
    _What(),
    _Cost(),
)


class State(NamedTuple):
    """Arrays of a batch of B environments with J jobs and N nodes each.

    Kernels change all but the last three.
    """

    jobs: Ints
    """[B, J, JOB]"""
    rate: Floats
    """[B, J] the present speed of a job; 0: it does not train."""
    held: Ints
    """[B, J, P, 2] the nodes a job is on, and its GPUs there."""
    until: Ints
    """[B, N, G] when the jobs on a node are predicted to end, once for each of their GPUs, the
    latest first; 0: a free GPU."""
    nodes: Ints
    """[B, N, NODE] nodes of a type are together."""
    queue: Ints
    """[B, J] waiting jobs in their order, of which there are `NUM.queued`."""
    heap: Ints
    """[B, H, HEAP] what happens later, as a binary heap."""
    num: Ints
    """[B, NUM]"""
    spot: Ints
    """[B, P, 2] a placement that is looked for: nodes, and GPUs there."""
    shapes: Ints
    """[B, SHAPES] shapes that did not fit since something came free."""
    speed: Floats
    """[M, T, LEVELS] by model, type and nodes beyond the fewest."""
    growth: Floats
    """[M, W] speed with so many workers, in any unit; only ratios matter."""
    costs: Ints
    """[COST] nanoseconds."""


class Shown(NamedTuple):
    """What a batch of `queue` shows of itself; the arrays stay the same from step to step."""

    raw: Floats
    """[B, J, RAW] (`skep.learn.columns`) of which `counts` rows are there; the others are 0."""
    cluster: Floats
    """[B, CLUSTER] without the sums over jobs that `skep.learn.features.sums` adds."""
    now: Floats
    """[B] seconds."""
    counts: Ints
    """[B] rows."""
    done: NDArray[np.bool_]
    """[B] all jobs have ended."""


class JobArrays(NamedTuple):
    """The jobs of one environment: see `JOB`."""

    at: Ints
    run: Ints
    workers: Ints
    each: Ints
    model: Ints
    kinds: Ints
    priority: Ints
    told: Ints
    told_at: Ints


class NodeArrays(NamedTuple):
    """The nodes of one environment, those of a type together: see `NODE`."""

    size: Ints
    kind: Ints


def ints(values: Sequence[int] | Ints) -> Ints:
    """Return numbers as an array."""
    return np.asarray(values, dtype=np.int64)


def new_state(
    jobs: Sequence[JobArrays],
    nodes: NodeArrays,
    speed: Floats | None = None,
    growth: Floats | None = None,
    costs: Ints | None = None,
    parts: int = 0,
) -> State:
    """Return a batch in which nothing has happened yet: one environment for each list of jobs.

    Args:
        jobs: By environment; shorter lists are filled up with jobs that never come.
        nodes: The same for all.
        speed: By model, type and nodes beyond the fewest; None: 1 everywhere.
        growth: By model and workers; None: proportional to workers.
        costs: Nanoseconds by kind of cost; None: 0.
        parts: The most nodes of a gang; 0: as many as the largest gang has workers, or nodes exist.

    Raises:
        ValueError: There are no environments, or no nodes.
    """
    if not jobs or not len(nodes.size):
        reason = "a batch has at least one environment and one node"
        raise ValueError(reason)
    batch, count = len(jobs), len(nodes.size)
    most = max(1, *(len(each.at) for each in jobs))
    workers = max(1, *(int(each.workers.max(initial=1)) for each in jobs))
    parts = parts or min(workers, count)
    models = 1 + max(int(each.model.max(initial=0)) for each in jobs)
    kinds = 1 + int(nodes.kind.max())
    made = np.zeros((batch, most, len(JOB)), np.int64)
    made[:, :, [JOB.at, JOB.first, JOB.ended, JOB.told]] = NEVER
    made[:, :, [JOB.run, JOB.workers, JOB.each]] = 1
    for row, each in zip(made, jobs, strict=True):
        for field, values in each._asdict().items():
            row[: len(values), getattr(JOB, field)] = values
    made[:, :, JOB.size_now] = made[:, :, JOB.workers]
    floor = np.zeros((batch, count, len(NODE)), np.int64)
    floor[:, :, NODE.size] = floor[:, :, NODE.free] = nodes.size
    floor[:, :, NODE.kind] = nodes.kind
    floor[:, :, [NODE.stamp, NODE.seen]] = np.arange(count)[None, :, None]
    floor[:, :, NODE.number] = -1
    floor[:, :, [NODE.up, NODE.only]] = 1
    num = np.zeros((batch, len(NUM)), np.int64)
    num[:, NUM.open] = [len(each.at) for each in jobs]
    num[:, NUM.stamp] = count
    num[:, NUM.gpus_free] = int(nodes.size.sum())
    num[:, [NUM.rng_a, NUM.rng_b]] = 1
    if speed is None:
        speed = np.ones((models, kinds, LEVELS))
    if growth is None:
        growth = np.tile(np.arange(GROWN, dtype=np.float64), (models, 1))
    return State(
        jobs=made,
        rate=np.zeros((batch, most)),
        held=np.zeros((batch, most, parts, 2), np.int64),
        until=np.zeros((batch, count, int(nodes.size.max())), np.int64),
        nodes=floor,
        queue=np.zeros((batch, most), np.int64),
        heap=np.zeros((batch, 2 * most + 64, len(HEAP)), np.int64),
        num=num,
        spot=np.zeros((batch, parts, 2), np.int64),
        shapes=np.zeros((batch, SHAPES), np.int64),
        speed=np.ascontiguousarray(speed, np.float64),
        growth=np.ascontiguousarray(growth, np.float64),
        costs=np.zeros(len(COST), np.int64) if costs is None else ints(costs),
    )
