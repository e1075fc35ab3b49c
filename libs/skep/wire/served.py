"""What a gateway says every second of the services whose requests it passes on.

    gateway --Served--> searches --ReplicaLate, of a replica that takes too long--> allocator

Core messages that expire: they are about the present, and the next one says it again.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from skep.wire.bounds import LISTED_MAX, Attempt, Count, JobName, Moment, ServiceName, Token
from skep.wire.message import Message

Health = Literal["unknown", "ready", "unready"]


class ReplicaServed(Message, frozen=True):
    """A replica as a gateway finds it.

    `health` is that of this `attempt` of its job. `draining`: the gateway knows that the replica is
    to go and sends it nothing more. `open` requests it has yet to answer. Of the `answered` ones
    of the last 30 s `late` took longer to the head of the answer than the service's `latency_ms`;
    both are 0 for a service without it.
    """

    replica: Count
    attempt: Attempt
    health: Health
    draining: bool = False
    open: Count = 0
    answered: Count = 0
    late: Count = 0


class ServiceServed(Message, frozen=True):
    """A service as a gateway finds it.

    `requests` are those that came since the message before, also those that found no replica.
    `p95_ms` is the 95th percentile of the time to the head of the answer, over the last 30 s; 0:
    nothing was asked. `waiting` requests wait for a replica.
    """

    service: ServiceName
    requests: Count
    p95_ms: Count
    replicas: Annotated[tuple[ReplicaServed, ...], Meta(max_length=LISTED_MAX)] = ()
    waiting: Count = 0


class Served(Message, frozen=True, tag="served"):
    """What one gateway knows of all services, on `skep.v1.served.<gateway>`."""

    gateway: Token
    at: Moment
    services: Annotated[tuple[ServiceServed, ...], Meta(max_length=LISTED_MAX)] = ()


class ReplicaLate(Message, frozen=True, tag="replica-late"):
    """More requests to a replica than one in 20 take too long, on `skep.v1.late.replica`.

    `attempt` of `job` is the replica. Of the `answered` requests of the last 30 s, at all gateways,
    `late` took longer than `bound_ms`: so many that it is no chance. Said every second as long as
    it is so.
    """

    job: JobName
    attempt: Attempt
    at: Moment
    bound_ms: Count
    answered: Count
    late: Count
