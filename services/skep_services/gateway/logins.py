"""`/v1/login`: what a person shows to get a token of its own, when a provider vouches for it.

    GET  /v1/login             which provider, and a nonce for a login that has one
    POST /v1/login             the ID token of the provider; the answer has a token of Skep's
    POST /v1/login/provider    a question to the provider, if it wants a secret of its client
    POST /v1/login/begin, end  the login of the page (`page_logins`)
    GET  /v1/provider          whether the provider answers the gateway, for operators

The flow itself is between the person's machine and the provider: the gateway sees its end only. If
the provider wants a secret, the gateway asks in the person's place, and keeps the secret to itself.
A nonce is signed by the gateways' key and holds for ten minutes; that an ID token is used once is
held by the access service, for all gateways.
"""

from __future__ import annotations

import hmac
import math
import secrets as random
import time
from collections.abc import Callable
from typing import Annotated, Any

from aiohttp import web
from msgspec import Meta

from skep.access.rights import Action, may
from skep.units import Duration, Instant, after, seconds
from skep.wire.access import Actor, LogIn
from skep.wire.bounds import Short
from skep.wire.reasons import Reason
from skep_services.access import secrets
from skep_services.attempts import Attempts
from skep_services.gateway.api import ApiError, caller_of, forbidden, json_response
from skep_services.gateway.asking import Asking
from skep_services.gateway.authentication import Authentication, digest_of
from skep_services.gateway.bodies import Body, read
from skep_services.gateway.oidc import Provider
from skep_services.gateway.people import PeopleView
from skep_services.ports import Clock

NONCE_S = 600.0
ID_TOKEN_CHARACTERS_MAX = 32_768
CODE_CHARACTERS_MAX = 4_096
LOOPBACK_PATTERN = r"^(http://127\.0\.0\.1:[0-9]{1,5}/)?$(?!\n)"
"""Where a browser is sent back to: to the machine of the person, and nowhere else."""
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"


class LoginBody(Body, frozen=True):
    """The end of a login. `nonce` is what `GET /v1/login` gave, if the flow has one."""

    id_token: Annotated[str, Meta(max_length=ID_TOKEN_CHARACTERS_MAX)]
    name: Short = "login"
    nonce: Short = ""


class ProviderBody(Body, frozen=True):
    """A question to the provider: the end of a login by a device or a browser, or its begin."""

    device_code: Annotated[str, Meta(max_length=CODE_CHARACTERS_MAX)] = ""
    code: Annotated[str, Meta(max_length=CODE_CHARACTERS_MAX)] = ""
    redirect_uri: Annotated[str, Meta(pattern=LOOPBACK_PATTERN)] = ""
    code_verifier: Annotated[str, Meta(max_length=128)] = ""


