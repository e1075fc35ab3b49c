"""Who has which role where: what rights are decided by, as the facts of people tell it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from skep.wire.roles import VC_ROLES, Role


class Roles(msgspec.Struct):
    """The roles of people, by virtual cluster, and the operators."""

    by_person: dict[str, dict[str, Role]] = {}
    operators: dict[str, None] = {}

    def role(self, person: str, vc: str) -> Role | None:
        """Return what a person is in a VC; None: nothing.

        Args:
            person: Its name. Empty: nobody in particular, but the VC as a whole, with its own
                credentials. It acts as its manager, as it did before there were people.
            vc: The VC.
        """
        if not person:
            return Role.MANAGER
        if person in self.operators:
            return Role.OPERATOR
        return self.by_person.get(person, {}).get(vc)

    def highest(self, person: str) -> Role | None:
        """Return the most that a person is anywhere: what counts for what all may see."""
        if person in self.operators:
            return Role.OPERATOR
        found = self.by_person.get(person, {}).values()
        return max(found, key=VC_ROLES.index, default=None)

    def give(self, person: str, vc: str, role: Role | None) -> None:
        """Let a person be something in a VC; None: nothing any more."""
        of_person = self.by_person.setdefault(person, {})
        if role is None:
            of_person.pop(vc, None)
        else:
            of_person[vc] = role
        if not of_person:
            del self.by_person[person]

    def operate(self, person: str, operator: bool) -> None:
        """Let a person be an operator, or be one no longer."""
        if operator:
            self.operators[person] = None
        else:
            self.operators.pop(person, None)

    def forget(self, person: str) -> None:
        """Take all roles from a person."""
        self.by_person.pop(person, None)
        self.operators.pop(person, None)

    def entries(self) -> Iterator[tuple[str, str, Role]]:
        """Yield person, VC and role; an operator's VC is empty."""
        for person, roles in self.by_person.items():
            for vc, role in roles.items():
                yield person, vc, role
        for person in self.operators:
            yield person, "", Role.OPERATOR
