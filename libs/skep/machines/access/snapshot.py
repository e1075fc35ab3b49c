"""What is kept of people, tokens and keys beside their history, in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec

from skep.access.people import JoinToken, Key, People, Person, TokenOf
from skep.units import Instant
from skep.wire.roles import Standing

PIECE = 200
"""People or tokens in one piece: some 500 bytes each, within a record."""
KEYS_PIECE = 4
"""Keys in one piece: a request, credentials and details may be 100 KB each, and rarely are."""


class AccessKept(msgspec.Struct, frozen=True, kw_only=True, tag="access-kept"):
    """The epoch, the VCs there are, and the ID tokens that were used."""

    epoch: int
    vcs: tuple[str, ...]
    logins: dict[str, Instant]


class PeopleKept(msgspec.Struct, frozen=True, tag="people-kept"):
    """People, and what each of them may be taken for."""

    people: tuple[tuple[Person, Standing], ...]


class TokensKept(msgspec.Struct, frozen=True, tag="tokens-kept"):
    """Tokens of people."""

    tokens: tuple[TokenOf, ...]


class JoinTokensKept(msgspec.Struct, frozen=True, tag="join-tokens-kept"):
    """Tokens by which nodes and servers join."""

    tokens: tuple[JoinToken, ...]


class KeysKept(msgspec.Struct, frozen=True, tag="keys-kept"):
    """Keys on the bus."""

    keys: tuple[Key, ...]


class RevokedKept(msgspec.Struct, frozen=True, tag="revoked-kept"):
    """Keys that never are in force again."""

    keys: dict[str, Instant]


class RetiredKept(msgspec.Struct, frozen=True, tag="retired-kept"):
    """Names of removed people."""

    names: tuple[str, ...]


Kept = AccessKept | PeopleKept | TokensKept | JoinTokensKept | KeysKept | RevokedKept | RetiredKept


def snapshot(people: People) -> list[Kept]:
    """Return what rebuilds the state without its history."""
    kept: list[Kept] = [
        AccessKept(epoch=people.epoch, vcs=tuple(people.vcs), logins=dict(people.logins))
    ]
    every = ((person, people.standing(name)) for name, person in people.people.items())
    kept += [RetiredKept(piece) for piece in _pieces(people.retired.values(), PIECE)]
    kept += [PeopleKept(piece) for piece in _pieces(every, PIECE)]
    kept += [TokensKept(piece) for piece in _pieces(people.tokens.values(), PIECE)]
    kept += [JoinTokensKept(piece) for piece in _pieces(people.join_tokens.values(), PIECE)]
    kept += [KeysKept(piece) for piece in _pieces(people.keys.values(), KEYS_PIECE)]
    kept += [RevokedKept(dict(piece)) for piece in _pieces(people.revoked.items(), PIECE)]
    return kept


def restore(people: People, kept: Kept) -> None:
    """Take over a piece of a snapshot."""
    match kept:
        case AccessKept():
            people.epoch, people.vcs = kept.epoch, dict.fromkeys(kept.vcs)
            people.logins = dict(kept.logins)
        case PeopleKept():
            for person, standing in kept.people:
                people.put_person(person)
                people.roles.set(person.person, standing)
        case TokensKept():
            for token in kept.tokens:
                people.put_token(token)
        case JoinTokensKept():
            people.join_tokens.update((token.token, token) for token in kept.tokens)
        case KeysKept():
            for key in kept.keys:
                people.put_key(key)
        case RetiredKept():
            people.retired.update((name.casefold(), name) for name in kept.names)
        case RevokedKept():
            people.revoked.update(kept.keys)


def _pieces(rest: Iterable[Any], size: int) -> Iterator[tuple[Any, ...]]:
    left = iter(rest)
    while piece := tuple(islice(left, size)):
        yield piece
