"""From which addresses people come to the bus: those of the servers, whose doors bring them.

Whose a server's addresses are it says itself (`--host`), and the other servers see: a machine with
several networks may speak to them by another one than it is called by. What was seen is kept in
`HOME/server-sources.json`; only one that knows the servers' secret is written down.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable

import msgspec

from skep_services import durable
from skep_services.servers import files
from skep_services.servers.files import ServerFile
from skep_services.supervisor import home as folder

LOOPBACK = ("127.0.0.0/8", "::1/128")
SEEN_MAX = 32
"""Addresses that are kept: three servers with ten networks each. The latest replace the first."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def networks(file: ServerFile, seen: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the networks from which people come to the bus: those of the servers, with the doors.

    The bus's own port wants a certificate of a node or a service besides. Whoever has one, as it
    is root on a node, must not go past the door by it: there people take turns.

    Args:
        file: The servers. If one is named by words only, or listens at an address that is none of
            its own, it is not known where its door comes from: then people come from anywhere.
        seen: Addresses from which servers came besides.

    Returns:
        The networks; empty: there is no bound.
    """
    if file.listen not in (files.EVERYWHERE, *file.me.hosts):
        return ()
    found = [*LOOPBACK]
    for one in file.members:
        addresses = [address for host in one.hosts if (address := address_of(host)) is not None]
        if not addresses:
            return ()
        found += map(_network, addresses)
    found += [_network(address) for one in seen if (address := address_of(one)) is not None]
    return tuple(dict.fromkeys(found))


def read(home: str) -> tuple[str, ...]:
    """Return the addresses from which servers came; none if the file cannot be read."""
    try:
        with open(path_of(home), "rb") as file:
            found = msgspec.json.decode(file.read(), type=list[str])
    except (OSError, msgspec.MsgspecError):
        return ()
    return tuple(found[-SEEN_MAX:])


def note(home: str, addresses: Iterable[str]) -> None:
    """Write down from which addresses servers came, unless that is known.

    Raises:
        OSError: The file cannot be written.
    """
    known = read(home)
    found = [address for one in addresses if (address := address_of(one)) is not None]
    fresh = [
        text for address in found if not address.is_loopback and (text := str(address)) not in known
    ]
    if fresh:
        kept = [*known, *dict.fromkeys(fresh)][-SEEN_MAX:]
        durable.write(path_of(home), msgspec.json.encode(kept), folder.FILE_MODE)


def path_of(home: str) -> str:
    """Return the file of addresses from which servers came."""
    return os.path.join(home, "server-sources.json")


def address_of(host: str) -> Address | None:
    """Return what a host is as an address; None: it is a name."""
    try:
        found = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _network(address: Address) -> str:
    return f"{address}/{address.max_prefixlen}"
