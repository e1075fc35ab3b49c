"""`/v1/whoami`, `/v1/people`, `/v1/roles`, `/v1/tokens`, `/v1/join-tokens` and `/v1/audit`.

What changes something is decided by the access service; what is shown here is what its facts say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from aiohttp import web

from skep.access.people import JoinToken, Key, People, Person, TokenOf
from skep.access.rights import Action, may
from skep.ids import is_token
from skep.units import Duration, Instant, after, seconds
from skep.wire.access import (
    AddPerson,
    Audited,
    BindPerson,
    Cause,
    DisablePerson,
    EnablePerson,
    GrantRole,
    KeyKind,
    MakeJoinToken,
    MakeToken,
    RemoveNode,
    RemovePerson,
    RevokeJoinToken,
    RevokeRole,
    RevokeToken,
    SetGroupRoles,
    TakeKey,
    Wish,
)
from skep.wire.bounds import Short, Token
from skep.wire.reasons import Reason, meaning
from skep.wire.roles import Role
from skep_services.access import secrets
from skep_services.gateway.api import ApiError, caller_of, forbidden, json_response, number
from skep_services.gateway.asking import Asking
from skep_services.gateway.authentication import Authentication
from skep_services.gateway.bodies import Body, plain, read
from skep_services.gateway.callers import Caller
from skep_services.gateway.people import PeopleView
from skep_services.ports import Clock

DAY_S = 24 * 3600.0
TOKEN_DAYS = 90
JOIN_MINUTES = 60
LINES_MAX = 10_000
LINES_DEFAULT = 200
NO_PEOPLE = "this cluster has no people: a server deployment has, and `skep up --people`"


class PersonBody(Body, frozen=True):
    """A person that is added, or is the one that something is done to."""

    person: Token
    full_name: Short = ""
    oidc: bool = False
    again: bool = False


class BindBody(Body, frozen=True):
    """The account at the provider that is a person's; `issuer`: by default the one in use here."""

    person: Token
    subject: Short
    issuer: Cause = ""


class RoleBody(Body, frozen=True):
    """A role that is granted or (without one) revoked; as operator without a VC."""

    person: Token
    role: Role = Role.VIEWER
    vc: Short = ""


class GroupRolesBody(Body, frozen=True):
    """The roles by VC that a person's groups give it, in place of those that they gave before."""

    person: Token
    roles: dict[Token, Role]


class TokenBody(Body, frozen=True):
    """A token of a person; of the caller, if none is named."""

    name: Short
    person: Short = ""
    days: float = TOKEN_DAYS


class JoinTokenBody(Body, frozen=True):
    """A token by which one node or server joins."""

    kind: KeyKind = KeyKind.NODE
    node: Short = ""
    hosts: tuple[Short, ...] = ()
    minutes: float = JOIN_MINUTES


class KeyBody(Body, frozen=True):
    """A key on the bus that a person takes for a VC."""

    vc: Token
    key: Short


