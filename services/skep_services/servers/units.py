"""The systemd units of servers and nodes, as text; what writes them is in `install`.

What a unit may do is as little as it works with. A job of a node survives a restart of the agent's
unit: systemd ends the unit's main process only (`KillMode=process`), and the agent finds its jobs
again. The launcher is the only part that is root; its unit is in `skep_services.launcher.unit`.
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
CONFIGURATION, LOG, NAME_TAKEN = 64, 72, 73
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
    "ProtectHostname=yes",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "LockPersonality=yes",
    "SystemCallArchitectures=native",
    "UMask=0077",
)
"""What holds of all that is not the launcher.

Not ProtectClock: it implies DeviceAllow=, which denies every device that is not named, GPUs too.
Without capabilities no clock can be set anyway.
"""

BOUNDED: Lines = (
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
    "SystemCallFilter=@system-service",
    "SystemCallErrorNumber=EPERM",
)
"""What also holds where no job is a child: jobs inherit filters of system calls."""


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
            *BOUNDED,
            "PrivateDevices=yes",
            "ProtectClock=yes",
            "ProtectProc=invisible",
            "LimitNOFILE=65536",
        ),
    )
    return Unit(name=SERVER, text=text)


def node_unit(
    command: Sequence[str], home: str, *, launcher: bool, writable: Sequence[str] = ()
) -> Unit:
    """Return the unit of a node's agent.

    Args:
        command: The program `skep` and what comes before its arguments.
        home: The state folder.
        launcher: Jobs are started by the launcher. Without it they are children of the agent, run
            as its account and share what its unit allows.
        writable: Folders beside the state folder that the agent writes to, if they are there: the
            launcher's with the logs and the socket of jobs, the checkpoints that nodes share.
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
            *(f"ReadWritePaths={_quoted(f'-{folder}')}" for folder in writable),
            *HARDENED,
            *(BOUNDED if launcher else ()),
            "LimitNOFILE=65536",
            "LimitMEMLOCK=infinity",
            "TasksMax=infinity",
        ),
    )
    return Unit(name=NODE, text=text)


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
    return (f"ReadWritePaths={_quoted(home)}", "ProtectHome=no")


def _command(command: Sequence[str], *more: str) -> str:
    # systemd takes `%` and `$` for itself.
    return _quoted(*command, *more).replace("$", "$$")


def _quoted(*words: str) -> str:
    return shlex.join(words).replace("%", "%%")


def _unit(*, description: str, service: Lines, after: Lines, wants: Lines = ()) -> str:
    online = tuple(name for name in after if name == "network-online.target")
    lines = [
        "[Unit]",
        f"Description={description}",
        f"After={' '.join(after)}",
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
