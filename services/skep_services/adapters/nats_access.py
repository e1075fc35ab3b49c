"""Who may say and hear what on the bus: the least each identity needs.

An identity is a NATS user. Its inboxes are `_INBOX.<identity>.>` and nobody else may listen there,
so no identity reads another's answers. Its consumers are named after it, so no identity reads,
resets or deletes another's consumer. Only `bootstrap` may create a stream, and nobody may delete
or purge one.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Mapping, Sequence

import msgspec

from skep.wire import subjects
from skep.wire.subjects import ADMIN, ADMISSION, ALLOC, NODE, SUBMIT

OPERATOR = "operator"
BOOTSTRAP = "bootstrap"
ADMISSION_SERVICE = "admission"
ALLOCATOR = "allocator"
INTROSPECTOR = "introspector"
ADVISOR = "advisor"
GATEWAY = "gateway"
SERVICES = (ADMISSION_SERVICE, ALLOCATOR, INTROSPECTOR, ADVISOR, GATEWAY)

ASKERS = (OPERATOR, GATEWAY)
"""Who may ask a service for its health or a node for logs, and so must be answered."""

LOOK_UP = "$JS.API.STREAM.NAMES"
"""Which stream takes a subject: how a publisher tells a missing stream from one without leader."""

PASSWORD_BYTES = 24


class Grants(msgspec.Struct, frozen=True):
    """The subjects an identity may publish to and subscribe to."""

    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()

    def __add__(self, other: Grants) -> Grants:
        return Grants(
            tuple(dict.fromkeys(self.publish + other.publish)),
            tuple(dict.fromkeys(self.subscribe + other.subscribe)),
        )


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A NATS user; its name is the identity."""

    name: str
    password: str
    grants: Grants


def node_identity(node: str) -> str:
    """Return the identity of a node's agent."""
    return f"node-{node}"


def vc_identity(vc: str) -> str:
    """Return the identity of a tenant."""
    return f"vc-{vc}"


def identities(nodes: Sequence[str], vcs: Sequence[str]) -> tuple[str, ...]:
    """Return the names of all users of a cluster."""
    return (
        OPERATOR,
        BOOTSTRAP,
        *SERVICES,
        *(node_identity(node) for node in nodes),
        *(vc_identity(vc) for vc in vcs),
    )


def new_passwords(nodes: Sequence[str], vcs: Sequence[str]) -> dict[str, str]:
    """Return a random password for every identity, long enough that hashing it gains nothing."""
    return {name: secrets.token_urlsafe(PASSWORD_BYTES) for name in identities(nodes, vcs)}


def users(
    passwords: Mapping[str, str], nodes: Sequence[str], vcs: Sequence[str]
) -> tuple[User, ...]:
    """Return every user of a cluster; `passwords` has one for each of `identities(nodes, vcs)`."""
    grants = {
        **fixed_grants(),
        **{node_identity(node): node_grants(node) for node in nodes},
        **{vc_identity(vc): vc_grants(vc) for vc in vcs},
    }
    return tuple(
        User(name=name, password=passwords[name], grants=grants[name])
        for name in identities(nodes, vcs)
    )


def fixed_grants() -> dict[str, Grants]:
    """Return what everybody but agents and tenants may do."""
    says = Grants
    return {
        OPERATOR: _inbox(OPERATOR)
        + says((*_everything_asked(), LOOK_UP), (f"{subjects.PREFIX}.>",))
        + functools.reduce(Grants.__add__, (_follows(OPERATOR, name) for name in subjects.STREAMS)),
        BOOTSTRAP: _inbox(BOOTSTRAP)
        + says(("$JS.API.INFO", "$JS.API.STREAM.INFO.*", "$JS.API.STREAM.CREATE.*")),
        ADMISSION_SERVICE: _service(ADMISSION_SERVICE)
        + _writes(ADMISSION_SERVICE, ADMISSION)
        + _follows(ADMISSION_SERVICE, SUBMIT)
        + _follows(ADMISSION_SERVICE, ADMIN)
        + _follows(ADMISSION_SERVICE, ALLOC)
        + says((subjects.REPLIES, "_INBOX.*.>")),
        ALLOCATOR: _service(ALLOCATOR)
        + _writes(ALLOCATOR, ALLOC)
        + _follows(ALLOCATOR, ADMISSION)
        + _follows(ALLOCATOR, ADMIN)
        + _follows(ALLOCATOR, NODE)
        + says((subjects.command("*"),), (subjects.HEARTBEATS, subjects.ADVICE_QUEUE)),
        INTROSPECTOR: _service(INTROSPECTOR) + says((subjects.FINDINGS,), (subjects.REPORTS,)),
        ADVISOR: _service(ADVISOR)
        + _follows(ADVISOR, ADMISSION)
        + _follows(ADVISOR, ALLOC)
        + says((subjects.ADVICE_QUEUE,), (subjects.FINDINGS,)),
        GATEWAY: _service(GATEWAY)
        + _follows(GATEWAY, SUBMIT)
        + _follows(GATEWAY, ADMIN)
        + _follows(GATEWAY, NODE)
        + _follows(GATEWAY, ADMISSION)
        + _follows(GATEWAY, ALLOC)
        + says(
            (*_everything_asked(), LOOK_UP),
            (
                subjects.FINDINGS,
                subjects.ADVICE_QUEUE,
                subjects.HEARTBEATS,
                subjects.REPORTS,
                subjects.SPANS,
                subjects.REPLIES,
            ),
        ),
    }


def node_grants(node: str) -> Grants:
    """Return what a node's agent may do: speak for its own node, and hear its own commands."""
    return _service(node_identity(node)) + Grants(
        (
            subjects.node_event(node, "*"),
            subjects.report(node),
            subjects.heartbeat(node),
            LOOK_UP,
        ),
        (subjects.command(node), subjects.logs(node)),
    )


def vc_grants(vc: str) -> Grants:
    """Return what a tenant may do: submit and cancel in its VC, and hear the verdicts."""
    return _inbox(vc_identity(vc)) + Grants(
        (subjects.submit(vc), subjects.cancel(vc)), (f"{subjects.PREFIX}.reply.{vc}.>",)
    )


def _inbox(identity: str) -> Grants:
    # Publishing there is how a process checks that its own connection carries messages.
    inbox = (f"_INBOX.{identity}.>",)
    return Grants(inbox, inbox)


def _service(identity: str) -> Grants:
    """Own inbox, health answers, trace spans."""
    answers = tuple(f"_INBOX.{asker}.>" for asker in ASKERS)
    return _inbox(identity) + Grants(
        (*answers, subjects.span(identity)), (subjects.health(identity),)
    )


def _follows(identity: str, stream: str) -> Grants:
    """Read a stream through a consumer named after the identity."""
    consumer = f"{stream}.{identity}"
    return Grants(
        (
            f"$JS.API.STREAM.INFO.{stream}",
            f"$JS.API.CONSUMER.CREATE.{consumer}",
            f"$JS.API.CONSUMER.MSG.NEXT.{consumer}",
            f"$JS.API.CONSUMER.DELETE.{consumer}",
        )
    )


def _writes(identity: str, stream: str) -> Grants:
    """Append to a fact log, read it back whole, and look at single messages of it."""
    return _follows(identity, stream) + Grants(
        (*subjects.STREAMS[stream], f"$JS.API.STREAM.MSG.GET.{stream}")
    )


def _everything_asked() -> tuple[str, ...]:
    """What people ask for through the command line or the gateway."""
    return (
        subjects.submit("*"),
        subjects.cancel("*"),
        subjects.admin("*"),
        subjects.logs("*"),
        subjects.health("*"),
    )
