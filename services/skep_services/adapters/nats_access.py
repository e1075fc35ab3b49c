"""What may be said and heard on the bus: accounts, and the least each identity in them needs.

An identity is a NATS user. Its inboxes are `_INBOX.<identity>.>` and no other may listen there,
so no identity reads another's answers. Its consumers are named after it, so no identity reads,
resets or deletes another's consumer. Only `bootstrap` may create a stream or take a message out of
a fact stream, and only admission may purge a stream: decided submissions of SUBMIT.

**Accounts.** Permissions bound what a user publishes and hears, but not the *reply subject* of
what it publishes: the server answers there with its own rights. A tenant could so have JetStream
write its answer into a fact stream. Therefore the streams and the services are in one account
(`SERVICES_ACCOUNT`), and each tenant and each node is in an account of its own, which imports the
few subjects that it may use. A reply subject means something only in the account of its user, and
there no stream and no service listens. For the same reason each person of a tenant has an account
of its own for each VC: it has no answer sent to another person of the VC, or said in its name.

The services' account imports nothing: what it hears of others it exports, and they import it. So
it stays as it is when a node or a tenant joins, and servers have nothing of it to make anew. What
a node answers goes to inboxes of the asker that have the node's name (`subjects.answers`), so that
a node cannot speak in place of others.
"""

from __future__ import annotations

import functools
import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from skep.wire import subjects
from skep.wire.subjects import ACCESS, ADMIN, ADMISSION, ALLOC, NODE, PROFILES, SEARCH, SUBMIT

OPERATOR = "operator"
BOOTSTRAP = "bootstrap"
DOOR = "door"
ADMISSION_SERVICE = "admission"
ALLOCATOR = "allocator"
INTROSPECTOR = "introspector"
ADVISOR = "advisor"
SEARCHES = "searches"
ACCESS_SERVICE = "access"
GATEWAY = "gateway"
VAULT = "vault"
NOTIFIER = "notifier"
"""Of which one process runs in a cluster, where the operator's targets are."""
SERVICES = (ADMISSION_SERVICE, ALLOCATOR, INTROSPECTOR, ADVISOR, SEARCHES, ACCESS_SERVICE, GATEWAY)
REPLICATED = (ADMISSION_SERVICE, ALLOCATOR, INTROSPECTOR, ADVISOR, SEARCHES, ACCESS_SERVICE)
"""The services of which a standby may wait beside the active process."""

REPLAY = "-replay"
"""Behind a gateway's name: what its replays read the allocator's log as."""
GATEWAYS_MAX = 8
"""Gateways that may run at once beside one of the name GATEWAY: `gateway-1` and so on."""
ASKERS = (OPERATOR, GATEWAY, *(f"{GATEWAY}-{number}" for number in range(1, GATEWAYS_MAX + 1)))
"""Those that may ask a service for its health or a node for logs, and so must be answered."""

LOOK_UP = "$JS.API.STREAM.NAMES"
"""Which stream takes a subject: how a publisher tells a missing stream from one without leader."""

PASSWORD_BYTES = 24

SERVICES_ACCOUNT = "SKEP"
"""The account of the streams, the services and the operators. The server names the folder of the
streams after it. No identity of a tenant or a node can have this name."""

SYSTEM_ACCOUNT = "SYS"
"""The account in which servers speak to one another, where identities are signed."""
CLAIMS = "claims"
"""The identity that tells the servers of accounts, and of users that are revoked."""

GLOBAL_ACCOUNT = "$G"
"""The account of a server that has no others; until accounts came, Skep's streams were there."""

ANSWERED_WITHIN_S = 10
"""How long the server remembers where the answer to a request from another account goes. A client
repeats a request after 2 s; what is never answered must not fill the server's memory."""

ARCHIVED = (ADMISSION, ALLOC, SEARCH, PROFILES, NODE, ADMIN)
"""Streams of which old messages may go to an archive."""

TENANT_CONNECTIONS_MAX = 64
"""Connections of one tenant at the same time: its people's commands and its programs."""
TENANT_SUBSCRIPTIONS_MAX = 1024
"""Subscriptions of one tenant: 16 for each connection; a client needs 2."""
PERSON_CONNECTIONS_MAX = 16
"""Connections of one person in one VC: some commands at the same time, and a program."""
PERSON_SUBSCRIPTIONS_MAX = 256
NODE_CONNECTIONS_MAX = 16
"""Connections of one node: its agent, the one before it, and health checks."""
NODE_SUBSCRIPTIONS_MAX = 256


