"""A parameter server and what it answers, in orders that a test chose."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests import needs

if why := needs.missing("torch"):
    needs.skip(why)

import torch

from skep_ps.assign import Segment
from skep_ps.placement import Placement, Spec
from skep_ps.server import Server
from skep_ps.store import view
from tests.ps_kit import Later, Place, Side, connected, placed

pytestmark = pytest.mark.torch

CHUNK = 1024
HYPERS = [[1.0, 0.0, 0.0, 0.0, False, False]]
"""A learning rate of 1 and nothing else: the gradient is subtracted."""


def spec(chunks: int, *, asynchronous: bool) -> Spec:
    segment = Segment(0, "float32", chunks * CHUNK)
    return Spec((segment,), CHUNK, False, asynchronous, False, "d")


class Stage:
    """A job whose coordinator is the test."""

    def __init__(self) -> None:
        self.coordinator = Place()
        self.servers: list[Server] = []
        self.runs: list[Later[int]] = []
        self.sides: list[Side] = []
        self.links: dict[int, Side] = {}
        self.at: dict[int, tuple[str, int]] = {}

    def server(self) -> int:
        """Start the next server."""
        making = Later(lambda: Server(self.coordinator.settings))
        link = self.coordinator.side()
        self.servers.append(making.result())
        self.runs.append(Later(self.servers[-1].run))
        number = len(self.servers)
        hello = link.hear("hello")
        self.at[number] = (hello["host"], hello["port"])
        self.links[number] = link
        link.say("welcome", id=number)
        return number

    def placement(
        self, generation: int, chunks: list[int], workers: tuple[int, ...] = (0, 1)
    ) -> Placement:
        return Placement(generation, dict(self.at), workers, tuple(chunks))

    def worker(self, server: int) -> Side:
        self.sides.append(connected(self.at[server][1]))
        return self.sides[-1]

    def begin(self, job: Spec, placement: Placement) -> None:
        for link in self.links.values():
            link.say("begin", spec=job.to_wire(), **placed(placement))

    def change(self, job: Spec, before: Placement, after: Placement, clock: int) -> None:
        """Do what a coordinator does until the servers of `before` move at the clock."""
        ways = enumerate(zip(before.chunks, after.chunks, strict=True))
        moved = [[chunk, *way] for chunk, way in ways if way[0] != way[1]]
        for link in self.links.values():
            link.say("prepare", spec=job.to_wire(), moves=moved, **placed(after))
            link.hear("ready")
        for number in before.servers:
            link = self.links[number]
            link.say("clock", clock=clock, generation=after.generation)
            link.hear("accepted")
            link.say("move", generation=after.generation)

    def switch(self, after: Placement) -> list[int]:
        """Say that it is decided, as a coordinator that came back does; return the versions."""
        for link in self.links.values():
            link.say("switch", version=0, puts=0, **placed(after))
        return [link.hear("switched")["version"] for link in self.links.values()]

    def close(self) -> None:
        for link, server, run in zip(self.links.values(), self.servers, self.runs, strict=True):
            server._listener.shutdown(socket.SHUT_RDWR)
            link.say("over")
            assert run.result() == 0
        for side in self.sides:
            side.channel.close()
        self.coordinator.close()


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


@pytest.fixture
def begun(stage: Stage) -> tuple[Stage, Spec, Side]:
    """Return an asynchronous job of which server 1 keeps both chunks, as worker 0 has put them."""
    job = spec(2, asynchronous=True)
    stage.server()
    stage.server()
    stage.begin(job, stage.placement(1, [1, 1]))
    worker = stage.worker(1)
    request(worker, "put", 2 * CHUNK, 5.0)
    worker.hear("values")
    return stage, job, worker


def test_a_request_laid_out_for_an_earlier_placement_is_to_be_repeated(
    begun: tuple[Stage, Spec, Side],
) -> None:
    stage, job, worker = begun
    first, second = stage.placement(1, [1, 1]), stage.placement(2, [1, 2])
    stage.change(job, first, second, clock=1)
    request(worker, "push", 2 * CHUNK, 1.0, seq=1)
    assert values(worker) == [4.0, 4.0]
    stage.links[1].hear("moved")
    request(worker, "put", 2 * CHUNK, 9.0, puts=2)  # What moves is copied already.
    stage.switch(second)
    again = worker.hear()
    assert (again["type"], again["generation"], again["puts"]) == ("again", 2, 1)
    request(worker, "pull")
    assert worker.hear()["type"] == "again"

    assert worker.channel.unread == 0
    for number in (1, 2):
        side = stage.worker(number)
        request(side, "pull", generation=2, puts=0)
        assert values(side) == [4.0]


def test_a_server_without_chunks_reaches_its_clock(begun: tuple[Stage, Spec, Side]) -> None:
    stage, job, worker = begun
    stage.change(job, stage.placement(1, [1, 1]), stage.placement(2, [1, 2]), clock=1)
    request(worker, "push", 2 * CHUNK, 1.0, seq=1)
    empty = stage.worker(2)
    request(empty, "push", seq=1)
    for link in stage.links.values():
        link.hear("moved")


def test_a_repeated_push_counts_once_also_where_it_is_handed_on(
    begun: tuple[Stage, Spec, Side],
) -> None:
    stage, job, worker = begun
    for side in (worker, stage.worker(1)):  # Its connection broke before it was answered.
        request(side, "push", 2 * CHUNK, 1.0, seq=1)
        assert values(side) == [4.0, 4.0]
    second = stage.placement(2, [1, 2])
    stage.change(job, stage.placement(1, [1, 1]), second, clock=2)
    request(worker, "push", 2 * CHUNK, 1.0, seq=2)
    stage.links[1].hear("moved")
    stage.switch(second)
    assert values(worker) == [3.0, 3.0]
    for side in (worker, stage.worker(1)):
        request(side, "push", 2 * CHUNK, 1.0, seq=3)
        assert values(side) == [2.0, 2.0]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_who_waits_for_values_is_told_when_it_is_the_first(
    stage: Stage, asynchronous: bool
) -> None:
    stage.server()
    stage.begin(spec(1, asynchronous=asynchronous), stage.placement(1, [1]))
    worker = stage.worker(1)
    request(worker, "pull", worker=1)
    stage.links[1].say("roster", generation=1, workers=[1])
    again = worker.hear()
    assert (again["type"], again["workers"], again["puts"]) == ("again", [1], 0)


def test_a_newcomer_goes_on_where_its_source_stood(stage: Stage) -> None:
    job = spec(2, asynchronous=False)
    stage.server()
    first = stage.placement(1, [1, 1], workers=(0,))
    stage.begin(job, first)
    worker = stage.worker(1)
    request(worker, "put", 2 * CHUNK, 5.0)
    worker.hear("values")
    stage.server()
    second = stage.placement(2, [1, 2], workers=(0,))
    stage.change(job, first, second, clock=1)
    request(worker, "push", 2 * CHUNK, 1.0, seq=1)
    stage.links[1].hear("moved")
    assert stage.switch(second) == [1, 1]
    newcomer = stage.worker(2)
    request(newcomer, "pull", generation=2)
    assert values(newcomer) == [4.0]


def request(side: Side, kind: str, elements: int = 0, value: float = 0.0, **fields: Any) -> None:
    content = torch.full((elements,), value)
    side.say(
        kind,
        [view(content)] if elements else (),
        **{
            "worker": 0,
            "generation": 1,
            "version": 0,
            "puts": 1,
            "updates": 0,
            "state": False,
            "hypers": HYPERS,
            **fields,
        },
    )


def values(side: Side) -> list[float]:
    """Return the first element of every chunk in the next answer."""
    side.hear("values")
    content = torch.frombuffer(bytearray(side.payload()), dtype=torch.float32)
    return [float(each) for each in content[::CHUNK]]
