"""Tokens as text: how they are made, taken apart, hashed and verified.

A person's token is `skep_ID_SECRET`, a join token `ID.SECRET.FINGERPRINT`. The id is public; the
secret has 256 random bits. What is kept is its argon2id hash (ADR 0237).
"""

from __future__ import annotations

import hashlib
import re
import secrets
import string
from typing import NamedTuple

from nacl import pwhash
from nacl.exceptions import CryptoError

PREFIX = "skep"
ID_LENGTH = 12
LETTERS = string.ascii_lowercase + string.digits
SECRET_BYTES = 32
SECRET_CHARACTERS_MAX = 128
PASSES, MEMORY_BYTES = 2, 19 * 1024 * 1024
"""What OWASP asks of passwords, which are far easier to guess: 20 ms of one core (2026-11)."""

_PERSON = re.compile(r"skep_([a-z0-9]{12})_([A-Za-z0-9_-]{20,128})", re.ASCII)


class Secret(NamedTuple):
    """A token in its parts."""

    id: str
    secret: str


def new() -> Secret:
    """Return a token that nobody has."""
    identity = "".join(secrets.choice(LETTERS) for _ in range(ID_LENGTH))
    return Secret(identity, secrets.token_urlsafe(SECRET_BYTES))


def text_of(token: Secret) -> str:
    """Return a person's token as it is given to the person."""
    return f"{PREFIX}_{token.id}_{token.secret}"


def parse(text: str) -> Secret | None:
    """Return the parts of a person's token, or None if it is none."""
    found = _PERSON.fullmatch(text)
    return Secret(found[1], found[2]) if found else None


def join_text(token: Secret, fingerprint: str) -> str:
    """Return a join token as it is given to the one that installs a node."""
    return f"{token.id}.{token.secret}.{fingerprint}"


def hashed(token: Secret) -> str:
    """Return what is kept of a token: its argon2id hash. It takes 20 ms of a core."""
    made = pwhash.argon2id.str(_bytes(token), opslimit=PASSES, memlimit=MEMORY_BYTES)
    return made.decode("ascii")


def fits(token: Secret, kept: str) -> bool:
    """Return whether a token is the one whose hash was kept. It takes 20 ms of a core."""
    if len(token.secret) > SECRET_CHARACTERS_MAX:
        return False
    try:
        return bool(pwhash.argon2id.verify(kept.encode("ascii"), _bytes(token)))
    except (CryptoError, ValueError):
        return False


def _bytes(token: Secret) -> bytes:
    # The id is in it, so that no hash can be put to another token's id.
    return hashlib.sha256(f"{token.id}:{token.secret}".encode("utf-8", "replace")).digest()
