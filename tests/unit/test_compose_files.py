"""The compose file and the credentials that are made for it belong together."""

from __future__ import annotations

import json
import re
import socket
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from skep_services.adapters.nats_access import DOOR, REPLICATED, identities, password_behind_door
from skep_services.compose import bootstrap, check, init
from skep_services.supervisor.config import Wishes, parse_vc
from tools.compose import COLLECTOR

FILE = Path(__file__).parents[2] / "compose" / "compose.yaml"
SERVERS = {"nats-1", "nats-2", "nats-3"}


VIEWERS = {"collector", "jaeger", "prometheus", "grafana"}


@pytest.fixture(scope="module")
def whole() -> Any:
    return yaml.safe_load(FILE.read_text())


@pytest.fixture(scope="module")
def compose(whole: Any) -> Any:
    """Return what is deployed by default."""
    services = {name: one for name, one in whole["services"].items() if "profiles" not in one}
    return {**whole, "services": services}


def write(folder: Path, *vcs: str, gpus: int | None = None) -> dict[str, Any]:
    wished = dict(map(parse_vc, vcs)) or None
    init.write(folder, Wishes(nodes=2, gpus=gpus, vcs=wished), 4222)
    about: dict[str, Any] = json.loads((folder / "cluster.json").read_text())
    return about


def inside(users: dict[str, str], identity: str) -> str:
    """Return the password by which the bus servers know a tenant."""
    return password_behind_door(users[DOOR], identity, users[identity])


def test_every_secret_of_the_compose_file_is_made(compose: Any, tmp_path: Path) -> None:
    write(tmp_path / "secrets")
    for name, secret in compose["secrets"].items():
        found = re.fullmatch(r"\$\{SKEP_SECRETS:-\./secrets\}/(.+)", secret["file"])
        assert found, name
        assert (tmp_path / "secrets" / found[1]).is_file()
    used = {one["source"] for service in compose["services"].values() for one in service["secrets"]}
    assert used == set(compose["secrets"])


def test_each_container_has_the_password_of_its_own_identity(compose: Any) -> None:
    seen = set()
    for name, service in compose["services"].items():
        identity = service.get("environment", {}).get("SKEP_NATS_USER")
        if identity is None:
            assert name in {*SERVERS, "bootstrap"}
            continue
        (source,) = (one["source"] for one in service["secrets"] if one["target"] == "password")
        assert compose["secrets"][source]["file"].endswith(f"/{identity}.password")
        seen.add(identity)
    known = set(identities(("node-1", "node-2"), (), init.REPLICAS))
    # Containers have no people and no secrets: neither service runs.
    only_elsewhere = {f"{name}-{number}" for name in ("access", "vault") for number in (1, 2)}
    only_elsewhere.add("notifier")
    assert seen == known - {"operator", "bootstrap"} - only_elsewhere


def test_replicas_name_each_other_and_nobody_else_has_peers(compose: Any) -> None:
    for name, service in compose["services"].items():
        environment = service.get("environment", {})
        kind, _, number = name.rpartition("-")
        if kind in REPLICATED:
            other = f"{kind}-{3 - int(number)}"
            assert environment["SKEP_PEERS"] == other
            assert service["command"] == [f"skep_services.{kind}"]
        else:
            assert "SKEP_PEERS" not in environment


def test_every_container_is_confined_and_comes_back(compose: Any) -> None:
    assert set(compose["services"]) > SERVERS
    for name, service in compose["services"].items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["mem_limit"]
        assert service["pids_limit"]
        assert service["restart"] == ("no" if name == "bootstrap" else "unless-stopped")
        assert ("healthcheck" in service) == (name != "bootstrap")
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:")


def test_agents_get_the_engine_only_by_a_file_of_its_own(compose: Any) -> None:
    socket = "/var/run/docker.sock"
    assert not any(
        socket in text for one in compose["services"].values() for text in one.get("volumes", ())
    )
    more = yaml.safe_load((FILE.parent / "containers.yaml").read_text())
    assert set(more["services"]) == {"agent-1", "agent-2"} <= set(compose["services"])
    ports = [one["environment"]["SKEP_PORTS"] for one in more["services"].values()]
    assert len(set(ports)) == len(ports), "ranks of both nodes share the machine's network"
    for name, service in more["services"].items():
        assert f"{socket}:{socket}" in service["volumes"]
        state, _, folder = service["environment"]["SKEP_STATE"].rpartition("/")
        assert folder == name
        assert f"{state}:{state}" in service["volumes"], "the same path inside and outside"


