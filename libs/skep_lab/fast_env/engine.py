"""The events of an environment: jobs come, begin, change, fail and end; and the queue in between.

Events of one instant happen one after the other, ends before arrivals, and the queue is served
after each, as the production simulator does (`skep_lab.simulator.world`). A gang gives its nodes
back one by one, and the queue is served after each of them: in production every node reports for
itself, and what it reports is decided before the next node's report.
"""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import numpy as np

from skep_lab.fast_env.arrays import COST, HEAP, JOB, NEVER, NODE, NUM, PHASE, SHAPES, WHAT, State
from skep_lab.fast_env.compiled import compiled, inner
from skep_lab.fast_env.draw import next_fault, uniform
from skep_lab.fast_env.places import (
    choose_packing,
    expect,
    forget,
    give_back,
    hold,
    place,
    see,
    take,
)

# Orders of the queue.
ARRIVAL, SHORTEST, SMALLEST, FEWEST = range(4)
MILLION = 1_000_000
HANDS_OFF = 4
"""The queue is not served: an agent starts the jobs."""


FREED = cast("int", np.int64(-1))
"""`serve` is called because something came free. A plain -1 would be a type of its own to numba,
for which it would compile everything again."""


class Rule(NamedTuple):
    """How the queue is served."""

    order: int = ARRIVAL
    strict: bool = True
    """The first job that does not fit holds up the others."""
    packing: bool = False
    """Nodes are chosen by packing."""
    by_node: bool = True
    """A gang gives its nodes back one by one, and the queue is served after each."""
    at_once: bool = False
    """Whatever happens at one instant is known before the queue is served."""


# --- what happens later --------------------------------------------------------------------------


@inner
def _before(s: State, b: int, i: int, k: int) -> bool:
    if s.heap[b, i, HEAP.at] != s.heap[b, k, HEAP.at]:
        return bool(s.heap[b, i, HEAP.at] < s.heap[b, k, HEAP.at])
    return bool(s.heap[b, i, HEAP.number] < s.heap[b, k, HEAP.number])


@inner
def _swap(s: State, b: int, i: int, k: int) -> None:
    s.heap[b, i, HEAP.at], s.heap[b, k, HEAP.at] = s.heap[b, k, HEAP.at], s.heap[b, i, HEAP.at]
    s.heap[b, i, HEAP.number], s.heap[b, k, HEAP.number] = (
        s.heap[b, k, HEAP.number],
        s.heap[b, i, HEAP.number],
    )
    s.heap[b, i, HEAP.what], s.heap[b, k, HEAP.what] = (
        s.heap[b, k, HEAP.what],
        s.heap[b, i, HEAP.what],
    )
    s.heap[b, i, HEAP.job], s.heap[b, k, HEAP.job] = s.heap[b, k, HEAP.job], s.heap[b, i, HEAP.job]
    s.heap[b, i, HEAP.arg], s.heap[b, k, HEAP.arg] = s.heap[b, k, HEAP.arg], s.heap[b, i, HEAP.arg]


