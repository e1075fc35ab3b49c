"""What a client is told about what it asked: sent to the subject in its `Skep-Reply` header."""

from __future__ import annotations

from skep.wire.message import Message
from skep.wire.promises import Judged
from skep.wire.reasons import Reason
from skep.wire.spec import Problem


class Verdict(Message, frozen=True, tag="verdict"):
    """`job` is the id to ask about; for a repeated key it is the original's.

    `problems` is empty exactly if the submission or cancellation was accepted. `judged` answers to
    the deadline of the job, if it has one.
    """

    job: str
    accepted: bool
    reason: Reason | None = None
    problems: tuple[Problem, ...] = ()
    judged: Judged | None = None
