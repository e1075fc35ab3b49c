"""How much is asked of a service, and how many replicas that needs: what a crash may forget."""

from __future__ import annotations

from collections import deque

from skep.machines.searches.serving.state import Replica, Service
from skep.units import NS_PER_SECOND, Duration, Instant, after, seconds
from skep.wire.reasons import Reason
from skep.wire.served import ServiceServed
from skep.wire.service_facts import ServiceScaled

WINDOW = seconds(30.0)
"""Over which requests are counted."""
SURE = seconds(5.0)
"""Until so much of the window is there, the number of replicas stays."""
DOWN = seconds(120.0)
"""A service has fewer replicas only once this long it needed no more: load comes back."""
LATENCY_WAIT = seconds(30.0)
"""After a change, until latency asks for another replica: it has to get ready and be felt."""
SETTLED = seconds(2.0)
"""Until messages of gateways, one each second, count no requests from before a change."""
HEARD = seconds(5.0)
"""A gateway that said nothing for so long passes nothing on: five of its messages."""
KEPT_MAX = 4096
"""Messages that are kept of a service: those of eight gateways in a window are 240."""

ANSWERS_MIN = 40
"""Answers of a replica from which on it is judged how many of them were late."""
CHANCE_SQUARED_PERCENT = 541
"""By how many standard deviations (2.326: one in a hundred by chance) late answers must be more
than they may be, squared, in hundredths."""

assert SURE < WINDOW < DOWN


def too_late(answered: int, late: int) -> bool:
    """Return whether the 95th percentile of latency is above its bound, and that is no chance.

    That is: more than one in 20 was late, by more than the spread of so many draws.

    Args:
        answered: Requests that were answered.
        late: How many of them took longer than the bound.
    """
    over = 20 * late - answered
    sure = 100 * over * over > CHANCE_SQUARED_PERCENT * 19 * answered
    return answered >= ANSWERS_MIN and over > 0 and sure


class Load:
    """What gateways said of one service."""

    def __init__(self) -> None:
        """Start with nothing heard."""
        self.heard: dict[str, tuple[Instant, ServiceServed]] = {}
        """The latest message by gateway."""
        self._asked: deque[tuple[Instant, int]] = deque(maxlen=KEPT_MAX)
        self._needs: deque[tuple[Instant, int]] = deque(maxlen=KEPT_MAX)
        self._began: Instant | None = None
        self._quiet_since: Instant | None = None
        """Since when nothing is asked or open, as far as that was heard without a break."""

    def take(self, gateway: str, said: ServiceServed, now: Instant) -> None:
        """Take over what a gateway says."""
        self._began = now if self._began is None else self._began
        silent = all(at <= now - HEARD for at, _ in self.heard.values())
        self.heard[gateway] = now, said
        busy = said.requests or said.waiting or any(one.open for one in said.replicas)
        if busy or silent or self._quiet_since is None:
            self._quiet_since = now
        self._asked.append((now, said.requests))
        while self._asked and self._asked[0][0] <= now - WINDOW:
            self._asked.popleft()

    def present(self, now: Instant) -> list[ServiceServed]:
        """Return what gateways said lately, one message for each."""
        return [said for at, said in self.heard.values() if at > now - HEARD]

    def rate_milli(self, now: Instant) -> int:
        """Return the requests of the window in thousandths per second."""
        if self._began is None:
            return 0
        length = min(WINDOW, max(seconds(1.0), Duration(now - self._began)))
        count = sum(number for at, number in self._asked if at > now - WINDOW)
        return count * 1000 * NS_PER_SECOND // length

    def p95_ms(self, now: Instant) -> int:
        """Return the highest 95th percentile of latency that a gateway sees."""
        return max((said.p95_ms for said in self.present(now)), default=0)

    def late(self, replica: Replica, now: Instant) -> tuple[int, int]:
        """Return how many requests a replica answered at all gateways, and how many late."""
        found = [
            one
            for said in self.present(now)
            for one in said.replicas
            if (one.replica, one.attempt) == (replica.number, replica.attempt)
        ]
        return sum(one.answered for one in found), sum(one.late for one in found)

    def scales(self, service: Service, now: Instant) -> ServiceScaled | None:
        """Return that a service is to have another number of replicas, or None."""
        spec = service.spec
        if spec.replicas_max is None or spec.requests_per_s is None or service.ending is not None:
            return None
        if self._began is None or not self.present(now):
            return None
        if service.wanted == 0 and spec.replicas == 0:
            return self._first(service, now)
        if now < after(self._began, SURE):
            return None
        if spec.replicas == 0 and self._idle(service, now):
            return ServiceScaled(service=service.service, wanted=0, why=Reason.SERVICE_IDLE, at=now)
        rate, p95 = self.rate_milli(now), self.p95_ms(now)
        need, why = -(-rate // (spec.requests_per_s * 1000)), Reason.REQUEST_RATE
        if spec.latency_ms is not None and 2 * p95 > spec.latency_ms:
            more = p95 > spec.latency_ms and now >= after(service.scaled_at, LATENCY_WAIT)
            # One that is not felt yet is waited for; with half of the bound none is spared.
            felt = service.wanted + (more and service.ready >= service.wanted)
            if felt > need:
                need, why = felt, Reason.LATENCY
        need = min(max(need, spec.replicas, 1), spec.most)
        if need < service.wanted:
            need = self._down_to(need, service, now)
        else:
            self._needs.clear()
        if need == service.wanted:
            return None
        return ServiceScaled(
            service=service.service, wanted=need, why=why, at=now, rate_milli=rate, p95_ms=p95
        )

    def _first(self, service: Service, now: Instant) -> ServiceScaled | None:
        """Return that a service without replicas is to have one, if something was asked of it."""
        # What was asked before all were ended, as by hand, begins none again.
        settled = after(service.scaled_at, SETTLED)
        if not any(
            said.waiting or (said.requests and at > settled)
            for at, said in self.heard.values()
            if at > max(now - HEARD, service.scaled_at)
        ):
            return None
        return ServiceScaled(
            service=service.service,
            wanted=1,
            why=Reason.REQUEST_WAITS,
            at=now,
            rate_milli=self.rate_milli(now),
        )

    def _idle(self, service: Service, now: Instant) -> bool:
        """Return whether nothing was asked for so long that no replica is to be left.

        While none is ready there was nothing to ask, so one that makes ready has `start` for it.
        """
        spec = service.spec
        if self._quiet_since is None:
            return False
        length = spec.seconds_of("idle")
        ready = [replica.since for replica in service.serving if replica.ready]
        if not ready:
            length = max(length, spec.seconds_of("start"))
        return now >= after(
            max(self._quiet_since, min(ready, default=self._quiet_since)), seconds(length)
        )

    def _down_to(self, need: int, service: Service, now: Instant) -> int:
        """Return the most that was needed lately; that there are, if that is not known yet."""
        self._needs.append((now, need))
        while len(self._needs) > 1 and self._needs[1][0] <= now - DOWN:
            self._needs.popleft()
        if self._needs[0][0] > now - DOWN:
            return service.wanted
        return max(count for _, count in self._needs)
