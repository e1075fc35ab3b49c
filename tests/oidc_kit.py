"""A provider of OpenID Connect on loopback: real keys, the device flow, and the code flow."""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

CLIENT = "skep-cli"
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())


class Issuer:
    """The provider. `person` is the one in front of its browser; `claims` are put into tokens."""

    def __init__(self) -> None:
        self.issuer = ""
        self.person = "ada"
        self.claims: dict[str, Any] = {}
        self.codes: dict[str, dict[str, str]] = {}
        self.approved: dict[str, bool | None] = {}
        self.fetched = 0
        self.keys: dict[str, Any] = {"rsa": RSA_KEY, "ec": EC_KEY}
        self.kid, self.algorithm = "rsa", "RS256"
        self.devices = True
        self.secret: str | None = None
        """What the client must show."""
        self.names_itself = True
        """Whether it says that its answers to browsers have `iss`."""
        self.exchanges = 0
        """How often a code was to be redeemed."""

    def token(self, **claims: Any) -> str:
        """Return an ID token; what is given replaces what would be in it, None takes it out."""
        now = int(time.time())
        head = {"kid": claims.pop("kid", self.kid)}
        key = claims.pop("key", self.keys[self.kid])
        algorithm = claims.pop("algorithm", self.algorithm)
        body = {
            "iss": self.issuer,
            "sub": f"sub-{self.person}",
            "aud": CLIENT,
            "iat": now,
            "exp": now + 300,
            "preferred_username": self.person,
            **self.claims,
            **claims,
        }
        body = {name: value for name, value in body.items() if value is not None}
        return jwt.encode(body, key, algorithm, headers=head)

    def application(self) -> web.Application:
        made = web.Application()
        made.add_routes(
            [
                web.get("/.well-known/openid-configuration", self.about),
                web.get("/keys", self.public_keys),
                web.post("/device", self.device),
                web.get("/authorize", self.authorize),
                web.post("/token", self.tokens),
            ]
        )
        return made

    async def about(self, _: web.Request) -> web.Response:
        told: dict[str, Any] = {
            "issuer": self.issuer,
            "jwks_uri": f"{self.issuer}/keys",
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
        }
        if self.names_itself:
            told["authorization_response_iss_parameter_supported"] = True
        if self.devices:
            told["device_authorization_endpoint"] = f"{self.issuer}/device"
        return web.json_response(told)

    async def public_keys(self, _: web.Request) -> web.Response:
        self.fetched += 1
        found = []
        for kid, key in self.keys.items():
            kind: Any = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
            found.append({**kind.to_jwk(key.public_key(), as_dict=True), "kid": kid, "use": "sig"})
        return web.json_response({"keys": found})

    async def device(self, request: web.Request) -> web.Response:
        asked = await request.post()
        assert (asked["client_id"], asked.get("client_secret")) == (CLIENT, self.secret)
        code = secrets.token_urlsafe(8)
        self.approved[code] = None
        return web.json_response(
            {
                "device_code": code,
                "user_code": "ABCD-EFGH",
                "verification_uri": f"{self.issuer}/device",
                "expires_in": 60,
                "interval": 5,
            }
        )

    def answer(self, *, approve: bool) -> None:
        """The person types the code, and approves or declines."""
        self.approved = dict.fromkeys(self.approved, approve)

    async def authorize(self, request: web.Request) -> web.Response:
        query = dict(request.query)
        assert query["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(8)
        self.codes[code] = query
        back = f"{query['redirect_uri']}?code={code}&state={query['state']}&iss={self.issuer}"
        return web.Response(status=302, headers={"Location": back})

    async def tokens(self, request: web.Request) -> web.Response:
        body = dict(await request.post())
        assert body.get("client_secret") == self.secret
        if body["grant_type"] == "authorization_code":
            self.exchanges += 1
            asked = self.codes.pop(str(body["code"]), None)
            if asked is None or asked["redirect_uri"] != body["redirect_uri"]:
                return web.json_response({"error": "invalid_grant"}, status=400)
            verifier = hashlib.sha256(str(body["code_verifier"]).encode()).digest()
            if base64.urlsafe_b64encode(verifier).decode().rstrip("=") != asked["code_challenge"]:
                return web.json_response({"error": "invalid_grant"}, status=400)
            return web.json_response(
                {"id_token": self.token(nonce=asked["nonce"]), "access_token": "more"}
            )
        match self.approved.get(str(body["device_code"])):
            case True:
                return web.json_response({"id_token": self.token(), "access_token": "more"})
            case False:
                return web.json_response({"error": "access_denied"}, status=400)
            case _:
                return web.json_response({"error": "authorization_pending"}, status=400)


@asynccontextmanager
async def opened() -> AsyncIterator[Issuer]:
    """A provider on a port of its own."""
    issuer = Issuer()
    runner = web.AppRunner(issuer.application())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    issuer.issuer = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield issuer
    await runner.cleanup()
