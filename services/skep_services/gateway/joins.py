"""`/v1/join` and `/v1/renew`: how nodes and servers come into the cluster, and get new credentials.

Neither needs a caller. A join shows a join token, whose secret is compared with its hash as a
person's token is; a renewal is signed by the node's key on the bus. Wrong tries are counted by
address and by token, bodies are small, and what is said of a wrong secret is the same whatever is
wrong.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

from skep.units import NS_PER_SECOND
from skep.wire.access import (
    Actor,
    BusKey,
    Credentials,
    Details,
    Hosts,
    JoinNode,
    KeyKind,
    RenewNode,
    TokenId,
)
from skep.wire.bounds import Short, Token
from skep.wire.reasons import Reason
from skep_services.access import secrets
from skep_services.gateway.api import ApiError, json_response
from skep_services.gateway.asking import Asking
from skep_services.gateway.authentication import Attempts, Authentication
from skep_services.gateway.bodies import read
from skep_services.gateway.people import PeopleView
from skep_services.pki.certificates import CertificateError
from skep_services.pki.requests import public_key
from skep_services.ports import Clock
from skep_services.servers.versions import VersionError, check_meeting

RENEWALS = b"skep renew 1\n"
"""What a signature for a renewal begins with, so that it is one for nothing else."""
RENEWAL_SKEW_S = 120
"""How far the time in a renewal may be from this gateway's: it must not be good for ever."""
REQUEST_CHARACTERS_MAX = 8192


class JoinBody(msgspec.Struct, frozen=True, kw_only=True):
    """What a node or server sends to join. Keys of later versions are passed over."""

    token: TokenId
    secret: Short
    node: Token
    key: BusKey
    request: str
    kind: KeyKind = KeyKind.NODE
    hosts: Hosts = ()
    version: Short = ""
    details: Details = {}


class RenewBody(msgspec.Struct, frozen=True, kw_only=True):
    """What a node or server sends for new credentials; the signature is by its key on the bus."""

    key: BusKey
    request: str
    at_s: int
    signature: Short
    version: Short = ""