class Accounts:
    """The handlers of people, roles and tokens."""

    def __init__(
        self,
        view: PeopleView | None,
        asking: Asking,
        authentication: Authentication,
        clock: Clock,
        fingerprint: str,
        issuer: str,
    ) -> None:
        """Take the ports.

        Args:
            view: What is known of people; None: the cluster has none.
            asking: Asks the access service.
            authentication: Hashes tokens, and knows when each was used.
            clock: The time.
            fingerprint: That of the cluster's authority, for join tokens; empty: it has none.
            issuer: The provider that vouches for people; empty: there is none.
        """
        self._view, self._asking = view, asking
        self._authentication, self._verifier = authentication, authentication.verifier
        self._clock, self._fingerprint, self._issuer = clock, fingerprint, issuer

    def routes(self) -> list[web.RouteDef]:
        """Return where the handlers belong."""
        return [
            web.get("/v1/whoami", self.whoami, allow_head=False),
            web.get("/v1/people", self.people, allow_head=False),
            web.post("/v1/people/bind", self.bind_person),
            web.post("/v1/people/{do:add|disable|enable|remove}", self.change_person),
            web.post("/v1/roles/{do:grant|revoke}", self.change_role),
            web.post("/v1/group-roles", self.set_group_roles),
            web.get("/v1/tokens", self.tokens, allow_head=False),
            web.post("/v1/tokens", self.make_token),
            web.post("/v1/tokens/{token}/revoke", self.revoke_token),
            web.post("/v1/logout", self.logout),
            web.post("/v1/bus-keys", self.take_key),
            web.get("/v1/join-tokens", self.join_tokens, allow_head=False),
            web.post("/v1/join-tokens", self.make_join_token),
            web.post("/v1/join-tokens/{token}/revoke", self.revoke_join_token),
            web.get("/v1/members", self.members, allow_head=False),
            web.post("/v1/members/{kind:node|server}/{name}/remove", self.remove_member),
            web.get("/v1/audit", self.audit, allow_head=False),
        ]

    # --- people --------------------------------------------------------------------------------

    async def whoami(self, request: web.Request) -> web.StreamResponse:
        """Answer what the gateway takes the caller for."""
        caller = caller_of(request)
        told: dict[str, Any] = {
            "name": caller.name,
            "person": caller.person,
            "operator": caller.operator,
            "vc": caller.vc,
            "roles": _roles(caller),
            "source": caller.source,
            "may": [
                {"action": action, "vc": vc, "own_only": own_only}
                for action, vc, own_only in caller.rights()
            ],
        }
        view = self._view
        if caller.person and view is not None:
            token = view.people.tokens.get(caller.token)
            person = view.people.people[caller.person]
            told["full_name"] = person.full_name
            told["token"] = _token_row(token, self._clock.now()) if token is not None else None
        return json_response(told)

    async def people(self, request: web.Request) -> web.StreamResponse:
        """Answer the people that the caller may know of: an operator and managers all of them."""
        caller, people = caller_of(request), self._people()
        rows = [_person_row(people, person) for person in people.people.values()]
        if not caller.operator:
            managed = _managed(caller)
            rows = [
                {**row, "roles": _seen(row["roles"], managed, own=row["person"] == caller.person)}
                for row in rows
                if managed or row["person"] == caller.person
            ]
        return json_response({"people": sorted(rows, key=lambda row: row["person"])})

    async def change_person(self, request: web.Request) -> web.StreamResponse:
        """Add, disable, enable or remove a person."""
        people, body = self._people(), await read(request, PersonBody)
        name = body.person
        match request.match_info["do"]:
            case "add":
                wish: Wish = AddPerson(
                    person=name, full_name=body.full_name, oidc=body.oidc, again=body.again
                )
                return await self._ask(request, wish, lambda: name in people.people)
            case "disable":
                seen = lambda: people.standing(name).disabled  # noqa: E731 - as its neighbours
                return await self._ask(request, DisablePerson(person=name), seen)
            case "enable":
                seen = lambda: not people.standing(name).disabled  # noqa: E731
                return await self._ask(request, EnablePerson(person=name), seen)
            case _:
                wish = RemovePerson(person=name)
                return await self._ask(request, wish, lambda: name not in people.people)

    async def bind_person(self, request: web.Request) -> web.StreamResponse:
        """Say which account at the provider is a person's.

        Raises:
            ApiError: No issuer is named and this cluster has no provider (422), or it is refused.
        """
        people, body = self._people(), await read(request, BindBody)
        issuer = body.issuer or self._issuer
        if not issuer:
            text = "this cluster has no provider (SKEP_OIDC): name its `issuer`"
            raise ApiError(422, Reason.BAD_VALUE, text)
        wish = BindPerson(person=body.person, issuer=issuer, subject=body.subject)
        account = (issuer, body.subject)
        return await self._ask(request, wish, lambda: people.bound.get(account) == body.person)

    async def change_role(self, request: web.Request) -> web.StreamResponse:
        """Grant a role, or revoke one."""
        people, body = self._people(), await read(request, RoleBody)

        def has() -> Role | None:
            standing = people.standing(body.person)
            if not body.vc:
                return Role.OPERATOR if standing.operator else None
            return standing.granted.get(body.vc)

        if request.match_info["do"] == "grant":
            wish: Wish = GrantRole(person=body.person, role=body.role, vc=body.vc)
            return await self._ask(request, wish, lambda: has() is body.role)
        wish = RevokeRole(person=body.person, vc=body.vc)
        return await self._ask(request, wish, lambda: has() is None)

    async def set_group_roles(self, request: web.Request) -> web.StreamResponse:
        """Set the roles that follow from a person's groups in a directory."""
        people, body = self._people(), await read(request, GroupRolesBody)
        wish = SetGroupRoles(person=body.person, roles=body.roles)
        return await self._ask(
            request, wish, lambda: people.standing(body.person).groups == body.roles
        )

    # --- tokens --------------------------------------------------------------------------------

    async def tokens(self, request: web.Request) -> web.StreamResponse:
        """Answer the tokens of a person: of the caller, or of one that an operator names.

        Raises:
            forbidden: An ApiError (403): they are another's.
        """
        caller, people, now = caller_of(request), self._people(), self._clock.now()
        whose = request.query.get("person", "") or caller.person
        if not whose or whose != caller.person:
            ruling = may(Action.MANAGE_TOKENS, caller.highest, own=False)
            if not ruling:
                raise forbidden(ruling)
        used_at = self._authentication.used_at
        rows = [
            {**_token_row(token, now), "used_at": used_at(token.token)}
            for token in people.tokens.values()
            if whose in ("", token.person)
        ]
        return json_response({"tokens": rows, "used_since": self._authentication.began_at})

    async def make_token(self, request: web.Request) -> web.StreamResponse:
        """Make a token; its text is in this answer, and nowhere else.

        Raises:
            ApiError: The caller is no person and names none, or the access service refuses it.
            forbidden: An ApiError (403): the person is another one.
        """
        caller, people, body = caller_of(request), self._people(), await read(request, TokenBody)
        person = body.person or caller.person
        if not is_token(person):
            raise ApiError(422, Reason.BAD_VALUE, "name the `person` that the token is for")
        ruling = may(Action.MANAGE_TOKENS, caller.highest, own=person == caller.person)
        if not ruling:  # The access service decides; but a hash costs 20 ms.
            raise forbidden(ruling)
        made = secrets.new()
        expires_at = self._after(body.days * DAY_S)
        wish = MakeToken(
            token=made.id,
            person=person,
            name=body.name,
            hash=await self._verifier.hashed(made),
            expires_at=expires_at,
        )
        await self._asking.ask(caller.actor, wish, lambda: made.id in people.tokens)
        told = {"token": made.id, "person": person, "name": body.name, "expires_at": expires_at}
        return json_response({**told, "text": secrets.text_of(made)}, 201)

    async def revoke_token(self, request: web.Request) -> web.StreamResponse:
        """Revoke a token."""
        return await self._revoke(request, request.match_info["token"])

    async def logout(self, request: web.Request) -> web.StreamResponse:
        """Revoke the token of this request.

        Raises:
            ApiError: It is none of a person (400).
        """
        token = caller_of(request).token
        if not token:
            text = "this token is of the gateway's file: an operator changes it there"
            raise ApiError(400, Reason.BAD_VALUE, text)
        return await self._revoke(request, token)

    async def _revoke(self, request: web.Request, token: str) -> web.StreamResponse:
        people = self._people()
        known = people.tokens.get(token)
        if known is None:
            raise ApiError(404, Reason.UNKNOWN_TOKEN, f"there is no token {token[:63]!r}")
        wish = RevokeToken(token=token)
        return await self._ask(request, wish, lambda: bool(known.revoked_at))

    async def take_key(self, request: web.Request) -> web.StreamResponse:
        """Let the caller be on the bus in a VC, by a key of its own.

        Raises:
            ApiError: The caller is no person (400), or the access service refuses it.
        """
        self._people()
        caller, body = caller_of(request), await read(request, KeyBody)
        if not caller.person:
            text = "a VC's own token has a password for the bus: only people take keys"
            raise ApiError(400, Reason.BAD_VALUE, text)
        wish = TakeKey(person=caller.person, vc=body.vc, key=body.key)
        answer = await self._asking.ask(caller.actor, wish)
        return json_response(plain(answer.credentials), 201)

    # --- nodes ---------------------------------------------------------------------------------

    async def join_tokens(self, request: web.Request) -> web.StreamResponse:
        """Answer the tokens by which nodes and servers join."""
        _operators(caller_of(request), Action.MANAGE_NODES)
        now = self._clock.now()
        rows = [_join_row(token, now) for token in self._people().join_tokens.values()]
        return json_response({"join_tokens": rows})

    async def make_join_token(self, request: web.Request) -> web.StreamResponse:
        """Make a token by which one node or server joins; its text is in this answer only."""
        caller, people = caller_of(request), self._people()
        _operators(caller, Action.MANAGE_NODES)
        body, made = await read(request, JoinTokenBody), secrets.new()
        expires_at = self._after(body.minutes * 60.0)
        wish = MakeJoinToken(
            token=made.id,
            hash=await self._verifier.hashed(made),
            expires_at=expires_at,
            kind=body.kind,
            node=body.node,
            hosts=body.hosts,
        )
        await self._asking.ask(caller.actor, wish, lambda: made.id in people.join_tokens)
        told = {"token": made.id, "kind": body.kind, "node": body.node, "expires_at": expires_at}
        text = secrets.join_text(made, self._fingerprint)
        return json_response({**told, "text": text}, 201)

    async def revoke_join_token(self, request: web.Request) -> web.StreamResponse:
        """Let nothing join by a token any more.

        Raises:
            ApiError: There is no such token (404), or the access service refuses it.
        """
        known = self._people().join_tokens.get(request.match_info["token"])
        if known is None:
            raise ApiError(404, Reason.UNKNOWN_TOKEN, "there is no such join token")
        wish = RevokeJoinToken(token=known.token)
        return await self._ask(request, wish, lambda: bool(known.revoked_at))

    async def members(self, request: web.Request) -> web.StreamResponse:
        """Answer the nodes and servers that joined by keys of their own."""
        _operators(caller_of(request), Action.MANAGE_NODES)
        people = self._people()
        rows = [_member_row(key) for key in people.keys.values() if key.kind is not KeyKind.PERSON]
        return json_response({"members": sorted(rows, key=lambda row: (row["kind"], row["name"]))})

    async def remove_member(self, request: web.Request) -> web.StreamResponse:
        """Take a node or server out of the cluster, and revoke its key.

        Raises:
            ApiError: The name is none (422), or the access service refuses it.
        """
        people = self._people()
        kind, name = KeyKind(request.match_info["kind"]), request.match_info["name"]
        if not is_token(name):
            raise ApiError(422, Reason.BAD_VALUE, f"{name[:63]!r} is no name of a {kind}")
        wish = RemoveNode(node=name, kind=kind)
        return await self._ask(request, wish, lambda: (kind, name) not in people.places)

    # --- the audit log -------------------------------------------------------------------------

    async def audit(self, request: web.Request) -> web.StreamResponse:
        """Answer lines of the audit log, the latest last.

        An operator sees all of them, a manager those of its VCs, and each person those that it did
        or that are about it.
        """
        self._people()
        view, caller = self._view, caller_of(request)
        assert view is not None
        limit = number(request, "limit", LINES_DEFAULT, LINES_MAX)
        lines = list(self._lines(view, caller, request))
        kept = lines[-limit:] if limit else []
        told = {
            "lines": [plain(line) for line in kept],
            "left_out": len(lines) - len(kept),
            "older": view.older,
            "texts": meaning(line.why for line in kept),
        }
        return json_response(told)

    def _lines(self, view: PeopleView, caller: Caller, request: web.Request) -> Iterator[Audited]:
        managed = {
            vc for vc in caller.standing.vcs if caller.ruling(Action.SEE_VC_AUDIT, vc).allowed
        } | ({caller.vc} if caller.vc else set())
        since = number(request, "since", 0, 2**62)
        query = request.query
        for line in view.lines:
            own = caller.name in (line.actor, line.target.partition("/")[0])
            if not (caller.operator or line.vc in managed or own):
                continue
            if line.at >= since and all(
                query.get(name, getattr(line, name)) == getattr(line, name)
                for name in ("actor", "action", "target", "vc", "outcome", "source")
            ):
                yield line

    # --- together ------------------------------------------------------------------------------

    def _people(self) -> People:
        if self._view is None:
            raise ApiError(404, "no-people", NO_PEOPLE)
        return self._view.people

    async def _ask(self, request: web.Request, wish: Wish, seen: Any) -> web.StreamResponse:
        answer = await self._asking.ask(caller_of(request).actor, wish, seen)
        return json_response({"accepted": True, "repeated": answer.reason is Reason.REPEATED})

    def _after(self, length_s: float) -> Instant:
        """Return when something ends that is valid for so long.

        Raises:
            ApiError: The time is none (422).
        """
        if not 0 < length_s <= 10 * 365 * DAY_S:
            raise ApiError(422, Reason.BAD_VALUE, "a token is valid for some time, and not longer")
        return after(self._clock.now(), Duration(seconds(length_s)))


