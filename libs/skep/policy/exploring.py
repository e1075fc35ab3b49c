"""Which of a model's nearly best moves is made first, where a VC has opted in, within its budget.

    choices of an advice --scores--> chances, exact in millionths --seed--> one of them

A draw is a function of the view, so it comes out the same when it is decided again; what it came to
is a fact with its chance, and the budget counts by these facts alone. A move that is not the best
costs its GPUs for as long as its job is predicted to run: no more is tried on a day (UTC) than the
budget has. What a job takes beyond that is not counted.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

from skep.policy.plan import Drawn
from skep.policy.sizes import gpus_per_worker
from skep.policy.view import JobView, VcView
from skep.units import Instant, seconds
from skep.wire.learned import AdvisedMove

WHOLE = 1_000_000
"""Chances are in millionths."""
DAY = seconds(86_400.0)
UNKNOWN = seconds(3600.0)
"""What a job is taken to run for of which nothing is predicted."""
LEAST = seconds(60.0)
"""What any move costs for each of its GPUs: a job said to be over at once is not for nothing."""


def chances(scores: Sequence[int], share_milli: int, margin_milli: int) -> list[int]:
    """Return with which chance each of some moves is made.

    With `share_milli` one is drawn, the better the likelier (softmax), and else it is the best.

    Args:
        scores: Of the moves in thousandths, best first.
        share_milli: In thousandths, how often one is drawn.
        margin_milli: A move that is so much worse is e times less likely.

    Returns:
        Millionths; their sum is exactly WHOLE.
    """
    weights = [math.exp((score - scores[0]) / margin_milli) for score in scores]
    each = share_milli * WHOLE // 1000 / sum(weights)
    found = [int(weight * each) for weight in weights]
    found[0] += WHOLE - sum(found)
    return found


def draw(view: VcView, share_milli: int, margin_milli: int, budget: int) -> Drawn | None:
    """Return what is drawn of the choices of a model's advice; None: nothing is.

    Args:
        view: The VC.
        share_milli: In thousandths, how often one is drawn.
        margin_milli: How much worse than the best a move may be.
        budget: GPU-nanoseconds of a day.
    """
    advised, said = view.advised, view.followed
    if advised is None or not advised.seed:
        return None
    if said is not None and said.seed == advised.seed:
        return None  # It is drawn once: what came of it holds.
    day = int(view.now // DAY)
    spent = 0
    if said is not None and day <= said.day:  # A clock that was set back begins no new day.
        day, spent = said.day, said.spent
    if not advised.moves or not advised.choices or not _same(advised.moves[0], advised.choices[0]):
        return None
    jobs, best = {job.job: job for job in view.jobs}, advised.choices[0].score_milli
    open_, costs = [0], [0]
    for place, move in enumerate(advised.choices[1:], 1):
        job = jobs.get(move.job)
        if job is None or not 0 <= best - move.score_milli <= margin_milli:
            continue
        cost = _cost(job, move, view.now)
        if spent + cost <= budget:
            open_.append(place)
            costs.append(cost)
    if len(open_) < 2:
        return None
    scores = [advised.choices[place].score_milli for place in open_]
    likely = chances(scores, share_milli, margin_milli)
    drawn, at = _number(advised.seed), 0
    while drawn >= likely[at]:
        drawn -= likely[at]
        at += 1
    made = _what(advised.choices[open_[at]]) if open_[at] else None
    return Drawn(advised.seed, open_[at], likely[at], day, spent + costs[at], made)


def chosen(view: VcView, drawn: Drawn | None) -> tuple[AdvisedMove, ...]:
    """Return the moves of a model's advice that are made: all, or the one that was drawn instead.

    The sight after that one is answered anew, so what was to follow the best one is not made. The
    same sight may be answered again with other choices: what was drawn is made while it is among
    them, and no other move in its place.

    Args:
        view: The VC; its model may be followed.
        drawn: What was drawn just now; None: what was before counts, if it was of this sight.
    """
    advised, said = view.advised, view.followed
    assert advised is not None
    move = drawn.move if drawn is not None else None
    if drawn is None and said is not None and advised.seed and said.seed == advised.seed:
        move = said.move
    if move is None:
        return advised.moves
    return tuple(each for each in advised.choices if _same(each, move))[:1] or advised.moves


def _what(move: AdvisedMove) -> AdvisedMove:
    """Return a move without how good it looked."""
    return AdvisedMove(job=move.job, workers=move.workers, spread=move.spread)


def _same(some: AdvisedMove, other: AdvisedMove) -> bool:
    return (some.job, some.workers, some.spread) == (other.job, other.workers, other.spread)


def _cost(job: JobView, move: AdvisedMove, now: Instant) -> int:
    """Return the GPU-nanoseconds of a move, as its job is predicted to run."""
    left = job.remaining(now)
    return (move.workers or job.workers) * gpus_per_worker(job) * max(left or UNKNOWN, LEAST)


def _number(seed: int) -> int:
    """Return a number below WHOLE, any as likely as another."""
    return int.from_bytes(hashlib.sha256(b"%d" % seed).digest()[:8], "big") % WHOLE
