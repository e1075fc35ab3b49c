"""What needs a look: each kind of alert, to those that it concerns."""

from __future__ import annotations

from typing import Any

import msgspec

from skep.units import seconds
from skep.wire.facts import CellsAlarm, NodeLost
from skep.wire.held_up import GangHeldUp, PlaceBlamed
from skep.wire.reasons import Reason
from skep_services.gateway import alerts
from skep_services.gateway.alerts import SEVERITY, Alert, Code
from skep_services.gateway.callers import Only
from skep_services.gateway.columns import ALERTS
from skep_services.gateway.limits import Nearly
from skep_services.gateway.live import SILENT_AFTER, Live
from skep_services.gateway.rows import Estimate, Pledged, Times
from skep_services.gateway.views import gpus_view, held_rows, nodes_view
from skep_services.gateway.why import explain
from tests.gateway_kit import Cluster, facts, job_of
from tests.kit import at, joined, spec


def cluster() -> Cluster:
    made = Cluster()
    made.set_vcs(nlp=2)
    made.join(joined("node-1", 2))
    return made


def told(alert: Alert, only: str) -> dict[str, Any] | None:
    row = alert.row(7).shown(only)
    return None if row is None else dict(zip(ALERTS, msgspec.json.decode(row), strict=True))


def test_nodes_that_are_silent_or_lost_concern_everyone() -> None:
    made = cluster()
    live = Live(made.fold, at(0))
    assert not list(alerts.of_nodes(made.fold, live, at(0)))
    late = at(1 + SILENT_AFTER / 1e9)
    (silent,) = alerts.of_nodes(made.fold, live, late)
    assert (silent.code, silent.about) == (Code.NODE_SILENT, "node-1")
    made.tell("ALLOC", facts("allocator", NodeLost(node="node-1")))
    (lost,) = alerts.of_nodes(made.fold, live, late)
    row = told(lost, "vision")
    assert row is not None
    assert (row["code"], row["severity"], row["since"]) == ("node-lost", "critical", 7)
    assert "its 2 GPUs cannot be used" in row["text"]
    assert "skep node drain node-1" in row["todo"]


def test_a_promise_in_danger_and_a_broken_one() -> None:
    made = cluster()
    name = made.submit(spec())
    job = job_of(made.fold, name)
    due = int(at(1_000))
    job.pledged = Pledged(answer="accepted", why="", text="", due=due, outcome="open")
    assert not list(alerts.of_jobs(made.fold, at(10)))
    late = due + seconds(600)
    job.row.estimate = Estimate(end=Times(due - 1, late, late))
    (danger,) = alerts.of_jobs(made.fold, at(10))
    assert danger.code is Code.PROMISE_ENDANGERED
    assert "likely to end 10 min after its deadline" in danger.text
    assert told(danger, "nlp") is not None
    assert told(danger, "vision") is None
    job.pledged.outcome, job.pledged.cause = "broken", Reason.NODE_LOST.value
    (broken,) = alerts.of_jobs(made.fold, at(10))
    assert broken.code is Code.PROMISE_BROKEN
    made.runs(name)
    made.exits(name, second=20)
    assert [each.code for each in alerts.of_jobs(made.fold, at(30))] == [Code.PROMISE_BROKEN]
    assert not list(alerts.of_jobs(made.fold, at(25 * 3600)))


def test_broken_cells_and_limits_concern_their_clusters() -> None:
    made = cluster()
    alarm = CellsAlarm(
        rule=Reason.WAITS_FOR_CELLS, chain="cpu", where="r/0", vcs=("nlp",), text="secret", at=at(5)
    )
    made.fold.state.alarms["cpu", "r/0"] = alarm  # type: ignore[index]
    (cells,) = alerts.of_cells(made.fold)
    for only, shown in (("", True), ("nlp", False)):
        row = told(cells, only)
        assert row is not None
        assert ("secret" in row["text"]) is shown
    assert told(cells, "vision") is None
    near = [Nearly("VC nlp", "sessions", "near"), Nearly("person eva", "requests", "met")]
    of_vc, of_person = alerts.of_limits(near)
    assert told(of_vc, "nlp") is not None
    assert told(of_vc, "vision") is None
    assert told(of_person, "nlp") is None
    assert told(of_person, "") is not None


