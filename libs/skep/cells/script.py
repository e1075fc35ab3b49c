"""Scripts for `skep cells replay`: a cluster and what happens to it, read and checked.

    {
      "cluster": {"chains": ..., "pinned": ..., "vcs": ...},   a cluster file as `skep cluster
                                                               check` takes it, or its name
      "about": "anything",
      "victims": "stop",                                       or "stay": until a `stopped` event
      "events": [
        {"event": "submit", "job": "j1", "vc": "nlp", "gpus": 4, "workers": 2},
        {"event": "bad", "node": "a-1", "gpus": [0]},
        {"event": "heal", "node": "a-1"},
        {"event": "stopped", "job": "j1"},
        {"event": "delete", "job": "j1"},
        {"event": "why", "job": "j1"},
        {"event": "restart"},
        {"event": "reconfigure", "cluster": {...}}
      ]
    }

What a job asks for has the names that job specs have (docs/how-to/job-spec.md). `members` gives
unequal workers as pairs of how many and the GPUs of each, in place of `workers` and `gpus`; `lost`
is the work that stopping the job would lose, which victims are chosen by (its GPUs if it is not
said).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from skep.cells.clusterfile import parse_cluster
from skep.cells.hived import import_hived
from skep.cells.holds import OPPORTUNISTIC, Request
from skep.ids import AttemptId
from skep.wire.cluster import Cluster
from skep.wire.parse import kind_of, nearest, shape_problems
from skep.wire.reasons import Reason
from skep.wire.spec import GANG_GPUS_MAX, GPUS_PER_WORKER_MAX, PRIORITY_MAX, WORKERS_MAX, Problem

PROBLEMS_MAX = 20
"""As many as of a job spec: enough to begin with."""
EVENTS_MAX = 100_000
"""A script is held in memory as a whole."""


class _Event(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="event"
):
    """One thing that happens."""


class Submit(_Event, frozen=True, tag="submit"):
    """A job is submitted."""

    job: AttemptId
    vc: str
    gpus: int = 1
    workers: int = 1
    members: tuple[tuple[int, int], ...] = ()
    gpu_type: str = ""
    priority: int = 0
    service_class: Literal["guaranteed", "opportunistic"] = "guaranteed"
    over_quota: Literal["wait", "refuse", "opportunistic"] = "wait"
    pinned: str = ""
    within: str = ""
    hard: bool = False
    demotable: bool = False
    lost: float | None = None

    def request(self) -> Request:
        """Return what the job asks of the cells."""
        guaranteed = self.service_class == "guaranteed"
        return Request(
            job=self.job,
            vc=self.vc,
            priority=self.priority if guaranteed else OPPORTUNISTIC,
            members=self.members or ((self.workers, self.gpus),),
            gpu=self.gpu_type,
            pin=self.pinned,
            within=self.within,
            hard=self.hard,
            lazy=self.demotable,
        )


class Delete(_Event, frozen=True, tag="delete"):
    """A job ends, or is cancelled while it waits or has GPUs reserved.

    With a `node` only its workers there end; their GPUs are free, and the others continue.
    """

    job: AttemptId
    node: str = ""


class Stopped(_Event, frozen=True, tag="stopped"):
    """A victim has stopped, and waits again."""

    job: AttemptId


class Why(_Event, frozen=True, tag="why"):
    """A person asks where a job is, or why it waits."""

    job: AttemptId


class Bad(_Event, frozen=True, tag="bad"):
    """GPUs of a node turn bad: all of them, if none are named."""

    node: str
    gpus: tuple[int, ...] | None = None


class Heal(_Event, frozen=True, tag="heal"):
    """GPUs of a node are healthy again: all of them, if none are named."""

    node: str
    gpus: tuple[int, ...] | None = None


class Restart(_Event, frozen=True, tag="restart"):
    """The allocator restarts, and continues with what was recorded."""


class Reconfigure(_Event, frozen=True, tag="reconfigure"):
    """Another cluster file is applied."""

    cluster: Any


Event = Submit | Delete | Stopped | Why | Bad | Heal | Restart | Reconfigure

EVENTS: dict[str, type[_Event]] = {
    str(kind.__struct_config__.tag): kind
    for kind in (Submit, Delete, Stopped, Why, Bad, Heal, Restart, Reconfigure)
}


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """A whole script; a reconfiguration's `cluster` is a `Cluster`."""

    cluster: Cluster
    events: tuple[Event, ...]
    victims: Literal["stop", "stay"] = "stop"


