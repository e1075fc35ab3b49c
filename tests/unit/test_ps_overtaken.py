"""Changes of a parameter-server job that come faster than its processes look.

A test speaks as the coordinator and as the other processes, so that every order is one it chose.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests import needs

if why := needs.missing("torch"):
    needs.skip(why)

import torch
from torch import nn

from skep_ps import SGD
from skep_ps.placement import Placement, Spec
from skep_ps.store import view
from skep_ps.worker import Worker
from tests.ps_kit import WITHIN_S, Later, Place, Side, placed

pytestmark = pytest.mark.torch

ELEMENTS = 2048
"""Two chunks."""
NewPlace = Callable[[], Place]


@pytest.fixture
def new_place() -> Iterator[NewPlace]:
    places: list[Place] = []

    def make() -> Place:
        places.append(Place())
        return places[-1]

    yield make
    for place in places:
        place.close()


class Job:
    """A worker's view of a job: its coordinator, and up to two servers."""

    def __init__(self, new_place: NewPlace, *, asynchronous: bool = True, rank: int = 0) -> None:
        self.coordinator, self.places = new_place(), {1: new_place(), 2: new_place()}
        self.parameter = nn.Parameter(torch.linspace(-1, 1, ELEMENTS))
        self.joining = Later(
            lambda: SGD(
                [self.parameter],
                lr=0.5,
                momentum=0.9,
                asynchronous=asynchronous,
                where=self.coordinator.settings,
                rank=rank,
            )
        )
        self.link = self.coordinator.side()
        hello = self.link.hear("hello")
        self.spec = Spec.of(hello["spec"])
        self.link.say("welcome", id=rank)

    def placement(self, generation: int, chunks: list[int], workers: tuple[int, ...]) -> Placement:
        servers = {server: self.places[server].at for server in dict.fromkeys([1, *chunks])}
        return Placement(generation, servers, workers, tuple(chunks))

    def tell(self, kind: str, placement: Placement, **fields: Any) -> None:
        self.link.say(kind, spec=self.spec.to_wire(), moves=[], **placed(placement), **fields)

    def done(self) -> None:
        """Wait until the worker has taken what it was told."""
        self.link.say("probe", generation=9)
        while self.link.hear("probed")["generation"] != 9:
            pass

    def end(self, optimizer: SGD) -> None:
        """Have the worker be done, and hang up as a coordinator does that has read all."""
        ending = Later(optimizer.close)
        self.link.hear("bye")
        self.link.channel.close()
        ending.result()

    def server(self, number: int) -> Side:
        """Return the worker's connection to a server."""
        side = self.places[number].side()
        side.hear("i-am")
        return side


def answer(side: Side, kind: str, elements: int = 0, value: float = 0.0, **fields: Any) -> Any:
    """Answer the next request, which must be of that kind, with values; return it."""
    request = side.hear()
    assert request["type"] == kind, request
    side.payload()
    content = torch.full((elements,), value)
    fields = {"version": 1, "puts": 1, "generation": 1, "workers": [0], **fields}
    side.say("values", [view(content)] if elements else (), hold=None, **fields)
    return request


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return what lets training threads look at the placements that they were told."""
    look = threading.Event()
    adopt = Worker._adopt

    def later(self: Worker, began_ns: int) -> None:
        assert look.wait(WITHIN_S)
        adopt(self, began_ns)

    monkeypatch.setattr(Worker, "_adopt", later)
    return look


@pytest.mark.parametrize(
    "asynchronous, outcome",
    [
        (False, "open"),
        (False, "called-off"),
        (True, "open"),
        (True, "called-off"),
        (True, "switch"),
        (True, "switch later"),
    ],
)
def test_who_begins_is_no_newcomer_though_a_change_is_prepared_before_it_looks(
    new_place: NewPlace, look: threading.Event, asynchronous: bool, outcome: str
) -> None:
    job = Job(new_place, asynchronous=asynchronous)
    first, second = job.placement(1, [1, 1], (0,)), job.placement(2, [1, 2], (0,))
    job.tell("begin", first)
    job.tell("prepare", second)
    job.link.hear("ready")
    if outcome == "called-off":
        job.link.say("called-off", generation=2, why="a test")
    elif outcome == "switch":
        job.tell("switch", second)
    job.done()
    look.set()
    servers = [job.server(1), job.server(2)]

    # The servers have nothing but zeros until the first worker's values are put.
    into = servers if outcome == "switch" else servers[:1]
    content = b""
    for server in into:
        put = server.hear()
        assert put["type"] == "put"
        content += server.payload()
        server.say("values", version=0, puts=1)
    assert content == bytes(view(job.parameter.data))
    optimizer = job.joining.result()
    if outcome == "switch later":
        job.tell("switch", second)
        job.done()
        into = servers
    step = Later(optimizer.step)
    for number, server in enumerate(into):
        answer(server, "push", ELEMENTS // len(into), value=3.0 + number)
    step.result()
    assert job.parameter[0] == 3.0
    assert job.parameter[-1] == 2.0 + len(into)
    job.end(optimizer)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_newcomer_puts_nothing(new_place: NewPlace, asynchronous: bool) -> None:
    job = Job(new_place, asynchronous=asynchronous, rank=2)
    placement = job.placement(2, [1, 1], (0, 2))
    job.tell("prepare", placement)
    job.tell("switch", placement)
    pull = answer(job.server(1), "pull", ELEMENTS, value=7.0, version=4, puts=3)
    assert pull["puts"] == 1, "nobody takes values that nobody has put"
    optimizer = job.joining.result()
    assert optimizer.version == 4
    assert bool((job.parameter == 7.0).all())
    job.end(optimizer)


def test_a_worker_puts_its_values_when_the_first_ended_before_it_had(new_place: NewPlace) -> None:
    job = Job(new_place, asynchronous=False, rank=1)
    job.tell("begin", job.placement(1, [1, 1], (0, 1)))
    server = job.server(1)
    assert server.hear()["type"] == "pull"
    server.say("again", generation=1, workers=[1], version=0, puts=0)
    job.link.say("roster", generation=1, workers=[1])
    put = server.hear()
    assert put["type"] == "put"
    assert server.payload() == bytes(view(job.parameter.data))
    server.say("values", version=0, puts=1)
    job.end(job.joining.result())


def test_values_that_a_change_has_overtaken_are_asked_for_again(new_place: NewPlace) -> None:
    job = Job(new_place)
    job.tell("begin", job.placement(1, [1, 1], (0,)))
    one = job.server(1)
    answer(one, "put")
    optimizer = job.joining.result()
    second = job.placement(2, [1, 2], (0,))
    job.tell("prepare", second)
    two = job.server(2)

    saving = Later(optimizer.state_dict)
    assert one.hear()["type"] == "pull"
    one.say("again", generation=2, workers=[0], version=9, puts=1)
    job.tell("switch", second)  # The server has heard of it first.
    for server in (one, two):
        answer(server, "pull", ELEMENTS, value=5.0, generation=2)
    momentum = saving.result()["state"][0]["momentum_buffer"]
    assert bool((momentum == 5.0).all())
    assert [pause.generation for pause in optimizer.pauses] == [2]
    job.end(optimizer)
