"""The systemd units of servers and nodes, as text; what writes them is in `install`.

What a unit may do is as little as it works with. A job of a node survives a restart of the agent's
unit: systemd ends the unit's main process only (`KillMode=process`), and the agent finds its jobs
again. The launcher is the only part that is root.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import msgspec

SERVER, NODE, LAUNCHER = "skep-server.service", "skep-node.service", "skep-launcher.service"
SERVER_ACCOUNT, NODE_ACCOUNT = "skep", "skep-agent"

WATCHDOG_S = 30
"""The main process says every half of it that it is alive: a machine that swaps needs seconds."""
STOP_WITHIN_S = 60
"""Services get 10 s each, side by side, and the bus after them."""
CONFIGURATION, LOG, NAME_TAKEN, LAUNCHER_CONFIGURATION = 64, 72, 73, 78
"""Exit codes after which a new start can only do harm, or nothing: a person has to look."""

Lines = tuple[str, ...]


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """One unit: its file name and its text."""

    name: str
    text: str


HARDENED: Lines = (
    "NoNewPrivileges=yes",
    "CapabilityBoundingSet=",
    "AmbientCapabilities=",
    "ProtectSystem=strict",
    "PrivateTmp=yes",
    "ProtectKernelTunables=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelLogs=yes",
    "ProtectControlGroups=yes",
    "ProtectClock=yes",
    "ProtectHostname=yes",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "LockPersonality=yes",
    "SystemCallArchitectures=native",
    "UMask=0077",
)
"""What holds of all that is not the launcher."""


def server_unit(command: Sequence[str], home: str, archive: str = "") -> Unit:
    """Return the unit of bus, services and gateway.

    Args:
        command: The program `skep` and what comes before its arguments.
        home: The state folder.
        archive: A folder of the archive outside of it; empty: there is none.
    """
    text = _unit(
        description="Skep: bus, services and gateway of this server",
        after=("network-online.target", "time-sync.target"),
        service=(
            "Type=notify",
            "NotifyAccess=main",
            f"ExecStart={_command(command, 'server', 'run', '--home', home)}",
            f"User={SERVER_ACCOUNT}",
            f"Group={SERVER_ACCOUNT}",
            *_restarts(),
            # The supervisor stops its services in order, and the bus last.
            "KillMode=mixed",
            f"TimeoutStopSec={STOP_WITHIN_S}",
            *_state(home),
            *((f"ReadWritePaths=-{archive}",) if archive else ()),
            *HARDENED,
            "PrivateDevices=yes",
            "ProtectProc=invisible",
            "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
            "SystemCallFilter=@system-service",
            "SystemCallErrorNumber=EPERM",
            "LimitNOFILE=65536",
        ),
    )
    return Unit(name=SERVER, text=text)


def node_unit(command: Sequence[str], home: str, *, launcher: bool) -> Unit:
    """Return the unit of a node's agent.

    Args:
        command: The program `skep` and what comes before its arguments.
        home: The state folder.
        launcher: Jobs are started by the launcher. Without it they are children of the agent, run
            as its account and share what its unit allows.
    """
    text = _unit(
        description="Skep: agent of this node",
        after=("network-online.target", "time-sync.target", *((LAUNCHER,) if launcher else ())),
        wants=(LAUNCHER,) if launcher else (),
        service=(
            "Type=notify",
            "NotifyAccess=main",
            f"ExecStart={_command(command, 'node', 'run', '--home', home)}",
            f"User={NODE_ACCOUNT}",
            f"Group={NODE_ACCOUNT}",
            *_restarts(),
            # Jobs and what holds them stay as they are while the agent is restarted.
            "KillMode=process",
            f"TimeoutStopSec={STOP_WITHIN_S}",
            *_state(home),
            *HARDENED,
            "LimitNOFILE=65536",
            "LimitMEMLOCK=infinity",
            "TasksMax=infinity",
        ),
    )
    return Unit(name=NODE, text=text)


def launcher_unit(command: Sequence[str]) -> Unit:
    """Return the unit of the launcher: the one process of a node that is root.

    It has what it needs to start a job as another account, in a control group and with a `/tmp` of
    its own. What it may do is bounded by its policy, `/etc/skep/launcher.toml`.

    Args:
        command: The program that the launcher is, with its arguments.
    """
    text = _unit(
        description="Skep: launcher of jobs on this node",
        before=(NODE,),
        service=(
            "Type=notify",
            "NotifyAccess=main",
            f"ExecStart={_command(command)}",
            # It executes itself anew, and the jobs stay its children.
            "ExecReload=/bin/kill -HUP $MAINPID",
            "User=root",
            "Restart=on-failure",
            "RestartSec=1",
            f"RestartPreventExitStatus={LAUNCHER_CONFIGURATION}",
            f"WatchdogSec={WATCHDOG_S}",
            "KillMode=process",
            # Each job has a control group of its own below this unit's.
            "Delegate=yes",
            "StateDirectory=skep-launcher",
            "StateDirectoryMode=0711",
            "RuntimeDirectory=skep-launcher",
            "RuntimeDirectoryMode=0755",
            "RuntimeDirectoryPreserve=restart",
            "ProtectKernelModules=yes",
            "ProtectClock=yes",
            "ProtectHostname=yes",
            "LockPersonality=yes",
            "SystemCallArchitectures=native",
            "LimitNOFILE=65536",
            "LimitMEMLOCK=infinity",
            "TasksMax=infinity",
        ),
    )
    return Unit(name=LAUNCHER, text=text)


def _restarts() -> Lines:
    final = f"{CONFIGURATION} {LOG} {NAME_TAKEN}"
    return (
        "Restart=on-failure",
        "RestartSec=2",
        f"RestartPreventExitStatus={final}",
        f"WatchdogSec={WATCHDOG_S}",
    )


def _state(home: str) -> Lines:
    """Return what lets a unit write its state folder, and nothing else of the system."""
    name = home.removeprefix("/var/lib/")
    if home.startswith("/var/lib/") and "/" not in name:
        return (f"StateDirectory={name}", "StateDirectoryMode=0700", "ProtectHome=yes")
    return (f"ReadWritePaths={home}", "ProtectHome=no")


def _command(command: Sequence[str], *more: str) -> str:
    # systemd takes `%` and `$` for itself.
    return shlex.join([*command, *more]).replace("%", "%%").replace("$", "$$")


def _unit(
    *, description: str, service: Lines, after: Lines = (), before: Lines = (), wants: Lines = ()
) -> str:
    online = tuple(name for name in after if name == "network-online.target")
    lines = [
        "[Unit]",
        f"Description={description}",
        *([f"After={' '.join(after)}"] if after else []),
        *([f"Before={' '.join(before)}"] if before else []),
        *([f"Wants={' '.join((*online, *wants))}"] if (*online, *wants) else []),
        # It is tried for as long as the machine is up.
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        *service,
        "",
        "[Install]",
        "WantedBy=multi-user.target",
        "",
    ]
    return "\n".join(lines)
