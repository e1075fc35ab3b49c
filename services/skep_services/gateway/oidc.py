"""OpenID Connect: which provider vouches for people, and whether an ID token of it holds.

The provider's keys are fetched from where its discovery document says, over HTTPS (or from
loopback), and again when a token names a key that is not among them. Only signatures by asymmetric
keys are taken: with a shared secret, all that can verify can also sign.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn
from urllib.parse import urlencode, urlsplit

import aiohttp
import jwt
import msgspec
from msgspec import Meta

from skep.ids import is_token
from skep.units import KIB
from skep.wire.bounds import UNDECODABLE, one_line
from skep.wire.reasons import Reason
from skep.wire.roles import VC_ROLES, Role
from skep_services.gateway.api import ApiError
from skep_services.pki.files import is_loopback
from skep_services.service import ConfigurationError

ALGORITHMS = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
)
"""What an ID token may be signed with."""
FETCH_S = 5.0
DOCUMENT_BYTES_MAX = 256 * KIB
"""A discovery document has 5 KiB, a set of keys some more."""
KEYS_S = 3600.0
"""How long keys are taken for the provider's without looking again."""
KEYS_AGAIN_S = 30.0
"""How soon they are fetched again for a token by an unknown key: strangers must not drive that."""
LEEWAY_S = 60
TOLD = (
    "device_code",
    "user_code",
    "verification_uri",
    "verification_uri_complete",
    "expires_in",
    "interval",
    "id_token",
    "error",
    "error_description",
)
"""What those that log in through the gateway are told: no token of access, and none to renew it."""
AGE_S_MAX = 600
"""How old an ID token may be: it is for logging in now, not for being kept."""
GROUPS_MAX = 1_000
PAGES_MAX = 32
"""Addresses of the page: a name or two, and those of single gateways."""
YEAR_HOURS = 8_760


class OidcSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file SKEP_OIDC.

    `claim` has a person's name: `preferred_username`, or `email`, of which the part before the @
    is taken if the provider has verified it and it is of one of `domains`. Names that people may
    choose at the provider prove nothing: an operator says which account is whose, unless there is
    one domain, or the operator says that names there are the provider's (`names_are_fixed`).
    `groups` has, for each group in the claim `groups_claim`, the role in each VC. With `add_people`
    all that log in get an account, else only those that an operator added with `--oidc`.
    `client_secret` is for providers
    that want one: logins then go to the provider through the gateway, which alone knows it.
    `pages` are the addresses at which people open the page, as a browser has them; the provider
    sends browsers back to `/login` there. A login of the page lasts `page_hours`.
    """

    issuer: str
    client_id: str
    client_secret: str = ""
    scopes: str = "openid profile email"
    claim: str = "preferred_username"
    domains: tuple[str, ...] = ()
    groups_claim: str = "groups"
    groups: dict[str, dict[str, Role]] = {}
    add_people: bool = False
    names_are_fixed: bool = False
    token_days: float = 30.0
    pages: Annotated[tuple[str, ...], Meta(max_length=PAGES_MAX)] = ()
    page_hours: Annotated[float, Meta(gt=0, le=YEAR_HOURS)] = 12.0

    @property
    def proves_names(self) -> bool:
        """Return whether people cannot choose the name that they are known by here."""
        return self.names_are_fixed or (self.claim == "email" and len(self.domains) == 1)


class Vouched(msgspec.Struct, frozen=True, kw_only=True):
    """What an ID token says of a person, once it holds."""

    person: str
    issuer: str
    subject: str
    roles: dict[str, Role]
    until_s: float
    proven: bool


def read_settings(path: str) -> OidcSettings | None:
    """Return the settings in a file; None if no file is named.

    Raises:
        ConfigurationError: The file cannot be read, or does not hold them.
    """
    if not path:
        return None
    try:
        found = msgspec.json.decode(Path(path).read_bytes(), type=OidcSettings)
    except (OSError, *UNDECODABLE) as error:
        text = f"SKEP_OIDC: {path}: {one_line(error)}"
        raise ConfigurationError(text) from error
    roles = [role for vcs in found.groups.values() for role in vcs.values()]
    if any(role not in VC_ROLES for role in roles):
        text = f"SKEP_OIDC: {path}: a group gives roles in virtual clusters, and makes no operators"
        raise ConfigurationError(text)
    if found.claim == "email" and not found.domains:
        text = f"SKEP_OIDC: {path}: `claim` email needs `domains`, else alice@anywhere is alice"
        raise ConfigurationError(text)
    if not is_safe(found.issuer):
        text = f"SKEP_OIDC: {path}: `issuer` must begin with https:// (or be on loopback)"
        raise ConfigurationError(text)
    for page in found.pages:
        if not _is_origin(page):
            text = (
                f"SKEP_OIDC: {path}: `pages` has {page[:100]!r}: it takes addresses such as "
                "https://skep.example.org, in small letters, without a path and the usual port"
            )
            raise ConfigurationError(text)
    return found


HOST = re.compile(r"[a-z0-9.-]+|[0-9a-f:.]+")
"""A name, or an address, as an origin has it."""


def _is_origin(url: str) -> bool:
    """Return whether an address is what a browser calls an origin, and can be believed."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return False
    if not host or not HOST.fullmatch(host) or parts.netloc.endswith(":"):
        return False
    if port is not None and not parts.netloc.endswith(f":{port}"):
        return False
    usual = {"https": ":443", "http": ":80"}.get(parts.scheme, "")
    plain = url.isascii() and url == f"{parts.scheme}://{parts.netloc}".lower()
    return plain and is_safe(url) and "@" not in url and not url.endswith(usual)


