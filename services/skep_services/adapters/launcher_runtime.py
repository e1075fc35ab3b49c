"""The node runtime for plain processes on a node whose jobs have accounts: a client of a launcher.

The launcher (`skep_services.launcher`) is root and a service of its own, so this starts none: it
waits for one. All else is as with a runner.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from skep_services.adapters.docker_account import Confined, confined
from skep_services.adapters.process_runtime import ProcessRuntime, RunnerLostError, unix_connection
from skep_services.agent import runner
from skep_services.agent.runner_launch import NotStarted
from skep_services.ports import RunPlan
from skep_services.service import ConfigurationError

VARIABLE = "SKEP_LAUNCHER"
"""What names the launcher's socket to an agent. Without it jobs run as the agent's own user."""

ANSWER_SECONDS_MAX = 10.0
"""How long an agent that begins waits for a launcher that is there."""


class Launcher(msgspec.Struct, frozen=True):
    """What a launcher says of itself: the folder it shares, and what of isolation it lacks."""

    socket: Path
    folder: Path
    mode: str
    lacks: dict[str, str]
    copies: int = 0
    """Bytes that copies of jobs' state may take of the node's memory; 0: it keeps none."""


async def find(path: Path) -> Launcher:
    """Return the launcher at a socket.

    Raises:
        ConfigurationError: It answers another account only.
        ConnectionError: None answers at this moment.
    """
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            reader, writer = await asyncio.open_unix_connection(str(path))
            try:
                request = json.dumps({"id": 1, "do": "ping"}).encode()
                writer.write(runner.LENGTH.pack(len(request)) + request)
                said: dict[str, Any] = {}
                while said.get("id") != 1:  # Runs that end are told to everybody meanwhile.
                    (length,) = runner.LENGTH.unpack(await reader.readexactly(runner.LENGTH.size))
                    said = json.loads(await reader.readexactly(length))
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        text = (
            f"{VARIABLE} is {str(path)!r}, and no launcher answers there ({error!r}): "
            "start skep-launcher, and see that `agent` in its policy is this account"
        )
        if isinstance(error, PermissionError):
            raise ConfigurationError(text) from error
        # It may be about to start, or to be started anew: the agent is tried again.
        raise ConnectionError(text) from error
    copies = said.get("copies", 0)  # Launchers of before have none.
    return Launcher(path, Path(said["folder"]), said["mode"], said["lacks"], copies)


class LauncherRuntime(ProcessRuntime):
    """The runs of a node whose launcher listens at `path`; `state` is the agent's folder."""

    def __init__(self, state: Path, path: Path) -> None:
        super().__init__(state)
        self._name = f"the launcher at {path}"
        self._socket = path

    def _asked(self, plan: RunPlan) -> dict[str, Any]:
        return {
            **super()._asked(plan),
            "job": plan.job,
            "owner": plan.owner,
            "vc": plan.vc,
            **({"work": plan.work} if plan.work else {}),
            # Launchers of before know no such keys, and refuse what they do not know.
            **({"copies": True} if plan.copies else {}),
            **(
                {"volumes": [(one.name, one.target, one.mode) for one in plan.mounts]}
                if plan.mounts
                else {}
            ),
            "device_nodes": plan.device_nodes,
            "checkpoints": plan.checkpoints,
            "files": {
                name: base64.b64encode(content).decode() for name, content in plan.files.items()
            },
        }

    async def prepare(self, plan: RunPlan) -> Confined | NotStarted:
        """Have what a container of a run needs made; return how it is to be, or why it is not."""
        answer = await self._ask({"do": "prepare", "plan": self._asked(plan)})
        if "not_started" in answer:
            return NotStarted(answer["not_started"], of_node=answer.get("fault") == "node")
        return confined(answer, plan)

    async def remove_files(self, token: str) -> None:
        """Remove the files of secrets of a container."""
        await self._ask({"do": "remove", "job": token, "kind": "files"})

    async def keep_files(self, tokens: Sequence[str]) -> None:
        """Remove the files of secrets of all containers but those of these runs."""
        await self._ask({"do": "keep", "tokens": list(tokens)})

    async def remove_checkpoints(self, job: str) -> None:
        """Remove the checkpoints of a job, unless it has processes here."""
        await self._ask({"do": "remove", "job": job})

    async def copies(self) -> list[str]:
        """Return the jobs with copies of their state in this node's memory."""
        return [str(job) for job in (await self._ask({"do": "copies"}))["jobs"]]

    async def remove_copies(self, job: str) -> None:
        """Remove the copies of a job's state, unless it has processes here."""
        await self._ask({"do": "remove", "job": job, "kind": "copies"})

    async def remove_logs(self, job: str) -> None:
        """Remove the logs of a job, unless it has processes here."""
        await self._ask({"do": "remove", "job": job, "kind": "logs"})

    async def remove_work(self, job: str) -> None:
        """Remove the folders of a job's attempts, unless it has processes here."""
        await self._ask({"do": "remove", "job": job, "kind": "work"})

    async def sweep_checkpoints(self, keep_s: float) -> list[str]:
        """Remove the checkpoints of jobs that no process here wrote to for long; return whose."""
        found = await self._ask({"do": "sweep", "before": time.time() - keep_s})
        return [str(job) for job in found["jobs"]]

    async def _connect_once(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(str(self._socket))

    async def _session_connection(self) -> socket.socket:
        return await unix_connection(str(self._socket))

    async def _launch(self) -> None:
        """Start nothing: the service manager starts launchers."""

    def _complaint(self) -> str:
        return "see `systemctl status skep-launcher`"


__all__ = ["VARIABLE", "Launcher", "LauncherRuntime", "RunnerLostError", "find"]
