"""The roles of people: what one is called, and which is more than which."""

from __future__ import annotations

from enum import StrEnum


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

_RANKS = {role: rank for rank, role in enumerate(Role)}
