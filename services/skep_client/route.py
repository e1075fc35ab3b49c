"""Which gateway is asked, how often, and what to do when it is away: the same for both clients."""

from __future__ import annotations

import ssl
import time
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec

import skep
from skep_client.calls import Call
from skep_client.errors import (
    BAD_ANSWER,
    NOT_BELIEVED,
    UNREACHABLE,
    BadAnswerError,
    BadCallError,
    NoClusterError,
    RefusedError,
    SkepError,
    UnreachableError,
    refusal,
)
from skep_services.cli.client import Target, find_target, is_header_text
from skep_services.cli.connection import parse_url
from skep_services.cli.exits import CommandError
from skep_services.pki.failures import explain
from skep_services.pki.files import TlsError, TlsFiles, client_context

Result = TypeVar("Result")

PATIENCE_S = 5.0
"""How long a request waits for a gateway that is being restarted, which takes a second."""
PATIENCE_READING_S = 60.0
"""The same while events or logs are followed: they outlast a cluster that is restarted."""
RETRY_AFTER_S = 0.1
CONNECT_S = 5.0
CONNECT_NEXT_S = 1.0
"""Where there is another gateway to turn to: one whose machine is off answers nothing at all."""
SILENT_S = 60.0
"""Streams of events say every 15 s that they live."""
BODY_BYTES_MAX = 512 * 1024 * 1024
"""20,000 job rows are 8 MB; a body beyond this would only exhaust this process."""
KEEPALIVE = ((1, 9, 1), (6, 4, 30), (6, 5, 10), (6, 6, 3))
"""SO_KEEPALIVE, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT: a followed log may be silent for hours,
and a peer whose machine is gone is noticed within a minute."""


def find(api: str | None, token: str | None, ca: str | None, home: str | None) -> Target:
    """Return the gateway to use: what is given, else the one the command line would use.

    Args:
        api: Its address, or several with commas between them; None: as the command line.
        token: The token; None: that of the environment, the login or the state folder.
        ca: The file of the CA that it is believed by; None: likewise.
        home: The state folder of the cluster; None: likewise.

    Raises:
        NoClusterError: There is none.
        BadCallError: An argument is none that can be sent.
    """
    try:
        found = Target(api, token or "", "", ca or "") if api else find_target(home)
    except CommandError as error:
        first, _, rest = error.text.partition("\n")
        hint = ": start one with `skep up`, or set SKEP_API and SKEP_TOKEN" if rest else ""
        raise NoClusterError(str(error.error["reason"]), first + hint) from None
    if not api and token is not None:
        found = found._replace(token=token)
    if not api and ca is not None:
        found = found._replace(ca=ca)
    if not is_header_text(found.token):
        text = "the token is not printable ASCII: check SKEP_TOKEN"
        raise BadCallError(text)
    for url in found.url.split(","):
        if parse_url(url) is None:
            text = f"not an address: {url!r:.200} (like http://127.0.0.1:8470)"
            raise BadCallError(text)
    return found


