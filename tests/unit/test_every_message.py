"""Every message of every subject that a service subscribes to, sent to its machine.

The subscriptions are those of the services' mains, the messages those of `proto/examples`, which
has one of every class that a subject carries.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

import msgspec
import pytest

from skep.machines.access import AccessMachine
from skep.machines.admission import AdmissionMachine
from skep.machines.advisor import AdvisorMachine
from skep.machines.agent import AgentMachine
from skep.machines.allocator import AllocatorMachine
from skep.machines.base import AnyMachine, Record, Restarted, Tick
from skep.machines.introspector import IntrospectorMachine
from skep.machines.notifier import NotifierMachine
from skep.machines.searches import SearchesMachine
from skep.units import Instant, after, seconds
from skep.wire import codec, subjects
from skep.wire.access import AccessAsked
from skep.wire.admin import SetVcs
from skep.wire.codec import BusEvent, Facts, Submission, Unreadable
from skep_services.access.__main__ import FOLLOW as ACCESS_FOLLOW
from skep_services.access.__main__ import LISTEN as ACCESS_LISTEN
from skep_services.admission.__main__ import FOLLOW as ADMISSION_FOLLOW
from skep_services.advisor.__main__ import FOLLOW as ADVISOR_FOLLOW
from skep_services.advisor.__main__ import LISTEN as ADVISOR_LISTEN
from skep_services.allocator.__main__ import FOLLOW as ALLOCATOR_FOLLOW
from skep_services.allocator.__main__ import LISTEN as ALLOCATOR_LISTEN
from skep_services.introspector.__main__ import LISTEN as INTROSPECTOR_LISTEN
from skep_services.notifier.__main__ import FOLLOW as NOTIFIER_FOLLOW
from skep_services.searches.__main__ import FOLLOW as SEARCHES_FOLLOW
from skep_services.searches.__main__ import LISTEN as SEARCHES_LISTEN
from skep_services.shell import Follow
from tests.kit import added, admitted, at, heartbeat, joined, spec, started, submission, vcs
from tools.proto_examples import IDENTITY

EXAMPLES = Path(__file__).parents[2] / "proto" / "examples"
VC, NODE = "nlp", "node-1"
ORDERS = 12
"""Orders in which a machine gets all messages."""

FOLDERS = {
    "admin": "admin",
    "node": "node-events",
    "cmd": "commands",
    "heartbeat": "reports",
    "report": "reports",
    "finding": "findings",
    "advice": "advice",
    "trial": "trials",
    "sight": "sights",
    "served": "served",
    "late": "late",
    "ask": "asks",
    "search": "search-requests",
    "admission": "admission-facts",
    "allocator": "allocator-facts",
    "searches": "search-facts",
    "access": "access-facts",
    "asked": "access-requests",
}
"""Where the examples of what is published on a kind of subject are, or of a service's facts."""


class Service(NamedTuple):
    """A service's machine and what it subscribes to."""

    make: Callable[[], AnyMachine]
    follow: tuple[Follow, ...] = ()
    listen: tuple[str, ...] = ()


SERVICES = {
    "admission": Service(AdmissionMachine, ADMISSION_FOLLOW),
    "allocator": Service(AllocatorMachine, ALLOCATOR_FOLLOW, ALLOCATOR_LISTEN),
    "introspector": Service(IntrospectorMachine, (), INTROSPECTOR_LISTEN),
    "advisor": Service(AdvisorMachine, ADVISOR_FOLLOW, ADVISOR_LISTEN),
    "searches": Service(SearchesMachine, SEARCHES_FOLLOW, SEARCHES_LISTEN),
    "access": Service(AccessMachine, ACCESS_FOLLOW, ACCESS_LISTEN),
    "notifier": Service(NotifierMachine, NOTIFIER_FOLLOW),
    "agent": Service(
        lambda: AgentMachine(joined(NODE, identity=IDENTITY)), (), (subjects.command(NODE),)
    ),
}


