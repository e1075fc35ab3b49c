"""The units of systemd: hardened, alive, and careful with jobs; what is said to systemd."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from skep_services.launcher import launcher_process
from skep_services.launcher import unit as launcher
from skep_services.servers import firewall, install, notify, units
from skep_services.servers.files import Member

HARDENED = {
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "PrivateTmp": "yes",
    "CapabilityBoundingSet": "",
    "Restart": "on-failure",
    "Type": "notify",
    "WatchdogSec": "30",
}
SERVER = units.server_unit(("/usr/bin/true",), "/var/lib/skep")
JOBS = "/var/lib/skep-launcher/jobs"
NODE = units.node_unit(
    ("/usr/bin/true", "--100%"), "/var/lib/skep-node", launcher=True, writable=[JOBS, "/a 100%"]
)
LAUNCHER = units.Unit(name=units.LAUNCHER, text=launcher.text())


def settings(unit: units.Unit) -> dict[str, str]:
    lines = [line.partition("=") for line in unit.text.splitlines() if "=" in line]
    return {name: value for name, _, value in lines}


@pytest.mark.parametrize("unit", [SERVER, NODE], ids=lambda unit: unit.name)
def test_servers_and_agents_may_do_little(unit: units.Unit) -> None:
    found = settings(unit)
    assert {name: found.get(name) for name in HARDENED} == HARDENED
    assert found["User"] in {units.SERVER_ACCOUNT, units.NODE_ACCOUNT}
    assert found["StateDirectoryMode"] == "0700"
    assert found["RestartPreventExitStatus"] == "64 72 73"


def test_jobs_outlive_a_restart_of_the_agent_and_the_launcher() -> None:
    assert settings(NODE)["KillMode"] == "process"
    assert settings(LAUNCHER)["KillMode"] == "process"
    assert settings(LAUNCHER)["Delegate"] == "yes"
    assert settings(SERVER)["KillMode"] == "mixed"


def test_only_the_launcher_is_root() -> None:
    assert "User" not in settings(LAUNCHER)
    assert units.NODE in LAUNCHER.text
    assert "skep-launcher.service" in settings(NODE)["Wants"]
    alone = units.node_unit(("/usr/bin/true",), "/var/lib/skep-node", launcher=False)
    assert "launcher" not in alone.text


def test_a_state_folder_elsewhere_can_be_written() -> None:
    unit = units.server_unit(("/usr/bin/true",), "/srv/skep")
    assert settings(unit)["ReadWritePaths"] == "/srv/skep"
    assert "StateDirectory" not in settings(unit)


def test_what_systemd_would_take_for_its_own_is_doubled() -> None:
    assert "--100%%" in settings(NODE)["ExecStart"]


def test_an_agent_writes_what_it_shares_with_its_jobs() -> None:
    lines = NODE.text.splitlines()
    assert f"ReadWritePaths=-{JOBS}" in lines
    assert "ReadWritePaths='-/a 100%%'" in lines


def test_an_agent_sees_the_gpus() -> None:
    # Each of these has systemd deny every device that the unit does not name.
    denying = {"ProtectClock", "PrivateDevices", "DevicePolicy", "DeviceAllow"}
    alone = units.node_unit(("/usr/bin/true",), "/var/lib/skep-node", launcher=False)
    for unit in (NODE, alone, LAUNCHER):
        assert not denying & settings(unit).keys()


def test_jobs_that_are_children_of_the_agent_may_call_what_they_like() -> None:
    alone = units.node_unit(("/usr/bin/true",), "/var/lib/skep-node", launcher=False)
    assert "SystemCallFilter" in settings(NODE)
    assert not {"SystemCallFilter", "RestrictAddressFamilies"} & settings(alone).keys()


@pytest.mark.needs("systemd-analyze")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    for unit in (SERVER, NODE, LAUNCHER):
        (tmp_path / unit.name).write_text(unit.text)
    done = subprocess.run(
        ["systemd-analyze", "verify", *(str(tmp_path / u.name) for u in (SERVER, NODE, LAUNCHER))],
        check=False,
        capture_output=True,
        text=True,
    )
    ours = [line for line in done.stderr.splitlines() if "skep" in line and "/dev/" not in line]
    assert (done.returncode, ours) == (0, []), done.stderr


def test_the_program_of_a_unit_is_there() -> None:
    (program, *_) = install.program()
    assert shutil.which(program)
    for unit in (*install.server_units("/var/lib/skep"), *install.node_units("/n", apart=True)):
        first = settings(unit)["ExecStart"].split()[0]
        assert os.access(first, os.X_OK)
    assert Path(launcher_process.__file__).exists()


def test_systemd_hears_of_a_process_that_is_ready(tmp_path: Path) -> None:
    place = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(place)
        heard.settimeout(5.0)
        told = notify.tell(
            notify.READY, notify.status("up\nand more"), environment={"NOTIFY_SOCKET": place}
        )
        assert told
        assert heard.recv(100) == b"READY=1\nSTATUS=up"
    assert not notify.tell(notify.ALIVE, environment={"NOTIFY_SOCKET": place})
    assert not notify.tell(notify.ALIVE, environment={})


def test_a_watchdog_is_told_twice_as_often_as_it_asks() -> None:
    assert notify.watchdog_every_s({"WATCHDOG_USEC": "30000000"}) == 15.0
    own = str(os.getpid())
    assert notify.watchdog_every_s({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": own}) == 1.0
    assert notify.watchdog_every_s({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "1"}) is None
    assert notify.watchdog_every_s({}) is None


def test_ports_between_servers_are_open_for_three_only() -> None:
    member = Member(name="server-1", hosts=("a",))
    one = [each.ports for each in firewall.openings(member, 1, (20_000, 20_499))]
    three = [each.ports for each in firewall.openings(member, 3, (20_000, 20_499))]
    assert one == ["8470", "4222", "4223", "20000-20499"]
    assert sorted(set(three) - set(one)) == ["6222", "8471"]
