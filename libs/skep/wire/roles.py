"""The roles of people: what one is called, and which is more than which."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Role(StrEnum):
    """What a person is in a virtual cluster, or (operator) in the cluster. Each has all before it.

    `viewer`: sees its jobs. `submitter`: has jobs of its own. `manager`: acts on the jobs of all,
    and manages its people. `operator`: everything, in all virtual clusters.
    """

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    MANAGER = "manager"
    OPERATOR = "operator"

    def covers(self, needed: Role) -> bool:
        """Return whether this role is at least another."""
        return _RANKS[self] >= _RANKS[needed]


VC_ROLES = (Role.VIEWER, Role.SUBMITTER, Role.MANAGER)
"""What a person can be in one virtual cluster; an operator is one everywhere."""


class Standing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a person may be taken for: the roles it was given, by VC, and those of its groups.

    `operator`: it is one. `disabled`: it is nothing, until it is enabled.
    """

    granted: dict[str, Role] = {}
    groups: dict[str, Role] = {}
    operator: bool = False
    disabled: bool = False

    def role(self, vc: str) -> Role | None:
        """Return the role in a VC, the higher of the two that it may have there; None: none."""
        if self.disabled:
            return None
        if self.operator:
            return Role.OPERATOR
        found = (self.granted.get(vc), self.groups.get(vc))
        return max((role for role in found if role), key=_rank, default=None)

    @property
    def highest(self) -> Role | None:
        """Return the highest role in any VC; None: none."""
        if self.disabled:
            return None
        if self.operator:
            return Role.OPERATOR
        return max((*self.granted.values(), *self.groups.values()), key=_rank, default=None)

    @property
    def vcs(self) -> tuple[str, ...]:
        """Return the VCs in which it has a role; nothing of an operator, which has one in all."""
        return () if self.disabled else tuple(sorted({**self.granted, **self.groups}))


def _rank(role: Role) -> int:
    return _RANKS[role]


_RANKS = {role: rank for rank, role in enumerate(Role)}
