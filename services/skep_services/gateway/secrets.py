"""`/v1/secrets`: which secrets there are, set and taken back. No value passes unsealed.

A client seals a value to the vault's key before it sends it. The gateway checks only whose the
secret is and how large the box is, and can open none.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from aiohttp import web

from skep.access.rights import Action
from skep.ids import is_token
from skep.vault.secrets import PERSON, VC, Secrets, Whose
from skep.wire import codec, subjects
from skep.wire.bounds import UNDECODABLE
from skep.wire.reasons import Reason
from skep.wire.vault import SEAL_BYTES, SECRETS_PER_OWNER_MAX, SecretKept
from skep_services.gateway.api import ApiError, caller_of, forbidden, json_response
from skep_services.gateway.callers import Caller
from skep_services.ports import Bus, Clock, Delivery, MissingStreamError, RefusedError

PUBLISH_TIMEOUT_S = 10.0


class SecretBody(msgspec.Struct, forbid_unknown_fields=True):
    """A sealed secret. `key` is the vault's key that it is sealed to; both are base64."""

    sealed: bytes
    key: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class SecretViews:
    """The handlers of `/v1/secrets`."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus, self._clock = bus, clock
        self._secrets = Secrets()

    async def deliver(self, delivery: Delivery) -> None:
        """Take over a message of the stream of secrets."""
        self._secrets.heard(delivery.subject, delivery.payload)

    def routes(self) -> list[web.RouteDef]:
        """Return where the handlers belong."""
        one = "/v1/secrets/{scope}/{owner}/{name}"
        return [
            web.get("/v1/secrets/key", self.key, allow_head=False),
            web.get("/v1/secrets/{scope}/{owner}", self.listing, allow_head=False),
            web.put(one, self.put),
            web.delete(one, self.delete),
        ]

    async def key(self, _: web.Request) -> web.StreamResponse:
        """Answer what secrets are to be sealed to.

        Raises:
            ApiError: This cluster keeps no secrets (409).
        """
        return json_response({"key": self._key(), "places": self._secrets.places})

    async def listing(self, request: web.Request) -> web.StreamResponse:
        """Answer the names of an owner's secrets, when each was set, and the setter.

        Raises:
            ApiError: The owner is no name (400), or is another (403).
        """
        whose = _whose(request, "none")
        found = [
            {"name": name, "set_at": kept.at, "by": kept.by}
            for name, kept in self._secrets.of(whose.scope, whose.owner).items()
        ]
        return json_response({"scope": whose.scope, "owner": whose.owner, "secrets": found})

    async def put(self, request: web.Request) -> web.StreamResponse:
        """Keep a sealed secret.

        Raises:
            ApiError: The body is wrong (400), the owner is another (403), has too many secrets or
                the box is sealed to an earlier key (409), or the bus does not take it (503).
        """
        whose, key = _whose(request), self._key()
        body = await _body(request)
        if body.key != key:
            text = "the secret is sealed to an earlier key of the vault: set it again"
            raise ApiError(409, Reason.OTHER_VAULT_KEY, text)
        if self._secrets.full(whose):
            text = f"{whose.owner} has {SECRETS_PER_OWNER_MAX} secrets, as many as it may"
            raise ApiError(409, Reason.TOO_MANY_SECRETS, text)
        try:
            kept = SecretKept(
                sealed=body.sealed, key=key, at=self._clock.now(), by=caller_of(request).name
            )
            payload = codec.encode(kept)
            msgspec.json.decode(payload, type=SecretKept)
        except UNDECODABLE as error:
            raise ApiError(400, Reason.TOO_LARGE, f"the secret is too large: {error}") from error
        await self._publish(whose, payload)
        return json_response({"scope": whose.scope, "owner": whose.owner, "name": whose.name}, 201)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        """Take a secret back: no job that starts from now on gets it.

        Raises:
            ApiError: There is no such secret (404), the owner is another (403), or the bus does not
                take it (503).
        """
        whose = _whose(request)
        if whose.name not in self._secrets.of(whose.scope, whose.owner):
            text = f"{whose.scope} {whose.owner} has no secret {whose.name}"
            raise ApiError(404, Reason.NO_SECRET, text)
        await self._publish(whose, b"")
        return json_response({"scope": whose.scope, "owner": whose.owner, "name": whose.name})

    def _key(self) -> bytes:
        if not self._secrets.key:
            text = "this cluster keeps no secrets: its vault never ran (`skep up --secrets`)"
            raise ApiError(409, Reason.NO_VAULT, text)
        return self._secrets.key

    async def _publish(self, whose: Whose, payload: bytes) -> None:
        try:
            async with asyncio.timeout(PUBLISH_TIMEOUT_S):
                await self._bus.publish(subjects.secret(*whose), payload, "", {})
        except TimeoutError:
            raise ApiError(503, "bus-away", "the bus did not take it: repeat it") from None
        except (RefusedError, MissingStreamError) as error:
            raise ApiError(503, "bus-refused", f"the bus refuses it: {error}") from error


async def _body(request: web.Request) -> SecretBody:
    try:
        body = msgspec.json.decode(await request.read(), type=SecretBody)
    except UNDECODABLE as error:
        raise ApiError(400, Reason.BAD_VALUE, f"no sealed secret: {error}") from error
    if len(body.sealed) <= SEAL_BYTES:
        raise ApiError(400, Reason.BAD_VALUE, "the secret is empty")
    return body


def _whose(request: web.Request, name: str = "") -> Whose:
    """Return whose secret a request is about, if it is the caller's to see and change.

    Raises:
        ApiError: It is no secret's place (400), or another's (403).
    """
    info = request.match_info
    scope, owner, name = info["scope"], info["owner"], name or info["name"]
    if scope not in (VC, PERSON) or not is_token(owner) or not is_token(name):
        text = "a secret is /v1/secrets/vc|person/OWNER/NAME, with names of letters, digits, _, -"
        raise ApiError(400, Reason.BAD_VALUE, text)
    _check(caller_of(request), scope, owner, sees=request.method == "GET")
    return Whose(VC if scope == VC else PERSON, owner, name)


def _check(caller: Caller, scope: str, owner: str, *, sees: bool) -> None:
    """Stop at a caller that may not see the names of an owner's secrets, or set and delete them.

    Raises:
        ApiError: They are not the caller's (403).
        forbidden: An ApiError (403): its role is too low.
    """
    if scope == PERSON and caller.person:
        ruling = caller.ruling(Action.MANAGE_SECRETS, "", owner)
    elif scope == VC and caller.may(owner):
        ruling = caller.ruling(Action.SEE_JOBS if sees else Action.MANAGE_VC_SECRETS, owner)
    else:
        raise ApiError(403, Reason.WRONG_VC, f"the secrets of {scope} {owner} are not yours")
    if not ruling:
        raise forbidden(ruling)
