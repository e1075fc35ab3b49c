"""What `skep up` makes of its options, a cluster file and what was there before."""

from __future__ import annotations

import itertools
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skep.wire.admin import QUOTA_MAX
from skep.wire.cluster import VirtualCluster
from skep_services.supervisor import config, home, ports, table
from skep_services.supervisor.backoff import DELAY_S_MAX, Backoff
from skep_services.supervisor.config import Cluster, ConfigError, NodeConfig, Wishes, settle

HOME = "/state"


def vcs(**gpus: int) -> dict[str, VirtualCluster]:
    return {name: VirtualCluster(gpus=count) for name, count in gpus.items()}


# --- settling -------------------------------------------------------------------------------------


def test_defaults() -> None:
    cluster = settle(None, Wishes(), HOME)
    assert [(node.name, node.gpus, node.device) for node in cluster.nodes] == [
        ("node-1", 4, "cpu"),
        ("node-2", 4, "cpu"),
    ]
    assert cluster.vcs == vcs(default=8)
    assert cluster.gateway.url == "http://127.0.0.1:8470"
    assert list(cluster.gateway.tokens) == ["operator", "vc-default"]
    assert len(set(cluster.gateway.tokens.values())) == 2
    assert config.warnings(cluster) == []
    assert not Wishes().given()
    assert Wishes(port=0).given()


def test_what_is_not_asked_for_stays() -> None:
    first = settle(None, Wishes(nodes=1, gpus=3, vcs=vcs(a=2), port=9000), HOME)
    again = settle(first, Wishes(), HOME)
    assert again == first
    wider = settle(first, Wishes(nodes=3, vcs=vcs(a=2, b=1)), HOME)
    assert [node.gpus for node in wider.nodes] == [3, 3, 3]
    assert wider.gateway.url == "http://127.0.0.1:9000"
    assert wider.gateway.tokens["vc-a"] == first.gateway.tokens["vc-a"]
    assert settle(first, Wishes(gpus=5), HOME).vcs == vcs(a=2)


def test_a_policy_is_that_of_all_virtual_clusters_and_stays() -> None:
    first = settle(None, Wishes(policy="srtf"), HOME)
    assert first.vcs == {"default": VirtualCluster(gpus=8, policy="srtf")}
    assert settle(first, Wishes(nodes=1), HOME).vcs["default"].policy == "srtf"
    two = settle(first, Wishes(vcs=vcs(a=2, b=1), policy="backfill"), HOME)
    assert [vc.policy for vc in two.vcs.values()] == ["backfill", "backfill"]
    assert settle(two, Wishes(policy="fifo"), HOME).vcs == vcs(a=2, b=1)
    with pytest.raises(ConfigError, match="policy"):
        settle(None, Wishes(policy="srft"), HOME)


def test_quota_that_nobody_chose_follows_the_gpus() -> None:
    first = settle(None, Wishes(), HOME)
    assert settle(first, Wishes(nodes=1), HOME).vcs == vcs(default=4)


def test_devices() -> None:
    cuda = settle(None, Wishes(device="cuda"), HOME)
    assert [(node.gpus, node.gpu_type) for node in cuda.nodes] == [("auto", "cuda")]
    assert cuda.gpus() is None
    assert cuda.vcs == vcs(default=QUOTA_MAX)
    assert config.warnings(cuda) == []
    assert settle(cuda, Wishes(), HOME).vcs == cuda.vcs
    assert settle(cuda, Wishes(device="cpu", gpus=2), HOME).nodes[0].gpu_type == "cpu"