class Grants(msgspec.Struct, frozen=True):
    """The subjects an identity may publish to and subscribe to.

    With `answers_s` it may also answer once, within so many seconds, each message that asks for an
    answer: the server lets it publish to that one reply subject.
    """

    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    answers_s: int = 0

    def __add__(self, other: Grants) -> Grants:
        return Grants(
            tuple(dict.fromkeys(self.publish + other.publish)),
            tuple(dict.fromkeys(self.subscribe + other.subscribe)),
            max(self.answers_s, other.answers_s),
        )


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A NATS user; its name is the identity."""

    name: str
    password: str
    grants: Grants


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """A NATS account: users that share its subjects.

    `exports` and `imports` are as the server's configuration has them. Without `connections_max`
    and `subscriptions_max` only the server's own limits hold.
    """

    name: str
    users: tuple[User, ...]
    exports: tuple[dict[str, Any], ...] = ()
    imports: tuple[dict[str, Any], ...] = ()
    jetstream: bool = False
    connections_max: int | None = None
    subscriptions_max: int | None = None


def node_identity(node: str) -> str:
    """Return the identity of a node's agent."""
    return f"node-{node}"


def vc_identity(vc: str) -> str:
    """Return the identity of a tenant."""
    return f"vc-{vc}"


def person_identity(vc: str, person: str) -> str:
    """Return the identity of a person in a VC."""
    return f"{vc_identity(vc)}.{person}"


def vc_of_identity(identity: str) -> str:
    """Return the identity of the tenant that an identity belongs to; empty if to none."""
    first = identity.partition(".")[0]
    return first if first.startswith(vc_identity("")) else ""


def password_behind_door(secret: str, identity: str, password: str) -> str:
    """Return the password by which the bus server knows a tenant that comes through the door.

    The door makes it from what the tenant says and from its own `secret`, so that a tenant cannot
    go past the door to the server itself.
    """
    return hmac.new(secret.encode(), f"{identity}:{password}".encode(), "sha256").hexdigest()


def behind_door(passwords: Mapping[str, str], vcs: Sequence[str]) -> dict[str, str]:
    """Return the passwords as a server needs them that tenants reach through the door only."""
    secret = passwords[DOOR]
    inside = {
        one: password_behind_door(secret, one, passwords[one]) for one in map(vc_identity, vcs)
    }
    return {**passwords, **inside}


def replica_identities(service: str, replicas: int) -> tuple[str, ...]:
    """Return the identities of a service's processes, of which one at a time is active."""
    if replicas == 1 or service not in (*REPLICATED, VAULT):
        return (service,)
    return _numbered(service, replicas)


def gateway_identities(gateways: int) -> tuple[str, ...]:
    """Return the identities of a cluster's gateways, all of which work."""
    return (GATEWAY,) if gateways == 1 else _numbered(GATEWAY, gateways)


def _numbered(service: str, count: int) -> tuple[str, ...]:
    return tuple(f"{service}-{number}" for number in range(1, count + 1))


def identities(nodes: Sequence[str], vcs: Sequence[str], replicas: int = 1) -> tuple[str, ...]:
    """Return the names of all users of a cluster with so many processes of each service."""
    return (
        OPERATOR,
        BOOTSTRAP,
        DOOR,
        NOTIFIER,
        *replica_identities(VAULT, replicas),
        *(one for service in SERVICES for one in replica_identities(service, replicas)),
        *(node_identity(node) for node in nodes),
        *(vc_identity(vc) for vc in vcs),
    )


def new_passwords(nodes: Sequence[str], vcs: Sequence[str], replicas: int = 1) -> dict[str, str]:
    """Return a random password for every identity, long enough that hashing it gains nothing."""
    every = identities(nodes, vcs, replicas)
    return {name: secrets.token_urlsafe(PASSWORD_BYTES) for name in every}


def accounts(
    passwords: Mapping[str, str], nodes: Sequence[str], vcs: Sequence[str], replicas: int = 1
) -> tuple[Account, ...]:
    """Return the accounts of a cluster, that of the services first.

    Args:
        passwords: One for each of the cluster's identities.
        nodes: Names of the nodes; each has an account.
        vcs: Names of the virtual clusters; each has an account.
        replicas: Processes of each service that decides.
    """
    grants = {
        **people_grants(),
        **{one: _vault(one) for one in replica_identities(VAULT, replicas)},
        NOTIFIER: _notifier(),
        **{
            one: service_grants(service, one, replica_identities(service, replicas))
            for service in SERVICES
            for one in replica_identities(service, replicas)
        },
    }
    return (
        services_account(
            [User(name=name, password=passwords[name], grants=grants[name]) for name in grants]
        ),
        *(node_account(node, passwords[node_identity(node)]) for node in nodes),
        *(vc_account(vc, passwords[vc_identity(vc)]) for vc in vcs),
    )


