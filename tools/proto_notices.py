"""Golden examples of the notifier's journal."""

from __future__ import annotations

import msgspec

from skep.units import Instant
from skep.wire import notices

_AT = Instant(1_700_000_000_000_000_000)
_LATER = Instant(1_700_000_010_000_000_000)

NOTIFIER_FACTS: tuple[msgspec.Struct, ...] = (
    notices.JobWatched(
        job="j17",
        name="train",
        vc="nlp",
        owner="ann",
        to=("team-chat", "ann@example.org"),
        on=("end", "late"),
        due=_LATER,
        started=True,
    ),
    notices.JobUnwatched(job="j17"),
    notices.NoticeMade(
        job="j17",
        event="end",
        vc="nlp",
        target="team-chat",
        text="j17 (train) of ann in nlp succeeded: every process ended with status 0",
        at=_AT,
    ),
    notices.NoticeLost(
        job="j17",
        event="end",
        vc="nlp",
        target="team-chat",
        why="1000 notices wait for the target already",
        at=_AT,
    ),
    notices.MessageBegun(number=4, vc="nlp", target="team-chat", count=2),
    notices.MessageTried(
        number=4,
        vc="nlp",
        target="team-chat",
        at=_AT,
        trouble="it answers 503",
        again_at=_LATER,
        open_at=_LATER,
    ),
    notices.MessageKept(
        number=4,
        vc="nlp",
        target="team-chat",
        at=_AT,
        tries=1,
        trouble="it answers 503",
        notices=2,
        jobs=("j17", "j18"),
        again_at=_LATER,
        over=True,
    ),
)
