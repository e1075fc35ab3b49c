"""What the people of a virtual cluster may ask of admission: by their roles, and the one table.

People publish on the bus themselves, so it is here that their rights are held against them: the
gateway only says sooner what admission would say. The VC as a whole, with credentials of its own,
is its manager.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from skep.access.rights import Action, Ruling, may
from skep.access.roles import Roles
from skep.wire.changes import Ask, AskPriority
from skep.wire.cluster import VirtualCluster
from skep.wire.facts import RolesSeen
from skep.wire.reasons import Reason
from skep.wire.roles import VC_ROLES, Role
from skep.wire.spec import PRIORITY_MAX, Problem


class Allowing(msgspec.Struct):
    """The roles of people, as the facts tell them, and what they allow."""

    roles: Roles = msgspec.field(default_factory=Roles)

    def seen(self, fact: Any) -> RolesSeen | None:
        """Return what a fact of the service `access` means for a person's roles; None: nothing."""
        found = self.roles.heard(fact)
        return None if found is None else RolesSeen(person=found[0], standing=found[1])

    def apply(self, fact: RolesSeen) -> None:
        """Take over what a person is taken for."""
        self.roles.set(fact.person, fact.standing)

    def snapshot(self) -> list[RolesSeen]:
        """Return what rebuilds this state."""
        return [RolesSeen(person=name, standing=each) for name, each in self.roles.people.items()]

    def outsider(self, action: Action, person: str, vc: str) -> Problem | None:
        """Return why a person without a role in a VC may ask nothing there, or None.

        It is told before anything else, so that it learns nothing of the VC.
        """
        if self.roles.role(person, vc) is not None:
            return None
        return self._refusal(may(action, None, own=True, vc=vc), person)

    def submission(
        self, person: str, vc: str, priority: int, config: VirtualCluster
    ) -> Problem | None:
        """Return why a person may not submit a job, or not with its priority, or None."""
        role = self.roles.role(person, vc)
        ruling = may(Action.SUBMIT, role, own=True, vc=vc)
        return self._refusal(ruling, person) or _above(role, priority, config, vc)

    def of_job(self, action: Action, person: str, vc: str, owner: str) -> Problem | None:
        """Return why a person may not do something to a job of a VC, or None.

        Args:
            action: What it wants to do.
            person: The person; empty: the VC as a whole.
            vc: The VC that it asked for, and that the job is of.
            owner: The job's owner; empty: it is the VC's.
        """
        role = self.roles.role(person, vc)
        own = person != "" and person == owner
        return self._refusal(may(action, role, own=own, vc=vc), person)

    def priority(
        self, ask: AskPriority, person: str, vc: str, config: VirtualCluster
    ) -> Problem | None:
        """Return why a person may not give a job a priority, or None."""
        return _above(self.roles.role(person, vc), ask.priority, config, vc)

    def _refusal(self, ruling: Ruling, person: str) -> Problem | None:
        if ruling:
            return None
        assert ruling.reason is not None, ruling
        if self.roles.standing(person).disabled:
            text = f"{person} is disabled: it may do nothing"
            return Problem(path="$", reason=Reason.PERSON_DISABLED, text=text)
        hint = "ask an operator" if ruling.needs is Role.OPERATOR else "ask a manager of the VC"
        return Problem(path="$", reason=ruling.reason, text=ruling.text, suggestion=hint)


def action_of(ask: Ask) -> Action:
    """Return which right a request for a change takes."""
    return Action.PRIORITISE if isinstance(ask, AskPriority) else Action.CHANGE


def limit_of(role: Role | None, limits: Mapping[str, int]) -> int:
    """Return the highest priority that a role may give; an operator any.

    A role that has no limit of its own has that of the next role above it.

    Args:
        role: The role in the VC; None has the limit of the lowest.
        limits: By role, as the cluster file has them.
    """
    if role is Role.OPERATOR:
        return PRIORITY_MAX
    own = VC_ROLES.index(role) if role in VC_ROLES else 0
    above = [limits[each] for each in VC_ROLES[own:] if each in limits]
    return above[0] if above else PRIORITY_MAX


def _above(role: Role | None, priority: int, config: VirtualCluster, vc: str) -> Problem | None:
    most = limit_of(role, config.priorities)
    if priority <= most:
        return None
    return Problem(
        path="$.priority",
        reason=Reason.PRIORITY_TOO_HIGH,
        text=f"a {role} of VC {vc} may give a priority of at most {most}, not {priority}",
        suggestion=f"use `priority: {most}`, or ask a manager",
    )
