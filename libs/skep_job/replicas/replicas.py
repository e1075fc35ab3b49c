"""One rank's part in the copies that its gang keeps in the memory of its nodes.

    meet      every rank hears where the others are, and which files their nodes have
    fetch     at a start: what a node lacks of a boundary comes from a node that has it
    boundary  all ranks are ready, so that all copy the same one: to their node, then to the next
    whole     the newest boundary that was the last copy of all ranks; what is older goes then

Two boundaries at most are in memory, each on two nodes. Methods that are collective say so.
"""

from __future__ import annotations

import collections
import functools
import ipaddress
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from skep_job.link.orders import describe
from skep_job.observe.reporter import complain
from skep_job.replicas import exchange, ring
from skep_job.replicas.exchange import Address, Server
from skep_job.replicas.memory import Key, Memory, key_of
from skep_job.state.checkpoint_folder import Checkpoints, Entry, Superseded
from skep_job.state.snapshot import Snapshot

FILES_MAX = 256
"""Files of one node that the others hear of (8 KiB): a whole boundary of as many ranks, which a
node has after a start with another number of ranks, or far more than it keeps else."""
AUTO_S = 5.0
"""Seconds between two boundaries at least, where Skep chooses."""
AUTO_STOOD, AUTO_TOOK = 50.0, 20.0
"""Then also so many times what the training stood still, and what the copy took beside it."""
PAUSE_MAX_S = 600.0
"""What an interval grows to while copies fail, unless it is longer from the start."""

_BITS = 62
_HOST_NUMBERS = 3
_ROW = 1 + _HOST_NUMBERS + 1 + 2 + 4 * FILES_MAX


class Where(NamedTuple):
    """What the agent says about a node's memory."""

    folder: Path  # SKEP_REPLICAS
    limit: int  # SKEP_REPLICA_BYTES
    host: str  # where other nodes reach this one


class Group(Protocol):
    """The ranks of the gang; all methods are collective."""

    def of_all(self, numbers: list[int]) -> list[list[int]]:
        """Return what every rank gives, by rank."""
        ...

    def all_well(self, well: bool) -> bool:
        """Return whether all ranks are well."""
        ...


class _Rank(NamedTuple):
    """What a rank says of itself and of its node."""

    node: int  # 0: it has no folder
    address: Address
    files: frozenset[tuple[Key, int]]


class _Gang(NamedTuple):
    """The ranks as they are until they meet again."""

    rank: int
    world: int
    ranks: list[_Rank]

    @property
    def nodes(self) -> list[int]:
        """Return the node of each rank."""
        return [each.node for each in self.ranks]


