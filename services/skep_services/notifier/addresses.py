"""Which addresses a webhook of a job may be at: public ones, and those that the operator allows."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Sequence

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
"""IPv4 behind IPv6, as networks without IPv4 have it."""


def parse(text: str) -> Address | None:
    """Return the address that a text is, or None; the scope of an address is left out."""
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None


def inner(address: Address) -> Address:
    """Return the IPv4 address that is meant by an IPv6 one, or the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in TRANSLATED:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def trouble_of(
    address: Address, allowed: Sequence[Network] = (), denied: Collection[Address] = ()
) -> str:
    """Return why a webhook may not be at an address, or an empty text.

    Args:
        address: The address.
        allowed: The networks that the operator allows beside public ones.
        denied: Addresses that it may never be at unless they are allowed: those of the bus.
    """
    meant = inner(address)
    if any(one in network for network in allowed for one in {address, meant}):
        return ""
    if address in denied or meant in denied:
        return f"{address} is an address of the cluster's own bus"
    public = meant.is_global and not meant.is_multicast and not meant.is_reserved
    if not public or (address.version == 6 and address.is_link_local):
        return f"{address} is no public address"
    return ""
