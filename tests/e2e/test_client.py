"""The client library's whole surface against a cluster of real processes."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skep.wire.changes import ASKS
from skep_client import (
    AsyncClient,
    BadCallError,
    ChangeFailedError,
    Client,
    ConflictError,
    ForbiddenError,
    InvalidError,
    JobSpec,
    NotFoundError,
    NotInTimeError,
    SessionError,
    UnauthorizedError,
)
from skep_services.gateway.alerts import Code
from skep_services.gateway.answers import ChangeTaken
from skep_services.gateway.api import CALLS
from skep_services.gateway.front import METHODS as SENT
from skep_services.gateway.operations import OPERATIONS
from tests.support.embedded import Embedded, until

pytestmark = pytest.mark.e2e

JOBS = Path(__file__).parent / "jobs"
NOTEBOOK = Path(__file__).parents[2] / "docs" / "examples" / "client.ipynb"
DEADLINE_S = 120.0
METHODS: dict[tuple[str, str], tuple[str, ...]] = {
    ("GET", "/v1/jobs"): ("jobs",),
    ("POST", "/v1/jobs"): ("submit",),
    ("GET", "/v1/jobs/{job}"): ("job", "wait", "wait_change"),
    ("DELETE", "/v1/jobs/{job}"): ("cancel",),
    **{("POST", f"/v1/jobs/{{job}}/{verb}"): (verb,) for verb in ASKS if verb != "priority"},
    ("POST", "/v1/jobs/{job}/priority"): ("prioritise",),
    ("POST", "/v1/plan"): ("plan",),
    ("GET", "/v1/jobs/{job}/why"): ("why", "what_if"),
    ("GET", "/v1/jobs/{job}/curve"): ("curve",),
    ("GET", "/v1/jobs/{job}/rates"): ("rates",),
    ("GET", "/v1/jobs/{job}/trace"): ("trace",),
    ("GET", "/v1/jobs/{job}/blame"): ("blame",),
    ("GET", "/v1/jobs/{job}/logs"): ("logs",),
    ("GET", "/v1/jobs/{job}/terminal"): ("exec",),
    ("POST", "/v1/jobs/{job}/requeue"): ("requeue",),
    ("GET", "/v1/jobs/{job}/outputs"): ("outputs",),
    ("GET", "/v1/jobs/{job}/outputs/file"): ("copy",),
    ("GET", "/v1/jobs/{job}/outputs/digest"): ("copy",),
    ("GET", "/v1/code/{vc}"): ("code",),
    ("POST", "/v1/code/{vc}"): ("submit",),
    ("PUT", "/v1/code/{vc}/{digest}"): ("submit",),
    ("GET", "/v1/events"): ("events", "watch"),
    ("GET", "/v1/searches"): ("searches",),
    ("POST", "/v1/searches"): ("begin_search",),
    ("GET", "/v1/searches/{search}"): ("search", "wait_search"),
    ("DELETE", "/v1/searches/{search}"): ("cancel_search",),
    ("POST", "/v1/searches/{search}/trials"): ("ask_trial",),
    ("POST", "/v1/searches/{search}/trials/{trial}"): ("tell_trial",),
    ("POST", "/v1/searches/{search}/trials/{trial}/{do}"): ("demote_trial", "promote_trial"),
    ("GET", "/v1/services"): ("services",),
    ("POST", "/v1/services"): ("serve",),
    ("GET", "/v1/services/{service}"): ("service", "wait_service", "watch_service"),
    ("PUT", "/v1/services/{service}"): ("update_service",),
    ("POST", "/v1/services/{service}/scale"): ("scale_service",),
    ("DELETE", "/v1/services/{service}"): ("stop_service",),
    ("GET", "/v1/nodes"): ("nodes",),
    ("GET", "/v1/gpus"): ("gpus",),
    ("GET", "/v1/vcs"): ("vcs",),
    ("GET", "/v1/vcs/{vc}/usage"): ("usage",),
    ("GET", "/v1/report"): ("report",),
    ("GET", "/v1/state"): ("alerts", "state"),
    ("GET", "/v1/history"): ("history",),
    ("GET", "/v1/jobs/{job}/links"): ("links",),
    ("GET", "/v1/usage"): ("usages",),
    ("GET", "/v1/fair"): ("fair",),
    ("GET", "/v1/volumes"): ("volumes",),
    ("GET", "/v1/windows"): ("windows",),
    ("GET", "/v1/caches"): ("caches",),
    ("DELETE", "/v1/caches/{node}/{key}"): ("remove_cache",),
    ("GET", "/v1/notices"): ("notices",),
    ("POST", "/v1/notices/test"): ("test_notice",),
    ("GET", "/v1/blame"): ("blames",),
    ("GET", "/v1/promises"): ("promises",),
    ("GET", "/v1/trials"): ("trials",),
    ("GET", "/v1/calibration"): ("calibration",),
    ("GET", "/v1/models"): ("models",),
    ("GET", "/v1/models/{model}"): ("models",),
    ("GET", "/v1/limits"): ("limits",),
    ("GET", "/v1/whoami"): ("whoami",),
    ("GET", "/v1/health"): ("health",),
    ("GET", "/v1/cells"): ("get",),
    ("GET", "/v1/replays"): ("replays",),
    ("POST", "/v1/replays"): ("begin_replay",),
    ("GET", "/v1/replays/{replay}"): ("replay",),
    ("DELETE", "/v1/replays/{replay}"): ("end_replay",),
}
"""Which methods ask for an operation: every one of them is called on the cluster below."""
WITHOUT = {
    "operators": "an operator's, for which there are commands",
    "people": "people and their tokens are an operator's, or of `skep login`",
    "nodes": "nodes and servers join by commands",
    "secrets": "`skep secret` seals values, which must not come into a notebook",
    "GET /v1/jobs/{job}/events": "`events(job=...)` lists the same",
    "GET /v1/cells.svg": "a picture",
    **{f"{method} {CALLS}": "requests to replicas need any HTTP client" for method in SENT},
    "GET /v1/policies": "`get`: for the page; `skep policies` needs no cluster",
    "GET /v1/cluster-file": "for the page; `skep vc` has the file",
    "POST /v1/cluster-file/check": "for the page; `skep vc check` does the same",
    "GET /v1/state/changes": "for pages, which keep tables; `watch` yields events",
    "GET /v1/templates": "`get`: for `skep template`",
    "PUT /v1/templates/{vc}/{name}": "for `skep template set`",
    "DELETE /v1/templates/{vc}/{name}": "for `skep template rm`",
    "GET /metrics": "for Prometheus",
    "GET /": "a page",
    "GET /v1/openapi.json": "the document itself",
    "GET /v1/docs": "a page",
}
"""Why an operation, or all of a tag, has no method of its own."""
ON_CLUSTER = {name for names in METHODS.values() for name in names}
TASK = 'test "$SKEP_ARRAY_INDEX" = 0 || test -e {mark}'
LEAVES = (
    "import os; os.mkdir('out'); open('out/w', 'wb').write(b'w' * 70_000); print(open('x').read())"
)


class Used:
    """Notes which methods of a client were called."""

    def __init__(self, client: Any) -> None:
        self.client, self.names = client, set[str]()
        self.asked = set[tuple[str, str]]()
        client._http.event_hooks = {"request": [self._note]}

    def _note(self, request: Any) -> None:
        self.asked.add((request.method, operation_of(request.method, request.url.path)))

    def __getattr__(self, name: str) -> Any:
        self.names.add(name)
        return getattr(self.client, name)


def operation_of(method: str, path: str) -> str:
    """Return the path of the operation that a request asks for."""
    fits = [
        known
        for known_method, known in OPERATIONS
        if known_method == method
        and re.fullmatch(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(known)), path)
    ]
    return min(fits, key=lambda known: known.count("{"))


def test_every_operation_has_a_method_or_a_reason() -> None:
    for (method, path), operation in OPERATIONS.items():
        without = operation.tag in WITHOUT or f"{method} {path}" in WITHOUT
        named = (method, path) in METHODS
        assert named or without, f"{method} {path}: give the client a method, or say why not"
    assert set(METHODS) <= set(OPERATIONS)
    assert not {f"{method} {path}" for method, path in METHODS} & set(WITHOUT)


@pytest.fixture
def client(cluster: Embedded) -> Iterator[Client]:
    with Client(home=str(cluster.home), vc="nlp", patience_s=DEADLINE_S) as made:
        yield made


def test_every_method_on_a_cluster(client: Client, tmp_path: Path) -> None:
    used: Any = Used(client)
    _jobs(used, tmp_path)
    _changes(used)
    _searches(used)
    _services(used, tmp_path)
    _arrays_and_holds(used, tmp_path)
    _code_and_outputs(used, tmp_path)
    assert used.health().ok
    assert [one.vc for one in used.vcs()] == ["nlp", "vision"]
    assert used.usage("nlp").gpus == 4
    assert {one.node for one in used.nodes()} == {one.node for one in used.gpus()}
    assert used.get("/v1/cells")
    assert used.report("vc").report
    assert used.state("jobs", vc="nlp").tables["jobs"].rows
    assert used.history(1).rows
    assert used.whoami().operator
    _lists(used)
    assert used.names == ON_CLUSTER
    of_a_session = {("GET", "/v1/jobs/{job}/terminal")}
    assert used.asked | of_a_session == set(METHODS)
    public = {name for name in dir(Client) if not name.startswith("_")}
    assert public == ON_CLUSTER | {"api", "close", "is_local"}


def _lists(client: Client) -> None:
    assert {one.code for one in client.alerts()} <= {code.value for code in Code}
    assert client.replays().replays == []
    with pytest.raises(InvalidError, match="no policy"):
        client.begin_replay(0, 1, {"nlp": {"name": "best"}})
    for of_replay in (client.replay, client.end_replay):
        with pytest.raises(NotFoundError):
            of_replay("r1")
    assert {one.vc for one in client.usages().vcs} == {"nlp", "vision"}
    assert client.volumes(vc="nlp").volumes == []
    assert client.windows().windows == []
    assert {one["node"] for one in client.caches().nodes} == {one.node for one in client.nodes()}
    with pytest.raises(NotFoundError):
        client.remove_cache(client.nodes()[0].node, "0" * 32)
    with pytest.raises(BadCallError, match="not a key: ''"):
        client.remove_cache("node-1", "")
    for ask in (client.notices, lambda: client.test_notice("chat", "nlp")):
        with pytest.raises(ConflictError, match="no notifier answers"):
            ask()
    assert [one["vc"] for one in client.blames(vc="nlp").vcs] == ["nlp"]
    assert client.promises(limit=1).promises == []
    assert client.trials(vc="nlp", limit=1).total == 0
    assert client.calibration(vc="nlp").left_out == 0
    assert client.fair(vc="nlp").vcs == []
    assert client.models().left_out == 0
    with pytest.raises(NotFoundError):
        client.models("nosuch")
    assert client.limits().near == []


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
    assert client.links(made).log
    assert client.curve(made).points == []
    assert client.rates(made).job == made.job
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


def _services(client: Client, folder: Path) -> None:
    source = folder / "server"
    source.mkdir()
    (source / "serving.py").write_text((JOBS / "serving.py").read_text())
    job = {"command": [sys.executable, "serving.py", "one"], "code": str(source)}
    spec = {"name": "by-hand", "vc": "nlp", "job": job, "health": "/health", "drain": 1}
    key = f"service-{folder.name}"
    service = client.serve(spec, key=key).service
    assert client.serve(spec, key=key).service == service
    assert client.wait_service(service, timeout_s=DEADLINE_S).ready == 1
    assert service in [one.service for one in client.services(vc="nlp")]
    client.update_service("nlp.by-hand", {**spec, "health": "/health?again"})
    until(lambda: client.service(service).revision == 2, "the update", DEADLINE_S)
    client.wait_service(service, timeout_s=DEADLINE_S)
    client.scale_service(service, 2)
    with pytest.raises(NotInTimeError, match=f"{service} is not over within 0 s"):
        client.wait_service(service, until="over", timeout_s=0)
    seen = []
    for now in client.watch_service(service):
        seen.append((now.state, now.wanted, now.ready))
        if seen[-1] == ("active", 2, 2):
            client.stop_service(service)
    assert seen[-1] == ("over", 2, 0)
    assert client.wait_service(service, until="over").state == "over"
    with pytest.raises(ChangeFailedError, match="is over: cancelled"):
        client.wait_service(service)
    with pytest.raises(BadCallError, match="not a service: ''"):
        client.service("")


def _arrays_and_holds(client: Client, folder: Path) -> None:
    mark = folder / "may"
    made = client.submit(
        name="many", command=TASK.format(mark=mark), array="0-1", labels={"of": "many"}
    )
    assert client.wait(made, timeout_s=DEADLINE_S).state == "failed"
    tasks = client.jobs("all", array=made, order="submitted")
    assert [row.state for row in tasks] == ["succeeded", "failed"]
    assert [row.job for row in client.jobs("ended", labels={"of": None})] == [made.job]
    mark.touch()
    client.retry(made)
    until(
        lambda: client.wait(made, timeout_s=DEADLINE_S).state == "succeeded",
        f"{made.job} to succeed",
    )
    held = client.submit(name="held", command="echo 1; echo 2; echo 3", hold=True)
    client.wait_change(client.release(held), timeout_s=DEADLINE_S)
    assert client.wait(held).state == "succeeded"
    assert list(client.logs(held, tail=2)) == ["2", "3"]
    assert list(client.logs(held, since_s=3600)) == ["1", "2", "3"]
    assert client.blame(held).job == held.job
    again = client.requeue(held, hold=True, key=f"again-{folder.name}")
    assert client.requeue(held, hold=True, key=f"again-{folder.name}").job == again.job
    assert again.of == held.job
    assert client.hold(again).ask == "hold"
    client.cancel(again)
    client.wait(again)


def _code_and_outputs(client: Client, folder: Path) -> None:
    source = folder / "source"
    source.mkdir()
    (source / "x").write_text(f"travels {folder}")
    (source / "leaves.py").write_text(f"{LEAVES}; import time; time.sleep(600)")
    job = client.submit(
        name="leaves", script=str(source / "leaves.py"), code=str(source), outputs=["out"]
    )
    line = next(client.logs(job, follow=True))
    assert line == f"travels {folder}"
    ran = client.exec(job, ["sh", "-c", "cat x -; echo bad >&2; exit 3"], stdin=b"!")
    assert (ran.code, ran.stdout, ran.stderr) == (3, f"travels {folder}!", "bad\n")
    with pytest.raises(SessionError, match="no rank 7") as no_rank:
        client.exec(job, ["true"], rank=7)
    assert no_rank.value.reason == "no-rank"
    listed = client.outputs(job)
    assert [each[0] for node in listed.nodes for each in node.files] == ["out/w"]
    assert client.copy(job, "out/w", folder).read_bytes() == b"w" * 70_000
    with pytest.raises(NotFoundError):
        client.copy(job, "out/v", folder)
    assert sorted(each.name for each in folder.iterdir()) == ["go", "may", "server", "source", "w"]
    spec = client.job(job).spec
    assert spec is not None
    assert spec["code"] in [each["code"] for each in client.code("nlp").code]
    client.cancel(job)
    assert client.wait(job).state == "cancelled"


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


def test_async_clients_do_several_things_at_once(cluster: Embedded, tmp_path: Path) -> None:
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
            (tmp_path / "x").write_text("travels\n")
            job = await client.submit(name="x", command="cat x; sleep 600", code=str(tmp_path))
            assert await anext(client.logs(job, follow=True)) == "travels"
            ran = await client.exec(job, ["cat", "-"], stdin=b"hello")
            assert (ran.code, ran.stdout) == (0, "hello")
            copied = await client.copy(job, "x", tmp_path / "copied")
            assert copied.read_text() == "travels\n"
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
