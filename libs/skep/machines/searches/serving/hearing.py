"""What facts of admission and the allocator mean for replicas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from skep.machines.searches.requests import PASSING, by_key, whole_number
from skep.machines.searches.serving.state import Replica, Service
from skep.units import Instant
from skep.wire.codec import ServiceFact
from skep.wire.facts import Admitted, End, JobEnded, JobQueued, JobRan, JobRequeued, Refused
from skep.wire.reasons import Reason
from skep.wire.service_facts import (
    ReplicaAdmitted,
    ReplicaFact,
    ReplicaOver,
    ReplicaPutOff,
    ReplicaStand,
    ReplicaStood,
)
from skep.wire.spec import SERVICE_KEYS


def replica_of(
    services: Mapping[str, Service], jobs: Mapping[str, tuple[str, int]], fact: ServiceFact
) -> tuple[Service, Replica] | None:
    """Return the replica that a fact is about, or None.

    A job that no replica has yet says itself whose it is: by the key it was submitted with, or in
    the allocator's words by its labels. It is none of a service of which it has another owner.

    Args:
        services: The services that are not over, by id.
        jobs: By unfinished job: its service, and the number of its replica.
        fact: A fact of admission or of the allocator.
    """
    match fact:
        case Admitted() | Refused():
            vc = fact.spec.vc if isinstance(fact, Admitted) else fact.vc
            return _new(services, *by_key(fact.key, SERVICE_KEYS), (vc, fact.owner))
        case JobQueued() if fact.spec.kind == "inference":
            labels = fact.spec.labels
            replica = whole_number(labels.get("replica", ""))
            whose = (fact.spec.vc, fact.owner)
            return _new(services, labels.get("service", ""), replica, 0, whose)
        case JobRan() | JobRequeued() | JobEnded():
            place = jobs.get(fact.job)
        case _:
            return None
    if place is None:
        return None
    service = services[place[0]]
    return service, service.replicas[place[1]]


def _new(
    services: Mapping[str, Service], name: str, number: int, tried: int, whose: tuple[str, str]
) -> tuple[Service, Replica] | None:
    service = services.get(name)
    replica = service.replicas.get(number) if service is not None else None
    if service is None or replica is None or replica.stand is not ReplicaStand.NEW:
        return None
    if (service.spec.vc, service.owner) != whose:
        return None
    return (service, replica) if tried in (0, replica.tries) else None


def follows(
    service: Service, replica: Replica, fact: ServiceFact, now: Instant
) -> Iterator[ReplicaFact]:
    """Yield the facts that follow from another service's fact for the replica that it is about.

    Args:
        service: Only looked at.
        replica: Only looked at.
        fact: What `replica_of` found the replica by.
        now: The time of the decision.
    """
    name, number = service.service, replica.number
    match fact:
        case Admitted() | JobQueued():
            yield ReplicaAdmitted(service=name, replica=number, job=fact.job, at=now)
        case Refused():
            problem = fact.problems[0] if fact.problems else None
            why = problem.reason if problem is not None else Reason.BAD_VALUE
            passes = all(each.reason in PASSING for each in fact.problems)
            if replica.serving and passes:
                yield ReplicaPutOff(service=name, replica=number, why=why, at=now)
                return
            yield ReplicaOver(
                service=name,
                replica=number,
                why=why,
                at=now,
                failed=replica.serving,
                detail=problem.text if problem is not None else "",
            )
        case JobRan() if replica.stand is not ReplicaStand.RUNNING:
            yield ReplicaStood(
                service=name,
                replica=number,
                stand=ReplicaStand.RUNNING,
                at=fact.at,
                attempt=fact.attempt,
            )
        case JobRequeued() if replica.stand is not ReplicaStand.WAITING:
            yield ReplicaStood(
                service=name,
                replica=number,
                stand=ReplicaStand.WAITING,
                at=fact.at,
                attempt=fact.attempt,
            )
        case JobEnded():
            # A job that was cancelled by hand is no failure after which a service pauses.
            asked = not replica.serving or fact.end is End.CANCELLED
            yield ReplicaOver(
                service=name,
                replica=number,
                why=replica.draining or fact.why,
                at=fact.at,
                failed=not asked,
                detail=fact.detail,
            )
        case _:
            pass  # Nothing that a service has to know.
