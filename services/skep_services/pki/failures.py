"""One line about a TLS connection that failed: what is wrong, where, and what to do about it."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable

from skep_services.pki.files import TlsFiles

NOT_YET_VALID, EXPIRED = 9, 10
SELF_SIGNED_ONE, SELF_SIGNED_ROOT, NO_ISSUER, NO_SIGNER = 18, 19, 20, 21
PURPOSE = 26
HOST_MISMATCH, ADDRESS_MISMATCH = 62, 64
"""What OpenSSL calls X509_V_ERR_...: why a certificate was not believed."""

STRANGER = (SELF_SIGNED_ONE, SELF_SIGNED_ROOT, NO_ISSUER, NO_SIGNER)

CLOCK = "compare this machine's clock with the server's (NTP)"


def explain(
    error: BaseException,
    where: str,
    files: TlsFiles | None = None,
    clock: Callable[[], float] = time.time,
) -> str:
    """Return a line about why a client's TLS connection failed, or nothing if it was not TLS.

    Args:
        error: What the connection attempt raised.
        where: The address of the server.
        files: What the client proves itself with and whom it believes.
        clock: What tells the time (seconds since the epoch).
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return _of_server(error, where, files, clock)
    if not isinstance(error, ssl.SSLError):
        return ""
    reason = str(getattr(error, "reason", "") or "")
    if "ALERT" in reason:
        return _refused(reason, where, files, clock)
    if reason in (
        "WRONG_VERSION_NUMBER",
        "HTTP_REQUEST",
        "UNEXPECTED_MESSAGE",
        "RECORD_LAYER_FAILURE",
    ):
        return f"{where} speaks no TLS: check the address, and whether it is encrypted there"
    return f"TLS with {where} failed: {reason or error}"


def is_final(error: BaseException) -> bool:
    """Return whether trying again can help only once a certificate or a clock is changed."""
    return isinstance(error, ssl.SSLError) and not isinstance(
        error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLWantReadError
    )


def _of_server(
    error: ssl.SSLCertVerificationError,
    where: str,
    files: TlsFiles | None,
    clock: Callable[[], float],
) -> str:
    """Say why the client does not believe the server."""
    code = error.verify_code
    ca = f"those of {files.ca}" if files is not None and files.ca else "the system's"
    if code == EXPIRED:
        return (
            f"the certificate of {where} has expired by this clock ({_now(clock)}): "
            f"issue it anew on the server, or {CLOCK}"
        )
    if code == NOT_YET_VALID:
        return (
            f"the certificate of {where} is not valid yet by this clock ({_now(clock)}): "
            f"{CLOCK}; this one seems to be behind"
        )
    if code in STRANGER:
        return (
            f"the certificate of {where} is from another CA than {ca}: "
            "check the address, and get ca.pem of the cluster again"
        )
    if code in (HOST_MISMATCH, ADDRESS_MISMATCH):
        return (
            f"the certificate of {where} is for other hosts: use one of its names, "
            "or issue it anew with this one"
        )
    return f"the certificate of {where} is not believed: {error.verify_message}"


def _refused(reason: str, where: str, files: TlsFiles | None, clock: Callable[[], float]) -> str:
    """Say why the server does not believe the client, which it tells in one word."""
    if files is None or files.certificate is None:
        return (
            f"{where} wants a certificate and got none: set SKEP_TLS_CERT and SKEP_TLS_KEY "
            "to one of the cluster's CA"
        )
    mine = str(files.certificate)
    from skep_services.pki import certificates  # noqa: PLC0415 - it loads slowly

    try:
        own = certificates.describe_file(files.certificate)[0]
    except certificates.CertificateError as error:
        return str(error)
    now = clock()
    if own.ends_at <= now:
        return f"{where} refuses {mine}: it expired on {_date(own.ends_at)}; issue it anew"
    if own.begins_at > now:
        return f"{where} refuses {mine}: it is valid from {_date(own.begins_at)}; {CLOCK}"
    if "EXPIRED" in reason:
        return (
            f"{where} refuses {mine} as expired, and by this clock ({_now(clock)}) it is valid "
            f"until {_date(own.ends_at)}: {CLOCK}"
        )
    if "UNKNOWN_CA" in reason or "BAD_CERTIFICATE" in reason:
        return (
            f"{where} refuses {mine}: it is from {own.issuer}, which is no CA of that server; "
            "join the cluster again"
        )
    return f"{where} refuses {mine}: {reason.replace('_', ' ').lower()}"


def _now(clock: Callable[[], float]) -> str:
    return _date(clock())


def _date(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))