class Route:
    """The gateways of a cluster, and which one is in use.

    Args:
        target: Where they are.
        patience_s: How long a request is repeated while all are away (seconds).
    """

    def __init__(self, target: Target, patience_s: float) -> None:
        if not patience_s >= 0:
            text = f"patience_s is {patience_s!r}: it is a number of seconds, 0 or more"
            raise BadCallError(text)
        self._urls = [url.rstrip("/") for url in target.url.split(",")]
        self._ca, self.patience_s = target.ca, patience_s
        self._at = 0
        self.headers = {
            "User-Agent": f"skep/{skep.__version__}",
            # What is compressed could be far larger than it seems.
            "Accept-Encoding": "identity",
        }
        if target.token:
            self.headers["Authorization"] = f"Bearer {target.token}"

    @property
    def url(self) -> str:
        """Return the address of the gateway in use."""
        return self._urls[self._at]

    @property
    def several(self) -> bool:
        """Return whether there is another gateway to turn to."""
        return len(self._urls) > 1

    def turn(self) -> None:
        """Turn to the next gateway."""
        self._at = (self._at + 1) % len(self._urls)

    def verify(self) -> ssl.SSLContext | bool:
        """Return what gateways are believed by.

        Raises:
            UnreachableError: The CA's file cannot be used.
        """
        if not any(url.startswith("https://") for url in self._urls):
            return False
        try:
            return client_context(Path(self._ca) if self._ca else None, source="SKEP_CA")
        except TlsError as error:
            raise UnreachableError(NOT_BELIEVED, str(error)) from None

    def timeout(self, wait_s: float | None) -> httpx.Timeout:
        """Return the bounds of a request, each of whose waits may take `wait_s` seconds."""
        connect_s = CONNECT_NEXT_S if self.several else CONNECT_S
        return httpx.Timeout(wait_s, connect=connect_s, pool=connect_s)

    def not_believed(self, error: httpx.TransportError) -> str:
        """Return why a gateway is not believed; empty: something else is wrong."""
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ssl.SSLError):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            return ""
        return explain(cause, self.url, TlsFiles(ca=Path(self._ca) if self._ca else None))


class Tries:
    """The tries of one request, until its patience is over.

    Args:
        route: The gateways.
        wait_s: How long the gateway may take to answer (seconds).
        patience_s: How long all may be away (seconds).
    """

    def __init__(self, route: Route, wait_s: float | None, patience_s: float) -> None:
        self._route, self._wait_s = route, wait_s
        self._deadline = time.monotonic() + patience_s
        self._failed = 0

    def lost(self, error: httpx.HTTPError | httpx.InvalidURL) -> float:
        """Return how long to wait before the next try (seconds).

        Raises:
            UnreachableError: There is no next try.
            BadCallError: The request cannot be sent.
        """
        route = self._route
        if isinstance(error, httpx.ReadTimeout):
            text = f"{route.url} took the request and did not answer in {self._wait_s or 0:.0f} s"
            raise UnreachableError(UNREACHABLE, text) from None
        if not isinstance(error, httpx.TransportError) or isinstance(
            error, (httpx.UnsupportedProtocol, httpx.LocalProtocolError)
        ):
            text = f"the request cannot be sent: {error}"
            raise BadCallError(text) from None
        if told := route.not_believed(error):
            raise UnreachableError(NOT_BELIEVED, told) from None
        self._failed += 1
        here = route.url
        route.turn()
        if route.several and self._failed % len(route._urls):
            return 0.0
        if time.monotonic() + RETRY_AFTER_S > self._deadline:
            what = str(error) or type(error).__name__
            text = (
                f"the cluster cannot be reached: {here}: {what}; "
                "check SKEP_API, and that the cluster is up"
            )
            raise UnreachableError(UNREACHABLE, text) from None
        return RETRY_AFTER_S

    def refused(self, status: int, body: bytes) -> float:
        """Return how long to wait before the next try of what was refused (seconds).

        Raises:
            refusal: A RefusedError: there is no next try.
        """
        error: RefusedError = refusal(status, body)
        pause_s = error.retry_after_s
        soon = error.reason == "too-many-requests" and pause_s is not None
        if not soon or pause_s is None or time.monotonic() + pause_s > self._deadline:
            raise error
        return max(0.0, pause_s)


def decoded(call: Call[Result], body: bytes) -> Result:
    """Return the answer to a call.

    Raises:
        BadAnswerError: It is none.
    """
    try:
        answer: Any = msgspec.json.decode(body, type=call.answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        text = (
            f"the answer to {call.method} {call.path.partition('?')[0]} cannot be read: {error}; "
            "is it a gateway of another version?"
        )
        raise BadAnswerError(BAD_ANSWER, text) from None
    result: Result = answer
    return result


def too_large() -> SkepError:
    """Return the error of an answer that is too large."""
    text = f"the answer has more than {BODY_BYTES_MAX} bytes: ask for less, with a limit"
    return BadAnswerError(BAD_ANSWER, text)
