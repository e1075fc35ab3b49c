"""What is told of a job and of a VC: shares by cause that come to the elapsed time, exactly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from skep.ledger.blame.causes import SLOWED, TRAINING, Cause
from skep.ledger.blame.holders import largest
from skep.ledger.blame.lives import MILLI, NO_DAY, PARTIES, Life, Stretch, Sum, merge, sum_up
from skep.ledger.blame.rates import divide
from skep.wire.facts import End

SHOWN = 5
"""Parties of a share; all the others are one more."""
VC_PARTIES = 64
"""Parties kept of a cause of a VC, of which SHOWN are told."""
OTHERS = "others"
ORDER = {cause: number for number, cause in enumerate(Cause)}
"""In which order causes are told."""
LEAST = 10_000
"""Others that have less than this part of a share are what rounding left."""


class Party(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Whose doing a part of a share was.

    `kind`: `job`, `node`, `reason` (a code: neither a job nor a node is to blame) or `others`.
    """

    kind: str
    ns: int
    name: str = ""
    vc: str = ""


class Share(msgspec.Struct, frozen=True, gc=False):
    """The time that went to one cause, and the GPU time that was held meanwhile (nanoseconds).

    What the parties do not come to has none.
    """

    cause: Cause
    ns: int
    gpu_ns: int
    parties: tuple[Party, ...] = ()


class Span(msgspec.Struct, frozen=True, gc=False):
    """One stretch of a job's time: instants, its one cause, and whose doing it was."""

    begin: int
    end: int
    cause: Cause
    parties: tuple[Party, ...] = ()


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job's time went. The shares come to `elapsed_ns`, and so do `earlier_ns` and spans.

    `end` is empty while it has not ended; then `until` is when this was told. GPU time is that of
    one GPU: of GPUs that are shared each job has an equal part. `useful_gpu_ns` made mini-batches
    that survive; `slowed_gpu_ns` is the part of it that a faster place would have saved.
    """

    job: str
    name: str
    vc: str
    gpus: int
    submitted_at: int
    until: int
    end: str
    elapsed_ns: int
    held_gpu_ns: int
    useful_gpu_ns: int
    slowed_gpu_ns: int
    lost_gpu_ns: int
    shares: tuple[Share, ...]
    earlier_ns: int
    spans: tuple[Span, ...]


class CauseTotal(msgspec.Struct, gc=False):
    """What went to one cause. Parties: nanoseconds by key, `blamed` those of all parties."""

    ns: int = 0
    gpu_ns: int = 0
    parties: dict[str, int] = {}
    blamed: int = 0


class Total(msgspec.Struct, kw_only=True):
    """What jobs of a VC come to. `cancelled_gpu_ns`: trained in jobs that were cancelled."""

    jobs: int = 0
    unfinished: int = 0
    elapsed_ns: int = 0
    held_gpu_ns: int = 0
    useful_gpu_ns: int = 0
    slowed_gpu_ns: int = 0
    lost_gpu_ns: int = 0
    cancelled_gpu_ns: int = 0
    causes: dict[Cause, CauseTotal] = {}

    def add(self, told: Told) -> None:
        """Add a job."""
        self.jobs += 1
        self.unfinished += not told.end
        self.elapsed_ns += told.elapsed_ns
        self.held_gpu_ns += told.held_gpu_ns
        self.lost_gpu_ns += told.lost_gpu_ns
        if told.end == End.CANCELLED:
            self.cancelled_gpu_ns += told.useful_gpu_ns
        else:
            self.useful_gpu_ns += told.useful_gpu_ns
            self.slowed_gpu_ns += told.slowed_gpu_ns
        for share in told.shares:
            known = self.causes.setdefault(share.cause, CauseTotal())
            known.ns += share.ns
            known.gpu_ns += share.gpu_ns
            for party in share.parties:
                known.blamed += party.ns
                if party.kind != OTHERS:
                    key = key_of(party)
                    known.parties[key] = known.parties.get(key, 0) + party.ns
            if len(known.parties) > 2 * VC_PARTIES:
                known.parties = largest(known.parties, VC_PARTIES)


class VcTold(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of the jobs of a VC went: the shares come to `elapsed_ns`."""

    vc: str
    jobs: int
    unfinished: int
    elapsed_ns: int
    held_gpu_ns: int
    useful_gpu_ns: int
    slowed_gpu_ns: int
    lost_gpu_ns: int
    cancelled_gpu_ns: int
    shares: tuple[Share, ...]


class Pieces(NamedTuple):
    """All time of a job, with training told apart: the latest, and sums of what is older."""

    stretches: list[Stretch]
    sums: list[Sum]


def divided(life: Life, pending: Sequence[Stretch]) -> Pieces:
    """Return the time of a job.

    Args:
        life: The job. It is not changed.
        pending: Its stretch that is not over, in parts.
    """
    return Pieces(
        [part for one in (*life.stretches, *pending) for part in _divided(life, one)],
        [part for one in life.earlier for part in _divided_sum(life, one)],
    )


def tell(life: Life, pending: Sequence[Stretch], end: str = "") -> Told:
    """Return where a job's time went.

    Args:
        life: The job. It is not changed.
        pending: Its stretch that is not over, in parts.
        end: How it ended; empty: it has not.
    """
    return tell_pieces(life, divided(life, pending), end)


