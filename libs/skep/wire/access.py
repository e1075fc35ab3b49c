"""People, tokens and nodes: what is asked of the access service, its answers, and its facts.

A request goes to `skep.v1.access` from the gateway or an operator, and the answer comes to the
reply subject. Secrets never travel here: the asker makes a token and tells only its hash.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from skep.units import Instant
from skep.wire.bounds import LISTED_MAX, Count, Moment, Short, Token
from skep.wire.facts import EpochBegan
from skep.wire.message import Message
from skep.wire.reasons import Reason
from skep.wire.roles import Role

REASON_CHARACTERS_MAX = 512
"""Characters of the reason that somebody gives for a change: one sentence."""
PEM_CHARACTERS_MAX = 16_384
"""Characters of a certificate, a request for one or a JWT: an RSA key of 8,192 bits needs 6,000."""
HASH_CHARACTERS_MAX = 160
"""Characters of an argon2id hash: 97 with the salt and the length that are used here."""
DETAILS_MAX = 64
"""Entries of what a signer needs or gives beside keys and certificates: the services of a server
are fewer."""
ID_PATTERN = r"^[a-z0-9]{12}$(?!\n)"
"""The public part of a token: 62 bits, made at random."""
KEY_PATTERN = r"^U[A-Z2-7]{55}$(?!\n)"
"""A public key of a NATS user (nkey)."""
DIGEST_PATTERN = r"^[0-9a-f]{64}$(?!\n)"

Cause = Annotated[str, Meta(max_length=REASON_CHARACTERS_MAX)]
Pem = Annotated[str, Meta(max_length=PEM_CHARACTERS_MAX)]
Hash = Annotated[str, Meta(max_length=HASH_CHARACTERS_MAX)]
TokenId = Annotated[str, Meta(pattern=ID_PATTERN)]
BusKey = Annotated[str, Meta(pattern=KEY_PATTERN)]
Digest = Annotated[str, Meta(pattern=DIGEST_PATTERN)]
Hosts = Annotated[tuple[Short, ...], Meta(max_length=32)]
Details = Annotated[dict[Short, Pem], Meta(max_length=DETAILS_MAX)]


Roles = Annotated[dict[Token, Role], Meta(max_length=LISTED_MAX)]


class KeyKind(StrEnum):
    """What a key of the bus belongs to."""

    NODE = "node"
    SERVER = "server"
    PERSON = "person"


class Outcome(StrEnum):
    """How an action came out, in a line of the audit log."""

    DONE = "done"
    REFUSED = "refused"


class Actor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The one that asks, as the gateway knows it.

    `name` is a person; or `operator` or `vc-<vc>`, those that have a token in the gateway's file;
    or empty for what has no account yet, such as a node that joins. `token` is the token by which
    a person was known, `source` its address, `reason` what it says of its reason.
    """

    name: Short = ""
    token: Short = ""
    source: Short = ""
    reason: Cause = ""


# --- requests ----------------------------------------------------------------------------------


class _Wish(Message, frozen=True):
    """What is asked for."""


class AddPerson(_Wish, frozen=True, tag="add-person"):
    """Let a person have an account. With `oidc` it logs in at the provider, else by tokens only.

    `again`: the person had this name before it was removed, and has its jobs and secrets again. The
    name of a removed person is given to no other one.
    """

    person: Token
    full_name: Short = ""
    oidc: bool = False
    again: bool = False


class BindPerson(_Wish, frozen=True, tag="bind-person"):
    """Say which account at the provider is a person's: `subject` (`sub`) of `issuer` (`iss`)."""

    person: Token
    issuer: Cause
    subject: Short


class DisablePerson(_Wish, frozen=True, tag="disable-person"):
    """Refuse all that a person asks for, until it is enabled."""

    person: Token


class EnablePerson(_Wish, frozen=True, tag="enable-person"):
    """Take a disabling back."""

    person: Token


class RemovePerson(_Wish, frozen=True, tag="remove-person"):
    """Remove a person, its roles and tokens."""

    person: Token


class GrantRole(_Wish, frozen=True, tag="grant-role"):
    """Give a person a role in a VC in place of the one it has; as operator without a VC."""

    person: Token
    role: Role
    vc: Short = ""


class RevokeRole(_Wish, frozen=True, tag="revoke-role"):
    """Take a person's role in a VC away; without a VC that of an operator."""

    person: Token
    vc: Short = ""


class SetGroupRoles(_Wish, frozen=True, tag="set-group-roles"):
    """Have a person's groups give it roles, by VC, in place of those that they gave before."""

    person: Token
    roles: Roles = {}


class MakeToken(_Wish, frozen=True, tag="make-token"):
    """Let a person be known by a token. The asker made it, and tells its id and hash."""

    token: TokenId
    person: Token
    name: Short
    hash: Hash
    expires_at: Moment


class RevokeToken(_Wish, frozen=True, tag="revoke-token"):
    """Refuse a token from now on, and those of the same person that were made by it."""

    token: TokenId


