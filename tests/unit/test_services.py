"""Services: replicas are begun, replaced, drained and scaled, whatever fails meanwhile."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from skep.machines.base import Send, Tick
from skep.machines.searches import SearchesMachine
from skep.machines.searches.serving.state import Service
from skep.units import Instant, seconds
from skep.wire import subjects
from skep.wire.codec import Facts, encode
from skep.wire.facts import Admitted, End, JobEnded, JobQueued, JobRan, JobRequeued, Refused
from skep.wire.reasons import Reason
from skep.wire.search_facts import SearchRequest, SearchVerdict
from skep.wire.served import ReplicaLate, ReplicaServed, Served, ServiceServed
from skep.wire.service import ServiceSpec, parse_service_tree
from skep.wire.service_facts import ReplicaDraining, ReplicaOver, ServiceOver, ServiceScaled
from skep.wire.spec import JobSpec, Problem
from tests.kit import Driver

EVERY = seconds(1.0)


def tree(**changes: Any) -> dict[str, Any]:
    """Return a service as its owner writes it."""
    given = {
        "name": "llm",
        "vc": "nlp",
        "job": {"command": "python serve.py --port $SKEP_PORT"},
        "replicas": 2,
        "health": "/health",
        "drain": 20,
        "start": 60,
        "unhealthy": 10,
    }
    return {**given, **changes}


class World:
    """Admission, the allocator and one gateway, as a page of rules."""

    def __init__(self) -> None:
        self.driver = Driver(SearchesMachine)
        self.number = 0
        self.jobs: dict[str, JobSpec] = {}
        self.keys: dict[str, str] = {}
        self.cancelled: dict[str, None] = {}
        self.sick: set[int] = set()
        """Replicas that never get ready."""
        self.open: dict[int, int] = {}
        self.asked = 0
        """Requests a second."""
        self.p95_ms = 5
        self.waiting = 0
        """Requests that wait for a replica."""
        self.answers: dict[int, tuple[int, int]] = {}
        """By replica: the answers of the window, and how many of them were late."""
        self.refuse: Reason | None = None
        self.gpus = 100
        self.running: set[str] = set()
        self.driver.restart(0)

    @property
    def service(self) -> Service:
        (found,) = self.driver.machine.serving.services.values()
        return found

    def of(self, kind: type[Any]) -> list[Any]:
        return [fact for fact in self.driver.facts if isinstance(fact, kind)]

    def ask(self, key: str = "", number: int = 0, **request: Any) -> SearchVerdict | None:
        self.number += 1
        asked = SearchRequest(
            vc="nlp",
            raw=json.dumps(request).encode(),
            at=self.driver.now,
            key=key,
            number=number or self.number,
            reply="_INBOX.vc-nlp.x",
        )
        effects = self.event(asked)
        said = [one.message for one in effects if isinstance(one, Send)]
        told = [one for one in said if isinstance(one, SearchVerdict)]
        return told[0] if told else None

    def event(self, event: Any) -> list[Any]:
        effects = self.driver(event)
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, JobSpec):
                self.submitted(effect.message, effect.headers[subjects.KEY_HEADER])
            elif isinstance(effect, Send) and isinstance(effect.message, dict):
                self.cancelled[effect.message["job"]] = None
        return effects

    def submitted(self, spec: JobSpec, key: str) -> None:
        if key in self.keys:
            return
        self.number += 1
        job = self.keys[key] = f"j{self.number}"
        if self.refuse is not None:
            problem = Problem(path="$", reason=self.refuse, text="no room")
            self.says(
                Refused(
                    job=job, vc="nlp", problems=(problem,), key=key, submitted_at=self.driver.now
                )
            )
            return
        self.jobs[job] = spec
        self.says(Admitted(job=job, spec=spec, key=key, submitted_at=self.driver.now))
        self.says(JobQueued(job=job, spec=spec, submitted_at=self.driver.now))

    def says(self, fact: Any) -> None:
        self.event(Facts(service="allocator", at=self.driver.now, facts=(fact,)))

    def ends(self, job: str, end: End = End.FAILED, why: Reason = Reason.EXITED_NONZERO) -> None:
        self.jobs.pop(job)
        self.running.discard(job)
        self.cancelled.pop(job, None)
        self.says(JobEnded(job=job, end=end, why=why, attempts=1, at=self.driver.now))

    def second(self, count: int = 1) -> None:
        """Let jobs start and end, and the gateway say what it finds, second by second."""
        for _ in range(count):
            self.driver.now = Instant(self.driver.now + EVERY)
            for job in list(self.cancelled):
                if job in self.jobs:
                    self.ends(job, End.CANCELLED, Reason.CANCELLED)
            for job in list(self.jobs):
                if job not in self.running and len(self.running) < self.gpus:
                    self.running.add(job)
                    self.says(JobRan(job=job, attempt=1, at=self.driver.now))
            self.gateway()
            wake = self.driver.machine.wake_at()
            if wake is not None and wake <= self.driver.now:
                self.event(Tick())

    def gateway(self) -> list[Any]:
        services = []
        for service in self.driver.machine.serving.services.values():
            rows = tuple(
                ReplicaServed(
                    replica=each.number,
                    attempt=1,
                    health="unready" if each.number in self.sick else "ready",
                    draining=not each.serving,
                    open=self.open.get(each.number, 0),
                    answered=self.answers.get(each.number, (0, 0))[0],
                    late=self.answers.get(each.number, (0, 0))[1],
                )
                for each in service.replicas.values()
                if each.job in self.running
            )
            services.append(
                ServiceServed(
                    service=service.service,
                    requests=self.asked,
                    p95_ms=self.p95_ms,
                    waiting=self.waiting,
                    replicas=rows,
                )
            )
        return self.event(Served(gateway="gateway", at=self.driver.now, services=tuple(services)))

    def ready(self) -> list[int]:
        return [one.number for one in self.service.replicas.values() if one.ready]


def begun(**changes: Any) -> World:
    world = World()
    verdict = world.ask(do="serve", spec=tree(**changes))
    assert verdict is not None
    assert verdict.accepted, verdict
    world.second(3)
    return world


def test_replicas_are_jobs_of_kind_inference_and_get_ready() -> None:
    world = begun()
    assert world.ready() == [1, 2]
    spec = next(iter(world.jobs.values()))
    assert (spec.kind, spec.name) == ("inference", "llm-1")
    assert spec.labels == {"service": "v1", "replica": "1"}
    assert spec.env == {"SKEP_SERVICE": "v1", "SKEP_REPLICA": "1"}
    assert list(world.keys) == ["service/v1/1/1", "service/v1/2/1"]


def test_a_replica_that_ends_is_replaced_after_a_second_and_then_later_and_later() -> None:
    world = begun()
    world.ends(world.service.replicas[1].job)
    assert (list(world.service.replicas), world.service.failures) == ([2], 1)
    world.second(3)
    assert world.ready() == [2, 3]
    assert world.service.failures == 0
    world.sick = set(range(4, 100))
    for pause in (1, 2, 4, 8):
        latest = max(world.service.replicas)
        world.ends(world.service.replicas[latest].job)
        world.second(pause - 1)
        assert max(world.service.replicas) < latest + 1
        world.second(2)
        assert max(world.service.replicas) == latest + 1


def test_an_update_never_has_less_than_it_is_to_have() -> None:
    world = begun(replicas=3)
    assert world.ask(do="update", service="v1", spec=tree(replicas=3, job={"command": "new"}))
    for _ in range(30):
        assert len(world.ready()) >= 3
        assert len(world.service.serving) <= 4
        world.second()
    assert world.ready() == [4, 5, 6]
    assert {job.command for job in world.jobs.values()} == {"new"}
    assert [fact.why for fact in world.of(ReplicaOver)] == [Reason.OTHER_REVISION] * 3


def test_an_update_in_place_lacks_one_replica_at_most_and_needs_no_gpu_more() -> None:
    world = begun(replicas=3, surge=0)
    world.ask(do="update", service="v1", spec=tree(replicas=3, surge=0, job={"command": "new"}))
    for _ in range(30):
        assert len(world.ready()) >= 2
        assert len(world.service.serving) <= 3
        world.second()
    assert world.ready() == [4, 5, 6]


def test_an_update_that_never_gets_ready_ends_no_replica_that_works() -> None:
    world = begun()
    world.sick = set(range(3, 100))
    world.ask(do="update", service="v1", spec=tree(job={"command": "broken"}))
    world.second(300)
    assert world.ready() == [1, 2]
    assert world.service.failures >= 2
    assert world.service.why is Reason.REPLICA_UNREADY
    world.sick = set()
    world.ask(do="update", service="v1", spec=tree(job={"command": "mended"}))
    world.second(30)
    assert len(world.ready()) == 2
    assert {job.command for job in world.jobs.values()} == {"mended"}


def test_an_update_does_not_wait_for_one_before_it_that_never_gets_ready() -> None:
    world = begun()
    world.sick = {3}
    world.ask(do="update", service="v1", spec=tree(job={"command": "hangs"}))
    world.second(5)
    assert (world.ready(), list(world.service.replicas)) == ([1, 2], [1, 2, 3])
    world.ask(do="update", service="v1", spec=tree(job={"command": "works"}))
    world.second(20)
    assert world.service.failures == 0
    assert {each.revision for each in world.service.replicas.values()} == {3}
    assert len(world.ready()) == 2


@pytest.mark.parametrize("surge", [0, 1])
def test_an_update_that_never_gets_ready_ends_no_replica_that_is_unready_for_a_moment(
    surge: int,
) -> None:
    world = begun(surge=surge, replicas=3)
    world.sick = set(range(4, 100))
    world.ask(do="update", service="v1", spec=tree(job={"command": "bad"}, surge=surge, replicas=3))
    world.second(10)
    before = world.ready()
    assert len(before) == 2 + surge
    world.sick |= set(before)
    world.second(5)
    world.sick -= set(before)
    world.second(5)
    assert world.ready() == before


def test_an_update_in_place_begins_with_a_replica_that_is_unready() -> None:
    world = begun(surge=0)
    world.sick = {2}
    world.second(5)
    world.ask(do="update", service="v1", spec=tree(job={"command": "new"}, surge=0))
    assert [each.replica for each in world.of(ReplicaDraining)] == [2]
    world.second(20)
    assert {each.revision for each in world.service.replicas.values()} == {2}


def test_numbers_alone_replace_no_replica() -> None:
    world = begun()
    world.ask(do="update", service="v1", spec=tree(replicas=3, drain=5))
    world.second(3)
    assert world.ready() == [1, 2, 3]
    assert world.service.spec.drain == 5


def test_numbers_alone_do_not_end_an_update_that_is_under_way() -> None:
    world = begun()
    world.gpus = 2
    world.ask(do="update", service="v1", spec=tree(job={"command": "new"}))
    world.second(5)
    assert world.ready() == [1, 2], "the update waits for a GPU"
    world.ask(do="update", service="v1", spec=tree(job={"command": "new"}, surge=0))
    world.second(30)
    assert {job.command for job in world.jobs.values()} == {"new"}
    assert len(world.ready()) == 2
    assert {each.revision for each in world.service.replicas.values()} == {3}


def test_a_replica_drains_until_it_has_answered_or_its_time_is_over() -> None:
    world = begun()
    world.open = {2: 3}
    world.ask(do="scale", service="v1", replicas=1)
    world.second(5)
    assert not world.of(ReplicaOver)
    world.open = {}
    world.second(2)
    assert [fact.replica for fact in world.of(ReplicaOver)] == [2]

    world = begun()
    world.open = {2: 1}
    world.ask(do="scale", service="v1", replicas=1)
    world.second(19)
    assert not world.of(ReplicaOver)
    world.second(3)
    assert [fact.replica for fact in world.of(ReplicaOver)] == [2]


def test_a_replica_that_is_unready_for_too_long_is_replaced() -> None:
    world = begun()
    world.sick = {1}
    world.second(1)
    assert world.ready() == [2]
    world.second(9)
    assert not world.of(ReplicaDraining)
    world.second(5)
    assert world.ready() == [2, 3]
    (draining,) = world.of(ReplicaDraining)
    assert (draining.replica, draining.why, draining.failed) == (1, Reason.REPLICA_UNREADY, True)


def test_nothing_is_given_up_while_no_gateway_is_heard() -> None:
    world = begun()
    world.sick = {1}
    world.second(1)
    world.driver.now = Instant(world.driver.now + seconds(300.0))
    world.event(Tick())
    assert not world.of(ReplicaDraining)


def test_a_job_that_loses_its_gpus_is_no_failure_and_is_waited_for() -> None:
    world = begun()
    job = world.service.replicas[1].job
    world.running.discard(job)
    world.gpus = 1
    world.says(
        JobRequeued(job=job, attempt=1, why=Reason.PREEMPTED, counted=False, at=world.driver.now)
    )
    world.second(100)
    assert world.ready() == [2]
    world.gpus = 2
    world.second(2)
    assert world.ready() == [1, 2]
    assert not world.of(ReplicaDraining)


def test_what_is_refused_for_now_is_submitted_again_and_what_is_wrong_is_told() -> None:
    world = World()
    world.refuse = Reason.OVER_QUOTA
    world.ask(do="serve", spec=tree(replicas=1))
    world.second(29)
    assert list(world.keys) == ["service/v1/1/1"]
    world.refuse = None
    world.second(4)
    assert list(world.keys) == ["service/v1/1/1", "service/v1/1/2"]
    assert world.ready() == [1]

    world = World()
    world.refuse = Reason.BAD_VALUE
    world.ask(do="serve", spec=tree(replicas=1))
    assert (world.service.failures, world.service.detail) == (1, "no room")
    world.ask(do="stop", service="v1")
    assert [fact.why for fact in world.of(ServiceOver)] == [Reason.CANCELLED]


def test_replicas_follow_requests_up_at_once_and_down_after_two_minutes() -> None:
    world = begun(replicas=1, replicas_max=4, requests_per_s=10)
    world.asked = 25
    world.second(40)
    assert len(world.ready()) == 3
    world.asked = 1000
    world.second(40)
    assert len(world.ready()) == 4
    world.asked = 0
    world.second(100)
    assert len(world.ready()) == 4
    world.second(80)
    assert len(world.ready()) == 1
    assert {fact.why for fact in world.of(ServiceScaled)} == {Reason.REQUEST_RATE}


def test_latency_asks_for_one_replica_after_another_and_keeps_what_it_needs() -> None:
    world = begun(replicas=1, replicas_max=3, requests_per_s=1000, latency_ms=100)
    world.asked, world.p95_ms = 10, 150
    world.second(20)
    assert len(world.ready()) == 2
    world.p95_ms = 80
    world.second(300)
    assert len(world.ready()) == 2
    world.p95_ms = 20
    world.second(160)
    assert len(world.ready()) == 1


NONE = {"replicas": 0, "replicas_max": 3, "requests_per_s": 10, "idle": 60, "start": 90}
"""Of a service that has replicas only while it is asked."""


def test_a_request_begins_a_replica_and_after_the_idle_time_none_is_left() -> None:
    world = begun(**NONE)
    world.second(30)
    assert not world.jobs
    world.waiting = 1
    world.second(2)
    world.waiting = 0
    assert world.ready() == [1]
    world.second(50)
    world.asked = 1
    world.second()
    world.asked = 0
    world.second(59)
    assert world.ready() == [1]
    world.second(3)
    assert not world.jobs
    assert [(fact.wanted, fact.why) for fact in world.of(ServiceScaled)] == [
        (1, Reason.REQUEST_WAITS),
        (0, Reason.SERVICE_IDLE),
    ]
    assert world.of(ReplicaOver)[-1].why is Reason.FEWER_REPLICAS
    world.asked = 25  # It goes up from nothing to what is needed.
    world.second(40)
    assert len(world.ready()) == 3


def test_a_service_with_an_open_request_is_not_idle_and_a_slow_start_has_its_time() -> None:
    world = begun(**NONE)
    world.sick = {1}
    world.waiting = 1
    world.second(2)
    world.waiting = 0
    world.second(80)
    assert list(world.service.replicas) == [1]
    world.sick, world.open = set(), {1: 1}
    world.second(100)
    assert world.ready() == [1]
    world.open = {}
    world.second(63)
    assert not world.jobs


def test_nothing_is_idle_that_was_not_heard_without_a_break() -> None:
    world = begun(**NONE)
    world.waiting = 1
    world.second(2)
    world.waiting = 0
    world.driver.now = Instant(world.driver.now + seconds(600.0))
    world.second(59)
    assert world.ready() == [1]
    world.driver.restart()
    world.second(59)
    assert world.ready() == [1]
    world.second(5)
    assert not world.jobs
    world.driver.restart()
    world.second(100)
    assert not world.jobs


def test_people_scale_to_zero_only_what_may_have_none() -> None:
    world = begun(**NONE)
    world.ask(do="scale", service="v1", replicas=2)
    world.second(3)
    assert world.ready() == [1, 2]
    verdict = world.ask(do="scale", service="v1", replicas=0)
    assert verdict is not None
    assert verdict.accepted
    world.second(3)
    assert not world.jobs
    world.ask(do="update", service="v1", spec=tree(replicas=1))
    world.second(3)
    assert world.ready() == [3]


def test_what_was_asked_before_all_were_ended_begins_none_again() -> None:
    world = begun(replicas=0, replicas_max=4, requests_per_s=5)
    world.asked = 40
    world.second(10)
    assert len(world.ready()) == 4
    world.ask(do="scale", service="v1", replicas=0)
    world.second()  # What the gateway counts then came before.
    world.asked = 0
    world.second(8)
    assert (world.service.wanted, world.ready()) == (0, [])
    world.asked = 1
    world.second(3)
    assert world.ready()


def test_what_several_gateways_pass_on_adds_up() -> None:
    world = begun(replicas=1, replicas_max=4, requests_per_s=10)
    world.asked = 11
    for _ in range(40):
        world.second()
        said = ServiceServed(service="v1", requests=9, p95_ms=5)
        world.event(Served(gateway="other", at=world.driver.now, services=(said,)))
    assert world.service.wanted == 2
    assert world.of(ServiceScaled)[-1].rate_milli in range(10_000, 20_001)


def test_the_allocator_learns_which_replica_is_late_at_all_gateways_together() -> None:
    job = {"command": "serve", "resources": {"gpus": 0.5}}
    world = begun(replicas=2, latency_ms=100, job=job)
    world.answers = {1: (60, 6), 2: (60, 3)}
    assert said_late(world, other=(0, 0)) == []
    (late,) = said_late(world, other=(60, 6))
    assert (late.job, late.attempt) == (world.service.replicas[1].job, 1)
    assert (late.bound_ms, late.answered, late.late) == (100, 120, 12)
    # An earlier attempt says nothing of this one, and without a bound nothing is said.
    assert said_late(world, other=(60, 60), attempt=0) == []
    world.ask(do="update", service="v1", spec=tree(job=job))
    assert said_late(world, other=(60, 60)) == []


def said_late(world: World, other: tuple[int, int], attempt: int = 1) -> list[ReplicaLate]:
    """Return what is said in a second in which another gateway found this of replica 1."""
    world.driver.now = Instant(world.driver.now + EVERY)
    rows = ReplicaServed(
        replica=1, attempt=attempt, health="ready", answered=other[0], late=other[1]
    )
    of = ServiceServed(service="v1", requests=0, p95_ms=5, replicas=(rows,))
    effects = world.event(Served(gateway="other", at=world.driver.now, services=(of,)))
    effects += world.gateway()
    return [
        each.message
        for each in effects
        if isinstance(each, Send) and isinstance(each.message, ReplicaLate)
    ]


def test_stopping_drains_every_replica_and_ends_once() -> None:
    world = begun()
    world.ask(do="stop", service="v1")
    world.second(3)
    assert not world.jobs
    assert [(fact.replicas, fact.why) for fact in world.of(ServiceOver)] == [(2, Reason.CANCELLED)]
    verdict = world.ask(do="scale", service="v1", replicas=3)
    assert verdict is not None
    assert verdict.reason is Reason.UNKNOWN_SERVICE


def test_a_restart_and_requests_read_again_change_nothing() -> None:
    world = begun()
    world.ask(do="scale", service="v1", replicas=3)
    scaled = world.number
    world.second(3)
    world.ask(do="scale", service="v1", replicas=2)
    world.second(3)
    facts = len(world.driver.facts)
    world.driver.restart()
    world.ask(do="serve", spec=tree(), number=1)
    world.ask(do="scale", service="v1", replicas=3, number=scaled)
    world.second(2)
    assert [
        fact for fact in world.driver.facts[facts:] if type(fact).__name__ != "EpochBegan"
    ] == []
    assert world.ready() == [1, 2]


def test_a_snapshot_rebuilds_it() -> None:
    world = begun()
    world.ask(do="update", service="v1", spec=tree(job={"command": "new"}))
    again = SearchesMachine()
    for piece in world.driver.machine.snapshot():
        again.apply(msgspec.json.decode(encode(piece), type=type(piece)))
    again.check()
    assert again.serving.services == world.driver.machine.serving.services
    assert again.serving.jobs == world.driver.machine.serving.jobs


@pytest.mark.parametrize(
    "request_, reason",
    [
        ({"do": "serve", "spec": tree(name="llm")}, Reason.SERVICE_EXISTS),
        ({"do": "serve", "spec": tree(vc="cv")}, Reason.WRONG_VC),
        ({"do": "serve"}, Reason.MISSING_KEY),
        ({"do": "serve", "spec": tree(), "x": 1}, Reason.UNKNOWN_KEY),
        ({"do": "scale", "service": "v1", "replicas": 0}, Reason.BAD_VALUE),
        ({"do": "scale", "service": "v1", "replicas": -1}, Reason.BAD_VALUE),
        ({"do": "scale", "service": "v9", "replicas": 1}, Reason.UNKNOWN_SERVICE),
        ({"do": "scale", "service": "v1"}, Reason.MISSING_KEY),
        ({"do": "stop", "service": "s1"}, Reason.BAD_VALUE),
        ({"do": "stop", "service": 5}, Reason.WRONG_TYPE),
        ({"do": "update", "service": "v1", "spec": tree(name="other")}, Reason.BAD_VALUE),
    ],
)
def test_requests_that_cannot_be_are_refused(request_: dict[str, Any], reason: Reason) -> None:
    world = begun()
    verdict = world.ask(**request_)
    assert verdict is not None
    assert (verdict.accepted, verdict.reason) == (False, reason)
    world.second(3)
    assert world.ready() == [1, 2]


@pytest.mark.parametrize(
    "changes, told",
    [
        (
            {"replicas": 0},
            "$.replicas_max: a service with `replicas: 0` begins replicas when requests come",
        ),
        ({"replicas": -1}, "$.replicas: `replicas` must be 0 to 256"),
        ({"idle": "5m"}, "$.idle: `idle` is of services with `replicas: 0`"),
        (
            {"replicas": 0, "replicas_max": 1, "requests_per_s": 1, "wait": "11m"},
            "$.wait: `wait` must be seconds, or text such as `90s`, `15m`, `2h`, up to 10m",
        ),
        (
            {"replicas": 3, "replicas_max": 2, "requests_per_s": 1},
            "$.replicas_max: `replicas_max` must be 3, `replicas`, to 256",
        ),
        (
            {"replicas_max": 4},
            "$.requests_per_s: the number of replicas follows requests by `replicas_max` and "
            "`requests_per_s`",
        ),
        (
            {"latency_ms": 5},
            "$.latency_ms: `latency_ms` asks for more replicas, which `replicas_max` allows, or "
            "bounds what sharing a GPU costs",
        ),
        (
            {"health": "no path"},
            "$.health: `health` must be a path of printable ASCII such as `/health`",
        ),
        (
            {"drain": "soon"},
            "$.drain: `drain` must be seconds, or text such as `90s`, `15m`, `2h`, up to a day",
        ),
        ({"name": "a b"}, "$.name: `name` must be a name of letters, digits, `_` and `-`"),
        ({"surge": 2}, "$.surge: `surge` is out of bounds: Expected `int` <= 1"),
        ({"colour": 1}, "$.colour: unknown key `colour`"),
        (
            {"job": {"command": "x", "resources": {"workers": 2}}},
            "$.job.resources.workers: replicas of several workers are not built yet",
        ),
        (
            {"job": {"command": "x", "kind": "training"}},
            "$.job.kind: `kind` must be `inference`, or left out",
        ),
        (
            {"job": {"command": "x", "array": "0-3"}},
            "$.job.array: a replica cannot have `array`: its service says how many there are",
        ),
        (
            {"job": {"command": "x", "limits": {"retries": 2}}},
            "$.job.limits.retries: `retries` must be left out: the service replaces a replica "
            "that ends",
        ),
        (
            {"job": {"command": "x", "vc": "cv"}},
            "$.job.vc: the replicas of a service of `nlp` are its jobs",
        ),
    ],
)
def test_a_wrong_service_is_refused_in_one_line(changes: dict[str, Any], told: str) -> None:
    parsed = parse_service_tree(tree(**changes))
    assert isinstance(parsed, list)
    assert [f"{each.path}: {each.text}" for each in parsed] == [told]


def test_times_are_read_in_seconds() -> None:
    parsed = parse_service_tree(tree(start="10m", drain="90s"))
    assert isinstance(parsed, ServiceSpec)
    assert (parsed.start, parsed.drain, parsed.unhealthy) == (600, 90, 10)
