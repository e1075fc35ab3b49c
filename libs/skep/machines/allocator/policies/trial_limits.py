"""What a policy is shown of trials: how many may begin, and what cools down."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from skep.ledger import records, trial_facts
from skep.ledger.state import ClusterState
from skep.policy.view import TrialView
from skep.units import Instant, after
from skep.wire.trials import Kind


def limits(state: ClusterState, name: str) -> dict[str, Any]:
    """Return until when no trial of a job, or of `vc:` and a VC, is begun, as views tell it.

    Args:
        state: Its trials are read.
        name: A job, or `vc:` and a VC.

    Returns:
        Fields of views by name; none where no trial ever began.
    """
    if not state.tries.begun:
        return {}
    return {
        "trial_after": trial_facts.full(state, name),
        "move_after": trial_facts.full(state, f"moves {name}"),
    }


class Pairs:
    """Pairs of a VC that were tried often: found again where a trial began or a job ended."""

    def __init__(self) -> None:
        """Start with no pair."""
        self._found_at = 0, 0
        self._often: list[tuple[str, list[Instant]]] = []

    def tired(self, tries: records.Tries, vc: str, now: Instant) -> Iterator[TrialView]:
        """Yield whose packs were tried often enough, for the rest of the hour.

        Args:
            tries: Read: when trials began.
            vc: The VC, always the same one.
            now: The time of the view.
        """
        at = tries.latest, len(tries.begun)
        if at != self._found_at:
            self._found_at = at
            self._often = [
                (name, begun)
                for name, begun in tries.begun.items()
                if len(begun) >= trial_facts.PAIR_MAX
                and name.startswith(f"{trial_facts.PAIR} {vc} ")
            ]
        for name, begun in self._often:
            until = after(begun[-trial_facts.PAIR_MAX], trial_facts.HOUR)
            if now < until:
                yield TrialView(Kind.PACK, (), until, tuple(name.split(" ")[2:]))


def cooling(state: ClusterState, vc: str, pairs: Pairs, now: Instant) -> tuple[TrialView, ...]:
    """Return what is not to be tried in a VC now.

    Args:
        state: Read.
        vc: The VC.
        pairs: Its pairs.
        now: The time of the view.
    """
    cools = tuple(
        TrialView(each.kind, each.families, each.until)
        for each in state.tries.cooling.get(vc, {}).values()
        if now < each.until
    )
    return cools + tuple(pairs.tired(state.tries, vc, now))
