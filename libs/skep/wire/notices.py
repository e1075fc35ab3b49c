"""Notices of what becomes of jobs: the facts of the notifier's journal, and what it is asked.

A *notice* is one event of one job for one target. A *message* is what is delivered: the notices
that wait for a target, in one piece. Its number is its identity: a message that is sent again after
a crash has the same number and the same notices.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from skep.units import Instant
from skep.wire.bounds import Short, Text, Token
from skep.wire.facts import EpochBegan
from skep.wire.message import Message
from skep.wire.notice_targets import TARGET_CHARS_MAX, TARGETS_MAX
from skep.wire.spec import Problem

NOTICE_BYTES_MAX = 64 * 1024
"""A request of the gateway's, and the answer of the notifier."""

Target = Annotated[str, Meta(max_length=TARGET_CHARS_MAX)]


class JobWatched(Message, frozen=True, tag="job-watched"):
    """A job that tells somebody is known. `due` is when it is late; 0: never, or that was told.

    `started`: it was told, or nobody wanted to know, that it runs.
    """

    job: str
    name: str
    vc: str
    owner: str
    to: tuple[str, ...]
    on: tuple[str, ...]
    due: Instant = Instant(0)
    started: bool = False


class JobUnwatched(Message, frozen=True, tag="job-unwatched"):
    """Nothing more is told of a job."""

    job: str


class NoticeMade(Message, frozen=True, tag="notice-made"):
    """An event of a job waits to be told to a target of its VC. `text` is one line."""

    job: str
    event: str
    vc: str
    target: str
    text: str
    at: Instant


class NoticeLost(Message, frozen=True, tag="notice-lost"):
    """An event was not told: too many wait for the target, or it is too long ago."""

    job: str
    event: str
    vc: str
    target: str
    why: str
    at: Instant


class MessageBegun(Message, frozen=True, tag="message-begun"):
    """The first `count` notices for a target are one message from here on."""

    number: int
    vc: str
    target: str
    count: int


class MessageTried(Message, frozen=True, tag="message-tried"):
    """A message was sent, or was not: `trouble` says why. It is tried again at `again_at`; 0: no.

    `open_at`: before that nothing more is sent to the target.
    """

    number: int
    vc: str
    target: str
    at: Instant
    trouble: str = ""
    again_at: Instant = Instant(0)
    open_at: Instant = Instant(0)


class MessageKept(Message, frozen=True, tag="message-kept"):
    """Where a message stands, in a compacted journal: behind its MessageBegun, if it is not over.

    One that is over is kept for those that ask what was told lately.
    """

    number: int
    vc: str
    target: str
    at: Instant
    tries: int
    trouble: str
    notices: int
    jobs: tuple[str, ...]
    again_at: Instant = Instant(0)
    over: bool = False


NotifierFact = (
    EpochBegan
    | JobWatched
    | JobUnwatched
    | NoticeMade
    | NoticeLost
    | MessageBegun
    | MessageTried
    | MessageKept
)


class AskNotifier(Message, frozen=True, tag="ask-notifier"):
    """The gateway asks: may a VC tell these targets, send a test, or what was told lately."""

    do: Literal["check", "test", "list"]
    vc: Token | None = None
    to: Annotated[tuple[Target, ...], Meta(max_length=TARGETS_MAX)] = ()
    by: Short = ""


class TargetShown(Message, frozen=True):
    """A target of the operator's: never its URL. Without `vcs` every VC may use it."""

    name: Short
    kind: Short
    vcs: tuple[Short, ...] = ()


class MessageShown(Message, frozen=True):
    """A message as people see it. `state` is waiting, sent, failed or lost."""

    number: int
    vc: Short
    target: Target
    state: Short
    at: Instant
    tries: int
    notices: int
    jobs: tuple[str, ...]
    trouble: Text = ""
    again_at: Instant = Instant(0)


class NotifierSays(Message, frozen=True, tag="notifier-says"):
    """The answer. `mail` and `webhooks`: whether jobs may name such of their own."""

    problems: tuple[Problem, ...] = ()
    targets: tuple[TargetShown, ...] = ()
    messages: tuple[MessageShown, ...] = ()
    waiting: int = 0
    mail: bool = False
    webhooks: bool = False
    trouble: Text = ""
