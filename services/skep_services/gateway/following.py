"""Whether VCs follow their learned models, as it is told over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skep.ledger.state import ClusterState
from skep.wire.following import AdviceFollowed, StageSet
from skep.wire.reasons import TEXT, Reason
from skep_services.gateway.callers import Only, covers


def sentence(said: AdviceFollowed) -> str:
    """Return which way a VC is planned, and why."""
    if said.follows:
        return f"{said.vc} is planned by its model {said.model[:12]}"
    return f"{said.vc} is planned by its rule {said.rule}: {TEXT[said.why]}"


def following_view(
    state: ClusterState, stages: Mapping[tuple[str, str], StageSet], vc: Only
) -> list[dict[str, Any]]:
    """Return by VC with a model whether that is followed, since when, and how far it has come.

    Args:
        state: What the allocator's facts tell.
        stages: By VC and model: the latest stage.
        vc: Only of these; empty: of all.
    """
    found = []
    for name, said in sorted(state.followed.items()):
        if not covers(vc, name):
            continue
        stage = stages.get((name, said.model))
        found.append(
            {
                "vc": name,
                "follows": said.follows,
                "model": said.model,
                "rule": said.rule,
                "why": said.why,
                "text": sentence(said),
                "since": said.at,
                "stage": _stage(stage) if stage is not None else None,
                **({"explored": _explored(said)} if said.seed else {}),
            }
        )
    return found


def _explored(said: AdviceFollowed) -> dict[str, Any]:
    """Return what was drawn last, and what of its day's budget is spent."""
    names = ("choice", "chance", "day", "spent")
    return {name: getattr(said, name) for name in names}


def _stage(stage: StageSet) -> dict[str, Any]:
    return {
        "stage": stage.stage,
        "since": stage.at,
        "why": stage.why,
        "decisions": stage.decisions,
        "agreed_milli": stage.agreed_milli,
        "pairs": stage.pairs,
        "gain_milli": stage.gain_milli,
        "low_milli": stage.low_milli,
        "high_milli": stage.high_milli,
        "text": stage_sentence(stage),
    }


def stage_sentence(stage: StageSet) -> str:
    """Return how far a model has come, and the figures that it rests on."""
    told = f"stage {stage.stage}"
    if stage.why is not Reason.STAGE_SHADOW:  # That is why the rule plans: it was told.
        told += f": {TEXT[stage.why]}"
    if stage.decisions:
        told += f"; agreed in {stage.agreed_milli / 10:.0f}% of {stage.decisions:,} decisions"
    if stage.pairs:
        low, high = stage.low_milli / 10, stage.high_milli / 10
        gain = f"{stage.gain_milli / 10:+.1f}% ({low:+.1f} to {high:+.1f})"
        told += f"; {gain} over {stage.pairs:,} comparisons"
    return told
