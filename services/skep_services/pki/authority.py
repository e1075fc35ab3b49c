"""The authority of a cluster (its CA): made at the beginning, kept in a folder, it issues all else.

A certificate says that its holder belongs to this cluster, and under which name. What the holder
may do is not in it: that is said by accounts of the bus, roles and tokens, which are revoked within
seconds. The authority's key signs nothing but certificates, and stays on servers.

**A new authority without a stop** comes in three steps, and between two of them `trust` has to
reach every machine. `begin_change` makes the next authority: it is believed, and signs nothing yet.
After `switch_change` everything is signed by it, and the one before is still believed. After
`end_change` only the new one is, and what the one before has signed is refused.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from skep.ids import is_token
from skep_services import durable
from skep_services.pki.certificates import CertificateError, joined, key_fingerprint, load
from skep_services.pki.requests import PublicKey, key_pem, new_key, public_key

CERTIFICATE = "ca.pem"
KEY = "ca-key.pem"
BEFORE = "ca-before.pem"
"""The certificate of the authority before, from the switch of a change to its end."""
NEXT_CERTIFICATE, NEXT_KEY = "ca-next.pem", "ca-next-key.pem"
"""The next authority, from the beginning of a change to its switch."""

FOLDER_MODE = 0o700
AUTHORITY_DAYS = 3650
DAYS_DEFAULT = 365
DAYS_MAX = 825
"""What programs beside Skep still accept of a server's certificate."""
BACKDATED = datetime.timedelta(minutes=15)
"""How far a clock may be behind the authority's: a certificate is valid before it was made."""
HOSTS_MAX = 64
NAME_MAX = 63

Change = Literal["none", "begun", "switched"]
Clock = Callable[[], float]
"""Returns the time in seconds since the epoch."""

_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")


class Issued(msgspec.Struct, frozen=True):
    """A certificate and its private key, both in PEM. The certificate has its authority behind."""

    certificate: bytes
    key: bytes

    def write(self, certificate: Path, key: Path) -> None:
        """Put both into files, for one account only: the key first, for readers look at both.

        Raises:
            OSError: A file cannot be written.
        """
        durable.write(str(key), self.key)
        durable.write(str(certificate), self.certificate)


