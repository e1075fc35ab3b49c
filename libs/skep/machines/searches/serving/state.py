"""What is known of services and their replicas: changed by facts alone."""

from __future__ import annotations

import msgspec

from skep.units import Instant, after, seconds
from skep.wire.reasons import Reason
from skep.wire.service import ServiceSpec
from skep.wire.service_facts import (
    ReplicaAdded,
    ReplicaAdmitted,
    ReplicaDrained,
    ReplicaDraining,
    ReplicaHealth,
    ReplicaOver,
    ReplicaPutOff,
    ReplicaStand,
    ReplicaStood,
    ServiceBegan,
    ServiceEnding,
    ServiceFacts,
    ServiceOver,
    ServiceRefused,
    ServiceScaled,
    ServiceUpdated,
)
from skep.wire.spec import SERVICE_KEYS, JobSpec

RETRY = seconds(30.0)
"""Until a replica is submitted again that was refused for what passes."""


class Replica(msgspec.Struct, kw_only=True):
    """One replica that is not over. Times in ns."""

    number: int
    revision: int
    since: Instant
    """When it came to stand as it does, or to be ready as it is."""
    stand: ReplicaStand = ReplicaStand.NEW
    job: str = ""
    attempt: int = 0
    """Of its job: what is said of earlier ones does not count."""
    ready: bool = False
    was_ready: bool = False
    """It has been ready since its job runs."""
    draining: Reason | None = None
    drained: bool = False
    """Its job is to be cancelled."""
    failed: bool = False
    tries: int = 1
    """Submissions with keys of their own: one that was refused is never judged again."""
    retry_at: Instant = Instant(0)

    @property
    def serving(self) -> bool:
        """Return whether it is one of those that its service counts on."""
        return self.draining is None


class Service(msgspec.Struct, kw_only=True):
    """One service that is not over."""

    service: str
    spec: ServiceSpec
    began_at: Instant
    wanted: int
    """Replicas that there are to be."""
    revision: int = 1
    key: str = ""
    owner: str = ""
    replicas: dict[int, Replica] = {}
    added: int = 0
    """Replicas that there were in all."""
    specs: dict[int, ServiceSpec] = {}
    """By revision, of those that replicas have."""
    ending: Reason | None = None
    request: int = 0
    """The latest request that changed it."""
    failures: int = 0
    """Replicas that were of no use since one became ready."""
    failed_at: Instant = Instant(0)
    why: Reason | None = None
    """Why the latest replica was of no use."""
    detail: str = ""
    scaled_at: Instant = Instant(0)
    scaled_why: Reason | None = None

    @property
    def serving(self) -> list[Replica]:
        """Return the replicas that are not to go, by number."""
        return [replica for replica in self.replicas.values() if replica.serving]

    @property
    def ready(self) -> int:
        """Return how many replicas take requests."""
        return sum(replica.ready for replica in self.serving)


def apply(service: Service, fact: ServiceFacts) -> None:
    """Take over one fact about a service that has begun and is not over.

    Raises:
        AssertionError: The fact begins or ends a service.
    """
    match fact:
        case ServiceUpdated():
            service.spec, service.wanted = fact.spec, fact.wanted
            service.request = max(service.request, fact.number)
            before, service.revision = service.revision, fact.revision
            service.specs[fact.revision] = fact.spec
            if fact.replace:
                service.failures, service.why, service.detail = 0, None, ""
            else:
                # An update that is under way goes on: replicas before it stay to be replaced.
                for replica in service.replicas.values():
                    same = replica.revision == before
                    replica.revision = fact.revision if same else replica.revision
            _forget_specs(service)
        case ServiceScaled():
            service.wanted = fact.wanted
            service.request = max(service.request, fact.number)
            service.scaled_at, service.scaled_why = fact.at, fact.why
        case ServiceEnding():
            service.ending = fact.why
        case ReplicaAdded():
            service.added = fact.replica
            service.replicas[fact.replica] = Replica(
                number=fact.replica, revision=fact.revision, since=fact.at
            )
        case ReplicaOver():
            replica = service.replicas.pop(fact.replica)
            if fact.failed and not replica.failed:
                _fails(service, fact.why, fact.at)
            if fact.failed or replica.failed:
                service.detail = fact.detail or service.detail
            _forget_specs(service)
        case ServiceBegan() | ServiceRefused() | ServiceOver():
            raise AssertionError(fact)
        case _:
            _apply_replica(service, service.replicas[fact.replica], fact)


def _apply_replica(
    service: Service,
    replica: Replica,
    fact: ReplicaAdmitted
    | ReplicaPutOff
    | ReplicaStood
    | ReplicaHealth
    | ReplicaDraining
    | ReplicaDrained,
) -> None:
    match fact:
        case ReplicaAdmitted():
            replica.job, replica.stand, replica.since = fact.job, ReplicaStand.WAITING, fact.at
        case ReplicaPutOff():
            replica.tries, replica.retry_at = replica.tries + 1, after(fact.at, RETRY)
        case ReplicaStood():
            replica.stand, replica.since, replica.attempt = fact.stand, fact.at, fact.attempt
            replica.ready = replica.was_ready = False
        case ReplicaHealth():
            replica.ready, replica.since = fact.ready, fact.at
            replica.was_ready = replica.was_ready or fact.ready
            if fact.ready and replica.revision == service.revision:
                service.failures, service.why, service.detail = 0, None, ""
        case ReplicaDraining():
            replica.draining, replica.ready, replica.since = fact.why, False, fact.at
            replica.failed = fact.failed
            if fact.failed:
                _fails(service, fact.why, fact.at)
        case ReplicaDrained():
            replica.drained = True


def _fails(service: Service, why: Reason, at: Instant) -> None:
    service.failures += 1
    service.failed_at, service.why, service.detail = max(service.failed_at, at), why, ""


def _forget_specs(service: Service) -> None:
    kept = {service.revision, *(replica.revision for replica in service.replicas.values())}
    service.specs = {number: spec for number, spec in service.specs.items() if number in kept}


def job_of(service: Service, replica: Replica) -> JobSpec:
    """Return what a replica is submitted as."""
    spec = service.specs[replica.revision]
    job, number = spec.job, str(replica.number)
    named = {"SKEP_SERVICE": service.service, "SKEP_REPLICA": number}
    labels = {**job.labels, "service": service.service, "replica": number}
    name = f"{spec.name}-{number}"
    return msgspec.structs.replace(job, name=name, env={**job.env, **named}, labels=labels)


def key_of(service: str, replica: Replica) -> str:
    """Return the key of a replica's submission."""
    return f"{SERVICE_KEYS}{service}/{replica.number}/{replica.tries}"
