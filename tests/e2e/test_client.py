"""The client library's whole surface against a cluster of real processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skep_client import (
    AsyncClient,
    ChangeFailedError,
    Client,
    ConflictError,
    ForbiddenError,
    InvalidError,
    JobSpec,
    NotFoundError,
    NotInTimeError,
    UnauthorizedError,
)
from skep_services.gateway.answers import ChangeTaken
from tests.support.embedded import Embedded, until

pytestmark = pytest.mark.e2e

JOBS = Path(__file__).parent / "jobs"
NOTEBOOK = Path(__file__).parents[2] / "docs" / "examples" / "client.ipynb"
DEADLINE_S = 120.0
ON_CLUSTER = {
    *(
        "ask_trial",
        "begin_search",
        "cancel",
        "cancel_search",
        "checkpoint",
        "curve",
        "demote_trial",
    ),
    *("events", "get", "gpus", "health", "job", "jobs", "logs", "migrate", "nodes", "pack", "plan"),
    *("prioritise", "promote_trial", "resize", "resume", "search", "searches", "submit", "suspend"),
    *("tell_trial", "trace", "unpack", "usage", "vcs", "wait", "wait_change", "wait_search"),
    *("watch", "what_if", "why"),
}
"""The methods that send something."""


class Used:
    """Notes which methods of a client were called."""

    def __init__(self, client: Any) -> None:
        self.client, self.names = client, set[str]()

    def __getattr__(self, name: str) -> Any:
        self.names.add(name)
        return getattr(self.client, name)


@pytest.fixture
def client(cluster: Embedded) -> Iterator[Client]:
    with Client(home=str(cluster.home), vc="nlp", patience_s=DEADLINE_S) as made:
        yield made


def test_every_method_on_a_cluster(client: Client, tmp_path: Path) -> None:
    used: Any = Used(client)
    _jobs(used, tmp_path)
    _changes(used)
    _searches(used)
    assert used.health().ok
    assert [one.vc for one in used.vcs()] == ["nlp", "vision"]
    assert used.usage("nlp").gpus == 4
    assert {one.node for one in used.nodes()} == {one.node for one in used.gpus()}
    assert used.get("/v1/report", by="vc")["report"]
    assert used.names == ON_CLUSTER
    public = {name for name in dir(Client) if not name.startswith("_")}
    assert public == ON_CLUSTER | {"api", "close"}


def _jobs(client: Client, folder: Path) -> None:
    mark = folder / "go"
    script = f"echo begins; while [ ! -e {mark} ]; do sleep 0.05; done; printf 'a\\nb'"
    assert client.plan(name="greeting", command=script).gpus == 1
    newest = client.events(limit=1)
    seen: list[str] = []
    made = client.submit({"name": "greeting", "command": script}, key=f"key-{folder.name}")
    assert made.accepted
    again = client.submit({"name": "greeting", "command": script}, key=f"key-{folder.name}")
    assert again.job == made.job
    assert client.wait(made, until="started", timeout_s=DEADLINE_S).state == "running"
    assert [row.job for row in client.jobs(name="greeting")] == [made.job]
    with pytest.raises(NotInTimeError, match=f"{made.job} has not ended within 0 s"):
        client.wait(made, timeout_s=0)

    lines = client.logs(made.job, follow=True)
    assert next(lines) == "begins"
    mark.touch()
    assert list(lines) == ["a", "b"]
    assert list(client.logs("greeting")) == ["begins", "a", "b"]
    assert client.wait("greeting").state == "succeeded"
    for event in client.watch(job=made, since=newest[-1].seq if newest else 0):
        seen.append(event.kind)
        if event.kind == "job-ended":
            break
    assert "job-bound" in seen
    assert client.why(made).reasons[0].reason
    assert client.job(made).attempts[0].outcome == "succeeded"
    assert client.trace(made).trace_id
    assert client.curve(made).points == []
    with pytest.raises(ConflictError, match="has already ended") as ended:
        client.cancel(made)
    assert ended.value.reason == "already-ended"


def _changes(client: Client) -> None:
    spec = JobSpec(name="climber", vc="nlp", script=str(JOBS / "curve.py"), args=("0.1", "100000"))
    job = client.submit(spec).job
    until(lambda: client.curve(job).points, f"{job} to say how it goes", DEADLINE_S)
    assert "accuracy" in client.curve(job).points[-1].values
    done = client.wait_change(client.suspend(job), timeout_s=DEADLINE_S)
    assert done.result == "done"
    assert client.job(job).state == "suspended"
    client.wait_change(client.resume(job), timeout_s=DEADLINE_S)
    client.wait_change(client.checkpoint(job), timeout_s=DEADLINE_S)
    asks: list[Callable[[], Any]] = [
        lambda: client.resize(job, workers=2),
        lambda: client.prioritise(job, 7),
        lambda: client.unpack(job),
        lambda: client.pack(job, job),
    ]
    for ask in asks:  # What this job cannot do is refused, with the reason.
        with pytest.raises((ConflictError, InvalidError)) as refused:
            ask()
        assert refused.value.job == job
        assert refused.value.reason
    waits = client.submit(name="waits", command="true", resources={"workers": 4})
    assert client.what_if(waits).options
    client.cancel(waits)
    assert client.wait(waits).state == "cancelled"
    change = ChangeTaken(job=waits.job, ask="suspend", number=1, accepted=True)
    with pytest.raises(ChangeFailedError, match="has ended before its suspend: cancelled"):
        client.wait_change(change)
    assert client.migrate(job).ask == "migrate"
    client.cancel(job)
    assert client.wait(job).state == "cancelled"


def _searches(client: Client) -> None:
    search = client.begin_search(
        {
            "name": "by-hand",
            "vc": "nlp",
            "metric": "accuracy",
            "job": {"command": "sleep 600"},
            "space": {"rate": {"uniform": [0, 1]}},
            "budget": {"trials": 4},
            "sampler": "client",
        }
    ).search
    trial = client.ask_trial(search, {"rate": 0.5}, outside=True, key="one").trial
    assert client.ask_trial(search, {"rate": 0.5}, outside=True, key="one").trial == trial
    assert trial is not None
    client.tell_trial(search, trial, step=3, value=0.75)
    client.tell_trial(search, trial, over="done")
    inside = client.ask_trial(search, {"rate": 0.7}).trial
    assert inside is not None
    client.demote_trial(search, inside)
    assert [row.demoted for row in client.search(search).rows] == [False, True]
    client.promote_trial(search, inside)
    assert search in [one.search for one in client.searches("active", vc="nlp")]
    assert client.cancel_search(search).accepted
    found = client.wait_search(search, timeout_s=DEADLINE_S)
    assert (found.state, found.rows[0].value) == ("over", 0.75)


def test_what_is_refused_has_a_code_and_one_line(cluster: Embedded, client: Client) -> None:
    tokens = cluster.about["gateway"]["tokens"]
    with pytest.raises(NotFoundError, match=r"^there is no job j999999$") as unknown:
        client.job("j999999")
    assert (unknown.value.status, unknown.value.reason) == (404, "unknown-job")
    with pytest.raises(InvalidError) as wrong:
        client.submit(name="x", command="true", resources={"gpus": 99, "cats": 1})
    assert wrong.value.problems
    assert "\n" not in str(wrong.value)
    with Client(client.api, "nonsense") as stranger, pytest.raises(UnauthorizedError):
        stranger.jobs()
    with (
        Client(client.api, tokens["vc-vision"]) as tenant,
        pytest.raises(ForbiddenError) as not_its,
    ):
        tenant.submit(name="x", vc="nlp", command="true")
    assert not_its.value.reason == "wrong-vc"


def test_async_clients_do_several_things_at_once(cluster: Embedded) -> None:
    async def run() -> list[str]:
        async with AsyncClient(home=str(cluster.home), vc="vision") as client:
            made = await asyncio.gather(
                *(client.submit(name=f"n{each}", command=f"echo {each}") for each in range(3))
            )

            async def first_line(job: Any) -> str:
                return await anext(client.logs(job, follow=True))

            lines = await asyncio.gather(*(first_line(each) for each in made))
            ended = await asyncio.gather(*(client.wait(each) for each in made))
            assert {each.state for each in ended} == {"succeeded"}
            async for event in client.watch(job=made[0], since=0):
                if event.kind == "job-ended":
                    break
            with pytest.raises(NotFoundError):
                await client.why("j999999")
            return lines

    assert asyncio.run(run()) == ["0", "1", "2"]


def test_events_go_on_after_the_gateway_was_killed(cluster: Embedded, client: Client) -> None:
    """Each event comes once and in order, those of the time without a gateway among them."""
    before = client.submit(name="before", command="true").job
    client.wait(before)
    with Client(home=str(cluster.home)) as own:
        events = own.watch(vc="nlp", since=client.events(job=before)[0].seq - 1)
        seen = [next(events)]
        cluster.kill("gateway")
        after = client.submit(name="after", command="true").job
        while not (seen[-1].job == after and seen[-1].kind == "job-ended"):
            seen.append(next(events))
    numbers = [event.seq for event in seen]
    assert numbers == sorted(set(numbers))
    assert [event.job for event in seen if event.kind == "job-ended"] == [before, after]


def test_the_notebook_runs(cluster: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells run one after another, as a kernel would run them."""
    monkeypatch.setenv("SKEP_HOME", str(cluster.home))
    monkeypatch.delenv("SKEP_API", raising=False)
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    known: dict[str, Any] = {}
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            source = "".join(cell["source"])
            exec(compile(source, f"cell {number}", "exec"), known)
            assert cell["outputs"] == [], "what it printed is no part of the repository"
    assert known["ends"] == ["succeeded"] * 3