def patterns(service: Service) -> Iterator[tuple[str, Follow | None]]:
    """Yield every subject that a service subscribes to, and the stream that it follows there."""
    for wish in service.follow:
        for pattern in wish.subjects or subjects.STREAMS[wish.stream]:
            yield pattern, wish
    for pattern in service.listen:
        yield pattern, None


def kind_of(pattern: str) -> tuple[str, str]:
    """Return the kind of a subject, and the word behind it."""
    if pattern == subjects.ACCESS_ASKED:
        return "asked", ""
    parsed = subjects.parse(pattern)
    assert parsed is not None, pattern
    return parsed.kind, parsed.first


def example_files(kind: str, first: str) -> list[Path]:
    """Return the examples of what is published there."""
    if kind in {"submit", "cancel"}:
        return [EXAMPLES / "job-spec.json"]
    found = sorted((EXAMPLES / FOLDERS[first if kind == "fact" else kind]).glob("*.json"))
    if kind == "finding" and first != "*":
        found = [each for each in found if each.stem == first]
    return found


def payloads(kind: str, first: str) -> Iterator[bytes]:
    """Yield what may be published on such a subject: each example, and what is no message."""
    for path in example_files(kind, first):
        if kind == "fact":
            yield b'{"at":1700000000000000000,"facts":[%s]}' % path.read_bytes()
        elif kind == "asked":
            wish = b'{"type":"ask-access","actor":{"name":"%s"},"wish":%s}'
            yield from (wish % (name, path.read_bytes()) for name in (b"operator", b"ada", b""))
        else:
            yield path.read_bytes()
    if kind == "cancel":
        yield from (b'{"job":"j17"}', b'{"job":"j1"}', b'{"job":17}', b'{"job":"j1","x":[]}')
    if kind == "heartbeat":
        yield codec.encode(heartbeat(NODE, identity=IDENTITY))
    yield from (b"", b"{}", b"[]", b"null", b"\xff", b'{"type":"gossip"}')


def messages(service: Service) -> list[tuple[str, BusEvent]]:
    """Return what comes of everything published on a service's subjects, as its shell reads it."""
    found: list[tuple[str, BusEvent]] = []
    for pattern, wish in patterns(service):
        kind, first = kind_of(pattern)
        words = {"submit": VC, "cancel": VC, "ask": VC, "search": VC, "admin": "vcs"}
        words["served"] = "gateway"  # Which the example is of.
        subject = pattern.replace("*.*", f"{NODE}.event")
        subject = subject.replace("*", words.get(kind, first if first != "*" else NODE))
        for number, payload in enumerate(payloads(kind, first), 100):
            sequence, instant = (number, at(1)) if wish is not None else (0, Instant(0))
            headers = {subjects.REPLY_HEADER: f"_INBOX.vc-{VC}.1"}
            event = codec.read(subject, payload, headers, sequence, instant)
            if isinstance(event, Facts) and wish is not None and wish.facts:
                kept = tuple(fact for fact in event.facts if isinstance(fact, wish.facts))
                event = msgspec.structs.replace(event, facts=kept)
            found.append((subject, event))
    return found


def taken(machine: type[Any]) -> tuple[type[Any], ...]:
    """Return the classes that a machine's `decide` says it takes."""
    return get_args(get_type_hints(machine.decide)["event"])


def carried(pattern: str) -> tuple[type[Any], ...]:
    """Return the classes of event that a subject may come as."""
    kind, first = kind_of(pattern)
    if kind == "asked":
        return (AccessAsked, Unreadable)
    if kind not in codec._DECODERS:
        event = codec.read(pattern.replace("*", VC), b'{"at":1,"facts":[]}', {}, 1, at(1))
        return (type(event), Unreadable)
    union: Any = codec._DECODERS[kind].type
    classes = get_args(union) or (union,)
    if kind == "finding" and first != "*":
        classes = tuple(each for each in classes if each.__struct_config__.tag == first)
        assert classes, pattern
    return (*classes, Unreadable)


