"""Golden examples of what is said about services."""

from __future__ import annotations

import msgspec

from skep.units import Instant
from skep.wire import service_facts as facts
from skep.wire.reasons import Reason
from skep.wire.served import ReplicaLate, ReplicaServed, Served, ServiceServed
from skep.wire.service import ServiceSpec
from skep.wire.spec import JobSpec, Problem, Resources

AT = Instant(1_760_000_000_000_000_000)
ONE = "v16"

SERVICE_SPEC = ServiceSpec(
    name="llm",
    vc="nlp",
    job=JobSpec(
        name="llm",
        vc="nlp",
        kind="inference",
        command="vllm serve /data/models/small --host $SKEP_ADDRESS --port $SKEP_PORT",
        resources=Resources(gpus=1),
    ),
    replicas=2,
    replicas_max=6,
    requests_per_s=20,
    latency_ms=400,
    health="/health",
)

SERVICE_REQUESTS: tuple[msgspec.Struct, ...] = (
    facts.BeginService(spec=SERVICE_SPEC),
    facts.UpdateService(service=ONE, spec=SERVICE_SPEC),
    facts.ScaleService(service=ONE, replicas=3),
    facts.StopService(service=ONE),
)

SERVED: tuple[msgspec.Struct, ...] = (
    Served(
        gateway="gateway",
        at=AT,
        services=(
            ServiceServed(
                service=ONE,
                requests=41,
                p95_ms=380,
                replicas=(
                    ReplicaServed(
                        replica=3, attempt=1, health="ready", open=7, answered=410, late=33
                    ),
                    ReplicaServed(replica=1, attempt=1, health="ready", draining=True, open=2),
                ),
            ),
        ),
    ),
)

LATE: tuple[msgspec.Struct, ...] = (
    ReplicaLate(job="j22", attempt=1, at=AT, bound_ms=400, answered=410, late=33),
)

SERVICE_FACTS: tuple[msgspec.Struct, ...] = (
    facts.ServiceBegan(service=ONE, spec=SERVICE_SPEC, at=AT, key="night", owner="ann"),
    facts.ServiceRefused(
        service="v17",
        vc="nlp",
        at=AT,
        problems=(
            Problem(path="$.spec.name", reason=Reason.SERVICE_EXISTS, text="it has one already"),
        ),
    ),
    facts.ServiceUpdated(
        service=ONE, spec=SERVICE_SPEC, revision=2, wanted=2, at=AT, number=21, replace=True
    ),
    facts.ServiceScaled(
        service=ONE, wanted=3, why=Reason.REQUEST_RATE, at=AT, rate_milli=41_000, p95_ms=380
    ),
    facts.ReplicaAdded(service=ONE, replica=3, revision=2, at=AT),
    facts.ReplicaAdmitted(service=ONE, replica=3, job="j22", at=AT),
    facts.ReplicaPutOff(service=ONE, replica=4, why=Reason.OVER_QUOTA, at=AT),
    facts.ReplicaStood(service=ONE, replica=3, stand=facts.ReplicaStand.RUNNING, at=AT, attempt=1),
    facts.ReplicaHealth(service=ONE, replica=3, ready=True, at=AT),
    facts.ReplicaDraining(service=ONE, replica=1, why=Reason.OTHER_REVISION, at=AT),
    facts.ReplicaDrained(service=ONE, replica=1, at=AT, open=0),
    facts.ReplicaOver(service=ONE, replica=1, why=Reason.OTHER_REVISION, at=AT),
    facts.ServiceEnding(service=ONE, why=Reason.CANCELLED, at=AT),
    facts.ServiceOver(service=ONE, why=Reason.CANCELLED, at=AT, replicas=9),
)