class Joins:
    """The handlers of `/v1/join`, `/v1/renew` and `/v1/ca`."""

    def __init__(
        self,
        view: PeopleView | None,
        asking: Asking,
        authentication: Authentication,
        clock: Clock,
        environment: Mapping[str, str],
    ) -> None:
        """Take the ports.

        Args:
            view: What is known of join tokens; None: nothing joins this cluster.
            asking: Asks the access service.
            authentication: Compares secrets, and counts the wrong ones.
            clock: The time.
            environment: The gateway's: SKEP_TLS_CA, SKEP_CLUSTER and SKEP_GATEWAYS.
        """
        self._view, self._asking, self._clock = view, asking, clock
        self._verifier, self._proxies = authentication.verifier, authentication.proxies
        self._attempts: Attempts = authentication.attempts
        self._environment = environment

    def routes(self) -> list[web.RouteDef]:
        """Return where the handlers belong."""
        return [
            web.get("/v1/ca", self.authority, allow_head=False),
            web.post("/v1/join", self.join),
            web.post("/v1/renew", self.renew),
        ]

    async def authority(self, request: web.Request) -> web.StreamResponse:
        """Answer the certificate of the cluster's authority: it is no secret.

        Raises:
            ApiError: The cluster has none (404).
        """
        del request
        path = self._environment.get("SKEP_TLS_CA", "")
        if not path:
            raise ApiError(404, "no-authority", "this cluster has no authority of its own")
        body = await asyncio.to_thread(Path(path).read_bytes)
        return web.Response(body=body, content_type="application/x-pem-file")

    async def join(self, request: web.Request) -> web.StreamResponse:
        """Take a node or server into the cluster, and answer what its keys may be used with.

        Raises:
            ApiError: Too many tokens were wrong (429), or it is refused.
            _unknown: An ApiError (401): the token is wrong.
        """
        source = self._proxies.source(request)
        self._attempts.check(source)
        body = await read(request, JoinBody)
        _check_version(body.version, f"node {body.node}")
        if self._view is None:
            raise ApiError(404, "no-joins", "no node joins this cluster by a token")
        known = self._view.people.join_tokens.get(body.token)
        given = secrets.Secret(body.token, body.secret)
        if known is None:
            self._attempts.failed(source)
            raise _unknown()
        self._attempts.check(source, known.token)
        if not await self._verifier.fits(given, known.hash):
            self._attempts.failed(source, known.token)
            raise _unknown()
        _check_request(body.request)
        wish = JoinNode(
            token=body.token,
            node=body.node,
            key=body.key,
            request=body.request,
            kind=body.kind,
            hosts=body.hosts,
            details=body.details,
        )
        answer = await self._asking.ask(Actor(source=source, token=body.token), wish)
        return json_response(self._told(answer.credentials), 201)

    async def renew(self, request: web.Request) -> web.StreamResponse:
        """Answer new credentials for a key whose owner has signed the request.

        Raises:
            ApiError: The signature or its time is wrong (401), or it is refused.
        """
        source = self._proxies.source(request)
        self._attempts.check(source)
        body = await read(request, RenewBody)
        _check_version(body.version, "the node")
        now_s = self._clock.now() // NS_PER_SECOND
        if abs(body.at_s - now_s) > RENEWAL_SKEW_S:
            text = f"clock skew: the clocks differ by {abs(body.at_s - now_s)} s: set both by NTP"
            raise ApiError(401, "clock-skew", text)
        if not signed_by(body.key, renewal_text(body.key, body.request, body.at_s), body.signature):
            self._attempts.failed(source)
            raise ApiError(401, Reason.UNAUTHORIZED, "the renewal is not signed by its key")
        if self._view is None or not self._view.people.knows_key(body.key):
            # Anybody can sign by a key of its own: that costs the access service nothing.
            self._attempts.failed(source)
            text = "this key is of no node or server in the cluster: join again"
            raise ApiError(404, Reason.UNKNOWN_NODE, text)
        _check_request(body.request)
        wish = RenewNode(key=body.key, request=body.request)
        answer = await self._asking.ask(Actor(source=source), wish)
        return json_response(self._told(answer.credentials), 201)

    def _told(self, given: Credentials | None) -> dict[str, Any]:
        assert given is not None, "a granted join has credentials"
        gateways = given.details.get("gateways") or self._environment.get("SKEP_GATEWAYS", "")
        return {
            "cluster": given.details.get("cluster") or self._environment.get("SKEP_CLUSTER", ""),
            "certificate": given.certificate,
            "authority": given.authority,
            "jwt": given.jwt,
            "bus": given.bus,
            "gateways": [each for each in gateways.split(",") if each],
            "until": given.until,
            "details": given.details,
        }


def renewal_text(key: str, request: str, at_s: int) -> bytes:
    """Return what a node signs to have its credentials renewed."""
    return RENEWALS + json.dumps([key, request, at_s]).encode()


def signed_by(key: str, text: bytes, signature: str) -> bool:
    """Return whether a text is signed by a key of the bus.

    Args:
        key: The public key, as NATS writes it: one byte of its kind, 32 of the key, 2 to check it.
        text: The text.
        signature: Of Ed25519, in base64 for addresses.
    """
    try:
        public = base64.b32decode(key)[1:33]
        VerifyKey(public).verify(text, base64.urlsafe_b64decode(signature + "=="))
    except (binascii.Error, ValueError, TypeError, BadSignatureError):
        return False
    return True


def _check_request(request: str) -> None:
    """Stop at what can never be signed, before a join token is used up for it.

    Raises:
        ApiError: It is no request for a certificate (422).
    """
    try:
        public_key(request.encode("utf-8", "replace")[: REQUEST_CHARACTERS_MAX + 1])
    except CertificateError as error:
        raise ApiError(422, Reason.BAD_VALUE, f"`request`: {error}") from None


def _check_version(version: str, machine: str) -> None:
    """Stop a node whose messages the services could not read, or that could not read theirs.

    Raises:
        ApiError: Its version cannot be in one cluster with this one (409).
    """
    if not version:
        return
    try:
        check_meeting(version, machine)
    except VersionError as error:
        raise ApiError(409, "versions-cannot-meet", str(error)) from None


def _unknown() -> ApiError:
    text = "the join token is not known here, or its secret is wrong: an operator makes another one"
    return ApiError(401, Reason.UNKNOWN_TOKEN, text)
