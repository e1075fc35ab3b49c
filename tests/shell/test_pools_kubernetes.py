"""A pool of pods: a keeper, an API server of Kubernetes on loopback, and a gateway that is played.

Nothing here is a real Kubernetes. What is asserted is what the keeper asks of it, and what is left
there after errors, evictions and kills.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from skep.pools import Limits
from skep_services.adapters.kubernetes import Access, KubernetesError, in_pod
from skep_services.cli.client import Client, Target
from skep_services.pools.keeper import Keeper
from skep_services.pools.kubernetes import PodPool
from skep_services.pools.kubernetes_pod import Wanted
from skep_services.pools.source import SourceError
from tests.support.kube_api import Fault, KubeApi
from tests.tls_kit import Certificates

ROLE = Path(__file__).parents[2] / "deploy/kubernetes/skep-pool.yaml"
LIMITS = Limits(least=1, most=3, gpus=4, margin_s=120, idle_s=0)
WANTED = Wanted("kube", "skep:1", "cuda", 4, "a100", 120, "checkpoints", {})
ROUNDS_MAX = 30
WITHIN_S = 10.0
GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}


class KilledError(BaseException):
    """The keeper's process ends here."""


class Gateway:
    """As much of a gateway as a keeper sees: nodes, jobs, and tokens with which nodes join."""

    target = Target("https://skep:8470", "", "")

    def __init__(self) -> None:
        self.nodes: dict[str, dict[str, Any]] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.tokens: dict[str, str] = {}
        """What became of each token."""
        self.posts: list[str] = []

    def submit(self, job: str, *can: str, gpus: int = 4) -> None:
        self.jobs[job] = {"job": job, "state": "queued", "gpus": gpus, "can": list(can), "asks": []}

    def join(self, node: str, invitation: str) -> None:
        token = invitation.partition("@")[0]
        if self.tokens[token] == "open":
            self.tokens[token] = "used"
            self.nodes[node] = {"node": node, "state": "up", "jobs": []}

    def place(self) -> None:
        """Give waiting jobs the free nodes."""
        for job in self.jobs.values():
            free = [one for one in self.nodes.values() if one["state"] == "up" and not one["jobs"]]
            if job["state"] == "queued" and free:
                free[0]["jobs"] = [job["job"]]
                job["state"] = "running"

    def end(self, *jobs: str) -> None:
        for job in jobs:
            self._leave(job)
            del self.jobs[job]

    def _leave(self, job: str) -> None:
        self.jobs[job]["state"] = "queued"
        for node in self.nodes.values():
            node["jobs"] = [each for each in node["jobs"] if each != job]

    def get(self, path: str, timeout_s: float = 0.0) -> Any:
        if path == "/v1/nodes":
            return {"nodes": json.loads(json.dumps(list(self.nodes.values())))}
        if path.startswith("/v1/jobs?"):
            return {"jobs": list(self.jobs.values())}
        return self.jobs[path.split("/")[3].partition("?")[0]]

    def post(self, path: str, value: Any) -> Any:
        self.posts.append(path)
        words = path.split("/")[2:]
        match words:
            case ["admin", "drain"]:
                if value["node"] in self.nodes:
                    self.nodes[value["node"]]["state"] = "drained"
            case ["join-tokens"]:
                token = f"t{len(self.tokens)}"
                self.tokens[token] = "open"
                return {"token": token, "text": token}
            case ["join-tokens", token, "revoke"]:
                self.tokens[token] = "revoked"
            case ["members", "node", node, "remove"]:
                for job in self.nodes.pop(node, {"jobs": []})["jobs"]:
                    self.jobs[job]["state"] = "queued"
            case ["jobs", job, _]:
                self._leave(job)
                if words[-1] == "migrate":
                    self.place()
                self.jobs[job]["asks"] = [{"number": 1, "result": "done"}]
                return {"number": 1, "job": job}
            case _:
                pytest.fail(f"asked for {path}")
        return {}


