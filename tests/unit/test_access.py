"""People, tokens and nodes: who may ask for what, what is recorded, and every refusal."""

from __future__ import annotations

import msgspec
import pytest

from skep.machines.access import AccessMachine, Kept
from skep.machines.access.calls import Revoke, Sign
from skep.machines.access.machine import PERSON_KEYS_MAX, REMEMBERED, SIGN_AGAIN, TOKENS_MAX
from skep.machines.access.refusals import REFUSALS_BURST
from skep.machines.base import Call, Record, Send, Tick
from skep.units import after, in_seconds
from skep.wire import codec, subjects
from skep.wire.access import (
    AccessAnswer,
    AccessAsked,
    Actor,
    AddPerson,
    AskAccess,
    Audited,
    BindPerson,
    DisablePerson,
    EnablePerson,
    GrantRole,
    KeyDropped,
    KeyKind,
    KeySigned,
    KeyTaken,
    LogIn,
    MakeJoinToken,
    MakeToken,
    NoteAction,
    NoteRefusal,
    Outcome,
    PersonAdded,
    RemoveNode,
    RemovePerson,
    RenewNode,
    RevokeJoinToken,
    RevokeRole,
    RevokeToken,
    SetGroupRoles,
    TakeKey,
    TokenRevoked,
    VcsHeard,
)
from skep.wire.reasons import Reason
from skep.wire.roles import Role
from tests.access_kit import HASH, OPERATOR, REPLY, SIGNED_S, Access, given, join, key, token
from tests.kit import at


@pytest.fixture
def access() -> Access:
    return Access()


# --- people and roles -----------------------------------------------------------------------------


def test_an_operator_adds_a_person_and_it_is_noted(access: Access) -> None:
    wish = AddPerson(person="ada", full_name="Ada L")
    asked = AccessAsked(ask=AskAccess(actor=OPERATOR, wish=wish), reply=REPLY)
    assert access.event(asked, 5) == [
        Record(PersonAdded(person="ada", at=at(5), full_name="Ada L")),
        Record(
            Audited(
                at=at(5),
                actor="operator",
                action="add person",
                target="ada",
                outcome=Outcome.DONE,
                source="10.0.0.9",
                reason="because",
            )
        ),
        Send(REPLY, AccessAnswer(accepted=True)),
    ]
    assert access.told(wish) == "again"
    assert len(access.lines) == 1


def test_virtual_clusters_are_heard_once(access: Access) -> None:
    assert [fact for fact in access.driver.facts if isinstance(fact, VcsHeard)] == [
        VcsHeard(vcs=("nlp", "vision"))
    ]


@pytest.mark.parametrize(
    "name",
    [
        *("operator", "Root", "vc-nlp", "node-1", "gateway", "server-a", "gateway-2"),
        *("daemon", "www-data", "Slurm", "skep", "skep-agent", "systemd-network"),
    ],
)
def test_names_of_the_system_are_no_persons(access: Access, name: str) -> None:
    assert access.told(AddPerson(person=name)) == "name-reserved"


def test_names_that_differ_by_case_only_are_one(access: Access) -> None:
    access.add("ada")
    assert access.told(AddPerson(person="Ada")) == "person-exists"
    assert access.told(AddPerson(person="ada", full_name="another")) == "person-exists"


def test_each_grants_only_what_its_role_allows(access: Access) -> None:
    viewer = access.add("vic", nlp=Role.VIEWER)
    manager = access.add("mia", nlp=Role.MANAGER)
    operator = access.add("ops", cluster=Role.OPERATOR)
    access.add("bob")
    cases: list[tuple[Actor, str, Role, str]] = [
        (viewer, "nlp", Role.MANAGER, "role-too-low"),
        (viewer, "vision", Role.VIEWER, "no-role"),
        (manager, "vision", Role.VIEWER, "no-role"),
        (manager, "", Role.OPERATOR, "role-too-low"),
        (manager, "nlp", Role.OPERATOR, "bad-value"),
        (manager, "nlp", Role.SUBMITTER, "ok"),
        (Actor(name="vc-vision"), "nlp", Role.VIEWER, "no-role"),
        (Actor(name="vc-nlp"), "nlp", Role.VIEWER, "ok"),
        (operator, "vision", Role.MANAGER, "ok"),
        (operator, "", Role.VIEWER, "bad-value"),
        (operator, "lost", Role.VIEWER, "unknown-vc"),
        (operator, "", Role.OPERATOR, "ok"),
        (Actor(name="eve"), "nlp", Role.VIEWER, "unknown-person"),
        (Actor(), "nlp", Role.VIEWER, "no-role"),
    ]
    for actor, vc, role, told in cases:
        assert access.told(GrantRole(person="bob", role=role, vc=vc), actor) == told, (vc, role)
    # A viewer that grants itself a role.
    assert access.told(GrantRole(person="vic", role=Role.MANAGER, vc="nlp"), viewer) == (
        "role-too-low"
    )
    assert access.machine.people.roles.role("vic", "nlp") is Role.VIEWER
    assert access.told(RevokeRole(person="bob", vc="nlp"), manager) == "ok"
    assert access.told(RevokeRole(person="bob", vc="nlp"), manager) == "again"
    assert access.told(RevokeRole(person="ops"), manager) == "role-too-low"
    assert access.told(AddPerson(person="new"), manager) == "role-too-low"


