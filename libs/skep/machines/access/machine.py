"""Access: takes requests about people, tokens and nodes, and is the only one to record them.

    person:  --PersonAdded--> known <--PersonDisabled / PersonEnabled--> disabled --PersonRemoved-->
    token:   --TokenMade--> in force --TokenRevoked, or its time--> refused --TokensForgotten-->
    key:     --KeyTaken--> wanted --KeySigned--> in force --KeyDropped--> dropped --KeyRevoked-->

The rights to ask for something follow from the facts and the table (`skep.access.rights`), here and
not in the gateway, so that one that lags behind cannot let a person do what was taken from it. The
gateway says only whose request it is, and that a token's hash fits.

A signer makes certificates and rights on the bus, and revokes them; it is called, and answers with
events. A key is recorded before it is signed, and is revoked after it is recorded as dropped: what
a crash leaves between the two is called again at the start. A request is answered once what follows
from it is durable, one for a key once the key is signed. Each request has a line in the audit log;
of refusals, which cost their author nothing, only so many (`REFUSALS_BURST`). What a gateway
refuses by the same table it tells (`NoteRefusal`), and that is counted with the refusals of here.
"""

from __future__ import annotations

import msgspec

from skep.access.people import JoinToken, Key, People, TokenOf
from skep.access.rights import Action, may
from skep.machines.access import refusals, snapshot
from skep.machines.access.calls import Done, NotRevoked, NotSigned, Revoke, Revoked, Sign, Signed
from skep.machines.access.refusals import Refusal, allowed_hosts, of_name
from skep.machines.access.snapshot import Kept
from skep.machines.base import Call, Effect, Record, Restarted, Send, Tick
from skep.units import Duration, Instant, after, seconds
from skep.wire.access import (
    ACTIONS,
    AccessAnswer,
    AccessAsked,
    AccessFact,
    Actor,
    AddPerson,
    AskAccess,
    Audited,
    BindPerson,
    Credentials,
    DisablePerson,
    EnablePerson,
    GrantRole,
    GroupRolesSet,
    JoinNode,
    JoinTokenMade,
    JoinTokenRevoked,
    JoinTokensForgotten,
    KeyDropped,
    KeyKind,
    KeyRenewed,
    KeyRevoked,
    KeySigned,
    KeyTaken,
    LogIn,
    LoginUsed,
    MakeJoinToken,
    MakeToken,
    NoteAction,
    NoteRefusal,
    Outcome,
    PersonAdded,
    PersonBound,
    PersonDisabled,
    PersonEnabled,
    PersonRemoved,
    RemoveNode,
    RemovePerson,
    RenewNode,
    RevokeJoinToken,
    RevokeRole,
    RevokeToken,
    RoleGranted,
    RoleRevoked,
    SetGroupRoles,
    TakeKey,
    TokenMade,
    TokenRevoked,
    TokensForgotten,
    VcsHeard,
    Wish,
)
from skep.wire.admin import DrainNode, QuarantineGpu, SetVcs
from skep.wire.codec import Unreadable
from skep.wire.reasons import Reason
from skep.wire.roles import VC_ROLES, Role
from skep.wire.windows import CancelWindow, ReserveNodes

AccessEvent = (
    AccessAsked
    | SetVcs
    | DrainNode
    | QuarantineGpu
    | ReserveNodes
    | CancelWindow
    | Unreadable
    | Done
)
"""What the service takes from outside, and from its signer."""

DAY = seconds(24 * 3600.0)
PEOPLE_MAX = 10_000
"""A university; each is some 500 bytes in every gateway."""
RETIRED_MAX = 100_000
"""Names of removed people: none is forgotten, so that none is given twice."""
TOKENS_MAX = 200
"""Tokens of one person. Of those that ended, the earliest make room for a new one."""
TOKEN_LIFE_MAX = Duration(400 * DAY)
"""A year, and a month to renew it."""
JOIN_TOKENS_MAX = 20_000
"""With those that ended in the last 30 days: a pool of nodes makes hundreds a day."""
JOIN_LIFE_MAX = Duration(30 * DAY)
REMEMBERED = Duration(30 * DAY)
"""How long a token that ended is remembered, so that its refusal says why."""
NODES_MAX = 20_000
"""Nodes and servers that are in the cluster."""
RENEWED_BEFORE = Duration(10 * DAY)
"""How long before its end a person's identity on the bus is signed anew, for the same key."""
PERSON_KEYS_MAX = 16
"""Keys of one person in one VC: its devices."""
LOGINS_MAX = 10_000
"""ID tokens that were used and have not expired: they live for minutes to an hour."""
SIGN_AGAIN = seconds(5.0)
"""Until the signer is called again after it failed."""


