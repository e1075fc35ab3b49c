"""Which ports of which machine others have to reach: for a firewall between them."""

from __future__ import annotations

import msgspec

from skep_services.servers.files import Member


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """A port, or a range of ports, of a machine, and those that come there. All are TCP."""

    machine: str
    ports: str
    by: str
    what: str


def openings(member: Member, size: int, gangs: tuple[int, int]) -> list[Opening]:
    """Return the ports that have to be open.

    Args:
        member: A server; all servers usually have the same ports.
        size: How many servers the cluster has.
        gangs: The first and the last port on which ranks of a gang meet, on every node.
    """
    ports = member.ports
    found = [
        Opening(
            machine="server",
            ports=str(ports.gateway),
            by="people, nodes that join",
            what="gateway: HTTPS, page, API, `skep`",
        ),
        Opening(machine="server", ports=str(ports.bus), by="nodes, servers", what="bus: TLS"),
        Opening(
            machine="server",
            ports=str(ports.door),
            by="people's programs over NATS",
            what="door to the bus: TLS (close it if no program uses it)",
        ),
    ]
    if size > 1:
        found += [
            Opening(machine="server", ports=str(ports.routes), by="servers", what="bus: routes"),
            Opening(machine="server", ports=str(ports.servers), by="servers", what="joining"),
        ]
    first, last = gangs
    found.append(
        Opening(
            machine="node",
            ports=f"{first}-{last}",
            by="nodes",
            what="ranks of jobs on several nodes (what a job opens itself comes beside)",
        )
    )
    return found