def test_groups_give_roles_beside_those_that_were_granted(access: Access) -> None:
    access.told(AddPerson(person="ada"))
    access.told(GrantRole(person="ada", role=Role.VIEWER, vc="vision"))
    wish = SetGroupRoles(person="ada", roles={"nlp": Role.SUBMITTER})
    assert [access.told(wish), access.told(wish)] == ["ok", "again"]
    assert access.lines[-1].action == "set group roles"
    roles = access.machine.people.roles
    assert (roles.role("ada", "nlp"), roles.role("ada", "vision")) == (Role.SUBMITTER, Role.VIEWER)
    access.told(TakeKey(person="ada", vc="nlp", key=key(1)), Actor(name="ada"))
    access.sign()
    # Who leaves a group loses its role, and the key that it may no longer have.
    assert access.told(SetGroupRoles(person="ada")) == "ok"
    assert roles.role("ada", "nlp") is None
    assert [type(call) for call in access.calls] == [Revoke]
    assert access.told(wish, Actor(name="ada")) == "role-too-low"
    assert access.told(SetGroupRoles(person="bob")) == "unknown-person"
    lost = SetGroupRoles(person="ada", roles={"lost": Role.VIEWER})
    assert access.told(lost) == "unknown-vc"
    top = SetGroupRoles(person="ada", roles={"nlp": Role.OPERATOR})
    assert access.told(top) == "bad-value"


def test_a_disabled_person_may_do_nothing_until_it_is_enabled(access: Access) -> None:
    mia = access.add("mia", nlp=Role.MANAGER)
    access.add("bob")
    grant = GrantRole(person="bob", role=Role.VIEWER, vc="nlp")
    assert access.told(DisablePerson(person="mia")) == "ok"
    assert access.told(grant, mia) == "person-disabled"
    assert access.told(EnablePerson(person="mia"), mia) == "person-disabled"
    assert access.told(EnablePerson(person="mia")) == "ok"
    assert access.told(grant, mia) == "ok"
    assert access.told(EnablePerson(person="mia")) == "again"
    assert access.told(DisablePerson(person="eve")) == "unknown-person"


def test_refusals_cost_the_log_only_so_much(access: Access) -> None:
    vic = access.add("vic", nlp=Role.VIEWER)
    before = len(access.lines)
    for _ in range(3 * REFUSALS_BURST):
        assert access.told(AddPerson(person="new"), vic) == "role-too-low"
    assert len(access.lines) == before + REFUSALS_BURST
    assert access.told(AddPerson(person="new"), vic, 100) == "role-too-low"
    assert access.lines[-1].missed == 2 * REFUSALS_BURST
    assert access.lines[-1].why is Reason.ROLE_TOO_LOW


# --- tokens ---------------------------------------------------------------------------------------


def test_a_person_has_tokens_of_its_own(access: Access) -> None:
    ada, bob = access.add("ada"), access.add("bob")
    assert access.token(1, "ada", ada) == "ok"
    assert access.token(1, "ada", ada) == "again"
    assert access.token(2, "bob", ada) == "role-too-low"
    assert access.token(2, "bob") == "ok"
    assert access.told(RevokeToken(token=token(2)), ada) == "role-too-low"
    assert access.told(RevokeToken(token=token(9)), ada) == "role-too-low"
    assert access.told(RevokeToken(token=token(9))) == "unknown-token"
    assert access.told(RevokeToken(token=token(2)), bob) == "ok"
    assert access.told(RevokeToken(token=token(2)), bob) == "again"
    assert access.token(3, "eve") == "unknown-person"
    assert access.token(4, "ada", days=-1) == "token-expired"
    assert access.token(5, "ada", days=500) == "expiry-too-late"
    assert access.token(2, "ada") == "bad-value"


