"""What would be if: asked of the service that decides, and answered by it without deciding.

A `Question` is a core request on `skep.v1.draft.allocator`, an `Answer` its reply: what the
production code decides on a copy of the state as it is at that moment. Nothing is recorded or told
to other services, so an answer promises nothing about the next moment. `Judge` is the same for
admission.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from skep.units import Instant
from skep.wire.bounds import LISTED_MAX, Length, Short, Words
from skep.wire.member import Member
from skep.wire.message import Message
from skep.wire.reasons import Reason
from skep.wire.spec import JobSpec, Problem

ASKED_FOR_S = 15.0
"""How long the answer to a question is waited for: longer than the allocator gives itself."""


class Start(StrEnum):
    """When a job would get its GPUs."""

    NOW = "now"
    AFTER = "after"
    """As soon as those who are named have made room: they are told to at once."""
    LATER = "later"
    """When jobs that run are over, as far as their ends are known."""
    UNKNOWN = "unknown"
    """It waits, and nobody knows for how long."""


class Touch(StrEnum):
    """What happens to another job."""

    STOPS = "stops"
    SUSPENDS = "suspends"
    MOVES = "moves"
    RESIZES = "resizes"
    SHARES = "shares"
    STORES = "stores"
    """It stores its state; whoever asks for that mostly stops it then."""
    BORROWS = "borrows"
    """It goes on where it is, without its VC's cells."""
    UNCLAIMS = "unclaims"
    """It loses what was reserved for it, and waits again."""
    STARTS = "starts"


class Touched(Message, frozen=True):
    """A job that is touched: how, and its rate before and then (None: unknown).

    Rates are thousandths of a mini-batch per second.
    """

    job: str
    vc: str
    what: Touch
    gpus: int
    why: Reason | None = None
    rate_milli: int | None = None
    then_milli: int | None = None


class Outcome(Message, frozen=True):
    """What would become of a job.

    `why` is the reason of its place, or of its waiting, which `needs` makes precise. `at`: when it
    has its GPUs, `ends_at` when it is over, by what is known of lengths (None: unknown);
    `ends_most` when its time limit ends it. `awaits`: the jobs whose ends come first. `unknown`:
    how many jobs run whose end is unknown. `limits`: some of the ends are those of time limits, and
    may come sooner. `nodes`: how many the place has; `members` are the first of them.
    """

    start: Start
    why: Reason | None = None
    needs: str = ""
    members: tuple[Member, ...] = ()
    chain: str = ""
    borrows: bool = False
    at: Instant | None = None
    ends_at: Instant | None = None
    ends_most: Instant | None = None
    others: tuple[Touched, ...] = ()
    others_more: int = 0
    awaits: tuple[str, ...] = ()
    unknown: int = 0
    limits: bool = False
    nodes: int = 0


class Option(Message, frozen=True):
    """A change of a job, what it is called, and what would become of the job with it.

    The job is cancelled and submitted anew with `spec`; without one, it only waits.
    """

    why: Reason
    value: str
    outcome: Outcome
    spec: JobSpec | None = None


class Question(Message, frozen=True, tag="question"):
    """What would become of `spec`, or else of `job`, which waits, and what would start it now?

    `remaining`: how long jobs still have to run, as the asker knows it. `others`: whether to try
    other virtual clusters as well.
    """

    job: Short = ""
    spec: JobSpec | None = None
    remaining: Annotated[dict[Short, Length], Meta(max_length=LISTED_MAX)] = {}
    others: bool = False


class Answer(Message, frozen=True, tag="answer"):
    """`options` start the job now, the smallest change first; those `in_vain` do not.

    `problem`: why there is no answer.
    """

    at: Instant
    outcome: Outcome | None = None
    options: tuple[Option, ...] = ()
    in_vain: tuple[Option, ...] = ()
    problem: str = ""


class Judge(Message, frozen=True, tag="judge"):
    """Would this be admitted, in place of the job `instead`, if any? `spec` is as submitted.

    `person` would submit it; empty: the VC as a whole.
    """

    vc: Short
    spec: Words
    instead: Short = ""
    person: Short = ""


class Judgement(Message, frozen=True, tag="judgement"):
    """The spec as it would run, or what is wrong with it."""

    spec: JobSpec | None = None
    problems: tuple[Problem, ...] = ()


Asked = Question | Judge
Told = Answer | Judgement
