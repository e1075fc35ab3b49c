"""Sealed boxes (libsodium's `crypto_box_seal`): whoever knows a public key can close one.

Only the owner of the private key can open it. A box does not say who closed it. What is sealed for
the vault begins with a digest of its place (whose secret it is, and its name): a box that somebody
copied to another owner or name does not open there. Boxes of earlier versions name no place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import nacl.exceptions
from nacl.public import PrivateKey, PublicKey, SealedBox

from skep.wire.vault import PLACE_BYTES
from skep_services import durable
from skep_services.service import ConfigurationError

FILE_MODE = 0o600
PLACE = b"skep secret in its place 1\0"
"""What is before the digest of the place. Names have no `/`, so that no two places look alike."""

assert len(PLACE) + hashlib.sha256().digest_size <= PLACE_BYTES


class BoxError(Exception):
    """A box cannot be opened, as it is damaged or sealed to another key; or closed, for its key."""


class OtherPlaceError(Exception):
    """A box was sealed for another place than the one where it was found."""


def seal(value: bytes, key: bytes) -> bytes:
    """Return `value` in a box that only the owner of the public key `key` (32 bytes) can open.

    Raises:
        BoxError: Nobody has such a key: a box sealed to it could be opened by everybody.
    """
    try:
        return SealedBox(PublicKey(key)).encrypt(value)
    except (nacl.exceptions.CryptoError, ValueError, TypeError) as error:
        text = "nothing can be sealed to this key"
        raise BoxError(text) from error


def seal_in_place(value: bytes, key: bytes, place: Sequence[str]) -> bytes:
    """Return `value` in a box for the vault.

    Args:
        value: The value.
        key: The vault's public key.
        place: Scope, owner and name of the secret.

    Raises:
        BoxError: As `seal`.
    """
    return seal(_begins(place) + value, key)


def opened_in_place(box: bytes, key: PrivateKey, place: Sequence[str]) -> bytes:
    """Return the value in a box of the vault.

    Args:
        box: The box.
        key: The vault's private key.
        place: Where the box was found: scope, owner and name of the secret.

    Raises:
        BoxError: As `opened`.
        OtherPlaceError: It was sealed for another place.
    """
    found = opened(box, key)
    if not found.startswith(PLACE):
        return found  # It was sealed by an earlier version.
    begins = _begins(place)
    if not found.startswith(begins):
        text = "the box was sealed for another owner or name"
        raise OtherPlaceError(text)
    return found.removeprefix(begins)


def _begins(place: Sequence[str]) -> bytes:
    return PLACE + hashlib.sha256("/".join(place).encode()).digest()


def new_key() -> PrivateKey:
    """Return a fresh private key."""
    return PrivateKey.generate()


def opened(box: bytes, key: PrivateKey) -> bytes:
    """Return what is in a box.

    Raises:
        BoxError: It is damaged, or sealed to another key.
    """
    try:
        return SealedBox(key).decrypt(box)
    except (nacl.exceptions.CryptoError, ValueError, TypeError) as error:
        text = "the box is damaged, or sealed to another key"
        raise BoxError(text) from error


def key_in(path: Path) -> PrivateKey:
    """Return the private key in a file (32 bytes), which is made if there is none.

    Raises:
        ConfigurationError: The file cannot be used.
    """
    try:
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            durable.write(str(path), bytes(new_key()), FILE_MODE)
        if path.stat().st_mode & 0o077:
            text = f"{path} can be read by others: chmod 600 {path}"
            raise ConfigurationError(text)
        return PrivateKey(path.read_bytes())
    except (OSError, ValueError, TypeError, nacl.exceptions.CryptoError) as error:
        text = f"{path} holds no key of the vault ({error}): restore it from a backup"
        raise ConfigurationError(text) from error
