"""What is asked of services, and the facts about them in the log SEARCH.

A request is published to `skep.v1.search.<vc>` as JSON: `{"do": "stop", "service": "v17"}`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from skep.units import Instant
from skep.wire.bounds import ServiceName, convert_unbounded
from skep.wire.message import Message
from skep.wire.parse import bound_problems, shape_problems
from skep.wire.reasons import Reason
from skep.wire.service import REPLICAS_MAX, ServiceSpec, is_service_id, parse_service_tree
from skep.wire.spec import Problem

# --- requests ----------------------------------------------------------------------------------


class _Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="do"):
    """What a tenant asks for. `parse_service_request` refuses unknown keys."""


class BeginService(_Request, frozen=True, tag="serve"):
    """Begin a service; its id comes with the answer."""

    spec: ServiceSpec


class UpdateService(_Request, frozen=True, tag="update"):
    """Have a service be as this spec says, one replica after another."""

    service: ServiceName
    spec: ServiceSpec


class ScaleService(_Request, frozen=True, tag="scale"):
    """Have so many replicas."""

    service: ServiceName
    replicas: Annotated[int, Meta(ge=0, le=REPLICAS_MAX)]


class StopService(_Request, frozen=True, tag="stop"):
    """Drain all replicas, and end the service."""

    service: ServiceName


ServiceWish = BeginService | UpdateService | ScaleService | StopService

SERVICE_WISHES: dict[str, type[Any]] = {
    "serve": BeginService,
    "update": UpdateService,
    "scale": ScaleService,
    "stop": StopService,
}


def parse_service_request(tree: dict[str, Any]) -> ServiceWish | list[Problem]:
    """Return the request in a value whose `do` is one of SERVICE_WISHES, or its problems."""
    kind = SERVICE_WISHES[tree["do"]]
    rest = {key: value for key, value in tree.items() if key not in {"do", "spec"}}
    if kind in (ScaleService, StopService):
        rest = {key: value for key, value in tree.items() if key != "do"}
    problems: list[Problem] = list(shape_problems(_SHAPES.get(kind, kind), rest, "$"))[:20]
    if "service" in rest and not problems and not is_service_id(rest["service"]):
        problems.append(
            Problem(
                path="$.service",
                reason=Reason.BAD_VALUE,
                text="`service` must be the id of a service",
                suggestion="such as v17",
            )
        )
    if kind in (ScaleService, StopService):
        return problems or bound_problems(kind, tree, "$") or convert_unbounded(tree, kind)
    if "spec" not in tree:
        return [
            *problems,
            Problem(path="$.spec", reason=Reason.MISSING_KEY, text="`spec` is required"),
        ]
    spec = parse_service_tree(tree["spec"], "$.spec")
    if isinstance(spec, list):
        return problems + spec
    if problems:
        return problems
    if kind is BeginService:
        return BeginService(spec=spec)
    return UpdateService(service=tree["service"], spec=spec)


class _Nothing(msgspec.Struct, frozen=True, kw_only=True):
    """A request that has only a spec."""


class _OfService(msgspec.Struct, frozen=True, kw_only=True):
    """A request about a service, without its spec."""

    service: ServiceName


_SHAPES: dict[type[Any], type[Any]] = {BeginService: _Nothing, UpdateService: _OfService}


# --- facts -------------------------------------------------------------------------------------


class ReplicaStand(StrEnum):
    """How a replica is."""

    NEW = "new"
    """Its job is submitted, and admission has yet to answer."""
    WAITING = "waiting"
    """Its job has no GPUs, or makes ready."""
    RUNNING = "running"


class ServiceMessage(Message, frozen=True):
    """A fact about a service."""

    service: str


class ServiceBegan(ServiceMessage, frozen=True, tag="service-began"):
    """A service was accepted. `spec` is normalised and whole. `owner` is as in `Admitted`."""

    spec: ServiceSpec
    at: Instant
    key: str = ""
    owner: str = ""


class ServiceRefused(ServiceMessage, frozen=True, tag="service-refused"):
    """What was asked for is no service, or one too many."""

    vc: str
    problems: tuple[Problem, ...]
    at: Instant


class ServiceUpdated(ServiceMessage, frozen=True, tag="service-updated"):
    """A service is to be as `spec` says; its replicas of earlier revisions are replaced.

    `number` is that of the request: an earlier one, read again, changes nothing. `replace` false:
    what replicas are has not changed, so those there are stay.
    """

    spec: ServiceSpec
    revision: int
    wanted: int
    at: Instant
    number: int = 0
    replace: bool = True


class ServiceScaled(ServiceMessage, frozen=True, tag="service-scaled"):
    """A service is to have so many replicas.

    `rate_milli` and `p95_ms` are the requests (thousandths per second) and the latency that it
    follows from; 0 where a person asked for it. `number` is as in `ServiceUpdated`.
    """

    wanted: int
    why: Reason
    at: Instant
    rate_milli: int = 0
    p95_ms: int = 0
    number: int = 0


class ServiceEnding(ServiceMessage, frozen=True, tag="service-ending"):
    """No more replicas are begun, and all are drained."""

    why: Reason
    at: Instant


class ServiceOver(ServiceMessage, frozen=True, tag="service-over"):
    """The one end of a service; it had so many replicas in all."""

    why: Reason
    at: Instant
    replicas: int


class ReplicaAdded(ServiceMessage, frozen=True, tag="replica-added"):
    """A replica of a service; they are numbered from 1. It is as `revision` says."""

    replica: int
    revision: int
    at: Instant


class ReplicaAdmitted(ServiceMessage, frozen=True, tag="replica-admitted"):
    """A replica's submission became this job."""

    replica: int
    job: str
    at: Instant


class ReplicaPutOff(ServiceMessage, frozen=True, tag="replica-put-off"):
    """A replica's submission was refused for what passes; it is submitted anew, later."""

    replica: int
    why: Reason
    at: Instant


class ReplicaStood(ServiceMessage, frozen=True, tag="replica-stood"):
    """How a replica's job is has changed. What was said of its health before is void."""

    replica: int
    stand: ReplicaStand
    at: Instant
    attempt: int = 0


class ReplicaHealth(ServiceMessage, frozen=True, tag="replica-health"):
    """A replica became ready, or (`ready` false) is not any more."""

    replica: int
    ready: bool
    at: Instant


class ReplicaDraining(ServiceMessage, frozen=True, tag="replica-draining"):
    """A replica is to go: gateways send it nothing more. `failed`: it was of no use."""

    replica: int
    why: Reason
    at: Instant
    failed: bool = False


class ReplicaDrained(ServiceMessage, frozen=True, tag="replica-drained"):
    """A replica's job is cancelled from here on. `open` requests it had not answered in time."""

    replica: int
    at: Instant
    open: int = 0


class ReplicaOver(ServiceMessage, frozen=True, tag="replica-over"):
    """The one end of a replica. `failed`: it was not asked to go."""

    replica: int
    why: Reason
    at: Instant
    failed: bool = False
    detail: str = ""


ReplicaFact = (
    ReplicaAdded
    | ReplicaAdmitted
    | ReplicaPutOff
    | ReplicaStood
    | ReplicaHealth
    | ReplicaDraining
    | ReplicaDrained
    | ReplicaOver
)

ServiceFacts = (
    ServiceBegan
    | ServiceRefused
    | ServiceUpdated
    | ServiceScaled
    | ServiceEnding
    | ServiceOver
    | ReplicaFact
)