class Counted:
    """Passes calls on, until the process is killed: right after one that had an effect."""

    EFFECTS = ("ask", "invite", "end", "post")

    def __init__(self, whole: object, left: list[int]) -> None:
        self._whole = whole
        self._left = left

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._whole, name)
        if name not in self.EFFECTS:
            return found

        def call(*words: Any) -> Any:
            done = found(*words)
            self._left[0] -= 1
            if self._left[0] == 0:
                raise KilledError
            return done

        return call


class World:
    """An API server, kubelets, a gateway, and a keeper, which can be started anew."""

    def __init__(self, api: KubeApi) -> None:
        self.api = api
        self.gateway = Gateway()
        self.told: list[str] = []
        self.effects_left = [0]
        self.restarts = -1
        self.pool: PodPool | None = None
        self.start()

    def start(self) -> None:
        self.stop()
        self.restarts += 1
        self.pool = PodPool(Access(self.api.url, "skep"), WANTED)
        self.pool.__enter__()
        client = cast("Client", Counted(self.gateway, self.effects_left))
        source = cast("PodPool", Counted(self.pool, self.effects_left))
        self.keeper = Keeper(client, source, LIMITS, self.told.append)

    def stop(self) -> None:
        if self.pool is not None:
            self.pool.__exit__()

    def look(self) -> None:
        """Have the keeper look once, at a picture that is as the API server has it."""
        assert self.pool is not None
        deadline = time.monotonic() + WITHIN_S
        while self.pool.version != str(self.api.version):
            assert time.monotonic() < deadline, (self.pool.version, self.api.version)
            self.pool.wait(0.2)
        self.keeper.look()

    def kubelets(self) -> None:
        """Find machines, start pods that have their secrets, and end those that are to end."""
        for name, pod in list(self.api.pods.items()):
            if pod["metadata"].get("deletionTimestamp"):
                self.api.gone(name)
                self.gateway.nodes.get(name, {})["state"] = "lost"
            elif not pod["spec"].get("nodeName"):
                self.api.schedule(name)
            elif name in self.api.secrets and pod["status"]["phase"] == "Pending":
                self.api.status(name, phase="Running")
                self.gateway.join(name, self.api.secrets[name]["stringData"]["token"])
        self.gateway.place()

    def settle(self) -> None:
        """Let time pass until nothing changes any more; a keeper that is killed is started anew."""
        for _ in range(ROUNDS_MAX):
            before = (self.api.version, len(self.gateway.posts), self.restarts)
            try:
                self.look()
            except KilledError:
                self.start()
            self.kubelets()
            if before == (self.api.version, len(self.gateway.posts), self.restarts):
                return
        pytest.fail(f"nothing settles: {self.told}")


@contextmanager
def worlds() -> Iterator[World]:
    with KubeApi() as api:
        made = World(api)
        try:
            yield made
        finally:
            made.stop()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """List again without a pause."""
    monkeypatch.setattr("skep_services.pools.kubernetes.AGAIN_FIRST_S", 0.01)


@pytest.fixture
def world() -> Iterator[World]:
    with worlds() as made:
        yield made


def grow_and_shrink(world: World) -> None:
    for job in ("j1", "j2", "j3", "j4"):
        world.gateway.submit(job)
    world.settle()
    assert sorted(world.gateway.nodes) == sorted(world.api.pods)
    assert len(world.api.pods) == LIMITS.most
    world.gateway.end("j1", "j2", "j3", "j4")
    world.settle()