class Replicas:
    """For the training thread, but for `finished` and what `copying` returns."""

    def __init__(
        self, where: Where | None, job: str, attempt: int, every_s: float | None, *, auto: bool
    ) -> None:
        """Look at nothing yet.

        Args:
            where: The node's folder; None: it has none.
            job: The job's id.
            attempt: The attempt.
            every_s: Seconds between two boundaries; None: Skep chooses, or there are none.
            auto: Whether Skep chooses.
        """
        self._where, self._job, self._attempt = where, job, attempt
        self._auto = auto
        self.wanted = auto or every_s is not None
        """Whether the script wants copies; the same on every rank."""
        self._every_s = every_s if every_s is not None else AUTO_S
        self._between_s = self._every_s
        self._next_at = 0.0
        self._memory: Memory | None = None
        self._server: Server | None = None
        self._gang = _Gang(0, 0, [])
        self._active = False
        self.failing = False
        """Whether the last copy of this rank failed: a checkpoint on disk waits for no other."""
        self._done = (self._gang, -1)
        """The last copy, if it succeeded: the gang that it is of, and the mini-batches."""
        self._newest: Key | None = None
        self._said: set[tuple[object, ...]] = set()

    @property
    def active(self) -> bool:
        """Whether boundaries are copied."""
        return self._active

    def meet(self, group: Group, rank: int, world: int) -> None:
        """Find out where the others are. Collective.

        Args:
            group: The ranks of the gang.
            rank: This rank.
            world: How many ranks there are.
        """
        self._active = False
        self._gang = _Gang(rank, world, [_parse(row) for row in group.of_all(self._row())])
        whole, _ = self._whole()
        if whole:  # A newcomer's node may be one of a former gang, whose newest stays too.
            self._newest = whole[0]
        nodes = self._gang.nodes
        why = ring.why_none(nodes)
        self._active = not why
        if why and 0 in nodes and any(nodes):
            self._complain(f"no copies are kept in the memory of other nodes: {why}", why)
        self._between_s = self._every_s
        self._next_at = time.monotonic() + self._between_s

    def part(self) -> None:
        """Take it that there are no others any more; what is in memory stays until `on_disk`."""
        self._active, self._newest = False, None
        self._gang = _Gang(0, 0, [])
        if self._server is not None:
            self._server.close()
            self._server = None

    def on_disk(self) -> None:
        """Remove what is in memory if there are no others: the disk has a newer state, whole.

        On any thread.
        """
        if not self._gang.ranks and self._memory is not None:
            self._memory.prune(set())

    # --- at a start -------------------------------------------------------------------------------

    def found(self) -> list[Key]:
        """Return the boundaries that are whole in the memory of the gang's nodes, newest first.

        The same on every rank.
        """
        found, missing = self._whole()
        for key, rank in missing:
            if not found or key > found[0]:
                complain(
                    f"{key} is passed over: "
                    f"the copy of rank {rank} of {key.world} is on no node of this attempt"
                )
        return found

    def _whole(self) -> tuple[list[Key], list[tuple[Key, int]]]:
        """Return boundaries that are whole, and others with a rank that they lack; newest first."""
        ranks: dict[Key, set[int]] = {}
        for each in self._gang.ranks:
            for key, rank in each.files:
                ranks.setdefault(key, set()).add(rank)
        found, missing = [], []
        for key in sorted(ranks, reverse=True):
            lacks = set(range(key.world)) - ranks[key]
            if lacks:
                missing.append((key, min(lacks)))
            else:
                found.append(key)
        return found, missing

    def fetch(self, key: Key, group: Group) -> tuple[Checkpoints, Entry] | None:
        """Have this node get what its ranks need of a boundary. Collective.

        Args:
            key: One of `found`.
            group: The ranks of the gang.

        Returns:
            The folder and a file of the boundary; None: some rank could not get all.
        """
        whole = frozenset(range(key.world))
        gang = self._gang
        same = key.world == gang.world
        wanted = [[rank] if same else sorted(whole) for rank in range(gang.world)]
        held = [frozenset(r for k, r in each.files if k == key) for each in gang.ranks]
        memory, well = self._memory, self._memory is not None
        if memory is not None:
            for file, giver in ring.fetches(wanted, held, gang.nodes, gang.rank):
                try:
                    exchange.get(gang.ranks[giver].address, memory, key, file)
                except Exception as error:
                    complain(
                        f"{key} is passed over: the copy of rank {file} "
                        f"does not come from the node of rank {giver}: {describe(error)}"
                    )
                    well = False
                    break
        if not group.all_well(well) or memory is None:
            return None
        rank = gang.rank if same else 0
        folder = Checkpoints(memory.folder, self._job, self._attempt, rank, key.world)
        return folder, Entry(key.attempt, key.step, rank, key.world, memory.path(key, rank))

    def went_on_from(self, key: Key) -> None:
        """Take it that the gang goes on from a boundary in memory, which stays until a newer one.

        The next boundary is copied at once: this one may be on fewer nodes than it should be.
        """
        self._newest = key
        self._next_at = 0.0

    # --- at a boundary ----------------------------------------------------------------------------

    def say(self, busy: bool) -> tuple[bool, int]:
        """Return whether this rank is ready to copy a boundary, and the last one that it copied.

        Args:
            busy: Whether something is being copied or written.

        Returns:
            The second is below 0 if the last copy failed, is on its way, or is of another gang:
            what came before it may be removed on this node.
        """
        ready = self._active and not busy and time.monotonic() >= self._next_at
        gang, done = self._done
        return ready, done if gang is self._gang else -1

    def heard(self, whole: int) -> None:
        """Take in which boundary all ranks have.

        Args:
            whole: After how many mini-batches; below 0: none.
        """
        if self._active and whole >= 0:
            self._newest = Key(self._attempt, whole, self._gang.world)

    def copying(self, step: int) -> Callable[[Snapshot], float]:
        """Return what keeps a copy of a state here and on the next node.

        It may be called on any thread, while nothing changes the state, and also once the gang is
        another one. It returns how long it took (seconds), and raises what `_store` raises.

        Args:
            step: The mini-batches that are done.
        """
        return functools.partial(self._store, self._gang, self._newest, step)

    def _store(self, gang: _Gang, newest: Key | None, step: int, state: Snapshot) -> float:
        """Keep a copy; before that remove all but the newest whole boundary.

        Args:
            gang: The ranks that copy this boundary.
            newest: The boundary that is whole.
            step: The mini-batches that are done.
            state: The state.

        Raises:
            Superseded: A later attempt has trained.
            Broken: The other node refused it.
            OSError: There is no room, or the other node cannot be reached.
        """
        assert self._memory is not None
        since = time.monotonic()
        key = Key(self._attempt, step, gang.world)
        if gang is self._gang:  # Else another gang has found since what is whole.
            self._done = (gang, -1)  # The last one goes now, unless it is the newest whole.
            self._memory.prune({key} if newest is None else {newest, key})
        self._memory.store(state, key, gang.rank)
        keeper = ring.keeper(gang.rank, gang.nodes)
        exchange.put(gang.ranks[keeper].address, self._memory, key, gang.rank)
        if gang is self._gang:  # Else that boundary is one of a gang that is no more.
            self._done = (gang, step)
        return time.monotonic() - since

    def finished(self, step: int, outcome: object, stood_ns: int) -> None:
        """Take in what came of a copy: what `store` returned or raised. On any thread.

        Args:
            step: The mini-batches that were done.
            outcome: Seconds, or what was raised.
            stood_ns: For how long the training stood still.
        """
        self.failing = isinstance(outcome, BaseException)
        if isinstance(outcome, BaseException):
            text = f"no copy in memory after mini-batch {step}: {describe(outcome)}"
            self._complain(text, "copy", *_kind(outcome))
            longest = max(PAUSE_MAX_S, self._every_s)
            self._between_s = min(max(2 * self._between_s, AUTO_S), longest)
            if isinstance(outcome, Superseded):
                self._between_s = float("inf")
        elif self._auto and isinstance(outcome, float):
            self._between_s = max(AUTO_S, AUTO_STOOD * stood_ns / 1e9, AUTO_TOOK * outcome)
        else:
            self._between_s = self._every_s
        self._next_at = time.monotonic() + self._between_s

    # --- small things -----------------------------------------------------------------------------

    def _row(self) -> list[int]:
        """Return what the others hear of this rank."""
        try:
            self._open()
            memory, server = self._memory, self._server
            if memory is not None and server is not None:
                assert self._where is not None
                address = Address(self._where.host, server.port, server.token)
                return _row(_node(memory), address, _first(memory.entries()))
        except (OSError, ValueError) as error:
            text = f"this rank keeps no copies in memory: {describe(error)}"
            self._complain(text, "open", *_kind(error))
        return [0] * _ROW

    def _open(self) -> None:
        where = self._where
        if where is None or self._server is not None:
            return
        self._memory = Memory(where.folder, self._job, self._attempt, where.limit)
        self._server = Server(self._memory, self._may_put)

    def _may_put(self, key: Key, rank: int) -> bool:
        return key[::2] == (self._attempt, self._gang.world) and rank < key.world

    def _complain(self, text: str, *kind: object) -> None:
        """Say something once for each kind: a text has numbers that differ each time."""
        if kind not in self._said:
            self._said.add(kind)
            complain(text)