def test_viewers_come_on_demand_confined_and_with_files_that_are_there(whole: Any) -> None:
    viewers = {name: one for name, one in whole["services"].items() if "profiles" in one}
    assert set(viewers) == VIEWERS
    for name, service in viewers.items():
        assert service["profiles"] == ["viewers"], name
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["mem_limit"]
        assert not service["user"].startswith("0")
        assert "secrets" not in service
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:")
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in whole["volumes"] or (FILE.parent / source).is_file(), volume


def test_what_shows_metrics_and_traces_is_told_where_they_are(whole: Any) -> None:
    services = whole["services"]
    viewers = FILE.parent / "viewers"
    (scrape,) = yaml.safe_load((viewers / "prometheus.yaml").read_text())["scrape_configs"]
    assert scrape["static_configs"] == [{"targets": ["gateway:8470"]}]
    assert services["gateway"]["environment"]["SKEP_LISTEN"].endswith(":8470")
    collector = yaml.safe_load((viewers / "collector.yaml").read_text())
    received = collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    assert f"http://collector:{received.rpartition(':')[2]}" == COLLECTOR
    known = yaml.safe_load((viewers / "datasources.yaml").read_text())["datasources"]
    sources = {one["uid"]: one for one in known}
    addresses = [one["url"] for one in known] + [collector["exporters"]["otlphttp"]["endpoint"]]
    assert {address.split("/")[2].split(":")[0] for address in addresses} <= VIEWERS
    for panel in json.loads((viewers / "skep.json").read_text())["panels"]:
        for target in panel["targets"]:
            assert target["datasource"]["type"] == sources[target["datasource"]["uid"]]["type"]


