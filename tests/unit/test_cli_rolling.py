"""Rolling upgrades: one machine after the other, each until it is back, none after a failure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skep_services.cli.main import main
from skep_services.servers import files, rolling, status
from skep_services.servers.versions import VersionError, check_ahead, check_step
from tests.cli_kit import Asked, FakeGateway, Told, fake_gateway

OLD, NEW = "0.2.0", "0.3.0"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what runs a command in this process: (exit code, standard output, standard error)."""
    monkeypatch.setattr(rolling, "LOOK_EVERY_S", 0.01)

    def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(words)
        out, err = capfd.readouterr()
        return code, out, err

    return run


class Nodes:
    """A gateway with nodes, each of which is upgraded once a file of its name is there."""

    def __init__(self, gateway: FakeGateway, folder: Path, names: tuple[str, ...]) -> None:
        self.folder, self.names = folder, names
        self.states = dict.fromkeys(names, "up")
        self.addresses = {name: f"10.0.0.{number}" for number, name in enumerate(names, start=1)}
        self.before = dict.fromkeys(names, OLD)
        self.after = NEW
        self.servers = NEW
        self.ends: dict[str, str] = {}
        """By node: how the attempt of its job ends when the node is upgraded."""
        self.late = ""
        """A node that is upgraded once its jobs were asked for, as by a person."""
        gateway.on("GET /v1/nodes", self.rows)
        gateway.on("GET /v1/health", self.health)
        for name in names:
            gateway.on(f"GET /v1/jobs/j-{name}", self.job)
        self.via = f"echo {{version}} > {folder}/{{node}}"

    def begun(self, name: str) -> bool:
        return (self.folder / name).exists()

    def rows(self, _: Asked) -> Told:
        rows = [
            {
                "node": name,
                "address": self.addresses[name],
                "state": self.states[name],
                "incarnation": 2 if self.begun(name) else 1,
                "jobs": [f"j-{name}"],
            }
            for name in self.names
        ]
        return Told(value={"nodes": rows})

    def health(self, _: Asked) -> Told:
        services = {
            f"node-{name}": {
                "ok": True,
                "version": self.after if self.begun(name) else self.before[name],
            }
            for name in self.names
        }
        return Told(value={"ok": True, "services": services, "version": self.servers})

    def job(self, asked: Asked) -> Told:
        name = asked.path.rpartition("/j-")[2]
        if name == self.late:
            (self.folder / name).touch()
        why = self.ends.get(name) if self.begun(name) else None
        return Told(value={"attempts": [{"attempt": 1, "ended_why": why}]})


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Nodes]:
    with fake_gateway() as made:
        monkeypatch.setenv("SKEP_API", made.url)
        monkeypatch.setenv("SKEP_TOKEN", "secret")
        yield Nodes(made, tmp_path, ("a", "b", "c"))


def test_nodes_follow_one_another(nodes: Nodes, run: Run) -> None:
    # A command fails if the machine before its own has not begun, or the one behind it has.
    order = f"cd {nodes.folder}; ls | tr -d '\\n' >> ../order; echo -n '<{{node}} ' >> ../order"
    code, out, err = run("node", "upgrade", "--via", f"{order}; {nodes.via}")
    assert code == 0, err
    assert (nodes.folder.parent / "order").read_text() == "<a a<b ab<c "
    first, *_, last = out.splitlines()
    assert first.startswith(f"a: {OLD} to {NEW}, back after ")
    assert first.endswith(" s, its 1 job went on")
    assert last == f"3 machines upgraded to {NEW}"
    assert (nodes.folder / "a").read_text() == f"{NEW}\n"
    assert run("node", "upgrade", "--via", nodes.via)[:2] == (0, f"all run {NEW} already\n")


def test_it_says_as_json_what_came_of_it(nodes: Nodes, run: Run) -> None:
    code, out, _ = run("node", "upgrade", "b", "--via", nodes.via, "--json")
    assert code == 0
    told = json.loads(out)
    assert [(one["name"], one["before"]) for one in told["done"]] == [("b", OLD)]
    assert (told["to"], told["left"], told["passed_over"]) == (NEW, [], [])
    assert not nodes.begun("a")