def is_safe(url: str) -> bool:
    """Return whether what comes from an address can be believed: by HTTPS, or from this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))


class Provider:
    """The provider, as far as ID tokens go. `close` it after use."""

    def __init__(
        self,
        settings: OidcSettings,
        now_s: Callable[[], float] = time.time,
        ticks_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the settings, the wall-clock time, and seconds that never go back."""
        self.settings = settings
        self._now_s, self._ticks_s = now_s, ticks_s
        self._keys: dict[str, jwt.PyJWK] = {}
        self._fetched_at: float | None = None
        self._about: dict[str, Any] = {}
        self._about_at: float | None = None
        self._fetching = asyncio.Lock()
        self._session: aiohttp.ClientSession | None = None
        self._skew_s: float | None = None
        """How far the provider's clock was ahead when it last answered."""

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def answers(self) -> tuple[str, float | None]:
        """Return what is wrong with the provider now, and how far its clock is ahead in seconds.

        Returns:
            One line, empty if it answers with its keys; and None where it does not say the time.
        """
        self._skew_s = None
        try:
            async with self._fetching:
                keys = await self._fetch()
        except (OSError, TimeoutError, ValueError, aiohttp.ClientError) as error:
            return one_line(error) or type(error).__name__, self._skew_s
        return "" if keys else "it has no key that an ID token can be signed with", self._skew_s

    async def vouched(self, token: str, nonce: str) -> Vouched:
        """Return what an ID token says.

        Args:
            token: The ID token.
            nonce: The nonce that must be in it; empty: the flow has none.

        Raises:
            ApiError: It does not hold (401), or the provider's keys cannot be had (503).
        """
        claims = await self._claims(token)
        if nonce and claims.get("nonce") != nonce:
            _refuse("it is for another login (nonce)")
        party = claims.get("azp")
        several = isinstance(claims.get("aud"), list) and len(claims["aud"]) > 1
        if (several or party is not None) and party != self.settings.client_id:
            _refuse("it was made for another program (azp)")
        if self._now_s() - float(claims["iat"]) > AGE_S_MAX:
            _refuse("it is too old: log in anew")
        subject = claims["sub"]
        if not isinstance(subject, str) or not 1 <= len(subject) <= 255:
            _refuse("its subject is no name (sub)")
        return Vouched(
            person=self._person(claims),
            issuer=self.settings.issuer,
            subject=subject,
            roles=self._roles(claims),
            until_s=float(claims["exp"]) + LEEWAY_S,
            proven=self.settings.proves_names,
        )

    async def ask(self, endpoint: str, form: Mapping[str, str]) -> dict[str, Any]:
        """Return what the provider answers to this cluster as its client, which has a secret.

        Args:
            endpoint: The name of the address in the discovery document.
            form: What is asked, without the client.

        Returns:
            What may be told to the one that logs in: `TOLD` of the answer.

        Raises:
            ApiError: The provider has no such address (409).
            _is_away: An ApiError (503): it cannot be asked.
        """
        client = {"client_id": self.settings.client_id}
        if self.settings.client_secret:
            client["client_secret"] = self.settings.client_secret
        try:
            url = str((await self._described()).get(endpoint, ""))
            if not url:
                text = f"the provider {self.settings.issuer} has no {endpoint}"
                raise ApiError(409, "provider", text)
            answer = await self._document(url, {**form, **client})
        except (OSError, TimeoutError, ValueError, aiohttp.ClientError) as error:
            raise self._is_away(error) from None
        return {name: answer[name] for name in TOLD if isinstance(answer.get(name), str | int)}

    async def authorization(self, query: Mapping[str, str]) -> str:
        """Return the address at which a person logs in, with a query.

        Raises:
            ApiError: The provider has no such address, or none that can be believed (409).
            _is_away: An ApiError (503): it cannot be asked.
        """
        try:
            url = str((await self._described()).get("authorization_endpoint", ""))
        except (OSError, TimeoutError, ValueError, aiohttp.ClientError) as error:
            raise self._is_away(error) from None
        if not is_safe(url):
            text = f"the provider {self.settings.issuer} names no address to log in at by https://"
            raise ApiError(409, "provider", text)
        return f"{url}{'&' if '?' in url else '?'}{urlencode(query)}"

    async def names_itself(self) -> bool:
        """Return whether its answers to browsers always name its issuer (RFC 9207).

        Raises:
            _is_away: An ApiError (503): it cannot be asked.
        """
        try:
            about = await self._described()
        except (OSError, TimeoutError, ValueError, aiohttp.ClientError) as error:
            raise self._is_away(error) from None
        return about.get("authorization_response_iss_parameter_supported") is True

    async def _claims(self, token: str) -> dict[str, Any]:
        try:
            head = jwt.get_unverified_header(token)
            algorithm, name = head.get("alg"), head.get("kid", "")
            if algorithm not in ALGORITHMS or not isinstance(name, str):
                _refuse(f"it is signed by {str(algorithm)[:20]!r}, which is not taken")
            key = await self._key(name, algorithm)
            if key.key_type == "oct":
                _refuse("it is signed by a shared secret")
            found: dict[str, Any] = jwt.decode(
                token,
                key.key,
                algorithms=[algorithm],
                audience=self.settings.client_id,
                issuer=self.settings.issuer,
                leeway=LEEWAY_S,
                options={"require": ["iss", "sub", "aud", "exp", "iat"]},
            )
        except jwt.ExpiredSignatureError:
            _refuse("it has expired: log in anew, and check the clocks")
        except jwt.ImmatureSignatureError:
            _refuse("it is from the future: check the clocks")
        except (jwt.InvalidTokenError, jwt.PyJWKError, ValueError, TypeError) as error:
            _refuse(one_line(error))
        return found

    async def _key(self, name: str, algorithm: str) -> jwt.PyJWK:
        """Return the provider's key of this name.

        Raises:
            ApiError: It has none (401).
        """
        await self._fresh_keys(name)
        found = self._keys.get(name)
        if found is None and not name and len(self._keys) == 1:
            found = next(iter(self._keys.values()))
        if found is None:
            _refuse("it is signed by a key that the provider does not have")
        told = found.algorithm_name
        if told and told != algorithm:
            _refuse(f"its key is for {told}, not for {algorithm}")
        return found

    async def _fresh_keys(self, name: str) -> None:
        async with self._fetching:
            at = self._fetched_at
            age = self._ticks_s() - at if at is not None else KEYS_S
            known = name in self._keys or (not name and bool(self._keys))
            if age < KEYS_AGAIN_S or (known and age < KEYS_S):
                return
            try:
                self._keys = await self._fetch()
            except (OSError, TimeoutError, ValueError, aiohttp.ClientError) as error:
                if known:
                    return  # The ones from before do; the provider may be away for a moment.
                raise self._is_away(error) from None
            self._fetched_at = self._ticks_s()

    async def _fetch(self) -> dict[str, jwt.PyJWK]:
        """Return the provider's keys by name.

        Raises:
            ValueError: A document is not what it should be.
        """
        about = await self._described(again=True)
        found = await self._document(str(about.get("jwks_uri", "")))
        keys: dict[str, jwt.PyJWK] = {}
        for each in found.get("keys", [])[:100]:
            if each.get("use", "sig") != "sig" or each.get("kty") == "oct":
                continue
            try:
                keys[str(each.get("kid", ""))] = jwt.PyJWK(each)
            except jwt.PyJWKError:
                continue  # A kind of key that is newer than this program.
        return keys

    async def _described(self, *, again: bool = False) -> dict[str, Any]:
        """Return the discovery document; `again`: as it is now.

        Raises:
            ValueError: It is not what it should be.
        """
        at, now = self._about_at, self._ticks_s()
        if not again and at is not None and now - at < KEYS_S:
            return self._about
        issuer = self.settings.issuer
        about = await self._document(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if about.get("issuer") != issuer:
            text = f"its discovery document is of {str(about.get('issuer'))[:100]!r}"
            raise ValueError(text)
        self._about, self._about_at = about, now
        return about

    def _is_away(self, error: Exception) -> ApiError:
        text = f"the provider {self.settings.issuer} cannot be asked: {one_line(error)}"
        return ApiError(503, "provider-away", text, retry_after_s=2.0)

    async def _document(self, url: str, form: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the JSON object at an address; with a form what it answers, if it refuses too.

        Raises:
            ValueError: It is none, or too large, or the address cannot be believed.
        """
        if not is_safe(url):
            text = f"{url[:200]!r} is neither https:// nor on loopback"
            raise ValueError(text)
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=FETCH_S)
            self._session = aiohttp.ClientSession(timeout=timeout, trust_env=True)
        method = "GET" if form is None else "POST"
        asked = self._session.request(method, url, data=form, allow_redirects=False)
        async with asked as answer:
            self._skew_s = ahead_s(answer.headers.get("Date", ""), self._now_s())
            if answer.status != 200 and not (form and 400 <= answer.status < 500):
                text = f"{url} answers {answer.status}"
                raise ValueError(text)
            raw = await answer.content.read(DOCUMENT_BYTES_MAX + 1)
            while len(raw) <= DOCUMENT_BYTES_MAX and not answer.content.at_eof():
                raw += await answer.content.read(DOCUMENT_BYTES_MAX + 1)
        if len(raw) > DOCUMENT_BYTES_MAX:
            text = f"{url} has more than {DOCUMENT_BYTES_MAX} bytes"
            raise ValueError(text)
        found = json.loads(raw)
        if not isinstance(found, dict):
            text = f"{url} is no JSON object"
            raise ValueError(text)
        return found

    def _person(self, claims: Mapping[str, Any]) -> str:
        settings = self.settings
        found = claims.get(settings.claim)
        if not isinstance(found, str) or not found:
            _refuse(f"it has no `{settings.claim}`: ask for more scopes, or set `claim`")
        if settings.claim == "email":
            found, _, domain = found.rpartition("@")
            if claims.get("email_verified") is not True:
                _refuse("the provider has not verified the address (email_verified)")
            if domain.lower() not in settings.domains:
                _refuse(f"{domain[:60]!r} is none of the domains that log in here")
        if not is_token(found):
            shown = found[:63].encode("unicode_escape").decode()
            _refuse(f"{shown!r} is no name for a person (letters, digits, _, -)")
        return found

    def _roles(self, claims: Mapping[str, Any]) -> dict[str, Role]:
        """Return the roles that follow from the groups; of two in one VC, the one that is more."""
        groups = claims.get(self.settings.groups_claim, [])
        found: dict[str, Role] = {}
        for group in groups[:GROUPS_MAX] if isinstance(groups, list) else ():
            for vc, role in self.settings.groups.get(str(group), {}).items():
                if vc not in found or role.covers(found[vc]):
                    found[vc] = role
        return found


def ahead_s(date: str, now_s: float) -> float | None:
    """Return how far the clock of a `Date` header is ahead (seconds); None: it has no date."""
    try:
        told_s = parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    return told_s + 0.5 - now_s  # The header is cut to whole seconds.


def _refuse(why: str) -> NoReturn:
    """Stop at an ID token that does not hold.

    Raises:
        ApiError: Always (401).
    """
    raise ApiError(401, Reason.LOGIN_REFUSED, f"the ID token is refused: {why}")