def in_one_account(every: Sequence[Account]) -> tuple[Account, ...]:
    """Return the users of all accounts in the server's own, as it was before there were accounts.

    Reply subjects are then not bounded. For streams that cannot be moved.
    """
    users = tuple(user for account in every for user in account.users)
    return (Account(name=GLOBAL_ACCOUNT, users=users),)


def service_users(servers: int) -> tuple[User, ...]:
    """Return all users of the services' account, where each server runs one of each service.

    They have no passwords: each proves itself by a key.

    Args:
        servers: How many servers the cluster has.
    """
    grants = people_grants()
    grants.update((one, _vault(one)) for one in replica_identities(VAULT, servers))
    grants[NOTIFIER] = _notifier()
    for service in SERVICES:
        replicas = (
            gateway_identities(servers)
            if service == GATEWAY
            else replica_identities(service, servers)
        )
        peers = () if service == GATEWAY else replicas
        for one in replicas:
            grants[one] = service_grants(service, one, peers or (one,))
            if service == GATEWAY and one != GATEWAY:
                # It answers for the gateway as well: that one of them works is what is asked.
                grants[one] += Grants((), (subjects.health(GATEWAY),))
    return tuple(User(name=name, password="", grants=grants[name]) for name in grants)


def services_account(users: Sequence[User]) -> Account:
    """Return the account of the streams, and what others may say to it and hear from it."""
    said = (
        *_tenant_says("*"),
        *_tenant_says("*", "*"),
        subjects.node_event("*", "*"),
        subjects.vault("*"),
        subjects.code("*", "*"),
        *(subjects.REPORTS, subjects.HEARTBEATS, subjects.SPANS),
        *(subjects.answers(asker, "*") for asker in ASKERS),
    )
    heard = (
        "_INBOX.*.>",
        subjects.REPLIES,
        subjects.command("*"),
        subjects.logs("*"),
        subjects.outputs("*"),
        subjects.caches("*"),
        subjects.health("*"),
        subjects.terminal("*"),
    )
    return Account(
        name=SERVICES_ACCOUNT,
        users=tuple(users),
        exports=(
            *(_service_export(subject) for subject in said),
            *(_stream_export(subject) for subject in heard),
        ),
        jetstream=True,
    )


def node_account(node: str, password: str = "") -> Account:
    """Return the account of a node: what it says goes to the services, its commands come to it."""
    identity = node_identity(node)
    said = (
        subjects.node_event(node, "*"),
        subjects.vault(node),
        subjects.code(node, "*"),
        *_node_tells(node),
        *_node_answers(node),
    )
    return Account(
        name=identity,
        users=(User(name=identity, password=password, grants=node_grants(node)),),
        imports=(
            *(_imported("service", SERVICES_ACCOUNT, one) for one in said),
            *(_imported("stream", SERVICES_ACCOUNT, one) for one in _node_hears(node)),
        ),
        connections_max=NODE_CONNECTIONS_MAX,
        subscriptions_max=NODE_SUBSCRIPTIONS_MAX,
    )


def vc_account(vc: str, password: str = "") -> Account:
    """Return the account of a tenant: what it submits goes to SUBMIT, verdicts come to it."""
    identity = vc_identity(vc)
    return Account(
        name=identity,
        users=(User(name=identity, password=password, grants=vc_grants(vc)),),
        imports=_tenant_imports(vc),
        connections_max=TENANT_CONNECTIONS_MAX,
        subscriptions_max=TENANT_SUBSCRIPTIONS_MAX,
    )


def person_account(vc: str, person: str, password: str = "") -> Account:
    """Return the account of a person in a VC: as a tenant's, under its own name only."""
    identity = person_identity(vc, person)
    return Account(
        name=identity,
        users=(User(name=identity, password=password, grants=vc_grants(vc, person)),),
        imports=_tenant_imports(vc, person),
        connections_max=PERSON_CONNECTIONS_MAX,
        subscriptions_max=PERSON_SUBSCRIPTIONS_MAX,
    )