def test_machines_of_a_batch_begin_together(nodes: Nodes, run: Run) -> None:
    # Each waits for the other's file.
    both = f"touch {nodes.folder}/at-{{node}}; until [ -e {nodes.folder}/at-a ] && "
    both += f"[ -e {nodes.folder}/at-b ]; do :; done; {nodes.via}"
    assert run("node", "upgrade", "a", "b", "--batch", "2", "--via", both)[0] == 0


def test_it_stops_at_a_command_that_fails(nodes: Nodes, run: Run) -> None:
    failing = f"{nodes.via}; [ {{node}} = a ] || {{ echo no room; exit 3; }}"
    code, out, err = run("node", "upgrade", "--via", failing, "--json")
    assert code == 1
    error = json.loads(out or err.splitlines()[-1])["error"]
    assert error["reason"] == "not-back"
    assert error["failed"] == {"b": "the command ended with code 3: no room"}
    assert ([one["name"] for one in error["done"]], error["left"]) == (["a"], ["c"])
    assert not nodes.begun("c")


def test_it_stops_at_a_machine_that_does_not_come_back(nodes: Nodes, run: Run) -> None:
    code, _, err = run("node", "upgrade", "--within", "0.1")
    assert code == 5
    assert "a: not back within 0.1 s: its agent was not started anew" in err
    assert "2 machines not begun: b, c" in err
    nodes.after, nodes.late = OLD, "a"
    code, _, err = run("node", "upgrade", "--within", "0.1")
    assert (code, "a: not back within 0.1 s: it runs skep 0.2.0" in err) == (5, True)


def test_it_stops_where_a_job_is_lost(nodes: Nodes, run: Run) -> None:
    nodes.ends = {"a": "succeeded", "b": "node-lost"}
    code, out, err = run("node", "upgrade", "--via", nodes.via)
    assert code == 1
    assert out.startswith("a: ")
    assert "b: it is back, and its job j-b was lost (node-lost)" in err
    assert not nodes.begun("c")


def test_without_a_command_a_person_is_told_what_to_type(nodes: Nodes, run: Run) -> None:
    code, _, err = run("node", "upgrade", "a", "--within", "0.1")
    assert code == 5
    assert "a: type there as root: /opt/skep/bin/pip install skep==0.3.0 && systemctl" in err


def test_what_a_node_says_of_itself_runs_nothing(nodes: Nodes, run: Run) -> None:
    for address in ("$(touch x)", "fe80::1%;reboot", "-oProxyCommand=x", "a b", ""):
        nodes.addresses["c"] = address
        via = f"touch {nodes.folder}/ran; : {{address}}"
        code, _, err = run("node", "upgrade", "--via", via)
        assert code == 2, address
        assert len(err.splitlines()) == 1
        assert "no plain word" in err
    assert not nodes.begun("ran")
    assert run("node", "upgrade", "--via", "reboot")[0] == 2


def test_versions_that_cannot_meet_are_one_line(nodes: Nodes, run: Run) -> None:
    nodes.before["b"] = "0.1.0"
    code, _, err = run("node", "upgrade", "--via", nodes.via)
    assert (code, len(err.splitlines())) == (1, 1)
    assert "b runs skep 0.1.0, and 0.3.0 is more than one release away" in err
    code, _, err = run("node", "upgrade", "a", "--to", "0.4.0")
    assert (code, len(err.splitlines())) == (1, 1)
    assert "the servers run skep 0.3.0: upgrade them to 0.4.0 first" in err
    assert not nodes.begun("a")


def test_check_only_tells(nodes: Nodes, run: Run) -> None:
    nodes.before["a"], nodes.states["b"] = NEW, "drained"
    code, out, _ = run("node", "upgrade", "--check")
    assert code == 1
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["a", "up", NEW],
        ["b", "drained", OLD, NEW],
        ["c", "up", OLD, NEW],
    ]
    nodes.before = dict.fromkeys("abc", NEW)
    code, out, _ = run("node", "upgrade", "--check", "--json")
    assert (code, json.loads(out)["left"]) == (0, [])


