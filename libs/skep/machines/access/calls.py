"""What the access machine has a signer do, and what comes of it."""

from __future__ import annotations

import msgspec

from skep.wire.access import Credentials, KeyKind


class Sign(msgspec.Struct, frozen=True, kw_only=True):
    """Make what a key may be used with: a certificate for `request`, and rights on the bus.

    `name` is the node, the server, or the person in the VC `vc`. Signing twice is harmless.
    """

    key: str
    kind: KeyKind
    name: str
    vc: str = ""
    request: str = ""
    hosts: tuple[str, ...] = ()
    details: dict[str, str] = {}


class Revoke(msgspec.Struct, frozen=True, kw_only=True):
    """Have the bus refuse a key, and cut what is connected by it. Revoking twice is harmless."""

    key: str
    kind: KeyKind
    name: str
    vc: str = ""


class Signed(msgspec.Struct, frozen=True, kw_only=True):
    """A key was signed, with a certificate for `request`."""

    key: str
    request: str
    credentials: Credentials


class NotSigned(msgspec.Struct, frozen=True, kw_only=True):
    """A key could not be signed. `final`: it never can, as what was sent is wrong."""

    key: str
    request: str
    text: str
    final: bool = False


class Revoked(msgspec.Struct, frozen=True, kw_only=True):
    """The bus refuses a key."""

    key: str


class NotRevoked(msgspec.Struct, frozen=True, kw_only=True):
    """The bus could not be told of a key."""

    key: str
    text: str


Done = Signed | NotSigned | Revoked | NotRevoked