def test_pods_come_with_the_jobs_and_go_when_idle(world: World) -> None:
    grow_and_shrink(world)
    assert len(world.api.pods) == LIMITS.least
    assert list(world.gateway.nodes) == list(world.api.pods) == list(world.api.secrets)
    assert sorted(world.gateway.tokens.values()) == ["used"] * 3
    (pod,) = world.api.pods.values()
    container = pod["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 4}
    assert pod["spec"]["automountServiceAccountToken"] is False
    world.keeper.hand_back()
    world.kubelets()
    assert (world.api.pods, world.api.secrets, world.gateway.nodes) == ({}, {}, {})


def test_the_role_has_the_rights_that_are_used_and_no_others(world: World) -> None:
    grow_and_shrink(world)
    used = {(request.resource, request.verb) for request in world.api.requests}
    documents = list(yaml.safe_load_all(ROLE.read_text(encoding="utf-8")))
    (role,) = (one for one in documents if one["kind"] == "Role")
    granted = [
        (resource, verb)
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]
    assert sorted(used) == sorted(granted)
    assert not [one for one in documents if one["kind"].startswith("Cluster")]


def test_a_keeper_that_is_killed_at_any_step_doubles_and_leaves_nothing() -> None:
    kills = 0
    while True:
        kills += 1
        with worlds() as world:
            world.effects_left[0] = kills
            grow_and_shrink(world)
            assert len(world.api.created) == LIMITS.most, kills
            assert len(world.api.pods) == LIMITS.least, kills
            assert list(world.gateway.nodes) == list(world.api.pods), kills
            assert list(world.api.secrets) == list(world.api.pods), kills
            # One that was made and not given before the kill: nobody has it, and it ends by itself.
            assert list(world.gateway.tokens.values()).count("open") <= 1, kills
            if not world.restarts:
                break
    assert kills > 15


@pytest.mark.parametrize(
    "fault, text",
    [
        (
            Fault("create", "pods", 403, "exceeded quota: gpus, used: requests.nvidia.com/gpu=8"),
            "the API server says 403: exceeded quota: gpus, used: requests.nvidia.com/gpu=8",
        ),
        (
            Fault("create", "pods", 429, "slow down", {"Retry-After": "7"}),
            "the API server says 429: slow down",
        ),
        (Fault("create", "pods", 500, "etcd\nis away"), "the API server says 500: etcd"),
        (Fault("create", "pods", how="cut"), "the API server at {url} does not answer"),
        (
            Fault("create", "pods", how="garbage", message="<html>"),
            "the API server's answer to POST /pods cannot be read",
        ),
        (
            Fault("create", "pods", how="garbage", message='{"metadata": 1}'),
            "a pod of the API server cannot be read: Expected `object`, got `int`",
        ),
    ],
)
def test_what_the_api_server_has_against_a_pod_is_one_line(
    world: World, fault: Fault, text: str
) -> None:
    world.api.faults.append(fault)
    with pytest.raises(SourceError) as caught:
        world.look()
    assert str(caught.value).startswith(text.format(url=world.api.url))
    assert "\n" not in str(caught.value)
    if fault.status == 429:
        with pytest.raises(SourceError, match=r"asks to be left alone for [67] s"):
            world.look()
    else:
        world.settle()
        assert len(world.api.created) == len(world.gateway.nodes) == LIMITS.least


@pytest.mark.parametrize(
    "fault",
    [
        Fault("create", "pods", how="lost"),
        Fault("create", "secrets", how="lost"),
        Fault("create", "secrets", 500, "no"),
        Fault("delete", "pods", how="lost"),
        Fault("delete", "pods", 409, "the UID in the precondition does not match"),
    ],
    ids=lambda fault: f"{fault.verb} {fault.resource} {fault.how}",
)
def test_a_lost_or_refused_request_doubles_nothing(world: World, fault: Fault) -> None:
    world.api.faults.append(fault)
    for job in ("j1", "j2"):
        world.gateway.submit(job)
    with pytest.raises(SourceError) if fault.verb == "create" else _nothing():
        world.settle()
    world.settle()
    world.gateway.end("j1", "j2")
    world.settle()
    assert len(world.api.created) == 2
    assert list(world.gateway.tokens.values()).count("open") == 0
    if fault.status != 409:
        assert len(world.api.pods) == len(world.gateway.nodes) == LIMITS.least


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    "lines",
    [
        (),
        (json.dumps(GONE).encode() + b"\n",),
        (b"{not json\n",),
        (b'{"type": "MODIFIED", "object": {"metadata": {"name": 3}}}\n',),
        (b'{"type": "FOREIGN", "object": {}}\n',),
    ],
    ids=["breaks", "410", "garbage", "no pod", "unknown kind"],
)
def test_a_watch_that_ends_badly_is_begun_again_from_a_list(
    world: World, lines: tuple[bytes, ...]
) -> None:
    world.settle()
    world.api.faults.append(Fault("watch", "pods", lines=lines))
    world.api.break_watches()
    world.gateway.submit("j1")
    world.gateway.submit("j2")
    world.gateway.place()
    world.settle()
    assert len(world.api.created) == len(world.gateway.nodes) == 2
    assert [one.verb for one in world.api.requests].count("list") >= 3


