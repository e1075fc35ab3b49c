"""Every field of a message from outside has a bound, and what was recorded is read without them."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin

import msgspec
import pytest
from msgspec import Meta

from skep.ids import job_sequence
from skep.wire import (
    admin,
    advice,
    bounds,
    changes,
    codec,
    commands,
    drafts,
    findings,
    learned,
    node,
    reports,
    search,
    search_facts,
    spec,
    talk,
    trials,
)
from skep.wire.facts import NodeAdded, PartOver
from skep.wire.node import Gpu, MemberExited, NodeJoined, Outcome
from skep_services.adapters.records import Chain
from skep_services.agent.logs import LogRequest
from skep_services.gateway.rows import Spanned
from skep_services.links import NO_RECORD
from tests.kit import T0, joined

INPUTS: dict[str, Any] = {
    "node": node.NodeEvent,
    "reports": reports.Heartbeat | reports.NodeReport,
    "findings": findings.Finding,
    "advice": advice.Advice,
    "sights": learned.Sight,
    "trials": trials.Trials,
    "admin": admin.Admin,
    "commands": commands.Command,
    "asked": drafts.Asked,
    "job-says": talk.Said,
    "job-hears": talk.Told,
    "specs": spec.JobSpec,
    "searches": search.SearchSpec,
    "requests": search_facts.Request,
    "asks": changes.Ask,
    "spans": Spanned,
    "logs": LogRequest,
}
"""What services take from outside: every one of these is decoded against its bounds."""

FREE = {("VirtualCluster", "options"), ("Template", "spec")}
"""Checked by the policy that they are for, and as the job that they make."""


def bounded(kind: type[Any], meta: Meta | None) -> bool:
    """Return whether a number has two ends, or a text a length or a pattern."""
    if meta is None:
        return False
    if kind is str:
        return meta.max_length is not None or meta.pattern is not None
    return (meta.ge is not None or meta.gt is not None) and meta.le is not None


def unbounded(
    kind: Any, where: str, seen: set[type[Any]], meta: Meta | None = None
) -> Iterator[str]:
    """Yield where a type takes numbers, texts or lists without a bound."""
    if isinstance(kind, NewType):
        yield from unbounded(kind.__supertype__, where, seen, meta)
        return
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        (found,) = [each for each in inner[1:] if isinstance(each, Meta)]
        yield from unbounded(inner[0], where, seen, found)
    elif origin in (Union, UnionType):
        for each in inner:
            yield from unbounded(each, where, seen)
    elif origin is Literal or kind in (bool, type(None)):
        pass
    elif origin in (tuple, list, dict):
        fixed = origin is tuple and Ellipsis not in inner
        if not fixed and (meta is None or meta.max_length is None):
            yield f"{where}: a {origin.__name__} of any length"
        for each in inner:
            if each is not Ellipsis:
                yield from unbounded(each, where, seen)
    elif kind in (int, float, str):
        if not bounded(kind, meta):
            yield f"{where}: any {'text' if kind is str else kind.__name__}"
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield from unbounded_fields(kind, seen)
    elif not (isinstance(kind, type) and issubclass(kind, enum.Enum)):
        yield f"{where}: {kind}"


def unbounded_fields(kind: type[msgspec.Struct], seen: set[type[Any]]) -> Iterator[str]:
    """Yield which fields of a message have no bound, once for each message."""
    if kind in seen:
        return
    seen.add(kind)
    for field in msgspec.structs.fields(kind):
        if (kind.__name__, field.name) not in FREE:
            yield from unbounded(field.type, f"{kind.__name__}.{field.name}", seen)


@pytest.mark.parametrize("name", INPUTS)
def test_every_field_of_an_input_is_bounded(name: str) -> None:
    assert list(unbounded(INPUTS[name], name, set())) == []


def test_the_walk_finds_what_has_no_bound() -> None:
    class Open(msgspec.Struct):
        number: int
        texts: Annotated[tuple[str, ...], Meta(max_length=3)]
        rest: dict[bounds.Short, bounds.Count]
        half: Annotated[float, Meta(ge=0)] | None = None

    assert list(unbounded(Open, "", set())) == [
        "Open.number: any int",
        "Open.texts: any text",
        "Open.rest: a dict of any length",
        "Open.half: any float",
    ]


JOINED = {
    "type": "node-joined",
    "node": "n1",
    "identity": "a",
    "incarnation": 1,
    "address": "10.0.0.1",
    "ports": [20000, 20499],
    "gpus": [{"index": 0, "type": "v100"}],
    "cpus": 8,
    "memory": 2**36,
}
STEPPED = {
    "type": "member-stepped",
    "node": "n1",
    "identity": "a",
    "job": "j1",
    "attempt": 1,
    "at": 1,
}
HOSTILE = [
    (JOINED, "incarnation", 10**30),
    (JOINED, "incarnation", 2**31),
    (JOINED, "incarnation", -1),
    (JOINED, "gpus", [{"index": 2**31, "type": "v100"}]),
    (JOINED, "gpus", [{"index": 0, "type": "v100"}] * 1025),
    (JOINED, "gpus", [{"index": 3, "type": "v100"}, {"index": 3, "type": "v100"}]),
    (JOINED, "ports", [20499, 20000]),
    (JOINED, "ports", [1, 65536]),
    (JOINED, "memory", 2**63),
    (JOINED, "cpus", 1e3),
    (JOINED, "identity", "x" * 257),
    (STEPPED, "job", "j99999999999999999999"),
    (STEPPED, "job", "j01"),
    (STEPPED, "job", "j1\n"),
    (STEPPED, "attempt", 10**9 + 1),
    (STEPPED, "at", 2**63),
    (STEPPED, "at", -1),
]


IDS = [f"{field}={str(value)[:24]}" for _, field, value in HOSTILE]


@pytest.mark.parametrize("message, field, value", HOSTILE, ids=IDS)
def test_a_node_event_out_of_bounds_is_refused(
    message: dict[str, Any], field: str, value: Any
) -> None:
    def read(tree: dict[str, Any]) -> Any:
        return codec.read("skep.v1.node.n1.x", msgspec.json.encode(tree), {}, 1, T0)

    assert not isinstance(read(message), codec.Unreadable)
    refused = read({**message, field: value})
    assert isinstance(refused, codec.Unreadable)
    assert field in refused.text
    assert "\n" not in refused.text


def test_a_time_far_ahead_of_the_bus_is_taken_for_the_time_of_the_bus() -> None:
    stepped = {**STEPPED, "at": 2**62}
    event = codec.read("skep.v1.node.n1.stepped", msgspec.json.encode(stepped), {}, 1, T0)
    assert event.at == T0
    soon = T0 + codec.AHEAD_MAX
    event = codec.read("skep.v1.node.n1.x", msgspec.json.encode({**STEPPED, "at": soon}), {}, 1, T0)
    assert event.at == soon


def test_what_was_recorded_out_of_bounds_is_read_as_it_was() -> None:
    absurd = msgspec.structs.replace(
        joined(), incarnation=10**30, gpus=(Gpu(index=2**31, type="t" * 10_000),)
    )
    over = MemberExited(
        node="n1",
        identity="a",
        job="j99999999999999999999",
        attempt=-1,
        at=T0,
        outcome=Outcome.EXITED,
        values={"loss" * 100: 1e300},
        steps=2**70,
    )
    facts = (NodeAdded(joined=absurd), PartOver(event=2**65, exited=over))
    chain = Chain("test", NodeAdded | PartOver)
    _, payload = chain.encode(facts, {}, T0, 1)
    chain.epoch = 1
    read = chain.read(payload, "record 1")
    assert read.facts == facts
    assert type(read.facts[0].joined) is NodeJoined


def test_the_allocators_followers_read_what_was_recorded() -> None:
    absurd = msgspec.structs.replace(joined(), incarnation=10**30)
    record = {
        "v": 1,
        "n": 1,
        "prev": NO_RECORD,
        "epoch": 1,
        "at": 1,
        "pos": {},
        "facts": [NodeAdded(joined=absurd)],
    }
    event = codec.read("skep.v1.fact.allocator", msgspec.json.encode(record), {}, 1, T0)
    assert isinstance(event, codec.Facts)
    assert event.facts == (NodeAdded(joined=absurd),)


def test_a_log_with_wrong_types_is_still_refused() -> None:
    decoder: bounds.LogDecoder[NodeAdded] = bounds.LogDecoder(NodeAdded)
    with pytest.raises(msgspec.ValidationError):
        decoder.decode(b'{"type":"node-added","joined":{"type":"node-joined"}}')


def test_a_job_id_fits_a_database() -> None:
    assert job_sequence("j" + "9" * 18) == 10**18 - 1 < 2**63
    assert job_sequence("j" + "9" * 19) is None
