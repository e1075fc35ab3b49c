"""How a machine that knows only a token comes to trust a server, and shows the token to it.

    GET /v1/ca            unverified: anybody may have answered
    SHA-256 of its key == the fingerprint in the token, or: wrong CA
    the Date of the answer ~ the clock here, or: clock skew
    POST (the token)      verified by that authority and by the host's name or address

What was typed is so all that is trusted: the fingerprint came with the token from the operator's
terminal. Nothing secret is sent before the server has proved itself.
"""

from __future__ import annotations

import email.utils
import http.client
import json
import socket
import ssl
import time
from typing import Any

import msgspec

from skep_services.pki.certificates import CertificateError, with_fingerprint
from skep_services.servers.address import Invitation, Place, hostport

CA_PATH = "/v1/ca"
"""Answers with the authority's certificate, to everybody: it is no secret."""

ANSWER_WITHIN_S = 10.0
ANSWER_BYTES_MAX = 1024 * 1024
SKEW_S_MAX = 60.0
"""What is valid from a moment on is backdated by a quarter of an hour; leases and ages of things
are told to people by the clock, so a minute is what is put up with."""


NOT_SKEP = "not-skep"


class JoinError(Exception):
    """Why a machine could not join: one line that says what to do, and a stable reason."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text)
        self.reason = reason


class JoinText(msgspec.Struct, frozen=True, kw_only=True):
    """A join token in its parts. `fingerprint` is that of the cluster's authority."""

    id: str
    secret: str
    fingerprint: str

    def __str__(self) -> str:
        return f"{self.id}.{self.secret}.{self.fingerprint}"


def parse_token(text: str) -> JoinText:
    """Return the parts of a join token.

    Raises:
        JoinError: It is none (`bad-token`).
    """
    parts = text.split(".")
    good = len(parts) == 3 and all(parts)
    if not good or len(parts[2]) != 64 or not all(c in "0123456789abcdef" for c in parts[2]):
        message = "this is no join token: copy all of what `skep node token` printed"
        raise JoinError(message, "bad-token")
    return JoinText(id=parts[0], secret=parts[1], fingerprint=parts[2])


class Door:
    """A server that has proved itself by the fingerprint in a token.

    Args:
        invitation: What was typed.

    Raises:
        JoinError: It cannot be reached, is of another cluster, or its clock or this one is wrong.
    """

    def __init__(self, invitation: Invitation) -> None:
        self.place = invitation.place
        self.token = parse_token(invitation.token)
        pem, date = _authority(self.place)
        try:
            self.authority = with_fingerprint(pem, self.token.fingerprint)
        except CertificateError as error:
            text = f"wrong CA: {_at(self.place)}: {error}"
            raise JoinError(text, "wrong-authority") from None
        check_clock(date, time.time(), self.place.host)

    def post(self, path: str, value: Any, bearer: str = "") -> Any:
        """Return the JSON answer to POST of a JSON value.

        Raises:
            JoinError: The server refuses (with its reason), or does not prove itself.
        """
        return post(self.place, self.authority, path, value, bearer)