def test_nothing_is_decided_without_a_picture(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.settle()
    assert world.pool is not None
    monkeypatch.setattr("skep_services.pools.kubernetes.PICTURE_WITHIN_S", 0.3)
    world.api.faults += [Fault("list", "pods", 403, "pods is forbidden: User x") for _ in range(9)]
    world.api.break_watches()
    deadline = time.monotonic() + WITHIN_S
    while len(world.api.faults) == 9:
        assert time.monotonic() < deadline
        world.pool.wait(0.05)
    with pytest.raises(SourceError, match="the API server says 403: pods is forbidden: User x"):
        world.keeper.look()
    assert list(world.gateway.nodes) == list(world.api.pods)


def test_jobs_leave_a_pod_that_is_evicted_and_another_takes_its_place(world: World) -> None:
    world.gateway.submit("j1", "migrate")
    world.settle()
    (first,) = world.api.pods
    world.api.evict(first, 120)
    world.look()
    assert len(world.api.created) == 2
    second = world.api.created[1]
    for _ in range(3):  # It is scheduled, invited and started; the first still has time.
        world.look()
        pod = world.api.pods[second]
        if not pod["spec"].get("nodeName"):
            world.api.schedule(second)
        elif second in world.api.secrets:
            world.api.status(second, phase="Running")
            world.gateway.join(second, world.api.secrets[second]["stringData"]["token"])
    world.look()
    assert "j1 moved" in world.told[-1]
    assert world.gateway.nodes[second]["jobs"] == ["j1"]
    assert first not in world.gateway.nodes
    world.settle()
    assert list(world.api.pods) == list(world.gateway.nodes) == [second]


def test_a_job_stores_itself_when_no_other_pod_comes_in_time(world: World) -> None:
    world.gateway.submit("j1", "migrate", "checkpoint")
    world.settle()
    (first,) = world.api.pods
    world.gateway.jobs["j1"]["can"] = ["checkpoint"]
    world.api.evict(first, 50)  # Less than half of the margin.
    world.look()
    assert "j1 stored" in world.told[-1]
    assert first not in world.gateway.nodes


@pytest.mark.parametrize(
    "status, text",
    [
        (
            {"reason": "Evicted", "message": "The node was low on resource: memory."},
            "Evicted: The node was low on resource: memory.",
        ),
        (
            {
                "containerStatuses": [
                    {"state": {"terminated": {"reason": "Error", "message": "a\nno \x1b[1mtoken"}}}
                ]
            },
            "Error: a\nno ?[1mtoken",
        ),
        ({}, "Failed"),
    ],
)
def test_a_pod_that_failed_is_removed_and_the_next_one_waits(
    world: World, status: dict[str, Any], text: str
) -> None:
    world.look()
    (name,) = world.api.pods
    world.api.schedule(name)
    world.api.status(name, phase="Failed", **status)
    world.look()
    assert world.api.pods == {}
    assert f"pod {name} has ended: {text.splitlines()[-1]}" in world.told[1]
    assert world.told[2].endswith("ended before it was a node: the next is asked for in 10 s")
    world.look()
    assert len(world.api.created) == 1


@pytest.mark.parametrize(
    "change, text",
    [
        (
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
                    }
                ]
            },
            "Unschedulable: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        ),
        (
            {
                "containerStatuses": [
                    {"state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}
                ]
            },
            "ErrImagePull: no such image",
        ),
    ],
)
def test_why_a_pod_does_not_begin_is_told_once(
    world: World, change: dict[str, Any], text: str
) -> None:
    world.look()
    (name,) = world.api.pods
    world.api.status(name, **change)
    world.look()
    world.look()
    assert world.told[1:] == [f"pod {name} does not begin: {text}"]