class LogIn(_Wish, frozen=True, tag="log-in"):
    """Make a token for a person that a provider vouches for.

    The asker has verified the ID token; `digest` is its SHA-256, for it may be used once. `roles`
    follow from groups, and leave those before as they are where the provider tells no groups. With
    `add` a person without an account gets one. `proven`: people do not choose names at the
    provider; else only an operator says which account there is a person's.
    """

    person: Token
    issuer: Cause
    subject: Short
    digest: Digest
    digest_until: Moment
    token: TokenId
    name: Short
    hash: Hash
    expires_at: Moment
    roles: Roles = {}
    add: bool = False
    proven: bool = False
    groups: bool = True
    """Whether the provider tells groups."""


class MakeJoinToken(_Wish, frozen=True, tag="make-join-token"):
    """Let one node or server join. `node` is the name it must have; empty: any.

    `hosts` are names and addresses that its certificate may have beside its own name and the
    address that it joins from.
    """

    token: TokenId
    hash: Hash
    expires_at: Moment
    kind: KeyKind = KeyKind.NODE
    node: Short = ""
    hosts: Hosts = ()


class RevokeJoinToken(_Wish, frozen=True, tag="revoke-join-token"):
    """Let nothing join by a token any more."""

    token: TokenId


class JoinNode(_Wish, frozen=True, tag="join-node"):
    """Take a node or server into the cluster. The asker has verified the join token.

    `key` is its public key on the bus, `request` asks for its certificate (PEM), `hosts` are the
    names and addresses in it, and `details` are for the signer alone.
    """

    token: TokenId
    node: Token
    key: BusKey
    request: Pem
    kind: KeyKind = KeyKind.NODE
    hosts: Hosts = ()
    details: Details = {}


class RenewNode(_Wish, frozen=True, tag="renew-node"):
    """Sign anew for a node or server. The asker has verified a signature by its key."""

    key: BusKey
    request: Pem


class RemoveNode(_Wish, frozen=True, tag="remove-node"):
    """Take a node or server out of the cluster, and revoke its key."""

    node: Token
    kind: KeyKind = KeyKind.NODE


class TakeKey(_Wish, frozen=True, tag="take-key"):
    """Let a person be on the bus in a VC, by a key whose public part is `key`."""

    person: Token
    vc: Token
    key: BusKey


class NoteAction(_Wish, frozen=True, tag="note-action"):
    """Write an action on anything else into the audit log: `vc apply`, `drain`, `cancel`."""

    action: Short
    target: Short
    vc: Short = ""


class NoteRefusal(_Wish, frozen=True, tag="note-refusal"):
    """Write into the audit log what the asker refused an actor, and why.

    `missed` counts its refusals since the line before, which have none of their own.
    """

    action: Short
    target: Short
    why: Reason
    vc: Short = ""
    missed: Count = 0


Wish = (
    AddPerson
    | BindPerson
    | DisablePerson
    | EnablePerson
    | RemovePerson
    | GrantRole
    | RevokeRole
    | SetGroupRoles
    | MakeToken
    | RevokeToken
    | LogIn
    | MakeJoinToken
    | RevokeJoinToken
    | JoinNode
    | RenewNode
    | RemoveNode
    | TakeKey
    | NoteAction
    | NoteRefusal
)


class AskAccess(Message, frozen=True, tag="ask-access"):
    """A request: who asks, and for what."""

    actor: Actor
    wish: Wish


class AccessAsked(msgspec.Struct, frozen=True, kw_only=True):
    """A request arrived; its answer goes to `reply`."""

    ask: AskAccess
    reply: str = ""


