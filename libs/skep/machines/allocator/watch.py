"""The watch over the cells: what tests assert after every event is looked at in production too.

After every decision that recorded something, sharing safety of every chain and the GPUs of whoever
got or changed them; everything else in rounds, a bounded part of them each second (`cells.patrol`).
What is broken is a fact, with the facts that led to it, and never the end of the allocator: jobs
run on, and an operator is told. An alarm is over once the same place is found in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from skep.cells.patrol import Broken, Patrol, check_hold, unsafe_levels
from skep.ledger import attempt_names
from skep.ledger.state import Place
from skep.machines.base import Record
from skep.units import Instant, after, seconds
from skep.wire import codec
from skep.wire.changes import GpusRegained, MemberLearned
from skep.wire.facts import (
    CellsAlarm,
    CellsReserved,
    JobBound,
    JobDemoted,
    JobPromoted,
    JobQueued,
    JobRan,
    JobWaits,
    MemberRan,
)
from skep.wire.reasons import Reason

if TYPE_CHECKING:
    from skep.machines.allocator.machine import AllocatorMachine

ROUND_EVERY = seconds(1)
ROUND_GPUS = 1024
"""GPUs looked at each second: all 65,536 of a very large cluster in a minute, for one or two
hundredths of a processor (`benchmarks/cells.py` tells)."""
STORY_KEPT = 500
STORY_FACTS = 20
STORY_CHARS = 200
"""Facts searched for a story, told in one, and what is told of each: a story is 4 kB at most."""
ALARMS_AT_ONCE = 5
ALARMS_MAX = 100
"""New alarms in one decision, so that their facts fit its record beside a large gang's, and alarms
at one time: a broken index is found in every cell, and the first hundred tell enough."""
ASIDE = frozenset((JobQueued, JobWaits, MemberRan, JobRan, MemberLearned))
"""Facts that change nothing about cells: they need no look."""
HOLDS = frozenset((JobBound, JobDemoted, JobPromoted, CellsReserved, GpusRegained))
"""Facts by which somebody gets GPUs, or holds them in another way."""
WRONG = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""What a look at broken cells may raise."""

OF_POLICIES = (Reason.POLICY_FAILED, Reason.NOT_ITS_JOB)
"""What is said of policies: it is over with the next plan that is right, or another policy."""


def look(machine: AllocatorMachine, now: Instant) -> None:
    """Look at what a decision may have broken."""
    facts = [
        effect.fact
        for effect in machine.effects
        if type(effect) is Record and type(effect.fact) not in ASIDE
    ]
    if not facts:
        return
    cells = machine.state.cells
    found: list[Broken] = []
    for chain in cells.chains.values():
        _collect(found, unsafe_levels(chain))
    for fact in facts:
        if type(fact) in HOLDS:
            _collect(found, check_hold(cells, attempt_names.holder(fact.job, fact.attempt)))
    if machine.state.alarms:
        broken = {_place(each) for each in found}
        for place in [each for each in machine.state.alarms if each[0] is Reason.CELLS_UNSAFE]:
            if place not in broken:
                _over(machine, place, now)
    if found:
        _raise(machine, found, now)


def go_round(machine: AllocatorMachine, now: Instant) -> None:
    """Go on with the round, if it is time to; at its end alarms that were not found again end."""
    soft = machine.soft
    if now < soft.patrol_at <= after(now, ROUND_EVERY):
        return
    soft.patrol_at = after(now, ROUND_EVERY)
    patrol = soft.patrol
    if patrol is None or patrol.over or patrol.cells is not machine.state.cells:
        patrol = soft.patrol = Patrol(machine.state.cells)
        soft.seen = {}
    found: list[Broken] = []
    _collect(found, patrol.step(ROUND_GPUS))
    _raise(machine, found, now)
    if patrol.over:
        for place in [
            each
            for each in machine.state.alarms
            if each not in soft.seen and each[0] not in OF_POLICIES
        ]:
            _over(machine, place, now)


def policy_wrong(machine: AllocatorMachine, vc: str, rule: Reason, text: str, now: Instant) -> None:
    """Say once of a VC's policy what is wrong with its plans."""
    place = rule, "", vc
    known = machine.state.alarms.get(place)
    if known is None and len(machine.state.alarms) < ALARMS_MAX:
        machine.record(CellsAlarm(rule=rule, chain="", where=vc, vcs=(vc,), text=text, at=now))


def no_policy(machine: AllocatorMachine, now: Instant) -> None:
    """Say which policies cannot be made, and take back what was said of those no VC has now."""
    for place in list(machine.state.alarms):
        soft = machine.soft
        gone = place[2] not in soft.planned and place[2] not in soft.unmade
        if place[0] in OF_POLICIES and gone:
            _over(machine, place, now)
    for vc, text in machine.soft.unmade.items():
        policy_wrong(machine, vc, Reason.POLICY_FAILED, text, now)


def policy_right(machine: AllocatorMachine, vc: str, rule: Reason, now: Instant) -> None:
    """Take back what was said of a VC's policy."""
    if (rule, "", vc) in machine.state.alarms:
        _over(machine, (rule, "", vc), now)


def _collect(found: list[Broken], look: Iterator[Broken]) -> None:
    """Add what a look finds; that the look itself fails is something found."""
    try:
        found.extend(look)
    except WRONG as error:
        text = f"looking at the cells failed: {type(error).__name__}: {error}"
        found.append(Broken(Reason.CELLS_MISCOUNTED, "", (), "", text))


def _raise(machine: AllocatorMachine, found: list[Broken], now: Instant) -> None:
    fresh = 0
    for broken in found:
        place = _place(broken)
        machine.soft.seen[place] = None
        room = fresh < ALARMS_AT_ONCE and len(machine.state.alarms) < ALARMS_MAX
        if place not in machine.state.alarms and room:
            fresh += 1
            machine.record(
                CellsAlarm(
                    rule=broken.rule,
                    chain=broken.chain,
                    where=broken.where,
                    vcs=broken.vcs,
                    text=broken.text,
                    at=now,
                    story=_story(machine, broken),
                )
            )


def _over(machine: AllocatorMachine, place: Place, now: Instant) -> None:
    alarm = machine.state.alarms[place]
    machine.record(
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
    return broken.rule, broken.chain, broken.where


def _story(machine: AllocatorMachine, broken: Broken) -> tuple[str, ...]:
    """Return the latest facts that name the chain, the place, or a VC concerned."""
    names = dict.fromkeys((broken.chain, *broken.vcs, *broken.where.split("/")))
    node = machine.state.nodes.get(broken.where)
    if node is not None:
        names.update(dict.fromkeys(job for job, _ in node.holdings))
    return story_of(machine, [name for name in names if name])


def story_of(machine: AllocatorMachine, names: Iterable[str]) -> tuple[str, ...]:
    """Return the latest facts that name one of these, each cut to STORY_CHARS, oldest first."""
    wanted = [f'"{name}"'.encode() for name in names]
    told: list[str] = []
    for fact in reversed(machine.soft.story):
        text = _encoded(fact)
        if any(name in text for name in wanted):
            told.append(text[:STORY_CHARS].decode(errors="replace"))
            if len(told) == STORY_FACTS:
                break
    return tuple(reversed(told))


def _encoded(fact: Any) -> bytes:
    return b"" if isinstance(fact, CellsAlarm) else codec.encode(fact)
