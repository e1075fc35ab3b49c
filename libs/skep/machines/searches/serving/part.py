"""Services: begins, watches, replaces and drains the replicas of services.

    request --ServiceBegan--> service --ServiceEnding--> ending --ServiceOver--> forgotten
    replica:  new --ReplicaAdmitted--> waiting --ReplicaStood--> running --ReplicaHealth--> ready
              any --ReplicaDraining--> draining --ReplicaDrained--> its job is cancelled
              any --ReplicaOver--> over

Replicas are ordinary jobs, submitted through SUBMIT as trials of searches are. Gateways pass
requests on, ask replicas for their health, and say every second what they found: `Served`, a core
message. Only what changes by it is recorded. What a crash forgets of it (the load, the gateways)
is heard again within seconds, and until then nothing is scaled or given up.
"""

from __future__ import annotations

from typing import Any

import msgspec

from skep.access.rights import Action, may
from skep.access.roles import Roles
from skep.machines.base import Effect, Record, Send
from skep.machines.searches.requests import begin_problem
from skep.machines.searches.serving import hearing, plan
from skep.machines.searches.serving.load import Load, too_late
from skep.machines.searches.serving.state import Replica, Service, apply, job_of, key_of
from skep.units import Instant, after, seconds
from skep.wire import subjects
from skep.wire.codec import ServiceFact
from skep.wire.reasons import Reason
from skep.wire.search_facts import SearchRequest, SearchVerdict
from skep.wire.served import ReplicaLate, Served
from skep.wire.service import ServiceSpec, service_id
from skep.wire.service_facts import (
    BeginService,
    ReplicaAdmitted,
    ReplicaOver,
    ReplicaStand,
    ScaleService,
    ServiceBegan,
    ServiceEnding,
    ServiceFacts,
    ServiceOver,
    ServiceRefused,
    ServiceScaled,
    ServiceUpdated,
    ServiceWish,
    StopService,
    UpdateService,
)
from skep.wire.spec import Problem

RESEND = seconds(5.0)
"""Until a request is repeated that nothing came of: it is answered in milliseconds."""
LATE_EVERY = seconds(1.0)
"""Between two messages that replicas of a service take too long, however many gateways say so."""
SERVICES_MAX = 32
"""Services of one VC that are not over."""
STEPS_MAX = 2000
"""Facts that may follow for one service at once: all replicas drained, and begun anew."""


class ServicesKept(msgspec.Struct, frozen=True, kw_only=True, tag="services-kept"):
    """What is kept of all services beside each of them."""

    last_begun: int


class ServiceKept(msgspec.Struct, frozen=True, tag="service-kept"):
    """A service with its replicas: 256 of them take 50 KB."""

    service: Service


class Soft:
    """What a crash may forget: what gateways said, what was sent, and when to look again."""

    def __init__(self) -> None:
        """Start with nothing heard, and everything to be asked at once."""
        self.loads: dict[str, Load] = {}
        self.sent: dict[str, dict[int, tuple[str, Instant]]] = {}
        """By service and replica: what was asked for its job, and when it is asked again."""
        self.due: dict[str, Instant | None] = {}
        self.told_late: dict[str, Instant] = {}
        """By service: when it was last said which replicas take too long."""


