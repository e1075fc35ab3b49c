"""What the tests of people share: the access machine with a signer, and short requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from skep.machines.access import AccessMachine
from skep.machines.access.calls import NotRevoked, NotSigned, Revoke, Revoked, Sign, Signed
from skep.machines.base import Call, Effect, Record, Send
from skep.units import Instant, after, seconds
from skep.wire.access import (
    AccessAnswer,
    AccessAsked,
    Actor,
    AddPerson,
    AskAccess,
    Audited,
    Credentials,
    GrantRole,
    JoinNode,
    MakeJoinToken,
    MakeToken,
    Wish,
)
from skep.wire.admin import SetVcs
from skep.wire.roles import Role
from tests.kit import Driver, at, vcs

OPERATOR = Actor(name="operator", source="10.0.0.9", reason="because")
REPLY = "_INBOX.gateway.1"
HASH = "$argon2id$of"
DAY = seconds(24 * 3600.0)


def key(number: int) -> str:
    """Return a public key of the bus."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
    return "U" + "A" * 53 + letters[number // 32 % 32] + letters[number % 32]


def token(number: int) -> str:
    """Return the id of a token."""
    return f"{number:012d}"


class Access:
    """The machine, and a signer that answers when it is told to."""

    def __init__(self, *, thorough: bool = True) -> None:
        self.driver = Driver(AccessMachine, thorough=thorough)
        self.driver.restart()
        self.calls: list[Any] = []
        self.answers: list[AccessAnswer] = []
        self.driver(SetVcs(vcs=vcs(nlp=4, vision=4)), 0)

    @property
    def machine(self) -> AccessMachine:
        return self.driver.machine

    @property
    def lines(self) -> list[Audited]:
        return [fact for fact in self.driver.facts if isinstance(fact, Audited)]

    def event(self, event: Any, second: float | None = None) -> list[Effect]:
        effects = self.driver(event, second)
        self._take(effects)
        return effects

    def _take(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Call(command):
                    self.calls.append(command)
                case Send(_, message):
                    self.answers.append(message)
                case Record():
                    pass

    def restart(self) -> None:
        self.calls = []
        self._take(self.driver.restart())

    def ask(
        self, wish: Wish, actor: Actor = OPERATOR, second: float | None = None
    ) -> AccessAnswer | None:
        """Return the answer, or None while there is none."""
        self.answers = []
        self.event(AccessAsked(ask=AskAccess(actor=actor, wish=wish), reply=REPLY), second)
        return self.answers[0] if self.answers else None

    def told(self, wish: Wish, actor: Actor = OPERATOR, second: float | None = None) -> str:
        """Return `ok`, `again`, `waits`, or the reason of a refusal, whose text is one line."""
        answer = self.ask(wish, actor, second)
        if answer is None:
            return "waits"
        if not answer.accepted:
            assert answer.reason is not None
            assert answer.text
            assert answer.text.isprintable(), answer
            return answer.reason.value
        return "ok" if answer.reason is None else "again"

    def sign(self, *, fails: str = "", final: bool = False) -> list[AccessAnswer]:
        """Carry out the calls, and return what is answered to those that waited."""
        self.answers = []
        calls, self.calls = self.calls, []
        for call in calls:
            match call:
                case Sign() if fails:
                    told: Any = NotSigned(
                        key=call.key, request=call.request, text=fails, final=final
                    )
                case Sign():
                    told = Signed(key=call.key, request=call.request, credentials=given(call))
                case Revoke() if fails:
                    told = NotRevoked(key=call.key, text=fails)
                case _:
                    told = Revoked(key=call.key)
            self.event(told)
        return self.answers

    def add(self, person: str, **roles: Role) -> Actor:
        """Add a person with roles by VC; return it as it asks."""
        assert self.told(AddPerson(person=person)) == "ok"
        for vc, role in roles.items():
            wish = GrantRole(person=person, role=role, vc="" if vc == "cluster" else vc)
            assert self.told(wish) == "ok"
        return Actor(name=person, source="10.0.0.1")

    def after(self, days: float = 1) -> Instant:
        return after(self.driver.now, seconds(days * 24 * 3600))

    def token(self, number: int, person: str, actor: Actor = OPERATOR, days: float = 1) -> str:
        """Make a token; return what is told."""
        return self.told(
            MakeToken(
                token=token(number),
                person=person,
                name="laptop",
                hash=HASH,
                expires_at=self.after(days),
            ),
            actor,
        )

    def invite(self, number: int, **fields: Any) -> str:
        """Make a join token; return its id."""
        wish = MakeJoinToken(token=token(number), hash=HASH, expires_at=self.after(1), **fields)
        assert self.told(wish) == "ok"
        return wish.token


SIGNED_S = 30 * 24 * 3600.0
"""Until when what is signed holds."""


def given(call: Sign) -> Credentials:
    """Return what the signer gives."""
    return Credentials(certificate=f"{call.name}/{call.request}", jwt=call.key, until=at(SIGNED_S))


def join(number: int, node: str, by: str, **fields: Any) -> JoinNode:
    """Return the request of a node with its key and a join token."""
    return JoinNode(token=by, node=node, key=key(number), request=f"csr-{number}", **fields)