class Authority:
    """Issues certificates. Make one with `create`, or `read` the one that a folder holds."""

    def __init__(
        self,
        folder: Path,
        certificate: x509.Certificate,
        key: ec.EllipticCurvePrivateKey,
        others: tuple[bytes, bytes],
        clock: Clock,
    ) -> None:
        self.folder = folder
        self._certificate, self._key, self._clock = certificate, key, clock
        self._next, self._before = others

    @classmethod
    def create(cls, folder: Path, cluster: str, clock: Clock = time.time) -> Authority:
        """Make the authority of a cluster.

        Args:
            folder: Where it is kept; made if there is none, for this account only.
            cluster: The name of the cluster.
            clock: What tells the time.

        Raises:
            CertificateError: There is one already, or `cluster` is no name.
            OSError: A file cannot be written.
        """
        if (folder / CERTIFICATE).exists():
            text = f"{folder} holds an authority already: read it, or begin a change of it"
            raise CertificateError(text)
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        certificate, key = _new_authority(_checked(cluster), clock())
        # The key first: a folder with a certificate is whole.
        durable.write(str(folder / KEY), key_pem(key))
        durable.write(str(folder / CERTIFICATE), certificate.public_bytes(Encoding.PEM))
        return cls(folder, certificate, key, (b"", b""), clock)

    @classmethod
    def read(cls, folder: Path, clock: Clock = time.time) -> Authority:
        """Return the authority in a folder.

        Args:
            folder: Where it is kept.
            clock: What tells the time.

        Raises:
            CertificateError: There is none, or its files do not belong together.
        """
        _finish_change(folder)
        certificate = load(_read(folder / CERTIFICATE), str(folder / CERTIFICATE))[0]
        try:
            key = load_pem_private_key(_read(folder / KEY), None)
        except (ValueError, TypeError) as error:
            text = f"{folder / KEY}: no private key in PEM ({error}); restore it from a backup"
            raise CertificateError(text) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key_fingerprint(
            key.public_key()
        ) != key_fingerprint(certificate.public_key()):
            text = f"{folder / KEY} is not the key of {CERTIFICATE}: restore both from a backup"
            raise CertificateError(text)
        others = [
            _read(folder / name) if (folder / name).exists() else b""
            for name in (NEXT_CERTIFICATE, BEFORE)
        ]
        if others[1] == certificate.public_bytes(Encoding.PEM):
            others[1] = b""  # A switch that ended before it did anything.
        return cls(folder, certificate, key, (others[0], others[1]), clock)

    @property
    def certificate(self) -> bytes:
        """The authority's own certificate, in PEM."""
        return self._certificate.public_bytes(Encoding.PEM)

    @property
    def trust(self) -> bytes:
        """What is to be trusted, in PEM: the authority, and during a change the other one."""
        return joined([self.certificate, self._next, self._before])

    @property
    def change(self) -> Change:
        """How far a change of the authority is."""
        if self._next:
            return "begun"
        return "switched" if self._before else "none"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the authority's public key, hexadecimal."""
        return key_fingerprint(self._certificate.public_key())

    def issue(self, name: str, hosts: Sequence[str] = (), days: float = DAYS_DEFAULT) -> Issued:
        """Return a new key and its certificate.

        Args:
            name: Whose it is.
            hosts: The names and addresses at which it serves; empty: it is a client only.
            days: How long it is valid.

        Raises:
            CertificateError: A name, a host or the time is none that is granted.
        """
        key = new_key()
        return Issued(self._sign(key.public_key(), name, hosts, days), key_pem(key))

    def sign(
        self, request: bytes, name: str, hosts: Sequence[str] = (), days: float = DAYS_DEFAULT
    ) -> bytes:
        """Return a certificate in PEM for the key of a request, the authority's own behind it.

        Args:
            request: The request in PEM. Only its key counts.
            name: Whose the certificate is.
            hosts: The names and addresses at which it serves; empty: it is a client only.
            days: How long it is valid.

        Raises:
            CertificateError: The request, a name, a host or the time is none that is granted.
        """
        return self._sign(public_key(request), name, hosts, days)

    def begin_change(self) -> Authority:
        """Return this authority, with the next one believed beside it.

        Raises:
            CertificateError: A change is under way.
            OSError: A file cannot be written.
        """
        self._needs("none", "end it first")
        (organization,) = self._certificate.subject.get_attributes_for_oid(
            NameOID.ORGANIZATION_NAME
        )
        certificate, key = _new_authority(str(organization.value), self._clock())
        # The key first: with the certificate the change has begun.
        durable.write(str(self.folder / NEXT_KEY), key_pem(key))
        durable.write(str(self.folder / NEXT_CERTIFICATE), certificate.public_bytes(Encoding.PEM))
        return Authority.read(self.folder, self._clock)

    def switch_change(self) -> Authority:
        """Return the next authority, which signs from here on; this one is still believed.

        Raises:
            CertificateError: No change has begun, or it is switched already.
            OSError: A file cannot be written.
        """
        self._needs("begun", "begin one, and have all machines trust both")
        durable.write(str(self.folder / BEFORE), self.certificate)
        # From here on `read` finishes what is not finished.
        (self.folder / NEXT_KEY).replace(self.folder / KEY)
        return Authority.read(self.folder, self._clock)

    def end_change(self) -> Authority:
        """Return this authority alone: what the one before has signed is believed no more.

        Raises:
            CertificateError: No change is switched.
            OSError: The file cannot be removed.
        """
        self._needs("switched", "switch it, and have all certificates issued anew")
        (self.folder / BEFORE).unlink(missing_ok=True)
        durable.sync_folder(str(self.folder))
        return Authority.read(self.folder, self._clock)

    def _needs(self, change: Change, todo: str) -> None:
        if self.change != change:
            told = {
                "none": "no change of the authority is under way",
                "begun": "a change of the authority has begun",
                "switched": "a change of the authority is switched and not ended",
            }
            text = f"{self.folder}: {told[self.change]}: {todo}"
            raise CertificateError(text)

    def _sign(self, key: PublicKey, name: str, hosts: Sequence[str], days: float) -> bytes:
        if key_fingerprint(key) == self.fingerprint:
            text = "the request has the authority's own key: make another key"
            raise CertificateError(text)
        if not 0 < days <= DAYS_MAX:
            text = f"{days:g} days: a certificate is valid for at most {DAYS_MAX} days"
            raise CertificateError(text)
        now = datetime.datetime.fromtimestamp(self._clock(), datetime.UTC)
        # What is beyond the authority's own end could not be verified.
        end = min(now + datetime.timedelta(days=days), self._certificate.not_valid_after_utc)
        if end <= now:
            text = f"{self.folder / CERTIFICATE} has expired: begin a change of the authority"
            raise CertificateError(text)
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if hosts:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        names = alternative_names(hosts)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(_checked(name)))
            .issuer_name(self._certificate.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BACKDATED)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        return signed.public_bytes(Encoding.PEM) + self.certificate


def alternative_names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    """Return hosts as a certificate has them: addresses of IPv4 and IPv6, and names.

    Raises:
        CertificateError: One of them is neither, or there are too many.
    """
    if len(hosts) > HOSTS_MAX:
        text = f"{len(hosts)} hosts in one certificate; there may be {HOSTS_MAX}"
        raise CertificateError(text)
    return [_host(host) for host in dict.fromkeys(hosts)]


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.removeprefix("[").removesuffix("]")))
    except ValueError:
        pass  # Not an address, so it should be a name.
    labels = host.removesuffix(".").split(".")
    # A name of digits only would be read as an address by some programs.
    if len(host) > 253 or not all(map(_LABEL.fullmatch, labels)) or labels[-1].isdecimal():
        text = (
            f"{host!r} is no host: write a name (a.example.org) or an address (10.0.0.1, fd00::1)"
        )
        raise CertificateError(text)
    return x509.DNSName(host.removesuffix(".").lower())


def _checked(name: str) -> str:
    if not is_token(name):
        text = f"{name!r} is no name (letters, digits, _, -; {NAME_MAX} at most)"
        raise CertificateError(text)
    return name


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _new_authority(
    cluster: str, seconds: float
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    now = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    key = new_key()
    # Authorities of one cluster have different names, so that nobody takes one for another.
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, cluster),
            x509.NameAttribute(
                NameOID.COMMON_NAME, f"Skep CA {key_fingerprint(key.public_key())[:12]}"
            ),
        ]
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate, key


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _finish_change(folder: Path) -> None:
    """Put the next authority's certificate in place if its key is: a crash may come in between."""
    certificate, key = folder / NEXT_CERTIFICATE, folder / NEXT_KEY
    if certificate.exists() and not key.exists():
        certificate.replace(folder / CERTIFICATE)
        durable.sync_folder(str(folder))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        text = f"{path} is not there: make the authority first, or restore it from a backup"
        raise CertificateError(text) from error
    except OSError as error:
        text = f"{path}: {error.strerror or error}"
        raise CertificateError(text) from error
