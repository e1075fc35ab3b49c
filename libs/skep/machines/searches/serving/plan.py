"""What a service does next: one fact at a time, from what is known of its replicas.

    an update, 2 replicas, surge 1:   1 2 -> 1 2 3 -> 2 3 (1 drains) -> 2 3 4 -> 3 4 (2 drains)

A replica that answers requests goes only when enough others are ready. So an update to something
that never gets ready ends no replica that works: it waits, with one replica beside the others,
until the next update. Replicas that fail are begun anew after 1 s, 2 s, 4 s and so on, up to a
minute.
"""

from __future__ import annotations

from collections.abc import Sequence

from skep.machines.searches.serving.load import Load
from skep.machines.searches.serving.state import Replica, Service
from skep.units import Instant, after, seconds
from skep.wire.reasons import Reason
from skep.wire.service_facts import (
    ReplicaAdded,
    ReplicaDrained,
    ReplicaDraining,
    ReplicaHealth,
    ReplicaStand,
    ServiceFacts,
    ServiceOver,
)

PAUSES_S = (1, 2, 4, 8, 16, 32, 60)
"""Until a replica is begun after one that failed, by how many failed on end."""


def step(service: Service, load: Load, now: Instant) -> ServiceFacts | None:
    """Return the next fact that follows for a service, or None.

    Args:
        service: Only looked at.
        load: What gateways say of it.
        now: The time of the decision.
    """
    return (
        _health(service, load, now)
        or _useless(service, load, now)
        or _drained(service, load, now)
        or (_end(service, now) if service.ending is not None else _change(service, now))
    )


def wake_at(service: Service, now: Instant) -> Instant | None:
    """Return when something follows for a service by itself, or None."""
    spec, times = service.spec, []
    for replica in service.replicas.values():
        if not replica.serving and not replica.drained:
            times.append(after(replica.since, seconds(spec.seconds_of("drain"))))
        elif replica.serving and replica.stand is ReplicaStand.RUNNING and not replica.ready:
            times.append(_useless_at(service, replica))
    if service.failures and service.ending is None:
        times.append(_begins_at(service))
    return min((at for at in times if at > now), default=None)


def _health(service: Service, load: Load, now: Instant) -> ReplicaHealth | None:
    """Return that a replica became ready or unready: as most of the gateways find that tell."""
    present = load.present(now)
    for replica in service.serving:
        if replica.stand is not ReplicaStand.RUNNING:
            continue
        found = [
            one.health == "ready"
            for said in present
            for one in said.replicas
            if one.replica == replica.number
            and one.attempt >= replica.attempt
            and one.health != "unknown"
        ]
        ready = 2 * sum(found) > len(found) or (replica.ready and 2 * sum(found) == len(found))
        if found and ready != replica.ready:
            return ReplicaHealth(
                service=service.service, replica=replica.number, ready=ready, at=now
            )
    return None


def _useless_at(service: Service, replica: Replica) -> Instant:
    length = service.spec.seconds_of("unhealthy" if replica.was_ready else "start")
    return after(replica.since, seconds(length))


def _useless(service: Service, load: Load, now: Instant) -> ReplicaDraining | None:
    """Return that a replica is given up which a gateway finds unready, and has for too long."""
    unready = {
        one.replica
        for said in load.present(now)
        for one in said.replicas
        if one.health == "unready"
    }
    for replica in service.serving:
        runs = replica.stand is ReplicaStand.RUNNING and not replica.ready
        if runs and replica.number in unready and now >= _useless_at(service, replica):
            return _drain(service, replica, Reason.REPLICA_UNREADY, now, failed=True)
    return None


def _drained(service: Service, load: Load, now: Instant) -> ReplicaDrained | None:
    """Return that a replica has answered what it had, or has had its time for it."""
    present = load.present(now)
    for replica in service.replicas.values():
        if replica.serving or replica.drained:
            continue
        said = [one for each in present for one in each.replicas if one.replica == replica.number]
        left = sum(one.open for one in said)
        over = now >= after(replica.since, seconds(service.spec.seconds_of("drain")))
        idle = bool(said) and len(said) == len(present) and left == 0
        idle = idle and all(one.draining for one in said)
        if over or idle or replica.stand is not ReplicaStand.RUNNING:
            return ReplicaDrained(
                service=service.service, replica=replica.number, at=now, open=left
            )
    return None


def _end(service: Service, now: Instant) -> ReplicaDraining | ServiceOver | None:
    assert service.ending is not None
    for replica in service.serving:
        return _drain(service, replica, service.ending, now)
    if service.replicas:
        return None
    return ServiceOver(service=service.service, why=service.ending, at=now, replicas=service.added)


def _change(service: Service, now: Instant) -> ServiceFacts | None:
    """Return which replica to begin or to drain, or None."""
    serving = service.serving
    current = [replica for replica in serving if replica.revision == service.revision]
    old = [replica for replica in serving if replica.revision != service.revision]
    if len(current) > service.wanted:
        return _drain(service, _least(current), Reason.FEWER_REPLICAS, now)
    going = _old_to_go(service, old, current)
    if going is not None:
        return _drain(service, going, Reason.OTHER_REVISION, now)
    room = service.wanted + (service.spec.surge if old else 0) - len(serving)
    if room > 0 and len(current) < service.wanted and now >= _begins_at(service):
        return ReplicaAdded(
            service=service.service, replica=service.added + 1, revision=service.revision, at=now
        )
    return None


def _old_to_go(
    service: Service, old: Sequence[Replica], current: Sequence[Replica]
) -> Replica | None:
    """Return a replica of an earlier revision that is not needed any more, or None."""
    for replica in old:
        if not replica.was_ready:
            return replica  # It answers nothing yet, and may have the place of one that will.
    # One that is unready for a moment works; one that is so for long is given up anyway.
    unready = [replica for replica in old if not replica.ready]
    if unready and any(replica.ready for replica in current):
        return unready[0]
    if service.spec.surge:
        return old[0] if old and service.ready > service.wanted else None
    if not old or len(old) + len(current) < service.wanted:
        return None
    if service.ready >= service.wanted:
        return (unready or old)[0]
    return unready[0] if unready and all(one.ready for one in current) else None


def _least(replicas: Sequence[Replica]) -> Replica:
    """Return the replica that is missed the least: not ready, then the latest."""
    return min(
        replicas, key=lambda one: (one.ready, one.stand is ReplicaStand.RUNNING, -one.number)
    )


def _begins_at(service: Service) -> Instant:
    if not service.failures:
        return Instant(0)
    pause_s = PAUSES_S[min(service.failures, len(PAUSES_S)) - 1]
    return after(service.failed_at, seconds(pause_s))


def _drain(
    service: Service, replica: Replica, why: Reason, now: Instant, *, failed: bool = False
) -> ReplicaDraining:
    return ReplicaDraining(
        service=service.service, replica=replica.number, why=why, at=now, failed=failed
    )
