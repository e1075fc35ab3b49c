"""The service that a launcher is, for systemd: what it may, and why.

Jobs inherit the launcher's mounts and filters of system calls, so nothing here may make a file
system read-only that jobs write to, or forbid a call that they make: no ProtectSystem, PrivateTmp,
RestrictSUIDSGID or SystemCallFilter. KillMode and Delegate leave jobs alone when it ends; their
control groups are not below its own.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from skep_services.launcher import launcher_process, policy

NAME = "skep-launcher.service"

CAPABILITIES = {
    "CAP_SETUID": "a job gets its account",
    "CAP_SETGID": "and its groups",
    "CAP_SETPCAP": "a job's bounding set is emptied",
    "CAP_SYS_ADMIN": "mounts of a job's own, and programs that filter devices",
    "CAP_CHOWN": "logs, checkpoints and scratch are the account's",
    "CAP_FOWNER": "and get their modes",
    "CAP_DAC_OVERRIDE": "logs of accounts are kept within their bounds, old scratch is removed",
    "CAP_KILL": "jobs are signalled",
    "CAP_SYS_PTRACE": "whose a process is, is seen",
    "CAP_SYS_RESOURCE": "limits are set above those of the service",
    "CAP_SYS_NICE": "it goes before the jobs, which it has to end",
}
"""All that the launcher may of what root may; it gives everything else up for good."""

UNIT = """\
[Unit]
Description=Skep launcher: starts jobs as their persons' accounts
Documentation=https://skep.readthedocs.io/how-to/job-isolation/
After=local-fs.target nss-user-lookup.target
Before=skep-node.service skep-agent.service
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
Restart=always
RestartSec=1
RestartPreventExitStatus=78
WatchdogSec=30
KillMode=process
Delegate=yes
TasksMax=infinity
LimitNOFILE=65536
LimitMEMLOCK=infinity
OOMScoreAdjust=-900
UMask=0022
RuntimeDirectory=skep-launcher
RuntimeDirectoryMode=0755
RuntimeDirectoryPreserve=yes
CapabilityBoundingSet={capabilities}
AmbientCapabilities=
NoNewPrivileges=yes

[Install]
WantedBy=multi-user.target
"""


def command(config: str = policy.CONFIG_PATH) -> Sequence[str]:
    """Return what executes a launcher, by the interpreter that this process has."""
    program = launcher_process.__file__
    return (sys.executable, "-I", "-S", "-X", "utf8", program, "--config", config)


def text(config: str = policy.CONFIG_PATH) -> str:
    """Return the unit file of a launcher with this policy."""
    # systemd takes `%` and `$` for itself.
    words = shlex.join(command(config)).replace("%", "%%").replace("$", "$$")
    return UNIT.format(command=words, capabilities=" ".join(sorted(CAPABILITIES)))
