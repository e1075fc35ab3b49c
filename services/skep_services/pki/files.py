"""TLS contexts made of files, which are read again when they are replaced.

Whoever connects or is connected to asks for the context anew each time, and so takes in what was
put on disk meanwhile: connections that stand go on, new ones have the new certificate. Files that
do not fit together (one is replaced, the other not yet) change nothing.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

CA_VARIABLE = "SKEP_TLS_CA"
CERTIFICATE_VARIABLE = "SKEP_TLS_CERT"
KEY_VARIABLE = "SKEP_TLS_KEY"
SERVED_CERTIFICATE_VARIABLE = "SKEP_TLS_SERVE_CERT"
SERVED_KEY_VARIABLE = "SKEP_TLS_SERVE_KEY"
"""A certificate of another authority, which a gateway or door shows instead of the cluster's."""
PLAINTEXT_VARIABLE = "SKEP_ALLOW_PLAINTEXT"
"""Set to `yes` where the network between machines is private and encrypts or needs no encryption,
as the containers' own network of compose."""

Stamp = tuple[tuple[int, int, int], ...]


class TlsError(Exception):
    """Files that make no TLS context: the text says which, why, and what to do."""


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Where a process finds what it proves itself with, and whom it believes.

    Attributes:
        ca: The certificates of the authorities that are believed, in PEM. During a change of the
            authority there are two. None: only one's own certificate is shown.
        certificate: One's own certificate, its authorities behind it; None: one proves nothing.
        key: The private key of it.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files that are named."""
        return tuple(path for path in (self.ca, self.certificate, self.key) if path is not None)


def tls_files(environment: Mapping[str, str]) -> TlsFiles | None:
    """Return the files that SKEP_TLS_CA, SKEP_TLS_CERT and SKEP_TLS_KEY name; None without any.

    Raises:
        TlsError: Only one of certificate and key is named.
    """
    ca = Path(environment[CA_VARIABLE]) if environment.get(CA_VARIABLE) else None
    pair = _pair(environment, CERTIFICATE_VARIABLE, KEY_VARIABLE)
    if ca is None and pair is None:
        return None
    certificate, key = pair or (None, None)
    return TlsFiles(ca=ca, certificate=certificate, key=key)


def named_files(ca: str, certificate: str, key: str) -> TlsFiles | None:
    """Return files by their paths, of which an empty one names none; None without any."""
    if not ca and not certificate:
        return None
    paths = [Path(name) if name else None for name in (ca, certificate, key)]
    return TlsFiles(ca=paths[0], certificate=paths[1], key=paths[2])


def bus_files(urls: str, environment: Mapping[str, str]) -> TlsFiles | None:
    """Return the files for a connection to the bus; None where it is not encrypted.

    Args:
        urls: The addresses of its servers, with commas.
        environment: Holds the variables of `tls_files`.

    Raises:
        TlsError: An address of another machine is to be reached in plain text, or the variables
            are wrong.
    """
    files = tls_files(environment)
    for url in urls.split(","):
        parts = urlsplit(url.strip() if "://" in url else f"nats://{url.strip()}")
        if parts.scheme == "tls":
            files = files or TlsFiles()
        elif files is None and not _may_be_plain(parts.hostname or "", environment):
            text = (
                f"SKEP_NATS_URL: {url} is another machine's and not encrypted: write "
                f"tls://{parts.netloc} and set {CA_VARIABLE}, {CERTIFICATE_VARIABLE} and "
                f"{KEY_VARIABLE} (on a private network only: {PLAINTEXT_VARIABLE}=yes)"
            )
            raise TlsError(text)
    return files


def server_files(host: str, environment: Mapping[str, str]) -> TlsFiles | None:
    """Return what a server shows to those that connect to it; None where it does not encrypt.

    Args:
        host: The address that it listens on.
        environment: Holds the variables of `tls_files`, and SKEP_TLS_SERVE_CERT and
            SKEP_TLS_SERVE_KEY, which go before them.

    Raises:
        TlsError: It would serve other machines in plain text, or the variables are wrong.
    """
    pair = _pair(environment, SERVED_CERTIFICATE_VARIABLE, SERVED_KEY_VARIABLE)
    pair = pair or _pair(environment, CERTIFICATE_VARIABLE, KEY_VARIABLE)
    if pair is not None:
        return TlsFiles(certificate=pair[0], key=pair[1])
    if not _may_be_plain(host, environment):
        text = (
            f"SKEP_LISTEN: at {host} other machines would be served in plain text: set "
            f"{CERTIFICATE_VARIABLE} and {KEY_VARIABLE}, or listen at 127.0.0.1 (on a private "
            f"network only: {PLAINTEXT_VARIABLE}=yes)"
        )
        raise TlsError(text)
    return None


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine alone, by its name or address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_port(host: str, port: int) -> str:
    """Return an address as addresses on the network are written, with brackets for IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _may_be_plain(host: str, environment: Mapping[str, str]) -> bool:
    return is_loopback(host) or environment.get(PLAINTEXT_VARIABLE) == "yes"