class Logins:
    """The handlers of `/v1/login`."""

    def __init__(
        self,
        view: PeopleView | None,
        asking: Asking,
        authentication: Authentication,
        clock: Clock,
        provider: Provider | None,
        key: bytes,
    ) -> None:
        """Take the ports, and the key by which nonces are signed, the same at all gateways."""
        self._view, self._asking, self._clock = view, asking, clock
        self._authentication, self._provider = authentication, provider
        self._key = key
        self._asked = Attempts(time.monotonic)
        """Questions to the provider: strangers must not drive it through this gateway."""

    def routes(self) -> list[web.RouteDef]:
        """Return where the handlers belong."""
        return [
            web.get("/v1/login", self.options, allow_head=False),
            web.post("/v1/login", self.login),
            web.post("/v1/login/provider", self.ask_provider),
            web.get("/v1/provider", self.provider, allow_head=False),
        ]

    async def options(self, request: web.Request) -> web.StreamResponse:
        """Answer how one logs in here."""
        del request
        told: dict[str, Any] = {"people": self._view is not None, "oidc": None}
        if self._provider is not None and self._view is not None:
            settings = self._provider.settings
            told["oidc"] = {
                "issuer": settings.issuer,
                "client_id": settings.client_id,
                "confidential": bool(settings.client_secret),
                "client_secret": "",  # Programs of an earlier version look for it.
                "scopes": settings.scopes,
                "nonce": self._nonce(),
                "pages": settings.pages,
            }
        return json_response(told)

    async def ask_provider(self, request: web.Request) -> web.StreamResponse:
        """Answer what the provider says to this cluster, of what is for the person alone.

        Raises:
            ApiError: No provider wants a secret here (404), the question is none (422), too many
                were asked (429), or the provider is away (503).
        """
        body = await read(request, ProviderBody)
        if self._provider is None or not self._provider.settings.client_secret:
            text = "the provider is asked without the gateway here: `skep login` does so"
            raise ApiError(404, "no-provider", text)
        self.count(request)
        if body.device_code:
            form = {"grant_type": DEVICE_GRANT, "device_code": body.device_code}
        elif body.code:
            if not body.redirect_uri or not body.code_verifier:
                text = "a code comes with its `redirect_uri` and `code_verifier`"
                raise ApiError(422, Reason.BAD_VALUE, text)
            form = {
                "grant_type": "authorization_code",
                "code": body.code,
                "redirect_uri": body.redirect_uri,
                "code_verifier": body.code_verifier,
            }
        else:
            scopes = {"scope": self._provider.settings.scopes}
            return json_response(await self._provider.ask("device_authorization_endpoint", scopes))
        return json_response(await self._provider.ask("token_endpoint", form))

    async def login(self, request: web.Request) -> web.StreamResponse:
        """Answer with a new token for the person that an ID token is about.

        Raises:
            ApiError: The cluster has no provider (404), the ID token does not hold (401), too many
                did not (429), or the access service refuses the person.
        """
        source = self.check(request)
        body = await read(request, LoginBody)
        if self._provider is None or self._view is None:
            text = "no provider is set up here: log in by a token (`skep login --token`)"
            raise ApiError(404, "no-provider", text)
        if body.nonce and not self._is_ours(body.nonce):
            text = "the login took too long, or began at another cluster: begin anew"
            raise ApiError(401, Reason.LOGIN_REFUSED, text)
        length_s = self._provider.settings.token_days * 24 * 3600.0
        try:
            made = await self.token_for(source, body.id_token, body.nonce, body.name, length_s)
        except ApiError as error:
            if error.status == 401:
                self.failed(source)
            raise
        return json_response(made, 201)

    # --- for the login of the page too ---------------------------------------------------------

    @property
    def has_people(self) -> bool:
        """Return whether there are people that could log in."""
        return self._view is not None

    def check(self, request: web.Request) -> str:
        """Return the address of a request, of which too many logins were not refused.

        Raises:
            check: An ApiError (429): too many were.
        """
        source = self._authentication.proxies.source(request)
        self._authentication.attempts.check(source)
        return source

    def failed(self, source: str) -> None:
        """Count a login that was refused."""
        self._authentication.attempts.failed(source)

    def count(self, request: web.Request) -> None:
        """Count a question to the provider.

        Raises:
            ApiError: Too many are asked from this address (429).
        """
        source = self._authentication.proxies.source(request)
        if (wait := self._asked.wait_s(source)) > 0:
            text = f"too many logins begin there: wait {math.ceil(wait)} s"
            raise ApiError(429, Reason.TOO_MANY_ATTEMPTS, text, retry_after_s=wait)
        self._asked.failed(source)

    async def token_for(
        self, source: str, id_token: str, nonce: str, name: str, length_s: float
    ) -> dict[str, Any]:
        """Return a new token for the person that an ID token is about.

        Args:
            source: The address that it is for.
            id_token: What the provider gave.
            nonce: The nonce that must be in it; empty: the flow has none.
            name: What the token is called.
            length_s: How long it is valid (seconds).

        Raises:
            ApiError: The ID token does not hold (401), or the access service refuses the person.
        """
        assert self._provider is not None
        assert self._view is not None
        vouched = await self._provider.vouched(id_token, nonce)
        made, people, now = secrets.new(), self._view.people, self._clock.now()
        settings = self._provider.settings
        wish = LogIn(
            person=vouched.person,
            issuer=vouched.issuer,
            subject=vouched.subject,
            # Without the signature, which can be written in several ways that all hold.
            digest=digest_of(id_token[: id_token.rfind(".")]),
            digest_until=Instant(seconds(vouched.until_s)),
            token=made.id,
            name=name,
            hash=await self._authentication.verifier.hashed(made),
            expires_at=after(now, Duration(seconds(length_s))),
            roles=vouched.roles,
            add=settings.add_people,
            proven=vouched.proven,
            groups=bool(settings.groups),
        )
        seen: Callable[[], bool] = lambda: made.id in people.tokens  # noqa: E731 - it has a type
        await self._asking.ask(Actor(source=source), wish, seen)
        told = {"token": made.id, "person": vouched.person, "name": name}
        return {**told, "expires_at": wish.expires_at, "text": secrets.text_of(made)}

    async def provider(self, request: web.Request) -> web.StreamResponse:
        """Answer whether the provider answers this gateway, and how its clock differs.

        Raises:
            forbidden: An ApiError (403): the caller is no operator.
        """
        ruling = may(Action.MANAGE_PEOPLE, caller_of(request).highest)
        if not ruling:
            raise forbidden(ruling)
        if self._provider is None or self._view is None:
            return json_response({"issuer": ""})
        text, ahead_s = await self._provider.answers()
        issuer = self._provider.settings.issuer
        return json_response({"issuer": issuer, "ok": not text, "text": text, "ahead_s": ahead_s})

    def _nonce(self) -> str:
        body = f"{random.token_hex(16)}-{self._clock.now() // 10**9}"
        return f"{body}-{self._signature(body)}"

    def _is_ours(self, nonce: str) -> bool:
        chance, _, rest = nonce.partition("-")
        at, _, signature = rest.partition("-")
        mine = self._signature(f"{chance}-{at}")
        if not hmac.compare_digest(signature.encode(), mine.encode()):
            return False
        return self._clock.now() // 10**9 - int(at) <= NONCE_S

    def _signature(self, body: str) -> str:
        return hmac.new(self._key, body.encode(), "sha256").hexdigest()[:32]
