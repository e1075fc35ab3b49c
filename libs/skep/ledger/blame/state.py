"""What is known of all jobs at once: lives, the users of each GPU, and what waits for what.

Nothing here fails: a log may begin anywhere, and a fact about a job that is not known changes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from skep.ledger.blame.causes import BY_HOLDERS, Cause
from skep.ledger.blame.holders import Holders
from skep.ledger.blame.lives import MILLI, Life, Ranks, Stretch, weighed
from skep.ledger.blame.rates import Condition
from skep.ledger.blame.told import Total
from skep.ledger.blame.usage import Usage
from skep.wire.spec import suits

GROUPS_MAX = 256
"""Groups of holders: VCs times types of GPUs that are asked for. Beyond it types are not told
apart."""
EVERYONE = ""
"""The scope of opportunistic jobs, which may have any idle GPU."""


class Blame(msgspec.Struct):
    """Where the time of each job goes."""

    clock: int = 0
    """The instant of the latest record."""
    lives: dict[str, Life] = {}
    """The jobs that have not ended."""
    users: dict[str, list[str]] = {}
    """By GPU (`node/index`): the jobs that hold it."""
    groups: dict[str, dict[str, Holders]] = {}
    """By scope (a VC, or all), by type of GPU that is asked for."""
    kinds: dict[str, str] = {}
    """By chain: its type of GPU."""
    lost: dict[str, None] = {}
    """Nodes that are lost."""
    totals: dict[str, Total] = {}
    """By VC: what its ended jobs come to."""
    usage: Usage = {}
    """By person, project and type of GPU, day by day: the same."""

    # --- stretches -----------------------------------------------------------------------------

    def pending(self, life: Life, now: int) -> list[Stretch]:
        """Return the stretch of a job that is not over, as if it ended now, in one part or two."""
        length = now - life.at
        if length <= 0:
            return []
        holders = self._waited_for(life)
        if holders is None:
            return [life.stretch(life.at, now, parties=weighed(length, life.parties))]
        busy, named = holders.blamed(life.job, now)
        busy = min(busy, length)
        if sum(named.values()) > busy:  # By another clock it has not waited as long.
            named = weighed(busy, named)
        alone = Cause.WAITS_ALONE if life.cause is Cause.WAITS_BEHIND else life.cause
        middle = now - busy
        idle = [life.stretch(life.at, middle, alone)] if busy < length else []
        return [*idle, life.stretch(middle, now, parties=named)] if busy else idle

    def cut(self, life: Life, now: int) -> None:
        """End the stretch of a job that is not over, and begin one alike."""
        if now < life.at:
            life.rewind(now)
        waited_for = self._waited_for(life)
        for stretch in self.pending(life, now):
            life.push(stretch)
        life.at = max(life.at, now)
        if waited_for is not None:
            waited_for.wait(life.job, now)

    def turn(
        self, life: Life, now: int, cause: Cause, parties: dict[str, int] | None = None
    ) -> None:
        """End the stretch of a job that is not over, and begin one of a cause.

        Args:
            life: The job.
            now: The instant.
            cause: What follows. Where no parties are named, holders of GPUs may be.
            parties: Weights by party.
        """
        if now < life.at:
            life.rewind(now)
        waited_for = self._waited_for(life)
        for stretch in self.pending(life, now):
            life.push(stretch)
        life.at = max(life.at, now)
        if waited_for is not None:
            waited_for.waits_no_more(life.job)
        life.cause, life.in_line = cause, False
        life.parties = dict(parties) if parties else {}
        if cause in BY_HOLDERS and not life.parties and not life.gpus:
            life.in_line = True
            self._holders(life, now).wait(life.job, now)

    def _waited_for(self, life: Life) -> Holders | None:
        return self._holders(life, self.clock) if life.in_line else None

    # --- GPUs ----------------------------------------------------------------------------------

    def place(
        self,
        life: Life,
        now: int,
        parts: dict[str, Ranks] | None = None,
        next_parts: dict[str, Ranks] | None = None,
    ) -> None:
        """Have a job hold GPUs from now on.

        Args:
            life: The job.
            now: The instant.
            parts: Its GPUs, by node and rank; None: as before.
            next_parts: Those of its successor; None: as before.
        """
        before = dict.fromkeys((*gpus_of(life.parts), *gpus_of(life.next_parts)))
        self._of_kind(life, now)
        life.parts = life.parts if parts is None else parts
        life.next_parts = life.next_parts if next_parts is None else next_parts
        after = dict.fromkeys((*gpus_of(life.parts), *gpus_of(life.next_parts)))
        touched: dict[str, None] = {life.job: None}
        for gpu in before:
            if gpu not in after:
                self.users[gpu].remove(life.job)
                touched.update(dict.fromkeys(self.users[gpu]))
                if not self.users[gpu]:
                    del self.users[gpu]
        for gpu in after:
            if gpu not in before:
                users = self.users.setdefault(gpu, [])
                touched.update(dict.fromkeys(users))
                users.append(life.job)
        for name in touched:
            self._count(self.lives[name], now)

    def _of_kind(self, life: Life, now: int) -> None:
        """Note of which type the GPUs of a job are, as its chain says."""
        kind = self.kinds.get(life.chain, "") if life.chain else life.kind
        if kind != life.kind:
            if life.gpus:
                self.cut(life, now)
            life.kind = kind

    def _count(self, life: Life, now: int) -> None:
        """Bring up to date how many GPUs a job holds, and beside which others."""
        gpus, beside = 0, dict[str, None]()
        for gpu in dict.fromkeys((*gpus_of(life.parts), *gpus_of(life.next_parts))):
            users = self.users[gpu]
            total = sum(self.lives[name].weight for name in users)
            gpus += MILLI * life.weight // total
            if len(users) > 1:
                beside.update(dict.fromkeys(users))
        beside.pop(life.job, None)
        named = tuple(sorted(self.lives[name].party for name in beside))
        if (gpus, named) != (life.gpus, life.beside):
            self.cut(life, now)
            life.gpus, life.beside = gpus, named
            if life.trains:
                self.train(life)
        self.tell_holders(life, now)

    def train(self, life: Life) -> None:
        """Have a job train as it is placed now; its stretch was ended."""
        life.enter(Condition(tuple(sorted(life.parts)), life.size, life.beside))

    def tell_holders(self, life: Life, now: int) -> None:
        """Have the groups that wait for its GPUs know what a job holds."""
        for scope in (life.vc, EVERYONE):
            for wanted, holders in self.groups.get(scope, {}).items():
                holders.hold(life.party, self._held(life, scope, wanted), now)

    def _held(self, life: Life, scope: str, wanted: str) -> int:
        if scope != EVERYONE and not life.owns:
            return 0
        return life.gpus if suits(wanted, self.kinds.get(life.chain, "")) else 0

    def _holders(self, life: Life, now: int) -> Holders:
        """Return the holders of what a job waits for."""
        scope, wanted = EVERYONE if life.opportunistic else life.vc, life.gpu_type
        groups = self.groups.setdefault(scope, {})
        if wanted not in groups and sum(map(len, self.groups.values())) >= GROUPS_MAX:
            wanted = ""
        holders = groups.get(wanted)
        if holders is None:
            holders = groups[wanted] = Holders(at=now)
            for other in self.lives.values():
                if other.gpus and scope in (EVERYONE, other.vc):
                    holders.hold(other.party, self._held(other, scope, wanted), now)
        return holders

    # --- jobs that take the GPUs of others -----------------------------------------------------

    def let_go(self, life: Life, now: int) -> None:
        """Have a job be no reason any more for which others have no GPUs."""
        for name in life.took:
            victim = self.lives.get(name)
            if victim is not None and victim.takers.pop(life.party, None) is not None:
                taken = victim.cause is Cause.PREEMPTED and bool(victim.parties)
                if taken and victim.takers:
                    self.turn(victim, now, Cause.PREEMPTED, victim.takers)
                elif taken:  # Whatever keeps it waiting from now on, that job does not.
                    self.turn(victim, now, Cause.WAITS_BEHIND)
        life.took = ()


def gpus_of(parts: dict[str, Ranks]) -> Iterable[str]:
    """Yield the GPUs of parts, each as `node/index`."""
    for node, ranks in parts.items():
        for devices in ranks:
            for device in devices:
                yield f"{node}/{device}"
