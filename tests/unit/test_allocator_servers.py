"""Jobs on parameter servers: how many they have, in one change with how many workers."""

from __future__ import annotations

from typing import Any

import pytest

from skep.machines.allocator import AllocatorMachine
from skep.machines.base import Effect, Send
from skep.wire.changes import AskResize, Goal, Result
from skep.wire.commands import BindJob, Resize
from skep.wire.facts import JobBound
from skep.wire.node import Manner, Outcome
from skep.wire.reasons import Reason
from skep.wire.resizes import GangWidened
from skep.wire.spec import Elastic, ParameterServers
from tests.kit import Driver, admitted, allocator, exited, joined, started
from tests.unit.test_allocator_changes import ask, changed, ends, known, of, over, told

CAN = ("suspend", "resize")


def on_servers(*nodes: str, **more: Any) -> tuple[Driver[AllocatorMachine], list[Effect]]:
    """Return an allocator that runs j1 on two parameter servers, and what it did for that."""
    given = {
        "gpus": 1,
        "workers": 1,
        "script": "train.py",
        "command": None,
        "ps": ParameterServers(servers=2, max=4),
        **more,
    }
    decide = allocator(*(joined(node, 4) for node in nodes or ("node-1",)))
    decide.machine.settings.key = b"k"
    effects = decide(admitted(1, **given))
    for node in decide.machine.state.jobs["j1"].members:
        decide(started("j1", node=node))
        decide(known("j1", node, CAN))
    return decide, effects


def binds(effects: list[Effect]) -> list[BindJob]:
    return [
        effect.message
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, BindJob)
    ]


def resize(decide: Driver[AllocatorMachine], number: int = 2, **sizes: int) -> list[Effect]:
    return decide(ask(number, AskResize(job="j1", **sizes)))


def test_a_script_is_started_with_its_servers_and_their_secret() -> None:
    _, effects = on_servers(args=("--lr", "1"))
    (command,) = binds(effects)
    assert command.argv == ("@python", "-m", "skep_job.ps.launch", "train.py", "--lr", "1")
    assert command.servers == 2
    (bound,) = of(effects, JobBound)
    assert len(bound.secret) == 64
    assert command.secret == bound.secret


def test_servers_come_and_go_without_a_gpu() -> None:
    decide, _ = on_servers()
    before = decide.machine.state.jobs["j1"].members
    effects = resize(decide, servers=3)
    (command,) = told(effects)
    change = command.change
    assert isinstance(change, Resize)
    assert (change.world, change.servers, len(change.ranks)) == (1, 3, 1)
    assert change.master_port == decide.machine.state.jobs["j1"].port, "where the attempt began"
    assert not of(effects, GangWidened)
    effects = decide(changed(command))
    assert (ends(effects), over(effects)) == (
        [(Goal.RESIZE, Result.DONE)],
        [(2, Result.DONE, None)],
    )
    job = decide.machine.state.jobs["j1"]
    assert (job.servers, job.size, job.members) == (3, 1, before)
    assert over(resize(decide, 3, servers=3)) == [(3, Result.DONE, None)]


def test_workers_and_servers_change_together_or_not_at_all() -> None:
    decide, _ = on_servers(elastic=Elastic(min=1, max=3))
    (command,) = told(resize(decide, workers=2, servers=1))
    assert isinstance(command.change, Resize)
    assert (command.change.world, command.change.servers) == (2, 1)
    decide(changed(command, Manner.UNCHANGED, detail="no"))
    job = decide.machine.state.jobs["j1"]
    assert (job.size, job.servers) == (1, 2)
    (command,) = told(resize(decide, 3, workers=3))
    assert isinstance(command.change, Resize)
    assert command.change.servers == 2, "what is not given stays as it is"
    decide(changed(command))
    assert (job.size, job.servers) == (3, 2)


def test_a_change_of_both_survives_the_allocator() -> None:
    decide, _ = on_servers(elastic=Elastic(min=1, max=3))
    (before,) = told(resize(decide, workers=2, servers=1))
    (again,) = told(decide.restart())
    assert again.change == before.change
    decide(changed(again))
    job = decide.machine.state.jobs["j1"]
    assert (job.size, job.servers) == (2, 1)


def test_another_attempt_begins_with_what_the_spec_says() -> None:
    decide, effects = on_servers(retries=1)
    (first,) = binds(effects)
    (command,) = told(resize(decide, servers=4))
    decide(changed(command))
    effects = decide(exited("j1", outcome=Outcome.EXITED))
    (again,) = binds(effects)
    assert again.servers == decide.machine.state.jobs["j1"].servers == 2
    assert again.secret not in {"", first.secret}


@pytest.mark.parametrize(
    "spec, sizes, why, detail",
    [
        ({}, {"servers": 5}, Reason.BAD_VALUE, "1 to 4 parameter servers"),
        ({}, {"workers": 2}, Reason.CANNOT, "no `elastic`"),
        ({"ps": None}, {"servers": 1}, Reason.CANNOT, "no `ps`"),
        ({"workers": 5}, {"servers": 3}, Reason.ONE_NODE_ONLY, "it is on 2"),
    ],
)
def test_what_the_spec_does_not_allow_is_refused(
    spec: dict[str, Any], sizes: dict[str, int], why: Reason, detail: str
) -> None:
    decide, _ = on_servers("node-1", "node-2", **spec)
    effects = resize(decide, **sizes)
    assert over(effects) == [(2, Result.REFUSED, why)]
    assert detail in effects[-1].fact.detail  # type: ignore[union-attr]
