"""How a container is confined whose run has an account: what the launcher said of it, and why.

Without a launcher, containers are as they always were: of the agent's user, in the host's network.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from skep.wire.volumes import Mount
from skep_services.agent.runner_launch import NotStarted
from skep_services.ports import RunPlan

HOST, BRIDGE = "host", "bridge"
TMP_OPTIONS = "rw,nosuid,nodev,mode=1777"
TMP_PLACES = ("/tmp", "/var/tmp", "/run")  # noqa: S108 - the container's own
TMP_BYTES_MAX = 4 << 30
"""Of a container's /tmp, which is in memory and counts as the job's."""


class Confined(msgspec.Struct, frozen=True, kw_only=True):
    """What a container of an account may: sizes are bytes; 0: no bound."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    workdir: str
    network: str
    pids: int
    memory: int
    shared_memory: int
    files: dict[str, str]
    """The paths of files of secrets, by variable."""
    mounts: tuple[Mount, ...] = ()
    """The volumes, by the launcher's policy."""


Prepare = Callable[[RunPlan], Awaitable[Confined | NotStarted]]
"""Makes what a container needs, and says how it is to be."""


def confined(said: dict[str, Any], plan: RunPlan) -> Confined:
    """Return how a container is to be.

    Only a process that others connect to is in the host's network: a rank of a gang, one that may
    become such, or one that awaits a state.

    Args:
        said: What the launcher said.
        plan: The run.
    """
    uid, gid, groups = said["account"]
    return Confined(
        uid=uid,
        gid=gid,
        groups=tuple(groups),
        workdir=said["workdir"],
        network=HOST if plan.meets else BRIDGE,
        pids=said["pids"],
        memory=said["memory"],
        shared_memory=said["shared_memory"],
        files=said["files"],
        mounts=tuple(
            Mount(name=name, path=path, target=target, mode=mode)
            for name, path, target, mode in said.get("volumes", ())
        ),
    )


def with_files(plan: RunPlan, given: Confined) -> RunPlan:
    """Return a plan whose container has what the launcher made: its workdir, files of secrets."""
    return msgspec.structs.replace(
        plan,
        workdir=given.workdir,
        env={**plan.env, **given.files},
        folders_to_read=(
            *plan.folders_to_read,
            *dict.fromkeys(os.path.dirname(path) for path in given.files.values()),
        ),
        files={},
        mounts=given.mounts,
    )


def host_config(given: Confined, ulimit: Any) -> dict[str, Any]:
    """Return what a container's host configuration gets instead of the usual.

    Args:
        given: How the container is to be.
        ulimit: The SDK's type of a limit.
    """
    return {
        "network_mode": given.network,
        # Ranks of one job on one node share memory; so they share the host's, where they must.
        "ipc_mode": HOST if given.network == HOST else "private",
        "shm_size": given.shared_memory or None if given.network != HOST else None,
        "group_add": [str(group) for group in given.groups],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "read_only": True,
        "tmpfs": dict.fromkeys(TMP_PLACES, f"{TMP_OPTIONS},size={TMP_BYTES_MAX}"),
        "pids_limit": given.pids,
        "mem_limit": given.memory or None,
        "memswap_limit": given.memory or None,
        "ulimits": [ulimit(name="core", soft=0, hard=0)],
    }