def where(environ: Callable[[str, str], str]) -> Where | None:
    """Return what the environment says about this node's memory; None: nothing that is of use.

    Args:
        environ: Returns a variable, or what is given beside its name.
    """
    folder, limit = environ("SKEP_REPLICAS", ""), environ("SKEP_REPLICA_BYTES", "")
    if not folder.startswith("/") or not (limit.isascii() and limit.isdecimal()):
        return None
    return Where(Path(folder), min(int(limit[:18]), 2**53), environ("SKEP_HOST", "") or "127.0.0.1")


def _first(entries: Sequence[Entry]) -> list[Entry]:
    """Return the files that the others hear of: first boundaries that are whole here, newest first.

    Files of boundaries that failed must not take their place.
    """
    found = collections.Counter(map(key_of, entries))

    def order(entry: Entry) -> tuple[bool, Key, int]:
        key = key_of(entry)
        return found[key] >= key.world, key, entry.rank

    return sorted(entries, key=order, reverse=True)[:FILES_MAX]


def _kind(error: BaseException) -> tuple[object, ...]:
    return type(error), getattr(error, "errno", None)


def _node(memory: Memory) -> int:
    """Return a number of this node, above 0: of its kernel and of its folder."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = int(file.read().strip().replace("-", ""), 16)
    device, inode = memory.identity()
    mixed = hash((boot % (2**61 - 1), device, inode, 1))
    return abs(mixed) % 2**_BITS or 1


def _row(node: int, address: Address, files: Sequence[Entry]) -> list[int]:
    """Return numbers of 62 bits that say where a rank is, and what its node has."""
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
    ip = ipaddress.ip_address(found[4][0])
    packed = int(ip) | (ip.version == 6) << 128
    row = [node, *_split(packed, _HOST_NUMBERS), address.port, *_split(address.token, 2)]
    for each in files:
        row += [each.attempt, each.step, each.rank, each.world]
    return row + [0] * (_ROW - len(row))


def _parse(row: Sequence[int]) -> _Rank:
    at = 1 + _HOST_NUMBERS
    packed = _join(row[1:at])
    ip = ipaddress.IPv6Address(packed % 2**128) if packed >> 128 else ipaddress.IPv4Address(packed)
    files = set()
    numbers = row[at + 3 :]
    for attempt, step, rank, world in zip(*(numbers[n::4] for n in range(4)), strict=True):
        if world > 0:
            files.add((Key(attempt, step, world), rank))
    return _Rank(row[0], Address(str(ip), row[at], _join(row[at + 1 : at + 3])), frozenset(files))


def _split(number: int, count: int) -> list[int]:
    return [number >> (_BITS * at) & (2**_BITS - 1) for at in range(count)]


def _join(numbers: Sequence[int]) -> int:
    return sum(number << (_BITS * at) for at, number in enumerate(numbers))
