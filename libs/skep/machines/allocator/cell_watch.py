"""The watch over the cells: what tests assert after every event is looked at in production too.

After every decision that recorded something, sharing safety of every chain and the GPUs of jobs
that got or changed them; everything else in rounds, a bounded part of them each second
(`cells.patrol`). What is broken is a fact, with the facts that led to it, and never the end of the
allocator: jobs run on, and an operator is told. An alarm is over once the same place is found in
order.
"""

from __future__ import annotations

from collections.abc import Iterator

from skep import ids
from skep.cells.patrol import Broken, Patrol, check_hold, unsafe_levels
from skep.ledger.state import Place
from skep.machines.allocator.transaction import Transaction
from skep.units import Instant, after, seconds
from skep.wire.changes import GpusRegained
from skep.wire.facts import CellsAlarm, CellsReserved, JobBound, JobDemoted, JobPromoted
from skep.wire.reasons import Reason

ROUND_EVERY = seconds(1)
ROUND_GPUS = 1024
"""GPUs looked at each second: all 65,536 of a very large cluster in a minute, for one or two
hundredths of a processor (`benchmarks/cells.py` tells)."""
ALARMS_AT_ONCE = 5
ALARMS_MAX = 100
"""New alarms in one decision, so that their facts fit its record beside a large gang's, and alarms
at one time: a broken index is found in every cell, and the first hundred tell enough."""
HOLDS = (JobBound, JobDemoted, JobPromoted, CellsReserved, GpusRegained)
"""Facts by which a job gets GPUs, or holds them in another way."""
WRONG = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""What a look at broken cells may raise."""

OF_POLICIES = (Reason.POLICY_FAILED, Reason.NOT_ITS_JOB)
"""What is said of policies: it is over with the next plan that is right, or another policy."""


def look(tx: Transaction, now: Instant) -> None:
    """Look at what a decision may have broken.

    Args:
        tx: Its effects are read; alarms are added, and ends of alarms.
        now: The time of the decision.
    """
    if not tx.weighty:
        return
    cells = tx.state.cells
    found: list[Broken] = []
    for chain in cells.chains.values():
        _collect(found, unsafe_levels(chain))
    for fact in list(tx.weighty):
        if isinstance(fact, HOLDS):
            _collect(found, check_hold(cells, ids.attempt_id(fact.job, fact.attempt)))
    if tx.state.alarms:
        broken = {_place(each) for each in found}
        for place in [each for each in tx.state.alarms if each[0] is Reason.CELLS_UNSAFE]:
            if place not in broken:
                _over(tx, place, now)
    if found:
        _raise(tx, found, now)


def go_round(tx: Transaction, now: Instant) -> None:
    """Go on with the round, if it is time to; at its end alarms that were not found again end.

    Args:
        tx: Its cells are read; alarms are added, and ends of alarms.
        now: The time of the decision.
    """
    soft = tx.soft
    if now < soft.patrol_at <= after(now, ROUND_EVERY):
        return
    soft.patrol_at = after(now, ROUND_EVERY)
    patrol = soft.patrol
    if patrol is None or patrol.over or patrol.cells is not tx.state.cells:
        patrol = soft.patrol = Patrol(tx.state.cells)
        soft.seen = {}
    found: list[Broken] = []
    _collect(found, patrol.step(ROUND_GPUS))
    _raise(tx, found, now)
    if patrol.over:
        for place in [
            each for each in tx.state.alarms if each not in soft.seen and each[0] not in OF_POLICIES
        ]:
            _over(tx, place, now)


def policy_wrong(tx: Transaction, vc: str, rule: Reason, text: str, now: Instant) -> None:
    """Say once of a VC's policy what is wrong with its plans.

    Args:
        tx: An alarm is added, unless there is one already or there are ALARMS_MAX.
        vc: The VC.
        rule: One of `OF_POLICIES`.
        text: What is wrong, for an operator.
        now: The time of the decision.
    """
    place = rule, "", vc
    known = tx.state.alarms.get(place)
    if known is None and len(tx.state.alarms) < ALARMS_MAX:
        tx.record(CellsAlarm(rule=rule, chain="", where=vc, vcs=(vc,), text=text, at=now))


def no_policy(tx: Transaction, now: Instant) -> None:
    """Say which policies cannot be made, and take back what was said of those no VC has now."""
    for place in list(tx.state.alarms):
        soft = tx.soft
        gone = place[2] not in soft.planned and place[2] not in soft.unmade
        if place[0] in OF_POLICIES and gone:
            _over(tx, place, now)
    for vc, text in tx.soft.unmade.items():
        policy_wrong(tx, vc, Reason.POLICY_FAILED, text, now)


def policy_right(tx: Transaction, vc: str, rule: Reason, now: Instant) -> None:
    """Take back what was said of a VC's policy.

    Args:
        tx: The end of the alarm is added, if there is one.
        vc: The VC.
        rule: One of `OF_POLICIES`.
        now: The time of the decision.
    """
    if (rule, "", vc) in tx.state.alarms:
        _over(tx, (rule, "", vc), now)


def _collect(found: list[Broken], look: Iterator[Broken]) -> None:
    """Add what a look finds; that the look itself fails is something found."""
    try:
        found.extend(look)
    except WRONG as error:
        text = f"looking at the cells failed: {type(error).__name__}: {error}"
        found.append(Broken(Reason.CELLS_MISCOUNTED, "", (), "", text))


def _raise(tx: Transaction, found: list[Broken], now: Instant) -> None:
    """Record alarms for what is broken and was not before."""
    fresh = 0
    for broken in found:
        place = _place(broken)
        tx.soft.seen[place] = None
        room = fresh < ALARMS_AT_ONCE and len(tx.state.alarms) < ALARMS_MAX
        if place not in tx.state.alarms and room:
            fresh += 1
            tx.record(
                CellsAlarm(
                    rule=broken.rule,
                    chain=broken.chain,
                    where=broken.where,
                    vcs=broken.vcs,
                    text=broken.text,
                    at=now,
                    story=_story(tx, broken),
                )
            )


def _over(tx: Transaction, place: Place, now: Instant) -> None:
    """Record that an alarm is over."""
    alarm = tx.state.alarms[place]
    tx.record(
        CellsAlarm(
            rule=alarm.rule,
            chain=alarm.chain,
            where=alarm.where,
            vcs=alarm.vcs,
            text=alarm.text,
            at=now,
            over=True,
        )
    )


def _place(broken: Broken) -> Place:
    """Return what identifies a broken invariant."""
    return broken.rule, broken.chain, broken.where


def _story(tx: Transaction, broken: Broken) -> tuple[str, ...]:
    """Return the latest facts that name the chain, the place, or a VC concerned."""
    names = dict.fromkeys((broken.chain, *broken.vcs, *broken.where.split("/")))
    node = tx.state.nodes.get(broken.where)
    if node is not None:
        names.update(dict.fromkeys(job for job, _ in node.holdings))
    return tx.soft.story_of([name for name in names if name])
