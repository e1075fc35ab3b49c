"""The other processes of this service: whose turn it is, and whether it has passed.

A standby asks each peer after its health several times a second. It takes over once no peer is
active: the server says at once that none listens when a process was killed, and a process that
is paused or cut off is silent. Taking over from one that only seemed gone is harmless, because the
log refuses what the other writes next; waiting longer for certainty would only cost time.

An active process asks too, less often. It ends when a peer took over later than it did, so that
one that wakes up from a long pause does not stay beside its successor until its next write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from skep.units import Instant
from skep.wire import subjects
from skep_services.adapters.nats_client import Msg
from skep_services.adapters.nats_link import Link, Silence
from skep_services.ports import SupersededError

ASK_EVERY_S = 0.1
"""How often a standby asks: a core request costs 0.3 ms, and recovery should not wait for it."""
ASK_TIMEOUT_S = 0.5
"""A hundred times what an answer takes on an idle machine."""
UNHEARD_MAX = 3
"""How often in a row none listens before a peer is gone: one that only changes its server is back
within 0.2 s."""
SILENT_S_MAX = 3.0
"""How long a peer may listen and not answer: its longest decisions and pauses are far shorter."""
LOOK_EVERY_S = 1.0

assert ASK_TIMEOUT_S < LOOK_EVERY_S < SILENT_S_MAX


class Standing(NamedTuple):
    """How late an active process took over; the later one is the rightful one.

    The epoch decides wherever there is a log. The time, by the process's own clock (ns), decides
    between processes that keep no facts, of which two at once do no harm.
    """

    epoch: int
    since: Instant


class _Health(msgspec.Struct, frozen=True):
    epoch: int = 0
    active_since: Instant = Instant(0)


class _Peer:
    """What was heard of one peer lately."""

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.unheard = 0
        self.silent_from: float | None = None


class Peers:
    """The processes `others` of the service of which `link` belongs to `identity`."""

    def __init__(self, link: Link, identity: str, others: Sequence[str]) -> None:
        self._link, self._identity = link, identity
        self._peers = [_Peer(other) for other in others]

    async def has_come(self) -> bool:
        await asyncio.sleep(ASK_EVERY_S)
        gone = await asyncio.gather(*(self._yields(peer) for peer in self._peers))
        return all(gone)

    async def _yields(self, peer: _Peer) -> bool:
        """Return whether `peer` leaves the work to this process."""
        now = asyncio.get_running_loop().time()
        answer = await self._ask(peer)
        if isinstance(answer, _Health):
            peer.unheard, peer.silent_from = 0, None
            # Of two that stand by, the one that is named first takes over.
            return not answer.active_since and self._identity < peer.identity
        if answer is Silence.NO_RESPONDERS:
            peer.unheard += 1
        elif answer is Silence.TIMEOUT:
            peer.silent_from = peer.silent_from or now
        else:
            # This process is the one that is cut off: it knows nothing of others.
            peer.unheard, peer.silent_from = 0, None
        silent = peer.silent_from is not None and now - peer.silent_from >= SILENT_S_MAX
        return peer.unheard >= UNHEARD_MAX or silent

    async def superseded(self, own: Standing) -> SupersededError:
        """Return once a peer is active that took over later than `own` says of this process."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for peer in self._peers:
                answer = await self._ask(peer)
                if not isinstance(answer, _Health) or not answer.active_since:
                    continue
                if Standing(answer.epoch, answer.active_since) > own:
                    return SupersededError(f"{peer.identity} took over with epoch {answer.epoch}")

    async def _ask(self, peer: _Peer) -> _Health | Silence:
        answer = await self._link.call(subjects.health(peer.identity), b"", {}, ASK_TIMEOUT_S)
        return msgspec.json.decode(answer.data, type=_Health) if isinstance(answer, Msg) else answer
