"""Roles of people and their rights: the fold of their facts, the table, and what admission says."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from skep.access.rights import RIGHTS, Action, Scope, may
from skep.access.roles import Roles
from skep.machines.admission import AdmissionMachine
from skep.machines.admission.allowing import limit_of
from skep.machines.base import Record, Send
from skep.policy.schedulers.drf import Drf
from skep.policy.view import Phase
from skep.wire import codec, subjects
from skep.wire.access import (
    GroupRolesSet,
    PersonDisabled,
    PersonEnabled,
    PersonRemoved,
    RoleGranted,
    RoleRevoked,
)
from skep.wire.admin import SetVcs
from skep.wire.cluster import VirtualCluster
from skep.wire.codec import AskRequest, CancelRequest, Facts, Submission
from skep.wire.reasons import Reason
from skep.wire.roles import Role, Standing
from skep.wire.spec import PRIORITY_MAX
from tests.kit import T0, Driver, at, spec
from tests.policy_kit import job, view

# --- the fold -------------------------------------------------------------------------------------


def heard(*told: Any) -> Roles:
    roles = Roles()
    for fact in told:
        found = roles.heard(fact)
        if found is not None:
            roles.set(*found)
    return roles


def test_what_a_person_is_follows_from_the_facts() -> None:
    roles = heard(
        RoleGranted(person="ann", role=Role.SUBMITTER, vc="nlp"),
        RoleGranted(person="ops", role=Role.OPERATOR),
        GroupRolesSet(person="ann", roles={"nlp": Role.VIEWER, "cv": Role.MANAGER}),
    )
    assert [roles.role("ann", vc) for vc in ("nlp", "cv", "web")] == [
        Role.SUBMITTER,
        Role.MANAGER,
        None,
    ]
    assert (roles.highest("ann"), roles.highest("ops")) == (Role.MANAGER, Role.OPERATOR)
    assert roles.role("ops", "anything") is Role.OPERATOR
    assert roles.role("nobody", "nlp") is roles.highest("nobody") is None
    assert roles.role("", "nlp") is Role.MANAGER


def test_the_higher_of_a_granted_role_and_that_of_a_group_counts() -> None:
    granted = RoleGranted(person="ann", role=Role.MANAGER, vc="nlp")
    group = GroupRolesSet(person="ann", roles={"nlp": Role.SUBMITTER})
    assert heard(granted, group).role("ann", "nlp") is Role.MANAGER
    revoked = RoleRevoked(person="ann", vc="nlp")
    assert heard(granted, group, revoked).role("ann", "nlp") is Role.SUBMITTER
    assert heard(granted, group, revoked, GroupRolesSet(person="ann", roles={})).people == {}


def test_a_disabled_person_is_nothing_until_it_is_enabled() -> None:
    granted = RoleGranted(person="ann", role=Role.OPERATOR)
    off, on = PersonDisabled(person="ann", at=T0), PersonEnabled(person="ann", at=T0)
    assert heard(granted, off).role("ann", "nlp") is None
    assert heard(granted, off).highest("ann") is None
    assert heard(granted, off, on).role("ann", "nlp") is Role.OPERATOR
    assert heard(granted, off, PersonRemoved(person="ann", at=T0)).people == {}
    assert heard(granted, RoleRevoked(person="ann")).people == {}


def test_what_changes_nothing_is_told_to_nobody() -> None:
    granted = RoleGranted(person="ann", role=Role.VIEWER, vc="nlp")
    assert heard(granted).heard(granted) is None
    assert Roles().heard(RoleRevoked(person="ann", vc="nlp")) is None


# --- the table ------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", list(Action))
@pytest.mark.parametrize("own", [True, False])
def test_more_of_a_role_never_allows_less(action: Action, own: bool) -> None:
    allowed = [may(action, role, own=own).allowed for role in (None, *Role)]
    assert allowed == sorted(allowed)
    assert allowed[-1], "an operator may do everything"
    for role in (None, *Role):
        if may(action, role).allowed:
            assert may(action, role, own=True).allowed, "what is own is never less allowed"


@pytest.mark.parametrize("action", list(Action))
@pytest.mark.parametrize("role", [None, *Role])
@pytest.mark.parametrize("own", [True, False])
def test_a_refusal_names_a_role_that_is_enough(
    action: Action, role: Role | None, own: bool
) -> None:
    ruling = may(action, role, own=own, vc="nlp")
    if ruling:
        assert ruling.reason is ruling.needs is None
        return
    assert ruling.needs is not None
    assert str(ruling.needs) in ruling.text
    assert may(action, ruling.needs, own=own, vc="nlp")
    assert ruling.reason in {Reason.NO_ROLE, Reason.ROLE_TOO_LOW, Reason.NOT_ITS_OWNER}


def test_only_what_can_be_ones_own_differs_by_whose_it_is() -> None:
    for action, right in RIGHTS.items():
        if right.own is not right.others:
            assert right.scope in {Scope.JOB, Scope.PERSON}, action


@pytest.mark.parametrize(
    "role, limits, most",
    [
        (Role.SUBMITTER, {}, PRIORITY_MAX),
        (Role.SUBMITTER, {"submitter": 5}, 5),
        (Role.SUBMITTER, {"manager": 50}, 50),
        (Role.MANAGER, {"submitter": 5}, PRIORITY_MAX),
        (Role.MANAGER, {"submitter": 5, "manager": 50}, 50),
        (Role.OPERATOR, {"submitter": 5, "manager": 50}, PRIORITY_MAX),
    ],
)
def test_the_highest_priority_of_a_role(role: Role, limits: dict[str, int], most: int) -> None:
    assert limit_of(role, limits) == most


# --- admission ------------------------------------------------------------------------------------

LIMITS = {"submitter": 5, "manager": 50}


def standing(**roles: Role) -> Standing:
    return Standing(granted=dict(roles))


class Asked:
    """An admission with a VC, and people in it."""

    def __init__(self) -> None:
        self.driver = Driver(AdmissionMachine)
        vcs = {"nlp": VirtualCluster(gpus=8, priorities=LIMITS), "cv": VirtualCluster(gpus=8)}
        self.driver(SetVcs(vcs=vcs))
        for person, role in (("ann", Role.SUBMITTER), ("max", Role.MANAGER), ("vic", Role.VIEWER)):
            fact = RoleGranted(person=person, role=role, vc="nlp")
            self.driver(Facts(service="access", at=T0, facts=(fact,)))
        self.number = 0

    def submit(self, person: str, key: str = "", **changes: Any) -> Any:
        self.number += 1
        event = Submission(
            job=f"j{self.number}",
            vc="nlp",
            raw=codec.encode(spec(**changes)),
            at=at(1),
            key=key,
            owner=person,
            trace="t",
        )
        return self.facts(event)[0]

    def facts(self, event: Any) -> list[Any]:
        return [each.fact for each in self.driver(event) if isinstance(each, Record)]

    def change(self, person: str, job: str, priority: int) -> Any:
        self.number += 1
        asked = {"ask": "priority", "job": job, "priority": priority}
        event = AskRequest(
            vc="nlp",
            raw=codec.encode(asked),
            at=at(2),
            number=self.number,
            person=person,
            reply=subjects.reply("nlp", "x", person),
        )
        (said,) = [each.message for each in self.driver(event) if isinstance(each, Send)]
        return said.reason


def test_a_priority_has_a_limit_by_role_at_submit_and_afterwards() -> None:
    asked = Asked()
    for person, most in (("ann", 5), ("max", 50), ("", 50)):
        refused = asked.submit(person, priority=most + 1)
        assert refused.problems[0].reason is Reason.PRIORITY_TOO_HIGH, person
        admitted = asked.submit(person, priority=most)
        assert (admitted.owner, admitted.spec.priority) == (person, most)
        assert asked.change(person, admitted.job, most + 1) is Reason.PRIORITY_TOO_HIGH
        assert asked.change(person, admitted.job, 0) is None


def test_roles_survive_a_restart_and_a_snapshot() -> None:
    asked = Asked()
    mine = asked.submit("ann")
    asked.driver.restart()
    kept = AdmissionMachine()
    for piece in asked.driver.machine.snapshot():
        kept.apply(piece)
    for machine in (asked.driver.machine, kept):
        assert machine.allowing.roles.role("max", "nlp") is Role.MANAGER
        assert machine.active[mine.job].owner == "ann"
    gone = Facts(service="access", at=T0, facts=(PersonRemoved(person="ann", at=T0),))
    asked.driver(gone)
    assert asked.submit("ann").problems[0].reason is Reason.NO_ROLE


def test_keys_are_a_persons_own() -> None:
    asked = Asked()
    first, second = asked.submit("ann", key="k"), asked.submit("max", key="k")
    assert [type(each).__name__ for each in (first, second)] == ["Admitted", "Admitted"]
    again = asked.submit("ann", key="k")
    assert (type(again).__name__, again.original) == ("Repeated", first.job)


def test_a_vc_as_a_whole_does_as_before_there_were_people() -> None:
    asked = Asked()
    mine = asked.submit("ann")
    event = CancelRequest(vc="nlp", raw=codec.encode({"job": mine.job}), at=at(2))
    (fact,) = asked.facts(event)
    assert (fact.job, fact.by) == (mine.job, "")


# --- whose a job is, for policies -----------------------------------------------------------------


def test_the_owner_comes_before_a_label_that_anybody_may_write() -> None:
    said = {"user": "bob", "queue": "q"}
    for owner, user in (("", "bob"), ("ann", "ann")):
        shown = replace(job("j1", labels=said), owner=owner)
        assert (shown.label("user"), shown.label("queue"), shown.label("x")) == (user, "q", None)


def test_drf_takes_the_jobs_of_a_person_for_one_owners() -> None:
    """Bob's jobs claim to be ann's: they would have her share, and leave his untouched."""
    has = replace(job("j1", 4, phase=Phase.RUNNING, on=[("n1", 4)]), owner="bob")
    waits = [
        replace(job("j2", labels={"user": "ann"}), owner="bob"),
        replace(job("j3"), owner="ann"),
    ]
    plan = Drf().plan(view([has, *waits]))
    assert [turn.job for turn in plan.turns] == ["j3", "j2"]
