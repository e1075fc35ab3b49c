"""Tokens by which servers join: kept in a file of each server that makes them.

The access service, which keeps those of nodes, is itself one of the services that a cluster of
three servers cannot have before they have met. A token's secret has 192 random bits, so that its
plain hash tells nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import string

import msgspec

from skep_services import durable
from skep_services.servers.joining import JoinText
from skep_services.supervisor import home as folder

VALID_S = 3600.0
ID_LENGTH = 12
LETTERS = string.ascii_lowercase + string.digits
KEPT_MAX = 64
"""Tokens that a file has; the oldest make room."""


class TokenRefusedError(Exception):
    """Why a token does not let in: a stable reason, and one line."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text)
        self.reason = reason


class Kept(msgspec.Struct, kw_only=True):
    """A token as it is kept. `used_by` is the machine that joined by it; empty: none did."""

    id: str
    digest: str
    expires_at_s: float
    used_by: str = ""


def path_of(home: str) -> str:
    """Return the file of tokens."""
    return os.path.join(home, "server-tokens.json")


def make(home: str, fingerprint: str, now_s: float, valid_s: float = VALID_S) -> JoinText:
    """Return a new token that lets one server join.

    Args:
        home: The state folder.
        fingerprint: That of the cluster's authority.
        now_s: Seconds since the epoch.
        valid_s: How long it is valid (seconds).
    """
    identity = "".join(secrets.choice(LETTERS) for _ in range(ID_LENGTH))
    token = JoinText(id=identity, secret=secrets.token_urlsafe(24), fingerprint=fingerprint)
    fresh = Kept(id=token.id, digest=_digest(token.secret), expires_at_s=now_s + valid_s)
    _write(home, [*read(home), fresh][-KEPT_MAX:])
    return token


def use(home: str, identity: str, secret: str, machine: str, now_s: float) -> None:
    """Use a token up for a machine; again for the same machine, whose answer may have got lost.

    Args:
        home: The state folder.
        identity: The token's public part.
        secret: Its secret part.
        machine: What the machine drew to be known by.
        now_s: Seconds since the epoch.

    Raises:
        TokenRefusedError: The token is unknown, expired or used.
    """
    every = read(home)
    found = _checked(every, identity, secret, machine, now_s)
    if not found.used_by:
        found.used_by = machine
        _write(home, every)


def check(home: str, identity: str, secret: str, machine: str, now_s: float) -> None:
    """Return if `use` would, and change nothing.

    Raises:
        TokenRefusedError: As `use`.
    """
    _checked(read(home), identity, secret, machine, now_s)


def is_known(home: str, identity: str) -> bool:
    """Return whether there is a token with this public part."""
    return any(one.id == identity for one in read(home))


def _checked(every: list[Kept], identity: str, secret: str, machine: str, now_s: float) -> Kept:
    found = next((one for one in every if one.id == identity), None)
    if found is None or not hmac.compare_digest(found.digest, _digest(secret)):
        text = "the token is not known here: make one with `skep server token`"
        raise TokenRefusedError(text, "unknown-token")
    if found.used_by and not hmac.compare_digest(found.used_by, machine):
        text = "the token was used by another machine: make a new one with `skep server token`"
        raise TokenRefusedError(text, "token-used")
    if now_s >= found.expires_at_s:
        minutes = (now_s - found.expires_at_s) / 60
        text = (
            f"the token expired {minutes:.0f} minutes ago: make a new one with `skep server token`"
        )
        raise TokenRefusedError(text, "token-expired")
    return found


def read(home: str) -> list[Kept]:
    """Return the tokens that are kept; none if the file cannot be read."""
    try:
        with open(path_of(home), "rb") as file:
            return msgspec.json.decode(file.read(), type=list[Kept])
    except (OSError, msgspec.MsgspecError):
        return []


def _write(home: str, every: list[Kept]) -> None:
    durable.write(path_of(home), msgspec.json.encode(every), folder.FILE_MODE)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
