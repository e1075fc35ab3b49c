"""What `skep down` does with jobs that run, and what it asks first."""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skep_services.cli import down, leaving
from skep_services.cli.exits import CommandError
from skep_services.supervisor import kept, resuming
from skep_services.supervisor.config import Cluster, Gateway, Nats, NodeConfig
from skep_services.supervisor.kept import Kept
from tests.cli_kit import Asked, FakeGateway, Told


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGateway]:
    monkeypatch.chdir(tmp_path)  # The state folder is ".".
    made = FakeGateway()
    yield made
    made.close()


class Jobs:
    """Active jobs behind a gateway: id -> (state, what it can do, what comes of a suspension)."""

    def __init__(self, gateway: FakeGateway, **jobs: tuple[str, tuple[str, ...], str]) -> None:
        self.gateway = gateway
        rows = [
            {"job": job, "state": state, "name": f"n-{job}", "started_at": 1, "steps": 7}
            for job, (state, _, _) in jobs.items()
        ]
        gateway.on("GET /v1/jobs", {"jobs": rows})
        gateway.on("GET /v1/nodes", {"nodes": [{"node": "n1", "state": "up"}]})
        gateway.on("POST /v1/admin/drain", {})
        for row in rows:
            job = str(row["job"])
            _, can, result = jobs[job]
            ask = {"number": 5, "result": result, "why": "cannot", "detail": "it will not"}
            gateway.on(f"GET /v1/jobs/{job}", {**row, "can": can, "asks": [ask]})
            gateway.on(f"POST /v1/jobs/{job}/suspend", {"job": job, "number": 5, "accepted": True})
            gateway.on(f"POST /v1/jobs/{job}/resume", {})

    def prepare(self, device: str = "cpu", before: Kept = Kept()) -> leaving.Leave:  # noqa: B008
        cluster: dict[str, Any] = {
            "gateway": {"url": self.gateway.url, "tokens": {"operator": "t"}},
            "nodes": [{"name": "n1", "device": device}],
        }
        self.leave, self.client = leaving.prepare(".", cluster, before)
        return self.leave


def test_jobs_are_suspended_where_they_are_and_kept(gateway: FakeGateway) -> None:
    jobs = Jobs(
        gateway,
        j1=("running", ("suspend", "release"), "done"),
        j2=("running", (), "done"),
        j3=("running", ("suspend", "checkpoint"), "done"),
        j4=("suspended", (), ""),
        j5=("queued", (), ""),
    )
    leave = jobs.prepare()
    assert leave == leaving.Leave(Kept(("j4", "j1", "j2"), ("j1", "j2"), ()), ("j3",), ())
    assert gateway.last("POST /v1/jobs/j1/suspend").json() == {}


def test_jobs_with_devices_release_them_while_no_other_job_can_have_them(
    gateway: FakeGateway,
) -> None:
    jobs = Jobs(gateway, j1=("running", ("suspend", "release"), "done"))
    before = Kept(("j9",), ("j9",), ("n0",))
    assert jobs.prepare("fake", before).kept == Kept(("j9", "j1"), ("j9", "j1"), ("n0", "n1"))
    assert gateway.last("POST /v1/jobs/j1/suspend").json() == {"release": True}
    assert gateway.last("POST /v1/admin/drain").json() == {"node": "n1", "drain": True}


def test_what_cannot_be_suspended_is_lost_unless_somebody_agrees(gateway: FakeGateway) -> None:
    jobs = Jobs(gateway, j1=("running", (), "refused"), j2=("running", (), "done"))

    def refuse(_: Asked) -> Told:
        return Told(409, {"error": {"reason": "cannot", "text": "its agent is away"}})

    gateway.on("POST /v1/jobs/j2/suspend", refuse)
    leave = jobs.prepare()
    assert leave.kept == Kept()
    told = dict(leave.lost)
    assert "7 mini-batches: it will not" in told["j1"]
    assert told["j2"].endswith("its agent is away")
    assert leaving.agree(leave.lost, yes=True, ask=None)
    assert not leaving.agree(leave.lost, yes=False, ask=None)
    asked: list[str] = []

    def answer(question: str, word: str) -> str:
        asked.append(question)
        return word

    assert leaving.agree(leave.lost, yes=False, ask=lambda text: answer(text, "y\n"))
    assert not leaving.agree(leave.lost, yes=False, ask=lambda text: answer(text, "\n"))
    assert "j2" in asked[0]
    assert leaving.agree((), yes=False, ask=None)


def test_a_no_lets_everything_go_on(gateway: FakeGateway) -> None:
    jobs = Jobs(gateway, j1=("running", ("release",), "done"))
    leave = jobs.prepare("cuda")
    leaving.undo(jobs.client, leave.kept)
    assert gateway.last("POST /v1/jobs/j1/resume").json() == {}
    assert gateway.last("POST /v1/admin/drain").json() == {"node": "n1", "drain": False}