def system_account(password: str = "") -> Account:
    """Return the account in which servers are told of accounts."""
    inbox = _inbox(CLAIMS)
    says = (
        "$SYS.REQ.CLAIMS.UPDATE",
        "$SYS.REQ.CLAIMS.DELETE",
        "$SYS.REQ.CLAIMS.LIST",
        "$SYS.REQ.ACCOUNT.*.CLAIMS.LOOKUP",
        "$SYS.REQ.SERVER.PING",
    )
    grants = inbox + Grants(says)
    return Account(
        name=SYSTEM_ACCOUNT, users=(User(name=CLAIMS, password=password, grants=grants),)
    )


def _tenant_imports(vc: str, person: str = "") -> tuple[dict[str, Any], ...]:
    return (
        *(_imported("service", SERVICES_ACCOUNT, one) for one in _tenant_says(vc, person)),
        *(_imported("stream", SERVICES_ACCOUNT, one) for one in _tenant_hears(vc, person)),
    )


def _tenant_says(vc: str, person: str = "") -> tuple[str, ...]:
    kinds = (subjects.submit, subjects.cancel, subjects.ask, subjects.search)
    return tuple(kind(vc, person) for kind in kinds)


def _tenant_hears(vc: str, person: str = "") -> tuple[str, ...]:
    return (f"{subjects.inbox(vc, person)}>", subjects.reply(vc, ">", person))


def _node_tells(node: str) -> tuple[str, ...]:
    """Return what an agent says and gets no answer to."""
    return (subjects.report(node), subjects.heartbeat(node), subjects.span(node_identity(node)))


def _node_answers(node: str) -> tuple[str, ...]:
    return tuple(subjects.answers(asker, node) for asker in ASKERS)


def _node_hears(node: str) -> tuple[str, ...]:
    return (
        subjects.command(node),
        subjects.logs(node),
        subjects.outputs(node),
        subjects.caches(node),
        subjects.health(node_identity(node)),
        subjects.terminal(node),
    )


def _service_export(subject: str) -> dict[str, Any]:
    return {"service": subject, "response_threshold": f"{ANSWERED_WITHIN_S}s"}


def _stream_export(subject: str) -> dict[str, Any]:
    return {"stream": subject}


def _imported(kind: str, account: str, subject: str) -> dict[str, Any]:
    return {kind: {"account": account, "subject": subject}}


def people_grants() -> dict[str, Grants]:
    """Return what an operator may do, what makes the streams, and what tenants go through."""
    says = Grants
    return {
        OPERATOR: _inbox(OPERATOR)
        + says((*_everything_asked(), LOOK_UP), (f"{subjects.PREFIX}.>",))
        + functools.reduce(Grants.__add__, (_follows(OPERATOR, name) for name in subjects.STREAMS)),
        BOOTSTRAP: _inbox(BOOTSTRAP)
        + says(
            (
                "$JS.API.INFO",
                "$JS.API.STREAM.INFO.*",
                "$JS.API.STREAM.CREATE.*",
                # Which virtual clusters were asked for: their people need users here.
                f"$JS.API.STREAM.MSG.GET.{ADMIN}",
                f"$JS.API.STREAM.UPDATE.{SUBMIT}",
                # `skep log repair` takes out what is no record.
                *(f"$JS.API.STREAM.MSG.DELETE.{stream}" for stream in subjects.FACT_STREAMS),
                *_keeping(),
            )
        )
        + functools.reduce(
            Grants.__add__,
            (
                _follows(BOOTSTRAP, name)
                for name in dict.fromkeys(
                    (*subjects.FACT_STREAMS, *ARCHIVED, subjects.SECRETS, subjects.CODE)
                )
            ),
        ),
        # It asks the stream of submissions how far it is, on a subject that is no tenant's.
        DOOR: _inbox(DOOR) + says((subjects.submit(DOOR),)),
    }


def service_grants(service: str, identity: str, replicas: Sequence[str]) -> Grants:
    """Return what the process `identity` of a service may do; `replicas` are all of them."""
    peers = tuple(one for one in replicas if one != identity)
    inboxes = tuple(f"_INBOX.{peer}.>" for peer in peers)
    asks = tuple(subjects.health(peer) for peer in peers)
    grants = _service(identity) + _work(service, identity) + Grants((*asks, *inboxes))
    return grants + Grants((), (subjects.health(service),)) if peers else grants