def _pair(environment: Mapping[str, str], certificate: str, key: str) -> tuple[Path, Path] | None:
    """Return the files of certificate and key that two variables name; None without both.

    Raises:
        TlsError: Only one of them is set.
    """
    named = [environment.get(name, "") for name in (certificate, key)]
    if any(named) and not all(named):
        text = f"{certificate} and {key} belong together: set both or none"
        raise TlsError(text)
    return (Path(named[0]), Path(named[1])) if all(named) else None


def client_context(
    ca: Path | None, files: TlsFiles | None = None, source: str = CA_VARIABLE
) -> ssl.SSLContext:
    """Return the context of a client.

    Args:
        ca: The authorities that it believes; None: those of the system.
        files: The certificate that it proves itself with; None: none.
        source: What `ca` is called in errors.

    Raises:
        TlsError: A file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        # Only those: of the system's many authorities, which take 25 ms to read, none may speak
        # for the cluster.
        _believe(context, ca, source)
    if files is not None and files.certificate is not None:
        _prove(context, files)
    return context


def server_context(files: TlsFiles, *, clients: bool = False) -> ssl.SSLContext:
    """Return the context of a server.

    Args:
        files: Its certificate and key.
        clients: Clients have to prove themselves by a certificate of `files.ca`.

    Raises:
        TlsError: A file cannot be used, or is missing.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.certificate is None:
        text = f"a server needs a certificate: set {CERTIFICATE_VARIABLE} and {KEY_VARIABLE}"
        raise TlsError(text)
    _prove(context, files)
    if clients:
        if files.ca is None:
            text = f"clients prove themselves by a certificate of {CA_VARIABLE}: set it"
            raise TlsError(text)
        context.verify_mode = ssl.CERT_REQUIRED
        _believe(context, files.ca)
    return context


class Fresh:
    """A context that follows its files.

    Args:
        files: The files.
        make: Makes the context of them.
        trouble: Takes one line when replaced files cannot be used; the context before stays.
    """

    def __init__(
        self,
        files: TlsFiles,
        make: Callable[[TlsFiles], ssl.SSLContext],
        trouble: Callable[[str], None],
    ) -> None:
        self.files = files
        self._make, self._trouble = make, trouble
        self._stamp = stamp(files.paths)
        self._told: Stamp = ()
        self._context = make(files)
        self.changes = 0

    def context(self) -> ssl.SSLContext:
        """Return the context of the files as they are now."""
        now = stamp(self.files.paths)
        if now == self._stamp:
            return self._context
        try:
            self._context = self._make(self.files)
        except TlsError as error:
            # Perhaps one file is replaced and the other not yet; the next time tells.
            if now != self._told:
                self._told = now
                self._trouble(f"certificates are kept as they were: {error}")
            return self._context
        self._stamp = now
        self.changes += 1
        return self._context


def fresh_client(files: TlsFiles, trouble: Callable[[str], None]) -> Fresh:
    """Return a client's context that follows its files.

    Raises:
        TlsError: A file cannot be used.
    """
    return Fresh(files, lambda each: client_context(each.ca, each), trouble)


def following_server(files: TlsFiles, trouble: Callable[[str], None]) -> ssl.SSLContext:
    """Return a server's context whose connections each have the certificate that is there then.

    Raises:
        TlsError: A file cannot be used.
    """
    fresh = Fresh(files, server_context, trouble)
    first = server_context(files)

    def begins(connection: Any, _: str | None, __: ssl.SSLContext) -> None:
        # Also called for a client that names no server, as one that knows an address only.
        connection.context = fresh.context()

    first.sni_callback = begins
    return first


class Replaced:
    """Tells whether files were replaced, for what reads them only when it is told to.

    Args:
        paths: The files.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = tuple(paths)
        self._stamp = stamp(self._paths)

    def since_asked(self) -> bool:
        """Return whether a file is another one than when this was last asked."""
        now = stamp(self._paths)
        changed, self._stamp = now != self._stamp, now
        return changed


def stamp(paths: Iterable[Path]) -> Stamp:
    """Return what changes when a file is replaced."""
    found = []
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            found.append((0, 0, 0))
        else:
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)


def _believe(context: ssl.SSLContext, ca: Path, source: str = CA_VARIABLE) -> None:
    text = _read(ca, source).decode("ascii", "replace")
    try:
        context.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        message = f"{source}: {ca} holds no certificate in PEM: put the cluster's ca.pem there"
        raise TlsError(message) from error


def _prove(context: ssl.SSLContext, files: TlsFiles) -> None:
    assert files.certificate is not None
    assert files.key is not None
    _read(files.certificate, CERTIFICATE_VARIABLE)
    _read(files.key, KEY_VARIABLE)
    try:
        # A key with a password would have the library ask for it at the terminal.
        context.load_cert_chain(files.certificate, files.key, password="")
    except (ssl.SSLError, OSError) as error:
        why = (
            f"{files.key} is not the key of {files.certificate}"
            if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH"
            else f"{files.certificate} and {files.key} are no certificate and key in PEM"
        )
        message = f"{CERTIFICATE_VARIABLE}: {why}: issue them anew"
        raise TlsError(message) from error


def _read(path: Path, variable: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        text = f"{variable}: {path}: {error.strerror or error}"
        raise TlsError(text) from error