def test_nodes_that_are_lost_are_passed_over(nodes: Nodes, run: Run) -> None:
    nodes.states["b"] = "lost"
    code, _, err = run("node", "upgrade", "--via", nodes.via)
    assert (code, nodes.begun("b"), nodes.begun("c")) == (1, False, True)
    assert "b is lost, and passed over" in err
    assert run("node", "upgrade", "b", "--via", nodes.via)[0] == 1
    assert run("node", "upgrade", "z", "--via", nodes.via)[0] == 3
    assert run("node", "upgrade", "--batch", "0")[0] == 2
    assert run("node", "upgrade", "--to", "new; reboot")[0] == 2
    assert run("node", "upgrade", "--within", "0")[0] == 2


# --- servers --------------------------------------------------------------------------------------


class Servers:
    """Three servers, each of which is upgraded once a file of its name is there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.down: dict[str, str] = {}
        self.nodes: dict[str, str] = {}
        members = [
            files.Member(name=f"server-{number}", hosts=(f"head-{number}",)) for number in (1, 2, 3)
        ]
        file = files.ServerFile(cluster="lab", name="server-2", size=3, members=members)
        files.write(files.server_path(str(folder)), file)
        self.via = f"echo {{server}} >> {folder}/order; touch {folder}/{{address}}"

    def look(self, _home: str, file: files.ServerFile) -> dict[str, Any]:
        rows = [
            {
                "name": one.name,
                "hosts": list(one.hosts),
                "meets": "ok",
                "gateway": self.down.get(one.name, "ok"),
                "bus": "ok",
                "version": NEW if (self.folder / one.hosts[0]).exists() else OLD,
                "nodes": self.nodes,
            }
            for one in file.members
        ]
        return {"servers": rows}


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Servers:
    made = Servers(tmp_path)
    monkeypatch.setenv("SKEP_HOME", str(tmp_path))
    monkeypatch.setattr(status, "look", made.look)
    return made


def test_servers_follow_one_another_and_this_one_is_last(servers: Servers, run: Run) -> None:
    code, out, err = run("server", "upgrade", "--to", NEW, "--via", servers.via)
    assert code == 0, err
    order = (servers.folder / "order").read_text().split()
    assert order == ["server-3", "server-1", "server-2"]
    assert out.splitlines()[-1] == f"3 machines upgraded to {NEW}"


def test_servers_are_upgraded_while_all_are_well(servers: Servers, run: Run) -> None:
    words = ("server", "upgrade", "--to", NEW, "--via", servers.via)
    servers.down["server-1"] = "away"
    code, _, err = run(*words)
    assert code == 1
    assert "server-1 is not well: gateway away" in err
    servers.down.clear()
    servers.nodes["gpu-7"] = "0.1.0"
    code, _, err = run(*words)
    assert (code, len(err.splitlines())) == (1, 1)
    assert "node gpu-7 runs skep 0.1.0" in err
    assert not (servers.folder / "order").exists()
    assert run("server", "upgrade", "--to", NEW, "--check")[0] == 1
    assert run("server", "upgrade", "--to", "0.5.0", "--check")[0] == 1


def test_a_step_is_one_release() -> None:
    for before, to in (("0.2.0", "0.3.1"), ("0.3.0", "0.2.0"), ("", "0.9.0"), ("0.2.0", "0.2.5")):
        check_step(before, to, "a")
    for before, to in (("0.2.0", "0.4.0"), ("0.2.0", "1.0.0"), ("0.4.0", "0.2.0")):
        with pytest.raises(VersionError, match="more than one release away"):
            check_step(before, to, "a")
    check_ahead("0.3.2", "0.3.0")
    check_ahead("0.2.0", "0.3.0")
    with pytest.raises(VersionError, match="skep server upgrade"):
        check_ahead("0.4.0", "0.3.0")
