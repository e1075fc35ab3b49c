"""Whether a virtual cluster follows its learned model, as facts.

The allocator records `AdviceFollowed` where a VC's policy `learned` turns to its model or to its
rule; the advisor records `StageSet` where a model's stage in a VC changes.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from skep.units import Instant
from skep.wire.bounds import Count, Gain, Milli, Moment, Nanoseconds, Short
from skep.wire.cluster import Cluster
from skep.wire.learned import AdvisedMove
from skep.wire.message import Message
from skep.wire.reasons import Reason

MARGIN_MILLI = 500
"""How much worse than the best a move may be that is tried, unless the VC says otherwise."""
LEARNED = "learned"
"""The policy of a VC that follows a model."""


def models_named(cluster: Cluster) -> dict[str, str]:
    """Return the model that the policy of each VC names, by VC, without those that name none."""
    given = {
        vc: each.options.get("model") for vc, each in cluster.vcs.items() if each.policy == LEARNED
    }
    return {vc: model for vc, model in given.items() if isinstance(model, str) and model}


def explores(cluster: Cluster) -> dict[str, int]:
    """Return by VC that explores how much worse than the best the moves may be that are tried.

    Returns:
        Thousandths of a model's score.
    """
    found = {
        vc: each.options.get("explore_margin_milli", MARGIN_MILLI)
        for vc, each in cluster.vcs.items()
        if each.policy == LEARNED and each.options.get("explore_share_milli", 0)
    }
    return {vc: margin for vc, margin in found.items() if isinstance(margin, int)}


ModelName = Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?$(?!\n)")]
"""The SHA-256 of a model file, which is its name; empty: none."""


class AdviceFollowed(Message, frozen=True, tag="advice-followed"):
    """A VC with the policy `learned` is planned otherwise from now on.

    It `follows` the model, or its rule, and `why`, since `at`. Recorded where one of these changes,
    and in a VC that explores for each draw, which leaves `at` as it was: by the `seed` of an advice
    its `choice` was made (0: the best one), which had `chance` millionths. `spent` are the
    GPU-nanoseconds of what was explored on that `day` (since 1970), as predicted. `move` is what
    was made instead of the best one; earlier records do not have it.
    """

    vc: Short
    follows: bool
    why: Reason
    at: Moment
    model: ModelName = ""
    rule: Short = ""
    seed: Count = 0
    choice: Count = 0
    chance: Count = 0
    day: Count = 0
    spent: Nanoseconds = 0
    move: AdvisedMove | None = None


def turns(before: AdviceFollowed | None, said: AdviceFollowed) -> bool:
    """Return whether a VC is planned otherwise than before, and not only another move was drawn."""
    names = ("vc", "follows", "why", "model", "rule")
    return any(getattr(before, name, None) != getattr(said, name) for name in names)


GuardStage = Literal["shadow", "switchback", "on", "off"]
"""How far a model has come in a VC."""


class StageSet(Message, frozen=True, tag="stage-set"):
    """A model's stage in a VC changes, and why; nothing else is tried before `until`.

    `decisions` of the rule were compared with the model's advice, and `agreed_milli` thousandths of
    them were among it. `gain_milli`, within `low_milli` to `high_milli` nine times in ten or more,
    is over `pairs`: in shadow, by how much the model's other choices were shorter in hindsight
    (thousandths of both); else by how much lower the model's mean completion time was, in
    thousandths of its logarithm, over blocks of periods.

    The model was first watched at `named_at`, and its turns have cost `spent` since: so much of the
    time of the rule's jobs, in nanoseconds of a period; below 0 they have saved it.
    """

    vc: Short
    model: ModelName
    stage: GuardStage
    why: Reason
    at: Moment
    until: Moment = Instant(0)
    decisions: Count = 0
    agreed_milli: Milli = 0
    pairs: Count = 0
    gain_milli: Gain = 0
    low_milli: Gain = 0
    high_milli: Gain = 0
    named_at: Moment = Instant(0)
    spent: Gain = 0


class ShadowSeen(Message, frozen=True, tag="shadow-seen"):
    """What came of a model's advice in shadow so far, in all since the stage began.

    `sum_milli` and `square_milli` are the sums of the gains of `pairs`, and of their squares. Of
    the `agreed` jobs the model would have begun `alike` at the same time, as large and as close
    together, and would not have changed their sizes since.
    """

    vc: Short
    model: ModelName
    at: Moment
    decisions: Count
    agreed: Count
    pairs: Count = 0
    sum_milli: Gain = 0
    square_milli: Milli = 0
    alike: Count = 0


class BlockMeasured(Message, frozen=True, tag="block-measured"):
    """What came of one block of periods in which a model and its rule took turns.

    `gain_milli` is the mean logarithm of the completion times under the rule less that under the
    model, in thousandths. A block with too few jobs in either has `valid` false.
    """

    vc: Short
    model: ModelName
    block: Count
    at: Moment
    by_model: Count
    by_rule: Count
    valid: bool
    gain_milli: Gain = 0


GuardFact = StageSet | ShadowSeen | BlockMeasured
"""What the advisor records of models' stages, in the stream PROFILES."""
