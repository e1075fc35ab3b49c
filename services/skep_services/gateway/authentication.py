"""The caller of a request: by a token of the file, or one of a person; and its address.

A person's token is verified once (argon2id, 20 ms in a thread), and then known by a keyed digest
until the gateway ends. What it may is looked up at every request, so that a token that was revoked
or has expired is refused as soon as the fact of it is here.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import math
import secrets as random
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from aiohttp import web

from skep.access.people import People, TokenOf
from skep.units import Instant
from skep.wire.access import REASON_CHARACTERS_MAX
from skep.wire.reasons import Reason
from skep_services.access import secrets
from skep_services.attempts import ANY, Attempts
from skep_services.gateway.api import ApiError
from skep_services.gateway.callers import Caller

REASON_HEADER = "Skep-Reason"
TERMINAL_PROTOCOL = "skep.terminal"
"""The protocol of a session; the gateway chooses it, and never says a token back."""
BEARER_PROTOCOL = "skep.bearer."
"""What the name of the other protocol begins with, which has the token of a browser."""
VERIFIED_MAX = 10_000
"""Tokens that are known to be right: those of all people, each on its devices."""
VERIFYING_MAX = 32
"""Requests that wait for a token to be verified, two at a time; more are refused at once."""


class Callers(Protocol):
    """Those that have a token in a file."""

    def refresh(self) -> None:
        """Read the file again if it changed."""
        ...

    def caller(self, authorization: str) -> Caller | None:
        """Return the caller with this Authorization header, or None."""
        ...


class Guesses:
    """Wrong secrets by address and by token, as the gateway refuses them."""

    def __init__(self, attempts: Attempts) -> None:
        """Count by `attempts`."""
        self._attempts = attempts

    def check(self, source: str, token: str = ANY) -> None:
        """Stop one that has tried too often.

        Args:
            source: The address.
            token: The id of the token, if it is about one.

        Raises:
            ApiError: There are no attempts left (429).
        """
        if (wait := self._attempts.wait_s(source, token)) > 0:
            text = f"too many wrong tokens: wait {math.ceil(wait)} s, and check what you typed"
            raise ApiError(429, Reason.TOO_MANY_ATTEMPTS, text, retry_after_s=wait)

    def failed(self, source: str, token: str = ANY) -> None:
        """Count a wrong secret."""
        self._attempts.failed(source, token)


class Verifier:
    """Compares secrets with hashes, a few at a time and in threads."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(2)
        self._waiting = 0

    async def fits(self, token: secrets.Secret, kept: str) -> bool:
        """Return whether a token is the one whose hash was kept.

        Raises:
            ApiError: Too many others are being verified (503).
        """
        if self._waiting >= VERIFYING_MAX:
            text = "too many tokens are being verified: repeat it in a second"
            raise ApiError(503, "busy", text, retry_after_s=1.0)
        self._waiting += 1
        try:
            async with self._slots:
                return await asyncio.to_thread(secrets.fits, token, kept)
        finally:
            self._waiting -= 1

    async def hashed(self, token: secrets.Secret) -> str:
        """Return what is kept of a new token."""
        async with self._slots:
            return await asyncio.to_thread(secrets.hashed, token)


class Proxies:
    """The addresses of load balancers before the gateways, whose word on a client is taken."""

    def __init__(self, text: str) -> None:
        """Read addresses and networks, separated by commas.

        Raises:
            ValueError: One is neither.
        """
        parts = [part.strip() for part in text.split(",") if part.strip()]
        self._networks = [ipaddress.ip_network(part) for part in parts]

    def source(self, request: web.Request) -> str:
        """Return the address that a request comes from."""
        peer = request.remote or ""
        if not self._networks or not self._trusted(peer):
            return peer
        told = [each.strip() for each in request.headers.get("X-Forwarded-For", "").split(",")]
        # The last one is what the load balancer itself saw; what stands before it is hearsay.
        for each in reversed(told):
            try:
                address = str(ipaddress.ip_address(each))
            except ValueError:
                return peer
            if not self._trusted(address):
                return address
        return peer

    def _trusted(self, text: str) -> bool:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return False
        return any(address in network for network in self._networks)