def test_credentials_are_made_once_and_what_is_missing_is_added(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    before = write(folder, "ml=4")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [node["gpus"] for node in before["nodes"]] == [4, 4]
    after = write(folder, "ml=4", "web=2")
    old, new = before["nats"]["users"], after["nats"]["users"]
    assert {name: new[name] for name in old} == old
    assert set(new) - set(old) == {"vc-web"}
    assert after["gateway"]["tokens"]["operator"] == before["gateway"]["tokens"]["operator"]
    assert after["nats"]["url"].split(",")[2] == "nats://127.0.0.1:4224"
    tokens = json.loads((folder / "tokens.json").read_text())
    assert tokens[after["gateway"]["tokens"]["vc-web"]] == "vc-web"
    for server in SERVERS:
        text = (folder / f"{server}.conf").read_text()
        assert f'server_name: "{server}"' in text
        assert "sync_interval: always" in text
        assert inside(new, "vc-web") in text
        assert new["vc-web"] not in text
        assert text.count("nats-route://") == len(SERVERS)
    # Nobody's password is where a container has no use for it.
    assert not (folder / "operator.password").exists()


@pytest.mark.parametrize(
    "options, says",
    [
        (["--vc", "ml"], "write NAME=GPUS"),
        (["--gpus", "0"], "0 GPUs; a node has 1"),
        (["--vc", "a b=1"], "is no name for a virtual cluster"),
        (["--port", "70000"], "a port is 1 to 65535"),
        (["--nats-port", "65533"], "four ports from --nats-port"),
    ],
)
def test_bad_options_are_told_and_nothing_is_written(
    options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "secrets"
    assert init.main([str(folder), *options]) == init.EXIT_BAD_OPTIONS
    assert says in capsys.readouterr().err
    assert not (folder / "cluster.json").exists()


def test_bootstrap_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SKEP_HOME", str(tmp_path))
    monkeypatch.delenv("SKEP_NATS_URL", raising=False)
    assert bootstrap.main() == bootstrap.EXIT_CONFIGURATION
    assert "SKEP_NATS_URL" in capsys.readouterr().err
    monkeypatch.setenv("SKEP_NATS_URL", "nats://127.0.0.1:1")
    monkeypatch.setenv("SKEP_STATE", str(tmp_path / "state"))
    (tmp_path / "cluster.json").write_text("{}")
    assert bootstrap.main() == bootstrap.EXIT_CONFIGURATION
    assert "cluster file" in capsys.readouterr().err


def test_a_check_without_a_bus_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = tmp_path / "password"
    secret.write_text("x")
    environment = {
        "SKEP_NATS_URL": "nats://127.0.0.1:1",
        "SKEP_NATS_USER": "x",
        "SKEP_NATS_PASSWORD_FILE": str(secret),
    }
    assert check.main([], environment) == 1
    assert "127.0.0.1: " in capsys.readouterr().err
    assert check.main([], {}) == 1


def test_a_tenant_made_later_gets_credentials_and_everybody_else_keeps_theirs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init.main([str(tmp_path), "--vc", "nlp=8"]) == 0
    before = json.loads((tmp_path / "cluster.json").read_text())
    assert capsys.readouterr().out == ""
    assert init.main([str(tmp_path), "--tenant", "fresh"]) == 0
    assert "kill -s HUP nats-1 nats-2 nats-3" in capsys.readouterr().out
    after = json.loads((tmp_path / "cluster.json").read_text())
    assert after["vcs"] == before["vcs"], "what the cells are is set elsewhere"
    known = after["nats"]["users"]
    assert {**known, **before["nats"]["users"]} == known
    token = after["gateway"]["tokens"]["vc-fresh"]
    assert json.loads((tmp_path / "tokens.json").read_text())[token] == "vc-fresh"
    for server in init.SERVERS:
        text = (tmp_path / f"{server}.conf").read_text()
        assert inside(known, "vc-fresh") in text
        assert known["vc-fresh"] not in text
    assert init.main([str(tmp_path)]) == 0, "they stay"
    assert json.loads((tmp_path / "cluster.json").read_text())["nats"]["users"] == known
    assert init.main([str(tmp_path), "--tenant", "no name"]) == init.EXIT_BAD_OPTIONS


def test_bus_servers_from_before_accounts_keep_their_streams_until_told_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init.write(tmp_path, Wishes(nodes=2), 4222, accounts=False)
    conf = tmp_path / f"{init.SERVERS[0]}.conf"
    assert "\nauthorization: {" in conf.read_text()
    assert init.main([str(tmp_path)]) == 0
    assert "before tenants had accounts" in capsys.readouterr().out
    assert "\nauthorization: {" in conf.read_text()
    assert init.main([str(tmp_path), "--accounts"]) == 0
    assert "\naccounts: {" in conf.read_text()
    assert init.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""
    assert "\naccounts: {" in conf.read_text()


def test_the_door_is_where_tenants_are_told_it_is(compose: Any, tmp_path: Path) -> None:
    bus = write(tmp_path)["nats"]
    door = compose["services"]["door"]
    (published,) = door["ports"]
    found = re.fullmatch(r"(.+):\$\{SKEP_DOOR_PORT:-(\d+)\}:(\d+)", published)
    assert found, published
    assert bus["tenants"] == f"nats://{found[1]}:{found[2]}"
    assert bus["tenants"] not in bus["url"].split(",")
    assert door["environment"]["SKEP_LISTEN"] == f"0.0.0.0:{found[3]}"


def test_tenants_of_bus_servers_from_before_the_door_keep_theirs_until_told_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = init.write(tmp_path, Wishes(nodes=2, vcs=dict([parse_vc("ml=8")])), 4222, door=False)
    conf = tmp_path / f"{init.SERVERS[0]}.conf"
    known = cluster.nats.users
    assert init.main([str(tmp_path), "--tenant", "web"]) == 0
    assert "before there was a door" in capsys.readouterr().out
    about = json.loads((tmp_path / "cluster.json").read_text())
    assert about["nats"]["tenants"] == ""
    assert about["nats"]["users"]["vc-web"] in conf.read_text()
    assert known["vc-ml"] in conf.read_text()
    assert (tmp_path / "door.password").read_text() == known[DOOR], "its container needs the file"
    assert init.main([str(tmp_path), "--door"]) == 0
    told = capsys.readouterr().out
    assert "before there was a door" not in told
    assert "kill -s HUP nats-1 nats-2 nats-3" in told
    assert init.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""
    about = json.loads((tmp_path / "cluster.json").read_text())
    assert about["nats"]["tenants"] == "nats://127.0.0.1:4225"
    assert known["vc-ml"] not in conf.read_text()
    assert inside(known, "vc-ml") in conf.read_text()


def test_the_door_is_well_while_a_bus_server_answers_through_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = [b"INFO {}\r\n", b""]

    def answer(listening: socket.socket) -> None:
        for text in said:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(text)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        environment = {"SKEP_LISTEN": f"0.0.0.0:{listening.getsockname()[1]}"}
        answering = threading.Thread(target=answer, args=(listening,))
        answering.start()
        assert check.main(["--door"], environment) == 0
        assert check.main(["--door"], environment) == 1
        answering.join()
    assert "no bus server answers" in capsys.readouterr().err
    assert check.main(["--door"], environment) == 1
