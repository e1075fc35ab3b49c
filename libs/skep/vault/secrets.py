"""Which secrets there are, and which of them an attempt on a node may have. Values stay sealed.

A job names secrets. A name stands for the secret of the person whose job it is, or else for that of
its virtual cluster. A node gets the secrets that a job names only while an attempt of the job is
bound to that node.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from skep.ids import is_token
from skep.ledger.job_state import JobState
from skep.wire.bounds import UNDECODABLE
from skep.wire.reasons import Reason
from skep.wire.vault import SECRETS_PER_OWNER_MAX, AskSecrets, Scope, SecretKept, VaultKey

VC: Scope = "vc"
PERSON: Scope = "person"

_KEPT = msgspec.json.Decoder(SecretKept)
_KEYS = msgspec.json.Decoder(VaultKey)


class Whose(NamedTuple):
    """A secret's place: its owner and its name."""

    scope: Scope
    owner: str
    name: str


class Found(NamedTuple):
    """A secret, and its place, which what is sealed in it must name."""

    whose: Whose
    kept: SecretKept


class Refusal(NamedTuple):
    """Why a request is refused."""

    reason: Reason
    text: str


class Secrets:
    """Every secret that is kept, sealed, and the vault's key."""

    def __init__(self) -> None:
        """Begin without any."""
        self.key = b""
        """The vault's public key; empty while it has not said it."""
        self.places = False
        """Whether the vault opens boxes that say whose secret they hold."""
        self._kept: dict[Whose, SecretKept] = {}

    def heard(self, subject: str, payload: bytes) -> bool:
        """Take over a message of the stream of secrets.

        Args:
            subject: Where it was published.
            payload: The message; empty: the secret is taken back.

        Returns:
            Whether it makes sense. What does not is passed over.
        """
        parts = subject.split(".")[3:]
        try:
            if parts == ["vault", "key"]:
                said = _KEYS.decode(payload)
                self.key, self.places = said.key, said.places
                return True
            whose = _whose(parts)
            if whose is None:
                return False
            if payload:
                self._kept[whose] = _KEPT.decode(payload)
            else:
                self._kept.pop(whose, None)
        except UNDECODABLE:
            return False
        return True

    def of(self, scope: Scope, owner: str) -> dict[str, SecretKept]:
        """Return the secrets of a virtual cluster or a person, by name."""
        return {
            whose.name: kept
            for whose, kept in sorted(self._kept.items())
            if whose.scope == scope and whose.owner == owner
        }

    def full(self, whose: Whose) -> bool:
        """Return whether an owner has as many secrets as it may, and this would be one more."""
        if whose in self._kept:
            return False
        return len(self.of(whose.scope, whose.owner)) >= SECRETS_PER_OWNER_MAX

    def find(self, vc: str, person: str, name: str) -> Found | None:
        """Return what a name stands for in a job: the person's secret, or else the VC's."""
        places = [Whose(PERSON, person, name)] if person else []
        for whose in (*places, Whose(VC, vc, name)):
            if (kept := self._kept.get(whose)) is not None:
                return Found(whose, kept)
        return None

    def grant(self, ask: AskSecrets, job: JobState | None) -> dict[str, Found] | Refusal:
        """Return the secrets that an agent may have, or why it gets none.

        Args:
            ask: What the agent asks for. The bus guarantees that it is the agent of `ask.node`.
            job: The job as the allocator's log has it; None: there is no such unfinished job.
        """
        if job is None or not _is_on(job, ask.attempt, ask.node):
            text = f"attempt {ask.attempt} of {ask.job} is not bound to {ask.node}"
            return Refusal(Reason.NOT_BOUND_HERE, text)
        named = job.spec.secret_names
        granted = {}
        for name in ask.names:
            if name not in named:
                return Refusal(Reason.NO_SECRET, f"{ask.job} does not name the secret {name}")
            found = self.find(job.spec.vc, job.owner, name)
            if found is None:
                text = (
                    f"there is no secret {name} of "
                    f"{f'{job.owner} or of ' if job.owner else ''}VC {job.spec.vc}: "
                    f"skep secret set {name}"
                )
                return Refusal(Reason.NO_SECRET, text)
            granted[name] = found
        return granted


def _whose(parts: list[str]) -> Whose | None:
    if len(parts) != 3 or not all(map(is_token, parts[1:])):
        return None
    scope, owner, name = parts
    if scope == VC:
        return Whose(VC, owner, name)
    return Whose(PERSON, owner, name) if scope == PERSON else None


def _is_on(job: JobState, attempt: int, node: str) -> bool:
    if attempt == job.attempt:
        return node in job.members
    next_one = job.successor
    return next_one is not None and attempt == next_one.attempt and node in next_one.members