def _work(service: str, identity: str) -> Grants:
    says = Grants
    match service:
        case "admission":
            return (
                _writes(identity, ADMISSION)
                + _follows(identity, SUBMIT)
                + _follows(identity, ADMIN)
                + _follows(identity, ALLOC)
                + _follows(identity, ACCESS)
                + says(
                    (
                        subjects.REPLIES,
                        "_INBOX.*.>",
                        # Decided submissions are taken out of a large stream.
                        f"$JS.API.STREAM.MSG.GET.{SUBMIT}",
                        f"$JS.API.STREAM.PURGE.{SUBMIT}",
                        subjects.health(SEARCHES),
                        # Tasks of arrays become jobs as submissions of their owner.
                        *_asked_of_vcs(subjects.submit),
                    ),
                    (subjects.ADVICE_OUTLOOK, subjects.draft(service)),
                )
            )
        case "allocator":
            return (
                _writes(identity, ALLOC)
                + _follows(identity, ADMISSION)
                + _follows(identity, ADMIN)
                + _follows(identity, NODE)
                + says(
                    (subjects.command("*"), subjects.TRIALS_OPEN, subjects.SIGHTS),
                    (
                        subjects.HEARTBEATS,
                        subjects.ADVICE_QUEUE,
                        subjects.ADVICE_OUTLOOK,
                        subjects.ADVICE_LEARNED,
                        subjects.JUDGED,
                        subjects.SLOWED,
                        subjects.LATE,
                        subjects.draft(service),
                    ),
                )
            )
        case "introspector":
            return says((subjects.FINDINGS,), (subjects.REPORTS, subjects.TRIALS_OPEN))
        case "advisor":
            return (
                _writes(identity, PROFILES)
                + _follows(identity, ADMISSION)
                + _follows(identity, ALLOC)
                + says(
                    (subjects.ADVICE_QUEUE, subjects.ADVICE_OUTLOOK, subjects.ADVICE_LEARNED),
                    (subjects.FINDINGS, subjects.SIGHTS),
                )
            )
        case "searches":
            return _searches(identity)
        case "access":
            return (
                _writes(identity, ACCESS)
                + _follows(identity, ADMIN, subjects.admin("vcs"))
                + says((), (subjects.ACCESS_ASKED,))
            )
        case "gateway":
            return _gateway(identity)
        case _:
            message = f"there is no service {service!r}"
            raise AssertionError(message)


def _searches(identity: str) -> Grants:
    return (
        _writes(identity, SEARCH)
        + _follows(identity, SUBMIT, subjects.SEARCH_REQUESTS)
        + _follows(identity, ADMISSION)
        + _follows(identity, ALLOC)
        + Grants(
            (
                # A trial's job is its owner's; all else a search asks as the VC.
                *_asked_of_vcs(subjects.submit),
                subjects.cancel("*"),
                subjects.ask("*"),
                subjects.REPLIES,
                subjects.LATE,
                "_INBOX.*.>",
            ),
            (subjects.MEASURED, subjects.SERVED),
        )
    )


def _vault(identity: str) -> Grants:
    """Say the vault's key, follow what is kept and which jobs are where, and answer nodes."""
    return (
        _service(identity)
        + _follows(identity, subjects.SECRETS)
        + _follows(identity, ALLOC)
        + Grants((subjects.VAULT_KEY,), (subjects.vault("*"),), ANSWERED_WITHIN_S)
    )


def _notifier() -> Grants:
    """Follow what becomes of jobs, and answer gateways."""
    heard = Grants((), (subjects.NOTIFIER_ASKED,))
    return _service(NOTIFIER) + _follows(NOTIFIER, ALLOC) + heard


def _gateway(identity: str) -> Grants:
    heard = (
        subjects.FINDINGS,
        subjects.ADVICE_QUEUE,
        subjects.ADVICE_OUTLOOK,
        subjects.HEARTBEATS,
        subjects.REPORTS,
        subjects.SPANS,
        subjects.REPLIES,
    )
    return functools.reduce(
        Grants.__add__,
        (
            _follows(identity, one)
            for one in (SUBMIT, ADMIN, NODE, ADMISSION, ALLOC, SEARCH, PROFILES, ACCESS)
        ),
        Grants(
            (
                *_everything_asked(),
                LOOK_UP,
                subjects.secret("vc", "*", "*"),
                subjects.secret("person", "*", "*"),
                # Operators ask no node for a session: the gateway knows the rights of people.
                subjects.terminal("*"),
                subjects.NOTIFIER_ASKED,
                subjects.served(identity),
            ),
            heard,
        )
        + _follows(identity, subjects.SECRETS)
        + _follows(identity + REPLAY, ALLOC)
        + _keeps_code(identity),
    )