class Authentication:
    """Finds the caller of a request."""

    def __init__(
        self,
        tokens: Callers,
        people: Callable[[], People | None],
        now: Callable[[], Instant],
        attempts: Guesses,
        proxies: Proxies,
    ) -> None:
        """Take where callers are known from.

        Args:
            tokens: Those of a file.
            people: Returns the people as they are known now; None: this cluster has none.
            now: Returns the wall-clock time.
            attempts: Counts wrong secrets.
            proxies: Tells where a request comes from.
        """
        self._tokens, self._people, self._now = tokens, people, now
        self.attempts, self.proxies, self.verifier = attempts, proxies, Verifier()
        self._key = random.token_bytes(32)
        self._verified: OrderedDict[bytes, tuple[str, str]] = OrderedDict()
        """By digest of the text: the token's id, and the hash that it was compared with."""
        self.began_at = now()
        self._used: dict[str, Instant] = {}
        """When each person's token was last taken, by its id."""

    def used_at(self, token: str) -> Instant | None:
        """Return when a token was last taken by this gateway; None: not since `began_at`."""
        return self._used.get(token)

    async def caller(self, request: web.Request) -> Caller:
        """Return the caller of a request.

        Raises:
            ApiError: Its token is refused (401, 403), or its address has tried too many (429).
            _unauthorized: An ApiError (401): it has no token, or none that is known.
        """
        source = self.proxies.source(request)
        self._tokens.refresh()
        header = request.headers.get("Authorization", "") or _of_websocket(request)
        scheme, _, text = header.partition(" ")
        given = secrets.parse(text.strip()) if scheme.lower() == "bearer" else None
        reason = request.headers.get(REASON_HEADER, "")[:REASON_CHARACTERS_MAX]
        reason = reason.encode("utf-8", "replace").decode()  # Else no message could have it.
        if given is None:
            found = self._tokens.caller(header)
            if found is None:
                raise _unauthorized()
            return found._replace(source=source, reason=reason)
        people = self._people()
        token = people.tokens.get(given.id) if people is not None else None
        if people is None or token is None:
            raise _unauthorized()
        if not await self._is_right(text.strip(), given, token, source):
            raise _unauthorized()
        return self._person(people, token, source, reason)

    async def _is_right(
        self, text: str, given: secrets.Secret, token: TokenOf, source: str
    ) -> bool:
        digest = hmac.new(self._key, text.encode("utf-8", "surrogateescape"), "sha256").digest()
        known = self._verified.get(digest)
        if known is not None and known == (token.token, token.hash):
            self._verified.move_to_end(digest)
            return True
        self.attempts.check(source, token.token)
        if not await self.verifier.fits(given, token.hash):
            self.attempts.failed(source, token.token)
            return False
        self._verified[digest] = (token.token, token.hash)
        if len(self._verified) > VERIFIED_MAX:
            self._verified.popitem(last=False)
        return True

    def _person(self, people: People, token: TokenOf, source: str, reason: str) -> Caller:
        # The right token was shown, so what is said of it is said to its owner.
        caller = Caller(
            token.person,
            "",
            person=token.person,
            standing=people.standing(token.person),
            token=token.token,
            source=source,
            reason=reason,
        )
        if token.revoked_at:
            text = f"the token {token.token} ({token.name}) was revoked: run `skep login`"
            refused = ApiError(401, Reason.TOKEN_REVOKED, text)
            refused.why, refused.caller = Reason.TOKEN_REVOKED, caller
            raise refused
        if token.expires_at <= self._now():
            text = f"the token {token.token} ({token.name}) has expired: run `skep login`"
            raise ApiError(401, Reason.TOKEN_EXPIRED, text)
        if token.person not in people.people:
            text = f"there is no person {token.person} any more: ask an operator"
            raise ApiError(401, Reason.UNKNOWN_PERSON, text)
        if caller.standing.disabled:
            text = f"{token.person} is disabled: ask an operator"
            refused = ApiError(403, Reason.PERSON_DISABLED, text)
            refused.caller = caller
            raise refused
        self._used[token.token] = self._now()
        return caller


def _of_websocket(request: web.Request) -> str:
    """Return the Authorization header that a browser cannot send with a WebSocket.

    It may only name protocols: `skep.terminal`, and one that has the token in base64url.
    """
    if request.headers.get("Upgrade", "").lower() != "websocket":
        return ""
    for offered in request.headers.get("Sec-WebSocket-Protocol", "").split(","):
        name = offered.strip()
        if name.startswith(BEARER_PROTOCOL):
            told = name.removeprefix(BEARER_PROTOCOL).encode("utf-8", "replace")
            try:
                text = base64.urlsafe_b64decode(told + b"=" * (-len(told) % 4)).decode()
            except ValueError:
                return ""
            return f"Bearer {text}"
    return ""


def digest_of(text: str) -> str:
    """Return the SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _unauthorized() -> ApiError:
    text = "a token is needed: `Authorization: Bearer <token>` (`skep login` gets one)"
    return ApiError(401, Reason.UNAUTHORIZED, text)