def test_a_thief_loses_the_tokens_that_it_made_itself(access: Access) -> None:
    ada = access.add("ada")
    access.token(1, "ada", ada)
    thief = msgspec.structs.replace(ada, token=token(1))
    assert access.token(2, "ada", thief) == "ok"
    assert access.token(3, "ada", msgspec.structs.replace(ada, token=token(2))) == "ok"
    assert access.token(4, "ada", ada) == "ok"
    effects = access.event(
        AccessAsked(ask=AskAccess(actor=OPERATOR, wish=RevokeToken(token=token(1))), reply=REPLY)
    )
    revoked = [
        effect.fact.token
        for effect in effects
        if isinstance(effect, Record) and isinstance(effect.fact, TokenRevoked)
    ]
    assert revoked == [token(1), token(2), token(3)]
    assert access.token(5, "ada", thief) == "token-revoked"


def test_a_gateway_that_lags_lets_no_ended_token_act(access: Access) -> None:
    mia = access.add("mia", nlp=Role.MANAGER)
    access.token(1, "mia", mia)
    access.add("bob")
    by_token = msgspec.structs.replace(mia, token=token(1))
    grant = GrantRole(person="bob", role=Role.VIEWER, vc="nlp")
    assert access.told(grant, by_token) == "ok"
    access.driver.now = access.after(2)
    assert access.told(RevokeRole(person="bob", vc="nlp"), by_token) == "token-expired"
    stranger = msgspec.structs.replace(mia, token=token(7))
    assert access.told(RevokeRole(person="bob", vc="nlp"), stranger) == "unknown-token"


def test_a_person_has_only_so_many_tokens_and_old_ones_are_forgotten(access: Access) -> None:
    access.add("ada")
    access.driver.thorough = False
    for number in range(TOKENS_MAX):
        assert access.token(number, "ada") == "ok"
    assert access.token(TOKENS_MAX, "ada") == "too-many-tokens"
    access.driver.now = after(access.after(2), REMEMBERED)
    assert access.token(TOKENS_MAX, "ada") == "ok"
    assert list(access.machine.people.tokens) == [token(TOKENS_MAX)]
    access.driver.check_replay()


def test_tokens_that_ended_make_room_and_valid_ones_do_not(access: Access) -> None:
    access.add("ada")
    access.driver.thorough = False
    for number in range(TOKENS_MAX):
        assert access.token(number, "ada") == "ok"
    assert access.told(RevokeToken(token=token(5))) == "ok"
    assert access.token(TOKENS_MAX, "ada") == "ok"
    assert token(5) not in access.machine.people.tokens
    assert access.token(TOKENS_MAX + 1, "ada") == "too-many-tokens"
    access.driver.check_replay()


def test_nothing_of_a_removed_person_is_left(access: Access) -> None:
    ada = access.add("ada", nlp=Role.SUBMITTER)
    access.token(1, "ada", ada)
    assert access.told(TakeKey(person="ada", vc="nlp", key=key(1)), ada) == "waits"
    access.sign()
    assert access.told(RemovePerson(person="ada")) == "ok"
    assert access.calls == [Revoke(key=key(1), kind=KeyKind.PERSON, name="ada", vc="nlp")]
    access.sign()
    people = access.machine.people
    assert (people.people, people.tokens, people.roles.people, people.keys) == ({}, {}, {}, {})
    # Jobs and secrets stay with the name: no other person gets it, whatever its case.
    before = len(access.driver.facts)
    for name in ("ada", "ADA"):
        assert access.told(AddPerson(person=name)) == "name-retired"
        assert access.told(login(access, 1, name, add=True), NOBODY) == "name-retired"
    assert access.told(AddPerson(person="Ada", again=True)) == "name-retired"
    assert {type(fact) for fact in access.driver.facts[before:]} == {Audited}
    # The same person may come back. It has no role, and the old key stays revoked.
    assert access.told(AddPerson(person="ada", again=True)) == "ok"
    assert people.roles.people == {}
    assert access.told(GrantRole(person="ada", vc="nlp", role=Role.SUBMITTER)) == "ok"
    again = Actor(name="ada")
    assert access.told(TakeKey(person="ada", vc="nlp", key=key(1)), again) == "key-revoked"


