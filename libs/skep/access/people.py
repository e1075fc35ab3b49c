"""People, their roles and tokens, and the keys of nodes: what the facts of ACCESS tell.

The access service, the gateway and whatever else follows ACCESS keep the same state by the same
`apply`. It decides nothing. What expired is still here, so that a refusal can say why, until a fact
says that it is forgotten.
"""

from __future__ import annotations

import msgspec

from skep.access.roles import NOBODY, Roles
from skep.units import Instant
from skep.wire.access import (
    AccessFact,
    Audited,
    Credentials,
    GroupRolesSet,
    JoinTokenMade,
    JoinTokenRevoked,
    JoinTokensForgotten,
    KeyDropped,
    KeyKind,
    KeyRenewed,
    KeyRevoked,
    KeySigned,
    KeyTaken,
    LoginUsed,
    PersonAdded,
    PersonBound,
    PersonDisabled,
    PersonEnabled,
    PersonRemoved,
    RoleGranted,
    RoleRevoked,
    TokenMade,
    TokenRevoked,
    TokensForgotten,
    VcsHeard,
)
from skep.wire.facts import EpochBegan
from skep.wire.roles import Role, Standing

OfPerson = (
    PersonAdded
    | PersonBound
    | PersonDisabled
    | PersonEnabled
    | PersonRemoved
    | RoleGranted
    | RoleRevoked
    | GroupRolesSet
)


class Person(msgspec.Struct, kw_only=True):
    """A person. What it may be taken for is in `People.roles`."""

    person: str
    at: Instant
    full_name: str = ""
    oidc: bool = False
    issuer: str = ""
    subject: str = ""


class TokenOf(msgspec.Struct, kw_only=True):
    """A token of a person. `revoked_at` is 0 while it is not revoked."""

    token: str
    person: str
    name: str
    hash: str
    at: Instant
    expires_at: Instant
    by: str = ""
    revoked_at: Instant = Instant(0)

    @property
    def ended_at(self) -> Instant:
        """Return since when, or from when on, it is refused."""
        return self.revoked_at or self.expires_at


class JoinToken(msgspec.Struct, kw_only=True):
    """A token by which one node or server may join; `used_by` is the key of the one that did."""

    token: str
    kind: KeyKind
    hash: str
    at: Instant
    expires_at: Instant
    node: str = ""
    hosts: tuple[str, ...] = ()
    used_by: str = ""
    revoked_at: Instant = Instant(0)


class Key(msgspec.Struct, kw_only=True):
    """A key on the bus. `wanted`: it is to be signed. `dropped`: it is to be revoked."""

    key: str
    kind: KeyKind
    name: str
    at: Instant
    vc: str = ""
    token: str = ""
    request: str = ""
    hosts: tuple[str, ...] = ()
    details: dict[str, str] = {}
    credentials: Credentials | None = None
    wanted: bool = True
    dropped: bool = False

    @property
    def place(self) -> tuple[KeyKind, str]:
        """Return what no other live key of a node or server may have."""
        return self.kind, self.name


