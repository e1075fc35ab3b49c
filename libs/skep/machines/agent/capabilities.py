"""What the ranks of a part can do, and whether successors are ready: told once all have said so."""

from __future__ import annotations

from skep.machines.agent.change_progress import Soft
from skep.machines.agent.owner import Owner
from skep.machines.agent.parts import PartKey, PartState
from skep.units import Instant, after, seconds
from skep.wire.node import Door, MemberKnown, MemberLoaded, MemberReady, Tier
from skep.wire.part_facts import PartKnown, PartLoaded, PartReady
from skep.wire.talk import Can

KNOWN_AFTER = seconds(30)
"""How long ranks may take to say what they can do before the job is called opaque: importing a
large framework from a cold disk. One that says it later is believed."""

TIERS = (Tier.OPAQUE, Tier.OBSERVED, Tier.COOPERATIVE)
"""From the least able on."""
assert len(TIERS) == len(Tier)


class Abilities:
    """Puts together what the ranks of each part say of themselves."""

    def __init__(self, agent: Owner, soft: Soft) -> None:
        """Share what `agent` knows, and what is soft."""
        self._agent, self._soft = agent, soft
        self.listens = True
        """Whether ranks are heard at all; a simulation may know by itself what they can."""
        self.evicts = False
        """Whether the driver's own checkpoint of a process may be used here, and can."""

        self.dumps = False
        """Whether images of a job's processes may be stored here, and can be restored."""

    def is_dumped(self, part: PartState) -> bool:
        """Return whether the node stores the processes of a part: it says no state itself."""
        return self.dumps and _is_whole(part) and self._tier(part) is not Tier.COOPERATIVE

    def _tier(self, part: PartState) -> Tier:
        """Return how much the ranks have to do with Skep, as far as it is known."""
        alive = [token for token, rank in part.alive().items() if not rank.out]
        said = [_tier(self._soft.cans[each][0]) for each in alive if each in self._soft.cans]
        if said:
            return min(said, key=TIERS.index)
        return Tier.OPAQUE if part.known is None else part.known.known.tier

    def can(self, part: PartState) -> tuple[str, ...]:
        """Return what every rank can do, as far as it is known, also from before a restart.

        Returns:
            Names of abilities, sorted; empty: it can do nothing, or what it can do is not known.
        """
        durable = () if part.known is None else part.known.known.can
        said = [
            self._soft.cans[token][1] if token in self._soft.cans else durable
            for token, rank in part.alive().items()
            if not rank.out
        ]
        common = _common(said)
        heard = part.known is not None or any(each in self._soft.cans for each in part.alive())
        if not heard or not self.is_dumped(part):
            return common
        return tuple(sorted({*common, "checkpoint"}))

    def _sizes(self, part: PartState) -> tuple[int, ...]:
        """Return the numbers of ranks that every rank of a part can be one of; none: any."""
        durable = () if part.known is None else part.known.known.sizes
        ranks = [token for token, rank in part.alive().items() if not rank.out]
        said = [self._soft.sizes.get(token, durable) for token in ranks]
        some = [each for each in said if each]
        return tuple(sorted(set(some[0]).intersection(*some))) if some else ()

    def expect(self, key: PartKey, now: Instant) -> None:
        """Wait for what a running part has to say."""
        part = self._agent.parts[key]
        if self.listens and part.known is None and part.started is not None and not part.joins:
            self._soft.known_by[key] = after(now, KNOWN_AFTER)

    def started(self, key: PartKey, part: PartState, now: Instant) -> None:
        """Look at what ranks have said, perhaps before the runtime's word that they run."""
        self.expect(key, now)
        self.review(key, part, now)
        self.ready(key, part, now)
        self.loaded(key, part, now)

    def learn(self, key: PartKey, part: PartState, token: str, said: Can, now: Instant) -> None:
        """Take what one rank can do.

        Args:
            key: The job and the number of its attempt.
            part: Their part on this node; changed if the cluster is told something new about it.
            token: The process of the rank.
            said: What the rank can do, and its tier.
            now: The time of the decision.
        """
        self._soft.cans[token] = said.tier, said.can
        if said.resumed:
            self._soft.resumed[token] = said.resumed
        self._soft.sizes[token] = said.sizes
        self.review(key, part, now)

    def review(self, key: PartKey, part: PartState, now: Instant) -> None:
        """Tell what the ranks can do if all of them have said it and run."""
        alive = [each for each, rank in part.alive().items() if not rank.out]
        if part.started is None or not alive or any(each not in self._soft.cans for each in alive):
            return
        tiers = [_tier(self._soft.cans[each][0]) for each in alive]
        self._tell(key, part, min(tiers, key=TIERS.index), self.can(part), now)

    def due(self, now: Instant) -> None:
        """Settle what parts can do whose ranks have not said so within `KNOWN_AFTER`."""
        for key, by in list(self._soft.known_by.items()):
            if by <= now:
                part = self._agent.parts[key]
                greeted = all(token in self._soft.greeted for token in part.alive())
                tier = Tier.OBSERVED if greeted else Tier.OPAQUE
                can = ("release",) if self.evicts and not greeted and _is_single(part) else ()
                if self.is_dumped(part):
                    can = ("checkpoint", *can)
                self._tell(key, part, tier, can, now)

    def _tell(
        self, key: PartKey, part: PartState, tier: Tier, can: tuple[str, ...], now: Instant
    ) -> None:
        self._soft.known_by.pop(key, None)
        told = None if part.known is None else part.known.known
        said = (self._soft.resumed[one] for one in part.alive() if one in self._soft.resumed)
        resumed = next(said, "" if told is None else told.resumed)
        sizes = self._sizes(part)
        new = tier, can, resumed, sizes
        if told is not None and (told.tier, told.can, told.resumed, told.sizes) == new:
            return
        joined = self._agent.joined
        known = MemberKnown(
            node=joined.node,
            identity=joined.identity,
            job=key[0],
            at=now,
            attempt=key[1],
            tier=tier,
            can=can,
            trace=_trace(part),
            resumed=resumed,
            sizes=sizes,
        )
        fact = PartKnown(event=self._agent.event + 1, known=known)
        self._agent.record(fact)
        self._agent.publish_part(part, fact)

    def ready(self, key: PartKey, part: PartState, now: Instant) -> None:
        """Say where the ranks of a successor listen, once all do."""
        if not _awaits(part) or part.ready is not None:
            return
        if not part.alive() or any(token not in self._soft.doors for token in part.ranks):
            return
        joined = self._agent.joined
        doors = tuple(
            Door(rank=rank.plan.rank, host=joined.address, port=self._soft.doors[token].port)
            for token, rank in part.ranks.items()
        )
        ready = MemberReady(
            node=joined.node,
            identity=joined.identity,
            job=key[0],
            at=now,
            attempt=key[1],
            doors=doors,
            trace=_trace(part),
        )
        fact = PartReady(event=self._agent.event + 1, ready=ready)
        self._agent.record(fact)
        self._agent.publish_part(part, fact)

    def prepared(self, key: PartKey, part: PartState, order: int, now: Instant) -> None:
        """Say that all is ready for the resize of this order.

        Args:
            key: The job and the number of its attempt.
            part: Their part on this node; changed.
            order: The number of the command to prepare the resize.
            now: The time of the decision.
        """
        joined = self._agent.joined
        ready = MemberReady(
            node=joined.node,
            identity=joined.identity,
            job=key[0],
            at=now,
            attempt=key[1],
            doors=(),
            order=order,
            trace=_trace(part),
        )
        fact = PartReady(event=self._agent.event + 1, ready=ready)
        self._agent.record(fact)
        self._agent.publish_part(part, fact)

    def loaded(self, key: PartKey, part: PartState, now: Instant) -> None:
        """Say that the ranks of a successor have their state, once all do."""
        if not _awaits(part) or part.loaded is not None:
            return
        if not part.alive() or any(token not in self._soft.loads for token in part.ranks):
            return
        joined = self._agent.joined
        step = min(self._soft.loads[token].step for token in part.ranks)
        loaded = MemberLoaded(
            node=joined.node,
            identity=joined.identity,
            job=key[0],
            at=now,
            attempt=key[1],
            step=step,
            trace=_trace(part),
        )
        fact = PartLoaded(event=self._agent.event + 1, loaded=loaded)
        self._agent.record(fact)
        self._agent.publish_part(part, fact)