class Serving:
    """The part of the service `searches` that keeps services."""

    def __init__(self, roles: Roles) -> None:
        """Start without services.

        Args:
            roles: Of people, as admission has heard them.
        """
        self.services: dict[str, Service] = {}
        self.jobs: dict[str, tuple[str, int]] = {}
        """Unfinished jobs that are replicas."""
        self.last_begun = 0
        self.effects: list[Effect] = []
        """What a decision of the machine gathers."""
        self._roles, self._soft = roles, Soft()

    def restarted(self, now: Instant) -> None:
        """Do what a start has to: ask for everything anew."""
        self._soft = Soft()
        for service in list(self.services):
            self.follow(service, now)

    # --- what others say ---------------------------------------------------------------------

    def heard(self, fact: ServiceFact, now: Instant) -> bool:
        """Record what a fact of admission or the allocator means for a replica, if it is one's."""
        found = hearing.replica_of(self.services, self.jobs, fact)
        if found is None:
            return False
        for own in hearing.follows(*found, fact, now):
            self._record(own)
        self.follow(found[0].service, now)
        return True

    def served(self, said: Served, now: Instant) -> None:
        """Take over what a gateway says of services."""
        for each in said.services:
            if each.service in self.services:
                self._soft.loads.setdefault(each.service, Load()).take(said.gateway, each, now)
                self.follow(each.service, now)
                self._tell_late(each.service, now)

    def tick(self, now: Instant) -> None:
        """Do what is due."""
        for name in [
            name for name, due in self._soft.due.items() if due is not None and due <= now
        ]:
            self.follow(name, now)

    def wake_at(self) -> Instant | None:
        """Return when something is due, or None."""
        return min((due for due in self._soft.due.values() if due is not None), default=None)

    # --- requests ----------------------------------------------------------------------------

    def request(
        self, event: SearchRequest, asked: ServiceWish, now: Instant
    ) -> SearchVerdict | None:
        """Return the verdict on a request; None: it was answered before this process."""
        if isinstance(asked, BeginService):
            return self._begin(event, asked.spec, now)
        role, service = self._roles.role(event.person, event.vc), self.services.get(asked.service)
        ruling = may(Action.CHANGE, role, own=True, vc=event.vc)
        if role is not None and (service is None or service.spec.vc != event.vc):
            text = f"`{event.vc}` has no service {asked.service}, or it is over"
            return _refused(asked.service, "$.service", Reason.UNKNOWN_SERVICE, text)
        if role is not None and service is not None:
            own = event.person != "" and event.person == service.owner
            ruling = may(Action.CHANGE, role, own=own, vc=event.vc)
        if not ruling or service is None:
            assert ruling.reason is not None, ruling
            return _refused(asked.service, "$", ruling.reason, ruling.text)
        return self._change(service, asked, event.number, now)

    def _begin(self, event: SearchRequest, spec: ServiceSpec, now: Instant) -> SearchVerdict | None:
        name = service_id(event.number)
        for service in self.services.values():
            same = (service.spec.vc, service.owner, service.key) == (
                event.vc,
                event.person,
                event.key,
            )
            if service.service == name or (event.key and same):
                return SearchVerdict(search=service.service, accepted=True, reason=Reason.REPEATED)
        if event.number <= self.last_begun:  # Read again after a restart: it is answered.
            return None
        problem = self._begin_problem(event, spec)
        if problem is not None:
            self._record(ServiceRefused(service=name, vc=event.vc, problems=(problem,), at=now))
            return _refusal("", problem)
        self._record(
            ServiceBegan(service=name, spec=spec, at=now, key=event.key, owner=event.person)
        )
        return SearchVerdict(search=name, accepted=True)

    def _begin_problem(self, event: SearchRequest, spec: ServiceSpec) -> Problem | None:
        """Return why a service may not begin, or None."""
        role = self._roles.role(event.person, event.vc)
        ruling = may(Action.SUBMIT, role, own=True, vc=event.vc)
        problem = begin_problem(event, ruling, spec.vc)
        if problem is not None:
            return problem
        of_vc = [each for each in self.services.values() if each.spec.vc == event.vc]
        for each in of_vc:
            if each.spec.name == spec.name:
                return Problem(
                    path="$.spec.name",
                    reason=Reason.SERVICE_EXISTS,
                    text=f"`{event.vc}` has a service `{spec.name}` already: {each.service}",
                    suggestion="update it, or stop it first",
                )
        if len(of_vc) >= SERVICES_MAX:
            return Problem(
                path="$",
                reason=Reason.TOO_MANY_SERVICES,
                text=f"`{event.vc}` has {SERVICES_MAX} services, the most it may",
                suggestion="stop one",
            )
        return None

    def _change(
        self,
        service: Service,
        asked: UpdateService | ScaleService | StopService,
        number: int,
        now: Instant,
    ) -> SearchVerdict:
        name = service.service
        done = SearchVerdict(search=name, accepted=True)
        if isinstance(asked, StopService):
            if service.ending is None:
                self._record(ServiceEnding(service=name, why=Reason.CANCELLED, at=now))
            return done
        if service.ending is not None:
            return _refused(name, "$.service", Reason.SERVICE_ENDS, f"{name} is being stopped")
        if number <= service.request:  # Read again after a restart; what came after it stands.
            return done
        if isinstance(asked, ScaleService):
            spec = service.spec
            if spec.replicas and not asked.replicas:
                text = f"{name} has at least one replica: give it `replicas: 0`, or stop it"
                return _refused(name, "$.replicas", Reason.BAD_VALUE, text)
            if spec.replicas_max is not None and not spec.replicas <= asked.replicas <= spec.most:
                text = f"{name} has {spec.replicas} to {spec.most} replicas, by how much is asked"
                return _refused(name, "$.replicas", Reason.BAD_VALUE, text)
            if asked.replicas != service.wanted:
                self._record(
                    ServiceScaled(
                        service=name,
                        wanted=asked.replicas,
                        why=Reason.REQUESTED,
                        at=now,
                        number=number,
                    )
                )
            return done
        before, spec = service.spec, asked.spec
        for key in ("name", "vc"):
            if getattr(spec, key) != getattr(before, key):
                text = f"{name} has the {key} `{getattr(before, key)}`, which stays"
                return _refused(name, f"$.spec.{key}", Reason.BAD_VALUE, text)
        if spec != before:
            replace = (spec.job, spec.health) != (before.job, before.health)
            self._record(
                ServiceUpdated(
                    service=name,
                    spec=spec,
                    revision=service.revision + 1,
                    wanted=_wanted(service, spec),
                    at=now,
                    number=number,
                    replace=replace,
                )
            )
        return done

    # --- what follows ------------------------------------------------------------------------

    def follow(self, name: str, now: Instant) -> None:
        """Do all there is to do for a service, and say when to look again."""
        service = self.services.get(name)
        if service is not None:
            load = self._soft.loads.setdefault(name, Load())
            scaled = load.scales(service, now)
            if scaled is not None:
                self._record(scaled)
            for _ in range(STEPS_MAX):
                fact = plan.step(service, load, now)
                if fact is None:
                    break
                self._record(fact)
                if isinstance(fact, ServiceOver):
                    break
        if name not in self.services:
            soft = self._soft
            for known in (soft.loads, soft.sent, soft.due, soft.told_late):
                known.pop(name, None)
            return
        assert service is not None
        times = [plan.wake_at(service, now), *self._tell_jobs(service, now)]
        self._soft.due[name] = min((at for at in times if at is not None), default=None)

    def _tell_jobs(self, service: Service, now: Instant) -> list[Instant]:
        """Ask for what replicas' jobs are to do; return when it is asked again."""
        sent, times = self._soft.sent.setdefault(service.service, {}), []
        for replica in service.replicas.values():
            wish = wish_of(replica)
            if not wish:
                sent.pop(replica.number, None)
                continue
            what, again = sent.get(replica.number, ("", Instant(0)))
            told = f"{wish}/{replica.tries}"
            if what != told:
                again = replica.retry_at if replica.serving else now
            if again <= now:
                self._send(service, replica, wish)
                again = after(now, RESEND)
            sent[replica.number] = told, again
            times.append(again)
        for number in [number for number in sent if number not in service.replicas]:
            del sent[number]
        return times

    def _tell_late(self, name: str, now: Instant) -> None:
        """Tell the allocator of replicas whose requests take longer than their service allows."""
        service, load = self.services.get(name), self._soft.loads.get(name)
        if service is None or load is None or service.spec.latency_ms is None:
            return
        if now < after(self._soft.told_late.get(name, Instant(0)), LATE_EVERY):
            return
        for replica in service.serving:
            answered, late = load.late(replica, now)
            if replica.ready and too_late(answered, late):
                self._soft.told_late[name] = now
                told = ReplicaLate(
                    job=replica.job,
                    attempt=replica.attempt,
                    at=now,
                    bound_ms=service.spec.latency_ms,
                    answered=answered,
                    late=late,
                )
                self.effects.append(Send(subjects.LATE, told))

    def _send(self, service: Service, replica: Replica, wish: str) -> None:
        # The job is the person's that began the service. Skep cancels it itself, as the VC.
        vc = service.spec.vc
        if wish == "cancel":
            self.effects.append(Send(subjects.cancel(vc), {"job": replica.job}))
            return
        headers = {subjects.KEY_HEADER: key_of(service.service, replica)}
        job = job_of(service, replica)
        self.effects.append(Send(subjects.submit(vc, service.owner), job, headers))

    # --- state -------------------------------------------------------------------------------

    def _record(self, fact: ServiceFacts) -> None:
        self.apply(fact)
        self.effects.append(Record(fact))

    def apply(self, fact: ServiceFacts) -> None:
        """Take over one fact."""
        match fact:
            case ServiceBegan():
                self.last_begun = max(self.last_begun, int(fact.service[1:]))
                self.services[fact.service] = Service(
                    service=fact.service,
                    spec=fact.spec,
                    began_at=fact.at,
                    wanted=fact.spec.replicas,
                    key=fact.key,
                    owner=fact.owner,
                    specs={1: fact.spec},
                )
            case ServiceRefused():
                self.last_begun = max(self.last_begun, int(fact.service[1:]))
            case ServiceOver():
                del self.services[fact.service]
            case _:
                service = self.services[fact.service]
                if isinstance(fact, ReplicaAdmitted):
                    self.jobs[fact.job] = fact.service, fact.replica
                elif isinstance(fact, ReplicaOver):
                    self.jobs.pop(service.replicas[fact.replica].job, None)
                apply(service, fact)

    def snapshot(self) -> list[Any]:
        """Return what rebuilds this state without history."""
        if not self.services and not self.last_begun:
            return []
        kept: list[Any] = [ServicesKept(last_begun=self.last_begun)]
        return kept + [ServiceKept(service) for service in self.services.values()]

    def restore(self, kept: ServicesKept | ServiceKept) -> None:
        """Take over a piece of a snapshot."""
        if isinstance(kept, ServicesKept):
            self.last_begun = kept.last_begun
            return
        service = kept.service
        self.services[service.service] = service
        self.jobs.update(
            (replica.job, (service.service, replica.number))
            for replica in service.replicas.values()
            if replica.job
        )

    def check(self) -> None:
        """Assert that jobs and replicas agree, and that no service has more than it may.

        Raises:
            AssertionError: They do not, or one has.
        """
        jobs = {}
        for service in self.services.values():
            assert service.wanted >= min(1, service.spec.replicas), service.service
            for number, replica in service.replicas.items():
                assert number == replica.number <= service.added, replica
                assert replica.revision in service.specs, replica
                assert (replica.job == "") == (replica.stand is ReplicaStand.NEW), replica
                assert not replica.ready or replica.stand is ReplicaStand.RUNNING, replica
                if replica.job:
                    jobs[replica.job] = service.service, number
        assert jobs == self.jobs


def wish_of(replica: Replica) -> str:
    """Return what is to be asked for a replica's job.

    A submission is repeated even if the replica is to go: whether an earlier one arrived is known
    only by its answer, and then the job can be cancelled.

    Returns:
        `submit` or `cancel`; empty: nothing.
    """
    if replica.stand is ReplicaStand.NEW:
        return "submit"
    return "cancel" if replica.drained else ""


def _wanted(service: Service, spec: ServiceSpec) -> int:
    """Return how many replicas an updated service is to have: as before, if it follows requests."""
    if spec.replicas_max is None:
        same = spec.replicas == service.spec.replicas and service.spec.replicas_max is None
        return service.wanted if same else spec.replicas
    return min(max(service.wanted, spec.replicas), spec.most)


def _refused(service: str, path: str, reason: Reason, text: str) -> SearchVerdict:
    return _refusal(service, Problem(path=path, reason=reason, text=text))


def _refusal(service: str, problem: Problem) -> SearchVerdict:
    return SearchVerdict(search=service, accepted=False, reason=problem.reason, problems=(problem,))