def test_every_code_has_a_severity() -> None:
    assert set(SEVERITY) == set(Code)


def test_a_slow_rank_concerns_its_tenant_and_a_blamed_gpu_operators() -> None:
    made = cluster()
    job = made.submit(spec())
    made.runs(job)
    held = GangHeldUp(
        job=job,
        attempt=1,
        rank=0,
        node="node-1",
        devices=(0,),
        why=Reason.LOADER_SLOW,
        at=at(60),
        tenant="ann",
        own_ns=3_000_000_000,
        usual_ns=5_000_000,
        step_ns=3_100_000_000,
    )
    made.tell("ALLOC", facts("allocator", held))
    (slowed,) = alerts.of_jobs(made.fold, at(70))
    assert slowed.code is Code.JOB_SLOWED
    assert slowed.text == (
        "the gang trains 29.5 x slower for rank 0 on node-1, GPU 0: it spends 3.0 s of a "
        "mini-batch on its own with its data loader, the median of the gang is 5.0 ms"
    )
    assert told(slowed, "nlp") is not None
    assert told(slowed, "vision") is None
    live = Live(made.fold, at(70))
    reasons = explain(job_of(made.fold, job), made.fold, live, at(70))["reasons"]
    assert {"reason": "loader-slow", "text": slowed.text, "needs": ""} in reasons
    (row,) = held_rows(made.fold.state, job)
    assert (row["rank"], row["why"], row["slower_milli"]) == (0, "loader-slow", 29_523)
    made.tell("ALLOC", facts("allocator", msgspec.structs.replace(held, over=True)))
    assert not list(alerts.of_jobs(made.fold, at(80)))

    blame = PlaceBlamed(
        node="node-1",
        device=0,
        blamed=True,
        why=Reason.HELD_UP_GANGS,
        at=at(90),
        until=at(900),
        jobs=("j1", "j2", "j3", "j4", "j5", "j6"),
        findings=6,
        tenants=2,
    )
    made.tell("ALLOC", facts("allocator", blame))
    live.heard["node-1"] = at(100)
    (shown,) = alerts.of_nodes(made.fold, live, at(100))
    assert (shown.code, shown.about) == (Code.PLACE_BLAMED, "node-1/0")
    assert "6 times a rank there was slow or hung (j1, j2, j3, j4 and 2 more)" in shown.text
    assert told(shown, "") is not None
    assert told(shown, "nlp") is None
    assert "`skep gpu quarantine node-1 0`" in shown.todo
    asking: tuple[Only, ...] = ("", "nlp", ("nlp",), ())
    of = [gpus_view(made.fold, live, at(100), vc, lambda _: False) for vc in asking]
    seen = [[bool(gpu["blamed"]) for gpu in gpus] for gpus in of]
    assert seen == [[True, False], *[[False] * 2] * 3], "a person without a VC is no operator"
    nodes = [nodes_view(made.fold, live, at(100), vc, lambda _: False) for vc in asking]
    assert [node["blamed"] for (node,) in nodes] == [shown.text, "", "", ""]
    whole = msgspec.structs.replace(blame, device=-1)
    made.tell("ALLOC", facts("allocator", msgspec.structs.replace(blame, blamed=False), whole))
    (shown,) = alerts.of_nodes(made.fold, live, at(100))
    assert shown.about == "node-1"
    assert "`skep node drain node-1`" in shown.todo, "no single GPU is to be taken out"
    live.heard["node-1"] = at(900)
    assert not list(alerts.of_nodes(made.fold, live, at(900))), "its time is over"
