"""What `skep doctor` says about how jobs are kept apart on this machine."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

from skep_services.cli.checks import FAIL, OK, WARN, Check

HOW_TO = "docs/how-to/job-isolation.md"
PATIENCE_S = 2.0
PROC_HIDDEN = ("hidepid=1", "hidepid=2", "hidepid=invisible", "hidepid=noaccess")


def isolation_checks() -> Iterator[Check]:
    """Yield what a launcher says of this machine, or that there is none."""
    from skep_services.launcher import policy

    named = os.environ.get("SKEP_LAUNCHER", "")
    place = named or policy.SOCKET
    if not named and not os.path.exists(policy.CONFIG_PATH) and not os.path.exists(place):
        text = "off: jobs run as the agent's own user"
        yield Check("jobs apart", OK, f"{text} ({HOW_TO} says how to change that)")
        return
    yield from launcher_checks(place, policy.CONFIG_PATH)
    yield check_environment(os.path.realpath(sys.prefix))
    yield check_proc()


def check_environment(prefix: str) -> Check:
    """Look whether jobs see the Python environment of Skep.

    Args:
        prefix: Its folder.
    """
    from skep_services.launcher.policy import REPLACED

    if (prefix + "/").startswith(REPLACED):
        text = f"{prefix} is not seen by jobs, which have a /tmp and a /dev/shm of their own"
        return Check("environment", FAIL, text, "install Skep elsewhere, below /opt for one")
    return Check("environment", OK, f"{prefix} is seen by jobs")


def launcher_checks(place: str, config: str) -> Iterator[Check]:
    """Yield what the launcher at a socket says, or why none answers.

    Args:
        place: The socket.
        config: The launcher's policy.
    """
    try:
        said = _ask(place)
    except PermissionError:
        text = f"{place} answers the agent's account and root only"
        yield Check("launcher", WARN, text, "sudo skep doctor")
        return
    except (OSError, ValueError) as error:
        text = f"{place}: {error}"
        todo = f"systemctl status skep-launcher; its policy is {config}"
        yield Check("launcher", FAIL, text, todo)
        return
    yield Check("launcher", OK, f"pid {said['pid']}, {said['live']} runs, accounts: {said['mode']}")
    yield from isolation_of(said["lacks"], said["requires"], config)
    yield Check("jobs apart: disk", OK, said["scratch"])


def isolation_of(lacks: dict[str, str], requires: list[str], config: str) -> Iterator[Check]:
    """Yield one check for each way in which jobs are kept apart.

    Args:
        lacks: What the machine has not, and why.
        requires: What the policy does not do without.
        config: The launcher's policy.
    """
    from skep_services.launcher.policy import FEATURES

    for feature in FEATURES:
        name = f"jobs apart: {feature}"
        if feature not in lacks:
            yield Check(name, OK, "yes")
        elif feature in requires:
            todo = f"no job starts here: mend it, or take {feature} out of `require` in {config}"
            yield Check(name, FAIL, lacks[feature], todo)
        else:
            todo = f"jobs start without it; to refuse them, add {feature} to `require` in {config}"
            yield Check(name, WARN, lacks[feature], todo)


def check_proc(mountinfo: str = "/proc/self/mountinfo") -> Check:
    """Look whether the agent can see the processes of jobs.

    Args:
        mountinfo: The file that says what is mounted.
    """
    with open(mountinfo, encoding="utf-8", errors="surrogateescape") as file:
        lines = [line.split() for line in file]
    own = next((fields for fields in lines if fields[4] == "/proc"), [])
    hidden = own and any(option in own[-1].split(",") for option in PROC_HIDDEN)
    if hidden and os.geteuid() != 0:
        todo = (
            "the agent cannot tell which job connects: mount /proc with gid= of the agent's group"
        )
        return Check("/proc", WARN, "hides the processes of other accounts", todo)
    return Check("/proc", OK, "shows whose a process is")


def _ask(place: str) -> dict[str, Any]:
    """Return what a launcher says of itself.

    Raises:
        OSError: None answers.
        ValueError: What answers is none.
    """
    from skep_services.agent.runner import LENGTH

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        one.settimeout(PATIENCE_S)
        one.connect(place)
        request = json.dumps({"id": 1, "do": "ping"}).encode()
        one.sendall(LENGTH.pack(len(request)) + request)
        head = one.recv(LENGTH.size, socket.MSG_WAITALL)
        if len(head) < LENGTH.size:
            text = "it hung up: `agent` in its policy is another account"
            raise ValueError(text)
        said: dict[str, Any] = json.loads(one.recv(LENGTH.unpack(head)[0], socket.MSG_WAITALL))
    return said