def test_an_interruption_lets_everything_go_on(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = Jobs(gateway, j1=("running", (), "done"), j2=("running", (), "done"))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(leaving, "outcome_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        jobs.prepare("cuda")
    assert gateway.last("POST /v1/jobs/j2/resume").json() == {}
    assert gateway.last("POST /v1/admin/drain").json() == {"node": "n1", "drain": False}
    assert kept.read(".") == Kept()


def test_an_interrupted_question_lets_everything_go_on(
    gateway: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = Jobs(gateway, j1=("running", (), "refused"), j2=("running", (), "done"))
    jobs.prepare("cuda")
    monkeypatch.setattr(leaving, "prepare", lambda *_: (jobs.leave, jobs.client))

    def interrupted(*_: object, **__: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(leaving, "agree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        down._leave(str(tmp_path), {}, Namespace(json=False, yes=False))
    assert gateway.last("POST /v1/jobs/j2/resume").json() == {}
    assert gateway.last("POST /v1/admin/drain").json() == {"node": "n1", "drain": False}


def test_a_job_that_has_ended_does_not_keep_the_others_from_going_on(gateway: FakeGateway) -> None:
    jobs = Jobs(gateway, j1=("running", (), "done"), j2=("running", (), "done"))
    leave = jobs.prepare("cuda")

    def refuse(_: Asked) -> Told:
        return Told(409, {"error": {"reason": "ended", "text": "it has ended"}})

    gateway.on("POST /v1/jobs/j1/resume", refuse)
    leaving.undo(jobs.client, leave.kept)
    assert gateway.last("POST /v1/jobs/j2/resume").json() == {}
    assert gateway.last("POST /v1/admin/drain").json() == {"node": "n1", "drain": False}


def test_now_forgets_kept_jobs_and_not_the_nodes_to_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = str(tmp_path)
    kept.write(home, Kept(("j1",), ("j1",), ("n1",)))
    monkeypatch.setattr(down, "_read_for_down", lambda *_, **__: {"supervisor": None})
    monkeypatch.setattr("skep_services.supervisor.home.supervisor_alive", lambda _: False)
    monkeypatch.setattr(down, "_stop_left", lambda *_: [])
    down.run_down(Namespace(home=home, now=True, wipe=False, json=True, yes=False))
    assert kept.read(home) == Kept((), (), ("n1",))


@pytest.mark.parametrize("away", ["POST /v1/admin/drain", "GET /v1/jobs/j1"])
def test_nodes_that_a_dying_gateway_leaves_closed_are_opened_at_the_next_up(
    gateway: FakeGateway, away: str
) -> None:
    Jobs(gateway, j1=("running", (), "done"))

    def die(_: Asked) -> Told:
        for route in gateway.routes:
            gateway.on(route, {}, 503)
        return Told(503, {})

    gateway.on(away, die)
    kept.write(".", Kept(("j9",), ("j9",), ("n0",)))
    node = {"name": "n1", "device": "cuda"}
    cluster = {"gateway": {"url": gateway.url, "tokens": {"operator": "t"}}, "nodes": [node]}
    leave = down._leave(".", cluster, Namespace(json=True, yes=True))
    assert leave.kept == Kept(("j9",), ("j9",), ("n0", "n1"))


def test_a_gateway_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "PATIENCE_S", 0.0)
    cluster = {"gateway": {"url": "http://127.0.0.1:1", "tokens": {"operator": "t"}}, "nodes": []}
    with pytest.raises(CommandError):
        leaving.prepare("", cluster, Kept())


@pytest.mark.parametrize("status, asked", [(503, 2), (409, 1)])
def test_what_the_gateway_does_not_answer_is_asked_again(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch, status: int, asked: int
) -> None:
    monkeypatch.setattr(resuming, "NODES_LOOK_EVERY_S", 0.0)
    times: list[int] = []

    def answer(_: Asked) -> Told:
        times.append(1)
        return Told(status if len(times) == 1 else 200, {})

    gateway.on("POST /v1/jobs/j1/resume", answer)
    made = Cluster(
        nodes=[NodeConfig(name="n1")],
        vcs={},
        nats=Nats(url="", users={}),
        gateway=Gateway(url=gateway.url, tokens={"operator": "t"}),
    )
    asyncio.run(resuming._post(made, "/v1/jobs/j1/resume", {}))
    assert len(times) == asked


def test_what_is_kept_is_noted_until_it_is_forgotten(tmp_path: Path) -> None:
    home = str(tmp_path)
    assert kept.read(home) == Kept()
    kept.write(home, Kept(("j1",), (), ("n1",)))
    assert kept.read(home) == Kept(("j1",), (), ("n1",))
    for damaged in ("", "[]", '{"jobs": 3}', json.dumps({"jobs": ["j1"]})):
        (tmp_path / "kept.json").write_text(damaged)
        assert kept.read(home) == Kept()
    kept.forget(home)
    kept.forget(home)
    assert not (tmp_path / "kept.json").exists()
    assert kept.is_kept("j1.2.0", ("j1",))
    assert not kept.is_kept("j12.1.0", ("j1",))