# --- logins ---------------------------------------------------------------------------------------


def login(access: Access, number: int, person: str = "ada", **fields: object) -> LogIn:
    """Return a login that a provider vouches for."""
    wish = LogIn(
        person=person,
        issuer="https://id",
        subject=f"sub-{person}",
        digest=f"{number:064x}",
        digest_until=access.after(0.01),
        token=token(number),
        name="login",
        hash=HASH,
        expires_at=access.after(1),
        proven=True,
    )
    return msgspec.structs.replace(wish, **fields)


NOBODY = Actor(source="10.0.0.5")


def test_a_name_that_people_may_choose_binds_no_account(access: Access) -> None:
    access.told(AddPerson(person="ada", oidc=True))
    evil = login(access, 1, subject="x'; rm", proven=False)
    assert access.told(evil, NOBODY) == "login-not-bound"
    assert access.answers[-1].text == (
        "no operator has said that this account at the provider is ada: `skep user add ada --oidc`,"
        " then `skep user bind ada 'x'\"'\"'; rm'`"
    )
    new = login(access, 2, "eve", add=True, proven=False)
    assert access.told(new, NOBODY) == "login-not-bound"
    assert "eve" not in access.machine.people.people
    bind = BindPerson(person="ada", issuer="https://id", subject="sub-ada")
    ada = Actor(name="ada")
    assert access.told(bind, ada) == "role-too-low"
    assert access.told(bind) == "ok"
    assert access.told(bind) == "again"
    assert access.told(login(access, 3, proven=False), NOBODY) == "ok"
    assert access.told(evil, NOBODY) == "login-of-another"
    # No account is two people's, and no person two accounts.
    assert access.told(msgspec.structs.replace(bind, subject="other")) == "login-of-another"
    access.told(AddPerson(person="eve", oidc=True))
    assert access.told(msgspec.structs.replace(bind, person="eve")) == "login-of-another"
    access.add("local")
    assert access.told(msgspec.structs.replace(bind, person="local")) == "login-of-another"
    assert access.told(msgspec.structs.replace(bind, person="none")) == "unknown-person"


def test_a_login_binds_an_account_and_is_used_once(access: Access) -> None:
    assert access.told(login(access, 1), NOBODY) == "unknown-person"
    assert access.told(AddPerson(person="ada", oidc=True)) == "ok"
    first = login(access, 1, roles={"nlp": Role.SUBMITTER, "lost": Role.MANAGER})
    assert access.told(first, NOBODY) == "ok"
    assert access.machine.people.standing("ada").groups == {"nlp": Role.SUBMITTER}
    assert access.told(msgspec.structs.replace(first, token=token(2)), NOBODY) == "login-repeated"
    other = login(access, 3, subject="another account of the same name")
    assert access.told(other, NOBODY) == "login-of-another"
    renamed = login(access, 4, "eve", subject="sub-ada", add=True)
    assert access.told(renamed, NOBODY) == "login-of-another"
    assert access.told(login(access, 5), NOBODY) == "ok"
    assert access.machine.people.standing("ada").groups == {}
    access.told(DisablePerson(person="ada"))
    assert access.told(login(access, 6), NOBODY) == "person-disabled"


def test_a_local_account_is_not_taken_over_by_a_login(access: Access) -> None:
    access.add("ada")
    assert access.told(login(access, 1, add=True), NOBODY) == "login-of-another"
    assert access.told(login(access, 2, "root", add=True), NOBODY) == "name-reserved"
    assert access.told(login(access, 3, "eve", add=True), NOBODY) == "ok"
    assert access.machine.people.people["eve"].subject == "sub-eve"


# --- nodes ----------------------------------------------------------------------------------------


