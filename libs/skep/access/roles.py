"""Who has which role where: what rights are decided by, as the facts of people tell it."""

from __future__ import annotations

from typing import Any

import msgspec

from skep.wire.access import (
    GroupRolesSet,
    PersonDisabled,
    PersonEnabled,
    PersonRemoved,
    RoleGranted,
    RoleRevoked,
)
from skep.wire.roles import Role, Standing

NOBODY = Standing()
"""A person of which nothing was heard."""

HEARD = (GroupRolesSet, PersonDisabled, PersonEnabled, PersonRemoved, RoleGranted, RoleRevoked)
"""The facts of the service `access` on which roles depend."""


class Roles(msgspec.Struct):
    """What each person may be taken for, by its name."""

    people: dict[str, Standing] = {}

    def standing(self, person: str) -> Standing:
        """Return what a person may be taken for; of one that is not known: nothing."""
        return self.people.get(person, NOBODY)

    def role(self, person: str, vc: str) -> Role | None:
        """Return what a person is in a VC; None: nothing.

        Args:
            person: Its name. Empty: nobody in particular, but the VC as a whole, with credentials
                of its own. It acts as its manager, as it did before there were people.
            vc: The VC.
        """
        return self.people.get(person, NOBODY).role(vc) if person else Role.MANAGER

    def highest(self, person: str) -> Role | None:
        """Return the most that a person is anywhere: what counts for what all may see."""
        return self.people.get(person, NOBODY).highest if person else Role.MANAGER

    def heard(self, fact: Any) -> tuple[str, Standing] | None:
        """Return whose standing a fact of `access` changes, and what it is then; None: nobody's."""
        if not isinstance(fact, HEARD):
            return None
        known = self.people.get(fact.person, NOBODY)
        after = _after(known, fact)
        return (fact.person, after) if after != known else None

    def set(self, person: str, standing: Standing) -> None:
        """Let a person be taken for something else; nothing is kept of one without any role."""
        if standing == NOBODY:
            self.people.pop(person, None)
        else:
            self.people[person] = standing


def _after(known: Standing, fact: Any) -> Standing:
    """Return a standing after one of the facts in `HEARD`."""
    changed = msgspec.structs.replace
    match fact:
        case RoleGranted(role=Role.OPERATOR) | RoleRevoked(vc=""):
            return changed(known, operator=isinstance(fact, RoleGranted))
        case RoleGranted():
            return changed(known, granted={**known.granted, fact.vc: fact.role})
        case RoleRevoked():
            left = {vc: role for vc, role in known.granted.items() if vc != fact.vc}
            return changed(known, granted=left)
        case GroupRolesSet():
            return changed(known, groups=dict(fact.roles))
        case PersonDisabled():
            return changed(known, disabled=True)
        case PersonEnabled():
            return changed(known, disabled=False)
        case _:
            return NOBODY
