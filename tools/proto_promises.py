"""Golden examples of the messages about deadlines."""

from __future__ import annotations

import msgspec

from skep.units import Duration, Instant
from skep.wire import promises
from skep.wire.reasons import Reason

AT = Instant(1_760_000_000_000_000_000)
DUE = Instant(AT + 28_800_000_000_000)
HOUR = 3_600_000_000_000
PLACE = promises.Place(
    gpu_type="v100", gpus=8, begin=Instant(DUE - 3 * HOUR), end=DUE, nodes=((0, 8), (2, 8))
)
LATE = promises.Judged(
    answer=promises.Answer.LATE,
    why=Reason.BEHIND_PROMISES,
    due=DUE,
    text="late: its cells are promised to j12",
    p50=Instant(DUE + HOUR),
    p90=Instant(DUE + 2 * HOUR),
    alone=Duration(2 * HOUR),
    behind=("j12",),
    helps=(
        promises.Help(why=Reason.AT_A_LATER_TIME, key="finish_by", value="2025-10-09T18:54:00Z"),
    ),
    note="it counts as normal",
)
PROMISE_FACTS: tuple[msgspec.Struct, ...] = (
    promises.PromiseJudged(job="j18", vc="nlp", judged=LATE, at=AT),
    promises.PromiseMade(
        job="j17",
        vc="nlp",
        judged=promises.Judged(answer=promises.Answer.ACCEPTED, why=Reason.IN_TIME, due=DUE),
        place=PLACE,
        lasts=promises.Lasts(p10=Duration(HOUR), p50=Duration(2 * HOUR), p90=Duration(3 * HOUR)),
        at=AT,
        declared=Duration(2 * HOUR),
        spread=(500, 1000, 1500),
    ),
    promises.PromiseMoved(job="j17", place=PLACE, why=Reason.IN_TIME, at=AT),
    promises.PromiseBroken(
        job="j17", vc="nlp", due=DUE, why=Reason.NODE_LOST, at=AT, detail="a node was silent"
    ),
    promises.PromiseKept(job="j17", vc="nlp", due=DUE, at=AT),
    promises.JobSeen(job="j17", runs=False, at=AT, lost=True, why=Reason.NODE_LOST),
    promises.LengthSeen(job="j17", vc="nlp", milli=1100),
    promises.NodeAway(node="node-1", away=True),
)
