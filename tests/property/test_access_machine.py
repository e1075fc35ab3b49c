"""Access over long random histories: what was revoked stays so, and facts alone rebuild it."""

from __future__ import annotations

import random

import msgspec
import pytest

from skep.machines.access import AccessMachine, Kept
from skep.machines.access.calls import Sign
from skep.machines.base import Tick
from skep.units import Instant
from skep.wire import codec
from skep.wire.access import (
    Actor,
    AddPerson,
    BindPerson,
    DisablePerson,
    EnablePerson,
    GrantRole,
    KeyRevoked,
    KeySigned,
    RemoveNode,
    RemovePerson,
    RenewNode,
    RevokeRole,
    RevokeToken,
    TakeKey,
    TokenMade,
    Wish,
)
from skep.wire.roles import Role
from tests.access_kit import OPERATOR, Access, join, key, token
from tests.effort import examples

PEOPLE = ("ada", "bob", "eve")
STEPS = 150


class Story:
    """A random history, and what must hold of it, read off the facts."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.access = Access(thorough=False)
        self.made = 0

    def step(self) -> None:
        chance, access = self.chance, self.access
        do = chance.random()
        if do < 0.05:
            access.restart()
        elif do < 0.25:
            chance.shuffle(access.calls)
            access.calls = access.calls[: chance.randint(0, 3)]
            access.sign(fails="no" * (chance.random() < 0.3), final=chance.random() < 0.2)
        elif do < 0.30:
            access.driver.now = Instant(
                access.driver.now + chance.randint(0, 40) * 24 * 3600 * 10**9
            )
        elif do < 0.45:
            self.made += 1
            person = chance.choice(PEOPLE)
            access.token(self.made, person, self.actor(), days=chance.choice((1, 60, 390)))
        elif do < 0.6:
            self.made += 1
            if access.told(AddPerson(person="ada")) != "?":
                by = access.invite(self.made)
                access.ask(join(chance.randint(1, 12), chance.choice(("n1", "n2", "n3")), by))
        else:
            access.ask(self.wish(), self.actor())
        wake = access.machine.wake_at()
        if wake is not None and chance.random() < 0.3:
            access.driver.now = max(access.driver.now, wake)
            access.event(access_tick())

    def actor(self) -> Actor:
        chance = self.chance
        if chance.random() < 0.5:
            return OPERATOR
        known = chance.choice(("", token(chance.randint(1, self.made + 1))))
        return Actor(name=chance.choice((*PEOPLE, "vc-nlp", "")), token=known, source="s")

    def wish(self) -> Wish:
        chance = self.chance
        person, vc = chance.choice(PEOPLE), chance.choice(("nlp", "vision", ""))
        return chance.choice(
            (
                AddPerson(person=person, oidc=chance.random() < 0.5, again=chance.random() < 0.5),
                BindPerson(person=person, issuer="i", subject=chance.choice(PEOPLE)),
                DisablePerson(person=person),
                EnablePerson(person=person),
                RemovePerson(person=person),
                GrantRole(person=person, role=chance.choice(list(Role)), vc=vc),
                GrantRole(person=person, role=Role.SUBMITTER, vc="nlp"),
                RevokeRole(person=person, vc=vc),
                RevokeToken(token=token(chance.randint(1, self.made + 1))),
                RemoveNode(node=chance.choice(("n1", "n2", "n3"))),
                RenewNode(key=key(chance.randint(1, 12)), request=f"r{chance.randint(1, 3)}"),
                TakeKey(person=person, vc="nlp", key=key(chance.randint(13, 25))),
            )
        )


def access_tick() -> Tick:
    return Tick()


@pytest.mark.parametrize("seed", range(examples(20)))
def test_what_was_revoked_stays_so_and_facts_rebuild_the_state(seed: int) -> None:
    story = Story(seed)
    for _ in range(STEPS):
        story.step()
    access = story.access
    access.driver.check_replay()
    revoked: set[str] = set()
    made: set[str] = set()
    for fact in access.driver.facts:
        if isinstance(fact, KeyRevoked):
            revoked.add(fact.key)
        elif isinstance(fact, KeySigned):
            assert fact.key not in revoked, (seed, fact)
        elif isinstance(fact, TokenMade):
            assert fact.token not in made, (seed, fact)
            made.add(fact.token)
    again, decoder = AccessMachine(), msgspec.json.Decoder(Kept)
    for piece in access.machine.snapshot():
        again.apply(decoder.decode(codec.encode(piece)))
    again.check()
    assert again.people == access.machine.people
    # Whatever was asked, the signer has nothing left to do once it has done all.
    access.restart()
    while access.calls:
        access.sign()
    assert not any(one.wanted or one.dropped for one in access.machine.people.keys.values())
    assert all(isinstance(call, Sign) for call in access.calls)