class Credentials(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a signer gives for a key; all of it may be known to everybody.

    `certificate` and `authority` are PEM, `jwt` is for the user on the bus, `bus` has the bus's
    addresses, `until` is when the first of them expires.
    """

    certificate: Pem = ""
    authority: Pem = ""
    jwt: Pem = ""
    bus: Hosts = ()
    until: Instant = Instant(0)
    details: Details = {}


class AccessAnswer(Message, frozen=True, tag="access-answer"):
    """What is told about a request. A refusal has a reason and one line of text."""

    accepted: bool
    reason: Reason | None = None
    text: str = ""
    credentials: Credentials | None = None


# --- facts -------------------------------------------------------------------------------------


class VcsHeard(Message, frozen=True, tag="vcs-heard"):
    """The virtual clusters that there are: roles are granted in no other."""

    vcs: tuple[str, ...]


class PersonAdded(Message, frozen=True, tag="person-added"):
    """A person has an account."""

    person: str
    at: Instant
    full_name: str = ""
    oidc: bool = False


class PersonBound(Message, frozen=True, tag="person-bound"):
    """An account at the provider is a person's, and no other account there may be it."""

    person: str
    issuer: str
    subject: str


class PersonDisabled(Message, frozen=True, tag="person-disabled"):
    """All that a person asks for is refused."""

    person: str
    at: Instant


class PersonEnabled(Message, frozen=True, tag="person-enabled"):
    """A person may act again."""

    person: str
    at: Instant


class PersonRemoved(Message, frozen=True, tag="person-removed"):
    """A person, its roles and tokens are gone; its keys are told of by `KeyDropped`."""

    person: str
    at: Instant


class RoleGranted(Message, frozen=True, tag="role-granted"):
    """A person has a role in a VC, or (without one) that of an operator."""

    person: str
    role: Role
    vc: str = ""


class RoleRevoked(Message, frozen=True, tag="role-revoked"):
    """A person has no granted role in a VC, or (without one) is no operator."""

    person: str
    vc: str = ""


class GroupRolesSet(Message, frozen=True, tag="group-roles-set"):
    """The roles that follow from a person's groups at its provider, in place of those before."""

    person: str
    roles: dict[str, Role]


class LoginUsed(Message, frozen=True, tag="login-used"):
    """An ID token was used, which is refused from then on; it expires at `until`."""

    digest: str
    until: Instant
    forgotten: tuple[str, ...] = ()
    """Earlier ones that have expired: nothing is kept of them any more."""


class TokenMade(Message, frozen=True, tag="token-made"):
    """A person is known by a token. `by` is the token by which it was asked for, if one was."""

    token: str
    person: str
    name: str
    hash: str
    at: Instant
    expires_at: Instant
    by: str = ""


class TokenRevoked(Message, frozen=True, tag="token-revoked"):
    """A token is refused."""

    token: str
    at: Instant


class TokensForgotten(Message, frozen=True, tag="tokens-forgotten"):
    """Tokens that expired or were revoked long ago: nothing is kept of them any more."""

    tokens: tuple[str, ...]


class JoinTokenMade(Message, frozen=True, tag="join-token-made"):
    """One node or server may join by a token."""

    token: str
    kind: KeyKind
    hash: str
    at: Instant
    expires_at: Instant
    node: str = ""
    hosts: tuple[str, ...] = ()


class JoinTokenRevoked(Message, frozen=True, tag="join-token-revoked"):
    """Nothing joins by a token any more."""

    token: str
    at: Instant


class JoinTokensForgotten(Message, frozen=True, tag="join-tokens-forgotten"):
    """Join tokens that ended long ago: nothing is kept of them any more."""

    tokens: tuple[str, ...]


class KeyTaken(Message, frozen=True, tag="key-taken"):
    """A key of the bus is that of a node, a server or a person in a VC; it has yet to be signed.

    `token` is the join token that is used up by that.
    """

    key: str
    kind: KeyKind
    name: str
    at: Instant
    vc: str = ""
    token: str = ""
    request: str = ""
    hosts: tuple[str, ...] = ()
    details: dict[str, str] = {}


class KeyRenewed(Message, frozen=True, tag="key-renewed"):
    """A key is to be signed anew, with a certificate for another request."""

    key: str
    request: str
    at: Instant


class KeySigned(Message, frozen=True, tag="key-signed"):
    """What a key may be used with."""

    key: str
    credentials: Credentials
    at: Instant


class KeyDropped(Message, frozen=True, tag="key-dropped"):
    """A key is to be revoked on the bus; its name is free."""

    key: str
    at: Instant


class KeyRevoked(Message, frozen=True, tag="key-revoked"):
    """The bus refuses a key."""

    key: str
    at: Instant


class Audited(Message, frozen=True, tag="audited"):
    """Somebody changed something, or was refused to: one line of the audit log.

    `actor` is empty for what has no account. `why` is the reason of a refusal, `reason` what the
    actor says. `missed` counts refusals of the actor before this one that have no line.
    """

    at: Instant
    actor: str
    action: str
    target: str
    outcome: Outcome
    vc: str = ""
    source: str = ""
    token: str = ""
    reason: str = ""
    why: Reason | None = None
    missed: int = 0


AccessFact = (
    EpochBegan
    | VcsHeard
    | PersonAdded
    | PersonBound
    | PersonDisabled
    | PersonEnabled
    | PersonRemoved
    | RoleGranted
    | RoleRevoked
    | GroupRolesSet
    | LoginUsed
    | TokenMade
    | TokenRevoked
    | TokensForgotten
    | JoinTokenMade
    | JoinTokenRevoked
    | JoinTokensForgotten
    | KeyTaken
    | KeyRenewed
    | KeySigned
    | KeyDropped
    | KeyRevoked
    | Audited
)
"""What the access service records, in the stream ACCESS."""

ACTIONS: dict[type[Any], str] = {
    AddPerson: "add person",
    BindPerson: "bind person",
    DisablePerson: "disable person",
    EnablePerson: "enable person",
    RemovePerson: "remove person",
    GrantRole: "grant role",
    RevokeRole: "revoke role",
    SetGroupRoles: "set group roles",
    MakeToken: "make token",
    RevokeToken: "revoke token",
    LogIn: "log in",
    MakeJoinToken: "make join token",
    RevokeJoinToken: "revoke join token",
    JoinNode: "join",
    RenewNode: "renew",
    RemoveNode: "remove node",
    TakeKey: "take key",
}
"""What the audit log calls each request; those of `NoteAction` and `NoteRefusal` are in them."""
