"""What a rank on parameter servers does when its agent wants another size."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from skep_job.link.orders import Control
from skep_ps import scaling
from skep_ps.errors import Broken
from skep_ps.scaling import Scaling, Servers, Step, Wanted, following
from skep_ps.wire import Message, Patience
from tests.ps_kit import WITHIN_S, Place


def status(servers: int, workers: int, **more: Any) -> Message:
    return {
        "state": "running",
        "servers": list(range(1, servers + 1)),
        "queued": 0,
        "workers": list(range(workers)),
        "scaling": "",
        **more,
    }


@pytest.mark.parametrize(
    "seen, wanted, alive, step",
    [
        (status(1, 2), Wanted(1, 2), 1, "done"),
        (status(1, 2), Wanted(2, 2), 1, "start"),
        (status(1, 2), Wanted(2, 2), 2, "wait"),
        (status(1, 2), Wanted(2, 2), None, "wait"),
        (status(1, 2, scaling="add server 2: move"), Wanted(3, 2), 2, "start"),
        (status(2, 2), Wanted(1, 2), 2, "remove"),
        (status(2, 2), Wanted(1, 2), None, "wait"),
        (status(2, 2, scaling="add worker 3: move"), Wanted(1, 2), 2, "wait"),
        (status(2, 2, queued=1), Wanted(1, 2), 2, "wait"),
        (status(2, 2), Wanted(1, 3), 2, "wait"),  # Who grows comes first,
        (status(2, 3), Wanted(1, 2, leaves=True), None, "wait"),  # and workers go last.
        (status(1, 3), Wanted(1, 2, leaves=True), None, "leave"),
        (status(1, 3), Wanted(1, 2), 1, "wait"),
        (status(1, 3, scaling="remove worker 2: move"), Wanted(1, 2, leaves=True), None, "wait"),
        (status(1, 2), Wanted(1, 2, leaves=True), None, "done"),
        (status(2, 3), Wanted(2), 2, "done"),
        (status(0, 0, state="gathering"), Wanted(1, 1), 0, "wait"),
    ],
)
def test_one_thing_is_done_after_the_other(
    seen: Message, wanted: Wanted, alive: int | None, step: Step
) -> None:
    assert following(seen, wanted, alive) == step


class Job(Servers):
    """A coordinator that does at once what it is asked, and the rank that keeps the servers."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.servers, self.workers = 1, 1
        self.running, self.joins, self.wrong = 1, True, ""
        self.changed = threading.Condition()
        self.heard: list[Message] = []
        self.control = Control()
        self.control.wake = self.hear
        self.resumed: list[Message] = []
        self.control.at_once("resume", self.resumed.append)
        self.thread = threading.Thread(target=self._answer, daemon=True)
        self.thread.start()

    def start(self) -> None:
        with self.changed:
            self.running += 1
            self.servers += self.joins

    def alive(self) -> int:
        return self.running

    def failed(self) -> str:
        return self.wrong

    def hear(self) -> None:
        with self.changed:
            while (message := self.control.unsent()) is not None:
                self.control.sent(message)
                self.heard.append(message)
            self.changed.notify_all()

    def order(self, kind: str, number: int, **fields: Any) -> None:
        self.control.take({"type": kind, "order": number, **fields})

    def until(self, condition: Any) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, WITHIN_S), self.heard

    def _answer(self) -> None:
        try:
            while True:
                side = self.place.side()
                message = side.channel.receive(Patience(WITHIN_S, "a question"))
                with self.changed:
                    if message["type"] == "remove":
                        assert message == {"type": "remove", "role": "server", "id": self.servers}
                        self.servers -= 1
                        self.running -= 1
                        side.say("outcome", done=True)
                    else:
                        side.say("status", **status(self.servers, self.workers))
                    self.changed.notify_all()
        except Broken:
            pass  # The test is over.


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.setattr(scaling, "LOOK_S", 0.001)
    job = Job(Place())
    yield job
    job.place.close()
    job.thread.join(WITHIN_S)


def test_the_first_rank_has_servers_come_and_go(job: Job) -> None:
    Scaling(job.control, job.place.settings, lambda: 7, job, count=1).install(joins=False)
    job.order("rescale", 1, generation=5, world=1, servers=3)
    job.until(lambda: job.heard)
    assert job.heard == [
        {"type": "rescaled", "order": 1, "generation": 5, "step": 7, "pause_ns": 0}
    ]
    assert job.servers == job.running == 3
    job.order("rescale", 2, generation=6, world=1, servers=1)
    job.until(lambda: len(job.heard) == 2)
    assert job.servers == 1


def test_what_cannot_be_had_is_told_and_undone(job: Job) -> None:
    Scaling(job.control, job.place.settings, lambda: 7, job, count=1).install(joins=False)
    job.order("rescale", 1, generation=5, world=2, servers=3)  # No other worker comes.
    job.until(lambda: job.servers == 3)
    job.wrong = "server 3 could not join"
    job.until(lambda: job.heard)
    assert (job.heard[0]["type"], job.heard[0]["error"]) == ("failed", "server 3 could not join")
    job.until(lambda: job.servers == 1)


def test_what_is_withdrawn_is_undone(job: Job) -> None:
    Scaling(job.control, job.place.settings, lambda: 7, job, count=1).install(joins=False)
    job.order("rescale", 1, generation=5, world=2, servers=2)
    job.until(lambda: job.servers == 2)
    job.order("resume", 2)
    assert [message["order"] for message in job.resumed] == [2], "whoever saw it before still does"
    job.until(lambda: job.servers == 1)
    job.order("rescale", 3, generation=6, world=1, servers=2)
    job.until(lambda: job.heard)
    assert job.heard[0]["order"] == 3


def test_a_newcomer_says_that_it_is_there_and_who_leaves_that_it_has(job: Job) -> None:
    scales = Scaling(job.control, job.place.settings, lambda: 7)
    scales.install(joins=True)
    job.until(lambda: job.heard)
    assert job.heard.pop() == {"type": "ready", "port": 0}
    job.workers = 2
    job.order("rescale", 1, generation=5, world=1, servers=1, leaves=True)
    assert job.heard == []
    scales.finish()
    job.until(lambda: job.heard)
    assert job.heard[0]["type"] == "rescaled"
