"""What happens to a cluster of machines, drawn from a seed: faults, and changes by the operator.

    0 ......... rotate ... renew ... [ calm: remove a node ] ... join another ......... 1

Around the removal no machine loses its power or its network, so that "refused within 2 s" can be
held against the clock; processes are killed then too.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from tests.system.chaos.faults import Fault, Kind

KINDS = {
    "kill": Kind(14, ("service", "bus", "agent")),
    "kill-runner": Kind(3, ("runner",)),
    "kill-unit": Kind(3, ("unit",)),
    "pause": Kind(4, ("service", "bus", "agent"), (1.0, 12.0)),
    "power": Kind(6, ("server", "node"), (2.0, 15.0)),
    "power-all": Kind(1, ("everything",), (1.0, 5.0)),
    "mute": Kind(2, ("server", "node"), (2.0, 15.0)),
    "deaf": Kind(2, ("server", "node"), (2.0, 15.0)),
    "apart": Kind(3, ("server", "node"), (2.0, 15.0)),
    "apart-long": Kind(1, ("node",), (42.0, 55.0)),
    "partition": Kind(3, ("pair",), (2.0, 15.0)),
    "lossy": Kind(2, ("server", "node"), (2.0, 10.0)),
    "delay": Kind(2, ("server", "node"), (2.0, 10.0)),
}
OF_PROCESSES = ("kill", "kill-runner", "kill-unit")
SERVICES = ("door", "admission", "allocator", "introspector", "advisor", "searches", "access")
ON_SERVERS = (*SERVICES, "gateway", "vault")
BUS, UNIT, AGENT, RUNNER = "nats", "unit", "agent", "runner"
ROTATE_AT, RENEW_AT, REMOVE_AT, JOIN_AT = 0.3, 0.4, 0.5, 0.55
CALM_BEFORE_S, CALM_S = 1.0, 10.0


class Part(NamedTuple):
    """A time of the run, and the nodes that may be hit in it."""

    begin_s: float
    end_s: float
    nodes: tuple[str, ...]


class Change(NamedTuple):
    """Something that the operator does: `at_s` from the run's beginning, on machines at once."""

    at_s: float
    do: str
    machines: tuple[str, ...]


def components(servers: Sequence[str], nodes: Sequence[str]) -> dict[str, str]:
    """Return every component by name, and its role."""
    found = dict.fromkeys(servers, "server") | dict.fromkeys(nodes, "node")
    for server in servers:
        found |= {f"{server}/{one}": "service" for one in ON_SERVERS}
        found |= {f"{server}/{BUS}": "bus", f"{server}/{UNIT}": "unit"}
    for node in nodes:
        found |= {
            f"{node}/{AGENT}": "agent",
            f"{node}/{RUNNER}": "runner",
            f"{node}/{UNIT}": "unit",
        }
    return found


def changes(
    seconds: float, servers: Sequence[str], nodes: Sequence[str], late: str
) -> list[Change]:
    """Return what the operator does: certificates, one node out, and another one in."""
    return [
        Change(ROTATE_AT * seconds, "rotate", tuple(servers)),
        Change(RENEW_AT * seconds, "renew", (nodes[0],)),
        Change(REMOVE_AT * seconds, "remove", (nodes[-1],)),
        Change(JOIN_AT * seconds, "join", (late,)),
    ]


def faults(
    rng: random.Random,
    count: int,
    seconds: float,
    servers: Sequence[str],
    nodes: Sequence[str],
    late: str,
) -> list[Fault]:
    """Return `count` faults, spread over the time and the components.

    Args:
        rng: Draws them.
        count: How many.
        seconds: How long the run is.
        servers: The servers.
        nodes: The nodes at the beginning; the last one is removed.
        late: The node that joins.
    """
    middle = REMOVE_AT * seconds
    calm = middle - CALM_BEFORE_S, middle + CALM_S
    parts = (
        Part(0.0, calm[0], tuple(nodes)),
        Part(*calm, tuple(nodes[:-1])),
        Part(calm[1], seconds, (*nodes[:-1], late)),
    )
    return sorted(_fault(rng, parts, servers) for _ in range(count))


def _fault(rng: random.Random, parts: Sequence[Part], servers: Sequence[str]) -> Fault:
    at_s = rng.uniform(0, parts[-1].end_s)
    part = next(one for one in parts if at_s <= one.end_s)
    calm = part is parts[1]
    names = tuple(OF_PROCESSES if calm else KINDS)
    name = rng.choices(names, [KINDS[one].weight for one in names])[0]
    kind = KINDS[name]
    by_role: dict[str, list[str]] = {
        "everything": ["everything"],
        "pair": [f"{one}|{other}" for one in servers for other in servers if one != other],
    }
    for component, role in components(servers, part.nodes).items():
        by_role.setdefault(role, []).append(component)
    hit = rng.choice(by_role[rng.choice(kind.roles)])
    lasts_s = 0.0 if calm else min(rng.uniform(*kind.seconds), part.end_s - at_s)
    return Fault(at_s, name, hit, lasts_s, rng.randrange(1 << 30))