def test_a_token_is_made_once_however_often_its_secret_is_refused(world: World) -> None:
    world.look()
    world.kubelets()
    world.api.faults += [Fault("create", "secrets", 403, "secrets is forbidden")] * 3
    for _ in range(3):
        with pytest.raises(SourceError, match="403: secrets is forbidden"):
            world.look()
    world.settle()
    assert list(world.gateway.tokens.values()) == ["used"]


def test_a_pod_that_does_nothing_with_its_token_is_replaced(world: World) -> None:
    world.look()
    world.kubelets()
    world.look()
    (first,) = world.api.secrets
    assert world.pool is not None
    world.pool.token_minutes = 0.0  # It has had its time.
    world.look()
    assert world.told[-1] == f"handed back {first}: it was no node for 0 minutes"
    assert list(world.gateway.tokens.values()) == ["open", "revoked"]
    world.kubelets()
    world.pool.token_minutes = 30.0
    world.settle()
    assert first not in world.api.pods
    assert len(world.api.pods) == len(world.gateway.nodes) == LIMITS.least


def test_a_pods_own_account_is_used_as_it_is_at_the_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ca.crt").write_bytes(Certificates(tmp_path).authority.trust)
    (tmp_path / "namespace").write_text("skep\n")
    (tmp_path / "token").write_text("first\n")
    monkeypatch.setattr("skep_services.adapters.kubernetes.ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    found = in_pod("")
    assert found == Access("https://[fd00::1]:6443", "skep", tmp_path)
    with KubeApi() as api, PodPool(found._replace(url=api.url), WANTED) as pool:
        api.token = "first"
        name = pool.ask()
        api.token = "second"
        with pytest.raises(SourceError, match="401: Unauthorized"):
            pool.ask()
        (tmp_path / "token").write_text("second\n")
        pool.ask()
        assert name in [each.number for each in pool.allocations()]


@pytest.mark.parametrize(
    "host, text",
    [("", "this is no pod: run `kubectl proxy`"), ("10.0.0.1", "the pod has no account: /")],
)
def test_what_is_no_pod_says_so(
    host: str, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("skep_services.adapters.kubernetes.ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    with pytest.raises(KubernetesError, match=text):
        in_pod("")


def test_pods_and_nodes_of_others_are_left_alone(world: World) -> None:
    world.gateway.nodes["kube-7"] = {"node": "kube-7", "state": "up", "jobs": []}
    foreign = {
        "metadata": {
            "name": "skep-web",
            "labels": {
                "app.kubernetes.io/name": "skep-node",
                "app.kubernetes.io/managed-by": "skep",
                "skep/pool": "kube",
            },
        },
        "spec": {"terminationGracePeriodSeconds": 30},
    }
    world.api.do(lambda: world.api._create("pods", foreign))
    grow_and_shrink_but(world, lambda name: name != "skep-web")
    assert "skep-web" in world.api.pods
    assert "kube-7" in world.gateway.nodes


def grow_and_shrink_but(world: World, ours: Callable[[str], bool]) -> None:
    for job in ("j1", "j2", "j3"):
        world.gateway.submit(job)
    for _ in range(8):
        world.look()
        world.kubelets()
    world.gateway.end("j1", "j2", "j3")
    for _ in range(8):
        world.look()
        world.kubelets()
    assert len([name for name in world.api.pods if ours(name)]) == LIMITS.least
