"""How a person proves itself to a provider from a terminal: OpenID Connect, two flows.

The device flow (RFC 8628) needs a browser anywhere; the code flow with PKCE (RFC 7636, 8252) one on
this machine, and a port on loopback. Either ends with an ID token, which the gateway verifies. If
the provider wants a secret of its client, the gateway has it, and asks in this one's place. What
the provider answers comes by HTTPS, or from loopback, and no redirect is followed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.server
import json
import secrets
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from skep_services.cli import exits
from skep_services.cli.exits import CommandError

ANSWER_S = 15.0
BODY_BYTES_MAX = 256 * 1024
WAIT_S_MAX = 900.0
"""How long a person may take, whatever the provider says."""
INTERVAL_S, SLOWER_S = 5.0, 5.0
"""Between two questions whether the person is done, and what `slow_down` adds (RFC 8628, 3.5)."""
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
PAGE = b"<!doctype html><title>Skep</title><p>You are logged in. Close this page."


class Asked(NamedTuple):
    """What the gateway says of the provider, and the nonce that it wants to see again."""

    issuer: str
    client_id: str
    scopes: str
    nonce: str


Through = Callable[[dict[str, str]], dict[str, Any]]
"""Has the gateway ask the provider, and returns what it answers."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow none: what is posted there is secret."""


_OPENER = urllib.request.build_opener(_NoRedirects())


class Provider:
    """The provider as its discovery document describes it.

    Args:
        asked: What the gateway says of it.
        through: Asks it through the gateway; None: it wants no secret, and is asked from here.

    Raises:
        CommandError: It cannot be reached, or is another one.
    """

    def __init__(self, asked: Asked, through: Through | None = None) -> None:
        self.asked, self._through = asked, through
        url = f"{asked.issuer.rstrip('/')}/.well-known/openid-configuration"
        status, self.about = _json(url, None)
        if status != 200 or self.about.get("issuer") != asked.issuer:
            text = f"{url} does not describe {asked.issuer}: an operator checks `issuer`"
            raise CommandError(exits.UNREACHABLE, text, "provider")

    @property
    def has_devices(self) -> bool:
        """Return whether it knows the device flow."""
        return bool(self.about.get("device_authorization_endpoint"))

    def by_device(self, say: Callable[[str], None], sleep: Callable[[float], None]) -> str:
        """Return the ID token of a person that opens an address anywhere, and types a code.

        Args:
            say: Tells the person what to do.
            sleep: Waits so many seconds.

        Raises:
            CommandError: The person takes too long, or the provider cannot be asked.
            _failed: A CommandError: the person declines, or the provider refuses.
        """
        begun = self._post("device_authorization_endpoint", {"scope": self.asked.scopes})
        code, shown = str(begun.get("device_code", "")), str(begun.get("user_code", ""))
        address = str(begun.get("verification_uri", ""))
        if not (code and shown and address):
            raise _failed(begun)
        complete = begun.get("verification_uri_complete")
        say(f"open {_shown(address)} and type the code {_shown(shown)}")
        if complete:
            say(f"or open {_shown(str(complete))}")
        interval = _seconds(begun.get("interval"), INTERVAL_S)
        left = min(WAIT_S_MAX, _seconds(begun.get("expires_in"), WAIT_S_MAX))
        while left > 0:
            sleep(interval)
            left -= max(interval, 0.1)
            body = {"grant_type": DEVICE_GRANT, "device_code": code}
            answer = self._post("token_endpoint", body, refused=True)
            match answer.get("error"):
                case None:
                    return _id_token(answer)
                case "authorization_pending":
                    continue
                case "slow_down":
                    interval += SLOWER_S
                case _:
                    raise _failed(answer)
        raise CommandError(exits.TIMEOUT, "the code has expired: run `skep login` again", "expired")

    def by_browser(self, open_page: Callable[[str], object], wait_s: float = WAIT_S_MAX) -> str:
        """Return the ID token of a person that uses a browser on this machine.

        Args:
            open_page: Opens an address in the browser, or shows it.
            wait_s: How long the person may take (seconds).

        Raises:
            CommandError: The person declines or takes too long, or the provider fails.
        """
        verifier, state = secrets.token_urlsafe(48), secrets.token_urlsafe(24)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest())
        with _Listener(state, self.asked.issuer) as listener:
            query = {
                "response_type": "code",
                "client_id": self.asked.client_id,
                "redirect_uri": listener.address,
                "scope": self.asked.scopes,
                "state": state,
                "nonce": self.asked.nonce,
                "code_challenge": challenge.decode().rstrip("="),
                "code_challenge_method": "S256",
            }
            endpoint = str(self.about.get("authorization_endpoint", ""))
            _check(endpoint)
            mark = "&" if "?" in endpoint else "?"
            open_page(f"{endpoint}{mark}{urllib.parse.urlencode(query)}")
            code = listener.code(wait_s)
            body = {
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": listener.address,
                "code_verifier": verifier,
            }
            return _id_token(self._post("token_endpoint", body))

    def _post(self, name: str, body: dict[str, str], *, refused: bool = False) -> dict[str, Any]:
        """Return what an endpoint answers; with `refused` also when it refuses.

        Raises:
            _failed: A CommandError: it refuses.
        """
        if self._through is not None:
            told = {key: text for key, text in body.items() if key not in {"grant_type", "scope"}}
            answer = self._through(told)
            good = "error" not in answer
        else:
            status, answer = _json(
                str(self.about.get(name, "")), {**body, "client_id": self.asked.client_id}
            )
            good = status == 200
        if not good and not (refused and "error" in answer):
            raise _failed(answer)
        return answer