def test_a_node_joins_once_it_is_signed(access: Access) -> None:
    by = access.invite(1)
    access.driver.now = at(7)
    actor = Actor(source="10.0.0.7", token=by)
    asked = AccessAsked(ask=AskAccess(actor=actor, wish=join(1, "n1", by)), reply=REPLY)
    sign = Sign(key=key(1), kind=KeyKind.NODE, name="n1", request="csr-1")
    taken, called, audited = access.event(asked, 7)
    assert taken == Record(
        KeyTaken(key=key(1), kind=KeyKind.NODE, name="n1", at=at(7), token=by, request="csr-1")
    )
    assert called == Call(sign)
    assert isinstance(audited, Record)
    assert (audited.fact.action, audited.fact.target, audited.fact.source) == (
        "join",
        "n1",
        "10.0.0.7",
    )
    (answer,) = access.sign()
    assert answer.credentials == given(sign)
    # The answer was lost: the same request has the same answer, and leads to nothing else.
    assert access.ask(join(1, "n1", by)) == answer.__class__(
        accepted=True, reason=Reason.REPEATED, credentials=answer.credentials
    )
    assert access.calls == []


def test_a_join_token_lets_in_one_node_only(access: Access) -> None:
    by = access.invite(1)
    assert access.told(join(1, "n1", by)) == "waits"
    assert access.told(join(2, "n2", by)) == "join-token-used"
    assert access.told(join(2, "n1", by)) == "join-token-used"
    assert access.told(join(1, "n2", by)) == "wrong-name"
    assert access.told(join(3, "n3", token(9))) == "unknown-token"
    other = access.invite(2, node="n2")
    assert access.told(join(2, "n5", other)) == "wrong-name"
    assert access.told(join(2, "n2", other, kind=KeyKind.SERVER)) == "wrong-name"
    assert access.told(join(1, "n2", other)) == "key-revoked"
    assert access.told(join(2, "n2", other, hosts=("bank.example",))) == "wrong-host"
    assert access.told(join(2, "n2", other, hosts=("n2", "n2.lan"))) == "waits"
    third = access.invite(3)
    assert access.told(join(3, "n2", third)) == "duplicate-node"
    assert access.told(RevokeJoinToken(token=third)) == "ok"
    assert access.told(join(3, "n3", third)) == "token-revoked"
    fourth = access.invite(4)
    access.driver.now = access.after(2)
    assert access.told(join(3, "n3", fourth)) == "token-expired"


def test_a_removed_node_is_revoked_and_its_name_is_free(access: Access) -> None:
    by = access.invite(1)
    access.ask(join(1, "n1", by))
    access.sign()
    assert access.told(RemoveNode(node="n1")) == "ok"
    assert access.calls == [Revoke(key=key(1), kind=KeyKind.NODE, name="n1")]
    assert access.told(join(1, "n1", by)) == "join-token-used"
    assert access.told(RenewNode(key=key(1), request="new")) == "key-revoked"
    again = access.invite(2)
    assert access.told(join(1, "n1", again)) == "key-revoked"
    assert access.told(join(2, "n1", again)) == "waits"
    access.sign()
    assert list(access.machine.people.revoked) == [key(1)]
    assert access.told(RemoveNode(node="n9")) == "unknown-node"


def test_only_operators_let_nodes_in_and_out(access: Access) -> None:
    mia = access.add("mia", nlp=Role.MANAGER)
    wish = MakeJoinToken(token=token(1), hash=HASH, expires_at=access.after(1))
    assert access.told(wish, mia) == "role-too-low"
    assert access.told(RemoveNode(node="n1"), mia) == "role-too-low"
    person = msgspec.structs.replace(wish, kind=KeyKind.PERSON)
    assert access.told(person) == "bad-value"
    assert access.told(msgspec.structs.replace(wish, node="a.b")) == "bad-value"
    assert access.told(msgspec.structs.replace(wish, expires_at=access.after(60))) == (
        "expiry-too-late"
    )


def test_what_a_crash_leaves_undone_is_called_again(access: Access) -> None:
    first, second = access.invite(1), access.invite(2)
    access.ask(join(1, "n1", first))
    access.sign()
    access.ask(RemoveNode(node="n1"))
    access.ask(join(2, "n2", second))
    access.restart()
    assert access.calls == [
        Revoke(key=key(1), kind=KeyKind.NODE, name="n1"),
        Sign(key=key(2), kind=KeyKind.NODE, name="n2", request="csr-2"),
    ]
    assert access.sign() == []  # Who waited has gone; it asks again.
    assert access.told(join(2, "n2", second)) == "again"


