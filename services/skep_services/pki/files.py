"""TLS contexts made of files, which are read again when they are replaced.

Whoever connects or is connected to asks for the context anew each time, and so takes in what was
put on disk meanwhile: connections that stand go on, new ones have the new certificate. Files that
do not fit together (one is replaced, the other not yet) change nothing.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

CA_VARIABLE = "SKEP_TLS_CA"
CERTIFICATE_VARIABLE = "SKEP_TLS_CERT"
KEY_VARIABLE = "SKEP_TLS_KEY"

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
    ca, certificate, key = (
        Path(environment[name]) if environment.get(name) else None
        for name in (CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE)
    )
    if (certificate is None) != (key is None):
        text = f"{CERTIFICATE_VARIABLE} and {KEY_VARIABLE} belong together: set both or none"
        raise TlsError(text)
    if ca is None and certificate is None:
        return None
    return TlsFiles(ca=ca, certificate=certificate, key=key)


def client_context(ca: Path | None, files: TlsFiles | None = None) -> ssl.SSLContext:
    """Return the context of a client.

    Args:
        ca: The authorities that it believes; None: those of the system.
        files: The certificate that it proves itself with; None: none.

    Raises:
        TlsError: A file cannot be used.
    """
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca is not None:
        # Only those: of the system's many authorities none may speak for the cluster.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        _believe(context, ca)
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
        self._stamp = stamp(files)
        self._told: Stamp = ()
        self._context = make(files)
        self.changes = 0

    def context(self) -> ssl.SSLContext:
        """Return the context of the files as they are now."""
        now = stamp(self.files)
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
        files: The files.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._stamp = stamp(files)

    def since_asked(self) -> bool:
        """Return whether a file is another one than when this was last asked."""
        now = stamp(self._files)
        changed, self._stamp = now != self._stamp, now
        return changed


def stamp(files: TlsFiles) -> Stamp:
    """Return what changes when a file is replaced."""
    found = []
    for path in files.paths:
        try:
            status = os.stat(path)
        except OSError:
            found.append((0, 0, 0))
        else:
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)


def _believe(context: ssl.SSLContext, ca: Path) -> None:
    text = _read(ca, CA_VARIABLE).decode("ascii", "replace")
    try:
        context.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        message = f"{CA_VARIABLE}: {ca} holds no certificate in PEM: put the cluster's ca.pem there"
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