class _Listener:
    """Waits on loopback for the provider to send the browser back."""

    def __init__(self, state: str, issuer: str) -> None:
        self._state, self._issuer = state, issuer
        self._told: dict[str, str] = {}
        listener = self

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = 5.0

            def do_GET(self) -> None:
                path, _, query = self.path.partition("?")
                told = dict(urllib.parse.parse_qsl(query))
                good = path == "/" and listener.takes(told)
                self.send_response(200 if good else 400)
                self.send_header("Content-Type", "text/html")
                self.send_header("Referrer-Policy", "no-referrer")
                self.end_headers()
                self.wfile.write(PAGE if good else b"not a login of this program")

            def log_message(self, *_: Any) -> None:
                """Say nothing: the path has the code."""

        self._server = http.server.HTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self) -> _Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.server_close()

    @property
    def address(self) -> str:
        """Return where the browser is sent back to."""
        return f"http://127.0.0.1:{self._server.server_port}/"

    def takes(self, told: Mapping[str, str]) -> bool:
        """Take what the browser brings, if it is from this login and this provider."""
        if not hmac.compare_digest(told.get("state", "").encode(), self._state.encode()):
            return False
        if told.get("iss", self._issuer) != self._issuer:  # RFC 9207
            return False
        self._told = dict(told)
        return True

    def code(self, wait_s: float) -> str:
        """Return the code that the browser brings.

        Raises:
            CommandError: It brings nothing in time.
            _failed: A CommandError: it brings a refusal.
        """
        deadline = time.monotonic() + wait_s
        while not self._told:
            left = deadline - time.monotonic()
            if left <= 0:
                text = "no browser came back in time: run `skep login` again"
                raise CommandError(exits.TIMEOUT, text, "expired")
            self._server.timeout = left
            self._server.handle_request()
        if not self._told.get("code"):
            raise _failed(self._told)
        return self._told["code"]


def _json(url: str, body: Mapping[str, str] | None) -> tuple[int, dict[str, Any]]:
    """Return status and JSON object that an address answers.

    Raises:
        CommandError: It cannot be reached or believed.
    """
    _check(url)
    data = urllib.parse.urlencode(body).encode() if body is not None else None
    accept = {"Accept": "application/json"}
    request = urllib.request.Request(url, data, accept)  # noqa: S310 - it is checked above
    try:
        try:
            with _OPENER.open(request, timeout=ANSWER_S) as answer:
                status, raw = answer.status, answer.read(BODY_BYTES_MAX)
        except urllib.error.HTTPError as error:
            status, raw = error.code, error.read(BODY_BYTES_MAX)
        found = json.loads(raw)
    except (OSError, ValueError) as error:
        text = f"{urllib.parse.urlsplit(url).netloc} cannot be asked: {error}"
        raise CommandError(exits.UNREACHABLE, text, "provider") from None
    return status, found if isinstance(found, dict) else {}


def _check(url: str) -> None:
    parts = urllib.parse.urlsplit(url)
    local = parts.hostname in {"127.0.0.1", "::1", "localhost"}
    if parts.scheme != "https" and not (parts.scheme == "http" and local):
        text = f"the provider names {_shown(url)!r}, which is not encrypted: it is not used"
        raise CommandError(exits.FAILED, text, "provider")


def _failed(answer: Mapping[str, Any]) -> CommandError:
    reason = _shown(str(answer.get("error", "no answer to this")))
    more = _shown(str(answer.get("error_description", "")))
    text = f"the provider refuses: {reason}" + (f" ({more})" if more else "")
    return CommandError(exits.FAILED, text, "provider-refused")


def _id_token(answer: Mapping[str, Any]) -> str:
    found = answer.get("id_token")
    if not isinstance(found, str) or not found:
        text = "the provider gave no ID token: an operator adds the scope `openid`"
        raise CommandError(exits.FAILED, text, "provider")
    return found


def _shown(text: str) -> str:
    """Return what a provider says, as it may stand on a terminal."""
    return "".join(each if each.isprintable() else "?" for each in text)[:500]


def _seconds(value: Any, otherwise: float) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 86_400
    return float(value) if good else otherwise