def tell_pieces(life: Life, pieces: Pieces, end: str = "") -> Told:
    """Return where a job's time went, of what `divided` returned."""
    until = pieces.stretches[-1].end if pieces.stretches else life.at
    sums: list[Sum] = []
    spans: list[Span] = []
    for part in pieces.stretches:
        sum_up(sums, part)
        spans.append(Span(part.begin, part.end, part.cause, named(part.parties, part.length)))
    for more in pieces.sums:
        merge(sums, msgspec.structs.replace(more, day=NO_DAY, kind=""))
    shares = tuple(
        Share(one.cause, one.length, one.gpu_ns, named(one.parties, one.blamed))
        for one in sorted(sums, key=lambda each: ORDER[each.cause])
    )
    return Told(
        job=life.job,
        name=life.name,
        vc=life.vc,
        gpus=life.wanted,
        submitted_at=life.begin,
        until=until,
        end=end,
        elapsed_ns=until - life.begin,
        held_gpu_ns=sum(share.gpu_ns for share in shares),
        useful_gpu_ns=_gpu_ns(shares, TRAINING),
        slowed_gpu_ns=_gpu_ns(shares, SLOWED),
        lost_gpu_ns=_gpu_ns(shares, {Cause.WORK_LOST}),
        shares=shares,
        earlier_ns=sum(one.length for one in life.earlier),
        spans=tuple(spans),
    )


def tell_vc(vc: str, total: Total) -> VcTold:
    """Return where the time of a VC's jobs went."""
    shares = tuple(
        Share(
            cause,
            total.causes[cause].ns,
            total.causes[cause].gpu_ns,
            named(total.causes[cause].parties, total.causes[cause].blamed),
        )
        for cause in Cause
        if cause in total.causes
    )
    return VcTold(
        vc=vc,
        jobs=total.jobs,
        unfinished=total.unfinished,
        elapsed_ns=total.elapsed_ns,
        held_gpu_ns=total.held_gpu_ns,
        useful_gpu_ns=total.useful_gpu_ns,
        slowed_gpu_ns=total.slowed_gpu_ns,
        lost_gpu_ns=total.lost_gpu_ns,
        cancelled_gpu_ns=total.cancelled_gpu_ns,
        shares=shares,
    )


def key_of(party: Party) -> str:
    """Return the key that a party was made of."""
    return " ".join((party.kind, *((party.vc,) if party.vc else ()), party.name))


def _party(key: str, ns: int) -> Party:
    kind, *rest = key.split(" ", 2)
    return Party(kind, ns, rest[-1], rest[0] if kind == "job" else "")


def named(parts: dict[str, int], length: int) -> tuple[Party, ...]:
    """Return the largest parties; what the others have, if there are any, is one more."""
    shown = largest(parts, SHOWN)
    left = length - sum(shown.values())
    parties = [_party(key, ns) for key, ns in shown.items()]
    rounding = left * LEAST < length or left <= len(parts)
    if parties and rounding and len(shown) == len(parts):
        parties[0] = msgspec.structs.replace(parties[0], ns=parties[0].ns + left)
    elif parties and left > 0:
        parties.append(Party(OTHERS, left))
    return tuple(parties)


def _gpu_ns(shares: Iterable[Share], causes: Iterable[Cause]) -> int:
    return sum(share.gpu_ns for share in shares if share.cause in causes)


# --- what training was ----------------------------------------------------------------------------


def _divided(life: Life, stretch: Stretch) -> Iterable[Stretch]:
    """Yield a stretch; of training its parts, one after the other, that which trained first."""
    if not 0 <= stretch.condition < len(life.conditions):
        yield msgspec.structs.replace(stretch, condition=-1, unsaved=False)
        return
    here, begin = life.conditions[stretch.condition], stretch.begin
    parts = list(divide(stretch.length, here, life.conditions, life.solo, life.workers))
    for cause, length, named in reversed(parts):
        yield Stretch(
            begin,
            begin + length,
            cause,
            stretch.gpus,
            parties=_evenly(length, named),
            kind=stretch.kind,
        )
        begin += length


def _divided_sum(life: Life, one: Sum) -> Iterable[Sum]:
    """Yield the same of stretches that were summed up."""
    if not 0 <= one.condition < len(life.conditions) or not one.length:
        yield msgspec.structs.replace(one, condition=-1, unsaved=False)
        return
    here, left = life.conditions[one.condition], one.gpu_ns
    parts = list(divide(one.length, here, life.conditions, life.solo, life.workers))
    for number, (cause, length, named) in enumerate(parts):
        last = number == len(parts) - 1
        gpu_ns = left if last else one.gpu_ns * length // one.length
        left -= gpu_ns
        parties = _evenly(length, named)
        blamed = length if parties else 0
        yield Sum(cause, -1, False, length, gpu_ns, parties, blamed, one.day, one.kind)


def _evenly(length: int, named: Sequence[str]) -> dict[str, int]:
    if not named:
        return {}
    each = length // len(named)
    return dict.fromkeys(named[:PARTIES], each)


assert PARTIES >= SHOWN
assert MILLI == 1000
