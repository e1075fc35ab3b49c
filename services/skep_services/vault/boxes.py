"""Sealed boxes (libsodium's `crypto_box_seal`): whoever knows a public key can close one.

Only the owner of the private key can open it. A box does not say who closed it.
"""

from __future__ import annotations

from pathlib import Path

import nacl.exceptions
from nacl.public import PrivateKey, PublicKey, SealedBox

from skep_services import durable
from skep_services.service import ConfigurationError

FILE_MODE = 0o600


class BoxError(Exception):
    """A box cannot be opened, as it is damaged or sealed to another key; or closed, for its key."""


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
