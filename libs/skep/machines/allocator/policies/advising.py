"""Models that advise policies: what they are told, what they said, and whether it is followed.

    views change --> Sight, at most every SIGHTS_EVERY --> advisor --> LearnedAdvice --> VcView

All of it is soft but `AdviceFollowed`. A decision waits for no model: what it says comes as any
other message, and the policy plans again then.
"""

from __future__ import annotations

from msgspec.structs import replace

from skep.machines.allocator.policies import policy_views
from skep.machines.allocator.policies.policy_memory import Planned
from skep.machines.allocator.policies.sights import Sights
from skep.machines.allocator.transaction import Transaction
from skep.machines.base import Send
from skep.policy.plan import Drawn, Following
from skep.units import Instant, after, seconds
from skep.wire import subjects
from skep.wire.following import AdviceFollowed, turns
from skep.wire.learned import LearnedAdvice, SightWanted
from skep.wire.reasons import Reason

SIGHTS_EVERY = seconds(0.5)
"""How often a model is told what is new in a VC: it costs as much as changed, and a plan by what
was said half a second ago is as good."""
WHEN = ("number", "at", "expires_at")
"""Fields of advice that say nothing of what to do."""


def heard(tx: Transaction, event: LearnedAdvice, now: Instant) -> None:
    """Take over what a model says; its policy judges it.

    Args:
        tx: A plan is asked for, if it says something new, or was missed.
        event: What it says.
        now: The time of the decision.
    """
    planned = tx.soft.planned.get(event.vc)
    if planned is None or planned.sights is None:
        return
    before, planned.advised = planned.advised, event
    planned.sights.answered(event.number)
    said = tx.state.followed.get(event.vc)
    late = said is not None and said.why is Reason.ADVICE_LATE
    if late or before is None or before.expires_at <= now or _says(before) != _says(event):
        planned.due = True
    elif planned.look_at == before.expires_at:
        planned.look_at = event.expires_at


def _says(advice: LearnedAdvice) -> list[object]:
    """Return what advice says, but when."""
    names = (name for name in advice.__struct_fields__ if name not in WHEN)
    return [getattr(advice, name) for name in names]


def wanted(tx: Transaction, event: SightWanted) -> None:
    """Have the next sight of a VC be whole, and sent soon."""
    planned = tx.soft.planned.get(event.vc)
    if planned is not None and planned.sights is not None:
        planned.sights.again()


def note(tx: Transaction, planned: Planned, following: Following, now: Instant) -> None:
    """Record whether a VC follows its model, where that is otherwise than was said.

    Args:
        tx: The fact is added.
        planned: The VC, with the policy `learned`.
        following: What its plan says.
        now: The time of the decision.
    """
    policy, drawn = planned.policy, following.drawn
    fact = AdviceFollowed(
        vc=planned.vc,
        follows=following.model,
        why=following.why,
        at=now,
        model=getattr(policy, "model", ""),
        rule=getattr(policy, "rule", ""),
    )
    known = tx.state.followed.get(planned.vc)
    if known is not None:  # What was explored goes on counting.
        named = {name: getattr(known, name) for name in Drawn.__struct_fields__}
        fact = replace(fact, **named)
        if not turns(known, fact):
            fact = known
    if drawn is not None:
        named = {name: getattr(drawn, name) for name in Drawn.__struct_fields__}
        fact = replace(fact, **named)
    if fact != known:
        tx.record(fact)


def is_due(tx: Transaction, now: Instant) -> bool:
    """Return whether some model has to be told something, or it has to be said when."""
    at = tx.soft.sights_at
    if at is not None and at <= now:
        return True  # Even if nothing is new any more: the timer is to go.
    return any(
        (at is None or _soonest(each.sights, now) < at) and _is_stale(tx, each, now)
        for each in tx.soft.planned.values()
        if each.sights is not None
    )


def _soonest(sights: Sights, now: Instant) -> Instant:
    """Return when a sight may be sent: at any time if the clock was set back."""
    return now if sights.at is None or now < sights.at else after(sights.at, SIGHTS_EVERY)


def _is_stale(tx: Transaction, planned: Planned, now: Instant) -> bool:
    """Return whether a VC may be otherwise than its model was told, or all of it is to be told."""
    sights = planned.sights
    if sights is None:
        return False
    return sights.whole(now, tx.settings.sights_whole_every) or sights.stale(
        planned.jobs(), _counts(tx)
    )


def _counts(tx: Transaction) -> tuple[int, int]:
    return tx.soft.changes, tx.soft.stirred


def tell(tx: Transaction, now: Instant) -> None:
    """Send the sights that are due, and note when the next one is.

    Args:
        tx: Messages are added.
        now: The time of the decision.
    """
    policy_views.bring_up(tx, now)
    times = list[Instant]()
    for planned in tx.soft.planned.values():
        sights = planned.sights
        if sights is None or not _is_stale(tx, planned, now):
            continue
        due = _soonest(sights, now)
        if due > now:
            times.append(due)
            continue
        view = policy_views.of_vc(tx, planned, now)
        whole = sights.whole(now, tx.settings.sights_whole_every)
        seen = sights.see(view, _counts(tx), whole=whole)
        within = planned.policy.answers_within
        if seen is not None and within is not None:
            late = after(sights.unanswered or now, within)
            planned.look_at = min(planned.look_at or late, late)
            tx.effects.append(Send(subjects.SIGHTS, seen))
    tx.soft.sights_at = min(times, default=None)