class People(msgspec.Struct):
    """All that the facts of ACCESS tell, but for the lines of the audit log."""

    epoch: int = 0
    vcs: dict[str, None] = {}
    people: dict[str, Person] = {}
    tokens: dict[str, TokenOf] = {}
    join_tokens: dict[str, JoinToken] = {}
    keys: dict[str, Key] = {}
    """Keys in force, or dropped and not yet revoked on the bus."""
    places: dict[tuple[KeyKind, str], str] = {}
    """The live key of each node and server."""
    revoked: dict[str, Instant] = {}
    """Keys that were in force, and never are again."""
    logins: dict[str, Instant] = {}
    """ID tokens that were used and have not expired, by digest."""
    bound: dict[tuple[str, str], str] = {}
    """The person of each account at a provider, by issuer and subject."""
    folded: dict[str, str] = {}
    """People by their names without case: two that differ only by it would be taken for one."""
    tokens_of: dict[str, dict[str, None]] = {}
    roles: Roles = msgspec.field(default_factory=Roles)

    def standing(self, person: str) -> Standing:
        """Return what a person may be taken for."""
        return self.roles.people.get(person, NOBODY)

    def knows_key(self, key: str) -> bool:
        """Return whether a key on the bus is or was anybody's."""
        return key in self.keys or key in self.revoked

    def live_keys(self, person: str, vc: str | None = None) -> list[Key]:
        """Return the keys of a person that are in force, in one VC or (None) in all."""
        return [
            key
            for key in self.keys.values()
            if key.kind is KeyKind.PERSON
            and key.name == person
            and not key.dropped
            and vc in (None, key.vc)
        ]

    def apply(self, fact: AccessFact) -> None:
        """Take over one fact."""
        match fact:
            case EpochBegan():
                self.epoch = fact.epoch
            case VcsHeard():
                self.vcs = dict.fromkeys(fact.vcs)
            case TokenMade() | TokenRevoked() | TokensForgotten():
                self._token(fact)
            case JoinTokenMade() | JoinTokenRevoked() | JoinTokensForgotten():
                self._join_token(fact)
            case KeyTaken() | KeyRenewed() | KeySigned() | KeyDropped() | KeyRevoked():
                self._key(fact)
            case LoginUsed():
                for digest in fact.forgotten:
                    self.logins.pop(digest, None)
                self.logins[fact.digest] = fact.until
            case Audited():
                pass
            case _:
                self._person(fact)

    def _person(self, fact: OfPerson) -> None:
        if isinstance(fact, PersonAdded):
            self.put_person(
                Person(person=fact.person, at=fact.at, full_name=fact.full_name, oidc=fact.oidc)
            )
            return
        if (changed := self.roles.heard(fact)) is not None:
            self.roles.set(*changed)
        person = self.people[fact.person]
        match fact:
            case PersonBound():
                person.issuer, person.subject = fact.issuer, fact.subject
                self.bound[fact.issuer, fact.subject] = fact.person
            case PersonRemoved():
                self._remove(person)
            case GroupRolesSet() | RoleGranted() | RoleRevoked():
                pass  # They are in `roles`.
            case PersonDisabled() | PersonEnabled():
                pass  # Likewise.

    def put_person(self, person: Person) -> None:
        """Take over a person as a whole, without its roles."""
        self.people[person.person] = person
        self.folded[person.person.casefold()] = person.person
        if person.issuer:
            self.bound[person.issuer, person.subject] = person.person

    def _remove(self, person: Person) -> None:
        name = person.person
        for token in self.tokens_of.pop(name, ()):
            del self.tokens[token]
        self.folded.pop(name.casefold(), None)
        if person.issuer:
            self.bound.pop((person.issuer, person.subject), None)
        del self.people[name]

    def _token(self, fact: TokenMade | TokenRevoked | TokensForgotten) -> None:
        match fact:
            case TokenMade():
                self.put_token(
                    TokenOf(
                        token=fact.token,
                        person=fact.person,
                        name=fact.name,
                        hash=fact.hash,
                        at=fact.at,
                        expires_at=fact.expires_at,
                        by=fact.by,
                    )
                )
            case TokenRevoked():
                self.tokens[fact.token].revoked_at = fact.at
            case TokensForgotten():
                for name in fact.tokens:
                    token = self.tokens.pop(name)
                    theirs = self.tokens_of[token.person]
                    del theirs[name]
                    if not theirs:
                        del self.tokens_of[token.person]

    def put_token(self, token: TokenOf) -> None:
        """Take over a token as a whole."""
        self.tokens[token.token] = token
        self.tokens_of.setdefault(token.person, {})[token.token] = None

    def _join_token(self, fact: JoinTokenMade | JoinTokenRevoked | JoinTokensForgotten) -> None:
        match fact:
            case JoinTokenMade():
                self.join_tokens[fact.token] = JoinToken(
                    token=fact.token,
                    kind=fact.kind,
                    hash=fact.hash,
                    at=fact.at,
                    expires_at=fact.expires_at,
                    node=fact.node,
                    hosts=fact.hosts,
                )
            case JoinTokenRevoked():
                self.join_tokens[fact.token].revoked_at = fact.at
            case JoinTokensForgotten():
                for name in fact.tokens:
                    del self.join_tokens[name]

    def _key(self, fact: KeyTaken | KeyRenewed | KeySigned | KeyDropped | KeyRevoked) -> None:
        if isinstance(fact, KeyTaken):
            self.put_key(
                Key(
                    key=fact.key,
                    kind=fact.kind,
                    name=fact.name,
                    at=fact.at,
                    vc=fact.vc,
                    token=fact.token,
                    request=fact.request,
                    hosts=fact.hosts,
                    details=fact.details,
                )
            )
            if fact.token:
                self.join_tokens[fact.token].used_by = fact.key
            return
        key = self.keys[fact.key]
        match fact:
            case KeyRenewed():
                key.request, key.wanted = fact.request, True
            case KeySigned():
                key.credentials, key.wanted = fact.credentials, False
            case KeyDropped():
                key.dropped, key.wanted = True, False
                self.places.pop(key.place, None)
            case KeyRevoked():
                self.revoked[fact.key] = fact.at
                del self.keys[fact.key]

    def put_key(self, key: Key) -> None:
        """Take over a key as a whole."""
        self.keys[key.key] = key
        if key.kind is not KeyKind.PERSON and not key.dropped:
            self.places[key.place] = key.key

    def check(self) -> None:
        """Assert that what is kept twice agrees.

        Raises:
            AssertionError: It does not.
        """
        for person in self.people.values():
            assert self.folded[person.person.casefold()] == person.person
        assert len(self.folded) == len(self.people)
        assert set(self.roles.people) <= set(self.people)
        for name, standing in self.roles.people.items():
            given = {**standing.granted, **standing.groups}
            assert "" not in given, name
            assert Role.OPERATOR not in given.values(), name
        owned = {name: person for person, names in self.tokens_of.items() for name in names}
        assert owned == {name: token.person for name, token in self.tokens.items()}
        assert all(token.person in self.people for token in self.tokens.values())
        live = [key for key in self.keys.values() if not key.dropped]
        places = {key.place: key.key for key in live if key.kind is not KeyKind.PERSON}
        assert places == self.places
        for key in live:
            assert key.key not in self.revoked, key.key
            if key.kind is KeyKind.PERSON:
                assert key.name in self.people, key.name
                role = self.roles.role(key.name, key.vc)
                assert role is not None, key.name
                assert role.covers(Role.SUBMITTER), key.name
