"""What the people of a VC have and have used: the accounts that `people` keeps.

    used(t) = sum over the person's jobs of the integral of GPUs(s) 2^-((t-s)/half-life) ds

An account is brought up to the time of a fact that changes what the person has, and to no other
time: so every replay of a log comes to the same integers.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from skep.base.halving import decayed
from skep.units import Duration, Instant, seconds
from skep.wire.cluster import PersonLimits, VirtualCluster

ACCOUNTS_MAX = 10_000
"""Accounts of one VC: labels may name any number of people. That of least use is forgotten."""


class Account(msgspec.Struct):
    """What one person of a VC has and has used."""

    used: int = 0
    """GPU-nanoseconds, decayed until `at`."""
    at: Instant = Instant(0)
    gpus: int = 0
    """GPUs that are being used."""
    jobs: int = 0
    """Jobs that count against limits: those with GPUs or a claim, also suspended ones."""
    held: int = 0
    """The GPUs of these jobs."""

    def used_by(self, now: Instant, half_life: Duration) -> int:
        """Return the GPU-nanoseconds at an instant; a clock that was set back changes nothing."""
        elapsed = max(0, now - self.at)
        return decayed(self.used, self.gpus, elapsed, half_life) if half_life else 0


class Share(NamedTuple):
    """What one job adds to the account of its person."""

    person: str
    gpus: int
    held: int


class VcPeople(msgspec.Struct):
    """The people of one VC."""

    accounts: dict[str, Account] = {}
    shares: dict[str, Share] = {}
    """By job with GPUs or a claim: what it adds to its person's account."""
    half_life: Duration = Duration(0)
    """0: no usage is counted."""
    weights: dict[str, int] = {}
    """In thousandths, of those person have another than 1."""
    limits: PersonLimits | None = None

    def set(self, vc: VirtualCluster) -> None:
        """Follow the entry of the VC; what was used stays."""
        fair = vc.fair_share
        self.half_life = seconds(fair.half_life) if fair is not None else Duration(0)
        self.weights = (
            {} if fair is None else {person: milli(w) for person, w in fair.weights.items()}
        )
        self.limits = vc.limits

    def weight(self, person: str) -> int:
        """Return a person's weight, in thousandths."""
        return self.weights.get(person, 1000)

    def used(self, person: str, now: Instant) -> int:
        """Return the GPU-nanoseconds that a person used, decayed until an instant."""
        account = self.accounts.get(person)
        return 0 if account is None else account.used_by(now, self.half_life)

    def take(self, job: str, share: Share | None, at: Instant) -> None:
        """Note what a job adds to its person's account from an instant on; None: nothing."""
        before = self.shares.pop(job, None)
        if share is not None:
            self.shares[job] = share
        if before == share:
            return
        if before is not None:
            account = self._advance(before.person, at)
            account.gpus -= before.gpus
            account.jobs -= 1
            account.held -= before.held
        if share is not None:
            account = self._advance(share.person, at)
            account.gpus += share.gpus
            account.jobs += 1
            account.held += share.held

    def _advance(self, person: str, at: Instant) -> Account:
        account = self.accounts.get(person)
        if account is None:
            if len(self.accounts) >= ACCOUNTS_MAX:
                self._forget_one(at)
            account = self.accounts[person] = Account(at=at)
        account.used, account.at = account.used_by(at, self.half_life), max(account.at, at)
        return account

    def _forget_one(self, at: Instant) -> None:
        idle = [person for person, each in self.accounts.items() if not each.jobs]
        if idle:
            del self.accounts[min(idle, key=lambda person: (self.used(person, at), person))]


class People(msgspec.Struct):
    """The people of all VCs that share by person, or bound what one has."""

    of_vc: dict[str, VcPeople] = {}
    now: Instant = Instant(0)
    """The latest time that a fact said."""


def milli(weight: float) -> int:
    """Return a weight in thousandths."""
    return max(1, round(weight * 1000))