def post(place: Place, authority: bytes, path: str, value: Any, bearer: str = "") -> Any:
    """Return the JSON answer to POST of a JSON value, from a server that proves itself.

    Args:
        place: The server.
        authority: The certificate of the cluster's authority, in PEM.
        path: The path.
        value: The JSON value.
        bearer: A token in the header; empty: none.

    Raises:
        JoinError: The server refuses (with its reason), does not answer, or does not prove itself.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=authority.decode("ascii"))
    headers = {"Content-Type": "application/json"}
    if bearer:
        headers["Authorization"] = f"Bearer {bearer}"
    status, _, data = _exchange(place, context, "POST", path, json.dumps(value).encode(), headers)
    try:
        answer = json.loads(data)
    except ValueError:
        raise JoinError(_no_skep(place), NOT_SKEP) from None
    if status < 300:
        return answer
    error = answer.get("error", {}) if isinstance(answer, dict) else {}
    error = error if isinstance(error, dict) else {}
    reason = str(error.get("reason") or status)
    text = str(error.get("text") or f"{_at(place)} answered with status {status}")
    raise JoinError(text, reason)


def check_clock(date: float | None, now: float, host: str) -> None:
    """Refuse a clock that is far from the server's.

    Args:
        date: The server's time (seconds since the epoch); None: it told none.
        now: The time here.
        host: The server, for the error.

    Raises:
        JoinError: They are more than SKEW_S_MAX apart (`clock-skew`).
    """
    if date is None or abs(now - date) <= SKEW_S_MAX:
        return
    way = "ahead of" if now > date else "behind"
    text = (
        f"clock skew: the clock here is {_span(abs(now - date))} {way} that of {host}; set both by "
        "NTP (timedatectl set-ntp true), then join again with the same token"
    )
    raise JoinError(text, "clock-skew")


def _span(seconds: float) -> str:
    for size, name in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} seconds"


def _authority(place: Place) -> tuple[bytes, float | None]:
    """Return what claims to be the authority's certificate, and the server's time.

    Raises:
        JoinError: Nothing answers there, or no Skep server.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    # Nothing is believed yet: the fingerprint in the token decides on what comes.
    context.verify_mode = ssl.CERT_NONE
    status, headers, data = _exchange(place, context, "GET", CA_PATH, b"", {})
    if status != 200:
        raise JoinError(_no_skep(place), NOT_SKEP)
    date: float | None = None
    try:
        date = email.utils.parsedate_to_datetime(headers["date"]).timestamp()
    except (KeyError, ValueError, OverflowError):
        pass  # It has none, or one that is no date.
    return data, date


def _exchange(
    place: Place,
    context: ssl.SSLContext,
    method: str,
    path: str,
    body: bytes,
    headers: dict[str, str],
) -> tuple[int, dict[str, str], bytes]:
    link = http.client.HTTPSConnection(
        place.host, place.port, timeout=ANSWER_WITHIN_S, context=context
    )
    try:
        link.request(method, path, body or None, headers)
        answer = link.getresponse()
        data = answer.read(ANSWER_BYTES_MAX)
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, data
    except ssl.SSLCertVerificationError as error:
        raise _unproved(place, error) from None
    except ssl.SSLError as error:
        text = f"{_at(place)} does not speak TLS as a Skep server does ({error.reason})"
        raise JoinError(text, NOT_SKEP) from None
    except socket.gaierror:
        text = f"the host {place.host} is unknown: check the name, or write its address"
        raise JoinError(text, "unreachable") from None
    except TimeoutError:
        text = (
            f"{_at(place)} does not answer within {ANSWER_WITHIN_S:.0f} s: check the address, and "
            "that a firewall lets this port through (`skep server ports`)"
        )
        raise JoinError(text, "unreachable") from None
    except (OSError, http.client.HTTPException) as error:
        what = getattr(error, "strerror", None) or str(error) or type(error).__name__
        text = f"{_at(place)} cannot be reached ({what}): is `skep server run` up there?"
        raise JoinError(text, "unreachable") from None
    finally:
        link.close()


def _unproved(place: Place, error: ssl.SSLCertVerificationError) -> JoinError:
    if error.verify_code in {62, 64}:  # X509_V_ERR_HOSTNAME_MISMATCH, _IP_ADDRESS_MISMATCH
        text = (
            f"the certificate of {_at(place)} does not name {place.host}: use one of the server's "
            f"hosts, or add it there: skep server rotate-certs --host {place.host}"
        )
        return JoinError(text, "host-not-named")
    if error.verify_code in {9, 10}:  # not yet valid, has expired
        text = (
            f"the certificate of {_at(place)} is not valid now ({error.verify_message}): check the "
            "clock here and there, or renew it there: skep server rotate-certs"
        )
        return JoinError(text, "certificate-not-valid")
    text = f"wrong CA: {_at(place)} does not prove itself ({error.verify_message})"
    return JoinError(text, "wrong-authority")


def _no_skep(place: Place) -> str:
    return f"what answers at {_at(place)} is no Skep server"


def _at(place: Place) -> str:
    return hostport(place.host, place.port)