@pytest.mark.parametrize(
    "wishes, told",
    [
        (Wishes(nodes=0), "0 nodes: one machine runs 1 to 64"),
        (Wishes(nodes=-3), "0 nodes"),
        (Wishes(nodes=10**9), "more than 64 nodes"),
        (Wishes(gpus=0), "node-1: 0 GPUs; a node has 1 to 64"),
        (Wishes(gpus=999_999), "999999 GPUs"),
        (Wishes(gpus="auto"), "`auto` GPUs need --device cuda"),
        (Wishes(gpu_type="x" * 65), "a GPU type is"),
        (Wishes(vcs=vcs(**{"a b": 1})), "'a b' is no name for a virtual cluster"),
        (Wishes(vcs=vcs(a=10**9)), "vcs.a.gpus: `gpus` is 1000000000; it must be 0 to"),
        (Wishes(vcs={}), "0 virtual clusters"),
        (Wishes(port=70_000), "--port 70000"),
        (Wishes(node_list=(NodeConfig(name="a"), NodeConfig(name="a"))), "two nodes are called a"),
        (Wishes(node_list=(NodeConfig(name="a.b"),)), "'a.b' is no name for a node"),
        (Wishes(node_list=(NodeConfig(name="gateway"),)), "cannot be called gateway"),
        (Wishes(node_list=()), "0 nodes"),
    ],
)
def test_what_cannot_be_is_refused(wishes: Wishes, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        settle(None, wishes, HOME)


def test_warnings() -> None:
    cluster = settle(None, Wishes(nodes=1, gpus=2, vcs=vcs(a=2, b=1, c=0)), HOME)
    promised, empty = config.warnings(cluster)
    assert "promised 3 GPUs and there are 2" in promised
    assert "virtual cluster c has no GPUs" in empty


def test_nodes_have_ports_of_their_own_in_every_folder() -> None:
    for count in (1, 2, 23, 64):
        for folder in ("/a", "/b", "/c"):
            nodes = settle(None, Wishes(nodes=count), folder).nodes
            taken = sorted(node.ports for node in nodes)
            assert all(20_000 <= first < last <= 31_999 for first, last in taken)
            assert all(a[1] < b[0] for a, b in itertools.pairwise(taken))
    assert (
        settle(None, Wishes(), "/a").nodes[0].ports != settle(None, Wishes(), "/b").nodes[0].ports
    )


# --- text -----------------------------------------------------------------------------------------


def test_virtual_clusters_on_the_command_line() -> None:
    assert config.parse_vc("research=6") == ("research", VirtualCluster(gpus=6))
    for text in ("research", "research=", "research=-1", "research=six", "=²"):
        with pytest.raises(ConfigError, match="NAME=GPUS"):
            config.parse_vc(text)


def test_cluster_file() -> None:
    tree: dict[str, Any] = {
        "nodes": [{"name": "big", "gpus": 8}, {"name": "small"}],
        "vcs": {"a": 6, "b": {"gpus": 2, "jobs_max": 5}},
        "port": 9000,
    }
    cluster = settle(None, config.read_file(tree, "file"), HOME)
    assert [(node.name, node.gpus) for node in cluster.nodes] == [("big", 8), ("small", 4)]
    assert cluster.vcs == {"a": VirtualCluster(gpus=6), "b": VirtualCluster(gpus=2, jobs_max=5)}
    assert config.read_file({}, "file") == Wishes()
    wrongs: tuple[Any, ...] = ({"node": []}, {"nodes": [{"gpus": 1}]}, {"vcs": {"a": "x"}}, [])
    for wrong in wrongs:
        with pytest.raises(ConfigError, match=r"^file: "):
            config.read_file(wrong, "file")


CELLS: dict[str, Any] = {
    "chains": {
        "fast": {"gpu": "a", "levels": {"node": 4, "rack": 2}, "nodes": ["n1", "n2"]},
        "slow": {"gpu": "b", "levels": {"node": 2}, "nodes": ["n3"], "devices": {"n3": [0, 2]}},
    },
    "pinned": {"mine": "slow/node/n3"},
    "vcs": {"x": {"cells": {"fast/node": 1}}, "y": {"pinned": ["mine"], "weight": 2}},
}


def test_cells_of_a_cluster_file_are_published_and_their_nodes_started() -> None:
    cluster = settle(None, config.read_file(CELLS, "file"), HOME)
    assert [(node.name, node.gpus, node.gpu_type) for node in cluster.nodes] == [
        ("n1", 4, "a"),
        ("n2", 4, "a"),
        ("n3", 3, "b"),
    ]
    assert list(cluster.cells.chains) == ["fast", "slow"]
    assert cluster.cells.pins["mine"].level == "node"
    assert config.warnings(cluster) == []
    again = settle(cluster, Wishes(port=9000), HOME)
    assert again.cells == cluster.cells
    plain = settle(cluster, Wishes(vcs=vcs(a=2)), HOME)
    assert (plain.chains, plain.pins) == ({}, {})
    started = config.read_file({**CELLS, "nodes": [{"name": "n1"}]}, "file").node_list
    assert [node.name for node in started or ()] == ["n1"]


def test_a_node_in_two_chains_has_to_be_described() -> None:
    chains = {
        **CELLS["chains"],
        "slow": {"gpu": "b", "levels": {"node": 2}, "nodes": ["n1"], "devices": {"n1": [4, 5]}},
    }
    with pytest.raises(ConfigError, match="n1 is in two chains: say by `nodes` what it is"):
        config.read_file({"chains": chains}, "file")
    infeasible = {**CELLS, "vcs": {"x": {"cells": {"fast/node": 3}}}}
    with pytest.raises(ConfigError, match=r"file: \$.vcs.*short"):
        config.read_file(infeasible, "file")


# --- the table ------------------------------------------------------------------------------------


def test_processes_are_told_by_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKEP_TOKEN", "mine")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector")
    cluster = settle(None, Wishes(nodes=1, gpus=2), HOME)
    cluster.nats = config.Nats(
        url="nats://127.0.0.1:4333",
        users={name: f"{name}-password" for name in (*table.SERVICES, "node-node-1")},
    )
    plan = table.cluster_plan(cluster, HOME, "/bin/nats-server")
    assert [child.name for child in plan.every()] == ["nats", *table.SERVICES, "node-1"]
    assert plan.bus.argv == ("/bin/nats-server", "-c", "/state/nats/nats-server.conf")
    assert plan.bus.port == 4333
    gateway = plan.services[-1]
    assert gateway.argv[1:] == ("-m", "skep_services.gateway")
    assert gateway.env["SKEP_LISTEN"] == "127.0.0.1:8470"
    assert gateway.env["SKEP_TOKENS"] == "/state/gateway/tokens.json"
    assert gateway.env["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector"
    assert "SKEP_TOKEN" not in gateway.env
    (agent,) = plan.agents
    told = {name: value for name, value in agent.env.items() if name.startswith("SKEP_")}
    first, last = cluster.nodes[0].ports
    assert told == {
        "SKEP_HOME": HOME,
        "SKEP_ARCHIVE": "/state/archive",
        "SKEP_CHECKPOINTS_DIR": "/state/checkpoints",
        "SKEP_JOB_LOG_DAYS": "0",
        "SKEP_WARM_PROCESSES": "1",
        "SKEP_NODE": "node-1",
        "SKEP_GPUS": "2",
        "SKEP_DEVICE": "cpu",
        "SKEP_GPU_TYPE": "cpu",
        "SKEP_ADDRESS": "127.0.0.1",
        "SKEP_PORTS": f"{first}-{last}",
        "SKEP_NATS_URL": "nats://127.0.0.1:4333",
        "SKEP_NATS_USER": "node-node-1",
        "SKEP_NATS_PASSWORD": "node-node-1-password",
        "SKEP_STATE": "/state/node-1",
    }
    assert agent.log_path == "/state/node-1/service.log"


def test_many_nodes_of_one_machine_have_no_warm_processes() -> None:
    for nodes, expected in ((table.WARM_NODES_MAX, "1"), (table.WARM_NODES_MAX + 1, "0")):
        cluster = settle(None, Wishes(nodes=nodes, gpus=1), HOME)
        names = (*table.SERVICES, *(f"node-{each.name}" for each in cluster.nodes))
        cluster.nats = config.Nats(url="nats://127.0.0.1:4333", users=dict.fromkeys(names, ""))
        plan = table.cluster_plan(cluster, HOME, "/bin/nats-server")
        assert {agent.env["SKEP_WARM_PROCESSES"] for agent in plan.agents} == {expected}


def test_whoever_names_a_folder_for_checkpoints_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKEP_CHECKPOINTS_DIR", "/elsewhere")
    cluster = settle(None, Wishes(nodes=2, gpus=1), HOME)
    users = dict.fromkeys((*table.SERVICES, "node-node-1", "node-node-2"), "")
    cluster.nats = config.Nats(url="nats://127.0.0.1:4333", users=users)
    plan = table.cluster_plan(cluster, HOME, "/bin/nats-server")
    assert {agent.env["SKEP_CHECKPOINTS_DIR"] for agent in plan.agents} == {"/elsewhere"}
    assert table.port_of("") == 0


def test_gangs_meet_on_the_ports_that_are_given() -> None:
    given = config.parse_ports("20000-20019")
    cluster = settle(None, Wishes(nodes=4, gpus=1), HOME, given)
    assert sorted(node.ports for node in cluster.nodes) == [
        (20000, 20004),
        (20005, 20009),
        (20010, 20014),
        (20015, 20019),
    ]
    with pytest.raises(ConfigError, match="20 ports for gangs are too few for 21 nodes"):
        settle(None, Wishes(nodes=21, gpus=1), HOME, given)
    for text in ("20000", "5-1", "80-2000", "1024-70000", "a-b"):
        with pytest.raises(ConfigError, match="SKEP_PORTS is"):
            config.parse_ports(text)


def test_cluster_file_round_trip(tmp_path: Path) -> None:
    cluster = settle(None, Wishes(), str(tmp_path))
    home.write_json(home.cluster_path(str(tmp_path)), msgspec.to_builtins(cluster))
    assert msgspec.convert(home.read_cluster(str(tmp_path)), Cluster) == cluster
    assert Path(home.cluster_path(str(tmp_path))).stat().st_mode & 0o777 == 0o600


def test_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/users/me")
    monkeypatch.delenv("SKEP_HOME", raising=False)
    assert home.home_folder() == "/users/me/.skep"
    monkeypatch.setenv("SKEP_HOME", "/elsewhere")
    assert home.home_folder() == "/elsewhere"
    assert home.home_folder("~/x") == "/users/me/x"


def test_on_a_server_commands_are_about_its_cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own, server = tmp_path / "me", tmp_path / "server"
    monkeypatch.setenv("HOME", str(own))
    monkeypatch.delenv("SKEP_HOME", raising=False)
    monkeypatch.setattr(home, "SERVER_HOME", str(server))
    assert home.cluster_folder() == str(own / ".skep")
    server.mkdir()
    (server / "cluster.json").touch()
    assert home.cluster_folder() == str(server)
    assert home.cluster_folder("/given") == "/given"
    (own / ".skep").mkdir(parents=True)
    (own / ".skep" / "cluster.json").touch()
    assert home.cluster_folder() == str(own / ".skep")


def test_ports(free_port: int) -> None:
    assert ports.is_free(free_port)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert not ports.is_free(listener.getsockname()[1])
    assert ports.is_free(ports.free_port())


# --- back-off -------------------------------------------------------------------------------------


def test_first_end_is_answered_at_once_and_repeated_ones_ever_later() -> None:
    backoff = Backoff()
    assert [backoff.delay_s(1.0) for _ in range(5)] == [0.0, 0.1, 0.2, 0.4, 0.8]
    assert [backoff.delay_s(0.0) for _ in range(2000)][-1] == DELAY_S_MAX


def test_healthy_time_forgives() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.delay_s(1.0)
    assert backoff.delay_s(20.0) == 0.8
    assert backoff.delay_s(30.0) == 0.0
    assert backoff.delay_s(1.0) == 0.0
    assert backoff.delay_s(1.0) == 0.1
