"""Callers of the gateway: what one may see, and what it may do, by the one table of rights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from skep.access.rights import RIGHTS, Action, Ruling, Scope, may
from skep.wire.access import Actor
from skep.wire.roles import Role, Standing

Only = str | tuple[str, ...]
"""The virtual clusters that something is about: one, or several; an empty text: all of them."""


class Caller(NamedTuple):
    """A caller: a person with the standing it has now, a tenant (`vc`) or, without both, operators.

    A tenant has a VC's own credentials, and is its manager. `token` is the id of the token by which
    a person is known, `source` the address of the caller, and `reason` what it says of its reason.
    """

    name: str
    vc: str
    person: str = ""
    standing: Standing = Standing()
    token: str = ""
    source: str = ""
    reason: str = ""

    @property
    def actor(self) -> Actor:
        """Return the caller as the access service and its audit log know it."""
        return Actor(name=self.name, token=self.token, source=self.source, reason=self.reason)

    @property
    def operator(self) -> bool:
        """Return whether it may do everything."""
        return self.highest is Role.OPERATOR

    @property
    def sees(self) -> Only:
        """Return the VCs of which it sees the jobs; an empty text: all."""
        if self.operator:
            return ""
        if not self.person:
            return self.vc
        return self.standing.vcs

    @property
    def counted(self) -> str:
        """Return the name under which its requests are counted; empty: they have no limit."""
        if self.operator:
            return ""
        return f"person {self.person}" if self.person else f"VC {self.vc}"

    @property
    def highest(self) -> Role | None:
        """Return the highest role that it has in any VC."""
        if self.person:
            return self.standing.highest
        return Role.MANAGER if self.vc else Role.OPERATOR

    def role(self, vc: str) -> Role | None:
        """Return its role in a VC; None: none."""
        if self.person:
            return self.standing.role(vc)
        return self.highest if self.vc in {"", vc} else None

    def may(self, vc: str) -> bool:
        """Return whether the caller may see what belongs to `vc`."""
        return self.role(vc) is not None

    def ruling(self, action: Action, vc: str, owner: str = "") -> Ruling:
        """Return whether it may do something to what belongs to a VC.

        Args:
            action: What it wants to do.
            vc: The VC.
            owner: The person whose job or search it is; empty: the VC's.
        """
        own = self.person != "" and self.person == owner
        return may(action, self.role(vc), own=own, vc=vc)

    def rights(self) -> Iterator[tuple[Action, str, bool]]:
        """Yield all that it may do, so that a page offers nothing else.

        Yields:
            An action, the VC (empty: any, or it is not about one), and whether it is only for what
            is the caller's own.
        """
        for action, right in RIGHTS.items():
            of_vcs = right.scope in {Scope.JOB, Scope.VC} and not self.operator
            seen = (self.sees,) if isinstance(self.sees, str) else self.sees
            for vc in seen if of_vcs else ("",):
                role = self.role(vc) if of_vcs else self.highest
                if may(action, role):
                    yield action, vc, False
                elif may(action, role, own=True):
                    yield action, vc, True


def covers(only: Only, vc: str) -> bool:
    """Return whether a VC is among those that something is about."""
    return vc in only if isinstance(only, tuple) else only in {"", vc}