class Waits(msgspec.Struct, frozen=True):
    """A request is answered once the key is signed."""

    key: str


Told = Refusal | Reason | Waits | None
"""What is told of a request: a refusal; that it was so before; that it waits; or (None) done."""


class Soft:
    """What a crash may forget: replies that wait for a key, calls to be repeated, refusals."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.waiting: dict[str, list[str]] = {}
        self.again: dict[str, Instant] = {}
        """When the signer is called again about a key."""
        self.refused: dict[str, refusals.Bucket] = {}


class AccessMachine:
    """The behaviour of the service `access`."""

    def __init__(self) -> None:
        """Start without people."""
        self.people = People()
        self._soft = Soft()
        self._effects: list[Effect] = []

    @property
    def epoch(self) -> int:
        """Return the epoch that this process won."""
        return self.people.epoch

    def decide(self, event: AccessEvent | Restarted | Tick, now: Instant) -> list[Effect]:
        """Return the answer to a request, or what follows from the signer's answers or time.

        Args:
            event: What came.
            now: The time of this service's clock.
        """
        self._effects = []
        match event:
            case AccessAsked():
                self._asked(event, now)
            case SetVcs():
                vcs = tuple(event.vcs)
                if vcs != tuple(self.people.vcs):
                    self._record(VcsHeard(vcs=vcs))
            case Signed():
                self._signed(event, now)
            case NotSigned():
                self._not_signed(event, now)
            case Revoked():
                if event.key in self.people.keys and self.people.keys[event.key].dropped:
                    self._soft.again.pop(event.key, None)
                    self._record(KeyRevoked(key=event.key, at=now))
            case NotRevoked():
                self._soft.again[event.key] = after(now, SIGN_AGAIN)
            case Tick():
                for key in [key for key, at in self._soft.again.items() if at <= now]:
                    del self._soft.again[key]
                    self._call(key)
            case Restarted():
                self._soft = Soft()
                for key in self.people.keys:
                    self._call(key)
            case DrainNode() | QuarantineGpu() | ReserveNodes() | CancelWindow() | Unreadable():
                pass
        return self._effects

    def wake_at(self) -> Instant | None:
        """Return when the signer is to be called again, or None."""
        return min(self._soft.again.values(), default=None)

    # --- requests ----------------------------------------------------------------------------

    def _asked(self, event: AccessAsked, now: Instant) -> None:
        actor, wish = event.ask.actor, event.ask.wish
        if isinstance(wish, NoteAction):
            self._audit(event.ask, None, now)
            self._answer(event.reply, None)
            return
        if isinstance(wish, NoteRefusal):
            self._audit(event.ask, Refusal(wish.why, ""), now)
            self._answer(event.reply, None)
            return
        told: Told = self._unfit(actor, now)
        if told is None:
            told = self._do(actor, wish, now)
        if not isinstance(told, Reason):  # What was so before is no change.
            self._audit(event.ask, told if isinstance(told, Refusal) else None, now)
        if isinstance(told, Waits):
            self._soft.waiting.setdefault(told.key, []).append(event.reply)
            return
        self._answer(event.reply, told, self._credentials(wish))

    def _answer(self, reply: str, told: Told, credentials: Credentials | None = None) -> None:
        if not reply:
            return
        if isinstance(told, Refusal):
            answer = AccessAnswer(accepted=False, reason=told.reason, text=told.text)
        else:
            reason = told if isinstance(told, Reason) else None
            answer = AccessAnswer(accepted=True, reason=reason, credentials=credentials)
        self._effects.append(Send(reply, answer))

    def _credentials(self, wish: Wish) -> Credentials | None:
        if not isinstance(wish, JoinNode | RenewNode | TakeKey):
            return None
        key = self.people.keys.get(wish.key)
        return key.credentials if key is not None else None

    def _do(self, actor: Actor, wish: Wish, now: Instant) -> Told:
        """Record what a request leads to, and return what is told of it."""
        assert not isinstance(wish, NoteAction | NoteRefusal), wish
        match wish:
            case AddPerson() | BindPerson() | DisablePerson() | EnablePerson() | RemovePerson():
                return self._of_person(actor, wish, now)
            case GrantRole() | RevokeRole():
                return self._of_role(actor, wish, now)
            case SetGroupRoles():
                return self._of_groups(actor, wish, now)
            case MakeToken() | RevokeToken():
                return self._of_token(actor, wish, now)
            case LogIn():
                return self._log_in(wish, now)
            case MakeJoinToken() | RevokeJoinToken() | RemoveNode():
                return self._of_nodes(actor, wish, now)
            case JoinNode():
                return self._join(actor, wish, now)
            case RenewNode():
                return self._renew(wish, now)
            case TakeKey():
                return self._take(actor, wish, now)

    def _unfit(self, actor: Actor, now: Instant) -> Refusal | None:
        """Return why a person cannot ask for anything now. The gateway may not have heard yet."""
        if not actor.name or refusals.is_of_file(actor.name):
            return None
        known = self.people.people.get(actor.name)
        if known is None:
            return Refusal(Reason.UNKNOWN_PERSON, f"there is no person {actor.name}")
        if self.people.standing(actor.name).disabled:
            return Refusal(Reason.PERSON_DISABLED, f"{actor.name} is disabled: ask an operator")
        token = self.people.tokens.get(actor.token)
        if actor.token and (token is None or token.person != actor.name):
            return Refusal(Reason.UNKNOWN_TOKEN, f"{actor.name} has no token {actor.token}")
        return refusals.of_token(token, now) if token is not None else None

    def _role(self, actor: Actor, vc: str = "") -> Role | None:
        """Return what an actor is in a VC, or (without one) in the cluster."""
        if actor.name == refusals.OPERATOR:
            return Role.OPERATOR
        if refusals.is_of_file(actor.name):
            return Role.MANAGER if vc and actor.name == f"vc-{vc}" else None
        return self.people.roles.role(actor.name, vc) if actor.name else None

    def _forbidden(
        self, actor: Actor, action: Action, vc: str = "", *, own: bool = False
    ) -> Refusal | None:
        ruling = may(action, self._role(actor, vc), own=own, vc=vc)
        if ruling.allowed:
            return None
        return Refusal(ruling.reason or Reason.ROLE_TOO_LOW, ruling.text)

    # --- people and roles ----------------------------------------------------------------------

    def _of_person(
        self,
        actor: Actor,
        wish: AddPerson | BindPerson | DisablePerson | EnablePerson | RemovePerson,
        now: Instant,
    ) -> Told:
        if (forbidden := self._forbidden(actor, Action.MANAGE_PEOPLE)) is not None:
            return forbidden
        if isinstance(wish, AddPerson):
            return self._add(wish, now)
        if wish.person not in self.people.people:
            return refusals.no_person(wish.person)
        disabled = self.people.standing(wish.person).disabled
        match wish:
            case DisablePerson():
                if disabled:
                    return Reason.REPEATED
                self._record(PersonDisabled(person=wish.person, at=now))
                self._drop_keys(wish.person, now)
            case EnablePerson():
                if not disabled:
                    return Reason.REPEATED
                self._record(PersonEnabled(person=wish.person, at=now))
            case BindPerson():
                return self._bind(wish)
            case RemovePerson():
                if len(self.people.retired) >= RETIRED_MAX:
                    text = f"{RETIRED_MAX} people were removed, the most there may be: disable it"
                    return Refusal(Reason.TOO_MANY_PEOPLE, text)
                self._drop_keys(wish.person, now, all_of_them=True)
                self._record(PersonRemoved(person=wish.person, at=now))
        return None

    def _add(self, wish: AddPerson, now: Instant) -> Told:
        known = self.people.people.get(wish.person)
        if known is not None and (known.full_name, known.oidc) == (wish.full_name, wish.oidc):
            return Reason.REPEATED
        if (refused := self._no_new_person(wish.person, again=wish.again)) is not None:
            return refused
        self._record(
            PersonAdded(person=wish.person, at=now, full_name=wish.full_name, oidc=wish.oidc)
        )
        return None

    def _bind(self, wish: BindPerson) -> Told:
        """Take an operator's word for it that an account at the provider is a person's."""
        known, account = self.people.people[wish.person], (wish.issuer, wish.subject)
        if (known.issuer, known.subject) == account:
            return Reason.REPEATED
        if not known.oidc or known.issuer:
            return refusals.of_another(known)
        if (other := self.people.bound.get(account)) is not None:
            text = f"this account at the provider is {other}, and not {wish.person}"
            return Refusal(Reason.LOGIN_OF_ANOTHER, text)
        self._record(PersonBound(person=wish.person, issuer=wish.issuer, subject=wish.subject))
        return None

    def _no_new_person(self, name: str, *, again: bool = False) -> Refusal | None:
        if (refused := of_name(name)) is not None:
            return refused
        other = self.people.folded.get(name.casefold())
        if other is not None:
            return Refusal(Reason.PERSON_EXISTS, f"there is a person {other} already")
        retired = self.people.retired.get(name.casefold())
        if retired is not None and not (again and retired == name):
            return refusals.retired(name, retired)
        if len(self.people.people) >= PEOPLE_MAX:
            text = f"there are {PEOPLE_MAX} people, the most there may be: remove some"
            return Refusal(Reason.TOO_MANY_PEOPLE, text)
        return None

    def _of_role(self, actor: Actor, wish: GrantRole | RevokeRole, now: Instant) -> Told:
        action = Action.MANAGE_VC_PEOPLE if wish.vc else Action.MANAGE_PEOPLE
        if (forbidden := self._forbidden(actor, action, wish.vc)) is not None:
            return forbidden
        if wish.person not in self.people.people:
            return refusals.no_person(wish.person)
        standing = self.people.standing(wish.person)
        has = standing.granted.get(wish.vc)
        if not wish.vc and standing.operator:
            has = Role.OPERATOR
        if isinstance(wish, RevokeRole):
            if has is None:
                return Reason.REPEATED
            self._record(RoleRevoked(person=wish.person, vc=wish.vc))
            self._drop_keys(wish.person, now)
            return None
        if wish.vc and wish.vc not in self.people.vcs:
            text = f"there is no VC {wish.vc}: `skep vc ls` lists them"
            return Refusal(Reason.UNKNOWN_VC, text)
        if (wish.role in VC_ROLES) != bool(wish.vc):
            text = "an operator is one of the whole cluster, and every other role is of one VC"
            return Refusal(Reason.BAD_VALUE, text)
        if has is wish.role:
            return Reason.REPEATED
        self._record(RoleGranted(person=wish.person, role=wish.role, vc=wish.vc))
        self._drop_keys(wish.person, now)
        return None

    def _of_groups(self, actor: Actor, wish: SetGroupRoles, now: Instant) -> Told:
        if (forbidden := self._forbidden(actor, Action.MANAGE_PEOPLE)) is not None:
            return forbidden
        if wish.person not in self.people.people:
            return refusals.no_person(wish.person)
        for vc, role in wish.roles.items():
            if vc not in self.people.vcs:
                text = f"there is no VC {vc}: `skep vc ls` lists them"
                return Refusal(Reason.UNKNOWN_VC, text)
            if role not in VC_ROLES:
                text = "a group gives roles in virtual clusters, and makes no operators"
                return Refusal(Reason.BAD_VALUE, text)
        if wish.roles == self.people.standing(wish.person).groups:
            return Reason.REPEATED
        self._record(GroupRolesSet(person=wish.person, roles=wish.roles))
        self._drop_keys(wish.person, now)
        return None

    def _drop_keys(self, person: str, now: Instant, *, all_of_them: bool = False) -> None:
        """Drop a person's keys in VCs where it may no longer submit, or all."""
        for key in self.people.live_keys(person):
            role = self.people.roles.role(person, key.vc)
            if all_of_them or role is None or not role.covers(Role.SUBMITTER):
                self._drop(key, now)

    # --- tokens --------------------------------------------------------------------------------

    def _of_token(self, actor: Actor, wish: MakeToken | RevokeToken, now: Instant) -> Told:
        known = self.people.tokens.get(wish.token)
        person = wish.person if isinstance(wish, MakeToken) else known.person if known else ""
        own = bool(person) and actor.name == person
        if (forbidden := self._forbidden(actor, Action.MANAGE_TOKENS, own=own)) is not None:
            return forbidden
        if isinstance(wish, RevokeToken):
            if known is None:
                return Refusal(Reason.UNKNOWN_TOKEN, f"there is no token {wish.token}")
            return self._revoke_token(known, now)
        if known is not None:
            same = (known.person, known.hash) == (wish.person, wish.hash)
            return Reason.REPEATED if same else refusals.taken(wish.token)
        refused = self._no_token(wish.person, wish.expires_at, now)
        if refused is None:
            by = actor.token if own else ""
            self._make_token(wish, by, now)
        return refused

    def _no_token(self, person: str, expires_at: Instant, now: Instant) -> Refusal | None:
        """Return why a person gets no token that is valid until `expires_at`."""
        if person not in self.people.people:
            return refusals.no_person(person)
        if (refused := refusals.of_life(now, expires_at, TOKEN_LIFE_MAX)) is not None:
            return refused
        old = self._ended(person, now)
        if len(self.people.tokens_of.get(person, ())) - len(old) >= TOKENS_MAX:
            text = f"{person} has {TOKENS_MAX} valid tokens: revoke one that is not used"
            return Refusal(Reason.TOO_MANY_TOKENS, text)
        return None

    def _ended(self, person: str, now: Instant) -> tuple[str, ...]:
        """Return the ended tokens that are forgotten: the old ones, and others for room."""
        names = self.people.tokens_of.get(person, ())
        ended_at = {name: self.people.tokens[name].ended_at for name in names}
        ended = sorted(name for name in names if ended_at[name] <= now)
        ended.sort(key=ended_at.__getitem__)
        old = sum(after(ended_at[name], REMEMBERED) <= now for name in ended)
        return tuple(ended[: max(old, len(ended_at) + 1 - TOKENS_MAX)])

    def _make_token(self, wish: MakeToken | LogIn, by: str, now: Instant) -> None:
        if old := self._ended(wish.person, now):
            self._record(TokensForgotten(tokens=old))
        self._record(
            TokenMade(
                token=wish.token,
                person=wish.person,
                name=wish.name,
                hash=wish.hash,
                at=now,
                expires_at=wish.expires_at,
                by=by,
            )
        )

    def _revoke_token(self, token: TokenOf, now: Instant) -> Told:
        """Revoke a token, and what was made by it: a thief would have made itself another one."""
        if token.revoked_at:
            return Reason.REPEATED
        found = {token.token: None}
        for name in self.people.tokens_of[token.person]:  # In the order in which they were made.
            if self.people.tokens[name].by in found:
                found[name] = None
        for name in found:
            if not self.people.tokens[name].revoked_at:
                self._record(TokenRevoked(token=name, at=now))
        return None

    def _log_in(self, wish: LogIn, now: Instant) -> Told:
        people = self.people
        if (refused := self._no_login(wish, now)) is not None:
            return refused
        known = people.people.get(wish.person)
        if known is None:
            self._record(PersonAdded(person=wish.person, at=now, oidc=True))
        if known is None or not known.issuer:
            self._record(PersonBound(person=wish.person, issuer=wish.issuer, subject=wish.subject))
        forgotten = tuple(one for one, until in people.logins.items() if until <= now)
        self._record(LoginUsed(digest=wish.digest, until=wish.digest_until, forgotten=forgotten))
        roles = {
            vc: role for vc, role in wish.roles.items() if vc in people.vcs and role in VC_ROLES
        }
        if wish.groups and roles != people.standing(wish.person).groups:
            self._record(GroupRolesSet(person=wish.person, roles=roles))
            self._drop_keys(wish.person, now)
        self._make_token(wish, "", now)
        return None

    def _no_login(self, wish: LogIn, now: Instant) -> Refusal | None:
        """Return why an account at a provider is not let in as a person."""
        people, known = self.people, self.people.people.get(wish.person)
        if people.logins.get(wish.digest, Instant(0)) > now or wish.token in people.tokens:
            text = "this login was used before: begin a new one with `skep login`"
            return Refusal(Reason.LOGIN_REPEATED, text)
        if sum(until > now for until in people.logins.values()) >= LOGINS_MAX:
            return Refusal(Reason.TOO_MANY_ATTEMPTS, "too many logins at once: try it later")
        bound = people.bound.get((wish.issuer, wish.subject), wish.person)
        if bound != wish.person:
            text = f"this account at the provider is {bound}, and not {wish.person}"
            return Refusal(Reason.LOGIN_OF_ANOTHER, text)
        if known is None:
            if not wish.add:
                return refusals.no_person(wish.person)
            refused = self._no_new_person(wish.person)
            if refused is None and not wish.proven:
                refused = refusals.not_bound(wish)
            return refused or refusals.of_life(now, wish.expires_at, TOKEN_LIFE_MAX)
        if people.standing(wish.person).disabled:
            text = f"{wish.person} is disabled: ask an operator"
            return Refusal(Reason.PERSON_DISABLED, text)
        theirs = (wish.issuer, wish.subject)
        if not known.oidc or (known.issuer and (known.issuer, known.subject) != theirs):
            return refusals.of_another(known)
        if not known.issuer and not wish.proven:
            return refusals.not_bound(wish)
        return self._no_token(wish.person, wish.expires_at, now)

    # --- nodes and keys ------------------------------------------------------------------------

    def _of_nodes(
        self, actor: Actor, wish: MakeJoinToken | RevokeJoinToken | RemoveNode, now: Instant
    ) -> Told:
        if (forbidden := self._forbidden(actor, Action.MANAGE_NODES)) is not None:
            return forbidden
        match wish:
            case MakeJoinToken():
                return self._make_join_token(wish, now)
            case RevokeJoinToken():
                token = self.people.join_tokens.get(wish.token)
                if token is None:
                    return Refusal(Reason.UNKNOWN_TOKEN, f"there is no token {wish.token}")
                if token.revoked_at:
                    return Reason.REPEATED
                self._record(JoinTokenRevoked(token=wish.token, at=now))
            case RemoveNode():
                key = self.people.places.get((wish.kind, wish.node))
                if key is None:
                    text = f"there is no {wish.kind} {wish.node} that joined"
                    return Refusal(Reason.UNKNOWN_NODE, text)
                self._drop(self.people.keys[key], now)
        return None

    def _make_join_token(self, wish: MakeJoinToken, now: Instant) -> Told:
        tokens = self.people.join_tokens
        known = tokens.get(wish.token)
        if known is not None:
            return Reason.REPEATED if known.hash == wish.hash else refusals.taken(wish.token)
        if wish.kind is KeyKind.PERSON:
            return Refusal(Reason.BAD_VALUE, "a node or a server joins, and no person")
        if wish.node and (refused := refusals.of_node(wish.node)) is not None:
            return refused
        if (refused := refusals.of_life(now, wish.expires_at, JOIN_LIFE_MAX)) is not None:
            return refused
        old = tuple(
            name for name, one in tokens.items() if after(_ended_at(one), REMEMBERED) <= now
        )
        if len(tokens) - len(old) >= JOIN_TOKENS_MAX:
            text = f"there are {JOIN_TOKENS_MAX} join tokens, with those that ended in 30 days"
            return Refusal(Reason.TOO_MANY_TOKENS, text)
        if old:
            self._record(JoinTokensForgotten(tokens=old))
        self._record(
            JoinTokenMade(
                token=wish.token,
                kind=wish.kind,
                hash=wish.hash,
                at=now,
                expires_at=wish.expires_at,
                node=wish.node,
                hosts=wish.hosts,
            )
        )
        return None

    def _join(self, actor: Actor, wish: JoinNode, now: Instant) -> Told:
        token = self.people.join_tokens.get(wish.token)
        if token is None:
            return Refusal(Reason.UNKNOWN_TOKEN, "there is no such join token")
        known = self.people.keys.get(wish.key)
        if known is not None and token.used_by == wish.key and not known.dropped:
            return self._join_again(known, wish, now)
        if (refused := self._no_join(actor, token, wish, now)) is not None:
            return refused
        self._record(
            KeyTaken(
                key=wish.key,
                kind=wish.kind,
                name=wish.node,
                at=now,
                token=wish.token,
                request=wish.request,
                hosts=wish.hosts,
                details=wish.details,
            )
        )
        self._call(wish.key)
        return Waits(wish.key)

    def _join_again(self, known: Key, wish: JoinNode, now: Instant) -> Told:
        """Answer a node that repeats its request, as its first answer was lost."""
        if known.place != (wish.kind, wish.node) or known.hosts != wish.hosts:
            text = f"this key joined as the {known.kind} {known.name}, for the hosts it named then"
            return Refusal(Reason.WRONG_NAME, text)
        if known.request == wish.request:
            return Reason.REPEATED if known.credentials is not None else Waits(wish.key)
        # For another key of TLS: a token that was found later must not get a certificate.
        token = self.people.join_tokens[wish.token]
        return refusals.of_join_token(token, now) or self._sign_anew(known, wish.request, now)

    def _no_join(
        self, actor: Actor, token: JoinToken, wish: JoinNode, now: Instant
    ) -> Refusal | None:
        """Return why a node or server does not join."""
        if token.used_by:
            text = f"another {token.kind} has joined by this token: ask for one of its own"
            return Refusal(Reason.JOIN_TOKEN_USED, text)
        if (refused := refusals.of_join_token(token, now)) is not None:
            return refused
        if token.kind is not wish.kind or token.node not in ("", wish.node):
            text = f"the token is for the {token.kind} {token.node or '(any)'}, not for {wish.node}"
            return Refusal(Reason.WRONG_NAME, text)
        if (refused := refusals.of_node(wish.node)) is not None:
            return refused
        if wish.key in self.people.revoked or wish.key in self.people.keys:
            text = "this key was used before: remove the key files, and join with a new one"
            return Refusal(Reason.KEY_REVOKED, text)
        if (wish.kind, wish.node) in self.people.places:
            text = (
                f"there is a {wish.kind} {wish.node} with another key: choose another name, or "
                f"`skep node remove {wish.node}` first"
            )
            return Refusal(Reason.DUPLICATE_NODE, text)
        foreign = [host for host in wish.hosts if not allowed_hosts(host, token, wish, actor)]
        if foreign:
            text = (
                f"{foreign[0]} is neither the name nor the address of {wish.node}: "
                "make the token with `--host`"
            )
            return Refusal(Reason.WRONG_HOST, text)
        if len(self.people.places) >= NODES_MAX:
            text = f"there are {NODES_MAX} nodes and servers, the most there may be"
            return Refusal(Reason.TOO_MANY_KEYS, text)
        return None

    def _renew(self, wish: RenewNode, now: Instant) -> Told:
        known = self.people.keys.get(wish.key)
        if known is None or known.dropped or known.kind is KeyKind.PERSON:
            gone = wish.key in self.people.revoked or known is not None
            text = "this key is of no node or server in the cluster: join again"
            return Refusal(Reason.KEY_REVOKED if gone else Reason.UNKNOWN_NODE, text)
        if known.request == wish.request and known.wanted:
            return Waits(wish.key)
        return self._sign_anew(known, wish.request, now)

    def _sign_anew(self, known: Key, request: str, now: Instant) -> Told:
        self._record(KeyRenewed(key=known.key, request=request, at=now))
        self._call(known.key)
        return Waits(known.key)

    def _take(self, actor: Actor, wish: TakeKey, now: Instant) -> Told:
        if actor.name != wish.person:
            text = f"only {wish.person} takes a key of its own"
            return Refusal(Reason.NOT_ITS_OWNER, text)
        if (forbidden := self._forbidden(actor, Action.SUBMIT, wish.vc, own=True)) is not None:
            return forbidden
        known = self.people.keys.get(wish.key)
        if known is not None and not known.dropped and known.place == (KeyKind.PERSON, wish.person):
            if known.vc != wish.vc:
                text = f"this key is for VC {known.vc}: make another one"
                return Refusal(Reason.WRONG_VC, text)
            given = known.credentials
            if given is None:
                return Waits(wish.key)
            if given.until and given.until <= after(now, RENEWED_BEFORE) and not known.wanted:
                return self._sign_anew(known, known.request, now)
            return Waits(wish.key) if known.wanted else Reason.REPEATED
        if known is not None or wish.key in self.people.revoked:
            return Refusal(Reason.KEY_REVOKED, "this key was used before: make another one")
        if len(self.people.live_keys(wish.person, wish.vc)) >= PERSON_KEYS_MAX:
            text = f"{wish.person} has {PERSON_KEYS_MAX} keys in VC {wish.vc}, the most it may"
            return Refusal(Reason.TOO_MANY_KEYS, text)
        self._record(
            KeyTaken(key=wish.key, kind=KeyKind.PERSON, name=wish.person, vc=wish.vc, at=now)
        )
        self._call(wish.key)
        return Waits(wish.key)

    # --- the signer ----------------------------------------------------------------------------

    def _call(self, name: str) -> None:
        """Call the signer for what is to be done about a key, if anything."""
        key = self.people.keys.get(name)
        if key is None:
            return
        if key.dropped:
            call = Revoke(key=name, kind=key.kind, name=key.name, vc=key.vc)
            self._effects.append(Call(call))
        elif key.wanted:
            self._effects.append(
                Call(
                    Sign(
                        key=name,
                        kind=key.kind,
                        name=key.name,
                        vc=key.vc,
                        request=key.request,
                        hosts=key.hosts,
                        details=key.details,
                    )
                )
            )

    def _drop(self, key: Key, now: Instant) -> None:
        self._record(KeyDropped(key=key.key, at=now))
        self._soft.again.pop(key.key, None)
        text = f"the {key.kind} {key.name} was removed meanwhile"
        self._tell_waiting(key.key, Refusal(Reason.KEY_REVOKED, text))
        self._call(key.key)

    def _signed(self, event: Signed, now: Instant) -> None:
        key = self.people.keys.get(event.key)
        if key is None or not key.wanted or key.request != event.request:
            return  # It was dropped, or is to be signed for another request meanwhile.
        self._soft.again.pop(event.key, None)
        self._record(KeySigned(key=event.key, credentials=event.credentials, at=now))
        self._tell_waiting(event.key, None, event.credentials)

    def _not_signed(self, event: NotSigned, now: Instant) -> None:
        key = self.people.keys.get(event.key)
        if key is None or not key.wanted or key.request != event.request:
            return
        text = f"the {key.kind} {key.name} got no certificate: {event.text}"
        self._tell_waiting(event.key, Refusal(Reason.NOT_SIGNED, text))
        if event.final:
            self._drop(key, now)
        else:
            self._soft.again[event.key] = after(now, SIGN_AGAIN)

    def _tell_waiting(
        self, key: str, told: Refusal | None, credentials: Credentials | None = None
    ) -> None:
        for reply in self._soft.waiting.pop(key, ()):
            self._answer(reply, told, credentials)

    # --- the audit log -------------------------------------------------------------------------

    def _audit(self, ask: AskAccess, refused: Refusal | None, now: Instant) -> None:
        actor, wish, missed = ask.actor, ask.wish, 0
        if refused is not None:
            author = actor.name or actor.source
            others = wish.missed if isinstance(wish, NoteRefusal) else 0
            noted = refusals.count(self._soft.refused, author, now, others)
            if noted is None:
                return
            missed = noted
        action = wish.action if isinstance(wish, NoteAction | NoteRefusal) else ACTIONS[type(wish)]
        self._record(
            Audited(
                at=now,
                actor=actor.name,
                action=action,
                target=refusals.target_of(wish, self.people),
                outcome=Outcome.DONE if refused is None else Outcome.REFUSED,
                vc=getattr(wish, "vc", ""),
                source=actor.source,
                token=actor.token,
                reason=actor.reason,
                why=refused.reason if refused is not None else None,
                missed=missed,
            )
        )

    # --- state -------------------------------------------------------------------------------

    def _record(self, fact: AccessFact) -> None:
        self.apply(fact)
        self._effects.append(Record(fact))

    def apply(self, fact: AccessFact | Kept) -> None:
        """Take over one fact, or one piece of a snapshot."""
        if isinstance(fact, Kept):
            snapshot.restore(self.people, fact)
        else:
            self.people.apply(fact)

    def snapshot(self) -> list[Kept]:
        """Return what rebuilds this state without history; to be encoded before the next event."""
        return snapshot.snapshot(self.people)

    def check(self) -> None:
        """Assert that the state agrees with itself, and that each key is being dealt with.

        Raises:
            AssertionError: It does not.
        """
        self.people.check()
        assert len(self.people.people) <= PEOPLE_MAX
        assert all(key in self.people.keys for key in self._soft.waiting), self._soft.waiting
        assert set(self._soft.again) <= set(self.people.keys), self._soft.again


def _ended_at(token: JoinToken) -> Instant:
    return token.revoked_at or token.expires_at
