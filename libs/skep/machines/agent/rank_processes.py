"""Several processes of one rank, heard as one: what `torchrun --nproc-per-node 4` starts.

Each process has a connection of its own, says which of how many it is, and is told whatever the
rank is told. The rank can do what all of them can; it has answered an order when all of them have.
Its processes stop where ranks of a gang do, after a common step (`change_progress.common_step`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from skep.wire.node import Tier
from skep.wire.reports import RankProgress
from skep.wire.talk import (
    Answer,
    Can,
    Checkpointed,
    Failed,
    Hello,
    Past,
    Released,
    Resumed,
    Said,
    Shared,
    Suspended,
)

TOGETHER = ("checkpoint", "copies", "release", "share", "suspend")
"""What several processes can do as one. For the rest each would need a place of its own to go to,
devices or a port, and ranks are what has those."""

STANDS = (Suspended, Released)


class Voice(msgspec.Struct):
    """One process, as it spoke of itself since its latest hello."""

    can: Can | None = None
    answer: Answer | None = None


class Voices:
    """The processes of all ranks that have several. Soft: all of it is said again."""

    def __init__(self) -> None:
        """Know of none yet."""
        self._ranks: dict[str, dict[int, Voice]] = {}

    def count(self, token: str) -> int:
        """Return how many processes a rank has that train together."""
        return len(self._ranks.get(token, (None,)))

    def stands(self, token: str) -> bool:
        """Return whether some process of a rank of several said last that it stands."""
        said = self._ranks.get(token, {}).values()
        return any(isinstance(voice.answer, STANDS) for voice in said)

    def drop(self, token: str) -> None:
        """Forget a rank that has ended."""
        self._ranks.pop(token, None)

    def heard(self, token: str, message: Said) -> Said | None:
        """Take what one process said, and return what its rank says by that.

        Args:
            token: The name of the rank among processes (`ids.run_token`).
            message: What one of its processes said.

        Returns:
            The message itself for a rank of one process; None: other processes have yet to say the
            same.
        """
        if isinstance(message, Hello):
            self._greeted(token, message)
            return message
        voices = self._ranks.get(token)
        if voices is None:
            return message
        voice = voices.get(message.part)
        if voice is None:
            return None
        match message:
            case Can():
                voice.can = message
                return _common([each.can for each in voices.values()])
            case (
                Suspended() | Past() | Released() | Resumed() | Checkpointed() | Shared() | Failed()
            ):
                if voice.answer is None or message.order >= voice.answer.order:
                    voice.answer = message
                return _together([each.answer for each in voices.values()], message.order)
            case _:
                return None

    def _greeted(self, token: str, hello: Hello) -> None:
        if hello.parts < 2 or not 0 <= hello.part < hello.parts:
            self._ranks.pop(token, None)
            return
        voices = self._ranks.get(token, {})
        if len(voices) != hello.parts:
            voices = {part: Voice() for part in range(hello.parts)}
        voices[hello.part] = Voice()
        self._ranks[token] = voices


def merged(said: Sequence[RankProgress]) -> RankProgress:
    """Return how far a rank is whose processes are so far: as the slowest one, memory in sum."""
    slowest = min(said, key=lambda one: one.steps)
    told = max(said, key=lambda one: one.values_step)
    return msgspec.structs.replace(
        slowest,
        step_ns=max(one.step_ns for one in said),
        memory=sum(one.memory for one in said),
        values=told.values,
        values_step=told.values_step,
        fingerprint=next((one.fingerprint for one in said if one.fingerprint is not None), None),
        stands=next((one.stands for one in said if one.stands is not None), None),
        own=max(
            (one.own for one in said if one.own is not None),
            key=lambda own: own.own_ns,
            default=None,
        ),
    )


def _common(said: Sequence[Can | None]) -> Can | None:
    """Return what all processes can, once all have said it."""
    known = [one for one in said if one is not None]
    if len(known) < len(said):
        return None
    can = tuple(name for name in TOGETHER if all(name in one.can for one in known))
    tier = min((one.tier for one in known), key=lambda text: text != Tier.OBSERVED)
    return msgspec.structs.replace(known[0], part=0, tier=tier, can=can)


def _together(said: Sequence[Answer | None], order: int) -> Answer | None:
    """Return the answer of all processes to an order, once all have given theirs."""
    known = [one for one in said if one is not None and one.order == order]
    if len(known) < len(said):
        return None
    failed = [one for one in known if isinstance(one, Failed)]
    if failed:
        first = failed[0]
        error = f"process {first.part}: {first.error or first.what}"
        partly = len(failed) < len(known)
        return msgspec.structs.replace(first, part=0, error=error, partly=partly)
    past = [one for one in known if isinstance(one, Past)]
    if past:
        return msgspec.structs.replace(max(past, key=lambda one: one.step), part=0)
    if len({type(one) for one in known}) > 1:
        return None  # Some have yet to do what the others did.
    return _sum(known)


def _sum(known: Sequence[Answer]) -> Answer:
    """Return answers of one kind as one."""
    first = known[0]
    match first:
        case Suspended():
            steps = sorted({one.step for one in known if isinstance(one, Suspended)})
            if len(steps) > 1:
                text = f"its processes stand after different mini-batches: {steps}"
                return Failed(
                    job=first.job,
                    attempt=first.attempt,
                    rank=first.rank,
                    order=first.order,
                    what="suspend",
                    error=text,
                )
        case Released():
            each = [one for one in known if isinstance(one, Released)]
            left = [one.residue for one in each]
            return msgspec.structs.replace(
                first,
                part=0,
                moved=sum(one.moved for one in each),
                residue=-1 if min(left) < 0 else sum(left),
            )
        case Resumed():
            pause_ns = max(one.pause_ns for one in known if isinstance(one, Resumed))
            return msgspec.structs.replace(first, part=0, pause_ns=pause_ns)
        case Shared():
            used = sum(one.used for one in known if isinstance(one, Shared))
            return msgspec.structs.replace(first, part=0, used=used)
        case Checkpointed():
            stored = sum(one.bytes for one in known if isinstance(one, Checkpointed))
            return msgspec.structs.replace(first, part=0, bytes=stored)
        case _:
            pass
    return msgspec.structs.replace(first, part=0)
