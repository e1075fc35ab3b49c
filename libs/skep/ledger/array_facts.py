"""How facts change what is known of arrays: which have not ended, and for what one waits.

    seen --ArrayDeferred--> deferred --ArrayEligible--> open --ArrayEnded--> ended
                            deferred --ArrayBroken--> broken --ArrayEnded--> ended
    ended --ArraySeen (a retry)--> open

An array that waits for nothing is open when it is seen. Any of them may be cancelled, and ends.
"""

from __future__ import annotations

from typing import assert_never

from skep.ids import job_sequence
from skep.ledger import deferral_facts
from skep.ledger.job_state import ArrayState, Deferral
from skep.ledger.state import ClusterState
from skep.wire.array_gate import (
    ArrayBroken,
    ArrayDeferred,
    ArrayEligible,
    ArrayEnded,
    ArraySeen,
    GateFact,
)
from skep.wire.facts import End


def apply(state: ClusterState, fact: GateFact) -> None:
    """Take over what a fact says of an array."""
    match fact:
        case ArraySeen():
            state.last_queued = max(state.last_queued, job_sequence(fact.array) or 0)
            state.last_asked = max(state.last_asked, fact.number)
            state.ends.pop(fact.array, None)
            state.arrays[fact.array] = ArrayState(
                array=fact.array, vc=fact.vc, after=fact.after, gated=fact.gated, number=fact.number
            )
        case ArrayDeferred():
            _defer(state, state.arrays[fact.array], fact)
        case ArrayEligible():
            array = state.arrays[fact.array]
            _forget(state, array)
            array.gated = False
        case ArrayBroken():
            _forget(state, state.arrays[fact.array])
        case ArrayEnded():
            array = state.arrays.pop(fact.array)
            _forget(state, array)
            deferral_facts.over(state, fact.array, array.vc, End(fact.end))
        case _:
            assert_never(fact)


def _defer(state: ClusterState, array: ArrayState, fact: ArrayDeferred) -> None:
    array.waits = fact.why, fact.needs
    if array.deferral is not None:
        array.deferral.begin, array.deferral.held = fact.begin, fact.held
        return  # What it awaits only becomes less, by the ends of those jobs.
    array.deferral = Deferral(dict.fromkeys(fact.awaits), fact.begin, fact.held)
    deferral_facts.index(state, fact.array, array)


def _forget(state: ClusterState, array: ArrayState) -> None:
    """Have an array wait for nothing more."""
    array.waits = None
    if array.deferral is not None:
        deferral_facts.forget(state, array.array, array)