def populated(name: str) -> tuple[AnyMachine, Instant]:
    """Return a service's machine in the middle of its work: a node, tenants and jobs."""
    machine = SERVICES[name].make()
    node = joined(NODE, identity=IDENTITY)
    history: list[tuple[float, Any]] = [(0, Restarted(1))]
    if name == "allocator":
        history += [
            (0, codec.read(subjects.admin("vcs"), codec.encode(_tenants()), {}, 1, at(0))),
            (0, node),
            *((i, admitted(i, gpus=1)) for i in range(10, 20)),
            *((20, started(f"j{i}", identity=IDENTITY)) for i in range(10, 14)),
        ]
    elif name == "admission":
        history += [
            (0, _tenants()),
            (0, added(node)),
            *((i, submission(i, key=f"k{i}")) for i in range(10, 20)),
        ]
    elif name == "agent":
        history += [(0, Tick())]
    now = at(0)
    for second, event in history:
        now = at(second)
        machine.decide(event, now)
        machine.check()
    if name == "searches":
        now = at(1)
        folder = EXAMPLES / "search-requests"
        for number, stem in enumerate(("begin", "ask", "tell"), 1):
            raw = (folder / f"{stem}.json").read_bytes()
            machine.decide(codec.read(subjects.search(VC), raw, {}, number, now), now)
            machine.check()
    return machine, now


def _tenants() -> SetVcs:
    return SetVcs(vcs=vcs(nlp=4))


@pytest.mark.parametrize("name", SERVICES)
def test_a_machine_takes_every_class_of_its_subjects(name: str) -> None:
    machine = type(SERVICES[name].make())
    for pattern, _ in patterns(SERVICES[name]):
        missing = set(carried(pattern)) - set(taken(machine))
        assert not missing, f"{name} subscribes to {pattern} and does not take {missing}"


@pytest.mark.parametrize("name", SERVICES)
def test_every_class_of_its_subjects_is_among_the_messages(name: str) -> None:
    found = {type(event) for _, event in messages(SERVICES[name])}
    for pattern, _ in patterns(SERVICES[name]):
        assert not set(carried(pattern)) - found, pattern


@pytest.mark.parametrize("name", SERVICES)
def test_no_message_ends_a_fresh_service(name: str) -> None:
    for subject, event in messages(SERVICES[name]):
        machine = SERVICES[name].make()
        _decide(machine, subject, event, at(1))


@pytest.mark.parametrize("name", SERVICES)
def test_no_message_ends_a_service_at_work(name: str) -> None:
    for subject, event in messages(SERVICES[name]):
        machine, now = populated(name)
        _decide(machine, subject, event, after(now, seconds(1)))


@pytest.mark.parametrize("seed", range(ORDERS))
@pytest.mark.parametrize("name", SERVICES)
def test_no_message_ends_a_service_in_any_order(name: str, seed: int) -> None:
    """All of them, twice, one after the other, with timers and starts between them."""
    rng = random.Random(seed)
    events = [*messages(SERVICES[name]) * 2, *[("timer", Tick()), ("start", Restarted(2))] * 3]
    rng.shuffle(events)
    machine, now = populated(name)
    facts = []
    for subject, message in events:
        event = message
        if isinstance(message, Submission):
            event = msgspec.structs.replace(message, key=rng.choice(["", "a", "b"]))
        now = after(now, seconds(rng.random()))
        facts += _decide(machine, f"seed {seed}, {subject}", event, now)
    assert facts or name in {"introspector", "advisor", "notifier"}


def _decide(machine: AnyMachine, where: str, event: Any, now: Instant) -> list[Any]:
    try:
        effects = machine.decide(event, now)
        machine.check()
    except Exception as error:
        raise AssertionError(f"{where}: {event!r}") from error
    return [effect.fact for effect in effects if isinstance(effect, Record)]


def test_the_examples_are_read() -> None:
    """Where the examples go: nothing of what a subject promises is unreadable there."""
    assert json.loads((EXAMPLES / "job-spec.json").read_bytes())["vc"] == VC
    assert spec().vc == VC
    for name, service in SERVICES.items():
        readable = [event for _, event in messages(service) if not isinstance(event, Unreadable)]
        assert len(readable) >= 2, name