def _is_single(part: PartState) -> bool:
    """Return whether a part is one process on one device, all there is of its job."""
    command = part.command
    return (
        command is not None
        and command.world == 1
        and len(command.ranks) == 1
        and len(command.ranks[0].devices) == 1
    )


def _is_whole(part: PartState) -> bool:
    """Return whether a part is one process tree on the node itself: all there is of its job.

    The folder of a job that brought its code goes with the attempt, and is not there later.
    """
    command = part.command
    if command is None or command.world != 1 or len(command.ranks) != 1 or command.nodes != 1:
        return False
    meets = command.distributed or command.joins or command.awaits or command.servers
    return not (meets or command.image or command.code)


def _common(said: list[tuple[str, ...]]) -> tuple[str, ...]:
    if not said:
        return ()
    return tuple(name for name in sorted(said[0]) if all(name in each for each in said))


def _tier(text: str) -> Tier:
    """Return the tier of that name; a name from a later version is taken for the least that talks.

    A rank that says anything at all is observed.
    """
    return Tier(text) if text in tuple(Tier) else Tier.OBSERVED


def _awaits(part: PartState) -> bool:
    return part.command is not None and bool(part.command.awaits) and not part.command.joins


def _trace(part: PartState) -> str:
    return part.command.trace if part.command is not None else ""
