"""Secrets of people and virtual clusters: how they are kept, asked for and handed to a node.

No value is ever in one of these messages as it is. It is sealed (libsodium's sealed boxes) to the
vault's key while it is kept, and to the key of one request of one node while it is on its way.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from skep.units import KIB
from skep.wire.bounds import Attempt, JobName, Moment, Short, Text, Token
from skep.wire.message import Message
from skep.wire.reasons import Reason

VALUE_BYTES_MAX = 32 * KIB
"""Keys and certificates have a few KB; what is larger belongs on shared storage."""
SEAL_BYTES = 48
"""By how much a sealed box is longer than what is in it."""
PLACE_BYTES = 64
"""By how much what is sealed may be longer than the value: it begins with a digest of its place."""
KEY_BYTES = 32
SECRETS_PER_JOB_MAX = 32
SECRETS_PER_ASK_MAX = 16
"""So many of the largest size fit the mebibyte that a message of the bus may have."""
SECRETS_PER_OWNER_MAX = 256

Scope = Literal["vc", "person"]
"""Whose a secret is: a virtual cluster's, for the jobs of all its people, or one person's."""

Sealed = Annotated[bytes, Meta(max_length=VALUE_BYTES_MAX + SEAL_BYTES)]
SealedInPlace = Annotated[bytes, Meta(max_length=VALUE_BYTES_MAX + PLACE_BYTES + SEAL_BYTES)]
PublicKey = Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]


class SecretKept(Message, frozen=True, tag="secret-kept"):
    """A secret, sealed to the vault's key. The subject says whose it is and its name.

    `key` is the vault's key that it is sealed to, `by` the person that set it.
    """

    sealed: SealedInPlace
    key: PublicKey
    at: Moment
    by: Short = ""


class VaultKey(Message, frozen=True, tag="vault-key"):
    """The vault's public key: what secrets are to be sealed to.

    `places`: the vault opens boxes that say whose secret they hold, and its name.
    """

    key: PublicKey
    places: bool = False


class AskSecrets(Message, frozen=True, tag="ask-secrets"):
    """An agent asks for the secrets of an attempt that its node is to run.

    `key` is made for this request alone: what is sealed to it can be read by this agent only.
    """

    node: Token
    job: JobName
    attempt: Attempt
    key: PublicKey
    names: Annotated[tuple[Token, ...], Meta(min_length=1, max_length=SECRETS_PER_ASK_MAX)]


class SecretsGiven(Message, frozen=True, tag="secrets-given"):
    """The secrets that were asked for, each sealed to the request's key; or why there are none."""

    sealed: Annotated[dict[Token, Sealed], Meta(max_length=SECRETS_PER_ASK_MAX)] = {}
    refused: Reason | None = None
    text: Text = ""
