"""`/v1/login/begin` and `/v1/login/end`: the login of a browser, by the code flow with PKCE.

    page     makes a verifier, and keeps it in its tab      ──> POST begin: its digest
    gateway  signs a state for it, which the nonce follows from  ──> the provider's address
    browser  goes there, and comes back to PAGE/login with a code and the state
    page     compares the state with its tab's              ──> POST end: code, state, verifier
    gateway  checks all three, redeems the code, verifies the ID token  ──> a token, in the answer

The gateway holds nothing of a login that has begun, so any gateway of the cluster may end it. What
was signed binds the state to the verifier, the page's address and the time: a login that
began elsewhere cannot be ended. The address is one that an operator wrote down, never one of a
request.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets as random
from collections.abc import Mapping
from typing import Annotated, Any, NoReturn

from aiohttp import web
from msgspec import Meta

from skep.units import NS_PER_SECOND
from skep.wire.reasons import Reason
from skep_services.gateway.api import ApiError, json_response
from skep_services.gateway.bodies import Body, read
from skep_services.gateway.logins import CODE_CHARACTERS_MAX, Logins
from skep_services.gateway.oidc import Provider
from skep_services.ports import Clock

BACK = "/login"
"""The path of the page to which the provider sends the browser back."""
STATE_S = 600
"""How long a person may take at the provider."""
HOUR_S = 3600.0
NAME = "page"
"""What the token is called."""

Page = Annotated[str, Meta(max_length=300)]


class BeginBody(Body, frozen=True):
    """A login that begins: the page's address, and the SHA-256 of its verifier in base64url."""

    page: Page
    challenge: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{43}$(?!\n)")]


class EndBody(Body, frozen=True):
    """What the browser brought back from the provider. `issuer`: what it has as `iss`, if any."""

    page: Page
    code: Annotated[str, Meta(min_length=1, max_length=CODE_CHARACTERS_MAX)]
    state: Annotated[str, Meta(max_length=128)]
    code_verifier: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._~-]{43,128}$(?!\n)")]
    issuer: Annotated[str, Meta(max_length=2048)] | None = None


class PageLogins:
    """The handlers."""

    def __init__(self, logins: Logins, provider: Provider | None, clock: Clock, key: bytes) -> None:
        """Take the ports.

        Args:
            logins: Gives a token for an ID token.
            provider: The one that vouches for people; None: there is none.
            clock: The time.
            key: What states are signed by, the same at all gateways.
        """
        self._logins, self._provider, self._clock, self._key = logins, provider, clock, key

    def routes(self) -> list[web.RouteDef]:
        """Return where the handlers belong."""
        return [web.post("/v1/login/begin", self.begin), web.post("/v1/login/end", self.end)]

    async def begin(self, request: web.Request) -> web.StreamResponse:
        """Answer where the browser goes, and the state that it must bring back.

        Raises:
            ApiError: No provider is set up (404), or not for this page (422), too many logins begin
                there (429), or the provider is away (503).
        """
        body = await read(request, BeginBody)
        provider = self._for(body.page)
        self._logins.count(request)
        state = self._state(body.page, body.challenge)
        query = {
            "response_type": "code",
            "client_id": provider.settings.client_id,
            "redirect_uri": body.page + BACK,
            "scope": provider.settings.scopes,
            "state": state,
            "nonce": self._nonce(state),
            "code_challenge": body.challenge,
            "code_challenge_method": "S256",
        }
        return json_response({"url": await provider.authorization(query), "state": state})

    async def end(self, request: web.Request) -> web.StreamResponse:
        """Answer with a new token for the person that came back from the provider.

        Raises:
            ApiError: The login did not begin here, or the provider refuses the code (401), or what
                `begin` and `Logins.token_for` refuse.
        """
        source = self._logins.check(request)
        body = await read(request, EndBody)
        provider = self._for(body.page)
        try:
            id_token = await self._redeemed(request, provider, body)
            settings = provider.settings
            made = await self._logins.token_for(
                source, id_token, self._nonce(body.state), NAME, settings.page_hours * HOUR_S
            )
        except ApiError as error:
            if error.status == 401:
                self._logins.failed(source)
            raise
        response = json_response(made, 201)
        response.headers["Cache-Control"] = "no-store"
        return response

    async def _redeemed(self, request: web.Request, provider: Provider, body: EndBody) -> str:
        """Return the ID token that a code stands for."""
        if not self._is_ours(body):
            _refuse("it did not begin in this tab, or took over ten minutes: begin anew")
        self._logins.count(request)
        issuer = provider.settings.issuer
        if body.issuer is None and await provider.names_itself():
            _refuse("the answer does not say which provider it is from (iss): begin anew")
        if body.issuer not in (None, issuer):
            _refuse("the answer is from another provider (iss): begin anew")
        form = {
            "grant_type": "authorization_code",
            "code": body.code,
            "redirect_uri": body.page + BACK,
            "code_verifier": body.code_verifier,
        }
        answer = await provider.ask("token_endpoint", form)
        if "error" in answer:
            _refuse(f"the provider does not take the code ({_said(answer)}): begin anew")
        found = answer.get("id_token")
        if not isinstance(found, str) or not found:
            _refuse("the provider gave no ID token: an operator adds the scope `openid`")
        return found

    def _for(self, page: str) -> Provider:
        """Return the provider of a page.

        Raises:
            ApiError: There is none (404), or none that sends browsers back there (422).
        """
        if self._provider is None or not self._logins.has_people:
            text = "no provider is set up here: make a token by `skep token create`, and paste it"
            raise ApiError(404, "no-provider", text)
        if page not in self._provider.settings.pages:
            shown = page[:100].encode("unicode_escape").decode()
            text = f"{shown} is none of the `pages` in the file SKEP_OIDC: an operator adds it"
            raise ApiError(422, Reason.BAD_VALUE, text)
        return self._provider

    def _state(self, page: str, challenge: str) -> str:
        body = f"{random.token_hex(16)}-{self._now_s()}"
        return f"{body}-{self._signature('state', body, page, challenge)}"

    def _is_ours(self, body: EndBody) -> bool:
        """Return whether a gateway of this cluster made the state for this verifier, lately."""
        digest = hashlib.sha256(body.code_verifier.encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        made, _, signature = body.state.rpartition("-")
        mine = self._signature("state", made, body.page, challenge)
        if not hmac.compare_digest(signature.encode("utf-8", "replace"), mine.encode()):
            return False
        return self._now_s() - int(made.partition("-")[2]) <= STATE_S

    def _nonce(self, state: str) -> str:
        return self._signature("nonce", state)

    def _signature(self, *parts: str) -> str:
        body = "\n".join(("page login", *parts)).encode("utf-8", "replace")
        return hmac.new(self._key, body, "sha256").hexdigest()[:32]

    def _now_s(self) -> int:
        return self._clock.now() // NS_PER_SECOND


def _said(answer: Mapping[str, Any]) -> str:
    """Return why a provider refuses, as it may stand in one line."""
    text = str(answer.get("error", ""))[:60]
    return "".join(each if each.isprintable() else "?" for each in text)


def _refuse(why: str) -> NoReturn:
    """Stop at a login that does not hold.

    Raises:
        ApiError: Always (401).
    """
    raise ApiError(401, Reason.LOGIN_REFUSED, f"the login is refused: {why}")
