"""Whatever happens while gangs grow and shrink, every GPU is somebody's or free, and once.

The driver checks after every event: the machine's invariants and those of its cells, and that its
facts alone rebuild it. Here snapshots are compared as well.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from skep.machines.allocator import AllocatorMachine
from skep.machines.base import Restarted
from skep.wire.changes import AskResize, AskSuspend, Goal, JobChanged, Result
from skep.wire.node import Manner, Outcome
from skep.wire.spec import Elastic
from tests.kit import (
    admitted,
    allocator,
    assert_durable_alike,
    cancel_asked,
    exited,
    joined,
    started,
)
from tests.unit.test_allocator_changes import ask, changed, known, of, told

CAN = ("suspend", "release", "resize")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "resize",
                "resize",
                "resize",
                "resize",
                "answer",
                "answer",
                "answer",
                "refuse",
                "submit",
                "end",
                "fail",
                "suspend",
                "cancel",
                "restart",
                "tick",
            ]
        ),
        st.integers(1, 4),
        st.booleans(),
    ),
    min_size=4,
    max_size=25,
)


class Cluster:
    """Two nodes of four GPUs, two tenants, and jobs whose gangs may have one to four ranks."""

    def __init__(self) -> None:
        self.decide = allocator(joined("node-1", 4), joined("node-2", 4), nlp=4, lab=2)
        self.number = 0
        self.open: Any = None

    @property
    def machine(self) -> AllocatorMachine:
        return self.decide.machine

    def feed(self, event: Any) -> None:
        """Decide; ranks that are bound run and say what they can."""
        effects = self.decide(event)
        for command in told(effects):
            self.open = command
        for fact in of(effects, JobChanged):
            if fact.goal is Goal.RESIZE and fact.result is Result.DONE:
                allowed = self.machine.state.jobs[fact.job].spec.elastic
                assert allowed is not None
                assert allowed.min <= self.machine.state.jobs[fact.job].size <= allowed.max
        self.settle()

    def settle(self) -> None:
        for name, job in list(self.machine.state.jobs.items()):
            for node, part in list(job.parts.items()):
                if part == "bound" and job.state == "bound":
                    self.decide(started(name, job.attempt, node))
                    word = known(name, node, CAN)
                    self.decide(msgspec.structs.replace(word, attempt=job.attempt))

    def submit(self, workers: int, *, opportunistic: bool) -> None:
        self.number += 1
        self.feed(
            admitted(
                self.number,
                workers=workers,
                gpus=1,
                elastic=Elastic(min=1, max=4),
                retries=1,
                vc="nlp" if workers % 2 else "lab",
                hard=True,
                **({"opportunistic": True} if opportunistic else {"over_quota": "opportunistic"}),
            )
        )

    def one(self, number: int) -> Any:
        """Return a job that holds GPUs, if there is one."""
        placed = list(self.machine.state.placed.values())
        return placed[number % len(placed)] if placed else None


def act(cluster: Cluster, what: str, number: int, *, flag: bool) -> None:
    job = cluster.one(number)
    match what:
        case "submit":
            cluster.submit(number, opportunistic=flag)
        case "restart":
            cluster.decide.restart()
        case "tick" if cluster.machine.wake_at() is not None:
            cluster.feed(Restarted(cluster.decide.epoch))
        case "answer" | "refuse" if cluster.open is not None:
            manner = Manner.UNCHANGED if what == "refuse" else Manner.BOUNDARY
            cluster.feed(changed(cluster.open, manner))
        case "resize" if job is not None:
            cluster.number += 1
            cluster.feed(ask(cluster.number, AskResize(job=job.job, workers=number)))
        case "suspend" if job is not None:
            cluster.number += 1
            cluster.feed(ask(cluster.number, AskSuspend(job=job.job, release=flag)))
        case "cancel" if job is not None:
            cluster.feed(cancel_asked(int(job.job[1:])))
        case "end" | "fail" if job is not None and job.live:
            outcome = Outcome.SUCCEEDED if what == "end" else Outcome.EXITED
            cluster.feed(exited(job.job, job.attempt, job.live[0], outcome=outcome))
        case _:
            pass


@given(STEPS)
def test_every_gpu_is_somebodys_or_free_whatever_happens(
    steps: list[tuple[str, int, bool]],
) -> None:
    cluster = Cluster()
    cluster.submit(1, opportunistic=False)
    cluster.submit(2, opportunistic=True)
    for what, number, flag in steps:
        act(cluster, what, number, flag=flag)
        again = AllocatorMachine()
        for entry in deepcopy(cluster.machine.snapshot()):
            again.apply(entry)
        assert_durable_alike(again, cluster.machine)
    # All of it comes free again.
    for name in list(cluster.machine.state.jobs):
        cluster.decide(cancel_asked(int(name[1:])))
    for job in list(cluster.machine.state.jobs.values()):
        for node in job.live:
            cluster.decide(exited(job.job, job.attempt, node, outcome=Outcome.STOPPED))
    assert cluster.machine.state.cells.holds == {}
    assert all(not node.holdings for node in cluster.machine.state.nodes.values())
    assert all(node.cpus_free == node.joined.cpus for node in cluster.machine.state.nodes.values())