def _keeps_code(identity: str) -> Grants:
    """Keep snapshots of code, take out what no job names, and hand nodes what they are to run."""
    api = "$JS.API.STREAM"
    return _follows(identity, subjects.CODE, subjects.SNAPSHOTS) + Grants(
        (
            *subjects.CODE_SUBJECTS,
            f"{api}.MSG.GET.{subjects.CODE}",
            f"{api}.MSG.DELETE.{subjects.CODE}",
        ),
        (subjects.code("*", identity), subjects.code("*", subjects.ANY_GATEWAY)),
        ANSWERED_WITHIN_S,
    )


def node_grants(node: str) -> Grants:
    """Return what a node's agent may do: speak for its own node, and hear its own commands."""
    identity = node_identity(node)
    says = (
        subjects.node_event(node, "*"),
        subjects.vault(node),
        subjects.code(node, "*"),
        *_node_tells(node),
        *_node_answers(node),
        subjects.health(identity),
    )
    return _inbox(identity) + Grants(says, _node_hears(node))


def vc_grants(vc: str, person: str = "") -> Grants:
    """Return what a tenant may do: submit, cancel, ask for changes in its VC, and hear verdicts.

    Args:
        vc: The VC.
        person: The person of it that may; empty: the VC as a whole.
    """
    identity = person_identity(vc, person) if person else vc_identity(vc)
    return _inbox(identity) + Grants(_tenant_says(vc, person), _tenant_hears(vc, person))


def _keeping() -> tuple[str, ...]:
    """Return what `skep backup`, `skep restore` and `skep log archive` ask as `bootstrap`."""
    api = "$JS.API.STREAM"
    return (
        f"{api}.SNAPSHOT.*",
        "$JS.SNAPSHOT.ACK.>",
        f"{api}.RESTORE.*",
        "$JS.SNAPSHOT.RESTORE.>",
        # How far records refer to other streams, and which snapshots there are.
        *(f"{api}.MSG.GET.{stream}" for stream in (*subjects.FACT_STREAMS, subjects.KEPT)),
        # What is archived is taken out.
        *(f"{api}.PURGE.{stream}" for stream in ARCHIVED),
    )


def _inbox(identity: str) -> Grants:
    # Publishing there is how a process checks that its own connection carries messages.
    inbox = (f"_INBOX.{identity}.>",)
    return Grants(inbox, inbox)


def _service(identity: str) -> Grants:
    """Own inbox, health answers (also to itself, for what watches the process), trace spans."""
    answers = tuple(f"_INBOX.{asker}.>" for asker in ASKERS)
    health = subjects.health(identity)
    return _inbox(identity) + Grants((*answers, health, subjects.span(identity)), (health,))


def _follows(identity: str, stream: str, subject: str = "") -> Grants:
    """Read a stream, or only one of its subjects, through a consumer named after the identity."""
    consumer = f"{stream}.{identity}"
    return Grants(
        (
            f"$JS.API.STREAM.INFO.{stream}",
            f"$JS.API.CONSUMER.CREATE.{consumer}{f'.{subject}' if subject else ''}",
            f"$JS.API.CONSUMER.MSG.NEXT.{consumer}",
            f"$JS.API.CONSUMER.DELETE.{consumer}",
        )
    )


def _writes(identity: str, stream: str) -> Grants:
    """Append to a fact log, read it back whole, look at single messages of it, keep snapshots."""
    return _follows(identity, stream) + Grants(
        (
            *subjects.STREAMS[stream],
            f"$JS.API.STREAM.MSG.GET.{stream}",
            subjects.kept(stream, "*"),
            f"$JS.API.STREAM.MSG.GET.{subjects.KEPT}",
            f"$JS.API.STREAM.PURGE.{subjects.KEPT}",
        )
    )


def _everything_asked() -> tuple[str, ...]:
    """What people ask for through the command line or the gateway."""
    return (
        *_asked_of_vcs(subjects.submit, subjects.cancel, subjects.ask, subjects.search),
        subjects.admin("*"),
        subjects.ACCESS_ASKED,
        subjects.logs("*"),
        subjects.outputs("*"),
        subjects.caches("*"),
        subjects.health("*"),
        subjects.draft("*"),
    )


def _asked_of_vcs(*kinds: Callable[[str, str], str]) -> tuple[str, ...]:
    """Return what is asked in the name of VCs as a whole and in that of their people."""
    return tuple(kind("*", person) for person in ("", "*") for kind in kinds)