def test_a_token_that_has_ended_brings_no_certificate_for_other_files(access: Access) -> None:
    by = access.invite(1)
    access.ask(join(1, "n1", by))
    access.sign()
    other = msgspec.structs.replace(join(1, "n1", by), request="of a thief")
    late = 2 * 24 * 3600.0
    assert access.told(other, second=late) == "token-expired"
    assert access.told(join(1, "n1", by), second=late) == "again"


def test_a_signer_that_fails_is_called_again(access: Access) -> None:
    by = access.invite(1)
    access.ask(join(1, "n1", by))
    (answer,) = access.sign(fails="the disk is full")
    assert (answer.reason, "the disk is full" in answer.text) == (Reason.NOT_SIGNED, True)
    wake = access.machine.wake_at()
    assert wake == after(access.driver.now, SIGN_AGAIN)
    access.event(Tick(), in_seconds(wake - at(0)))
    assert access.told(join(1, "n1", by)) == "waits"
    (answer,) = access.sign()
    assert answer.accepted
    access.ask(RemoveNode(node="n1"))
    access.sign(fails="no bus")
    assert access.machine.wake_at() is not None
    access.event(Tick(), in_seconds(access.machine.wake_at() - at(0)))  # type: ignore[operator]
    access.sign()
    assert access.machine.people.keys == {}


def test_what_can_never_be_signed_is_dropped(access: Access) -> None:
    by = access.invite(1)
    access.ask(join(1, "n1", by))
    access.sign(fails="no such curve", final=True)
    assert isinstance(access.driver.facts[-1], KeyDropped)
    access.sign()
    assert access.told(join(2, "n1", access.invite(2))) == "waits"


def test_a_node_renews_its_certificate(access: Access) -> None:
    by = access.invite(1)
    access.ask(join(1, "n1", by))
    access.sign()
    assert access.told(RenewNode(key=key(1), request="csr-new"), NOBODY) == "waits"
    (answer,) = access.sign()
    assert answer.credentials is not None
    assert answer.credentials.certificate == "n1/csr-new"
    assert access.told(RenewNode(key=key(5), request="x"), NOBODY) == "unknown-node"
    # A late answer to the first request is not taken for one to the second.
    access.ask(RenewNode(key=key(1), request="csr-2"), NOBODY)
    late = access.calls
    access.ask(RenewNode(key=key(1), request="csr-3"), NOBODY)
    access.calls = late[:1]
    before = len([fact for fact in access.driver.facts if isinstance(fact, KeySigned)])
    access.sign()
    assert len([fact for fact in access.driver.facts if isinstance(fact, KeySigned)]) == before


# --- people on the bus ----------------------------------------------------------------------------


def test_a_person_takes_keys_where_it_may_submit(access: Access) -> None:
    ada = access.add("ada", nlp=Role.SUBMITTER, vision=Role.VIEWER)
    assert access.told(TakeKey(person="ada", vc="vision", key=key(1)), ada) == "role-too-low"
    assert access.told(TakeKey(person="ada", vc="nlp", key=key(1))) == "not-its-owner"
    assert access.told(TakeKey(person="ada", vc="nlp", key=key(1)), ada) == "waits"
    access.sign()
    assert access.told(TakeKey(person="ada", vc="nlp", key=key(1)), ada) == "again"
    # What is about to end is signed anew: a device keeps its key for as long as it lives.
    assert access.told(TakeKey(person="ada", vc="nlp", key=key(1)), ada, SIGNED_S) == "waits"
    assert access.calls == [Sign(key=key(1), kind=KeyKind.PERSON, name="ada", vc="nlp")]
    access.sign()
    access.driver.thorough = False
    for number in range(2, PERSON_KEYS_MAX + 1):
        assert access.told(TakeKey(person="ada", vc="nlp", key=key(number)), ada) == "waits"
    assert access.told(TakeKey(person="ada", vc="nlp", key=key(99)), ada) == "too-many-keys"
    access.driver.check_replay()