def _operators(caller: Caller, action: Action) -> None:
    ruling = may(action, caller.highest)
    if not ruling:
        raise forbidden(ruling)


def _roles(caller: Caller) -> dict[str, str]:
    if caller.person:
        found = {vc: caller.standing.role(vc) for vc in caller.standing.vcs}
        return {vc: role for vc, role in found.items() if role is not None}
    return {caller.vc: Role.MANAGER} if caller.vc else {}


def _managed(caller: Caller) -> tuple[str, ...]:
    """Return the VCs whose people the caller manages."""
    if not caller.person:
        return (caller.vc,) if caller.vc else ()
    vcs = caller.standing.vcs
    return tuple(vc for vc in vcs if caller.ruling(Action.MANAGE_VC_PEOPLE, vc).allowed)


def _seen(roles: dict[str, str], managed: tuple[str, ...], *, own: bool) -> dict[str, str]:
    return {vc: role for vc, role in roles.items() if own or vc in managed}


def _person_row(people: People, person: Person) -> dict[str, Any]:
    standing = people.standing(person.person)
    active = msgspec.structs.replace(standing, disabled=False, operator=False)
    roles = {vc: active.role(vc) for vc in active.vcs}
    return {
        "person": person.person,
        "full_name": person.full_name,
        "login": "oidc" if person.oidc else "local",
        "disabled": standing.disabled,
        "operator": standing.operator,
        "roles": roles,
        "groups": dict(standing.groups),
        "tokens": len(people.tokens_of.get(person.person, ())),
        "at": person.at,
    }


def _token_row(token: TokenOf, now: Instant) -> dict[str, Any]:
    state = "revoked" if token.revoked_at else "expired" if token.expires_at <= now else "valid"
    return {
        "token": token.token,
        "person": token.person,
        "name": token.name,
        "state": state,
        "at": token.at,
        "expires_at": token.expires_at,
        "by": token.by,
    }


def _join_row(token: JoinToken, now: Instant) -> dict[str, Any]:
    state = "valid"
    if token.used_by:
        state = "used"
    elif token.revoked_at:
        state = "revoked"
    elif token.expires_at <= now:
        state = "expired"
    return {
        "token": token.token,
        "kind": token.kind,
        "node": token.node,
        "hosts": token.hosts,
        "state": state,
        "expires_at": token.expires_at,
    }


def _member_row(key: Key) -> dict[str, Any]:
    state = "leaving" if key.dropped else "joining" if key.credentials is None else "joined"
    until = key.credentials.until if key.credentials is not None else 0
    return {
        "kind": key.kind,
        "name": key.name,
        "key": key.key,
        "state": state,
        "at": key.at,
        "until": until,
    }
