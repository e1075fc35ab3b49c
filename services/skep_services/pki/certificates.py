"""What a certificate says: its name, its authority, and when it begins and ends."""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

BUNDLE_BYTES_MAX = 256 * 1024
"""A file of certificates larger than this is something else: one has about 1 KiB."""

_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n?", re.DOTALL)


class CertificateError(Exception):
    """A certificate, key or request that cannot be used: the text says what, where, what to do."""


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """One certificate in words. Times are seconds since the epoch."""

    name: str
    issuer: str
    begins_at: float
    ends_at: float
    authority: bool
    fingerprint: str
    """SHA-256 of its public key, hexadecimal."""

    def days_left(self, now: float) -> float:
        """Return how long it is still valid, in days; negative once it has expired."""
        return (self.ends_at - now) / 86_400


def describe(pem: bytes, source: str = "the certificate") -> list[Described]:
    """Return what the certificates of a text in PEM say, the first one first.

    Args:
        pem: The text.
        source: What it is called in errors.

    Raises:
        CertificateError: It holds no certificate.
    """
    return [_described(certificate) for certificate in load(pem, source)]


def describe_file(path: Path) -> list[Described]:
    """Return what the certificates in a file say.

    Raises:
        CertificateError: The file cannot be read, or holds no certificate.
    """
    try:
        pem = path.read_bytes()
    except OSError as error:
        text = f"{path}: {error.strerror or error}"
        raise CertificateError(text) from error
    return describe(pem, str(path))


def load(pem: bytes, source: str) -> list[x509.Certificate]:
    """Return the certificates of a text in PEM.

    Args:
        pem: The text.
        source: What it is called in errors.

    Raises:
        CertificateError: It holds no certificate.
    """
    if len(pem) > BUNDLE_BYTES_MAX:
        text = f"{source}: {len(pem)} bytes are no file of certificates"
        raise CertificateError(text)
    try:
        found = x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        text = f"{source}: no certificate in PEM ({error})"
        raise CertificateError(text) from error
    return found


def expires(pem: bytes) -> datetime.datetime:
    """Return when the first certificate of a text in PEM ends.

    Raises:
        CertificateError: It holds no certificate.
    """
    return load(pem, "the certificate")[0].not_valid_after_utc


def key_fingerprint(key: PublicKeyTypes) -> str:
    """Return the SHA-256 of a public key, hexadecimal: people compare it, and tokens hold it."""
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def with_fingerprint(pem: bytes, fingerprint: str) -> bytes:
    """Return the authority in PEM whose key has a fingerprint, out of what a stranger sent.

    Whoever knows the fingerprint from a safe place, such as a join token, may trust what is
    returned, and what the same stranger proves by it.

    Args:
        pem: Certificates in PEM.
        fingerprint: SHA-256 of the authority's public key, hexadecimal.

    Raises:
        CertificateError: None of them is that authority.
    """
    for one in load(pem, "the answer"):
        if key_fingerprint(one.public_key()) == fingerprint.lower() and is_authority(one):
            return one.public_bytes(Encoding.PEM)
    text = (
        "the server is not of the cluster that the token was made for (another CA's key): "
        "check the address, or make a new token"
    )
    raise CertificateError(text)


def is_authority(certificate: x509.Certificate) -> bool:
    """Return whether a certificate may sign others."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    except x509.ExtensionNotFound:
        return False
    return found.value.ca


def joined(parts: Sequence[bytes]) -> bytes:
    """Return certificates in PEM as one text, each once."""
    blocks = [block.strip() + b"\n" for part in parts for block in _BLOCK.findall(part)]
    return b"".join(dict.fromkeys(blocks))


def _described(one: x509.Certificate) -> Described:
    return Described(
        name=_common_name(one.subject),
        issuer=_common_name(one.issuer),
        begins_at=one.not_valid_before_utc.timestamp(),
        ends_at=one.not_valid_after_utc.timestamp(),
        authority=is_authority(one),
        fingerprint=key_fingerprint(one.public_key()),
    )


def _common_name(name: x509.Name) -> str:
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else name.rfc4514_string()
