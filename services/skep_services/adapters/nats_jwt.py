"""Signed identities of the bus: keys, tokens of operator, accounts and users, credentials files.

A bus server in operator mode knows one public key, the operator's. It believes an account whose
token the operator signed, and a user whose token the account signed and that signs the server's
nonce by its own key. No server keeps a password, and none is told of a new user.

The rights are those of `nats_access` and are written nowhere else: `account_token` and
`user_token` say the same in tokens as the server's configuration says of accounts with passwords.
Nothing here reads a clock, draws a number or touches a file.

Sources: NATS ADR-14 and the format of nkeys (prefix byte, key, CRC-16, in base 32); claims of
version 2 as github.com/nats-io/jwt describes them.
"""

from __future__ import annotations

import base64
import binascii
import enum
import functools
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from skep_services.adapters.nats_access import Account, User

VERSION = 2
NO_LIMIT = -1
EVERYBODY = "*"
"""Among the revoked of an account: all of its users."""

KEY_BYTES = 32
_CHECK_BYTES = 2
_SEED_PREFIX = 18 << 3
_HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}
_TOKEN_BYTES_MAX = 1 << 20
"""A server takes no larger message; none of ours comes near."""


class TokenError(Exception):
    """A key, a token or a credentials file that is not what it must be; the text says why."""


class Kind(enum.IntEnum):
    """What a key is for; the first letter of its text tells it."""

    ACCOUNT = 0
    OPERATOR = 14 << 3
    USER = 20 << 3