class _Outer(msgspec.Struct, frozen=True, kw_only=True):
    """A script before its parts are checked."""

    cluster: Any
    events: tuple[Any, ...]
    about: str = ""
    victims: Literal["stop", "stay"] = "stop"


def parse_script(tree: Any) -> Script | list[Problem]:
    """Return the script in a decoded JSON or YAML value, or what is wrong with it."""
    if not isinstance(tree, dict):
        return [_wrong("$", f"a script is an object with keys, not {kind_of(tree)}")]
    problems = list(shape_problems(_Outer, tree, "$"))[:PROBLEMS_MAX]
    if problems:
        return problems
    if len(tree["events"]) > EVENTS_MAX:
        text = f"{len(tree['events'])} events; at most {EVENTS_MAX} are accepted"
        return [Problem(path="$.events", reason=Reason.TOO_LARGE, text=text)]
    cluster = _cluster(tree["cluster"], "$.cluster", problems)
    events: list[Event] = []
    for number, each in enumerate(tree["events"]):
        event = _event(each, f"$.events.{number}", problems)
        if event is not None:
            events.append(event)
        if len(problems) >= PROBLEMS_MAX:
            break
    if problems or cluster is None:
        return problems[:PROBLEMS_MAX]
    return Script(cluster=cluster, events=tuple(events), victims=tree.get("victims", "stop"))


def _cluster(tree: Any, path: str, problems: list[Problem]) -> Cluster | None:
    if isinstance(tree, dict) and "physicalCluster" in tree:
        imported = import_hived(tree)
        read = imported if isinstance(imported, list) else imported[0]
    else:
        read = parse_cluster(tree)
    if isinstance(read, list):
        problems += [
            msgspec.structs.replace(one, path=path + one.path.removeprefix("$")) for one in read
        ]
        return None
    if not read.chains:
        problems.append(
            Problem(
                path=f"{path}.chains",
                reason=Reason.MISSING_KEY,
                text="no nodes join a script: `chains` is required",
            )
        )
        return None
    return read


def _event(tree: Any, path: str, problems: list[Problem]) -> Event | None:
    if not isinstance(tree, dict):
        problems.append(_wrong(path, f"an event is an object with keys, not {kind_of(tree)}"))
        return None
    name = tree.get("event")
    kind = EVENTS.get(name) if isinstance(name, str) else None
    if kind is None:
        reason = Reason.BAD_VALUE if "event" in tree else Reason.MISSING_KEY
        names = ", ".join(EVENTS)
        problems.append(
            Problem(
                path=f"{path}.event",
                reason=reason,
                text=f"`event` must be one of {names}",
                suggestion=nearest(str(name), list(EVENTS)),
            )
        )
        return None
    rest = {key: value for key, value in tree.items() if key != "event"}
    found = list(shape_problems(kind, rest, path))
    if not found:
        event: Event = msgspec.convert(tree, Event)
        found = list(_values(event, path))
        if not found and isinstance(event, Reconfigure):
            cluster = _cluster(event.cluster, f"{path}.cluster", found)
            event = Reconfigure(cluster=cluster)
        if not found:
            return event
    problems += found
    return None


def _values(event: Event, path: str) -> Iterator[Problem]:
    """Yield what is wrong with values whose types are right."""
    if isinstance(event, Submit):
        members = event.members or ((event.workers, event.gpus),)
        if not 0 <= event.priority <= PRIORITY_MAX:
            yield _bad(f"{path}.priority", f"0 to {PRIORITY_MAX}")
        for workers, gpus in members:
            key = "members" if event.members else "gpus"
            if not 1 <= gpus <= GPUS_PER_WORKER_MAX:
                yield _bad(f"{path}.{key}", f"1 to {GPUS_PER_WORKER_MAX} (GPUs of one worker)")
            if not 1 <= workers <= WORKERS_MAX:
                yield _bad(
                    f"{path}.{'members' if event.members else 'workers'}",
                    f"1 to {WORKERS_MAX} (workers)",
                )
        if sum(workers * gpus for workers, gpus in members) > GANG_GPUS_MAX:
            yield _bad(path, f"at most {GANG_GPUS_MAX} GPUs in all")


def _bad(path: str, wanted: str) -> Problem:
    name = path.rsplit(".", 1)[-1]
    return Problem(path=path, reason=Reason.BAD_VALUE, text=f"`{name}` must be {wanted}")


def _wrong(path: str, text: str) -> Problem:
    return Problem(path=path, reason=Reason.WRONG_TYPE, text=text)