@compiled
def push(s: State, b: int, at: int, what: int, job: int, arg: int) -> None:
    """Have something happen at a time; where the heap is full, outdated events are dropped."""
    if s.num[b, NUM.events] == s.heap.shape[1]:
        _compact(s, b)
    i = s.num[b, NUM.events]
    assert i < s.heap.shape[1]
    s.heap[b, i, HEAP.at], s.heap[b, i, HEAP.number] = at, s.num[b, NUM.pushed]
    s.heap[b, i, HEAP.what], s.heap[b, i, HEAP.job], s.heap[b, i, HEAP.arg] = what, job, arg
    s.num[b, NUM.pushed] += 1
    s.num[b, NUM.events] += 1
    while i > 0 and _before(s, b, i, (i - 1) // 2):
        _swap(s, b, i, (i - 1) // 2)
        i = (i - 1) // 2


@inner
def _sink(s: State, b: int, i: int) -> None:
    while True:
        low, left, right = i, 2 * i + 1, 2 * i + 2
        if left < s.num[b, NUM.events] and _before(s, b, left, low):
            low = left
        if right < s.num[b, NUM.events] and _before(s, b, right, low):
            low = right
        if low == i:
            return
        _swap(s, b, i, low)
        i = low


@inner
def _pop(s: State, b: int) -> None:
    s.num[b, NUM.events] -= 1
    _swap(s, b, 0, s.num[b, NUM.events])
    _sink(s, b, 0)


@inner
def _outdated(s: State, b: int, i: int) -> bool:
    what, j = s.heap[b, i, HEAP.what], s.heap[b, i, HEAP.job]
    if what in (WHAT.end, WHAT.train):
        return bool(s.heap[b, i, HEAP.arg] != s.jobs[b, j, JOB.version])
    return False


@inner
def _compact(s: State, b: int) -> None:
    """Drop outdated events, and make a heap of the others again."""
    count = 0
    for i in range(s.num[b, NUM.events]):
        if not _outdated(s, b, i):
            _swap(s, b, count, i)
            count += 1
    s.num[b, NUM.events] = count
    for i in range(count // 2, -1, -1):
        _sink(s, b, i)


# --- progress ------------------------------------------------------------------------------------


@inner
def speed_of(s: State, b: int, j: int) -> float:
    """Return the speed of a job where it is: by its type of GPU, its nodes, and its workers."""
    n = s.held[b, j, 0, 0]
    size = s.nodes[b, n, NODE.size]
    fewest = (s.jobs[b, j, JOB.size_now] * s.jobs[b, j, JOB.each] + size - 1) // size
    level = min(max(s.jobs[b, j, JOB.parts] - fewest, 0), s.speed.shape[2] - 1)
    rate = s.speed[s.jobs[b, j, JOB.model], s.nodes[b, n, NODE.kind], level]
    if s.jobs[b, j, JOB.size_now] != s.jobs[b, j, JOB.workers]:
        last = s.growth.shape[1] - 1
        now, then = min(s.jobs[b, j, JOB.size_now], last), min(s.jobs[b, j, JOB.workers], last)
        rate *= s.growth[s.jobs[b, j, JOB.model], now] / s.growth[s.jobs[b, j, JOB.model], then]
    return float(rate)


@inner
def known(s: State, b: int, j: int) -> int:
    """Return the predicted run time of a job at speed 1; NEVER: it is not known yet."""
    if s.num[b, NUM.now] < s.jobs[b, j, JOB.at] + s.jobs[b, j, JOB.told_at]:
        return NEVER
    return int(s.jobs[b, j, JOB.told])


@inner
def predicted_end(s: State, b: int, j: int, cost: int) -> int:
    """Return when a job is predicted to end if it trains where it is after a cost."""
    told, rate = known(s, b, j), speed_of(s, b, j)
    if told >= NEVER or rate <= 0.0:
        return NEVER
    left = max(told - s.jobs[b, j, JOB.done], 0)
    return int(s.num[b, NUM.now] + cost + min(left / rate, 1e18)) + 1


@inner
def advance(s: State, b: int, j: int) -> None:
    """Add the work of a job since the last call (`simulator.work.Work.advance`)."""
    now, rate = s.num[b, NUM.now], s.rate[b, j]
    span = now - s.jobs[b, j, JOB.since]
    if rate <= 0.0 or span <= 0:
        s.jobs[b, j, JOB.since] = now
        return
    more = span if rate == 1.0 else np.int64(np.rint(span * rate))
    more = min(more, s.jobs[b, j, JOB.run] - s.jobs[b, j, JOB.done])
    every = s.costs[COST.store_every]
    if every > 0:
        latest = s.jobs[b, j, JOB.begun] + (now - s.jobs[b, j, JOB.begun]) // every * every
        if latest > s.jobs[b, j, JOB.since]:
            kept = np.int64(np.rint((latest - s.jobs[b, j, JOB.since]) * rate))
            s.jobs[b, j, JOB.stored] = s.jobs[b, j, JOB.done] + min(more, kept)
    s.jobs[b, j, JOB.done] += more
    s.jobs[b, j, JOB.since] = now


@inner
def _train(s: State, b: int, j: int) -> None:
    s.jobs[b, j, JOB.phase] = PHASE.running
    s.jobs[b, j, JOB.since] = s.jobs[b, j, JOB.begun] = s.num[b, NUM.now]
    rate = speed_of(s, b, j)
    s.rate[b, j] = rate
    s.jobs[b, j, JOB.version] += 1
    if rate > 0.0:
        rest = s.jobs[b, j, JOB.run] - s.jobs[b, j, JOB.done]
        left = rest if rate == 1.0 else np.int64(math.ceil(rest / rate))
        push(s, b, s.num[b, NUM.now] + left, WHAT.end, j, s.jobs[b, j, JOB.version])


@inner
def _halt(s: State, b: int, j: int) -> None:
    if s.jobs[b, j, JOB.phase] == PHASE.running:
        advance(s, b, j)
    s.rate[b, j] = 0.0
    s.jobs[b, j, JOB.version] += 1


@inner
def _go(s: State, b: int, j: int, cost: int) -> None:
    """Have a job train where it is, after the cost of that."""
    s.jobs[b, j, JOB.phase] = PHASE.starting
    expect(s, b, j, predicted_end(s, b, j, cost))
    if cost > 0:
        s.jobs[b, j, JOB.overhead] += cost
        push(s, b, s.num[b, NUM.now] + cost, WHAT.train, j, s.jobs[b, j, JOB.version])
    else:
        _train(s, b, j)


# --- the queue -----------------------------------------------------------------------------------


@inner
def _ahead(s: State, b: int, i: int, k: int) -> bool:
    """Return whether a job is before another in the queue: priority, key, arrival."""
    if s.jobs[b, i, JOB.priority] != s.jobs[b, k, JOB.priority]:
        return bool(s.jobs[b, i, JOB.priority] > s.jobs[b, k, JOB.priority])
    if s.jobs[b, i, JOB.key] != s.jobs[b, k, JOB.key]:
        return bool(s.jobs[b, i, JOB.key] < s.jobs[b, k, JOB.key])
    return i < k


@inner
def enqueue(s: State, b: int, j: int) -> int:
    """Put a job into the queue; return its place there."""
    low, high = 0, s.num[b, NUM.queued]
    while low < high:
        middle = (low + high) // 2
        if _ahead(s, b, s.queue[b, middle], j):
            low = middle + 1
        else:
            high = middle
    for i in range(s.num[b, NUM.queued], low, -1):
        s.queue[b, i] = s.queue[b, i - 1]
    s.queue[b, low] = j
    s.num[b, NUM.queued] += 1
    _count_waiting(s, b, j, 1)
    s.jobs[b, j, JOB.phase] = PHASE.waiting
    s.jobs[b, j, JOB.waits_since] = s.num[b, NUM.now]
    return low


@inner
def dequeue(s: State, b: int, at: int) -> None:
    """Take the job at a place out of the queue."""
    j = s.queue[b, at]
    s.jobs[b, j, JOB.waited] += s.num[b, NUM.now] - s.jobs[b, j, JOB.waits_since]
    s.num[b, NUM.queued] -= 1
    _count_waiting(s, b, j, -1)
    for i in range(at, s.num[b, NUM.queued]):
        s.queue[b, i] = s.queue[b, i + 1]


@inner
def _count_waiting(s: State, b: int, j: int, sign: int) -> None:
    """Add a job to the sums over the queue, or take it off."""
    told = s.jobs[b, j, JOB.told]
    gpus = s.jobs[b, j, JOB.size_now] * s.jobs[b, j, JOB.each]
    s.num[b, NUM.gpus_waited] += sign * gpus
    s.num[b, NUM.told_waited] += sign * (told // MILLION if told < NEVER else 0)
    s.num[b, NUM.came_waited] += sign * (s.jobs[b, j, JOB.at] // MILLION)


@inner
def set_key(s: State, b: int, j: int, order: int) -> None:
    """Compute what the queue is sorted by."""
    told = known(s, b, j)
    gpus = s.jobs[b, j, JOB.workers] * s.jobs[b, j, JOB.each]
    key = 0
    if order == SHORTEST:
        key = told
    elif order == SMALLEST:
        key = NEVER if told >= NEVER // max(gpus, 1) else told * gpus
    elif order == FEWEST:
        key = gpus
    s.jobs[b, j, JOB.key] = key


@inner
def begin(s: State, b: int, j: int, parts: int) -> None:
    """Give a waiting job the place that was found, and start it."""
    take(s, b, j, parts)
    if s.jobs[b, j, JOB.first] == NEVER:
        s.jobs[b, j, JOB.first] = s.num[b, NUM.now]
    _go(s, b, j, s.costs[COST.start])


@inner
def _shape(s: State, b: int, j: int) -> int:
    return int(
        (s.jobs[b, j, JOB.kinds] << 40)
        ^ (s.jobs[b, j, JOB.size_now] << 20)
        ^ s.jobs[b, j, JOB.each]
    )


@inner
def serve(s: State, b: int, rule: Rule, came: int) -> None:
    """Start waiting jobs in the order of the queue.

    Args:
        s: The batch.
        b: The environment.
        rule: How the queue is served.
        came: The place in the queue of a job that has just come, if nothing has come free since the
            queue was last served; -1: something has.
    """
    if rule.order == HANDS_OFF or s.num[b, NUM.queued] == 0:
        return
    if rule.packing:
        # A plan assumes how earlier turns fill nodes; the next one, at the same instant, knows.
        while _pack(s, b, rule.strict) and s.num[b, NUM.part_freed] == 0:
            pass
        return
    if rule.strict and came > 0:
        return
    at, shapes = max(came, 0), 0
    while at < s.num[b, NUM.queued] and s.num[b, NUM.gpus_free] > 0:
        j = s.queue[b, at]
        shape, failed = _shape(s, b, j), False
        for i in range(shapes):
            failed = failed or s.shapes[b, i] == shape
        parts = 0 if failed else place(s, b, j, rule.packing)
        if parts > 0:
            dequeue(s, b, at)
            begin(s, b, j, parts)
        elif rule.strict:
            return
        else:
            if not failed and shapes < SHAPES:
                s.shapes[b, shapes] = shape
                shapes += 1
            at += 1
        if came >= 0 and not rule.strict:
            return


@inner
def _pack(s: State, b: int, strict: bool) -> bool:
    """Carry out one plan of packing; return whether a job was started.

    GPUs of a gang of which other nodes are still to be given back do not count as free: a job that
    exceeds the others has a turn without nodes, and goes where the cells have room.
    """
    if s.num[b, NUM.gpus_free] == 0:
        return False
    left = s.num[b, NUM.gpus_free] - s.num[b, NUM.part_freed]
    see(s, b)
    at, started = 0, False
    while at < s.num[b, NUM.queued]:
        j = s.queue[b, at]
        gpus = s.jobs[b, j, JOB.size_now] * s.jobs[b, j, JOB.each]
        fits = gpus <= left and choose_packing(s, b, j)
        left -= gpus if fits else 0
        parts = place(s, b, j, fits)
        if parts > 0:
            dequeue(s, b, at)
            begin(s, b, j, parts)
            started = True
        else:
            at += 1
        if strict and (not fits or parts == 0):
            break
    return started


@compiled
def find_packed(s: State, b: int, j: int) -> int:
    """Look for a place of one job by packing.

    Returns:
        On how many nodes it goes, as in `tmp_node` and `tmp_gpus`; 0: it does not fit.
    """
    if s.jobs[b, j, JOB.size_now] * s.jobs[b, j, JOB.each] > s.num[b, NUM.gpus_free]:
        return 0
    see(s, b)
    fits = choose_packing(s, b, j)
    return place(s, b, j, fits) if fits else 0


# --- events --------------------------------------------------------------------------------------


@inner
def _leave(s: State, b: int, j: int, rule: Rule, last: int) -> None:
    """Have a job give its nodes back; `last` says what becomes of it with the last one."""
    parts = s.jobs[b, j, JOB.parts]
    for p in range(parts):
        if p == parts - 1:
            s.num[b, NUM.part_freed] = 0
        else:
            s.num[b, NUM.part_freed] += s.held[b, j, p, 1]
        give_back(s, b, j, p)
        if p == parts - 1:
            s.jobs[b, j, JOB.parts] = s.jobs[b, j, JOB.until] = 0
            _become(s, b, j, last)
        if (rule.by_node or p == parts - 1) and not rule.at_once:
            serve(s, b, rule, FREED)


@inner
def _become(s: State, b: int, j: int, phase: int) -> None:
    s.jobs[b, j, JOB.phase] = phase
    if phase == PHASE.ended:
        s.jobs[b, j, JOB.ended] = s.num[b, NUM.now]
        s.num[b, NUM.open] -= 1
    elif phase == PHASE.waiting:
        enqueue(s, b, j)


@inner
def _happens(s: State, b: int, what: int, j: int, arg: int, rule: Rule) -> None:
    """Carry out one event."""
    now = s.num[b, NUM.now]
    if what == WHAT.end:
        _halt(s, b, j)
        s.jobs[b, j, JOB.done] = s.jobs[b, j, JOB.run]
        _leave(s, b, j, rule, PHASE.ended)
    elif what == WHAT.train:
        _train(s, b, j)
    elif what == WHAT.gone:
        _leave(s, b, j, rule, PHASE.waiting)
    elif what == WHAT.freed:
        _leave(s, b, j, rule, PHASE.away)
    elif what == WHAT.fault:
        _fault(s, b, j)
    elif what == WHAT.told and s.jobs[b, j, JOB.until] == NEVER:
        for p in range(s.jobs[b, j, JOB.parts]):
            forget(s, b, j, p)
        expect(s, b, j, predicted_end(s, b, j, 0))
    elif what == WHAT.told and s.jobs[b, j, JOB.phase] == PHASE.waiting:
        at = 0
        while s.queue[b, at] != j:
            at += 1
        since, waited = s.jobs[b, j, JOB.waits_since], s.jobs[b, j, JOB.waited]
        dequeue(s, b, at)
        set_key(s, b, j, rule.order)
        enqueue(s, b, j)
        s.jobs[b, j, JOB.waits_since], s.jobs[b, j, JOB.waited] = since, waited
        if not rule.at_once:
            serve(s, b, rule, FREED)
    assert now == s.num[b, NUM.now]


@inner
def _fault(s: State, b: int, j: int) -> None:
    """Stop a job by a fault; one below 0 stands for a random one, and another fault follows."""
    if j < 0:
        push(s, b, s.num[b, NUM.now] + next_fault(s.num, b), WHAT.fault, -1, 0)
        training = 0
        for i in range(s.num[b, NUM.events]):
            training += s.heap[b, i, HEAP.what] == WHAT.end and not _outdated(s, b, i)
        victim = int(uniform(s.num, b) * training)
        for i in range(s.num[b, NUM.events]):
            if s.heap[b, i, HEAP.what] == WHAT.end and not _outdated(s, b, i):
                if victim == 0:
                    j = s.heap[b, i, HEAP.job]
                victim -= 1
    if j >= 0 and s.jobs[b, j, JOB.phase] in (PHASE.starting, PHASE.running):
        s.num[b, NUM.faults] += 1
        stop(s, b, j)


@inner
def never_fits(s: State, b: int, j: int) -> bool:
    """Return whether a job does not fit the empty cluster: it is refused, as admission would."""
    need, slots = s.jobs[b, j, JOB.workers], 0
    for kind in range(s.speed.shape[1]):
        slots = 0
        for n in range(s.nodes.shape[1]):
            if s.nodes[b, n, NODE.kind] == kind and (s.jobs[b, j, JOB.kinds] >> kind) & 1:
                slots += s.nodes[b, n, NODE.size] // s.jobs[b, j, JOB.each]
        if slots >= need:
            return False
    return True


@inner
def _arrive(s: State, b: int, rule: Rule) -> None:
    j = s.num[b, NUM.next]
    s.num[b, NUM.next] += 1
    if never_fits(s, b, j):
        s.jobs[b, j, JOB.phase] = PHASE.refused
        s.num[b, NUM.open] -= 1
        return
    set_key(s, b, j, rule.order)
    at = enqueue(s, b, j)
    if s.jobs[b, j, JOB.told_at] > 0 and s.jobs[b, j, JOB.told] != NEVER:
        push(s, b, s.num[b, NUM.now] + s.jobs[b, j, JOB.told_at], WHAT.told, j, 0)
    if not rule.at_once:
        serve(s, b, rule, at)


@compiled
def next_at(s: State, b: int) -> int:
    """Return when the next event is; NEVER: there is none."""
    while s.num[b, NUM.events] > 0 and _outdated(s, b, 0):
        _pop(s, b)
    at = s.heap[b, 0, HEAP.at] if s.num[b, NUM.events] > 0 else NEVER
    if s.num[b, NUM.next] < s.jobs.shape[1]:
        at = min(at, s.jobs[b, s.num[b, NUM.next], JOB.at])
    return int(at)


@compiled
def step_one(s: State, b: int, rule: Rule) -> bool:
    """Have the next event happen: one end, change or arrival.

    Returns:
        Whether there was one.
    """
    at = next_at(s, b)
    if at >= NEVER:
        return False
    s.num[b, NUM.now] = at
    if s.num[b, NUM.events] > 0 and s.heap[b, 0, HEAP.at] <= at:
        what, j, arg = s.heap[b, 0, HEAP.what], s.heap[b, 0, HEAP.job], s.heap[b, 0, HEAP.arg]
        _pop(s, b)
        _happens(s, b, what, j, arg, rule)
    else:
        _arrive(s, b, rule)
    return True


@compiled
def run_until(s: State, b: int, rule: Rule, until: int) -> None:
    """Have everything happen up to and including a time, or until every job has ended."""
    while s.num[b, NUM.open] > 0:
        at = next_at(s, b)
        if at > until or at >= NEVER:
            return
        if not step_one(s, b, rule):
            return
        if rule.at_once and next_at(s, b) > at:
            serve(s, b, rule, FREED)


@compiled
def run_all(s: State, rule: Rule) -> None:
    """Play every environment of a batch to its end."""
    for b in range(s.num.shape[0]):
        run_until(s, b, rule, NEVER - 1)


# --- what an agent or an operator asks for -------------------------------------------------------


@inner
def stop(s: State, b: int, j: int) -> None:
    """Stop a job that has GPUs: its work since it was last stored is lost, and it waits again."""
    if s.jobs[b, j, JOB.phase] not in (PHASE.starting, PHASE.running):
        return
    _halt(s, b, j)
    s.jobs[b, j, JOB.lost] += s.jobs[b, j, JOB.done] - s.jobs[b, j, JOB.stored]
    s.jobs[b, j, JOB.done] = s.jobs[b, j, JOB.stored]
    s.jobs[b, j, JOB.phase] = PHASE.stopping
    s.jobs[b, j, JOB.overhead] += s.costs[COST.stop]
    push(s, b, s.num[b, NUM.now] + s.costs[COST.stop], WHAT.gone, j, 0)


@compiled
def suspend(s: State, b: int, j: int) -> bool:
    """Suspend a running job: its GPUs are free after the cost of that, and no work is lost."""
    if s.jobs[b, j, JOB.phase] != PHASE.running:
        return False
    _halt(s, b, j)
    s.jobs[b, j, JOB.stored] = s.jobs[b, j, JOB.done]
    s.jobs[b, j, JOB.phase] = PHASE.suspending
    s.jobs[b, j, JOB.overhead] += s.costs[COST.suspend]
    push(s, b, s.num[b, NUM.now] + s.costs[COST.suspend], WHAT.freed, j, 0)
    return True


@compiled
def resume(s: State, b: int, j: int) -> bool:
    """Have a suspended job go on where there is room; return whether there is."""
    if s.jobs[b, j, JOB.phase] != PHASE.away:
        return False
    parts = place(s, b, j, False)
    if parts == 0:
        return False
    take(s, b, j, parts)
    _go(s, b, j, s.costs[COST.resume])
    return True


@compiled
def resize(s: State, b: int, j: int, workers: int) -> bool:
    """Give a running job another number of workers, which it has after the cost of that.

    Workers that are added go to its own nodes if these hold all of them, else by the cells' rule.
    The GPUs that it gives back are free at once.
    """
    if (
        s.jobs[b, j, JOB.phase] != PHASE.running
        or workers < 1
        or workers == s.jobs[b, j, JOB.size_now]
    ):
        return False
    each, before, parts = s.jobs[b, j, JOB.each], s.jobs[b, j, JOB.size_now], 0
    if workers > before:
        s.jobs[b, j, JOB.size_now] = workers - before
        parts = _beside(s, b, j)
        s.jobs[b, j, JOB.size_now] = before
        if parts == 0 or s.jobs[b, j, JOB.parts] + parts > s.held.shape[2]:
            return False
    _halt(s, b, j)
    s.jobs[b, j, JOB.stored] = s.jobs[b, j, JOB.done]
    for p in range(s.jobs[b, j, JOB.parts]):
        forget(s, b, j, p)
    s.jobs[b, j, JOB.until] = 0
    if workers > before:
        for p in range(parts):
            _add_part(s, b, j, s.spot[b, p, 0], s.spot[b, p, 1])
    else:
        _shrink(s, b, j, (before - workers) * each)
    s.jobs[b, j, JOB.size_now] = workers
    s.jobs[b, j, JOB.phase] = PHASE.starting
    expect(s, b, j, predicted_end(s, b, j, s.costs[COST.resize]))
    s.jobs[b, j, JOB.overhead] += s.costs[COST.resize]
    push(s, b, s.num[b, NUM.now] + s.costs[COST.resize], WHAT.train, j, s.jobs[b, j, JOB.version])
    return True


@inner
def _beside(s: State, b: int, j: int) -> int:
    """Look for a place of further workers of a job, on its own nodes first."""
    for n in range(s.nodes.shape[1]):
        s.nodes[b, n, NODE.only] = 0
    for p in range(s.jobs[b, j, JOB.parts]):
        s.nodes[b, s.held[b, j, p, 0], NODE.only] = 1
    parts = place(s, b, j, True)
    for n in range(s.nodes.shape[1]):
        s.nodes[b, n, NODE.only] = 1
    return parts if parts > 0 else place(s, b, j, False)


@inner
def _add_part(s: State, b: int, j: int, n: int, gpus: int) -> None:
    at = s.jobs[b, j, JOB.parts]
    for p in range(s.jobs[b, j, JOB.parts]):
        if s.held[b, j, p, 0] == n:
            at = p
    if at == s.jobs[b, j, JOB.parts]:
        s.held[b, j, at, 0], s.held[b, j, at, 1] = n, 0
        s.jobs[b, j, JOB.parts] += 1
    s.held[b, j, at, 1] += gpus
    hold(s, b, n, gpus)


@inner
def _shrink(s: State, b: int, j: int, gpus: int) -> None:
    """Give GPUs back, from the last node on."""
    while gpus > 0:
        p = s.jobs[b, j, JOB.parts] - 1
        n, less = s.held[b, j, p, 0], min(s.held[b, j, p, 1], gpus)
        s.held[b, j, p, 1] -= less
        hold(s, b, n, -less)
        gpus -= less
        if s.held[b, j, p, 1] == 0:
            s.jobs[b, j, JOB.parts] -= 1


@compiled
def migrate(s: State, b: int, j: int) -> bool:
    """Move a running job to other nodes, in `s.only`; it trains there after the cost of that.

    Both places are held until then, in production for the time of its start as well.
    """
    if s.jobs[b, j, JOB.phase] != PHASE.running:
        return False
    parts = place(s, b, j, True)
    if parts == 0:
        return False
    _halt(s, b, j)
    s.jobs[b, j, JOB.stored] = s.jobs[b, j, JOB.done]
    for p in range(s.jobs[b, j, JOB.parts]):
        give_back(s, b, j, p)
    take(s, b, j, parts)
    expect(s, b, j, predicted_end(s, b, j, s.costs[COST.migrate]))
    s.jobs[b, j, JOB.phase] = PHASE.moving
    s.jobs[b, j, JOB.overhead] += s.costs[COST.migrate]
    push(s, b, s.num[b, NUM.now] + s.costs[COST.migrate], WHAT.train, j, s.jobs[b, j, JOB.version])
    return True
