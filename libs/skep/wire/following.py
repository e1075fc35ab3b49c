"""Whether a virtual cluster follows its learned model, as facts.

The allocator records `AdviceFollowed` where a VC's policy `learned` turns to its model or to its
rule; the advisor records `StageSet` where a model's stage in a VC changes.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from skep.wire.bounds import Moment, Short
from skep.wire.message import Message
from skep.wire.reasons import Reason

LEARNED = "learned"
"""The policy of a VC that follows a model."""

ModelName = Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?$(?!\n)")]
"""The SHA-256 of a model file, which is its name; empty: none."""


class AdviceFollowed(Message, frozen=True, tag="advice-followed"):
    """A VC with the policy `learned` is planned otherwise from now on.

    It `follows` the model, or its rule, and `why`. Recorded where one of these changes.
    """

    vc: Short
    follows: bool
    why: Reason
    at: Moment
    model: ModelName = ""
    rule: Short = ""