@pytest.mark.parametrize(
    "wish",
    [
        DisablePerson(person="ada"),
        RevokeRole(person="ada", vc="nlp"),
        GrantRole(person="ada", role=Role.VIEWER, vc="nlp"),
    ],
    ids=lambda wish: type(wish).__name__,
)
def test_who_may_no_longer_submit_loses_its_keys(
    access: Access, wish: DisablePerson | RevokeRole | GrantRole
) -> None:
    ada = access.add("ada", nlp=Role.SUBMITTER)
    access.ask(TakeKey(person="ada", vc="nlp", key=key(1)), ada)
    access.sign()
    assert access.told(wish) == "ok"
    assert access.calls == [Revoke(key=key(1), kind=KeyKind.PERSON, name="ada", vc="nlp")]


# --- the rest -------------------------------------------------------------------------------------


def test_actions_on_other_things_are_noted(access: Access) -> None:
    wish = NoteAction(action="cancel", target="j7", vc="nlp")
    assert access.told(wish, Actor(name="mia", source="10.1.1.1", reason="it hung")) == "ok"
    line = access.lines[-1]
    assert (line.actor, line.action, line.target, line.vc) == ("mia", "cancel", "j7", "nlp")
    assert (line.source, line.reason, line.outcome) == ("10.1.1.1", "it hung", Outcome.DONE)


def test_what_a_gateway_refused_is_noted_with_those_between(access: Access) -> None:
    bob = Actor(name="bob", source="10.0.0.3")
    wish = NoteRefusal(action="cancel", target="j7", vc="nlp", why=Reason.NOT_ITS_OWNER, missed=4)
    assert access.told(wish, bob) == "ok"
    line = access.lines[-1]
    assert (line.actor, line.source, line.action, line.target) == (
        "bob",
        "10.0.0.3",
        "cancel",
        "j7",
    )
    assert (line.outcome, line.why, line.missed) == (Outcome.REFUSED, Reason.NOT_ITS_OWNER, 4)
    # Several gateways together, too, write only so many of one person.
    for _ in range(2 * REFUSALS_BURST):
        assert access.told(wish, bob) == "ok"
    assert sum(line.actor == "bob" for line in access.lines) == REFUSALS_BURST
    access.told(wish, bob, 3600.0)
    assert sum(1 + line.missed for line in access.lines if line.actor == "bob") == 5 * (
        2 + 2 * REFUSALS_BURST
    )


def test_a_snapshot_is_the_whole_state(access: Access) -> None:
    ada = access.add("ada", nlp=Role.SUBMITTER, cluster=Role.OPERATOR)
    access.token(1, "ada", ada)
    access.ask(TakeKey(person="ada", vc="nlp", key=key(1)), ada)
    for number in range(2, 9):
        access.ask(join(number, f"n{number}", access.invite(number)))
    access.sign()
    access.ask(RemoveNode(node="n3"))
    access.ask(RemoveNode(node="n4"))
    access.calls = access.calls[:1]
    access.sign()
    access.told(DisablePerson(person="ada"))
    access.told(AddPerson(person="eve", oidc=True))
    access.told(login(access, 20, "eve"), NOBODY)
    access.add("gone")
    access.told(RemovePerson(person="gone"))
    again = AccessMachine()
    decoder = msgspec.json.Decoder(Kept)
    for piece in access.machine.snapshot():
        again.apply(decoder.decode(codec.encode(piece)))
    again.check()
    assert again.people == access.machine.people


def test_a_request_is_read_with_its_reply() -> None:
    ask = AskAccess(actor=OPERATOR, wish=AddPerson(person="ada"))
    headers = {subjects.REPLY_HEADER: REPLY}
    read = codec.read(subjects.ACCESS_ASKED, codec.encode(ask), headers, 0, at(0))
    assert read == AccessAsked(ask=ask, reply=REPLY)


@pytest.mark.parametrize(
    "name", ["", "a b", "a.b", "*", ">", "ä", "a" * 64, "-a", "a\n", "a\u202eb", "../x", "'--"]
)
def test_odd_names_are_not_read(name: str) -> None:
    ask = {"type": "ask-access", "actor": {}, "wish": {"type": "add-person", "person": name}}
    read = codec.read(subjects.ACCESS_ASKED, codec.encode(ask), {}, 0, at(0))
    assert isinstance(read, codec.Unreadable)


def test_a_hash_tells_a_token_from_another_of_the_same_id() -> None:
    access = Access()
    access.add("ada")
    wish = MakeToken(token=token(1), person="ada", name="x", hash=HASH, expires_at=access.after(1))
    assert access.told(wish) == "ok"
    assert access.told(msgspec.structs.replace(wish, hash="other")) == "bad-value"
