"""What tests of environments share: a node that builds them, and installers that stand in."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec

from skep.wire.commands import BindJob, EnvironmentOrder
from skep.wire.reports import Building
from skep.wire.runs import RunExited, RunNotStarted
from skep_services.agent.builds import Environments, builds
from skep_services.cli.snapshots import of_files
from skep_services.ports import NodeRuntime
from tests.code_kit import CodeNode
from tests.kit import bind

UV = """#!/bin/sh
# Stands in for uv: `uv venv ... DIR` and `uv pip install --python DIR/bin/python -r FILE`.
echo "uv $*" >> "$UV_TOLD"
if [ "$1" = venv ]; then
    for last; do :; done
    mkdir -p "$last/bin" && ln -s "$4" "$last/bin/python"
elif [ "$1" = sync ]; then
    mkdir -p "$UV_PROJECT_ENVIRONMENT/bin" && ln -s "$5" "$UV_PROJECT_ENVIRONMENT/bin/python"
else
    . "./$6"
fi
"""
"""The file of the requirements is what it does: a script of the shell."""


def stand_in(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


class BuildingNode:
    """A node whose jobs have environments; its uv runs the requirements as a script."""

    def __init__(self, runtime: NodeRuntime, state: Path, shared: Path, tools: Path) -> None:
        stand_in(tools, "uv", UV)
        self.told_to_uv = tools / "told"
        self.state, self.shared, self.runtime = state, shared, runtime
        self.inherited = {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "UV_TOLD": str(self.told_to_uv),
            "HOME": str(tools),
        }
        self.files = of_files({"requirements.txt": b""})
        self.code = CodeNode(runtime, state, shared, self.files)
        self.seen: asyncio.Queue[tuple[Building, ...]] = asyncio.Queue()
        self.alive: dict[str, bool] = {}
        self.began()

    def began(self) -> None:
        """Have the agent be another process, which knows what is on disk."""
        remove = getattr(self.runtime, "remove_work", None)
        self.environments = Environments(
            self.code.code, self.runtime, self.state, self.shared, self.inherited, remove
        )
        self.environments.tell = self.seen.put
        self.environments.lives = lambda job, attempt: self.alive.get(job, False)

    def wants(self, script: str, job: str = "j1", **more: str) -> BindJob:
        """Return a job whose requirements are a script."""
        self.files = of_files({"requirements.txt": script.encode()})
        self.code.taken = self.files
        self.code.gateway._taken = self.files
        order = EnvironmentOrder(
            **{
                "kind": "requirements",
                "path": "requirements.txt",
                "files": self.files.digest,
                **more,
            }
        )
        return msgspec.structs.replace(
            bind(job, 1), environment=order, owner="ada", vc="nlp", node="node-1"
        )

    async def provide(self, command: BindJob) -> str | RunNotStarted:
        self.alive[command.job] = True
        token = f"{command.job}.1.0"
        self.environments.starting(token)
        try:
            return await self.environments.provide(command, token)
        finally:
            self.environments.settled(token)

    def log(self, job: str = "j1") -> str:
        return (self.shared / "logs" / job / "1" / "rank0.log").read_text()

    async def ended(self, run: RunExited) -> None:
        await (self.environments if builds(run.token) else self.code.code).ended(run)

    async def building(self, *jobs: str) -> None:
        """Wait until the environments of exactly these jobs are being built."""
        async with asyncio.timeout(60):
            while [one.job for one in await self.seen.get()] != list(jobs):
                pass
