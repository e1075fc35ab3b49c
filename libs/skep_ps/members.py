"""What the coordinator keeps books of, and the effects it decides on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from skep_ps.assign import rebalance
from skep_ps.placement import Placement, Spec
from skep_ps.wire import Message

Role = Literal["server", "worker"]
Key = tuple[str, int]


ANSWERS: dict[str, tuple[str, ...]] = {
    "prepare": ("ready",),
    "probe": ("probed",),
    "clock": ("accepted", "late"),
    "move": ("moved", "held"),
    "switch": ("switched",),
}
"""What ends each phase of a scaling."""
LIMITS = {"prepare": "prepare_s", "probe": "answer_s", "clock": "answer_s", "move": "wait_s"}
"""How long a phase may last, by the name in `Wanted`."""


class Send(NamedTuple):
    """Send a message on a connection."""

    link: int
    message: Message


class Close(NamedTuple):
    """Close a connection once what was sent is out."""

    link: int


class Note(NamedTuple):
    """Tell the log."""

    text: str


class Finish(NamedTuple):
    """The coordinator's work is done: exit with `code`."""

    code: int


Effect = Send | Close | Note | Finish


class Wanted(NamedTuple):
    """What a job begins with, and how long to wait (seconds)."""

    servers: int
    workers: int
    recover: bool = False
    wait_s: float = 300.0
    lost_s: float = 5.0
    prepare_s: float = 60.0
    answer_s: float = 10.0


@dataclass
class Member:
    """A process of the job, in or on its way in."""

    role: Role
    id: int
    process: str  # its own random name: tells a reconnection from another process
    link: int | None
    at: tuple[str, int]
    generation: int = 0
    pending: int = 0
    version: int = 0
    step_ns: int = 0
    lost_at: int | None = None
    placement: Placement | None = None

    @property
    def key(self) -> Key:
        """Return what it is called among the members."""
        return (self.role, self.id)


@dataclass
class Request:
    """A change of the job that is wanted."""

    kind: Literal["add", "remove"]
    who: Key
    asker: int | None = None  # the connection that waits for the outcome
    tries: int = 0


@dataclass
class Scaling:
    """The change in progress."""

    request: Request
    placement: Placement
    phase: str
    began: int
    since: int
    waiting: dict[Key, None]
    margin: int = 0
    clocks: dict[int, int] = field(default_factory=dict)
    late: bool = False
    held: dict[Key, int] = field(default_factory=dict)  # the clock that a worker waits at
    round_trip_ns: int = 0
    bytes: int = 0
    version: int = 0
    puts: int = 0
    phases_ns: dict[str, int] = field(default_factory=dict)
    pauses_ns: dict[str, int] = field(default_factory=dict)
    copy_ns: int = 0

    def take(self, member: Member, message: Message, now: int) -> None:
        """Note what a member answers in the present phase.

        Args:
            member: Its version and pace are changed.
            message: The answer.
            now: The present time (ns).
        """
        member.version = int(message.get("version", member.version))
        member.step_ns = int(message.get("step_ns", member.step_ns))
        match message["type"]:
            case "probed":
                self.round_trip_ns = max(self.round_trip_ns, now - self.since)
            case "late":
                self.late = True
            case "moved":
                self.bytes += int(message["bytes"])
                self.copy_ns = max(self.copy_ns, int(message["copy_ns"]))
                self.version = max(self.version, member.version)
                self.puts = max(self.puts, int(message["puts"]))
            case "switched":
                member.generation = self.placement.generation
                if member.role == "worker":
                    self.pauses_ns[str(member.id)] = int(message["pause_ns"])
            case _:
                pass

    def text(self) -> str:
        """Return what is being done, and how far it is."""
        return f"{self.request.kind} {name_of(self.request.who)}: {self.phase}"

    def outcome(self, now: int, elements: dict[str, int]) -> Message:
        """Return what is told of it once it is done.

        Args:
            now: The present time (ns).
            elements: By server, how many it keeps now.
        """
        return {
            "type": "outcome",
            "done": True,
            "kind": self.request.kind,
            "who": name_of(self.request.who),
            "generation": self.placement.generation,
            "version": self.version,
            "bytes": self.bytes,
            "copy_ns": self.copy_ns,
            "pauses_ns": self.pauses_ns,
            "phases_ns": self.phases_ns,
            "total_ns": now - self.began,
            "clock_margin": self.margin,
            "elements": elements,
        }