class Pair(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A key pair. `seed` is the secret half: it is in no log and no error."""

    kind: Kind
    seed: bytes

    def __repr__(self) -> str:
        return f"Pair({self.public})"

    @property
    def public(self) -> str:
        """The public key, as the bus writes it."""
        return _public(self.kind, self.seed)

    @property
    def seed_text(self) -> str:
        """The secret key, as credentials files and the folder of keys have it."""
        first = _SEED_PREFIX | (self.kind >> 5)
        second = (self.kind & 31) << 3
        return _checked_text(bytes((first, second)) + self.seed)

    def sign(self, data: bytes) -> bytes:
        """Return the signature of `data`, 64 bytes."""
        signature: bytes = _signing_key(self.seed).sign(data).signature
        return signature


@functools.lru_cache(maxsize=64)
def _signing_key(seed: bytes) -> Any:
    # Loaded when it is needed: a process with a password starts 16 ms sooner.
    from nacl.signing import SigningKey  # noqa: PLC0415 - it loads slowly

    return SigningKey(seed)


@functools.lru_cache(maxsize=4096)
def _public(kind: Kind, seed: bytes) -> str:
    return _checked_text(bytes((kind,)) + bytes(_signing_key(seed).verify_key))


def _checked_text(data: bytes) -> str:
    check = binascii.crc_hqx(data, 0).to_bytes(_CHECK_BYTES, "little")
    return base64.b32encode(data + check).decode().rstrip("=")


def _checked_bytes(text: str, what: str) -> bytes:
    padded = text + "=" * (-len(text) % 8)
    try:
        data = base64.b32decode(padded)
    except (binascii.Error, ValueError) as error:
        message = f"{what}: not in base 32"
        raise TokenError(message) from error
    body, check = data[:-_CHECK_BYTES], data[-_CHECK_BYTES:]
    if binascii.crc_hqx(body, 0).to_bytes(_CHECK_BYTES, "little") != check:
        message = f"{what}: its checksum is wrong"
        raise TokenError(message)
    return body


def read_seed(text: str) -> Pair:
    """Return the key pair of a seed's text.

    Raises:
        TokenError: It is no seed of an operator, an account or a user.
    """
    data = _checked_bytes(text.strip(), "the seed")
    if len(data) != KEY_BYTES + 2 or data[0] & 0xF8 != _SEED_PREFIX:
        message = "the seed: it does not hold a secret key"
        raise TokenError(message)
    kind = (data[0] & 7) << 5 | data[1] >> 3
    try:
        return Pair(Kind(kind), data[2:])
    except ValueError as error:
        message = "the seed: a key of another kind than operator, account or user"
        raise TokenError(message) from error


def read_public(text: str, kind: Kind) -> bytes:
    """Return the 32 bytes of a public key.

    Raises:
        TokenError: It is no public key of this kind.
    """
    what = f"the public key of the {kind.name.lower()}"
    data = _checked_bytes(text, what)
    if len(data) != KEY_BYTES + 1 or data[0] != kind:
        message = f"{what}: {text[:8]}... is another kind of key"
        raise TokenError(message)
    return data[1:]


class Claims(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a token says.

    Times are seconds since 1970; `exp` 0: it does not expire. `nats` is what its kind has.
    """

    jti: str = ""
    iat: int = 0
    iss: str = ""
    name: str = ""
    sub: str = ""
    exp: int = 0
    nats: Mapping[str, Any] = {}

    @property
    def type(self) -> str:
        """Whether it is an operator's, an account's or a user's."""
        return str(self.nats.get("type", ""))


def sign(claims: Claims, issuer: Pair) -> str:
    """Return the token with these claims. Its id is the hash of them."""
    said = msgspec.structs.replace(claims, iss=issuer.public, jti="")
    digest = hashlib.blake2b(msgspec.json.encode(said), digest_size=KEY_BYTES).digest()
    named = msgspec.structs.replace(said, jti=base64.b32encode(digest).decode().rstrip("="))
    body = f"{_web_text(msgspec.json.encode(_HEADER))}.{_web_text(msgspec.json.encode(named))}"
    return f"{body}.{_web_text(issuer.sign(body.encode()))}"


def _web_text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _web_bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        message = "the token: not in base 64"
        raise TokenError(message) from error


def claims_of(token: str) -> Claims:
    """Return what a token says. Any key may have signed it.

    Raises:
        TokenError: It is no token.
    """
    parts = token.strip().split(".")
    if len(parts) != 3 or len(token) > _TOKEN_BYTES_MAX:
        message = "the token: it does not have three parts"
        raise TokenError(message)
    try:
        header = msgspec.json.decode(_web_bytes(parts[0]), type=dict[str, str])
        claims = msgspec.json.decode(_web_bytes(parts[1]), type=Claims)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        message = "the token: it holds no claims"
        raise TokenError(message) from error
    if header != _HEADER:
        message = "the token: signed in another way than ed25519-nkey"
        raise TokenError(message)
    return claims


def verify(token: str, issuer: str, issuer_kind: Kind, now_s: int) -> Claims:
    """Return what a token says if `issuer` signed it and it has not expired.

    Args:
        token: The token.
        issuer: The public key that has to have signed it.
        issuer_kind: What kind of key that is.
        now_s: Seconds since 1970.

    Raises:
        TokenError: It is no token, another one signed it, it was changed, or it has expired.
    """
    from nacl.exceptions import BadSignatureError  # noqa: PLC0415 - it loads slowly
    from nacl.signing import VerifyKey  # noqa: PLC0415 - as well

    claims = claims_of(token)
    body, _, signature = token.strip().rpartition(".")
    if claims.iss != issuer:
        message = (
            f"the token of {claims.name!r}: signed by {claims.iss[:8]}..., not {issuer[:8]}..."
        )
        raise TokenError(message)
    try:
        key = VerifyKey(read_public(issuer, issuer_kind))
        key.verify(body.encode(), _web_bytes(signature))
    except (BadSignatureError, ValueError) as error:
        message = f"the token of {claims.name!r}: its signature is wrong"
        raise TokenError(message) from error
    if claims.exp and now_s >= claims.exp:
        message = f"the token of {claims.name!r}: it expired {now_s - claims.exp} s ago"
        raise TokenError(message)
    return claims


# --- tokens --------------------------------------------------------------------------------------


def operator_token(operator: Pair, name: str, system_account: str, issued_at_s: int) -> str:
    """Return the token by which servers know the operator: it signs itself.

    Args:
        operator: Its keys.
        name: The name of the cluster.
        system_account: The public key of the account in which servers speak to one another.
        issued_at_s: Seconds since 1970.
    """
    nats = {"type": "operator", "version": VERSION, "system_account": system_account}
    said = Claims(iat=issued_at_s, name=name, sub=operator.public, nats=nats)
    return sign(said, operator)


def account_token(
    account: Account,
    operator: Pair,
    key_of: Callable[[str], str],
    issued_at_s: int,
    revoked: Mapping[str, int] = {},
) -> str:
    """Return the token of an account: what it exports, imports and may use, and its revoked users.

    Args:
        account: The account, from `nats_access`.
        operator: The keys that sign it.
        key_of: Returns the public key of the account of a name.
        issued_at_s: Seconds since 1970. Of two tokens of an account, servers keep the later one.
        revoked: Public keys of users, or EVERYBODY, and the second up to which (including it)
            tokens of them were issued that count no more.
    """
    nats = {
        "type": "account",
        "version": VERSION,
        "exports": [_export(one) for one in account.exports],
        "imports": [_import(one, key_of) for one in account.imports],
        "limits": _limits(account),
        "revocations": dict(revoked),
    }
    said = Claims(iat=issued_at_s, name=account.name, sub=key_of(account.name), nats=nats)
    return sign(said, operator)


def _export(tree: Mapping[str, Any]) -> dict[str, Any]:
    if "stream" in tree:
        return {"subject": tree["stream"], "type": "stream"}
    return {
        "subject": tree["service"],
        "type": "service",
        "response_type": "Singleton",
        "response_threshold": _nanoseconds(tree["response_threshold"]),
    }


def _import(tree: Mapping[str, Any], key_of: Callable[[str], str]) -> dict[str, Any]:
    ((kind, source),) = tree.items()
    return {"subject": source["subject"], "account": key_of(source["account"]), "type": kind}


def _nanoseconds(text: str) -> int:
    """Return what a time in the server's configuration is, such as `10s`."""
    assert re.fullmatch(r"\d+s", text), text
    return int(text[:-1]) * 1_000_000_000


def _limits(account: Account) -> dict[str, Any]:
    stored = NO_LIMIT if account.jetstream else 0

    def limit(value: int | None) -> int:
        return NO_LIMIT if value is None else value

    return {
        "conn": limit(account.connections_max),
        "subs": limit(account.subscriptions_max),
        "leaf": 0,
        "data": NO_LIMIT,
        "payload": NO_LIMIT,
        "imports": NO_LIMIT,
        "exports": NO_LIMIT,
        "wildcards": True,
        "disallow_bearer": True,
        "mem_storage": stored,
        "disk_storage": stored,
        "streams": stored,
        "consumer": stored,
    }


def user_token(
    user: User,
    account: Pair,
    public: str,
    *,
    issued_at_s: int,
    expires_at_s: int = 0,
    sources: Sequence[str] = (),
) -> str:
    """Return the token of a user: what it may say and hear, from where and until when.

    Args:
        user: The user, from `nats_access`; its password counts for nothing.
        account: The keys of its account, which sign it.
        public: The user's public key.
        issued_at_s: Seconds since 1970; a revocation counts up to the second that it names.
        expires_at_s: Seconds since 1970; 0: it does not expire.
        sources: The networks it may connect from, such as `10.0.0.0/8`; empty: from anywhere.

    Raises:
        TokenError: `public` is no public key of a user.
    """
    read_public(public, Kind.USER)
    nats: dict[str, Any] = {
        "type": "user",
        "version": VERSION,
        "pub": _allowed(user.grants.publish),
        "sub": _allowed(user.grants.subscribe),
        "subs": NO_LIMIT,
        "data": NO_LIMIT,
        "payload": NO_LIMIT,
        "allowed_connection_types": ["STANDARD"],
    }
    if user.grants.answers_s:
        nats["resp"] = {"max": 1, "ttl": user.grants.answers_s * 1_000_000_000}
    if sources:
        nats["src"] = list(sources)
    said = Claims(iat=issued_at_s, name=user.name, sub=public, exp=expires_at_s, nats=nats)
    return sign(said, account)


def grants_as(claims: Claims, user: User) -> bool:
    """Return whether a user's token allows what that user may do now, and nothing else."""
    nats: Any = claims.nats
    said = [set(nats.get(way, {}).get("allow", ())) for way in ("pub", "sub")]
    answers_s = nats.get("resp", {}).get("ttl", 0) // 1_000_000_000
    grants = user.grants
    return (*said, answers_s) == (set(grants.publish), set(grants.subscribe), grants.answers_s)


def _allowed(subjects: Sequence[str]) -> dict[str, list[str]]:
    # For the server a list without a subject allows everything.
    return {"allow": list(subjects)} if subjects else {"deny": [">"]}


def deletion_token(operator: Pair, accounts: Sequence[str], issued_at_s: int) -> str:
    """Return the operator's order to the servers to forget accounts, by their public keys."""
    nats = {"type": "generic", "version": VERSION, "accounts": list(accounts)}
    said = Claims(iat=issued_at_s, name="delete", sub=operator.public, nats=nats)
    return sign(said, operator)


# --- credentials files ---------------------------------------------------------------------------


class Credentials(msgspec.Struct, frozen=True):
    """What a user logs in with: its token, and the key that the token names."""

    token: str
    pair: Pair


_SECTION = re.compile(r"-{3,}BEGIN ([A-Z ]+)-{3,}\s+(\S+)\s+-{3,}END \1-{3,}")


def credentials_text(token: str, pair: Pair) -> str:
    """Return a credentials file. It holds a secret: no other user may read it."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{pair.seed_text}\n------END USER NKEY SEED------\n"
    )


def read_credentials(text: str) -> Credentials:
    """Return what a credentials file holds.

    Raises:
        TokenError: It has no token or no seed, or the seed is not the key that the token names.
    """
    sections = dict(_SECTION.findall(text))
    try:
        token, seed = sections["NATS USER JWT"], sections["USER NKEY SEED"]
    except KeyError as error:
        message = f"the credentials: the section {error} is not there"
        raise TokenError(message) from error
    pair = read_seed(seed)
    if pair.kind is not Kind.USER or claims_of(token).sub != pair.public:
        message = "the credentials: token and seed do not belong together"
        raise TokenError(message)
    return Credentials(token, pair)
