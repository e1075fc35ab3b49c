"""Hosts by name and by address, of IPv4 and IPv6, and what a person types to join."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

NAME = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9]([A-Za-z0-9_-]{0,62}))*\.?"
)
TOKEN = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
TOKEN_LENGTH_MAX = 512


class AddressError(Exception):
    """What was typed is no address; the text is one line for a person."""


class Place(NamedTuple):
    """A host and a port of it."""

    host: str
    port: int


def is_address(host: str) -> bool:
    """Return whether a host is given by its address, not by a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_host(host: str) -> bool:
    """Return whether a text can be a host's name or address."""
    return is_address(host) or (NAME.fullmatch(host) is not None and not _like_address(host))


def _like_address(host: str) -> bool:
    """Return whether a name has digits and dots only: it is then an address that is none."""
    return host.replace(".", "").isdecimal()


def hostport(host: str, port: int) -> str:
    """Return `host:port`, an address of IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_place(text: str, port: int) -> Place:
    """Return what `HOST`, `HOST:PORT`, `[V6]`, `[V6]:PORT` or a bare `V6` names.

    Args:
        text: What was typed.
        port: The port if the text has none.

    Raises:
        AddressError: It is none of these.
    """
    host, given = text, ""
    if text.startswith("["):
        host, mark, rest = text[1:].partition("]")
        if not mark or (rest and not rest.startswith(":")):
            message = f"{text}: write an address of IPv6 as [ADDRESS] or [ADDRESS]:PORT"
            raise AddressError(message)
        given = rest[1:]
    elif text.count(":") == 1:
        host, _, given = text.partition(":")
    if given and not (given.isascii() and given.isdecimal() and 1 <= int(given) <= 65535):
        message = f"{text}: {given!r} is no port (1 to 65535)"
        raise AddressError(message)
    if not is_host(host):
        message = f"{text}: {host!r} is neither a host name nor an address"
        raise AddressError(message)
    return Place(host, int(given) if given else port)


class Invitation(NamedTuple):
    """What lets one machine join: a token, and where to show it."""

    token: str
    place: Place


def parse_invitation(text: str, port: int) -> Invitation:
    """Return the token and the place of `TOKEN@HOST[:PORT]`.

    Args:
        text: What was typed.
        port: The port if the text has none.

    Raises:
        AddressError: It is not of this form.
    """
    token, mark, place = text.strip().rpartition("@")
    if not mark or len(token) > TOKEN_LENGTH_MAX or not TOKEN.fullmatch(token):
        message = "write TOKEN@HOST or TOKEN@HOST:PORT, as `skep node token` printed it"
        raise AddressError(message)
    return Invitation(token, parse_place(place, port))