def name_of(key: Key) -> str:
    """Return what a member is called in texts."""
    return f"{key[0]} {key[1]}"


def keys_of(placement: Placement) -> list[Key]:
    """Return the members of a placement, servers first: they answer the workers."""
    return [
        *(("server", server) for server in placement.servers),
        *(("worker", worker) for worker in placement.workers),
    ]


def newest(members: Iterable[Member]) -> Placement | None:
    """Return the newest placement that any member has switched to, None if there is none.

    A worker that anybody was told to go on without is gone.
    """
    views = [member.placement for member in members if member.placement]
    generation = max((view.generation for view in views), default=0)
    views = [view for view in views if view.generation == generation]
    if not views:
        return None
    workers = tuple(w for w in views[0].workers if all(w in view.workers for view in views))
    return views[0]._replace(workers=workers)


def changed(
    before: Placement, spec: Spec, request: Request, at: tuple[str, int]
) -> Placement | str:
    """Return the placement after a change, or why there is none.

    Args:
        before: The placement now; the generation is taken over.
        spec: What the job consists of.
        request: The change.
        at: Host and port of a new server; it has no effect otherwise.
    """
    role, number = request.who
    servers, workers = dict(before.servers), list(before.workers)
    if request.kind == "remove":
        if request.who not in keys_of(before):
            return f"there is no {name_of(request.who)}"
        if len(servers if role == "server" else workers) == 1:
            return f"{name_of(request.who)} is the last one"
        if role == "server":
            del servers[number]
        else:
            workers.remove(number)
    elif role == "server":
        servers[number] = at
    else:
        workers = sorted([*workers, number])
    sizes = [chunk.elements for chunk in spec.chunks()]
    chunks = rebalance(sizes, before.chunks, list(servers))
    return Placement(before.generation, servers, tuple(workers), tuple(chunks))


def clocks(servers: Sequence[Member], ahead: int, *, asynchronous: bool) -> dict[int, int]:
    """Return when each server moves what it must (DL2, step 2).

    Args:
        servers: The servers, at least one.
        ahead: By how many updates that is after the newest version.
        asynchronous: Whether there is no common step: each server has a count of its own then, and
            reaches its own clock.

    Returns:
        By the server's id, the version.
    """
    newest_version = max(server.version for server in servers)
    return {
        server.id: (server.version if asynchronous else newest_version) + ahead
        for server in servers
    }


def loads(placement: Placement | None, spec: Spec | None) -> dict[str, int]:
    """Return how many elements each server keeps."""
    if placement is None or spec is None:
        return {}
    elements = dict.fromkeys(sorted(placement.servers), 0)
    for chunk, server in zip(spec.chunks(), placement.chunks, strict=True):
        elements[server] += chunk.elements
    return {str(server): count for server, count in elements.items()}


def about(placement: Placement | None, spec: Spec | None, scaling: Scaling | None) -> Message:
    """Return which members the job has, how much each server keeps, and how far a change is."""
    return {
        "generation": placement.generation if placement else 0,
        "servers": sorted(placement.servers) if placement else [],
        "workers": list(placement.workers) if placement else [],
        "elements": loads(placement, spec),
        "scaling": scaling.text() if scaling else "",
        "held": [number for _, number in scaling.held] if scaling else [],
    }


def roster(placement: Placement) -> Message:
    """Return the message that names the workers when one of them has ended."""
    return {
        "type": "roster",
        "generation": placement.generation,
        "workers": list(placement.workers),
    }


def outcome(why: str) -> Message:
    """Return what is told of a change that was not made."""
    return {"type": "outcome", "done": False, "why": why}


def wire(placement: Placement) -> Message:
    """Return the fields by which a placement is told."""
    return {"generation": placement.generation, "placement": placement.to_wire()}
